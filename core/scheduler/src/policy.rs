//! The figures behind decisions. The Fabric sets the crossing limit and the patience with starts;
//! the others are fixed here and varied by tests.

use std::collections::BTreeMap;
use std::time::Duration;

use topology::Class;

use crate::limits::{
    BIND_TIME, BLOCKED_TIME, CROSSING_JOBS, CROSSING_TIME, LISTEN_TIME, MOVE_PAUSE, RESTART_WINDOW,
    STACK_TIME, START_TIME, STORM_TIME, STUCK_ATTEMPTS,
};
use crate::time::Timestamp;

/// Limits and patience.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How many jobs may cross zones at once (paper, section III-B: one).
    pub max_cross_zone_jobs: u32,
    /// When no pod of a gang was created or bound for so long, one that is not bound is in
    /// somebody's way: release the gang, plan again.
    pub bind_patience: Duration,
    /// A pod that cannot start, for its image is missing, keeps the gang's nodes for so long; then
    /// they go to others and it tries again later.
    pub blocked_patience: Duration,
    /// The same, once an attempt of the job ended like this and it has not run since.
    pub blocked_again: Duration,
    /// A gang is released and planned again when one of its pods has made no progress towards the
    /// start of its trainer for so long: no container of it has started or ended.
    pub start_patience: Duration,
    /// The same on nodes of classes that say it themselves.
    pub start_patience_of: BTreeMap<Class, Duration>,
    /// A start that takes longer is described in the status: which pod is waited for, and what it
    /// does.
    pub start_reported_after: Duration,
    /// After the end of the first pod that failed, a suspect node's own report is awaited for so
    /// long: it separates a program that crashed (counts against `max_restarts`) from a node that
    /// died (does not).
    pub settle: Duration,
    /// A gang that cannot go on, although none of its pods says why, is ended after so long: a rank
    /// that failed is known to its peers before its launcher and kubelet have reported how
    /// (counts against `max_restarts`). The job's `exit`, which the launcher gives the other ranks
    /// of the pod, comes on top.
    pub stuck_patience: Duration,
    /// The ranks of a gang that makes no progress have so long to print their stacks; then its
    /// attempt ends.
    pub stack_patience: Duration,
    /// What pods that cannot save get between SIGTERM and SIGKILL on top of their job's `exit`, for
    /// last output and the sidecar. Survivors of a failure are gone within 5 s by default, counted
    /// from the moment in which the first rank ended: at most 1.5 s in which its launcher ends the
    /// other ranks of its pod and takes their last output (`exit` and `DRAIN` there), `settle`,
    /// and `exit` with this margin make 4.5 s. The rest is for noticing and writing.
    pub exit_margin: Duration,
    /// What pods get whose job is gone.
    pub orphan_grace: Duration,
    /// A pod that outlives its grace by so much no longer delays its job's next attempt. It still
    /// keeps its node. And a pod of a finished job that outlives its trainer by so much is deleted.
    pub leave_patience: Duration,
    /// A sidecar that has not connected to a new leader yet counts as alive for so long.
    pub listen_grace: Duration,
    /// A node must be cordoned, tainted or on its way out for so long before gangs leave it:
    /// whoever cordons several nodes has done so by then, and the gang leaves them all at once.
    pub leave_after: Duration,
    /// A gang that has been restarted is not asked to leave nodes again before so long: a rolling
    /// cordon interrupts it once for all nodes that are cordoned meanwhile.
    pub move_pause: Duration,
    /// Up to so many nodes of a class and zone, or one in twenty, may stop being Ready within
    /// `storm_window` before it counts as a storm.
    pub storm_least: usize,
    /// The node lifecycle controller's own grace: what stops at one moment is seen within it.
    pub storm_window: Duration,
    /// In a storm a Lease that ran out counts only after so long, as Kubernetes evicts pods from an
    /// unreachable node only then.
    pub storm_patience: Duration,
    /// How far the clocks of two leaders and of the API server may be apart before a finished job
    /// is deleted early.
    pub clock_slack: Duration,
    /// After failures of the program.
    pub failure_backoff: Backoff,
    /// After lost nodes and refusals.
    pub replan_backoff: Backoff,
    /// After checkpoints that could not be read. No program is at fault, so it does not count
    /// against `max_restarts`; and storage comes back, so it is tried for ever. The pauses are long
    /// enough that a job of which an attempt takes a minute to find out keeps its nodes for a
    /// fifteenth of the time, and short enough that storage is not waited for when it is back.
    pub storage_backoff: Backoff,
    /// After attempts that could not start because something that their pods need is missing.
    pub blocked_backoff: Backoff,
    /// So many attempts in a row that ended before the job ran, or because checkpoints could not be
    /// read, set the condition Stuck.
    pub stuck_after: u32,
    /// A failure of the program counts against `max_restarts` for so long.
    pub restart_window: Duration,
    /// A place stays promised for so long after its job could have taken it.
    pub promise: Duration,
    /// After a failure with a longer back-off than this nothing is promised: nodes would only be
    /// idle.
    pub promise_pause: Duration,
    /// For how long a job keeps away from a node on which an attempt ended.
    pub avoid: Backoff,
    /// A job crosses zones when for so long no zone had enough healthy nodes, although one has
    /// enough in total. Longer than an agent or a kubelet takes to restart.
    pub crossing_patience: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_cross_zone_jobs: CROSSING_JOBS,
            bind_patience: BIND_TIME,
            blocked_patience: BLOCKED_TIME,
            blocked_again: Duration::from_secs(60),
            start_patience: START_TIME,
            start_patience_of: BTreeMap::new(),
            start_reported_after: Duration::from_secs(60),
            settle: Duration::from_secs(1),
            stuck_patience: Duration::from_secs(4),
            stack_patience: STACK_TIME,
            exit_margin: Duration::from_secs(1),
            orphan_grace: Duration::from_secs(2),
            leave_patience: Duration::from_secs(30),
            listen_grace: LISTEN_TIME,
            leave_after: Duration::from_secs(60),
            move_pause: MOVE_PAUSE,
            storm_least: 3,
            storm_window: Duration::from_secs(40),
            storm_patience: STORM_TIME,
            clock_slack: Duration::from_secs(600),
            failure_backoff: Backoff {
                base: Duration::from_secs(2),
                cap: Duration::from_secs(300),
            },
            replan_backoff: Backoff {
                base: Duration::from_secs(1),
                cap: Duration::from_secs(600),
            },
            storage_backoff: Backoff {
                base: Duration::from_secs(10),
                cap: Duration::from_secs(900),
            },
            blocked_backoff: Backoff {
                base: Duration::from_secs(60),
                cap: Duration::from_secs(4 * 3600),
            },
            stuck_after: STUCK_ATTEMPTS,
            restart_window: RESTART_WINDOW,
            promise: Duration::from_secs(60),
            promise_pause: Duration::from_secs(60),
            avoid: Backoff {
                base: Duration::from_secs(3600),
                cap: Duration::from_secs(24 * 3600),
            },
            crossing_patience: CROSSING_TIME,
        }
    }
}

impl Policy {
    /// For how long a pod on a node of the class may make no progress towards its start.
    pub(crate) fn start_patience(&self, class: &Class) -> Duration {
        let of_class = self.start_patience_of.get(class);
        of_class.copied().unwrap_or(self.start_patience)
    }
}

/// Doubles from `base` up to `cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first time.
    pub base: Duration,
    /// Never more.
    pub cap: Duration,
}

impl Backoff {
    /// When to try again after the `count`-th time (from 1).
    pub(crate) fn after(self, now: Timestamp, count: u32) -> Timestamp {
        let factor = 1_u32
            .checked_shl(count.saturating_sub(1))
            .unwrap_or(u32::MAX);
        now + self.base.saturating_mul(factor).min(self.cap)
    }
}
