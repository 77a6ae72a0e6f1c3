//! What the service needs of those who keep bytes and sessions.

use std::collections::BTreeSet;
use std::ops::Range;

use metadata::{FileLayout, InodeNumber, MountId, Trim};

/// Why chunks or sessions could not be reached. It is tried again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ChunksError(pub String);

/// The chunks of files, on their chains. Each call returns when it is done on all members.
#[tonic::async_trait]
pub trait FileChunks: Send + Sync + 'static {
    /// Removes chunks of a file that nobody can write any more. Those that are absent are removed already.
    async fn remove(
        &self,
        inode: InodeNumber,
        layout: FileLayout,
        chunks: Range<u64>,
    ) -> Result<(), ChunksError>;

    /// Cuts off what is behind the new end: shortens that chunk and empties those behind it. Chunks do not come to be by
    /// that.
    async fn trim(&self, inode: InodeNumber, trim: Trim) -> Result<(), ChunksError>;

    /// Behind the last byte in the chunks that have one of these bytes; their beginning, if they have none.
    async fn length(
        &self,
        inode: InodeNumber,
        layout: FileLayout,
        bytes: Range<u64>,
    ) -> Result<u64, ChunksError>;
}

/// Who uses the file system.
#[tonic::async_trait]
pub trait LiveMounts: Send + Sync + 'static {
    /// All mounts whose sessions are open. One that was opened before this was called and is not among them is gone for
    /// ever.
    async fn live(&self) -> Result<BTreeSet<MountId>, ChunksError>;
}
