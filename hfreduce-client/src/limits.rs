//! Limits of a process at its sidecar.

/// Groups that one process restores in a sidecar that has lost its memory: as many as a node may
/// take part in, and as many that ended with an epoch.
///
/// - Unit: groups
/// - At the limit: refused by the sidecar, "are the most"
/// - Test: `what_a_process_tells_of_its_groups_is_checked_and_no_sidecar_ends`
pub const GROUP_LIMIT: usize = 1024;

/// Operations of groups that a process has in flight.
///
/// - Unit: operations
/// - At the limit: waits, and after the time limit of the call is an error that says so
/// - Test: `the_input_of_a_call_that_finds_no_room_stays_with_the_caller`
pub const IN_FLIGHT_LIMIT: usize = 32;

/// Messages that a process has in flight, of those that it sends and of those that it receives.
///
/// - Unit: messages
/// - At the limit: waits, and after the time limit of the call is an error that says so
/// - Test: `operations_and_messages_of_each_way_find_room_beside_each_other`
pub const MESSAGE_LIMIT: usize = 1024;
