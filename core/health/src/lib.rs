//! Whether a node is as good as its class promises and as its peers are: the catalogue of checks,
//! the report of a validator, the verdict on it, when a node is validated, and which nodes are kept
//! from jobs. Leaves measuring to the validator, and writing to the operator.

mod check;
mod due;
mod fleet;
pub mod limits;
mod links;
mod quarantine;
pub mod report;
mod verdict;

pub use check::{Check, Level, UnknownCheck};
pub use due::{
    DueNode, DuePlan, DuePolicy, DueReason, DueRun, NewRun, NodeUse, PolicySummary, Waits,
    Withdrawal, plan,
};
pub use fleet::{Fleet, Floors, Peers, median};
pub use links::{LinkResult, Links, Pair};
pub use quarantine::{
    Findings, Quarantine, QuarantineLimits, QuarantinePlan, QuarantineSummary, quarantine,
};
pub use report::{CheckResult, Fingerprint, Outcome, Report, ReportError};
pub use verdict::{Judged, Judgement, Verdict, judge, screens};
