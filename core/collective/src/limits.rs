//! Limits of collectives, groups and membership messages that ranks and sidecars can reach.

/// Operations that a rank may have in flight.
///
/// - Unit: operations
/// - At the limit: waits: a further call waits for one to end
/// - Test: `a_rank_waits_when_all_it_may_have_in_flight_is_not_released`
pub const MAX_IN_FLIGHT: u64 = 64;

/// Messages that a rank may have asked to receive before they were sent, and as many that it may
/// send. A process that exchanges one with each rank of 128 nodes of 8 has fewer. Those of two
/// ranks may meet in any order, so none waits for another to be over.
///
/// - Unit: messages
/// - At the limit: waits: a further call waits for one to end
/// - Test: `operations_and_messages_of_each_way_find_room_beside_each_other`
pub const MAX_MESSAGES: u64 = 1024;

/// Groups that a node takes part in at a time.
///
/// - Unit: groups
/// - At the limit: refused, "groups already: close some"
/// - Test: `a_node_takes_part_in_so_many_groups_and_no_more`
pub const MAX_GROUPS: usize = 512;

/// Payload of a frame, and so the largest chunk.
///
/// - At the limit: refused, "payload"
/// - Test: `a_chunk_that_does_not_fit_into_a_frame_is_refused_with_the_largest_that_does`
pub const PAYLOAD_LIMIT_BYTES: u32 = 16 << 20;

/// Message of the rendezvous: a roster of 10,000 nodes is some 600 KiB.
///
/// - At the limit: refused, "failed to read a rendezvous frame"
/// - Test: `a_frame_as_long_as_the_limit_passes_and_one_byte_more_is_refused_at_both_ends`
pub const FRAME_LIMIT_BYTES: usize = 1 << 20;

/// Text inside a message of the rendezvous.
///
/// - At the limit: dropped: the end of the text
/// - Test: `long_text_is_cut_between_characters`
pub const TEXT_LIMIT_BYTES: usize = 1 << 10;
