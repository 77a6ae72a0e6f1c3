//! Limits of what a node's ranks print and of the time that they have to end.

use std::time::Duration;

/// What is kept of a rank's output for the report, which carries one rank's and must stay below
/// 3 KiB.
///
/// - At the limit: dropped: the oldest
/// - Test: `the_report_keeps_the_last_2_kib_of_a_rank`
pub(crate) const TAIL_BYTES: usize = 2048;

/// Time for the roster, which the sidecar writes before its startup probe passes: the folder may
/// show it late.
///
/// - At the limit: ends: the pod fails, and its message names the file that is missing
/// - Test: `a_roster_that_does_not_come_in_time_is_missed_by_name`, with no time
pub(crate) const ROSTER_PATIENCE: Duration = Duration::from_secs(10);

/// Time from SIGTERM to SIGKILL of ranks that must end, where the operator says nothing: what
/// `failurePolicy.exitSeconds` is by default. Only when they are gone is the pod's end seen, and
/// the gang's other pods are ended: `exit_margin` in the scheduler's policy adds up when all are
/// gone.
///
/// - At the limit: ends: the ranks that are left are killed
/// - Test: `the_first_failure_ends_the_others_and_is_the_outcome`
pub(crate) const EXIT: Duration = Duration::from_secs(1);

/// Time for the last output after the last rank is over. It takes longer only when something that
/// the ranks left behind holds their pipes.
///
/// - At the limit: ends: what is not read yet is lost
/// - Test: `what_a_rank_leaves_behind_does_not_outlive_it_nor_hold_it_back`
pub(crate) const DRAIN: Duration = Duration::from_millis(500);
