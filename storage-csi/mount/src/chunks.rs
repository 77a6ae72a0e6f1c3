//! The bytes of files: which pieces of which chunks a range is, and those pieces read, written and cut off in chains. Leaves
//! to `file_system` how long a file is.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use chain_link::{ChainMap, ChunkBytes};
use craq::{ChainCall, ChainCallError, ChainOutcome, ChunkId, Edit};
use futures::TryStreamExt;
use futures::stream::FuturesUnordered;
use metadata::{FileLayout, InodeNumber};
use storage_client::StorageClient;
use tokio::sync::{oneshot, watch};

/// Chunks of one call that are under way at a time.
const AT_ONCE: usize = 32;
/// Shuffles that are kept.
const MOST_ORDERS: usize = 4096;

/// Why bytes were not read or written.
#[derive(Debug, thiserror::Error)]
pub enum ChunkError {
    /// No member of a chain has room.
    #[error("failed to write a chunk: a target is full")]
    Full,
    /// This client's session is over.
    #[error("failed to reach a chain: the client has ended")]
    Ended,
    /// The layout names a list of chains without any.
    #[error("failed to find the chain of a chunk: the list {table} of chains is empty")]
    NoChains {
        /// Which.
        table: u32,
    },
    /// More is under way than can be.
    #[error("failed to call a chain: too much is under way")]
    Busy,
    /// There is no memory.
    #[error("failed to get memory for a chunk: {0}")]
    Memory(String),
}

/// A part of a range that is in one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) index: u64,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// Shuffles by table, seed and stripe.
type Orders = BTreeMap<(u32, u64, u16), Arc<Vec<u32>>>;

/// The chunks of all files.
#[derive(Debug)]
pub struct ChunkedFiles {
    client: StorageClient,
    map: watch::Sender<Arc<ChainMap>>,
    orders: Mutex<Orders>,
}

impl ChunkedFiles {
    /// Over a client.
    #[must_use]
    pub fn new(client: StorageClient) -> Self {
        Self {
            client,
            map: watch::Sender::default(),
            orders: Mutex::default(),
        }
    }

    /// The chain manager has another map.
    pub fn follow(&self, map: &Arc<ChainMap>) {
        self.client.follow(Arc::clone(map));
        self.map.send_replace(Arc::clone(map));
    }

    /// A copy of bytes in memory of the client.
    pub(crate) fn copy(&self, bytes: &[u8]) -> Result<ChunkBytes, ChunkError> {
        let copied = self.client.buffers().copy(bytes);
        copied.map_err(|error| ChunkError::Memory(error.to_string()))
    }

    /// Waits for a map that has the layout's list: a volume may be newer than what is known here.
    async fn chain(&self, layout: &FileLayout, index: u64) -> Result<u32, ChunkError> {
        let FileLayout {
            table,
            stripe,
            seed,
            ..
        } = *layout;
        let mut maps = self.map.subscribe();
        let is_known = |map: &Arc<ChainMap>| map.lists.contains_key(&table);
        // The sender is here, so it does not end.
        let known = maps
            .wait_for(is_known)
            .await
            .map_err(|_| ChunkError::Ended)?;
        let empty = ChunkError::NoChains { table };
        let Some(list) = known.lists.get(&table).filter(|list| !list.is_empty()) else {
            return Err(empty);
        };
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if orders.len() >= MOST_ORDERS {
            orders.clear();
        }
        let order = orders
            .entry((table, seed, stripe))
            .or_insert_with(|| Arc::new(layout.order(list.len() as u32)));
        let place = order.get((index % order.len().max(1) as u64) as usize);
        let chain = place.and_then(|place| list.get(*place as usize));
        chain.copied().ok_or(empty)
    }

    async fn call(
        &self,
        layout: &FileLayout,
        index: u64,
        what: ChainCall<ChunkBytes>,
    ) -> Result<Option<ChunkBytes>, ChunkError> {
        let chain = self.chain(layout, index).await?;
        let (sender, outcome) = oneshot::channel();
        self.client.call(chain, what, |outcome| {
            // Whoever waited may have gone.
            sender.send(outcome).ok();
        });
        match outcome.await {
            Ok(ChainOutcome::Edited) => Ok(None),
            Ok(ChainOutcome::Bytes(_, bytes)) => Ok(Some(bytes)),
            Ok(ChainOutcome::Failed(ChainCallError::Full)) => Err(ChunkError::Full),
            Ok(ChainOutcome::Failed(ChainCallError::TooMany)) => Err(ChunkError::Busy),
            Ok(ChainOutcome::Failed(ChainCallError::SessionEnded)) | Err(_) => {
                Err(ChunkError::Ended)
            }
        }
    }

    /// Writes one piece.
    pub(crate) async fn write(
        &self,
        inode: InodeNumber,
        layout: &FileLayout,
        piece: Piece,
        bytes: ChunkBytes,
    ) -> Result<(), ChunkError> {
        let offset = piece.offset;
        let edit = Edit::Write { offset, bytes };
        self.edit(inode, layout, piece.index, edit).await
    }

