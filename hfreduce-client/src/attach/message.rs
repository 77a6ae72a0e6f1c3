//! What a process and its sidecar say over the socket: JSON, a packet each.

pub use crate::limits::GROUP_LIMIT;
use serde::{Deserialize, Serialize};

/// Version of socket, rings and entries together: the wheel in a trainer's image may be older or newer
/// than the sidecar, and a refusal names both.
pub const VERSION: u32 = 7;
/// No process has called as many operations: one in a microsecond for eight years.
pub const OPERATION_LIMIT: u64 = 1 << 48;
/// Groups in one [`SidecarAnswer::Over`].
pub const GROUPS_IN_PACKET: usize = 512;
/// Ranks in one [`ClientMessage::Ranks`].
pub const RANKS_LIMIT: usize = 1024;

/// What a process says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum ClientMessage {
    /// First: who this is.
    Attach {
        /// `VERSION` of the client.
        version: u32,
        /// Its rank on the node.
        local_rank: u32,
        /// For one that comes back to a sidecar started in place of another: its first operation of the world whose
        /// outcome was not delivered to it, counted from 0. It calls those again, in their order.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        again: Option<u64>,
        /// How many other groups it restores then, at most [`GROUP_LIMIT`].
        #[serde(default, skip_serializing_if = "is_zero")]
        groups: u32,
    },
    /// The next ranks of the group that it restores next; at most [`RANKS_LIMIT`].
    Ranks {
        /// Global ranks, which ascend from message to message.
        ranks: Vec<u32>,
    },
    /// A group of these ranks that it has opened. These two come before any segment is restored, and each is answered before
    /// the next.
    Group(RestoredGroup),
    /// A segment for inputs that an earlier sidecar has made for it. With its descriptor. Answered before the
    /// next one is restored, and before anything is called.
    #[serde(rename = "lend")]
    RestoreSegment {
        /// Its number, which it keeps.
        segment: u32,
        /// Its size.
        bytes: u64,
    },
    /// A segment for inputs is needed.
    Allocate {
        /// At least this large.
        bytes: u64,
    },
    /// A segment for inputs is not needed any more.
    Free {
        /// Its number.
        segment: u32,
    },
    /// Whom does the oldest operation of a group wait for, of those that it has called? Answered with [`SidecarAnswer::Waits`].
    Whom {
        /// The number of the group.
        group: u64,
    },
    /// Leaving on purpose.
    Detach,
}

/// What was delivered to a process in a group other than the world.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoredGroup {
    /// The number of the group.
    pub group: u64,
    /// Whether some of its ranks can go on without others.
    pub replicated: bool,
    /// Of what is computed for it.
    pub priority: i8,
    /// The first operation that was not delivered to it. It calls those again, in their order.
    #[serde(rename = "told")]
    pub delivered: u64,
    /// Whether the one before has closed the group.
    pub closed: bool,
    /// Whether the group has failed for good: what is called in it fails.
    pub failed: bool,
}

fn is_zero(groups: &u32) -> bool {
    *groups == 0
}

/// What the sidecar says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum SidecarAnswer {
    /// Attached. With two descriptors: the control segment, and the client's end of the wake descriptor.
    #[serde(rename = "welcome")]
    Attached {
        /// Size of the control segment.
        control_bytes: u64,
        /// Where this process stands in the gang.
        standing: Standing,
        /// How long to look for another sidecar when this one is gone, in seconds. 0: what it knew goes with it.
        patience_seconds: u32,
    },
    /// The members of an epoch, before any outcome of theirs is delivered.
    Members(Members),
    /// Its group is restored.
    Noted,
    /// Groups that this process has closed and need not remember any more: all was delivered to all ranks. Sent before the answer to
    /// its next opening.
    Over {
        /// Their numbers; at most [`GROUPS_IN_PACKET`].
        groups: Vec<u64>,
    },
    /// A restored segment is in use again.
    Taken {
        /// Its number.
        segment: u32,
    },
    /// A segment for inputs, to be mapped for writing. With its descriptor.
    Input {
        /// Its number.
        segment: u32,
        /// Its size.
        bytes: u64,
    },
    /// A segment for results, to be mapped for reading. With its descriptor.
    Result {
        /// Its number.
        segment: u32,
        /// Its size.
        bytes: u64,
    },
    /// A segment for results is gone; its number will not be used again.
    Gone {
        /// Its number.
        segment: u32,
    },
    /// Whom an operation waits for.
    Waits {
        /// In words; empty for nobody.
        whom: String,
    },
    /// The last request is refused.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Where a process stands in the gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Standing {
    /// The attempt.
    pub attempt: u32,
    /// The membership inside it.
    pub epoch: u64,
    /// Rank of the node.
    pub node: u32,
    /// Nodes of the gang.
    pub nodes: u32,
    /// Rank of the process on its node.
    pub local_rank: u32,
    /// Processes of its node.
    pub local_world: u32,
    /// Rank of the process.
    pub rank: u32,
    /// Processes of the gang.
    pub world: u32,
}

/// Who takes part in the operations of an epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Members {
    /// The epoch.
    pub epoch: u64,
    /// Processes on all of its nodes: what an average divides by.
    pub ranks: u32,
    /// Its nodes by their ranks in the attempt, as runs from a first to a last, ascending.
    pub runs: Vec<(u32, u32)>,
}

impl Members {
    /// The members of an epoch; `nodes` ascends, each with `local_world` processes.
    #[must_use]
    pub fn new(epoch: u64, nodes: &[u32], local_world: u32) -> Self {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for &node in nodes {
            match runs.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(node) => *last = node,
                Some(_) | None => runs.push((node, node)),
            }
        }
        let ranks = (nodes.len() as u32).saturating_mul(local_world);
        Self { epoch, ranks, runs }
    }

    /// Its nodes, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = u32> {
        self.runs.iter().flat_map(|&(first, last)| first..=last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_sent_as_runs_and_read_as_nodes() {
        let nodes = [0, 1, 2, 5, 7, 8];
        let members = Members::new(4, &nodes, 8);
        assert_eq!(members.runs, [(0, 2), (5, 5), (7, 8)]);
        assert_eq!((members.epoch, members.ranks), (4, 48));
        assert!(members.nodes().eq(nodes));
    }
}
