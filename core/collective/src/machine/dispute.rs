//! What is said when a group is opened, and why one was not: in words that name who has to be looked at. The same value
//! reaches every rank.

use serde::{Deserialize, Serialize};

use super::cause::Broken;
pub use crate::limits::MAX_GROUPS;

/// Links that a node may have.
pub const MAX_LINKS: usize = 256;

/// What a rank says of a group that it opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("rank {rank} opened it with {size} ranks (checksum {checksum:016x})")]
pub struct Opener {
    /// Global rank.
    pub rank: u32,
    /// Ranks of the group, those that were lost included.
    pub size: u32,
    /// Of these ranks in their order, and of whether they are replicated.
    pub checksum: u64,
}

/// The same on its way, with what its node adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Who, and with whom.
    pub opener: Opener,
    /// How many of the ranks are members of the epoch.
    pub present: u32,
    /// Why its node cannot take part.
    pub refused: Option<OpenReason>,
}

/// Why a node cannot take part in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum OpenReason {
    /// Not a list of ranks.
    #[error("its ranks must ascend, be ranks of the attempt, and hold the one that opens it")]
    Ranks,
    /// The number is in use.
    #[error("a group of this number is open already: close it first or take another number")]
    Taken,
    /// [`MAX_GROUPS`].
    #[error("its node takes part in {MAX_GROUPS} groups already: close some")]
    Groups,
    /// [`MAX_LINKS`].
    #[error("its node would need more than {MAX_LINKS} links: close some groups")]
    Links,
    /// Only the gateway pair may exchange data between two zones, and not both of its nodes hold ranks of the group.
    #[error(
        "it lies in several zones without the nodes that join them: \
         take ranks of one zone, or of the gateway nodes too"
    )]
    Gateway,
}

/// Why a group was not opened, on all its ranks alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Dispute {
    /// Two ranks mean different groups.
    #[error("ranks disagree about a group: {one}, {other}")]
    Mismatch {
        /// One side.
        one: Opener,
        /// The other side.
        other: Opener,
    },
    /// A node cannot take part.
    #[error("{opener}, which is not possible: {reason}")]
    Refused {
        /// Whose group.
        opener: Opener,
        /// Why.
        reason: OpenReason,
    },
}

/// Why a group was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// This group only.
    #[error(transparent)]
    Dispute(#[from] Dispute),
    /// The epoch is over.
    #[error(transparent)]
    Broken(#[from] Broken),
}
