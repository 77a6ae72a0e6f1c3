//! A lock for each volume, and a limit on the calls that have or want one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::error::CsiError;

/// Calls that work or wait. A kubelet starts some 10 pods at once.
const CALL_LIMIT: usize = 256;
/// How long a call waits for another: a mount takes milliseconds, a kubelet waits for two minutes.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct VolumeLocks {
    calls: Arc<Semaphore>,
    /// Those that some call has or wants, and leftovers until the next call.
    volumes: Mutex<BTreeMap<String, Weak<tokio::sync::Mutex<()>>>>,
}

/// No other call works on the volume while this is there.
#[derive(Debug)]
pub(super) struct VolumeLock {
    _volume: OwnedMutexGuard<()>,
    _call: OwnedSemaphorePermit,
}

impl Default for VolumeLocks {
    fn default() -> Self {
        Self {
            calls: Arc::new(Semaphore::new(CALL_LIMIT)),
            volumes: Mutex::default(),
        }
    }
}

impl VolumeLocks {
    pub(super) async fn lock(&self, id: &str) -> Result<VolumeLock, CsiError> {
        let call = Arc::clone(&self.calls).try_acquire_owned();
        let call = call.map_err(|_| CsiError::TooMany { limit: CALL_LIMIT })?;
        let volume = self.volume(id).lock_owned();
        match tokio::time::timeout(PATIENCE, volume).await {
            Ok(volume) => Ok(VolumeLock {
                _volume: volume,
                _call: call,
            }),
            Err(_) => Err(CsiError::InProgress { id: id.to_owned() }),
        }
    }

    fn volume(&self, id: &str) -> Arc<tokio::sync::Mutex<()>> {
        // Nothing that could panic is done while it is locked.
        let mut volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner);
        volumes.retain(|_, volume| volume.strong_count() > 0);
        if let Some(volume) = volumes.get(id).and_then(Weak::upgrade) {
            return volume;
        }
        let volume = Arc::default();
        volumes.insert(id.to_owned(), Arc::downgrade(&volume));
        volume
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_volume_is_locked_by_one_call_and_the_next_waits_for_a_while() {
        let locks = VolumeLocks::default();
        let first = locks.lock("a").await.unwrap();
        locks.lock("b").await.unwrap();
        let refused = locks.lock("a").await.unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("another call for volume \"a\"")
        );
        let waits = async {
            let waits = locks.lock("a");
            let (second, ()) = tokio::join!(waits, async { drop(first) });
            second.unwrap();
        };
        waits.await;
        locks.lock("c").await.unwrap();
        assert_eq!(locks.volumes.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn calls_beyond_the_limit_are_refused() {
        let locks = VolumeLocks::default();
        let mut held = Vec::new();
        for number in 0..CALL_LIMIT {
            held.push(locks.lock(&number.to_string()).await.unwrap());
        }
        let refused = locks.lock("more").await.unwrap_err();
        assert!(refused.to_string().contains("256 calls"));
        held.pop();
        locks.lock("more").await.unwrap();
    }
}
