//! Limits of a sidecar that the processes of its node, its neighbors or its operator can reach.

/// Memory of results, and memory of inputs of a process, unless `--limit-mib` says otherwise.
///
/// - At the limit: waits: a call waits until results are given back; what can never fit is
///   refused
/// - Test: `calls_wait_in_their_order_until_results_are_dropped`, with 4 MiB
pub const DEFAULT_LIMIT_BYTES: usize = 16 << 30;

/// Connections of local processes that have not said who they are: twice a node's processes.
///
/// - Unit: connections
/// - At the limit: dropped: the newest is closed
/// - Test: `too_many_local_connections_are_closed_and_ranks_attach_once_they_leave`
pub const PENDING_PROCESSES: usize = 128;

/// Requests for memory of one process that are not answered. Ours has one, and one more each time
/// that an answer came late.
///
/// - Unit: requests
/// - At the limit: refused, "and goes on before it is answered"
/// - Test: `requests_are_answered_in_their_order_and_too_many_are_refused`
pub(crate) const REQUEST_LIMIT: usize = 64;

/// Operations of which a process may hold the result, or know that there is none.
///
/// - Unit: operations
/// - At the limit: refused, "it has to give them back"
/// - Test: `a_process_that_gives_nothing_back_is_let_go_before_it_costs_much`
pub(crate) const MAX_UNRETURNED: usize = 1 << 18;

/// Segments that wait to be made or freed: some of each process of a node.
///
/// - Unit: segments
/// - At the limit: refused, "other segments are being made"
/// - Test: `more_than_may_wait_is_refused`
pub(crate) const QUEUE_LIMIT: usize = 1024;

/// Record of a local rank for the next sidecar: a few groups of a large gang, or hundreds of
/// small ones.
///
/// - At the limit: dropped: the rank is waited for as if it had not left
/// - Test: `who_has_no_record_that_can_be_true_is_waited_for`
pub(crate) const RECORD_LIMIT_BYTES: u64 = 4 << 20;

/// An attempt's assignment, packed: what a ConfigMap holds.
///
/// - At the limit: refused, "it is larger than"
/// - Test: `an_assignment_above_its_limit_is_refused_by_name`
pub(crate) const ASSIGNMENT_LIMIT_BYTES: u64 = 1 << 20;
