//! Limits of ports, handshakes and memory that a peer or a process can reach.

use std::time::Duration;

/// Connections of one port that have not proved who they are: so many from addresses of members,
/// and so many from others. A member of a double tree has ten peers at most.
///
/// - Unit: connections
/// - At the limit: dropped: the oldest of the address that has most makes room
/// - Test: `a_full_pool_drops_the_oldest_of_the_largest_source`, with a pool of 8
pub(crate) const PENDING_CONNECTIONS: usize = 64;

/// Connections of one port that are answered at a time, each on a thread.
///
/// - Unit: connections
/// - At the limit: waits: nobody is accepted for a millisecond
/// - Test: `members_join_though_a_thousand_others_connect_without_pause`
pub(crate) const ANSWERED_CONNECTIONS: usize = 4 * PENDING_CONNECTIONS;

/// Time of a connection until it has proved who it is, all messages together.
///
/// - At the limit: ends: the connection is closed
/// - Test: `who_sends_byte_by_byte_is_not_waited_for_longer`, with 300 ms
pub(crate) const PROOF_TIME: Duration = Duration::from_secs(2);

/// Time of a peer that has proved who it is for its next message, until a link is open.
///
/// - At the limit: ends: the connection is closed and dialed again
/// - Test: `a_peer_that_says_no_more_after_its_proof_is_closed_after_three_seconds`
pub(crate) const MESSAGE_TIME: Duration = Duration::from_secs(3);

/// Size of one shared segment: more than the gradients of any model that one node holds.
///
/// - At the limit: refused, "bytes: at most"
/// - Test: `a_segment_that_is_larger_than_any_is_refused_before_it_is_made`
pub const SEGMENT_LIMIT_BYTES: usize = 64 << 30;

/// Windows of memory that an RDMA peer may have announced, in each direction: fixed ones, and two
/// for each operation in flight.
///
/// - Unit: windows
/// - At the limit: refused, "windows are announced"
/// - Test: `a_peer_that_announces_without_end_is_refused`
pub(crate) const RDMA_WINDOWS: usize = 4096;
