//! Whether a loop that has to go round still does. Who runs it touches the watchdog each time; who
//! asks learns for how long it has hung.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Watches one loop. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Watchdog {
    limit: Duration,
    /// When the loop went round last; none while it does not run.
    touched: Arc<Mutex<Option<Instant>>>,
}

impl Watchdog {
    /// A watchdog of a loop that does not run yet, and hangs when a round takes longer than
    /// `limit`.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            touched: Arc::default(),
        }
    }

    /// The loop begins, or went round.
    pub fn touch(&self) {
        self.set(Some(Instant::now()));
    }

    /// The loop has ended: nothing is expected of it any more.
    pub fn rest(&self) {
        self.set(None);
    }

    /// For how long the loop has not gone round, if that is too long.
    #[must_use]
    pub fn stalled(&self) -> Option<Duration> {
        let touched = *self.touched.lock().unwrap_or_else(PoisonError::into_inner);
        touched
            .map(|at| at.elapsed())
            .filter(|&stalled| stalled > self.limit)
    }

    fn set(&self, touched: Option<Instant>) {
        *self.touched.lock().unwrap_or_else(PoisonError::into_inner) = touched;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_loop_hangs_when_it_runs_and_has_not_gone_round_within_the_limit() {
        let watchdog = Watchdog::new(LIMIT);
        tokio::time::advance(LIMIT * 2).await;
        assert_eq!(watchdog.stalled(), None, "it does not run yet");
        watchdog.touch();
        tokio::time::advance(LIMIT).await;
        assert_eq!(watchdog.stalled(), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(watchdog.stalled(), Some(LIMIT + Duration::from_secs(1)));
        watchdog.touch();
        assert_eq!(watchdog.stalled(), None);
        tokio::time::advance(LIMIT * 2).await;
        watchdog.rest();
        assert_eq!(watchdog.stalled(), None, "it has ended");
    }
}
