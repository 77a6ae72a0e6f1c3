//! The operator's clock: the time of day when it began, and how long ago that is by the monotonic
//! clock. So it never jumps, and what is waited for takes as long as it should.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use scheduler::Timestamp;

static BEGAN: LazyLock<(Duration, Instant)> = LazyLock::new(|| {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    (since.unwrap_or_default(), Instant::now())
});

/// When that was, as the planner counts it.
pub fn at(when: Instant) -> Timestamp {
    let (day, began) = *BEGAN;
    Timestamp::from_millis(0) + day + when.saturating_duration_since(began)
}

/// What time it is, as the planner counts it.
pub fn now() -> Timestamp {
    at(Instant::now())
}
