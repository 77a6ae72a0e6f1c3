//! Limits of time that tests hold: what was seen, printed beside the limit.

use std::time::Duration;

/// Prints the share of a limit that something took, and panics if it took ten times the limit: a test runs beside
/// others.
#[expect(clippy::print_stdout, reason = "the share is what a person looks for")]
pub fn keep_limit(what: &str, limit: Duration, seen: Duration) {
    let share = 100.0 * seen.as_secs_f64() / limit.as_secs_f64();
    println!("limit: {seen:8.3?} of {limit:?} ({share:3.0} %)  {what}");
    assert!(seen < 10 * limit, "{what}: {seen:?} of {limit:?}");
}
