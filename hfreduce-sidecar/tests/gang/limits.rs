//! Limits of time that are promised when somebody is lost. A test may run beside others, so it holds ten times each; what
//! was seen is for `cargo xtask bench losses` to print.

use std::time::{Duration, Instant};

/// A killed process or node is known to the others, and their operation has ended.
pub(crate) const KILLED: Duration = Duration::from_secs(1);
/// The operation ends so long after a killed sidecar is started again.
pub(crate) const RESTARTED: Duration = Duration::from_secs(3);
/// A frozen node is named.
pub(crate) const NAMED: Duration = Duration::from_secs(2);

/// Something promised has happened just now. How long it took.
pub(crate) fn keep(what: &str, limit: Duration, since: Instant) -> Duration {
    let seen = since.elapsed();
    sim::keep_limit(what, limit, seen);
    seen
}
