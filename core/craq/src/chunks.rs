//! What a member needs of the store of its target. The store decides where bytes lie; when they are durable, the member
//! gets `Input::Durable` and `Input::Discarded`; what cannot be written is `Input::Lost`.

use crate::message::{ChainRefusal, Update};
use crate::records::Records;
use crate::table::{ChunkId, Version};

/// A chunk as the store has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkState {
    /// Version of what every member below has too; [`Version::NONE`] if there is no such content.
    pub committed: Version,
    /// Whether that content is that there is none: the chunk was removed, and not forgotten.
    pub is_removed: bool,
    /// What is prepared and not yet committed.
    pub pending: Option<PendingContent>,
    /// The committed bytes are not what was written.
    pub is_damaged: bool,
}

/// A content that is prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingContent {
    pub version: Version,
    /// It removes the chunk.
    pub is_removed: bool,
}

impl ChunkState {
    /// Of all that is here.
    #[must_use]
    pub fn newest(&self) -> Version {
        let pending = self.pending.map(|pending| pending.version);
        pending.unwrap_or_default().max(self.committed)
    }

    /// What an edit builds on. A chunk that was removed is one that never was, when members have forgotten it.
    pub(crate) fn base(&self) -> Version {
        if self.is_removed {
            Version::NONE
        } else {
            self.committed
        }
    }
}

/// The store, whose bytes are of type `P`.
pub trait Chunks<P> {
    /// A chunk that it does not know has the default.
    fn state(&self, chunk: ChunkId) -> ChunkState;

    /// What the content of this version remembers of sessions; nothing if there is no such content.
    fn records(&self, chunk: ChunkId, version: Version) -> Records;

    /// Makes a content beside the committed one, in the place of another that is pending. A refused one leaves no trace.
    /// A store that is full still has room for `Edit::Replace` and `Edit::Remove`.
    fn prepare(&mut self, update: &Update<P>) -> Result<(), ChainRefusal>;

    /// Makes the pending content the committed one. It need not be durable: a member that comes back asks again.
    fn commit(&mut self, chunk: ChunkId, version: Version);

    /// Drops the pending content.
    fn discard(&mut self, chunk: ChunkId, version: Version);

    /// Forgets a chunk whose removal is committed.
    fn forget(&mut self, chunk: ChunkId);

    /// Writes the committed content again, none if it is removed.
    fn repair(&mut self, chunk: ChunkId, version: Version, content: Option<P>);

    /// Chunks and their newest versions, in order, removed ones too.
    fn versions(&self, after: Option<ChunkId>, limit: usize) -> Vec<(ChunkId, Version)>;
}
