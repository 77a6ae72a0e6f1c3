//! Reads: which blocks hold a range of a chunk and which checksums they must have. A guard keeps the blocks as they are
//! while a read is under way. Leaves what the chunk is to the store.

use std::ops::Range;

use crate::edit::{BadBlock, verify};
use crate::record::State;
use crate::superblock::Geometry;
use crate::{ChunkKey, StateVersion};

/// Which state of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The committed one.
    Committed,
    /// The pending one, if it has this version.
    Pending(StateVersion),
}

/// Keeps the blocks of a read from being used again. It ends with [`crate::ChunkStore::end_read`]; one that is
/// forgotten keeps them until the store is opened again.
#[derive(Debug)]
pub struct ReadGuard {
    pub(crate) number: u64,
}

/// How a range of a chunk is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPlan {
    /// Of which chunk.
    pub id: ChunkKey,
    /// Of the state that is read.
    pub version: StateVersion,
    /// Of the chunk.
    pub length: u32,
    /// The parts of the range in their order, as far as the chunk reaches.
    pub pieces: Vec<ReadPiece>,
}

/// A part of a range that is in one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPiece {
    /// Where the block is, in bytes from the disk's start. None: all of it is zeros, and nothing is read.
    pub at: Option<u64>,
    /// How many bytes of the block are valid; all are read, for the checksum.
    pub bytes: u32,
    /// Of these.
    pub checksum: u32,
    /// Which of them are asked for.
    pub wanted: Range<u32>,
}

impl ReadPiece {
    /// The bytes that are asked for, of a block that was read, if it holds what was written.
    pub fn take<'a>(&self, block: &'a [u8]) -> Result<&'a [u8], BadBlock> {
        let at = self.at.unwrap_or_default();
        let valid = verify(block, at, self.bytes, self.checksum)?;
        Ok(&valid[self.wanted.start as usize..self.wanted.end as usize])
    }
}

/// The parts of a range, as far as the state reaches.
pub(crate) fn pieces(geometry: &Geometry, state: &State, range: Range<u32>) -> Vec<ReadPiece> {
    let first = (range.start / geometry.block_bytes) as usize;
    let blocks = state.blocks.iter().enumerate().skip(first);
    let piece = |(index, block): (usize, &Option<_>)| {
        let start = index as u32 * geometry.block_bytes;
        let bytes = geometry.valid_bytes(state.length, index);
        let clip = |at: u32| at.clamp(start, start + bytes) - start;
        let wanted = clip(range.start)..clip(range.end);
        let (at, checksum) = match *block {
            Some(crate::record::Placed { place, checksum }) => {
                (Some(geometry.block_at(place)), checksum)
            }
            None => (None, 0),
        };
        (!wanted.is_empty()).then_some(ReadPiece {
            at,
            bytes,
            checksum,
            wanted,
        })
    };
    blocks.map_while(piece).collect()
}
