//! Which ranks live on which node. Owns the numbering; trees over the nodes live in `tree`.

use std::ops::Range;

/// The ranks of a group, node by node in rank order. Nodes may hold different numbers of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// `first[n]` is the first global rank of node `n`; one more entry than nodes, the last is the world size.
    first: Vec<u32>,
}

impl Layout {
    /// A group whose node `n` holds `ranks[n]` ranks. `None` without nodes, for a node without ranks,
    /// or when the ranks do not fit a `u32`.
    #[must_use]
    pub fn new(ranks: &[u32]) -> Option<Self> {
        let mut first = Vec::with_capacity(ranks.len() + 1);
        first.push(0u32);
        let mut world = 0u32;
        for &count in ranks {
            if count == 0 {
                return None;
            }
            world = world.checked_add(count)?;
            first.push(world);
        }
        (!ranks.is_empty()).then_some(Self { first })
    }

    /// A group of `nodes` nodes with `ranks` ranks each.
    #[must_use]
    pub fn uniform(nodes: usize, ranks: u32) -> Option<Self> {
        Self::new(&vec![ranks; nodes])
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.first.len() - 1
    }

    /// Number of ranks of all nodes.
    #[must_use]
    pub fn world(&self) -> u32 {
        self.first[self.nodes()]
    }

    /// Global ranks of a node.
    #[must_use]
    pub fn ranks(&self, node: usize) -> Range<u32> {
        self.first[node]..self.first[node + 1]
    }

    /// Number of ranks on a node.
    #[must_use]
    pub fn local(&self, node: usize) -> usize {
        self.ranks(node).len()
    }

    /// The node that holds a global rank, which must be below [`Layout::world`].
    #[must_use]
    pub fn node_of(&self, rank: u32) -> usize {
        self.first.partition_point(|&first| first <= rank) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unequal_nodes_number_their_ranks_in_node_order() {
        let layout = Layout::new(&[2, 1, 3]).unwrap();
        assert_eq!((layout.nodes(), layout.world()), (3, 6));
        let nodes: Vec<usize> = (0..6).map(|rank| layout.node_of(rank)).collect();
        assert_eq!(nodes, [0, 0, 1, 2, 2, 2]);
        assert_eq!(layout.ranks(2), 3..6);
    }

    #[test]
    fn a_group_without_nodes_or_with_an_empty_node_is_refused() {
        assert_eq!(Layout::new(&[]), None);
        assert_eq!(Layout::new(&[2, 0]), None);
        assert_eq!(Layout::new(&[u32::MAX, 1]), None);
    }
}
