//! The store of one target: chunks with a committed and a pending state, and who holds which blocks. An edit is prepared,
//! its blocks are written by the shell, and its record waits for the next batch. Batches are in `batches`, reads and
//! listings in `looks`.

mod batches;
mod chunk;
mod looks;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::batch;
use crate::blocks::Blocks;
use crate::edit::{BlockPlan, Edit, OldBlock, Slot, outline};
use crate::journal::Journal;
use crate::record::{Placed, Record, State, record_bytes};
use crate::superblock::Superblock;
use crate::{ChunkId, NOTES_LIMIT_BYTES, Version};
use batches::InFlight;
pub use batches::{Change, Durable, JournalBatch};
use chunk::{Chunk, Pending};
pub use looks::{ChunkView, StateView, StoreUsage};

/// Edits that are not durable yet: 4,096 x 4 MiB are 16 GiB on their way, more than a flush should take.
const EDITS_LIMIT: usize = 4096;
/// Reads that are under way.
const READS_LIMIT: usize = 16_384;

/// An edit whose blocks are being written. It ends with [`ChunkStore::written`] or [`ChunkStore::abandon`]; one that is
/// forgotten keeps its chunk from being edited until the store is opened again.
#[derive(Debug)]
pub struct PrepareTicket {
    number: u64,
}

/// Why the store did not do something. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A flush has failed, so nobody knows what is on the disk.
    #[error("a flush has failed: open the store again")]
    Failed,
    /// The chunk is not committed in the version on which the edit is based. This is what is there.
    #[error("the chunk is committed in another version than the edit's base: {0:?}")]
    Base(Option<Version>),
    /// A new version has to be greater than the committed one; a damaged one may be replaced in its own version.
    #[error("the version is not above the committed one: {0:?}")]
    NotNewer(Version),
    /// There is a pending state already: commit or discard it first.
    #[error("the chunk is pending in version {0:?}: commit or discard it first")]
    Pending(Version),
    /// An edit of the chunk is being written.
    #[error("another edit of the chunk is being written")]
    Preparing,
    /// There is no such state. This is what is pending.
    #[error("the chunk has no such state; pending is {0:?}")]
    Absent(Option<Version>),
    /// It was not flushed yet, so a power cut could leave the chunk with neither state.
    #[error("the pending state is not durable yet: commit it after its batch is flushed")]
    NotDurable,
    /// Some of its bytes are lost: replace all of it.
    #[error("version {0:?} of the chunk is damaged: replace all of it")]
    Damaged(Version),
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
    chunks: BTreeMap<ChunkId, Chunk>,
    blocks: Blocks,
    journal: Journal,
    /// Chunks that wait for a batch, first come first.
    queue: VecDeque<ChunkId>,
    in_flight: Option<InFlight>,
    edits: BTreeMap<u64, Open>,
    reads: BTreeMap<u64, Vec<u32>>,
    /// For tickets and guards.
    next: u64,
    /// Edits that are written and not durable.
    undurable: usize,
    damaged: BTreeSet<ChunkId>,
    /// Bytes that the newest records of all chunks take, with those of open edits.
    live_bytes: usize,
    /// New records have earned so many bytes of cleaning.
    credit: usize,
}

/// An edit whose blocks are being written.
#[derive(Debug)]
struct Open {
    id: ChunkId,
    /// What becomes the pending state, with the checksums still missing.
    state: State,
    /// Which of its blocks are new.
    written: Vec<usize>,
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

    /// Begins an edit of a chunk that is committed in version `base`: what has to be written, block by block.
    pub fn prepare(
        &mut self,
        id: ChunkId,
        version: Version,
        base: Option<Version>,
        edit: Edit,
        notes: Vec<u8>,
    ) -> Result<(PrepareTicket, Vec<BlockPlan>), Refused> {
        self.check_prepare(id, version, base, edit, &notes)?;
        let geometry = *self.superblock.geometry();
        let old = self.chunks.get(&id);
        let old = old.and_then(|chunk| chunk.committed.as_ref());
        let (length, slots) = outline(&geometry, old, edit).ok_or(Refused::TooLong)?;
        let needed = slots
            .iter()
            .filter(|slot| matches!(slot, Slot::Written { .. }));
        if needed.count() > self.blocks.free() {
            return Err(Refused::Full);
        }
        let mut state = State {
            version,
            is_removal: edit == Edit::Remove,
            is_damaged: false,
            length,
            blocks: vec![None; slots.len()],
            notes,
        };
        let room = record_bytes(old.into_iter().chain([&state]));
        let charged = self.chunks.get(&id).map_or(0, |chunk| chunk.room);
        let live_bytes = self.live_bytes - charged + room.max(charged);
        match edit {
            Edit::Remove if live_bytes > Journal::limit(&geometry) => return Err(Refused::Busy),
            Edit::Remove => {}
            Edit::Write { .. } | Edit::Truncate { .. } | Edit::Replace { .. } => {
                if live_bytes > Journal::write_limit(&geometry) {
                    return Err(Refused::Full);
                }
            }
        }
        let (mut plans, mut written) = (Vec::new(), Vec::new());
        for (index, slot) in slots.into_iter().enumerate() {
            match slot {
                Slot::Zeros => {}
                Slot::Kept(placed) => {
                    self.blocks.hold(placed.place);
                    state.blocks[index] = Some(placed);
                }
                Slot::Written { old, new, from } => {
                    let place = self.blocks.allocate().ok_or(Refused::Full)?;
                    state.blocks[index] = Some(Placed { place, checksum: 0 });
                    written.push(index);
                    plans.push(BlockPlan {
                        at: geometry.block_at(place),
                        bytes: geometry.valid_bytes(length, index),
                        old: old.map(|(placed, bytes)| OldBlock {
                            at: geometry.block_at(placed.place),
                            bytes,
                            checksum: placed.checksum,
                        }),
                        new,
                        from,
                    });
                }
            }
        }
        let number = self.number();
        let chunk = self.chunks.entry(id).or_default();
        chunk.edit = Some((number, state.bytes()));
        let open = Open { id, state, written };
        self.edits.insert(number, open);
        self.settle(id);
        Ok((PrepareTicket { number }, plans))
    }

