//! What an edit makes of a chunk, block by block: which blocks stay as they are, which are zeros, and which are written
//! anew from what. An old block is never written over. Leaves to the store which blocks are free for it.

use std::ops::Range;

use crate::record::{Placed, State};
use crate::superblock::Geometry;
use crate::{BLOCKS_PER_CHUNK, checksum};

/// A change of a chunk's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateEdit {
    /// Puts new bytes at a place. What lies between the chunk's end and them is zeros. No bytes change nothing.
    Write {
        /// In bytes from the chunk's start.
        offset: u32,
        /// How many.
        length: u32,
    },
    /// Cuts the chunk off, or adds zeros.
    Truncate {
        /// Of the chunk afterwards.
        length: u32,
    },
    /// New bytes in place of all there were.
    Replace {
        /// How many.
        length: u32,
    },
    /// The chunk is no more.
    Remove,
}

/// A block that has to be written: zeros, over them the beginning of an old block, over that new bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockPlan {
    /// Where, in bytes from the disk's start.
    pub at: u64,
    /// How many bytes are valid. What fills up the last sector does not matter.
    pub bytes: u32,
    /// What has to be read first.
    pub old: Option<OldBlock>,
    /// Which of the block's bytes are new.
    pub new: Range<u32>,
    /// The place of the first of them among the edit's bytes.
    pub from: u32,
}

/// A block that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldBlock {
    /// Where it is.
    pub at: u64,
    /// How many bytes are valid.
    pub bytes: u32,
    /// Of these.
    pub checksum: u32,
}

/// A block's bytes are not those that were written. Say so with [`crate::ChunkStore::mark_damaged`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the block at byte {at} has the checksum {found:#x}, {expected:#x} was written")]
pub struct BadBlock {
    /// Where.
    pub at: u64,
    /// What the store has.
    pub expected: u32,
    /// What the bytes have; 0 for fewer bytes than it takes.
    pub found: u32,
}

impl BlockPlan {
    /// The block's valid bytes. `old` is what was read of the old block, `new` are all bytes of the edit.
    pub fn fill(&self, old: &[u8], new: &[u8]) -> Result<Vec<u8>, BadBlock> {
        let mut block = vec![0; self.bytes as usize];
        if let Some(expected) = self.old {
            let old = verify(old, expected.at, expected.bytes, expected.checksum)?;
            let kept = old.len().min(block.len());
            block[..kept].copy_from_slice(&old[..kept]);
        }
        let (start, end) = (self.new.start as usize, self.new.end as usize);
        let from = self.from as usize;
        block[start..end].copy_from_slice(&new[from..from + end - start]);
        Ok(block)
    }
}

/// The valid bytes of a block that was read, if they are those that were written.
pub(crate) fn verify(read: &[u8], at: u64, bytes: u32, expected: u32) -> Result<&[u8], BadBlock> {
    let valid = read.get(..bytes as usize);
    let found = valid.map_or(0, checksum);
    match valid {
        Some(valid) if found == expected => Ok(valid),
        _ => Err(BadBlock {
            at,
            expected,
            found,
        }),
    }
}

/// A block of the chunk that an edit makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Zeros,
    Kept(Placed),
    Written {
        old: Option<(Placed, u32)>,
        new: Range<u32>,
        from: u32,
    },
}

