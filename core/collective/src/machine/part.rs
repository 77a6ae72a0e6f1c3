//! A group's part of the epoch: the nodes that hold its ranks, its trees over them, and how its numbers for nodes and
//! ranks become those that the shell and the links know.

use super::Config;
use crate::layout::Layout;
use crate::tree::DoubleTree;

/// Where a group lives. Its nodes and ranks have numbers of their own, counted from 0 within it.
#[derive(Debug)]
pub(super) struct Part {
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
}

impl Part {
    /// All ranks under their own numbers.
    pub(super) fn world(config: &Config) -> Self {
        Self {
            node: config.node,
            nodes: (0..config.layout.nodes()).collect(),
            locals: (0..config.layout.local(config.node)).collect(),
            ranks: Vec::new(),
            layout: config.layout.clone(),
            trees: config.trees.clone(),
        }
    }

    /// These ranks, of which this node holds some. None when they lie in zones that nobody of theirs may join.
    pub(super) fn of_ranks(config: &Config, ranks: Vec<u32>) -> Option<Self> {
        let (nodes, layout) = config.layout.of_ranks(&ranks);
        let node = nodes.binary_search(&config.node).ok()?;
        let trees = config.trees.of_nodes(&nodes)?;
        let first = config.layout.ranks(config.node).start;
        let own = layout.ranks(node);
        let own = &ranks[own.start as usize..own.end as usize];
        Some(Self {
            node,
            locals: own.iter().map(|rank| (rank - first) as usize).collect(),
            nodes,
            ranks,
            layout,
            trees,
        })
    }

    /// The number of a node of the epoch, if it holds ranks.
    pub(super) fn place(&self, node: usize) -> Option<usize> {
        self.nodes.binary_search(&node).ok()
    }

    /// The number of a rank of this node among those of the group.
    pub(super) fn local(&self, rank: usize) -> Option<usize> {
        self.locals.binary_search(&rank).ok()
    }

    /// The global number of a local rank.
    pub(super) fn global(&self, local: usize) -> u32 {
        self.name(self.layout.ranks(self.node).start + local as u32)
    }

    /// The global number of the first rank of a node.
    pub(super) fn first(&self, node: usize) -> u32 {
        self.name(self.layout.ranks(node).start)
    }

    /// The global number of a rank of the group.
    pub(super) fn name(&self, rank: u32) -> u32 {
        self.ranks.get(rank as usize).copied().unwrap_or(rank)
    }
}
