//! The store as callers see it: snapshots that read, remember what they have read, and commit.

use crate::engine::Engine;
use crate::error::{CommitError, KvError, KvLimit};
use crate::etcd::EtcdEngine;
use crate::memory::MemoryEngine;
use crate::reads::{ABSENT, Found, KeyRange, Reads};
use crate::transaction::{KvTransaction, check_key};
use crate::usage::KvUsage;
use crate::{MOST_LISTED, MOST_OPERATIONS};

/// A store over one of the engines. Cheap to clone; all clones are the same store.
#[derive(Clone, Debug)]
pub struct KvStore {
    engine: Engine,
}

impl From<MemoryEngine> for KvStore {
    fn from(memory: MemoryEngine) -> Self {
        Self {
            engine: Engine::Memory(memory),
        }
    }
}

impl From<EtcdEngine> for KvStore {
    fn from(etcd: EtcdEngine) -> Self {
        Self {
            engine: Engine::Etcd(etcd),
        }
    }
}

impl KvStore {
    /// A snapshot of the newest revision. Which one that is, its first read decides.
    pub fn snapshot(&self) -> KvSnapshot {
        KvSnapshot {
            engine: self.engine.clone(),
            reads: Reads::default(),
        }
    }

    /// How much of its quota it uses; of several members, one answers for itself.
    pub async fn usage(&self) -> Result<KvUsage, KvError> {
        self.engine.usage().await
    }
}

/// Reads at one revision, and what was read.
#[derive(Clone, Debug)]
pub struct KvSnapshot {
    engine: Engine,
    reads: Reads,
}

impl KvSnapshot {
    /// The values of keys, in their order. A commit conflicts when one of them has changed, came or went.
    pub async fn get(&mut self, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, KvError> {
        for key in keys {
            check_key(key)?;
        }
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(MOST_OPERATIONS) {
            let (revision, found) = self.engine.get(self.reads.revision, keys).await?;
            self.reads.revision = Some(revision);
            for (key, found) in keys.iter().zip(found) {
                let changed = found.as_ref().map_or(ABSENT, |found| found.changed);
                self.reads.keys.insert(key.clone(), changed);
                values.push(found.map(|found| found.value));
            }
        }
        Ok(values)
    }

    /// The first keys that begin with a prefix, with their values, by key. Fewer than `limit` are all there are. A commit
    /// conflicts when a key among these, or up to the prefix's end if these are all, has changed, came or went: a scan
    /// with a limit of 1 asks whether there is any. Each key found is one of the keys that a transaction may have read.
    pub async fn scan(
        &mut self,
        prefix: &[u8],
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, KvError> {
        let range = KeyRange::of(prefix);
        let found = self.read(&range, limit).await?;
        let range = match found.last() {
            Some(last) if found.len() == limit => range.up_to(&last.key),
            _ => range,
        };
        self.reads.ranges.insert(range);
        let keys = found.iter().map(|found| (found.key.clone(), found.changed));
        self.reads.keys.extend(keys);
        Ok(pairs(found))
    }

    /// The first keys that begin with a prefix, after a given one, with their values, by key. Fewer than `limit` are all
    /// there are. A commit does not depend on them: read with `get` what it has to depend on.
    pub async fn list(
        &mut self,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>, KvError> {
        let range = KeyRange::of(prefix);
        let range = match after {
            Some(after) => range.after(after),
            None => range,
        };
        Ok(pairs(self.read(&range, limit).await?))
    }

    /// Applies a transaction, if nothing that was read has changed since. One that writes nothing has nothing to apply.
    pub async fn commit(self, transaction: KvTransaction) -> Result<(), CommitError> {
        transaction.check(&self.reads)?;
        if transaction.is_empty() {
            return Ok(());
        }
        self.engine.commit(&self.reads, transaction).await
    }

    async fn read(&mut self, range: &KeyRange, limit: usize) -> Result<Vec<Found>, KvError> {
        if !(1..=MOST_LISTED).contains(&limit) {
            return Err(KvLimit::Listed(limit).into());
        }
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let (revision, found) = self.engine.list(self.reads.revision, range, limit).await?;
        self.reads.revision = Some(revision);
        Ok(found)
    }
}

fn pairs(found: Vec<Found>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let pair = |found: Found| (found.key, found.value);
    found.into_iter().map(pair).collect()
}
