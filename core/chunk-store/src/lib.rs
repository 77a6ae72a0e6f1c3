//! The store of one target, a disk or a preallocated file, as a step function: which chunks it holds in which versions,
//! where their bytes lie and what their checksums are, and what has to be written so that a power cut takes nothing that
//! was acknowledged. It reads and writes nothing: a shell carries out the plans and reports back. What the versions mean
//! is the replication protocol's business. The layout of the disk is in `docs/protocol/chunk-store.md`.
//!
//! ```
//! use chunk_store::{Change, ChunkKey, StateEdit, Geometry, Superblock, StateVersion};
//!
//! let geometry = Geometry { sector_bytes: 512, block_bytes: 65_536, blocks: 1_000, segments: 8, segment_bytes: 65_536 };
//! let superblock = Superblock::new(geometry, 0x1234).unwrap();
//! let mut store = superblock.empty_store();
//! let edit = StateEdit::Write { offset: 0, length: 5 };
//! let (ticket, plans) = store.prepare(ChunkKey(1), StateVersion(1), None, edit, Vec::new()).unwrap();
//! let number = ticket.number();
//! let block = plans[0].fill(&[], b"hello").unwrap();
//! // Here a shell writes the block to `plans[0].at`.
//! store.written(ticket, &[chunk_store::checksum(&block)]).unwrap();
//! let batch = store.take_batch().unwrap();
//! // Here it writes the batch, and flushes the disk once for both.
//! let durable = store.batch_flushed(batch.sequence).unwrap();
//! assert_eq!(durable[0].change, Change::Prepared(number));
//! store.commit(ChunkKey(1), StateVersion(1)).unwrap();
//! ```

mod batch;
mod blocks;
mod edit;
mod fields;
mod journal;
mod read;
mod record;
mod recovery;
mod store;
mod superblock;

pub use edit::{BadBlock, BlockPlan, OldBlock, StateEdit};
pub use read::{ReadGuard, ReadPiece, ReadPlan, Which};
pub use recovery::{RecoveryError, RecoveryStep, RecoverySummary, StoreRecovery};
pub use store::{
    BatchDue, Change, ChunkStore, ChunkView, Durable, JournalBatch, PrepareTicket, Refused,
    StateView, StoreUsage,
};
pub use superblock::{DiskWrite, Geometry, GeometryError, Superblock, SuperblockError};

/// Blocks of the largest chunk: 64 x 64 KiB = 4 MiB.
pub const BLOCKS_PER_CHUNK: usize = 64;
/// Bytes of the notes of one state.
pub const NOTES_LIMIT_BYTES: usize = 2048;

/// Names a chunk. The store knows nothing of what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkKey(pub u128);

/// Orders the states of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateVersion(pub u128);

/// The checksum of a block's valid bytes: CRC-32C.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}
