//! What does not change about a group while an epoch lasts: the nodes and ranks that it has, its trees over them, the sizes
//! of its memory, and how its numbers for nodes and ranks become those that the shell and the links know.

use super::cause::{Claim, ProtocolViolation, Reason};
use super::config::{Config, Recovery};
use super::io::{Buffer, Frame, GroupId, MessageId, OpId, Region, Ticket, WORLD};
use super::node::Node;
use crate::layout::Layout;
use crate::op::{Call, OpKind};
use crate::schedule::{self, Chunk, Step};
use crate::tree::DoubleTree;

/// Where a group lives. Its nodes and ranks have numbers of their own, counted from 0 within it.
#[derive(Debug)]
pub(super) struct GroupView {
    pub(super) id: GroupId,
    /// This node.
    pub(super) node: usize,
    /// The node of the epoch that each node is, ascending.
    pub(super) nodes: Vec<usize>,
    /// The rank on this node that each local rank of the group is, ascending.
    pub(super) locals: Vec<usize>,
    /// The global number of each rank; empty where ranks go by these anyway.
    ranks: Vec<u32>,
    pub(super) layout: Layout,
    pub(super) trees: DoubleTree,
    pub(super) chunk_bytes: u32,
    pub(super) slots: u8,
    pub(super) window: u8,
    /// What survives a loss, for the ranks of this group.
    pub(super) recovery: Recovery,
}

impl GroupView {
    /// All ranks under their own numbers.
    pub(super) fn world(config: &Config) -> Self {
        Self {
            id: WORLD,
            node: config.node,
            nodes: (0..config.layout.nodes()).collect(),
            locals: (0..config.layout.local(config.node)).collect(),
            ranks: Vec::new(),
            layout: config.layout.clone(),
            trees: config.trees.clone(),
            chunk_bytes: config.chunk_bytes,
            slots: config.slots,
            window: config.window,
            recovery: config.recovery,
        }
    }

    /// These ranks, of which this node holds some. None when they lie in zones that nobody of theirs may join.
    pub(super) fn of_ranks(
        config: &Config,
        id: GroupId,
        ranks: Vec<u32>,
        replicated: bool,
    ) -> Option<Self> {
        let (nodes, layout) = config.layout.of_ranks(&ranks);
        let node = nodes.binary_search(&config.node).ok()?;
        let trees = config.trees.of_nodes(&nodes)?;
        let first = config.layout.ranks(config.node).start;
        let own = layout.ranks(node);
        let own = &ranks[own.start as usize..own.end as usize];
        Some(Self {
            id,
            node,
            locals: own.iter().map(|rank| (rank - first) as usize).collect(),
            nodes,
            ranks,
            layout,
            trees,
            chunk_bytes: config.chunk_bytes,
            slots: config.slots,
            window: config.window,
            recovery: Recovery {
                replicated,
                ..config.recovery
            },
        })
    }

    /// The number of a node of the epoch, if it holds ranks.
    pub(super) fn index_of(&self, node: usize) -> Option<usize> {
        self.nodes.binary_search(&node).ok()
    }

    /// The number of a rank of this node among those of the group.
    pub(super) fn local(&self, rank: usize) -> Option<usize> {
        self.locals.binary_search(&rank).ok()
    }

    /// The number in the group of a local rank.
    pub(super) fn rank(&self, local: usize) -> u32 {
        self.layout.ranks(self.node).start + local as u32
    }

    /// The global number of a local rank.
    pub(super) fn global(&self, local: usize) -> u32 {
        self.name(self.rank(local))
    }

    /// The global number of the first rank of a node.
    pub(super) fn first(&self, node: usize) -> u32 {
        self.name(self.layout.ranks(node).start)
    }

    /// The global number of a rank of the group.
    fn name(&self, rank: u32) -> u32 {
        self.ranks.get(rank as usize).copied().unwrap_or(rank)
    }

    /// What a rank of the group has called, by its global number.
    pub(super) fn claim(&self, rank: u32, call: Call) -> Claim {
        let rank = self.name(rank);
        Claim { rank, call }
    }

    /// The node that holds a rank.
    pub(super) fn home(&self, rank: u32) -> usize {
        self.layout.node_of(rank)
    }

    /// Whether a rank is in this node's zone.
    pub(super) fn is_near(&self, rank: u32) -> bool {
        self.trees.share_zone(self.node, self.home(rank))
    }

