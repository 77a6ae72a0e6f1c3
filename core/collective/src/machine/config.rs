//! A machine's configuration: its place, the sizes of its memory, and how long things may take.

use std::time::Duration;

use topology::OnPeerLoss;

use super::io::{Fence, OpId};
use crate::layout::Layout;
pub use crate::limits::{MAX_IN_FLIGHT, MAX_MESSAGES};
use crate::recovery::{GroupResume, Retained, Served};
use crate::tree::DoubleTree;

/// Bytes of a chunk when nothing else is asked for: the best of 64 KiB to 1 MiB where it was measured.
pub const DEFAULT_CHUNK_BYTES: u32 = 512 * 1024;
/// Slots of a tree edge when nothing else is asked for. They have memory from their first payload on, so what a sender does
/// not fill costs nothing.
pub const DEFAULT_SLOTS: u8 = 16;
/// Slots that a sender fills at a time when nothing else is asked for: one filling, one reduced, two on the way.
pub const DEFAULT_WINDOW: u8 = 4;
/// Smallest chunk: keeps the number of chunks of the largest result within a `u32`.
pub const MIN_CHUNK_BYTES: u32 = 512;
/// Most slots of a tree edge: a bit each.
pub const MAX_SLOTS: u8 = 64;

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A frame goes to each tree peer at least this often.
    pub heartbeat: Duration,
    /// Silence after which a neighbour is a suspect. A peer that froze right after a heartbeat is named
    /// this long after it, so within 2 s with room for the way and the wake-up.
    pub suspect: Duration,
    /// Silence after which a neighbour is given up and the epoch ends.
    pub lost: Duration,
    /// Waiting after which missing local ranks are named.
    pub late: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(250),
            suspect: Duration::from_millis(1750),
            lost: Duration::from_secs(10),
            late: Duration::from_secs(1),
        }
    }
}

/// When the outcome of an operation that has succeeded is delivered to a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Handover {
    /// When the result is here. If whoever has it is lost before others do, they cannot go on without a restart.
    #[default]
    Immediate,
    /// When every node has the result: costs a frame up and one down each edge of the first tree, and their way.
    Stable,
}

/// How much of an operation survives the loss of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// When outcomes are delivered.
    pub handover: Handover,
    /// The rule for the operations in flight when a peer is lost.
    pub on_peer_loss: OnPeerLoss,
    /// Whether the ranks do the same work, so that some can go on without others.
    pub replicated: bool,
}

impl Recovery {
    /// Whether anybody waits for what watermarks say.
    pub(super) fn needs_watermarks(self) -> bool {
        self.handover == Handover::Stable || self.on_peer_loss == OnPeerLoss::Shrink
    }
}

impl Default for Recovery {
    fn default() -> Self {
        Self {
            handover: Handover::default(),
            on_peer_loss: OnPeerLoss::default(),
            replicated: true,
        }
    }
}

/// Where a group's operations of an epoch begin on one node, when it is not the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// The same on all members; holders are nodes of this epoch.
    pub resume: GroupResume,
    /// For each local rank of the group, the first operation whose outcome was not delivered to it: the one that it calls first.
    /// Nothing where it is refused, which every node needs to know.
    pub delivered: Vec<OpId>,
    /// What is final here: as it was reported.
    pub retained: Vec<Retained>,
}

impl Start {
    /// Of a group that is not opened any more; none where it may be.
    #[must_use]
    pub fn of_refused(resume: &GroupResume) -> Option<Self> {
        resume.refused.is_some().then(|| Self {
            resume: resume.clone(),
            delivered: Vec::new(),
            retained: Vec::new(),
        })
    }

    /// What was reported of one operation.
    pub(super) fn mine(&self, op: OpId) -> Option<Retained> {
        self.retained.iter().find(|held| held.op == op).copied()
    }

    /// What others serve and is final here too, although this node has not kept it: all ranks here have the outcome, or
    /// to know of it is to have it.
    pub(super) fn forgotten(&self) -> impl Iterator<Item = Retained> {
        let is_final = |one: &&Served| {
            let op = one.retained.op;
            let is_delivered = self.delivered.iter().all(|&first| first > op);
            (is_delivered || !one.spread) && self.mine(op).is_none()
        };
        let served = self.resume.served.iter().filter(is_final);
        served.map(|one| {
            // Where there are no bytes, nothing is lacking.
            let complete = one.retained.bytes == 0;
            Retained {
                complete,
                ..one.retained
            }
        })
    }
}

