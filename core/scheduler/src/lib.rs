//! Decides which job runs where and what happens to it: a pure function from what is seen to what
//! is to be written. Leaves seeing and writing to `operator`.

mod absence;
mod assign;
mod avoid;
mod capacity;
mod check;
mod completed;
mod doubt;
mod filter;
mod gang;
mod jitter;
mod job_planner;
mod ledger;
mod lifecycle;
pub mod limits;
mod node;
mod pin;
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
mod stall;
mod status;
mod time;

pub use avoid::{Avoided, EndCause};
pub use check::{PlanViolation, check, vet};
pub use jitter::jitter;
pub use node::{GangLiveness, NodeReason, Ready, State, States, Storm, Wish};
pub use pin::validation_obstacle;
pub use plan::{Action, Gone, JobEvent, JobPlan, NewAttempt, PlacedNode, Plan, Stalled};
pub use planner::{plan, plan_with};
pub use policy::{Backoff, Policy};
pub use promise::Promise;
pub use sights::Sights;
pub use snapshot::{
    Absent, Attempt, CheckpointReport, CollectedPod, Doubt, Doubtful, DryRun, Exit, Job, JobKey,
    JobKind, Node, Pod, PodState, Preparation, Problem, ProgramCause, Snapshot, Stuck, WhenBusy,
    ZonePolicy,
};
pub use stall::{GangProgress, ProgressSign, StacksAsked};
pub use status::{
    AttemptRecord, CommittedMembers, CompletedRanks, Condition, ConditionKind, Failure, JobPhase,
    JobStatus,
};
pub use time::Timestamp;
