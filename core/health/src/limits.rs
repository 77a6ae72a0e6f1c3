//! Limits of validators' reports, and of the runs of a policy on a node.

/// A validator's report: the kubelet keeps 4 KiB a container and 12 KiB a pod. A validator that
/// has more to say reports an error in the place of what does not fit.
///
/// - At the limit: refused, "bytes, at most"
/// - Test: `what_no_validator_writes_is_refused`
pub const REPORT_LIMIT_BYTES: usize = 3 << 10;

/// Results of a report. A validator that has more reports an error in the place of the others.
///
/// - Unit: results
/// - At the limit: refused, "results, at most"
/// - Test: `what_no_validator_writes_is_refused`
pub const MAX_RESULTS: usize = 32;

/// A text in a report, and the words of a judgement on it.
///
/// - At the limit: dropped: the end of the text
/// - Test: `a_text_is_cut_after_160_bytes_between_characters`
pub const TEXT_BYTES: usize = 160;

/// Finished runs of policies that are kept of a node.
///
/// - Unit: runs
/// - At the limit: dropped: those from which the least derives
/// - Test: `at_most_three_runs_are_kept_and_what_the_due_time_derives_from_is_one`
pub const MOST_KEPT: usize = 3;

/// Time for which finished runs outlive their node: one that comes back from repair finds its
/// history.
///
/// - At the limit: dropped: the runs are deleted
/// - Test: `runs_of_a_node_that_is_gone_are_deleted_the_finished_ones_a_week_later`
pub(crate) const GONE_SECONDS: i64 = 7 * 24 * 3600;

/// Time that a job has its nodes before it is asked to leave them: so it is asked once a week at
/// most, and a node that was not old when the job got it is not much older than a week then.
///
/// - At the limit: ends: the job is asked to leave, if its policy interrupts
/// - Test: `a_job_is_asked_for_its_node_that_waits_longest_once_it_has_had_a_week`
pub(crate) const LEAST_USE_SECONDS: i64 = 7 * 24 * 3600;

/// Time in which a policy's run that no job keeps from its node starts.
///
/// - At the limit: ends: the run is withdrawn, and its node is tried again later
/// - Test: `what_a_policy_created_is_withdrawn_when_it_could_have_started_and_nothing_of_people`
pub(crate) const START_SECONDS: i64 = 120;

/// Time between two runs of a suspect node, and from the last run of one in quarantine that was
/// started anew to the next.
///
/// - At the limit: waits: a node that stays suspect is not validated more often
/// - Test: `a_suspect_node_is_due_at_once_but_once_an_hour`
pub(crate) const SUSPECT_SECONDS: i64 = 3600;