/// What one node needs to know to take part in an epoch.
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's rank.
    pub node: usize,
    /// All ranks of the group.
    pub layout: Layout,
    /// The trees over the nodes; the same value on every node.
    pub trees: DoubleTree,
    /// Attempt and epoch.
    pub fence: Fence,
    /// Bytes of a chunk: a multiple of 64 from [`MIN_CHUNK_BYTES`], the same on every node.
    pub chunk_bytes: u32,
    /// Slots of a tree edge, 1 to [`MAX_SLOTS`], the same on every node.
    pub slots: u8,
    /// How many of a neighbour's slots this node fills at a time, and how many payloads it has on their way to a child: what
    /// keeps its workers busy, 1 to all slots. More only leaves the processor's caches before it is sent.
    pub window: u8,
    /// Time limits.
    pub timing: Timing,
    /// What survives a loss; the same on every node.
    pub recovery: Recovery,
}

/// A configuration the machine cannot work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The trees are those of another group.
    #[error("node {node} of {nodes}, trees over {trees} nodes: these do not belong together")]
    Nodes {
        node: usize,
        nodes: usize,
        trees: usize,
    },
    /// Not a size the schedules can use.
    #[error("chunks of {0} bytes: take a multiple of 64 from {MIN_CHUNK_BYTES}")]
    Chunk(u32),
    /// Not a number of slots a bit set can hold.
    #[error("{0} slots for a tree edge: take 1 to {MAX_SLOTS}")]
    Slots(u8),
    /// Not a number of slots that there are.
    #[error("a window of {window} slots: take 1 to {slots}, the slots of a tree edge")]
    Window { window: u8, slots: u8 },
}

impl Config {
    /// Number of ranks that global numbers go up to, those that were lost included.
    pub(super) fn ranks(&self) -> u32 {
        self.layout.whole()
    }

    /// Checks what [`super::Machine::new`] relies on.
    pub fn check(&self) -> Result<(), ConfigError> {
        let (node, nodes, trees) = (self.node, self.layout.nodes(), self.trees.nodes());
        if node >= nodes || nodes != trees {
            return Err(ConfigError::Nodes { node, nodes, trees });
        }
        if self.chunk_bytes < MIN_CHUNK_BYTES || !self.chunk_bytes.is_multiple_of(64) {
            return Err(ConfigError::Chunk(self.chunk_bytes));
        }
        if self.slots == 0 || self.slots > MAX_SLOTS {
            return Err(ConfigError::Slots(self.slots));
        }
        let (window, slots) = (self.window, self.slots);
        if window == 0 || window > slots {
            return Err(ConfigError::Window { window, slots });
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn config() -> Config {
        Config {
            node: 0,
            layout: Layout::new(&[1]).unwrap(),
            trees: DoubleTree::build(&[0]),
            fence: Fence {
                attempt: 1,
                epoch: 1,
            },
            chunk_bytes: DEFAULT_CHUNK_BYTES,
            slots: DEFAULT_SLOTS,
            window: DEFAULT_WINDOW,
            timing: Timing::default(),
            recovery: Recovery::default(),
        }
    }

    #[test]
    fn a_configuration_that_cannot_work_is_refused() {
        assert_eq!(config().check(), Ok(()));
        let odd = Config {
            chunk_bytes: 1000,
            ..config()
        };
        assert_eq!(odd.check(), Err(ConfigError::Chunk(1000)));
        let none = Config {
            slots: 0,
            ..config()
        };
        assert_eq!(none.check(), Err(ConfigError::Slots(0)));
        for window in [0, DEFAULT_SLOTS + 1] {
            let own = Config { window, ..config() };
            let slots = DEFAULT_SLOTS;
            assert_eq!(own.check(), Err(ConfigError::Window { window, slots }));
        }
        let unknown_peer = Config {
            node: 1,
            ..config()
        };
        let error = ConfigError::Nodes {
            node: 1,
            nodes: 1,
            trees: 1,
        };
        assert_eq!(unknown_peer.check(), Err(error));
    }
}
