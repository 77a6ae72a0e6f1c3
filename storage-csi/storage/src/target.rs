//! The chunks of a target as its chains see them: what `craq` asks of a store, done by `chunk_store`, and what is to be
//! written for it. Reads and writes nothing: a shell carries out the jobs and the batches, and hands back what came.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Bound, Range};

use chunk_store::{
    BadBlock, BatchDue, BlockPlan, Change, ChunkKey, ChunkStore, JournalBatch, PrepareTicket,
    ReadGuard, ReadPlan, Refused, StateEdit, StateVersion, StateView, StoreUsage, Which,
};
use craq::{
    ChainRefusal, ChunkId, ChunkState, Chunks, Edit, PendingContent, Records, Update, Version,
};

use crate::keys;

/// Blocks that writes may not use, so that on a full disk a member can catch up and files can be cut off: 16 chunks of 64.
const RESERVED_BLOCKS: usize = 1024;

/// In the version of a store's removal, so that it is none of the chain's.
const END: u128 = 1 << 63;

/// Blocks that have to be written.
#[derive(Debug)]
pub struct WriteJob<P> {
    key: ChunkKey,
    ticket: PrepareTicket,
    /// What each block holds.
    pub plans: Vec<BlockPlan>,
    /// The edit's bytes; none if it has none.
    pub bytes: Option<P>,
}

/// What became of an edit: an input of its chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditOutcome {
    /// `Input::Durable`.
    Durable,
    /// `Input::Discarded`.
    Discarded,
    /// `Input::Lost`.
    Lost,
}

/// What became of the edit of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetEvent {
    pub chain: u32,
    pub chunk: ChunkId,
    pub version: Version,
    pub outcome: EditOutcome,
}

/// An edit whose blocks are being written.
#[derive(Debug)]
struct Editing<P> {
    version: Version,
    is_removed: bool,
    /// Nobody wants it any more.
    is_dropped: bool,
    /// What comes in its place.
    next: Option<Update<P>>,
}

/// A target.
#[derive(Debug)]
pub struct Target<P> {
    store: ChunkStore,
    jobs: VecDeque<WriteJob<P>>,
    editing: BTreeMap<ChunkKey, Editing<P>>,
    /// Contents that the target commits by itself: repaired ones, and the ends of removed ones.
    own: BTreeSet<ChunkKey>,
    events: VecDeque<TargetEvent>,
}

/// How a content is read.
#[derive(Debug)]
pub enum ContentRead {
    /// It has no bytes.
    Nothing,
    /// These. The guard goes back with [`Target::end_read`].
    Plan(ReadGuard, ReadPlan),
}

/// The chunks of one chain.
#[derive(Debug)]
pub struct ChainChunks<'a, P> {
    target: &'a mut Target<P>,
    chain: u32,
}

