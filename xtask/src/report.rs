//! What a long task prints while it works: one line per step with its name, what became of it and
//! how long it took.

use std::fmt::Display;
use std::time::Duration;

use cluster::Outcome;

/// Prints a step of the crate `cluster`.
pub(crate) fn step(name: &str, outcome: Outcome, elapsed: Duration) {
    line(name, outcome, elapsed);
}

/// Prints one finished step: `  tools kubernetes            built      404.0 s`.
pub(crate) fn line(name: &str, how: impl Display, elapsed: Duration) {
    println!("  {name:<34} {how:<9} {:>7.1} s", elapsed.as_secs_f64());
}
