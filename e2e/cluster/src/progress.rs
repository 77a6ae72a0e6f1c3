//! How each long step is reported to the caller. The crate itself prints nothing.

use std::fmt;
use std::time::{Duration, Instant};

use crate::error::Result;

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOutcome {
    /// It begins; what became of it follows.
    Begun,
    /// So much of it is made, of so much in all.
    At(usize, usize),
    /// It was made now.
    Built,
    /// It was there from an earlier run.
    Cached,
    /// It was done; there is nothing to keep.
    Done,
    /// It failed; the error follows.
    Failed,
}

impl fmt::Display for StepOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Begun => "begun",
            Self::At(done, all) => return f.pad(&format!("{done} of {all}")),
            Self::Built => "built",
            Self::Cached => "cached",
            Self::Done => "done",
            Self::Failed => "failed",
        })
    }
}

/// Called at both ends of every step and while it goes on: its name, what became of it, how long it took so far.
pub type ProgressFn<'a> = &'a (dyn Fn(&str, StepOutcome, Duration) + Sync);

/// Runs a step and reports it.
pub fn step<T>(
    progress: ProgressFn<'_>,
    name: &str,
    work: impl FnOnce() -> Result<(T, StepOutcome)>,
) -> Result<T> {
    let start = Instant::now();
    progress(name, StepOutcome::Begun, Duration::ZERO);
    match work() {
        Ok((value, outcome)) => {
            progress(name, outcome, start.elapsed());
            Ok(value)
        }
        Err(error) => {
            progress(name, StepOutcome::Failed, start.elapsed());
            Err(error)
        }
    }
}
