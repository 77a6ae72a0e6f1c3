//! Which ranks live on which node. Owns the numbering; trees over the nodes live in `tree`.

use std::ops::Range;

/// The ranks of a group, node by node in rank order. Nodes may hold different numbers of ranks. When nodes have left,
/// the ranks of the others keep their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The global ranks of each node, ascending.
    nodes: Vec<Range<u32>>,
    /// Number of ranks of all nodes.
    world: u32,
    /// Number of ranks before anybody had left.
    whole: u32,
}

impl Layout {
    /// A group whose node `n` holds `ranks[n]` ranks. `None` without nodes, for a node without ranks,
    /// or when the ranks do not fit a `u32`.
    #[must_use]
    pub fn new(ranks: &[u32]) -> Option<Self> {
        let mut nodes = Vec::with_capacity(ranks.len());
        let mut world = 0u32;
        for &count in ranks {
            let end = world.checked_add(count).filter(|_| count > 0)?;
            nodes.push(world..end);
            world = end;
        }
        (!ranks.is_empty()).then_some(Self {
            nodes,
            world,
            whole: world,
        })
    }

    /// A group of `nodes` nodes with `ranks` ranks each.
    #[must_use]
    pub fn uniform(nodes: usize, ranks: u32) -> Option<Self> {
        Self::new(&vec![ranks; nodes])
    }

    /// What is left of it when only these nodes stay, which are ascending; they are numbered anew, their ranks are not.
    /// `None` when nobody or somebody else stays.
    #[must_use]
    pub fn of_members(&self, members: &[usize]) -> Option<Self> {
        let nodes: Vec<Range<u32>> = members
            .iter()
            .map(|&node| self.nodes.get(node).cloned())
            .collect::<Option<_>>()?;
        let world = nodes.iter().map(|ranks| ranks.end - ranks.start).sum();
        (!nodes.is_empty()).then_some(Self {
            nodes,
            world,
            whole: self.whole,
        })
    }

    /// The part of it that a group of these ranks takes, which ascend: the nodes that hold some, and the group's own
    /// layout over those, in which ranks are numbered anew from 0. Ranks that have left keep their numbers.
    #[must_use]
    pub fn of_ranks(&self, ranks: &[u32]) -> (Vec<usize>, Self) {
        let (mut nodes, mut held, mut world) = (Vec::new(), Vec::<Range<u32>>::new(), 0);
        for (place, &rank) in (0u32..).zip(ranks) {
            if !self.has_rank(rank) {
                continue;
            }
            let node = self.node_of(rank);
            world += 1;
            match held.last_mut().filter(|_| nodes.last() == Some(&node)) {
                Some(range) => range.end = place + 1,
                None => {
                    nodes.push(node);
                    held.push(place..place + 1);
                }
            }
        }
        let layout = Self {
            nodes: held,
            world,
            whole: ranks.len() as u32,
        };
        (nodes, layout)
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Number of ranks of all nodes.
    #[must_use]
    pub fn world(&self) -> u32 {
        self.world
    }

    /// Number of ranks before anybody had left.
    #[must_use]
    pub fn whole(&self) -> u32 {
        self.whole
    }

    /// Whether nobody has left.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.world == self.whole
    }

    /// Global ranks of a node.
    #[must_use]
    pub fn ranks(&self, node: usize) -> Range<u32> {
        self.nodes[node].clone()
    }

    /// Number of ranks on a node.
    #[must_use]
    pub fn local(&self, node: usize) -> usize {
        self.nodes[node].len()
    }

    /// Whether a global rank is here.
    #[must_use]
    pub fn has_rank(&self, rank: u32) -> bool {
        let node = self.node_of(rank);
        self.nodes
            .get(node)
            .is_some_and(|ranks| ranks.contains(&rank))
    }

    /// The node that holds a global rank, which must be here.
    #[must_use]
    pub fn node_of(&self, rank: u32) -> usize {
        self.nodes.partition_point(|ranks| ranks.end <= rank)
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
    fn ranks_keep_their_numbers_when_nodes_leave() {
        let whole = Layout::new(&[2, 1, 3]).unwrap();
        let rest = whole.of_members(&[0, 2]).unwrap();
        assert_eq!((rest.nodes(), rest.world()), (2, 5));
        assert_eq!((rest.ranks(1), rest.node_of(4)), (3..6, 1));
        assert!(whole.is_whole() && !rest.is_whole());
        assert!(rest.has_rank(1) && !rest.has_rank(2) && !rest.has_rank(6));
        assert_eq!(whole.of_members(&[0, 1, 2]).as_ref(), Some(&whole));
        assert_eq!(
            (whole.of_members(&[]), whole.of_members(&[3])),
            (None, None)
        );
    }

    #[test]
    fn a_group_of_some_ranks_has_its_own_numbers_and_keeps_them() {
        let whole = Layout::new(&[2, 1, 3]).unwrap();
        let ranks = [1, 2, 3, 5];
        let (nodes, layout) = whole.of_ranks(&ranks);
        assert_eq!((nodes, layout.world()), (vec![0, 1, 2], 4));
        assert_eq!((layout.ranks(0), layout.ranks(2)), (0..1, 2..4));
        let (nodes, layout) = whole.of_members(&[0, 2]).unwrap().of_ranks(&ranks);
        assert_eq!((nodes, layout.world()), (vec![0, 1], 3));
        assert_eq!((layout.ranks(0), layout.ranks(1)), (0..1, 2..4));
        assert!(!layout.is_whole() && layout.has_rank(3) && !layout.has_rank(1));
    }

    #[test]
    fn a_group_without_nodes_or_with_an_empty_node_is_refused() {
        assert_eq!(Layout::new(&[]), None);
        assert_eq!(Layout::new(&[2, 0]), None);
        assert_eq!(Layout::new(&[u32::MAX, 1]), None);
    }
}
