//! What a rank remembers of a group: it outlives the session, and the node's memory.

use serde::{Deserialize, Serialize};

use crate::machine::{FIRST_SEND_RECV, GroupId, OpId};

/// A group as one of its ranks remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// Its number.
    pub group: GroupId,
    /// Its ranks, ascending.
    pub ranks: Vec<u32>,
    /// Whether some of them can go on without others.
    pub replicated: bool,
    /// Of what is computed for it.
    pub priority: i8,
    /// The first operation whose outcome was not delivered to the rank.
    pub delivered: OpId,
    /// Whether the one before has closed the group.
    pub closed: bool,
    /// Whether the group has failed for good.
    pub failed: bool,
}

/// A rank that has called and left. It asks for nothing any more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departed {
    /// The first operation of the world that it has not called.
    pub delivered: OpId,
    /// Its other groups.
    pub groups: Vec<Remembered>,
}

/// A group that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RememberError {
    /// A number is used once, and the world has one.
    #[error("group {0:x} is named twice, or is that of all ranks")]
    Twice(GroupId),
    /// Not a list of ranks.
    #[error("the ranks of group {0:x} do not ascend, or are no ranks of the attempt")]
    Ranks(GroupId),
    /// The rank is none of them.
    #[error("group {group:x} is named without its rank {rank}")]
    Own {
        /// The group.
        group: GroupId,
        /// The rank.
        rank: u32,
    },
    /// Closed by nothing, or both closed and failed, or farther than there are operations.
    #[error("group {group:x} cannot have {delivered} operations that are over in its state")]
    State {
        /// The group.
        group: GroupId,
        /// How far.
        delivered: OpId,
    },
}

impl Remembered {
    /// The place of a rank in it.
    pub(super) fn check(&self, own: u32, world: u32) -> Result<u32, RememberError> {
        let (group, delivered) = (self.group, self.delivered);
        let exist = self.ranks.last().is_some_and(|last| *last < world);
        if !exist || !self.ranks.is_sorted_by(|one, next| one < next) {
            return Err(RememberError::Ranks(group));
        }
        let place = self.ranks.binary_search(&own);
        let place = place.map_err(|_absent| RememberError::Own { group, rank: own })?;
        if delivered >= FIRST_SEND_RECV || self.closed && (delivered == 0 || self.failed) {
            return Err(RememberError::State { group, delivered });
        }
        Ok(place as u32)
    }
}
