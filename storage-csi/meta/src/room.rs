//! Whether the key-value store has room for more names. An eighth of its quota is kept for all else: who removes a name puts
//! an answer and a time, and what was there counts until the next compaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kv::{KvStore, KvUsage};
use metadata::MetaRequest;
use tokio::time::sleep;
use tonic::Status;
use tracing::{debug, info, warn};

/// How often the store is asked.
const INTERVAL: Duration = Duration::from_secs(1);

/// Cheap to clone; all clones are the same. Until the store has answered, there is room.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameRoom {
    is_scarce: Arc<AtomicBool>,
}

impl NameRoom {
    /// Asks the store, for ever.
    pub(crate) async fn run(&self, store: &KvStore) {
        loop {
            match store.usage().await {
                Ok(usage) => self.set(usage),
                Err(error) => debug!(%error, "failed to ask how large the key-value store is"),
            }
            sleep(INTERVAL).await;
        }
    }

    fn set(&self, usage: KvUsage) {
        let (used, quota) = (usage.used_bytes, usage.quota_bytes);
        let was_scarce = self.is_scarce.load(Ordering::Relaxed);
        // A commit frees pages only in the next one: what is used goes up and down.
        let parts = if was_scarce { 55 } else { 56 };
        let is_scarce = quota.is_some_and(|quota| used > quota / 64 * parts);
        self.is_scarce.store(is_scarce, Ordering::Relaxed);
        match (was_scarce, is_scarce) {
            (false, true) => warn!(used, quota, "etcd is almost full: names are refused"),
            (true, false) => info!(used, quota, "etcd has room for names again"),
            (true, true) | (false, false) => {}
        }
    }

    /// Refuses what adds a name when there is no room. What was sent before may be done already, so it is looked up.
    pub(crate) fn check(&self, request: &MetaRequest) -> Result<(), Status> {
        let is_refused = self.is_scarce.load(Ordering::Relaxed)
            && request.operation.adds_name()
            && !request.is_repeated;
        if is_refused {
            return Err(Status::resource_exhausted(
                "more than 7/8 of etcd's quota is in use: remove files or volumes; their room is free after a compaction",
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use metadata::{EntryName, InodeNumber, MetaOperation};

    use super::*;

    #[test]
    fn what_was_sent_before_and_what_adds_no_name_is_never_refused() {
        let room = NameRoom::default();
        let name = || EntryName::new(b"a").expect("it is short");
        let (inode, parent) = (InodeNumber(1), InodeNumber(2));
        let adds = MetaRequest::reading(MetaOperation::Link {
            inode,
            parent,
            name: name(),
        });
        let removes = MetaRequest::reading(MetaOperation::Unlink {
            parent,
            name: name(),
        });
        let repeated = MetaRequest {
            is_repeated: true,
            ..adds.clone()
        };
        let refused = |used_bytes, quota_bytes| {
            room.set(KvUsage {
                used_bytes,
                quota_bytes,
            });
            [&adds, &removes, &repeated].map(|request| room.check(request).is_err())
        };
        assert_eq!(refused(56, Some(64)), [false; 3]);
        assert_eq!(refused(57, Some(64)), [true, false, false]);
        assert_eq!(refused(56, Some(64)), [true, false, false]);
        assert_eq!(refused(55, Some(64)), [false; 3]);
        assert_eq!(refused(u64::MAX, None), [false; 3]);
    }
}
