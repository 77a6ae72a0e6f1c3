//! What a store answers without changing a chunk: reads, listings, and how full it is.

use std::ops::{Bound, Range};

use super::chunk::Chunk;
use super::{ChunkStore, READS_LIMIT};
use crate::journal::Journal;
use crate::read::{ReadGuard, ReadPlan, Which, pieces};
use crate::record::State;
use crate::superblock::Superblock;
use crate::{ChunkKey, Refused, StateVersion};

/// A state of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateView<'a> {
    /// Its version.
    pub version: StateVersion,
    /// Bytes of the chunk.
    pub length: u32,
    /// The chunk ends with it.
    pub is_removal: bool,
    /// Some of its bytes are lost.
    pub is_damaged: bool,
    /// It outlives a power cut as it is. True of a state that a recovery has found.
    pub is_durable: bool,
    /// What was given with its edit.
    pub notes: &'a [u8],
}

/// A chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkView<'a> {
    /// Which.
    pub id: ChunkKey,
    /// What is read by default.
    pub committed: Option<StateView<'a>>,
    /// What waits for its commit.
    pub pending: Option<StateView<'a>>,
}

/// How full a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreUsage {
    /// Blocks of the disk.
    pub blocks: usize,
    /// Those that nobody holds.
    pub free_blocks: usize,
    /// Bytes that the records of all chunks take.
    pub record_bytes: usize,
    /// At so many, writes are refused.
    pub record_limit_bytes: usize,
    /// Chunks with a state, or that are being edited.
    pub chunks: usize,
    /// Those of them that are damaged.
    pub damaged: usize,
    /// Edits that are not durable.
    pub edits: usize,
    /// Reads under way.
    pub reads: usize,
}

impl ChunkStore {
    /// How a range of a chunk is read. Its blocks stay as they are until the guard is given back.
    pub fn read(
        &mut self,
        id: ChunkKey,
        which: Which,
        range: Range<u32>,
    ) -> Result<(ReadGuard, ReadPlan), Refused> {
        self.check_alive()?;
        let chunk = self.chunks.get(&id).ok_or(Refused::Absent(None))?;
        let pending = chunk.pending.as_ref().map(|pending| &pending.state);
        let state = match which {
            Which::Committed => chunk.committed.as_ref(),
            Which::Pending(version) => pending.filter(|state| state.version == version),
        };
        let found = pending.map(|state| state.version);
        let state = state.ok_or(Refused::Absent(found))?;
        if state.is_damaged {
            return Err(Refused::Damaged(state.version));
        }
        if self.reads.len() == READS_LIMIT {
            return Err(Refused::Busy);
        }
        let geometry = self.superblock.geometry();
        let plan = ReadPlan {
            id,
            version: state.version,
            length: state.length,
            pieces: pieces(geometry, state, range),
        };
        let places = plan.pieces.iter().filter_map(|piece| piece.at);
        let places: Vec<u32> = places.filter_map(|at| geometry.place_of(at)).collect();
        for &place in &places {
            self.blocks.hold(place);
        }
        let number = self.number();
        self.reads.insert(number, places);
        Ok((ReadGuard { number }, plan))
    }

    /// A read is over.
    pub fn end_read(&mut self, guard: ReadGuard) -> Result<(), Refused> {
        let places = self.reads.remove(&guard.number);
        for place in places.ok_or(Refused::Unknown)? {
            self.blocks.release(place);
        }
        Ok(())
    }

    /// A chunk, if it has a state.
    #[must_use]
    pub fn chunk(&self, id: ChunkKey) -> Option<ChunkView<'_>> {
        view(id, self.chunks.get(&id)?)
    }

    /// The chunks behind one in the order of their names, as many as asked for at most.
    pub fn versions(
        &self,
        after: Option<ChunkKey>,
        limit: usize,
    ) -> impl Iterator<Item = ChunkView<'_>> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let chunks = self.chunks.range((start, Bound::Unbounded));
        chunks
            .filter_map(|(&id, chunk)| view(id, chunk))
            .take(limit)
    }

    /// The chunks with a state some of whose bytes are lost.
    pub fn damaged(&self) -> impl Iterator<Item = ChunkKey> {
        self.damaged.iter().copied()
    }

    /// How full the store is.
    #[must_use]
    pub fn usage(&self) -> StoreUsage {
        let geometry = self.superblock.geometry();
        StoreUsage {
            blocks: geometry.blocks as usize,
            free_blocks: self.blocks.free(),
            record_bytes: self.live_bytes,
            record_limit_bytes: Journal::write_limit(geometry),
            chunks: self.chunks.len(),
            damaged: self.damaged.len(),
            edits: self.edits.len() + self.undurable,
            reads: self.reads.len(),
        }
    }

    /// The disk that the store is on.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
    }
}

fn view(id: ChunkKey, chunk: &Chunk) -> Option<ChunkView<'_>> {
    chunk.states().next()?;
    let pending = chunk.pending.as_ref();
    let is_durable = pending.is_some_and(|pending| pending.ticket.is_none());
    Some(ChunkView {
        id,
        committed: chunk.committed.as_ref().map(|state| look(state, true)),
        pending: pending.map(|pending| look(&pending.state, is_durable)),
    })
}

fn look(state: &State, is_durable: bool) -> StateView<'_> {
    StateView {
        version: state.version,
        length: state.length,
        is_removal: state.is_removal,
        is_damaged: state.is_damaged,
        is_durable,
        notes: &state.notes,
    }
}