impl<P> Target<P> {
    /// Over a store that was opened. What it could not keep of contents on their way is dropped: the chain has them.
    pub fn new(mut store: ChunkStore) -> Self {
        let pending = |chunk: chunk_store::ChunkView<'_>| {
            let (pending, committed) = (chunk.pending?, chunk.committed);
            let repairs = committed.is_some_and(|state| state.version == pending.version);
            Some((
                chunk.id,
                pending.version,
                pending.is_damaged,
                pending.is_removal || repairs,
            ))
        };
        let all: Vec<_> = store
            .versions(None, usize::MAX)
            .filter_map(pending)
            .collect();
        for (key, version, is_damaged, is_own) in all {
            // All of them were just listed.
            match (is_damaged, is_own) {
                (true, _) => store.discard(key, version).ok(),
                (false, true) => store.commit(key, version).ok(),
                (false, false) => None,
            };
        }
        Self {
            store,
            jobs: VecDeque::new(),
            editing: BTreeMap::new(),
            own: BTreeSet::new(),
            events: VecDeque::new(),
        }
    }

    /// The chunks of a chain.
    pub fn chain(&mut self, chain: u32) -> ChainChunks<'_, P> {
        ChainChunks {
            target: self,
            chain,
        }
    }

    /// Begins to read bytes of a content, as far as it reaches.
    pub fn read(
        &mut self,
        chain: u32,
        chunk: ChunkId,
        version: Version,
        range: Range<u32>,
    ) -> Result<ContentRead, ChainRefusal> {
        let state = self.state(chain, chunk);
        let pending = state.pending.filter(|pending| pending.version == version);
        let is_removed = pending.map_or(state.is_removed, |pending| pending.is_removed);
        if version == Version::NONE || is_removed {
            return Ok(ContentRead::Nothing);
        }
        let which = match pending {
            None => Which::Committed,
            Some(_) => Which::Pending(keys::stored(version)),
        };
        let read = self.store.read(keys::key(chain, chunk), which, range);
        let (guard, plan) = read.map_err(refusal)?;
        Ok(ContentRead::Plan(guard, plan))
    }

    /// A read is over: of a block that is bad, its chunk is damaged from now on.
    pub fn end_read(&mut self, guard: ReadGuard, plan: &ReadPlan, bad: Option<BadBlock>) {
        // The store gave both out, or has failed since.
        self.store.end_read(guard).ok();
        if let Some(bad) = bad {
            self.store.mark_damaged(plan.id, bad.at).ok();
        }
    }

    /// How full the store is.
    pub fn usage(&self) -> StoreUsage {
        self.store.usage()
    }

    /// The disk has failed: nothing that was not reported as durable is to be relied on.
    pub fn fail(&mut self) {
        self.store.flush_failed();
    }

    /// Bytes of a committed content, if there is one.
    #[must_use]
    pub fn length(&self, chain: u32, chunk: ChunkId) -> Option<u32> {
        let committed = self.committed(keys::key(chain, chunk));
        committed.map(|state| state.length)
    }

    /// The next blocks to write.
    pub fn take_job(&mut self) -> Option<WriteJob<P>> {
        self.jobs.pop_front()
    }

    /// How much the next batch matters.
    #[must_use]
    pub fn batch_due(&self) -> BatchDue {
        self.store.batch_due()
    }

    /// The next batch to write and flush, with all blocks that were written before.
    pub fn take_batch(&mut self) -> Option<JournalBatch> {
        self.store.take_batch()
    }

    /// The next input of a chain.
    pub fn take_event(&mut self) -> Option<TargetEvent> {
        self.events.pop_front()
    }

    /// A chunk of a chain.
    pub fn state(&self, chain: u32, chunk: ChunkId) -> ChunkState {
        let key = keys::key(chain, chunk);
        let is_own = self.own.contains(&key);
        let view = self.store.chunk(key);
        let committed = view.and_then(|view| view.committed);
        let editing = self.editing.get(&key);
        let editing = editing.filter(|editing| !editing.is_dropped && !is_own);
        let pending = view.and_then(|view| view.pending).filter(|_| !is_own);
        ChunkState {
            committed: committed.map_or(Version::NONE, |state| keys::version(state.version)),
            is_removed: committed.is_some_and(|state| keys::is_removed(state.notes)),
            pending: pending
                .map(|state| PendingContent {
                    version: keys::version(state.version),
                    is_removed: keys::is_removed(state.notes),
                })
                .or_else(|| {
                    editing.map(|editing| PendingContent {
                        version: editing.version,
                        is_removed: editing.is_removed,
                    })
                }),
            is_damaged: committed.is_some_and(|state| state.is_damaged) && !is_own,
        }
    }

    /// What a content remembers of sessions.
    pub fn records(&self, chain: u32, chunk: ChunkId, version: Version) -> Records {
        let view = self.store.chunk(keys::key(chain, chunk));
        let states = view
            .into_iter()
            .flat_map(|view| [view.committed, view.pending]);
        let mut states = states.flatten();
        let stored = keys::stored(version);
        let state = states.find(|state| state.version == stored);
        state.map_or_else(Records::default, |state| keys::records(state.notes))
    }

    /// The chunks of a chain behind one, with their newest versions.
    pub fn versions(
        &self,
        chain: u32,
        after: Option<ChunkId>,
        limit: usize,
    ) -> Vec<(ChunkId, Version)> {
        let first = keys::before(chain, after);
        let stored = self.store.versions(first, usize::MAX);
        let stored = stored.map(|view| view.id);
        let of_chain = |key: &ChunkKey| keys::chunk(*key).0 == chain;
        // A chunk that is written for the first time is in the store when that is done.
        let behind = first.map_or(Bound::Unbounded, Bound::Excluded);
        let written = self.editing.range((behind, Bound::Unbounded));
        let written = written.map(|(key, _)| *key).take_while(of_chain);
        let newest = |key: ChunkKey| {
            let (_, chunk) = keys::chunk(key);
            let version = self.state(chain, chunk).newest();
            (version != Version::NONE).then_some((chunk, version))
        };
        let stored = stored.take_while(of_chain).filter_map(newest).take(limit);
        let mut all: BTreeMap<ChunkId, Version> = stored.collect();
        all.extend(written.filter_map(newest));
        all.into_iter().take(limit).collect()
    }

    fn committed(&self, key: ChunkKey) -> Option<StateView<'_>> {
        self.store.chunk(key)?.committed
    }

    fn report(&mut self, key: ChunkKey, version: Version, outcome: EditOutcome) {
        let (chain, chunk) = keys::chunk(key);
        self.events.push_back(TargetEvent {
            chain,
            chunk,
            version,
            outcome,
        });
    }
}

