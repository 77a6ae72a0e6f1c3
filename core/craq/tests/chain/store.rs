//! A target's store that loses its power: contents in memory, of which a crash keeps what was flushed and the first of
//! what was not.

use std::collections::{BTreeMap, VecDeque};

use craq::{
    ChainRefusal, ChunkId, ChunkState, Chunks, Edit, PendingContent, Record, Records, Update,
    Version,
};
use sim::Rng;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content {
    version: Version,
    /// None: removed.
    bytes: Option<Vec<u8>>,
    records: Vec<Record>,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    committed: Option<Content>,
    pending: Option<Content>,
    /// Committed bytes are not what was written, and whether somebody has noticed.
    is_rotten: bool,
    is_damaged: bool,
}

impl Entry {
    fn has_bytes(&self) -> bool {
        let committed = self.committed.as_ref();
        committed.is_some_and(|content| content.bytes.is_some())
    }
}

/// What is durable with an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Durable {
    Prepared(ChunkId, Version),
    Discarded(ChunkId, Version),
    /// It cannot be written, because it builds on bytes that have rotted.
    Lost(ChunkId, Version),
}

#[derive(Debug, Default)]
pub(crate) struct Store {
    now: BTreeMap<ChunkId, Entry>,
    durable: BTreeMap<ChunkId, Entry>,
    /// Not flushed: what an operation left of its chunk, and what is said when it is durable.
    log: VecDeque<(ChunkId, Entry, Option<Durable>)>,
    pub(crate) is_full: bool,
}

impl Store {
    fn change(&mut self, chunk: ChunkId, durable: Option<Durable>, how: impl FnOnce(&mut Entry)) {
        let entry = self.now.entry(chunk).or_default();
        how(entry);
        self.log.push_back((chunk, entry.clone(), durable));
    }

    /// Another content comes in the place of what cannot be written.
    fn forget_lost(&mut self, chunk: ChunkId) {
        for (_, _, what) in &mut self.log {
            what.take_if(|what| matches!(what, Durable::Lost(other, _) if *other == chunk));
        }
    }

    pub(crate) fn unflushed(&self) -> usize {
        self.log.len()
    }

    /// Makes the first operations durable.
    pub(crate) fn flush(&mut self, count: usize) -> Vec<Durable> {
        let mut durable = Vec::new();
        for (chunk, entry, what) in self.log.drain(..count.min(self.log.len())) {
            self.durable.insert(chunk, entry);
            durable.extend(what);
        }
        for what in &durable {
            if let Durable::Lost(chunk, _) = *what {
                self.notice(chunk);
            }
        }
        durable
    }

    /// The process dies, or the power fails.
    pub(crate) fn crash(&mut self, rng: &mut Rng) {
        let kept = rng.below(self.log.len() + 1);
        self.flush(kept);
        self.log.clear();
        self.now = self.durable.clone();
    }

    /// Committed contents that a flipped bit could damage.
    pub(crate) fn bytes_that_can_rot(&self) -> Vec<(ChunkId, Version)> {
        let of_entry = |(chunk, entry): (&ChunkId, &Entry)| {
            let content = entry.committed.as_ref()?;
            let bytes = content.bytes.as_ref()?;
            (!bytes.is_empty()).then_some((*chunk, content.version))
        };
        self.durable.iter().filter_map(of_entry).collect()
    }

    /// Whether this content outlives a loss of power.
    pub(crate) fn keeps(&self, chunk: ChunkId, version: Version) -> bool {
        let Some(entry) = self.durable.get(&chunk) else {
            return false;
        };
        let both = [&entry.committed, &entry.pending];
        let versions = both.into_iter().flatten().map(|content| content.version);
        !entry.is_rotten && versions.into_iter().any(|other| other == version)
    }

    /// A bit of a committed content flips.
    pub(crate) fn rot(&mut self, chunk: ChunkId) {
        for entries in [&mut self.now, &mut self.durable] {
            if let Some(entry) = entries.get_mut(&chunk) {
                entry.is_rotten = entry.has_bytes();
            }
        }
        // What is written later has a state of its own.
        let later = self.log.iter_mut().filter(|(other, ..)| *other == chunk);
        later.for_each(|(_, entry, _)| entry.is_rotten = entry.has_bytes());
    }

    fn content(&self, chunk: ChunkId, version: Version) -> Option<&Content> {
        let entry = self.now.get(&chunk)?;
        let both = [&entry.committed, &entry.pending];
        both.into_iter()
            .flatten()
            .find(|content| content.version == version)
    }

    /// Whether bytes have rotted, noticed or not.
    pub(crate) fn is_rotten(&self, chunk: ChunkId) -> bool {
        self.now.get(&chunk).is_some_and(|entry| entry.is_rotten)
    }

    /// What is prepared cannot be written.
    pub(crate) fn lose(&mut self, chunk: ChunkId) {
        self.change(chunk, None, |entry| entry.pending = None);
    }

    /// Somebody has read bytes that have rotted.
    pub(crate) fn notice(&mut self, chunk: ChunkId) {
        if self.is_rotten(chunk) {
            self.change(chunk, None, |entry| entry.is_damaged = true);
        }
    }

    /// The bytes of a content; nothing if they have rotted.
    pub(crate) fn read(&self, chunk: ChunkId, version: Version) -> Option<Vec<u8>> {
        if version == Version::NONE {
            return Some(Vec::new());
        }
        let is_committed = self.state(chunk).committed == version;
        let content = self.content(chunk, version);
        assert!(content.is_some(), "a content that is there is read");
        let is_damaged = is_committed && self.is_rotten(chunk);
        (!is_damaged).then(|| {
            content
                .and_then(|content| content.bytes.clone())
                .unwrap_or_default()
        })
    }

