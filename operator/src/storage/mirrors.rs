//! What is known of the objects of storage: mirrors of their own, whose news wake the storage
//! controller alone.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crds::{StorageChain, StoragePool};
use tokio::sync::{Notify, watch};

use crate::mirror::{Mirror, MirrorOwner, Mirrored};

/// Shared by the watches and the controller.
#[derive(Debug, Default)]
pub struct SharedStorage {
    mirrors: Mutex<StorageMirrors>,
    changed: Notify,
    /// Nobody asks for new listings: what is not shown decides nothing here.
    listings: watch::Sender<u64>,
}

/// The mirrors, under one lock.
#[derive(Debug, Default)]
pub struct StorageMirrors {
    /// StoragePools.
    pub pools: Mirror<StoragePool>,
    /// StorageChains.
    pub chains: Mirror<StorageChain>,
}

impl Mirrored for StoragePool {
    type Derived = ();
}
impl Mirrored for StorageChain {
    type Derived = ();
}

impl StorageMirrors {
    /// Whether both kinds were listed once.
    pub fn is_synced(&self) -> bool {
        self.pools.is_synced() && self.chains.is_synced()
    }
}

impl SharedStorage {
    /// Waits until something has changed since the last wait.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl MirrorOwner for SharedStorage {
    type Mirrors = StorageMirrors;

    fn mirrors(&self) -> MutexGuard<'_, StorageMirrors> {
        // Every update leaves a mirror whole, so a panic elsewhere does not spoil it.
        self.mirrors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self) {
        self.changed.notify_one();
    }

    fn listings(&self) -> watch::Receiver<u64> {
        self.listings.subscribe()
    }
}