/// Length and blocks of what an edit makes of a chunk. None: it would be too long.
pub(crate) fn outline(
    geometry: &Geometry,
    old: Option<&State>,
    edit: StateEdit,
) -> Option<(u32, Vec<Slot>)> {
    let old_length = old.map_or(0, |state| state.length);
    let (length, new) = match edit {
        StateEdit::Write { length: 0, .. } => (old_length, 0..0),
        StateEdit::Write { offset, length } => {
            let end = offset.checked_add(length)?;
            (old_length.max(end), offset..end)
        }
        StateEdit::Truncate { length } => (length, 0..0),
        StateEdit::Replace { length } => (length, 0..length),
        StateEdit::Remove => (0, 0..0),
    };
    let count = geometry.blocks_of(length);
    if count > BLOCKS_PER_CHUNK {
        return None;
    }
    let slot = |index: usize| {
        let start = index as u32 * geometry.block_bytes;
        let bytes = geometry.valid_bytes(length, index);
        let old_bytes = geometry.valid_bytes(old_length, index);
        let old = old.and_then(|state| *state.blocks.get(index)?);
        let clip = |at: u32| at.clamp(start, start + bytes) - start;
        let inside = clip(new.start)..clip(new.end);
        if inside.is_empty() {
            return match old {
                None => Slot::Zeros,
                Some(placed) if old_bytes == bytes => Slot::Kept(placed),
                Some(placed) => Slot::Written {
                    old: Some((placed, old_bytes)),
                    new: 0..0,
                    from: 0,
                },
            };
        }
        let is_covered = inside.start == 0 && inside.end >= old_bytes.min(bytes);
        Slot::Written {
            old: old
                .filter(|_| !is_covered)
                .map(|placed| (placed, old_bytes)),
            from: start + inside.start - new.start,
            new: inside,
        }
    };
    Some((length, (0..count).map(slot).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StateVersion;

    const GEOMETRY: Geometry = Geometry {
        sector_bytes: 512,
        block_bytes: 1024,
        blocks: 100,
        segments: 8,
        segment_bytes: 16_384,
    };

    fn placed(place: u32) -> Placed {
        Placed {
            place,
            checksum: place,
        }
    }

    /// A chunk of three blocks; the second was never written.
    fn old() -> State {
        State {
            version: StateVersion(1),
            is_removal: false,
            is_damaged: false,
            length: 2500,
            blocks: vec![Some(placed(10)), None, Some(placed(12))],
            notes: Vec::new(),
        }
    }

    #[track_caller]
    fn check(edit: StateEdit, length: u32, slots: &[Slot]) {
        let outline = outline(&GEOMETRY, Some(&old()), edit).unwrap();
        assert_eq!(outline, (length, slots.to_vec()));
    }

    fn written(old: Option<(u32, u32)>, new: Range<u32>, from: u32) -> Slot {
        let old = old.map(|(place, bytes)| (placed(place), bytes));
        Slot::Written { old, new, from }
    }

    #[test]
    fn only_what_an_edit_touches_is_written_and_only_what_it_leaves_is_copied() {
        let write = |offset, length| StateEdit::Write { offset, length };
        let [first, last] = [10, 12].map(|place| Slot::Kept(placed(place)));
        let zeros = || Slot::Zeros;
        let part = written(Some((10, 1024)), 1000..1024, 0);
        let head = written(None, 0..476, 24);
        check(write(1000, 500), 2500, &[part, head, last.clone()]);
        let all = written(None, 0..1024, 0);
        check(write(0, 1024), 2500, &[all, zeros(), last.clone()]);
        let covers = written(None, 0..452, 0);
        check(write(2048, 452), 2500, &[first.clone(), zeros(), covers]);
        check(write(9999, 0), 2500, &[first, zeros(), last]);
    }

    #[test]
    fn a_changed_length_writes_the_last_block_and_holes_take_none() {
        let first = || Slot::Kept(placed(10));
        let last = |new| written(Some((12, 452)), new, 0);
        check(StateEdit::Truncate { length: 1024 }, 1024, &[first()]);
        check(
            StateEdit::Truncate { length: 1500 },
            1500,
            &[first(), Slot::Zeros],
        );
        let zeros = Slot::Zeros;
        let grown = [first(), zeros.clone(), last(0..0), zeros.clone()];
        check(StateEdit::Truncate { length: 3500 }, 3500, &grown);
        let hole = [
            first(),
            zeros.clone(),
            last(0..0),
            zeros,
            written(None, 4..6, 0),
        ];
        let (offset, length) = (4100, 2);
        check(StateEdit::Write { offset, length }, 4102, &hole);
        check(StateEdit::Remove, 0, &[]);
        check(
            StateEdit::Replace { length: 3 },
            3,
            &[written(None, 0..3, 0)],
        );
    }

    #[test]
    fn a_chunk_has_64_blocks_at_most() {
        let (fits, longer) = (64 * 1024, 64 * 1024 + 1);
        for (length, is_possible) in [(fits, true), (longer, false), (u32::MAX, false)] {
            let edit = StateEdit::Truncate { length };
            assert_eq!(outline(&GEOMETRY, None, edit).is_some(), is_possible);
        }
        let (offset, length) = (u32::MAX, 1);
        assert_eq!(
            outline(&GEOMETRY, None, StateEdit::Write { offset, length }),
            None
        );
    }

    #[test]
    fn a_block_is_zeros_then_old_then_new_bytes() {
        let mut plan = BlockPlan {
            at: 0,
            bytes: 6,
            old: Some(OldBlock {
                at: 7,
                bytes: 3,
                checksum: checksum(b"old"),
            }),
            new: 4..5,
            from: 1,
        };
        assert_eq!(plan.fill(b"old+", b"new").unwrap(), b"old\0e\0");
        assert_eq!(plan.fill(b"odd", b"new").unwrap_err().at, 7);
        assert_eq!(plan.fill(b"ol", b"new").unwrap_err().found, 0);
        plan.bytes = 2;
        (plan.new, plan.from) = (0..0, 0);
        assert_eq!(plan.fill(b"old", b"").unwrap(), b"ol");
    }
}
