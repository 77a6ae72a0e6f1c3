//! Limits of jobs: how long the planner waits, and how often it tries.

use std::time::Duration;

/// Jobs that cross zones at once, unless the Fabric says otherwise.
///
/// - Unit: jobs
/// - At the limit: waits: the job waits for one zone, or for another job to end
/// - Test: `a_job_crosses_when_no_zone_is_large_enough_and_only_so_many_do`
pub const CROSSING_JOBS: u32 = 1;

/// Time in which no pod of a gang is created or bound, while one is not bound yet.
///
/// - At the limit: ends: the gang is released and planned again, uncharged
/// - Test: `a_pod_that_is_not_bound_in_time_gives_its_nodes_back`
pub const BIND_TIME: Duration = Duration::from_secs(30);

/// Time that a pod which cannot start, for its image is missing, keeps the nodes of its gang.
///
/// - At the limit: ends: others get the nodes, and the job tries again later
/// - Test: `a_misspelt_image_holds_its_nodes_for_a_fiftieth_of_a_day`
pub const BLOCKED_TIME: Duration = Duration::from_mins(10);

/// Time without progress from the binding of a pod to its trainer, unless the class says
/// otherwise.
///
/// - At the limit: ends: the gang is released and planned again, uncharged
/// - Test: `a_preparation_of_any_length_goes_on_as_long_as_it_makes_progress`
pub const START_TIME: Duration = Duration::from_hours(2);

/// Time for the stacks of ranks that make no progress.
///
/// - At the limit: ends: the attempt ends as Stalled
/// - Test: `ten_seconds_after_the_question_the_attempt_ends_as_stalled_and_is_charged`
pub const STACK_TIME: Duration = Duration::from_secs(10);

/// Time in which a sidecar that has not connected to a new leader counts as alive.
///
/// - At the limit: ends: a missing heartbeat counts then
/// - Test: `a_new_leader_waits_before_missing_heartbeats_count`
pub const LISTEN_TIME: Duration = Duration::from_secs(30);

/// Least time between two departures of a gang from nodes that somebody wants emptied.
///
/// - At the limit: slowed: it leaves all nodes that are wanted then at once
/// - Test:
///   `a_rolling_cordon_interrupts_a_gang_once_a_few_minutes_for_all_nodes_that_wish_it_then`
pub const MOVE_PAUSE: Duration = Duration::from_mins(5);

/// Time until a Lease that ran out counts where many ran out at once.
///
/// - At the limit: waits: nobody is ended before
/// - Test: `in_a_storm_a_lease_that_ran_out_counts_only_after_five_minutes`
pub const STORM_TIME: Duration = Duration::from_mins(5);

/// Attempts in a row that end before the job runs, until the condition Stuck.
///
/// - Unit: attempts
/// - At the limit: slowed: it is tried again after ever longer pauses
/// - Test: `a_job_that_never_runs_is_stuck_from_its_fifth_attempt_until_it_runs`
pub const STUCK_ATTEMPTS: u32 = 5;

/// Time for which a failure of the program counts against maxRestarts.
///
/// - At the limit: ends: it is forgotten
/// - Test: `failures_of_the_last_day_count`
pub const RESTART_WINDOW: Duration = Duration::from_hours(24);

/// Time in which no zone has enough healthy nodes, until a job crosses zones.
///
/// - At the limit: waits: the job has no nodes
/// - Test: `dead_nodes_of_the_zone_make_a_job_cross_after_five_minutes`
pub const CROSSING_TIME: Duration = Duration::from_mins(5);

/// Nodes that a job keeps away from, because attempts ended there. The schema has the same limit.
///
/// - Unit: nodes
/// - At the limit: dropped: the one that is forgotten soonest
/// - Test: `a_job_remembers_the_last_sixty_four_bad_nodes`
pub(crate) const MOST_AVOIDED: usize = 64;
