//! A transactional key-value store for metadata and chain tables. A snapshot reads at one revision; what it has read is
//! compared when it commits, and a commit fails with a conflict when any of it has changed. The outcome of a commit can
//! be unknown. What keys and values mean is the callers' business, and so are retries.
//!
//! ```
//! # async fn example(store: kv::KvStore) -> Result<(), Box<dyn std::error::Error>> {
//! let mut snapshot = store.snapshot();
//! let count = snapshot.get(&[b"count".to_vec()]).await?;
//! let mut transaction = kv::KvTransaction::default();
//! transaction.put(b"count".to_vec(), vec![1]);
//! snapshot.commit(transaction).await?;
//! # Ok(()) }
//! ```
//!
//! # What is compared
//!
//! A key is compared by the revision of its last change. A range that was scanned is compared as it was seen: each key
//! that was there has not changed, and no key of the range has changed later. So a deletion is noticed without a version
//! key that all writers of a range would have to write, and two writers in one range do not conflict. Transactions are
//! serializable: what they have read is what is there when they commit. A transaction that only reads need not commit:
//! it has read at one revision, which was the newest when it began.
//!
//! # etcd
//!
//! The server needs `--auto-compaction-mode=periodic --auto-compaction-retention=5m --quota-backend-bytes=8589934592`: a
//! snapshot may be five minutes old, then its reads fail as too old. At its quota etcd refuses transactions that put
//! something, and goes on with those that only delete ([`CommitError::Full`]). Its file does not shrink by itself:
//! after the deletions an operator runs `etcdctl defrag` and `etcdctl alarm disarm`.

mod engine;
mod error;
mod etcd;
mod memory;
mod pb;
mod reads;
mod snapshot;
mod transaction;
mod usage;

pub use error::{CommitError, KvError, KvLimit};
pub use etcd::EtcdEngine;
pub use memory::{InjectedFault, MemoryEngine};
pub use snapshot::{KvSnapshot, KvStore};
pub use transaction::KvTransaction;
pub use usage::KvUsage;

/// Most keys that a transaction may have read, and most that it may write. etcd's own default is the same.
pub const MOST_OPERATIONS: usize = 128;
/// Most bytes of keys and values in a transaction. etcd refuses requests above 1.5 MiB.
pub const MOST_TRANSACTION_BYTES: usize = 1 << 20;
/// Longest key: a name of 255 bytes, and what is before it.
pub const MOST_KEY_BYTES: usize = 1 << 10;
/// Longest value.
pub const MOST_VALUE_BYTES: usize = 64 << 10;
/// Most keys of one list: 1,024 values of 64 KiB are 64 MiB.
pub const MOST_LISTED: usize = 1 << 10;
