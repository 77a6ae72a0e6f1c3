//! Why a collective failed, in words that name who has to be looked at. The same value reaches every rank.

use crate::op::Call;
use serde::{Deserialize, Serialize};

/// What one rank called as the operation in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("rank {rank} called {call}")]
pub struct Claim {
    /// Global rank.
    pub rank: u32,
    /// Its call.
    pub call: Call,
}

/// Two ranks made different calls. The group is usable afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("ranks disagree: {one}, {other}")]
pub struct Mismatch {
    /// One side.
    pub one: Claim,
    /// The other side.
    pub other: Claim,
}

/// Why a node cannot carry out a call.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    thiserror::Error,
    Serialize,
    Deserialize,
)]
pub enum Reason {
    /// [`crate::CallError::Root`].
    #[error("its root is not a rank of the group")]
    Root,
    /// [`crate::CallError::Size`].
    #[error("its result is larger than any result may be")]
    Size,
    /// [`crate::CallError::Factor`].
    #[error("its elements are integers, and its factor multiplies floats only")]
    Factor,
    /// [`crate::CallError::Bits`].
    #[error("its elements are floats, and its operator combines the bits of integers only")]
    Bits,
    /// [`crate::CallError::Parts`].
    #[error("its elements cannot be shared out evenly to the ranks of the group")]
    Parts,
    /// The rank brought no input, or one that is not where it says.
    #[error("its input does not lie in a segment for inputs")]
    Input,
    /// The node may never use as much memory as the result needs.
    #[error(
        "its result does not fit into the memory that its node may use for results: \
         call it in smaller pieces or raise that limit"
    )]
    Limit,
    /// The node's kernel has no memory for the result.
    #[error("its node has no memory for the result")]
    Memory,
    /// The root has left the group.
    #[error("its root was lost")]
    RootLost,
    /// The result has a place for every rank, and some have left the group.
    #[error("every rank of the group is needed for it and some were lost")]
    RanksLost,
    /// An all-to-all has not one part for each rank, or more than its input holds.
    #[error("its parts are not one for each rank of the group, or more than its input")]
    Splits,
    /// A message that the other rank has not called for when the group was closed.
    #[error("its group was closed before the other rank called")]
    Closed,
    /// A message for a rank that has left in good order and did not call for it.
    #[error("the rank that it is for has left")]
    Left,
    /// More streams of messages than a node counts.
    #[error("the ranks of its node use too many different tags: use them again")]
    Tags,
    /// Some have left a group whose ranks do not do the same work.
    #[error("ranks of the group were lost and it cannot go on without them")]
    NotReplicated,
}

/// A rank's call that its node cannot carry out. It keeps its place in the order of operations and fails on
/// every rank, so that the calls behind it still meet those of the other ranks. The group is usable afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{claim}, which cannot run: {reason}")]
pub struct CallRefusal {
    /// Whose call.
    pub claim: Claim,
    /// Why.
    pub reason: Reason,
}

/// Why one operation fails on every rank while the group goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Verdict {
    /// Two ranks made different calls.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// One rank's call cannot be carried out.
    #[error(transparent)]
    Refusal(#[from] CallRefusal),
}

/// What ended the epoch: every operation in flight and every later one fails with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The link to a node closed before the node had left in good order.
    #[error("node {node} was lost (seen by node {by})")]
    NodeLost { node: usize, by: usize },
    /// No frame came from a node for [`super::Timing::lost`].
    #[error("node {node} fell silent (seen by node {by})")]
    NodeSilent { node: usize, by: usize },
    /// A node left while others still needed it.
    #[error("node {node} left while operation {op} needed it (seen by node {by})")]
    NodeLeft { node: usize, by: usize, op: u64 },
    /// A process of the trainer died.
    #[error("rank {rank} on node {by} died")]
    RankLost { rank: u32, by: usize },
    /// A process of the trainer closed its session while others still needed it.
    #[error("rank {rank} on node {by} left while operation {op} needed it")]
    RankLeft { rank: u32, by: usize, op: u64 },
    /// A node sent what the protocol does not allow: a bug or a foreign version, never data to trust.
    #[error("node {node} broke the protocol: {violation} (seen by node {by})")]
    Protocol {
        node: usize,
        by: usize,
        violation: ProtocolViolation,
    },
    /// The membership authority ended this epoch.
    #[error("the epoch was revoked")]
    Revoked,
}

impl Broken {
    /// The same with other numbers for the nodes.
    #[must_use]
    pub fn renumbered(self, number: impl Fn(usize) -> usize) -> Self {
        match self {
            Self::NodeLost { node, by } => Self::NodeLost {
                node: number(node),
                by: number(by),
            },
            Self::NodeSilent { node, by } => Self::NodeSilent {
                node: number(node),
                by: number(by),
            },
            Self::NodeLeft { node, by, op } => Self::NodeLeft {
                node: number(node),
                by: number(by),
                op,
            },
            Self::RankLost { rank, by } => Self::RankLost {
                rank,
                by: number(by),
            },
            Self::RankLeft { rank, by, op } => Self::RankLeft {
                rank,
                by: number(by),
                op,
            },
            Self::Protocol {
                node,
                by,
                violation,
            } => Self::Protocol {
                node: number(node),
                by: number(by),
                violation,
            },
            Self::Revoked => Self::Revoked,
        }
    }

    /// The node to look at.
    #[must_use]
    pub const fn node(&self) -> Option<usize> {
        match *self {
            Self::NodeLost { node, .. }
            | Self::NodeSilent { node, .. }
            | Self::NodeLeft { node, .. }
            | Self::Protocol { node, .. } => Some(node),
            Self::RankLost { by, .. } | Self::RankLeft { by, .. } => Some(by),
            Self::Revoked => None,
        }
    }
}

/// What a frame did wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolViolation {
    /// The sender is not a neighbour in the direction of the frame.
    #[error("frame from a node that is no such neighbour")]
    Direction,
    /// The slot does not exist, is still taken, or was not in use.
    #[error("frame for a slot it may not use")]
    Slot,
    /// The chunk does not exist, came before, or has another length.
    #[error("frame for a chunk that is not expected")]
    Chunk,
    /// The operation is further ahead than this node allows.
    #[error("frame for an operation too far ahead")]
    Operation,
    /// There is no such group.
    #[error("frame for a group that does not exist")]
    Group,
    /// No message between these ranks, or more of them than there may be.
    #[error("frame for a message that cannot be")]
    Message,
    /// There are two trees, and what is passed on counts as a third.
    #[error("frame for a tree that does not exist")]
    Tree,
}

/// Why an operation failed on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// This operation only; the next one runs.
    #[error(transparent)]
    Verdict(#[from] Verdict),
    /// The whole epoch.
    #[error(transparent)]
    Broken(#[from] Broken),
}
