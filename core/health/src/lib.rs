//! Whether a node is as good as its class promises and as its peers are: the catalogue of checks,
//! the report of a validator, and the verdict on it. Leaves measuring to the validator, and what
//! becomes of a node that fails to the operator.

mod check;
mod due;
mod fleet;
pub mod report;
mod verdict;

pub use check::{Check, Level, UnknownCheck};
pub use due::{
    DueNode, DuePlan, DuePolicy, DueReason, DueRun, MOST_KEPT, NewRun, PolicySummary, plan,
};
pub use fleet::{Fleet, Floors, median};
pub use report::{CheckResult, Fingerprint, Outcome, Report, ReportError};
pub use verdict::{Judged, Judgement, Verdict, judge, screens};
