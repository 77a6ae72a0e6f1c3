//! Who is in a chain, in which order, and which sessions may write: what the chain manager decides and members follow.
//! Also the names of things.

use std::collections::BTreeSet;

/// A chunk: a piece of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChunkId {
    /// The file's inode number, which is never used again.
    pub file: u64,
    /// The piece's place in the file, from 0.
    pub index: u64,
}

/// A slice of a disk that is a member of chains: its UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TargetId(pub u128);

/// A client's session. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SessionId(pub u64);

/// Version of a chunk's content. No two contents of a chunk have the same: only the head gives them, and a head begins
/// to count under a version of the chain that is its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The version of the chain then.
    pub chain: u64,
    /// How many updates the head had started before.
    pub update: u64,
}

impl Version {
    /// Of a chunk that was never written.
    pub const NONE: Self = Self {
        chain: 0,
        update: 0,
    };
    /// Later than any.
    pub(crate) const MAX: Self = Self {
        chain: u64::MAX,
        update: u64::MAX,
    };
}

/// A member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where its chunks are.
    pub target: TargetId,
    /// Which start of the target's service it is: a member that comes back over its disk is not the one before.
    pub life: u64,
}

/// The chain as the chain manager has it. Every change of the members is a new version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Larger than that of every earlier table.
    pub revision: u64,
    /// From 1.
    pub version: u64,
    /// From head to tail.
    pub members: Vec<Place>,
    /// Sessions that may write. They change without a new version.
    pub sessions: BTreeSet<SessionId>,
}