    /// All that is committed, removed chunks left out.
    pub(crate) fn committed(&self) -> BTreeMap<ChunkId, (Version, Vec<u8>)> {
        let of_entry = |(chunk, entry): (&ChunkId, &Entry)| {
            assert!(entry.pending.is_none(), "{chunk:?} is dirty at the end");
            assert!(!entry.is_rotten, "{chunk:?} is damaged at the end");
            let content = entry.committed.clone()?;
            Some((*chunk, (content.version, content.bytes?)))
        };
        self.now.iter().filter_map(of_entry).collect()
    }
}

impl Chunks<Vec<u8>> for Store {
    fn state(&self, chunk: ChunkId) -> ChunkState {
        let Some(entry) = self.now.get(&chunk) else {
            return ChunkState::default();
        };
        let committed = entry.committed.as_ref();
        ChunkState {
            committed: committed.map(|content| content.version).unwrap_or_default(),
            is_removed: committed.is_some_and(|content| content.bytes.is_none()),
            pending: entry.pending.as_ref().map(|content| PendingContent {
                version: content.version,
                is_removed: content.bytes.is_none(),
            }),
            is_damaged: entry.is_damaged,
        }
    }

    fn records(&self, chunk: ChunkId, version: Version) -> Records {
        let content = self.content(chunk, version);
        let records = content.map(|content| content.records.clone());
        Records::new(records.unwrap_or_default()).unwrap()
    }

    fn prepare(&mut self, update: &Update<Vec<u8>>) -> Result<(), ChainRefusal> {
        if self.is_full && update.edit.builds_on_base() {
            return Err(ChainRefusal::Full);
        }
        let committed = self
            .now
            .get(&update.chunk)
            .and_then(|entry| entry.committed.clone());
        let state = self.state(update.chunk);
        // CRAQ-1
        assert!(
            update.version > state.newest(),
            "{update:?} comes after {state:?}"
        );
        let mut bytes = committed
            .and_then(|content| content.bytes)
            .unwrap_or_default();
        let bytes = match &update.edit {
            Edit::Write {
                offset,
                bytes: written,
            } => {
                let (from, to) = (*offset as usize, *offset as usize + written.len());
                bytes.resize(bytes.len().max(to), 0);
                bytes[from..to].copy_from_slice(written);
                Some(bytes)
            }
            Edit::Truncate { length } => {
                bytes.resize(*length as usize, 0);
                Some(bytes)
            }
            Edit::Remove => None,
            Edit::Replace { content } => Some(content.clone()),
        };
        assert!(
            !state.is_damaged || !update.edit.builds_on_base(),
            "{update:?} builds on damage"
        );
        self.forget_lost(update.chunk);
        let builds_on_base = update.edit.builds_on_base();
        if builds_on_base && self.is_rotten(update.chunk) {
            let lost = Durable::Lost(update.chunk, update.version);
            self.change(update.chunk, Some(lost), |_| ());
            return Ok(());
        }
        let content = Content {
            version: update.version,
            bytes,
            records: update.records.as_slice().to_vec(),
        };
        let durable = Durable::Prepared(update.chunk, update.version);
        self.change(update.chunk, Some(durable), |entry| {
            entry.pending = Some(content);
        });
        Ok(())
    }

    fn commit(&mut self, chunk: ChunkId, version: Version) {
        self.change(chunk, None, |entry| {
            let pending = entry.pending.take().unwrap();
            assert_eq!(pending.version, version, "what is pending is committed");
            entry.committed = Some(pending);
            (entry.is_rotten, entry.is_damaged) = (false, false);
        });
    }

    fn discard(&mut self, chunk: ChunkId, version: Version) {
        let durable = Durable::Discarded(chunk, version);
        self.forget_lost(chunk);
        if self.state(chunk).pending.is_none() {
            return self.change(chunk, Some(durable), |_| ());
        }
        self.change(chunk, Some(durable), |entry| {
            let pending = entry.pending.take().unwrap();
            assert_eq!(pending.version, version, "what is pending is discarded");
        });
    }

    fn forget(&mut self, chunk: ChunkId) {
        self.change(chunk, None, |entry| {
            let removed = entry.committed.take();
            let is_removed = removed.is_some_and(|content| content.bytes.is_none());
            assert!(
                is_removed && entry.pending.is_none(),
                "what is removed is forgotten"
            );
        });
    }

    fn repair(&mut self, chunk: ChunkId, version: Version, content: Option<Vec<u8>>) {
        self.change(chunk, None, |entry| {
            let committed = entry.committed.as_mut().unwrap();
            assert_eq!(committed.version, version, "what is committed is repaired");
            assert_eq!(
                committed.bytes, content,
                "CRAQ-6: a neighbour has the same bytes"
            );
            (entry.is_rotten, entry.is_damaged) = (false, false);
        });
    }

    fn versions(&self, after: Option<ChunkId>, limit: usize) -> Vec<(ChunkId, Version)> {
        let behind = self
            .now
            .keys()
            .filter(|chunk| after.is_none_or(|after| **chunk > after))
            .filter(|chunk| self.state(**chunk).newest() != Version::NONE);
        let version = |chunk: &ChunkId| (*chunk, self.state(*chunk).newest());
        behind.take(limit).map(version).collect()
    }
}
