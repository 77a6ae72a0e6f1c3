//! What clients ask, what members tell each other, and what is answered. `P` is a piece of a chunk's bytes.

use crate::records::Records;
use crate::table::{ChunkId, SessionId, Version};

/// What happens to a chunk's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit<P> {
    /// Bytes from an offset on. What lies between the end and them is zeros.
    Write { offset: u32, bytes: P },
    /// Cuts it off, or makes it longer with zeros.
    Truncate { length: u32 },
    /// Removes the chunk, with what it remembers of sessions: for files that nobody writes any more.
    Remove,
    /// All of it: how a member gets what it lacks. Clients do not ask for it.
    Replace { content: P },
}

impl<P> Edit<P> {
    /// Whether the content before matters.
    #[must_use]
    pub const fn builds_on_base(&self) -> bool {
        match self {
            Self::Write { .. } | Self::Truncate { .. } => true,
            Self::Remove | Self::Replace { .. } => false,
        }
    }
}

/// What a client asks of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainRequest<P> {
    /// Of the head.
    Write(ChunkWrite<P>),
    /// Of any member. Fewer bytes are there where the chunk ends.
    Read {
        chunk: ChunkId,
        offset: u32,
        length: u32,
    },
}

/// A write. A session has one under way for each chunk, and sends it again until it is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkWrite<P> {
    pub session: SessionId,
    /// Larger than those of all earlier writes of the session.
    pub number: u64,
    /// The session has the answers of all writes with smaller numbers, so it will not send them again.
    pub settled: u64,
    pub chunk: ChunkId,
    pub edit: Edit<P>,
}

/// What a write, or a read that was not served, is answered. A read that is served gets its bytes from the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Every member has the write on its disk.
    Done,
    Refused(ChainRefusal),
}

/// Why not. Nothing was done, and nothing will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainRefusal {
    #[error("the chain is at version {current}: get its table and ask again")]
    WrongVersion { current: u64 },
    #[error("only the head of the chain takes writes: get the chain's table and ask again")]
    NotHead,
    #[error("this member is catching up with the chain: ask another, or again")]
    NotReady,
    #[error("the session has ended, or is too new: get the chain's table")]
    NoSession,
    #[error("the session has sent a later write of the chunk, or settled this one")]
    Old,
    #[error("too much is under way: ask again later")]
    Busy,
    #[error("a member has no room left: remove something")]
    Full,
    #[error("the chunk's bytes are damaged here and are being repaired: ask another member")]
    Damaged,
}

/// A new content of a chunk on its way from head to tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update<P> {
    pub chunk: ChunkId,
    pub version: Version,
    /// The content that the edit builds on.
    pub base: Version,
    pub edit: Edit<P>,
    /// What the chunk remembers of sessions then.
    pub records: Records,
}

/// What members tell each other. Each message goes with the version of the chain, and is dropped where it is another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<P> {
    /// To everybody: this member has the table of this version now, or a new connection.
    Hello,
    /// To the successor.
    Update(Update<P>),
    /// To the predecessor: this member and all below have it on their disks.
    Done { chunk: ChunkId, version: Version },
    /// To the successor: this member has this removal on its disk.
    Forget { chunk: ChunkId, version: Version },
    /// To the predecessor: this member and all below have no trace of it.
    Refused {
        chunk: ChunkId,
        version: Version,
        why: ChainRefusal,
    },
    /// To the predecessor: the edit has nothing to build on here, so send the whole content.
    NeedsAll { chunk: ChunkId, version: Version },
    /// To the tail: what is committed? `read` comes back.
    Query { read: u64, chunk: ChunkId },
    /// From the tail.
    Committed { read: u64, version: Version },
    /// To the successor, from a member that came back: which chunks are there after this one?
    List { after: Option<ChunkId> },
    /// A part of the answer, and whether it is the last.
    Versions {
        after: Option<ChunkId>,
        versions: Vec<(ChunkId, Version)>,
        is_last: bool,
    },
    /// To a neighbour: send the content of this version, or the newest.
    Fetch {
        chunk: ChunkId,
        version: Option<Version>,
    },
    /// To the predecessor: this content never came here.
    Missing { chunk: ChunkId, version: Version },
    /// The answer; no content if the chunk is removed.
    Content {
        chunk: ChunkId,
        version: Version,
        content: Option<P>,
        records: Records,
    },
}
