//! Memory of frames: blocks of one size, page-aligned so that a disk reads and writes them directly, and used again. The bytes of
//! a chunk begin a page behind a block's start, so that a list fits before them.

use std::collections::VecDeque;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use link::block::{Block, Denied, Reading, Writing};
use link::segment::{self, Segment, Writers};

/// Where the bytes of a chunk begin: a page from the start, longer than a list of records.
pub(crate) const CHUNK_AT: usize = 4096;
/// Blocks that are kept for later: 64 of them, of a megabyte each by default.
const MOST_KEPT: usize = 64;
/// Blocks in use that are looked at before a new one is made.
const LOOKS: usize = 8;
/// The longest list that comes alone.
const MOST_LIST_BYTES: usize = 32 << 10;

/// Why there is no memory.
#[derive(Debug, thiserror::Error)]
pub enum BufferError {
    /// The kernel gave none.
    #[error(transparent)]
    Segment(#[from] segment::Error),
    /// Its bytes are in use: a bug of this side.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// Larger than a block.
    #[error("failed to get a buffer of {asked} bytes: chunks have {most} at most")]
    Size {
        /// What was asked for.
        asked: usize,
        /// What there is.
        most: usize,
    },
}

/// Makes blocks, and keeps some for later.
#[derive(Debug)]
pub struct Buffers {
    chunk_bytes: usize,
    blocks: Mutex<VecDeque<Arc<Block>>>,
    nothing: OnceLock<ChunkBytes>,
}

/// Bytes of a chunk in memory, that nobody changes any more.
#[derive(Clone, Debug)]
pub struct ChunkBytes(Arc<Reading>);

impl Buffers {
    /// For chunks of at most so many bytes.
    #[must_use]
    pub fn new(chunk_bytes: u32) -> Arc<Self> {
        Arc::new(Self {
            chunk_bytes: chunk_bytes as usize,
            blocks: Mutex::default(),
            nothing: OnceLock::new(),
        })
    }

    /// A copy of some bytes.
    pub fn copy(&self, bytes: &[u8]) -> Result<ChunkBytes, BufferError> {
        let mut room = self.room(bytes.len())?;
        room.copy_from_slice(bytes);
        Ok(ChunkBytes::from(room)?)
    }

    /// No bytes, which most frames have: they take no block of their own.
    pub fn nothing(&self) -> Result<ChunkBytes, BufferError> {
        if let Some(nothing) = self.nothing.get() {
            return Ok(nothing.clone());
        }
        let nothing = self.copy(&[])?;
        Ok(self.nothing.get_or_init(|| nothing).clone())
    }

    /// Room for the bytes of a chunk.
    pub fn room(&self, bytes: usize) -> Result<ChunkRoom, BufferError> {
        if bytes > self.chunk_bytes {
            let most = self.chunk_bytes;
            return Err(BufferError::Size { asked: bytes, most });
        }
        let block = self.block()?;
        let range = CHUNK_AT..CHUNK_AT + bytes;
        let writing = block.write(range.clone())?;
        Ok(ChunkRoom {
            block,
            range,
            writing,
        })
    }

    /// A block that nobody uses.
    pub(crate) fn block(&self) -> Result<Arc<Block>, BufferError> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..LOOKS.min(blocks.len()) {
            let Some(block) = blocks.pop_front() else {
                break;
            };
            let is_free = Arc::strong_count(&block) == 1;
            blocks.push_back(Arc::clone(&block));
            if is_free {
                return Ok(block);
            }
        }
        let bytes = CHUNK_AT + self.chunk_bytes.max(MOST_LIST_BYTES);
        let home = link::memory_policy::MemoryPolicy::Anywhere;
        let segment = Segment::create_untouched("chunks", bytes, Writers::Everybody, &home)?;
        let block = Block::new(segment);
        if blocks.len() < MOST_KEPT {
            blocks.push_back(Arc::clone(&block));
        }
        Ok(block)
    }
}

/// Room for the bytes of a chunk, which one writes.
#[derive(Debug)]
pub struct ChunkRoom {
    block: Arc<Block>,
    range: Range<usize>,
    writing: Writing,
}

impl Deref for ChunkRoom {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.writing
    }
}

impl std::ops::DerefMut for ChunkRoom {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.writing
    }
}

impl ChunkBytes {
    /// What was written into the room.
    pub fn from(room: ChunkRoom) -> Result<Self, Denied> {
        let ChunkRoom {
            block,
            range,
            writing,
        } = room;
        drop(writing);
        Self::read(&block, range)
    }

    pub(crate) fn read(block: &Arc<Block>, range: Range<usize>) -> Result<Self, Denied> {
        Ok(Self(Arc::new(block.read(range)?)))
    }

    pub(crate) fn reading(&self) -> &Reading {
        &self.0
    }
}

impl Deref for ChunkBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for ChunkBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
