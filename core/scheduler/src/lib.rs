//! Decides which job runs where and what becomes of it: a pure function from what is seen to what
//! is to be written. Leaves seeing and writing to `operator`.

mod plan;
mod policy;
mod snapshot;
mod status;
mod time;

pub use plan::{Action, Event, JobPlan, NewAttempt, Place, Plan};
pub use policy::{Backoff, Policy};
pub use snapshot::{Attempt, Exit, Job, JobKey, Node, Pod, PodState, Report, Snapshot, ZonePolicy};
pub use status::{Checkpoint, Condition, ConditionKind, Failure, Phase, Status};
pub use time::Timestamp;

/// What to write now.
pub fn plan(_snapshot: &Snapshot, _policy: &Policy, _now: Timestamp) -> Plan {
    Plan::default()
}

/// An invariant that a plan would break. Such a plan is a bug of ours and must be discarded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("plan breaks {invariant}: {detail}")]
pub struct Violation {
    /// Short stable name, for the metric.
    pub invariant: &'static str,
    /// What exactly.
    pub detail: String,
}

/// Verifies a plan without trusting the planner.
pub fn check(
    _snapshot: &Snapshot,
    _policy: &Policy,
    _now: Timestamp,
    _plan: &Plan,
) -> Result<(), Violation> {
    Ok(())
}
