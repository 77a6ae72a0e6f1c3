//! The store of one target: chunks with a committed and a pending state, commits and discards of these, and what is lost
//! of them. How a state comes to be is in `edits`, how it becomes durable in `batches`, how it is read in `looks`.

mod batches;
mod chunk;
mod edits;
mod looks;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::batch;
use crate::blocks::Blocks;
use crate::journal::Journal;
use crate::record::{Record, State, record_bytes};
use crate::superblock::Superblock;
use crate::{ChunkKey, StateVersion};
use batches::InFlight;
pub use batches::{BatchDue, Change, Durable, JournalBatch};
use chunk::{Chunk, Pending};
use edits::Open;
pub use edits::PrepareTicket;
pub use looks::{ChunkView, StateView, StoreUsage};

/// Reads that are under way.
const READS_LIMIT: usize = 16_384;

/// Why the store did not do something. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A flush has failed, so nobody knows what is on the disk.
    #[error("a flush has failed: open the store again")]
    Failed,
    /// The chunk is not committed in the version on which the edit is based. This is what is there.
    #[error("the chunk is committed in another version than the edit's base: {0:?}")]
    Base(Option<StateVersion>),
    /// A new version has to be greater than the committed one; a damaged one may be replaced in its own version.
    #[error("the version is not above the committed one: {0:?}")]
    NotNewer(StateVersion),
    /// There is a pending state already: commit or discard it first.
    #[error("the chunk is pending in version {0:?}: commit or discard it first")]
    Pending(StateVersion),
    /// An edit of the chunk is being written.
    #[error("another edit of the chunk is being written")]
    Preparing,
    /// There is no such state. This is what is pending.
    #[error("the chunk has no such state; pending is {0:?}")]
    Absent(Option<StateVersion>),
    /// It was not flushed yet, so a power cut could leave the chunk with neither state.
    #[error("the pending state is not durable yet: commit it after its batch is flushed")]
    NotDurable,
    /// Some of its bytes are lost: replace all of it.
    #[error("version {0:?} of the chunk is damaged: replace all of it")]
    Damaged(StateVersion),
    /// No chunk is that long.
    #[error("the chunk would be longer than 64 blocks")]
    TooLong,
    /// There is no room for that.
    #[error("the notes are longer than 2 KiB")]
    LongNotes,
    /// There are not enough blocks, or the journal has no room. Removes, commits and discards are still possible.
    #[error("the disk is full")]
    Full,
    /// Too many edits, reads or removals at once: try again after the next flush or commit.
    #[error("too much is under way: try again")]
    Busy,
    /// A ticket, guard or batch of another store, or one that has ended.
    #[error("this store has not begun that, or it has ended")]
    Unknown,
}

/// The store of one target.
#[derive(Debug)]
pub struct ChunkStore {
    superblock: Superblock,
    is_failed: bool,
    chunks: BTreeMap<ChunkKey, Chunk>,
    blocks: Blocks,
    journal: Journal,
    /// Chunks that wait for a batch, first come first.
    queue: VecDeque<ChunkKey>,
    in_flight: Option<InFlight>,
    edits: BTreeMap<u64, Open>,
    reads: BTreeMap<u64, Vec<u32>>,
    /// For tickets and guards.
    next: u64,
    /// Edits that are written and not durable.
    undurable: usize,
    damaged: BTreeSet<ChunkKey>,
    /// Bytes that the newest records of all chunks take, with those of open edits.
    live_bytes: usize,
    /// New records have earned so many bytes of cleaning.
    credit: usize,
}

impl ChunkStore {
    /// The store of a disk that has just been formatted.
    pub(crate) fn empty(superblock: Superblock) -> Self {
        let geometry = *superblock.geometry();
        let used = geometry.round(batch::HEADER_BYTES);
        Self::with(superblock, Journal::behind(geometry, &batch::FIRST, used))
    }

