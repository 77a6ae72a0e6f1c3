//! What a long task prints while it works: one line per step with its name, what became of it and
//! how long it took, and a sign of life from steps that take their time.

use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cluster::Outcome;

/// How often steps that are under way say so.
const SIGN_OF_LIFE: Duration = Duration::from_secs(30);

/// Steps that have begun and not ended, with their beginnings.
static UNDER_WAY: Mutex<Vec<(String, Instant)>> = Mutex::new(Vec::new());

/// Prints a step of the crate `cluster`.
pub(crate) fn step(name: &str, outcome: Outcome, elapsed: Duration) {
    if outcome == Outcome::Begun {
        begin(name);
    } else {
        line(name, outcome, elapsed);
    }
}

/// From here on the step gives signs of life, until [`line()`] tells its end.
pub(crate) fn begin(name: &str) {
    static ONE_THREAD: Once = Once::new();
    ONE_THREAD.call_once(|| {
        thread::spawn(|| {
            loop {
                thread::sleep(SIGN_OF_LIFE);
                for (name, since) in under_way().iter() {
                    if since.elapsed() >= SIGN_OF_LIFE {
                        print(name, "…", since.elapsed());
                    }
                }
            }
        });
    });
    under_way().push((name.to_owned(), Instant::now()));
}

/// Prints one finished step: `  trainer base                built      140.0 s`.
pub(crate) fn line(name: &str, how: impl Display, elapsed: Duration) {
    under_way().retain(|(other, _)| other != name);
    print(name, how, elapsed);
}

fn print(name: &str, how: impl Display, elapsed: Duration) {
    println!("  {name:<34} {how:<9} {:>7.1} s", elapsed.as_secs_f64());
}

fn under_way() -> MutexGuard<'static, Vec<(String, Instant)>> {
    // A list of names is as good after a panic as before.
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}