    async fn edit(
        &self,
        inode: InodeNumber,
        layout: &FileLayout,
        index: u64,
        edit: Edit<ChunkBytes>,
    ) -> Result<(), ChunkError> {
        let chunk = chunk(inode, index);
        let call = ChainCall::Edit { chunk, edit };
        self.call(layout, index, call).await.map(drop)
    }

    /// Reads one piece; fewer bytes where the chunk ends.
    pub(crate) async fn read(
        &self,
        inode: InodeNumber,
        layout: &FileLayout,
        piece: Piece,
    ) -> Result<Option<ChunkBytes>, ChunkError> {
        let call = ChainCall::Read {
            chunk: chunk(inode, piece.index),
            offset: piece.offset,
            length: piece.length,
        };
        self.call(layout, piece.index, call).await
    }

    /// Bytes of one chunk.
    async fn length(
        &self,
        inode: InodeNumber,
        layout: &FileLayout,
        index: u64,
    ) -> Result<u64, ChunkError> {
        let piece = Piece {
            index,
            offset: 0,
            length: layout.chunk_bytes,
        };
        let bytes = self.read(inode, layout, piece).await?;
        Ok(bytes.map_or(0, |bytes| bytes.len() as u64))
    }

    /// Behind the last byte that a file has between two places; the first place if there is none. Takes time: it reads chunks.
    pub async fn measure(
        &self,
        inode: InodeNumber,
        layout: &FileLayout,
        between: Range<u64>,
    ) -> Result<u64, ChunkError> {
        let chunk_bytes = u64::from(layout.chunk_bytes);
        let chunks = between.start / chunk_bytes..layout.chunks(between.end);
        for index in chunks.rev() {
            let length = self.length(inode, layout, index).await?;
            if length > 0 {
                let end = index * chunk_bytes + length;
                return Ok(end.clamp(between.start, between.end));
            }
        }
        Ok(between.start)
    }

    /// Cuts a file's bytes off behind a place.
    pub async fn cut(
        &self,
        inode: InodeNumber,
        layout: &FileLayout,
        from: u64,
        reach: u64,
    ) -> Result<(), ChunkError> {
        let first = from / u64::from(layout.chunk_bytes);
        let chunks = first..layout.chunks(reach);
        all(chunks.map(|index| self.cut_chunk(inode, layout, from, index))).await
    }

    async fn cut_chunk(
        &self,
        inode: InodeNumber,
        layout: &FileLayout,
        from: u64,
        index: u64,
    ) -> Result<(), ChunkError> {
        // Below a chunk, in the first one; then nothing.
        let length = from.saturating_sub(index * u64::from(layout.chunk_bytes)) as u32;
        let piece = Piece {
            index,
            offset: length,
            length: 1,
        };
        // A chunk that has nothing there stays as it is, or stays away.
        let behind = self.read(inode, layout, piece).await?;
        match behind.is_some_and(|bytes| !bytes.is_empty()) {
            true => {
                self.edit(inode, layout, index, Edit::Truncate { length })
                    .await
            }
            false => Ok(()),
        }
    }

    /// Removes chunks of a file that nobody uses any more.
    pub async fn remove(
        &self,
        inode: InodeNumber,
        layout: &FileLayout,
        chunks: Range<u64>,
    ) -> Result<(), ChunkError> {
        all(chunks.map(|index| self.edit(inode, layout, index, Edit::Remove))).await
    }
}

/// Carries calls out, so many at a time, until one fails.
async fn all<F>(mut calls: impl Iterator<Item = F>) -> Result<(), ChunkError>
where
    F: Future<Output = Result<(), ChunkError>>,
{
    let mut under_way: FuturesUnordered<F> = calls.by_ref().take(AT_ONCE).collect();
    while under_way.try_next().await?.is_some() {
        under_way.extend(calls.next());
    }
    Ok(())
}

fn chunk(inode: InodeNumber, index: u64) -> ChunkId {
    ChunkId {
        file: inode.0,
        index,
    }
}

/// The pieces of a range of a file.
pub(crate) fn pieces(layout: &FileLayout, offset: u64, length: u64) -> Vec<Piece> {
    let chunk_bytes = u64::from(layout.chunk_bytes);
    let end = offset + length;
    let mut pieces = Vec::new();
    let mut at = offset;
    while at < end {
        let index = at / chunk_bytes;
        let next = end.min((index + 1) * chunk_bytes);
        // Both are below a chunk.
        pieces.push(Piece {
            index,
            offset: (at % chunk_bytes) as u32,
            length: (next - at) as u32,
        });
        at = next;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_divided_where_chunks_end() {
        let layout = FileLayout {
            table: 1,
            chunk_bytes: 100,
            stripe: 1,
            seed: 0,
        };
        let of = |offset, length| {
            let pieces = pieces(&layout, offset, length);
            pieces
                .into_iter()
                .map(|p| (p.index, p.offset, p.length))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(250, 0), []);
        assert_eq!(of(250, 50), [(2, 50, 50)]);
        assert_eq!(of(250, 151), [(2, 50, 50), (3, 0, 100), (4, 0, 1)]);
    }
}
