//! Limits of the files and messages that the programs of an attempt exchange.

/// Nodes of an assignment: the 10,000 that we plan for, rounded up. The API takes 4,096 for a job.
///
/// - Unit: nodes
/// - At the limit: refused, "nodes, not 1 to"
/// - Test: `what_cannot_be_is_refused_with_its_reason`
pub const MAX_NODES: usize = 16_384;

/// Processes of a job on one node.
///
/// - Unit: processes
/// - At the limit: refused, "processes a node, not 1 to"
/// - Test: `what_cannot_be_is_refused_with_its_reason`
pub const MAX_PROCS_PER_NODE: u32 = 64;

/// An attempt's assignment when unpacked: 10,000 nodes at some 400 bytes each.
///
/// - At the limit: refused, "it is larger than"
/// - Test: `a_bomb_stops_at_the_limit`, with 1,000 bytes
pub const ASSIGNMENT_LIMIT_BYTES: u64 = 8 << 20;

/// The task of a validation run. What the operator writes has a tenth of it.
///
/// - At the limit: refused, "it is larger than"
/// - Test: `a_task_that_cannot_be_is_refused_with_its_reason`
pub const TASK_LIMIT_BYTES: usize = 64 << 10;

/// Time that two nodes which are to measure the network between them wait for each other: the node
/// whose run got it first is idle meanwhile.
///
/// - At the limit: ends: the check is skipped, and says so
/// - Test: `a_partner_that_does_not_come_is_skipped_with_the_reason`, with 1 s
pub const PARTNER_SECONDS: u32 = 120;

/// A progress report, an acknowledgement or a cause in the run directory: a few numbers and a
/// digest.
///
/// - At the limit: refused, "it is larger than"
/// - Test: `a_file_that_is_too_large_or_wrong_is_named`
pub const PROGRESS_LIMIT_BYTES: u64 = 4 << 10;

/// The launcher's termination message: the kubelet keeps 4 KiB a container and 12 KiB a pod.
///
/// - At the limit: dropped: the oldest part of the program's output
/// - Test: `a_long_log_keeps_its_end`
pub const TERMINATION_LIMIT_BYTES: usize = 3 << 10;
