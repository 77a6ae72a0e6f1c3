//! A link that carries frames of chains, with their bytes in buffers.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use craq::encoding::{self, ChainFrame, FrameHeader};
use link::block::{Block, Denied, Reading};
use link::transport::{self, BoxedLink, Outgoing, PayloadTarget, Received};

use crate::buffers::{BufferError, Buffers, CHUNK_AT, ChunkBytes};
use crate::header::ChainHeader;

/// From so many bytes on a frame is large.
pub const LARGE_BYTES: usize = 64 << 10;

/// Why a link is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// It broke, or what came over it is no frame.
    #[error(transparent)]
    Transport(#[from] transport::Error),
    /// What came is no frame.
    #[error(transparent)]
    Frame(#[from] encoding::Error),
    /// There is no memory for a frame.
    #[error(transparent)]
    Memory(#[from] BufferError),
}

impl From<Denied> for LinkError {
    fn from(denied: Denied) -> Self {
        Self::Memory(denied.into())
    }
}

/// A frame, and which chain it is about.
#[derive(Debug)]
pub struct ReceivedFrame {
    pub chain: u64,
    /// At which version its sender has the chain.
    pub version: u64,
    /// How many bytes of a chunk are in it.
    pub bytes: usize,
    pub frame: ChainFrame<ChunkBytes>,
}

/// A link to another process.
#[derive(Debug)]
pub struct ChainLink {
    link: BoxedLink<ChainHeader>,
    buffers: Arc<Buffers>,
    /// Where the payload of a frame is read to.
    placed: Option<Arc<Block>>,
    sent: Vec<u64>,
}

impl ChainLink {
    /// Over a link that is established.
    #[must_use]
    pub fn new(link: BoxedLink<ChainHeader>, buffers: Arc<Buffers>) -> Self {
        Self {
            link,
            buffers,
            placed: None,
            sent: Vec::new(),
        }
    }

    /// Queues a frame. A large one goes at once, as far as it can: the next is made while it is received.
    pub fn send(
        &mut self,
        chain: u64,
        version: u64,
        frame: &ChainFrame<ChunkBytes>,
    ) -> Result<(), LinkError> {
        let length = |bytes: &ChunkBytes| bytes.len() as u32;
        let encoded = encoding::encode((chain, version), frame, length);
        let payload = match (encoded.list.is_empty(), encoded.bytes) {
            (true, None) => None,
            (true, Some(bytes)) if bytes.is_empty() => None,
            (true, Some(bytes)) => bytes.reading().part(0..bytes.len()),
            (false, None) => Some(self.alone(&encoded.list)?),
            (false, Some(bytes)) => Some(self.together(&encoded.list, bytes)?),
        };
        let is_large = encoded
            .bytes
            .is_some_and(|bytes| bytes.len() >= LARGE_BYTES);
        let payload = payload.map(|bytes| Outgoing { token: 0, bytes });
        self.link.push(&ChainHeader(encoded.header), payload)?;
        match is_large {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// A list.
    fn alone(&self, list: &[u8]) -> Result<Reading, LinkError> {
        let block = self.buffers.block()?;
        block.write(0..list.len())?.copy_from_slice(list);
        Ok(block.read(0..list.len())?)
    }

    /// A list and bytes of a chunk behind it: where these lie, if there is room before them that nobody reads.
    fn together(&self, list: &[u8], bytes: &ChunkBytes) -> Result<Reading, LinkError> {
        let (block, start) = bytes.reading().place();
        let before = start.checked_sub(list.len());
        let room = before.and_then(|before| Some((before, block.write(before..start).ok()?)));
        if let Some((before, mut room)) = room {
            room.copy_from_slice(list);
            drop(room);
            return Ok(block.read(before..start + bytes.len())?);
        }
        let block = self.buffers.block()?;
        let (before, end) = (CHUNK_AT - list.len(), CHUNK_AT + bytes.len());
        let mut room = block.write(before..end)?;
        room[..list.len()].copy_from_slice(list);
        room[list.len()..].copy_from_slice(bytes);
        drop(room);
        Ok(block.read(before..end)?)
    }

    /// Sends what can be sent.
    pub fn flush(&mut self) -> Result<(), LinkError> {
        self.sent.clear();
        self.link.flush(&mut self.sent)?;
        Ok(())
    }

    /// The next frame, if all of it is there.
    pub fn receive(&mut self) -> Result<Option<ReceivedFrame>, LinkError> {
        loop {
            let Self {
                link,
                buffers,
                placed,
                ..
            } = self;
            let mut place = |header: &ChainHeader| {
                let range = payload_range(&header.0);
                let block = buffers.block().map_err(|error| error.to_string())?;
                if range.end > block.len() {
                    let bytes = header.0.chunk_bytes();
                    return Err(format!(
                        "a chunk has {bytes} bytes, more than chunks have here"
                    ));
                }
                let room = block.write(range).map_err(|error| error.to_string())?;
                *placed = Some(block);
                Ok(PayloadTarget::Into(room))
            };
            match link.receive(&mut place)? {
                Received::Frame(header, _) => return self.received(header.0).map(Some),
                Received::Part => {}
                Received::Nothing => return Ok(None),
            }
        }
    }

    fn received(&mut self, header: FrameHeader) -> Result<ReceivedFrame, LinkError> {
        let nothing = self.buffers.nothing()?;
        let frame = match self.placed.take() {
            Some(block) => {
                let range = payload_range(&header);
                let list_end = range.start + header.list_bytes();
                let list = block.read(range.start..list_end)?;
                let bytes = match header.chunk_bytes() {
                    0 => nothing,
                    _ => ChunkBytes::read(&block, list_end..range.end)?,
                };
                header.frame(&list, bytes)?
            }
            None => header.frame(&[], nothing)?,
        };
        Ok(ReceivedFrame {
            chain: header.chain,
            version: header.version,
            bytes: header.chunk_bytes(),
            frame,
        })
    }

    /// Readable when there may be something to receive.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.link.socket()
    }

    /// Whether its owner should also wait until the socket can be written to.
    pub fn is_blocked(&self) -> bool {
        self.link.is_blocked()
    }

    /// Whether something was read ahead, which the socket does not signal.
    pub fn has_more(&self) -> bool {
        self.link.has_more()
    }
}

/// Where the payload of a frame lies in a block: the chunk's bytes at their place, the list before them.
fn payload_range(header: &FrameHeader) -> std::ops::Range<usize> {
    let (list, chunk) = (header.list_bytes(), header.chunk_bytes());
    match chunk {
        0 => 0..list,
        _ => CHUNK_AT.saturating_sub(list)..CHUNK_AT.saturating_sub(list) + list + chunk,
    }
}
