//! Decides which job runs where and what becomes of it: a pure function from what is seen to what
//! is to be written. Leaves seeing and writing to `operator`.

mod absence;
mod assign;
mod avoid;
mod capacity;
mod check;
mod doubt;
mod draft;
mod filter;
mod gang;
mod ledger;
mod lifecycle;
mod node;
mod placement;
mod plan;
mod planner;
mod policy;
mod promise;
mod queue;
mod release;
mod shrink;
mod sights;
mod snapshot;
mod status;
mod time;

pub use avoid::{Avoided, EndCause};
pub use check::{Violation, check, vet};
pub use node::{Heard, Ready, State, States, Storm, Why, Wish};
pub use plan::{Action, Event, Gone, JobPlan, NewAttempt, Place, Plan};
pub use planner::{plan, plan_with};
pub use policy::{Backoff, Policy};
pub use promise::Promise;
pub use sights::Sights;
pub use snapshot::{
    Absent, Attempt, Cause, Doubt, Doubtful, DryRun, Exit, Job, JobKey, Node, Pod, PodState,
    Problem, Report, Snapshot, Stuck, ZonePolicy,
};
pub use status::{AttemptRecord, Condition, ConditionKind, Failure, Membership, Phase, Status};
pub use time::Timestamp;
