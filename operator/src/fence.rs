//! Until when this replica may still write: the election says how long the Lease is surely ours,
//! and no write is sent that could take longer than that.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Until when writes may take effect. Clones are one and the same; closed at first.
#[derive(Clone, Debug, Default)]
pub struct WriteFence(Arc<Mutex<Option<Instant>>>);

impl WriteFence {
    /// The Lease is ours until then.
    pub fn open_until(&self, end: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }

    /// The Lease is not ours.
    pub fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether what begins now and takes so long ends while the Lease is ours.
    pub fn lets(&self, span: Duration) -> bool {
        let end = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        end.is_some_and(|end| Instant::now() + span <= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_could_outlive_the_lease_is_not_begun() {
        let fence = WriteFence::default();
        let second = Duration::from_secs(1);
        assert!(!fence.lets(Duration::ZERO), "closed at first");
        fence.open_until(Instant::now() + second * 15);
        tokio::time::advance(second * 7).await;
        assert!(fence.lets(second * 8));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!fence.lets(second * 8));
        fence.open_until(Instant::now() + second * 15);
        assert!(fence.lets(second * 8));
        fence.close();
        assert!(!fence.lets(Duration::ZERO));
    }
}
