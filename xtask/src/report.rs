//! What a long task prints while it works: one line per step with its name, what became of it and
//! how long it took, and a sign of life from steps that take their time.

use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cluster::StepOutcome;

/// How often steps that are under way say so.
const SIGN_OF_LIFE: Duration = Duration::from_secs(30);

/// A step that has begun and not ended.
struct Step {
    name: String,
    since: Instant,
    /// How far it is, as it said last.
    at: Option<StepOutcome>,
}

static UNDER_WAY: Mutex<Vec<Step>> = Mutex::new(Vec::new());

/// Prints a step of the crate `cluster`.
pub(crate) fn step(name: &str, outcome: StepOutcome, elapsed: Duration) {
    match outcome {
        StepOutcome::Begun => begin(name),
        StepOutcome::At(done, all) => at(name, done, all),
        StepOutcome::Built | StepOutcome::Cached | StepOutcome::Done | StepOutcome::Failed => {
            line(name, outcome, elapsed);
        }
    }
}

/// A step is so far: its next sign of life says so.
pub(crate) fn at(name: &str, done: usize, all: usize) {
    if let Some(step) = under_way().iter_mut().find(|step| step.name == name) {
        step.at = Some(StepOutcome::At(done, all));
    }
}

/// From here on the step gives signs of life, until [`line()`] prints its end.
pub(crate) fn begin(name: &str) {
    static ONE_THREAD: Once = Once::new();
    ONE_THREAD.call_once(|| {
        thread::spawn(|| {
            loop {
                thread::sleep(SIGN_OF_LIFE);
                for step in under_way().iter() {
                    let elapsed = step.since.elapsed();
                    if elapsed >= SIGN_OF_LIFE {
                        let at = step.at.map_or_else(|| "…".to_owned(), |at| at.to_string());
                        print(&step.name, at, elapsed);
                    }
                }
            }
        });
    });
    under_way().push(Step {
        name: name.to_owned(),
        since: Instant::now(),
        at: None,
    });
}

/// Prints one finished step: `  trainer base                built         140.0 s`.
pub(crate) fn line(name: &str, how: impl Display, elapsed: Duration) {
    under_way().retain(|step| step.name != name);
    print(name, how, elapsed);
}

fn print(name: &str, how: impl Display, elapsed: Duration) {
    println!("  {name:<34} {how:<12} {:>7.1} s", elapsed.as_secs_f64());
}

fn under_way() -> MutexGuard<'static, Vec<Step>> {
    // A list of names is as good after a panic as before.
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}