impl<P: AsRef<[u8]>> Target<P> {
    /// A job is done: the checksums of its blocks, or the old block that is bad.
    pub fn done(
        &mut self,
        job: WriteJob<P>,
        result: Result<&[u32], BadBlock>,
    ) -> Result<(), Refused> {
        let WriteJob { key, ticket, .. } = job;
        let editing = self.editing.remove(&key).ok_or(Refused::Unknown)?;
        match result {
            Ok(checksums) if !editing.is_dropped => self.store.written(ticket, checksums)?,
            Ok(_) | Err(_) => {
                if let Err(bad) = result {
                    self.store.mark_damaged(key, bad.at)?;
                }
                self.store.abandon(ticket)?;
                let outcome = match editing.is_dropped {
                    true => EditOutcome::Discarded,
                    false => EditOutcome::Lost,
                };
                self.report(key, editing.version, outcome);
            }
        }
        if let Some(next) = editing.next {
            let version = next.version;
            if self.begin(key, next).is_err() {
                self.report(key, version, EditOutcome::Lost);
            }
        }
        Ok(())
    }

    /// A batch is on the disk.
    pub fn flushed(&mut self, sequence: u64) -> Result<(), Refused> {
        for durable in self.store.batch_flushed(sequence)? {
            let version = keys::version(durable.version);
            match durable.change {
                Change::Prepared(_) if self.own.remove(&durable.id) => {
                    self.store.commit(durable.id, durable.version)?;
                }
                Change::Prepared(_) => self.report(durable.id, version, EditOutcome::Durable),
                Change::Discarded => self.report(durable.id, version, EditOutcome::Discarded),
                Change::Committed => {}
            }
        }
        Ok(())
    }

    /// Begins an edit of a chunk that nothing else is done to.
    fn begin(&mut self, key: ChunkKey, update: Update<P>) -> Result<(), Refused> {
        let (edit, bytes) = match update.edit {
            Edit::Write { offset, bytes } => {
                let length = bytes.as_ref().len() as u32;
                (StateEdit::Write { offset, length }, Some(bytes))
            }
            Edit::Truncate { length } => (StateEdit::Truncate { length }, None),
            Edit::Replace { content } => {
                let length = content.as_ref().len() as u32;
                (StateEdit::Replace { length }, Some(content))
            }
            Edit::Remove => (StateEdit::Replace { length: 0 }, None),
        };
        let is_removed = matches!(edit, StateEdit::Replace { length: 0 }) && bytes.is_none();
        let notes = keys::notes(is_removed, &update.records);
        self.edit(key, update.version, edit, bytes, notes)
    }