    /// A store without chunks behind a journal.
    pub(crate) fn with(superblock: Superblock, journal: Journal) -> Self {
        Self {
            superblock,
            is_failed: false,
            chunks: BTreeMap::new(),
            blocks: Blocks::new(superblock.geometry().blocks),
            journal,
            queue: VecDeque::new(),
            in_flight: None,
            edits: BTreeMap::new(),
            reads: BTreeMap::new(),
            next: 0,
            undurable: 0,
            damaged: BTreeSet::new(),
            live_bytes: 0,
            credit: 0,
        }
    }

    /// Takes over a record that a recovery found in a segment. What was marked damaged there is written again.
    pub(crate) fn restore(&mut self, record: Record, segment: u64, is_changed: bool) {
        for place in record.states().flat_map(State::places) {
            self.blocks.hold(place);
        }
        let id = record.id;
        let flushed_bytes = record_bytes(record.states());
        let chunk = Chunk {
            committed: record.committed,
            pending: record.pending.map(|state| Pending {
                state,
                ticket: None,
            }),
            at: Some(segment),
            flushed_bytes,
            ..Chunk::default()
        };
        self.chunks.insert(id, chunk);
        self.journal.moved(id, None, Some(segment));
        match is_changed {
            true => self.enqueue(id, None),
            false => self.settle(id),
        }
    }

    /// Whether no chunk has this block.
    pub(crate) fn is_free(&self, place: u32) -> bool {
        self.blocks.is_free(place)
    }

    /// Makes the pending state of this version the committed one. The removal of a chunk ends it. A damaged one stays so:
    /// whoever commits it knows where else its bytes are.
    pub fn commit(&mut self, id: ChunkKey, version: StateVersion) -> Result<(), Refused> {
        let chunk = self.with_pending(id, version)?;
        let pending = chunk
            .pending
            .as_ref()
            .filter(|pending| pending.ticket.is_none());
        pending.ok_or(Refused::NotDurable)?;
        let pending = chunk.pending.take().map(|pending| pending.state);
        let old = std::mem::replace(
            &mut chunk.committed,
            pending.filter(|state| !state.is_removal),
        );
        chunk.retire(old.as_ref());
        self.enqueue(id, Some((version, Change::Committed)));
        Ok(())
    }

    /// Drops the pending state of this version.
    pub fn discard(&mut self, id: ChunkKey, version: StateVersion) -> Result<(), Refused> {
        let chunk = self.with_pending(id, version)?;
        let pending = chunk.pending.take().map(|pending| pending.state);
        chunk.retire(pending.as_ref());
        self.enqueue(id, Some((version, Change::Discarded)));
        Ok(())
    }

    /// The block at this place of the disk does not hold what was written, or cannot be read. Every state of the chunk
    /// that has it is damaged from now on. False if none has: the chunk has changed since.
    pub fn mark_damaged(&mut self, id: ChunkKey, at: u64) -> Result<bool, Refused> {
        self.check_alive()?;
        let place = self.superblock.geometry().place_of(at);
        let Some((chunk, place)) = self.chunks.get_mut(&id).zip(place) else {
            return Ok(false);
        };
        let edit = chunk
            .edit
            .and_then(|(number, _)| self.edits.get_mut(&number));
        let states = chunk.states_mut().chain(edit.map(|open| &mut open.state));
        let mut is_any = false;
        for state in states.filter(|state| state.places().any(|one| one == place)) {
            state.is_damaged = true;
            is_any = true;
        }
        if is_any {
            self.enqueue(id, None);
        }
        Ok(is_any)
    }

    /// A flush or a write has failed. Nothing is known of what was written since the last flush, and a second flush
    /// would not say so: the store refuses everything until it is opened again.
    pub fn flush_failed(&mut self) {
        self.is_failed = true;
    }

    pub(crate) fn check_alive(&self) -> Result<(), Refused> {
        match self.is_failed {
            true => Err(Refused::Failed),
            false => Ok(()),
        }
    }

    fn with_pending(&mut self, id: ChunkKey, version: StateVersion) -> Result<&mut Chunk, Refused> {
        self.check_alive()?;
        let chunk = self.chunks.get_mut(&id).ok_or(Refused::Absent(None))?;
        let pending = chunk.pending.as_ref().map(|pending| pending.state.version);
        match pending == Some(version) {
            true => Ok(chunk),
            false => Err(Refused::Absent(pending)),
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}