    pub(super) fn check_message(&self, message: &MessageId) -> Result<(), ProtocolViolation> {
        if self.layout.has_rank(message.from) && self.layout.has_rank(message.to) {
            Ok(())
        } else {
            Err(ProtocolViolation::Message)
        }
    }

    pub(super) fn parent(&self, tree: usize) -> Option<usize> {
        self.trees.trees[tree].parent[self.node]
    }

    /// Whether a frame may come from this node as from the parent in a tree.
    pub(super) fn check_parent(&self, peer: usize, tree: u8) -> Result<(), ProtocolViolation> {
        if tree > 1 {
            return Err(ProtocolViolation::Tree);
        }
        if self.parent(tree.into()) == Some(peer) {
            Ok(())
        } else {
            Err(ProtocolViolation::Direction)
        }
    }

    pub(super) fn children(&self, tree: usize) -> &[usize] {
        &self.trees.trees[tree].children[self.node]
    }

    /// Parent and children in a tree.
    pub(super) fn tree_peers(&self, tree: usize) -> impl Iterator<Item = usize> + '_ {
        self.trees.trees[tree].tree_peers(self.node)
    }

    /// The trees in which this node has a parent.
    pub(super) fn sends(&self) -> Vec<u8> {
        let trees = (0u8..).zip([0, 1].map(|tree| self.parent(tree)));
        let with_parent = trees.filter(|(_, parent)| parent.is_some());
        with_parent.map(|(tree, _)| tree).collect()
    }

    /// Everybody it exchanges frames with in its trees, as links know them.
    pub(super) fn peers(&self) -> impl Iterator<Item = usize> + '_ {
        let all = self.trees.tree_peers(self.node).into_iter();
        all.map(|peer| self.nodes[peer])
    }

    /// The neighbours that have messages passed on by this node.
    pub(super) fn forwards(&self) -> impl Iterator<Item = usize> + '_ {
        let passes = self.nodes.len() > 2;
        self.tree_peers(0).filter(move |_| passes)
    }

    /// This node's step for a chunk.
    pub(super) fn step(&self, chunk: &Chunk) -> Step {
        schedule::step(&self.trees.trees[chunk.tree()], chunk, self.node)
    }

    pub(super) fn send(
        &self,
        node: &mut Node,
        peer: usize,
        frame: Frame,
        payload: Option<(Ticket, Region)>,
    ) {
        node.send(self.nodes[peer], frame, payload);
    }

    /// What a local rank brought to an operation.
    pub(super) fn input(&self, op: OpId, rank: usize) -> Buffer {
        Buffer::Input {
            group: self.id,
            op,
            rank: self.locals[rank],
        }
    }

    /// What a local rank gets that nobody else gets.
    pub(super) fn own(&self, op: OpId, rank: usize) -> Buffer {
        Buffer::Own {
            group: self.id,
            op,
            rank: self.locals[rank],
        }
    }

    /// A slot that a neighbour fills.
    pub(super) fn receive(&self, peer: usize, tree: u8, slot: u8) -> Buffer {
        Buffer::Receive {
            group: self.id,
            peer: self.nodes[peer],
            tree,
            slot,
        }
    }

    /// A chunk's place in the result.
    pub(super) fn result(&self, op: OpId, chunk: &Chunk) -> Region {
        let group = self.id;
        Region {
            buffer: Buffer::Result { group, op },
            offset: chunk.offset,
            bytes: chunk.bytes,
        }
    }

    /// Why a call cannot run any more since ranks were lost.
    pub(super) fn lost_for(&self, call: &Call) -> Option<Reason> {
        if self.layout.is_whole() || call.kind == OpKind::Close {
            return None;
        }
        if !self.recovery.replicated {
            return Some(Reason::NotReplicated);
        }
        match call.kind {
            OpKind::Reduce { root, .. } | OpKind::Broadcast { root } => {
                (!self.layout.has_rank(root)).then_some(Reason::RootLost)
            }
            OpKind::Send { to: other } | OpKind::Receive { from: other } => {
                (!self.layout.has_rank(other)).then_some(Reason::RanksLost)
            }
            OpKind::AllGather
            | OpKind::ReduceScatter { .. }
            | OpKind::Gather { .. }
            | OpKind::Scatter { .. }
            | OpKind::AllToAll { .. } => Some(Reason::RanksLost),
            OpKind::AllReduce { .. } | OpKind::Barrier | OpKind::Close => None,
        }
    }
}