    /// What does not depend on the content.
    fn check_prepare(
        &self,
        id: ChunkId,
        version: Version,
        base: Option<Version>,
        edit: Edit,
        notes: &[u8],
    ) -> Result<(), Refused> {
        self.check_alive()?;
        if notes.len() > NOTES_LIMIT_BYTES {
            return Err(Refused::LongNotes);
        }
        let chunk = self.chunks.get(&id);
        let committed = chunk.and_then(|chunk| chunk.committed.as_ref());
        let found = committed.map(|state| state.version);
        if found != base {
            return Err(Refused::Base(found));
        }
        if let Some(state) = committed {
            let replaces = matches!(edit, Edit::Replace { .. });
            let repairs = replaces && state.is_damaged && version == state.version;
            if version <= state.version && !repairs {
                return Err(Refused::NotNewer(state.version));
            }
            if state.is_damaged && !replaces && edit != Edit::Remove {
                return Err(Refused::Damaged(state.version));
            }
        }
        if let Some(pending) = chunk.and_then(|chunk| chunk.pending.as_ref()) {
            return Err(Refused::Pending(pending.state.version));
        }
        if chunk.is_some_and(|chunk| chunk.edit.is_some()) {
            return Err(Refused::Preparing);
        }
        match self.edits.len() + self.undurable < EDITS_LIMIT {
            true => Ok(()),
            false => Err(Refused::Busy),
        }
    }

    /// The blocks of an edit are written, with these checksums in the order of their plans. The state is pending, and
    /// its record goes into the next batch.
    pub fn written(&mut self, ticket: PrepareTicket, checksums: &[u32]) -> Result<(), Refused> {
        self.check_alive()?;
        let mut open = self.edits.remove(&ticket.number).ok_or(Refused::Unknown)?;
        assert_eq!(
            open.written.len(),
            checksums.len(),
            "STORE-2: each block that was written has its checksum"
        );
        for (&index, &checksum) in open.written.iter().zip(checksums) {
            if let Some(placed) = &mut open.state.blocks[index] {
                placed.checksum = checksum;
            }
        }
        let version = open.state.version;
        let chunk = self.chunks.get_mut(&open.id).ok_or(Refused::Unknown)?;
        chunk.edit = None;
        chunk.pending = Some(Pending {
            state: open.state,
            ticket: Some(ticket.number),
        });
        self.undurable += 1;
        self.enqueue(open.id, Some((version, Change::Prepared(ticket.number))));
        Ok(())
    }

    /// An edit is given up before it was written.
    pub fn abandon(&mut self, ticket: PrepareTicket) -> Result<(), Refused> {
        self.check_alive()?;
        let open = self.edits.remove(&ticket.number).ok_or(Refused::Unknown)?;
        for place in open.state.places() {
            self.blocks.release(place);
        }
        let chunk = self.chunks.get_mut(&open.id).ok_or(Refused::Unknown)?;
        chunk.edit = None;
        self.settle(open.id);
        Ok(())
    }

    /// Makes the pending state of this version the committed one. The removal of a chunk ends it.
    pub fn commit(&mut self, id: ChunkId, version: Version) -> Result<(), Refused> {
        let chunk = self.with_pending(id, version)?;
        let pending = chunk
            .pending
            .as_ref()
            .filter(|pending| pending.ticket.is_none());
        let pending = pending.ok_or(Refused::NotDurable)?;
        if pending.state.is_damaged {
            return Err(Refused::Damaged(version));
        }
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
    pub fn discard(&mut self, id: ChunkId, version: Version) -> Result<(), Refused> {
        let chunk = self.with_pending(id, version)?;
        let pending = chunk.pending.take().map(|pending| pending.state);
        chunk.retire(pending.as_ref());
        self.enqueue(id, Some((version, Change::Discarded)));
        Ok(())
    }

    /// The block at this place of the disk does not hold what was written, or cannot be read. Every state of the chunk
    /// that has it is damaged from now on. False if none has: the chunk has changed since.
    pub fn mark_damaged(&mut self, id: ChunkId, at: u64) -> Result<bool, Refused> {
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

    fn with_pending(&mut self, id: ChunkId, version: Version) -> Result<&mut Chunk, Refused> {
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
