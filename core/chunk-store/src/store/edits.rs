//! Edits: what has to be written for one, block by block, whether there is room for it, and how it becomes the pending
//! state of its chunk once it is written.

use super::chunk::Pending;
use super::{Change, ChunkStore, Refused};
use crate::edit::{BlockPlan, OldBlock, Slot, StateEdit, outline};
use crate::journal::Journal;
use crate::record::{Placed, State, record_bytes};
use crate::{ChunkKey, NOTES_LIMIT_BYTES, StateVersion};

/// Edits that are not durable yet: 4,096 x 4 MiB are 16 GiB on their way, more than a flush should take.
const EDITS_LIMIT: usize = 4096;
/// An edit whose blocks are being written. It ends with [`ChunkStore::written`] or [`ChunkStore::abandon`]; one that is
/// forgotten keeps its chunk from being edited until the store is opened again.
#[derive(Debug)]
pub struct PrepareTicket {
    number: u64,
}

impl PrepareTicket {
    /// Names the edit in [`Change::Prepared`].
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }
}

/// An edit whose blocks are being written.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) id: ChunkKey,
    /// What becomes the pending state, with the checksums still missing.
    pub(super) state: State,
    /// Which of its blocks are new.
    pub(super) written: Vec<usize>,
}

impl ChunkStore {
    /// Begins an edit of a chunk that is committed in version `base`: what has to be written, block by block.
    pub fn prepare(
        &mut self,
        id: ChunkKey,
        version: StateVersion,
        base: Option<StateVersion>,
        edit: StateEdit,
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
            is_removal: edit == StateEdit::Remove,
            is_damaged: false,
            length,
            blocks: vec![None; slots.len()],
            notes,
        };
        let room = record_bytes(old.into_iter().chain([&state]));
        let charged = self.chunks.get(&id).map_or(0, |chunk| chunk.room);
        let live_bytes = self.live_bytes - charged + room.max(charged);
        match edit {
            StateEdit::Remove if live_bytes > Journal::limit(&geometry) => {
                return Err(Refused::Busy);
            }
            StateEdit::Remove => {}
            StateEdit::Write { .. } | StateEdit::Truncate { .. } | StateEdit::Replace { .. } => {
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
        id: ChunkKey,
        version: StateVersion,
        base: Option<StateVersion>,
        edit: StateEdit,
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
            let replaces = matches!(edit, StateEdit::Replace { .. });
            let repairs = replaces && state.is_damaged && version == state.version;
            if version <= state.version && !repairs {
                return Err(Refused::NotNewer(state.version));
            }
            if state.is_damaged && !replaces && edit != StateEdit::Remove {
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
}
