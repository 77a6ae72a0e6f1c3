//! One chunk in memory: its states, and what waits for its next record. How the store's sums follow a change of it.

use super::{Change, ChunkStore};
use crate::record::{State, record_bytes};
use crate::{ChunkKey, StateVersion};

/// A state that is not committed.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) state: State,
    /// The ticket of its edit, until it is durable.
    pub(super) ticket: Option<u64>,
}

/// All that is known of a chunk.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) committed: Option<State>,
    pub(super) pending: Option<Pending>,
    /// The edit that is being written, and how many bytes its state takes in a record.
    pub(super) edit: Option<(u64, usize)>,
    /// Bytes that are charged for its record.
    pub(super) room: usize,
    /// The segment of its newest flushed record.
    pub(super) at: Option<u64>,
    /// Bytes of that record: a recovery may find it, even if the next one is shorter.
    pub(super) flushed_bytes: usize,
    /// Bytes of its record in the batch that is being written.
    pub(super) in_flight_bytes: Option<usize>,
    pub(super) is_queued: bool,
    /// What the next record makes durable.
    pub(super) changes: Vec<(StateVersion, Change)>,
    /// Blocks that are let go once the next record is flushed.
    pub(super) retired: Vec<u32>,
}

impl Chunk {
    /// The blocks of a state that is dropped stay until a record without it is flushed.
    pub(super) fn retire(&mut self, state: Option<&State>) {
        self.retired
            .extend(state.into_iter().flat_map(State::places));
    }

    pub(super) fn states(&self) -> impl Iterator<Item = &State> {
        let pending = self.pending.iter().map(|pending| &pending.state);
        self.committed.iter().chain(pending)
    }

    pub(super) fn states_mut(&mut self) -> impl Iterator<Item = &mut State> {
        let pending = self.pending.iter_mut().map(|pending| &mut pending.state);
        self.committed.iter_mut().chain(pending)
    }

    /// Nothing of it is left, and a flushed record says so. The chunk needs that record no longer than its older ones, which
    /// lie before it: the journal is only ever cut off at its beginning.
    fn is_gone(&self) -> bool {
        let is_waiting = self.edit.is_some() || self.is_queued || self.in_flight_bytes.is_some();
        !is_waiting && self.states().next().is_none()
    }
}

impl ChunkStore {
    /// A chunk has changed: its record goes into the next batch.
    pub(super) fn enqueue(&mut self, id: ChunkKey, change: Option<(StateVersion, Change)>) {
        if let Some(chunk) = self.chunks.get_mut(&id) {
            chunk.changes.extend(change);
            if !std::mem::replace(&mut chunk.is_queued, true) {
                self.queue.push_back(id);
            }
        }
        self.settle(id);
    }

    /// Makes the store's sums right after any change of a chunk, and forgets one of which nothing is left.
    pub(super) fn settle(&mut self, id: ChunkKey) {
        let Some(chunk) = self.chunks.get_mut(&id) else {
            return;
        };
        let edit = chunk.edit.map_or(0, |(_, bytes)| bytes);
        let now = record_bytes(chunk.states()) + edit;
        let in_flight = chunk.in_flight_bytes.unwrap_or(0);
        let room = now.max(in_flight).max(chunk.flushed_bytes);
        self.live_bytes = self.live_bytes - chunk.room + room;
        chunk.room = room;
        match chunk.states().any(|state| state.is_damaged) {
            true => self.damaged.insert(id),
            false => self.damaged.remove(&id),
        };
        if chunk.is_gone() {
            self.live_bytes -= room;
            self.journal.moved(id, chunk.at, None);
            self.chunks.remove(&id);
        }
    }
}
