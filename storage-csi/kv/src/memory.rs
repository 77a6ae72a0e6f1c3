//! The engine that keeps everything in memory, and nothing when its process ends. For tests: it fails as its owner plans.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::ReadAt;
use crate::error::{CommitError, KvError};
use crate::reads::{ABSENT, Found, KeyRange, Reads};
use crate::transaction::KvTransaction;
use crate::usage::KvUsage;

/// What happens to a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// It goes as it goes.
    None,
    /// It conflicts, whatever it has read.
    Conflict,
    /// It is applied if it can be, and nobody learns so.
    UnknownApplied,
    /// It is lost, and nobody learns so.
    UnknownLost,
}

/// Revisions that snapshots can read at: as many as there are.
const KEPT: i64 = 10_000;
/// Older ones are removed once in so many commits.
const COMPACTED_EVERY: i64 = 1_000;

/// The engine. Cheap to clone; all clones are the same store.
#[derive(Clone)]
pub struct MemoryEngine(Arc<Mutex<Inner>>);

/// A revision and what the key became then; `None` is a deletion.
type KeyChange = (i64, Option<Vec<u8>>);

struct Inner {
    revision: i64,
    /// The oldest that can be read at.
    oldest: i64,
    /// Each key's changes, by revision.
    keys: BTreeMap<Vec<u8>, Vec<KeyChange>>,
    usage: KvUsage,
    fault: Box<dyn FnMut() -> InjectedFault + Send>,
}

impl fmt::Debug for MemoryEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryEngine(revision {})", self.inner().revision)
    }
}

impl Default for MemoryEngine {
    fn default() -> Self {
        Self::with_faults(|| InjectedFault::None)
    }
}

impl MemoryEngine {
    /// An empty store whose commits fail as the plan says, which is asked once for each.
    pub fn with_faults(plan: impl FnMut() -> InjectedFault + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            revision: 1,
            oldest: 1,
            keys: BTreeMap::new(),
            usage: KvUsage::default(),
            fault: Box::new(plan),
        })))
    }

    /// Says this of its size from now on. At the quota, transactions that put something are refused.
    pub fn set_usage(&self, usage: KvUsage) {
        self.inner().usage = usage;
    }

    /// Forgets all revisions but the newest.
    pub fn compact(&self) {
        let mut inner = self.inner();
        inner.oldest = inner.revision;
        inner.compact();
    }

    pub(crate) fn get(
        &self,
        revision: Option<i64>,
        keys: &[Vec<u8>],
    ) -> ReadAt<Vec<Option<Found>>> {
        let inner = self.inner();
        let revision = inner.readable(revision)?;
        let found = keys.iter().map(|key| inner.at(key, revision));
        Ok((revision, found.collect()))
    }

    pub(crate) fn list(
        &self,
        revision: Option<i64>,
        range: &KeyRange,
        limit: usize,
    ) -> ReadAt<Vec<Found>> {
        let inner = self.inner();
        let revision = inner.readable(revision)?;
        let found = inner
            .keys_of(range)
            .filter_map(|key| inner.at(key, revision));
        Ok((revision, found.take(limit).collect()))
    }

    pub(crate) fn usage(&self) -> KvUsage {
        self.inner().usage
    }

    pub(crate) fn commit(
        &self,
        reads: &Reads,
        transaction: KvTransaction,
    ) -> Result<(), CommitError> {
        let mut inner = self.inner();
        let unknown = || CommitError::Unknown("it was planned so".to_owned());
        match (inner.fault)() {
            InjectedFault::None => inner.apply(reads, transaction),
            InjectedFault::Conflict => Err(CommitError::Conflict),
            InjectedFault::UnknownApplied => {
                let _nobody_learns = inner.apply(reads, transaction);
                Err(unknown())
            }
            InjectedFault::UnknownLost => Err(unknown()),
        }
    }

    // The store is whole after every step, so a panic elsewhere does not spoil it.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn readable(&self, revision: Option<i64>) -> Result<i64, KvError> {
        match revision {
            None => Ok(self.revision),
            Some(revision) if revision < self.oldest => Err(KvError::TooOld),
            Some(revision) => Ok(revision),
        }
    }

    /// A key as it was.
    fn at(&self, key: &[u8], revision: i64) -> Option<Found> {
        let changes = self.keys.get(key)?;
        let (changed, value) = changes.iter().rfind(|(at, _)| *at <= revision)?;
        Some(Found {
            key: key.to_vec(),
            value: value.clone()?,
            changed: *changed,
        })
    }

    /// Keys that were there at some time.
    fn keys_of(&self, range: &KeyRange) -> impl Iterator<Item = &Vec<u8>> {
        let start = Bound::Included(range.start.clone());
        let end = range.end.clone().map_or(Bound::Unbounded, Bound::Excluded);
        self.keys.range((start, end)).map(|(key, _)| key)
    }

    /// Whether what was read is still so.
    fn holds(&self, reads: &Reads) -> bool {
        let changed = |key: &Vec<u8>| {
            let found = self.at(key, self.revision);
            found.map_or(ABSENT, |found| found.changed)
        };
        let newest = reads.revision.unwrap_or(self.revision);
        let mut in_ranges = reads.ranges.iter().flat_map(|range| self.keys_of(range));
        reads.keys.iter().all(|(key, seen)| changed(key) == *seen)
            && in_ranges.all(|key| changed(key) <= newest)
    }

    fn apply(&mut self, reads: &Reads, transaction: KvTransaction) -> Result<(), CommitError> {
        if self.usage.is_full() && transaction.puts() {
            return Err(CommitError::Full);
        }
        if !self.holds(reads) {
            return Err(CommitError::Conflict);
        }
        self.revision += 1;
        for (key, value) in transaction.writes {
            let changes = self.keys.entry(key).or_default();
            changes.push((self.revision, value));
        }
        if self.revision % COMPACTED_EVERY == 0 {
            self.oldest = self.oldest.max(self.revision - KEPT);
            self.compact();
        }
        Ok(())
    }

    /// Removes changes that nobody can read any more.
    fn compact(&mut self) {
        let oldest = self.oldest;
        self.keys.retain(|_, changes| {
            let readable = changes.iter().rposition(|(at, _)| *at <= oldest);
            changes.drain(..readable.unwrap_or_default());
            !matches!(changes.as_slice(), [(at, None)] if *at <= oldest)
        });
    }
}