    fn edit(
        &mut self,
        key: ChunkKey,
        version: Version,
        edit: StateEdit,
        bytes: Option<P>,
        notes: Vec<u8>,
    ) -> Result<(), Refused> {
        let base = self.committed(key).map(|state| state.version);
        let stored = keys::stored(version);
        let is_removed = keys::is_removed(&notes);
        let (ticket, plans) = self.store.prepare(key, stored, base, edit, notes)?;
        let editing = Editing {
            version,
            is_removed,
            is_dropped: false,
            next: None,
        };
        self.editing.insert(key, editing);
        self.jobs.push_back(WriteJob {
            key,
            ticket,
            plans,
            bytes,
        });
        Ok(())
    }
}

impl<P: AsRef<[u8]> + Clone> Chunks<P> for ChainChunks<'_, P> {
    fn state(&self, chunk: ChunkId) -> ChunkState {
        self.target.state(self.chain, chunk)
    }

    fn records(&self, chunk: ChunkId, version: Version) -> Records {
        self.target.records(self.chain, chunk, version)
    }

    fn prepare(&mut self, update: &Update<P>) -> Result<(), ChainRefusal> {
        let key = keys::key(self.chain, update.chunk);
        let target = &mut *self.target;
        // What the chain wants comes before what the target does by itself.
        target.own.remove(&key);
        let is_scarce = target.store.usage().free_blocks < RESERVED_BLOCKS;
        if is_scarce && matches!(update.edit, Edit::Write { .. }) {
            return Err(ChainRefusal::Full);
        }
        if let Some(editing) = target.editing.get_mut(&key) {
            editing.is_dropped = true;
            editing.next = Some(update.clone());
            return Ok(());
        }
        let pending = target.store.chunk(key).and_then(|chunk| chunk.pending);
        if let Some(version) = pending.map(|pending| pending.version) {
            target.store.discard(key, version).map_err(refusal)?;
        }
        target.begin(key, update.clone()).map_err(refusal)
    }

    fn commit(&mut self, chunk: ChunkId, version: Version) {
        let key = keys::key(self.chain, chunk);
        let done = self.target.store.commit(key, keys::stored(version));
        // A store that has failed commits nothing, and its service ends.
        debug_assert!(matches!(done, Ok(()) | Err(Refused::Failed)), "{done:?}");
    }

    fn discard(&mut self, chunk: ChunkId, version: Version) {
        let key = keys::key(self.chain, chunk);
        match self.target.editing.get_mut(&key) {
            Some(editing) => editing.is_dropped = true,
            None => {
                self.target.store.discard(key, keys::stored(version)).ok();
            }
        }
    }

    fn forget(&mut self, chunk: ChunkId) {
        let key = keys::key(self.chain, chunk);
        let committed = self.target.committed(key);
        let Some(StateVersion(version)) = committed.map(|state| state.version) else {
            return;
        };
        let end = keys::version(StateVersion(version | END));
        // Without room it stays, and costs some hundred bytes.
        let edited = self
            .target
            .edit(key, end, StateEdit::Remove, None, Vec::new());
        if edited.is_ok() {
            self.target.own.insert(key);
        }
    }

    fn repair(&mut self, chunk: ChunkId, version: Version, content: Option<P>) {
        let key = keys::key(self.chain, chunk);
        let committed = self.target.committed(key);
        let notes = committed.map_or_else(Vec::new, |state| state.notes.to_vec());
        let length = content
            .as_ref()
            .map_or(0, |content| content.as_ref().len() as u32);
        let edit = StateEdit::Replace { length };
        if self.target.edit(key, version, edit, content, notes).is_ok() {
            self.target.own.insert(key);
        }
    }

    fn versions(&self, after: Option<ChunkId>, limit: usize) -> Vec<(ChunkId, Version)> {
        self.target.versions(self.chain, after, limit)
    }
}

/// What a chain makes of a refusal of its store.
fn refusal(refused: Refused) -> ChainRefusal {
    match refused {
        Refused::Full => ChainRefusal::Full,
        Refused::Damaged(_) => ChainRefusal::Damaged,
        Refused::Failed
        | Refused::Base(_)
        | Refused::NotNewer(_)
        | Refused::Pending(_)
        | Refused::Preparing
        | Refused::Absent(_)
        | Refused::NotDurable
        | Refused::TooLong
        | Refused::LongNotes
        | Refused::Busy
        | Refused::Unknown => ChainRefusal::Busy,
    }
}
