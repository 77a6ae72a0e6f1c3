//! What a long task prints while it works: one line per step with its name, its time and whether it was built or cached.

use std::time::{Duration, Instant};

/// Runs one step and prints how it went: `  NAME  built 12.3 s`.
pub(crate) fn step<T>(
    name: &str,
    work: impl FnOnce() -> anyhow::Result<(T, &'static str)>,
) -> anyhow::Result<T> {
    let start = Instant::now();
    match work() {
        Ok((value, how)) => {
            line(name, how, start.elapsed());
            Ok(value)
        }
        Err(error) => {
            line(name, "failed", start.elapsed());
            Err(error)
        }
    }
}

/// Prints one finished step.
pub(crate) fn line(name: &str, how: &str, elapsed: Duration) {
    println!("  {name:<28} {how:<8} {:>7.1} s", elapsed.as_secs_f64());
}
