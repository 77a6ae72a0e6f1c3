//! The two trees over the nodes of a group. Owns their shape: per zone a double binary tree (no node is
//! interior in both), zones joined by one gateway pair each, so that exactly one node pair exchanges data
//! between two zones. Which bytes travel along them is decided in `schedule`.

use std::collections::VecDeque;

/// A rooted tree over all nodes of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The one node without a parent.
    pub root: usize,
    /// Parent of each node.
    pub parent: Vec<Option<usize>>,
    /// Children of each node, ascending.
    pub children: Vec<Vec<usize>>,
}

/// Both trees, and the pairs that cross between zones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoubleTree {
    /// Even chunks take the first, odd chunks the second.
    pub trees: [Tree; 2],
    /// One node pair for each zone after the first, in order of the zones' first appearance. Empty for one zone.
    pub gateways: Vec<(usize, usize)>,
    /// The zone of each node, counted in order of first appearance.
    zones: Vec<usize>,
}

/// Undirected edges: the neighbours of each node.
type Edges = Vec<Vec<usize>>;

impl DoubleTree {
    /// Builds the trees over nodes 0, 1, ...; `zones[n]` is the zone of node `n`. The same input gives the same
    /// trees everywhere, which is why nobody has to send them.
    #[must_use]
    pub fn build<Z: PartialEq>(zones: &[Z]) -> Self {
        let members = members(zones);
        let mut edges = join_zones(zones.len(), &members);
        let gateways = pick_gateways(&edges, &members);
        Self::join(&mut edges, &members, gateways)
    }

    /// Trees over some of the nodes, which ascend and are numbered anew. Where they lie in several zones, the pair
    /// that joins two of them is the one that joins these here: none when a node of that pair is missing.
    #[must_use]
    pub fn of_nodes(&self, nodes: &[usize]) -> Option<Self> {
        let zones: Vec<usize> = nodes.iter().map(|&node| self.zones[node]).collect();
        let members = members(&zones);
        let place = |node: usize| nodes.binary_search(&node).ok();
        let joins = |border: &[Vec<usize>]| {
            let (near, far) = (zones[border[0][0]], zones[border[1][0]]);
            let mut pairs = self.gateways.iter().flat_map(|&(a, b)| [(a, b), (b, a)]);
            let (a, b) = pairs.find(|&(a, b)| (self.zones[a], self.zones[b]) == (near, far))?;
            Some((place(a)?, place(b)?))
        };
        let gateways = members.windows(2).map(joins).collect::<Option<_>>()?;
        let mut edges = join_zones(nodes.len(), &members);
        Some(Self::join(&mut edges, &members, gateways))
    }

    fn join(edges: &mut [Edges; 2], members: &[Vec<usize>], gateways: Vec<(usize, usize)>) -> Self {
        for &(near, far) in &gateways {
            for tree in edges.iter_mut() {
                connect(tree, near, far);
            }
        }
        let mut zones = vec![0; edges[0].len()];
        for (zone, nodes) in members.iter().enumerate() {
            nodes.iter().for_each(|&node| zones[node] = zone);
        }
        let [first, second] = edges;
        // Where two roots are as good, the trees take different ones: the last reduction is shared.
        let trees = [
            root_tree(first, Tie::Lowest),
            root_tree(second, Tie::Highest),
        ];
        Self {
            trees,
            gateways,
            zones,
        }
    }

    /// The pair that crosses in a job over two zones.
    #[must_use]
    pub fn gateway(&self) -> Option<(usize, usize)> {
        self.gateways.first().copied()
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.trees[0].parent.len()
    }

    /// Whether two nodes are of one zone.
    #[must_use]
    pub fn share_zone(&self, one: usize, other: usize) -> bool {
        self.zones[one] == self.zones[other]
    }

    /// The next node on the way from one node to another along the edges of the first tree, which cross between zones
    /// where the gateways do.
    #[must_use]
    pub fn next_towards(&self, from: usize, to: usize) -> usize {
        let tree = &self.trees[0];
        let below = tree.toward(from, to);
        below.or(tree.parent[from]).unwrap_or(to)
    }

    /// Everybody a node exchanges frames with, ascending.
    #[must_use]
    pub fn tree_peers(&self, node: usize) -> Vec<usize> {
        let mut all: Vec<usize> = self
            .trees
            .iter()
            .flat_map(|tree| tree.tree_peers(node))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Edges of a node over both trees, which is what its network interface carries in halves of the payload.
    #[must_use]
    pub fn degree(&self, node: usize) -> usize {
        self.trees
            .iter()
            .map(|tree| tree.tree_peers(node).count())
            .sum()
    }
}

impl Tree {
    /// Parent and children of a node.
    pub fn tree_peers(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        self.parent[node]
            .into_iter()
            .chain(self.children[node].iter().copied())
    }

    /// Number of edges between the root and the deepest node.
    #[must_use]
    pub fn depth(&self) -> usize {
        (0..self.parent.len())
            .map(|node| self.path(node).count() - 1)
            .max()
            .unwrap_or(0)
    }

    /// The nodes from `node` up to the root, both included.
    pub fn path(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(node), |&at| self.parent[at])
    }

    /// The child of `ancestor` whose subtree holds `node`; `None` when none does.
    #[must_use]
    pub fn toward(&self, ancestor: usize, node: usize) -> Option<usize> {
        self.path(node)
            .find(|&at| self.parent[at] == Some(ancestor))
    }
}

/// The nodes of each zone, zones in order of first appearance.
fn members<Z: PartialEq>(zones: &[Z]) -> Vec<Vec<usize>> {
    let mut members: Vec<Vec<usize>> = Vec::new();
    for (node, zone) in zones.iter().enumerate() {
        match members
            .iter_mut()
            .find(|zone_nodes| zones[zone_nodes[0]] == *zone)
        {
            Some(zone_nodes) => zone_nodes.push(node),
            None => members.push(vec![node]),
        }
    }
    members
}

/// The two binary trees of each zone over `count` nodes.
fn join_zones(count: usize, members: &[Vec<usize>]) -> [Edges; 2] {
    let mut edges = [vec![Vec::new(); count], vec![Vec::new(); count]];
    for zone in members {
        join_zone(&mut edges, zone);
    }
    edges
}

/// Adds one zone's two binary trees. In the in-order numbering every odd position is a leaf, so the second
/// tree hands each node a position of the other parity: mirrored for an even number, shifted for an odd one.
fn join_zone(edges: &mut [Edges; 2], nodes: &[usize]) {
    let count = nodes.len();
    for position in 1..count {
        let above = in_order_parent(position, count);
        connect(&mut edges[0], nodes[position], nodes[above]);
        let second = |position: usize| match count % 2 {
            0 => nodes[count - 1 - position],
            _ => nodes[(position + 1) % count],
        };
        connect(&mut edges[1], second(position), second(above));
    }
}

/// Parent of a position other than 0 in a tree over positions `0..count` read in order. A position whose lowest
/// set bit is `b` spans the `b - 1` positions on either side; its parent clears that bit and sets the next
/// higher one, or, when that lies beyond the end, only clears it. Position 0 is the root.
fn in_order_parent(position: usize, count: usize) -> usize {
    let lowest = position & position.wrapping_neg();
    let cleared = position ^ lowest;
    let above = cleared | (lowest << 1);
    if above < count { above } else { cleared }
}

/// The pairs that join the zones in a chain: at each border the node with the fewest edges on either side (the same
/// for both trees). A zone in the middle of a chain uses two different gateways where it has two nodes.
fn pick_gateways(edges: &[Edges; 2], members: &[Vec<usize>]) -> Vec<(usize, usize)> {
    let mut used = None;
    let mut gateways = Vec::new();
    for border in members.windows(2) {
        let degree = |node: usize| edges[0][node].len() + edges[1][node].len();
        let pick = |zone: &[usize], not: Option<usize>| {
            zone.iter()
                .copied()
                .min_by_key(|&node| (Some(node) == not, degree(node), node))
        };
        let (Some(near), Some(far)) = (pick(&border[0], used), pick(&border[1], None)) else {
            continue;
        };
        gateways.push((near, far));
        used = Some(far);
    }
    gateways
}

fn connect(edges: &mut Edges, one: usize, other: usize) {
    edges[one].push(other);
    edges[other].push(one);
}

/// Which of several equally good roots to take.
#[derive(Clone, Copy)]
enum Tie {
    Lowest,
    Highest,
}

/// Roots a tree at its centre, which halves the way a chunk has to go and changes no edge.
fn root_tree(edges: &Edges, tie: Tie) -> Tree {
    let (far, _) = farthest(edges, 0);
    let (end, parent) = farthest(edges, far);
    let path: Vec<usize> = std::iter::successors(Some(end), |&at| parent[at]).collect();
    let middle = [path[(path.len() - 1) / 2], path[path.len() / 2]];
    let root = match tie {
        Tie::Lowest => middle[0].min(middle[1]),
        Tie::Highest => middle[0].max(middle[1]),
    };
    let (_, parent) = farthest(edges, root);
    let mut children = vec![Vec::new(); edges.len()];
    for (node, above) in parent.iter().enumerate() {
        if let Some(above) = *above {
            children[above].push(node);
        }
    }
    Tree {
        root,
        parent,
        children,
    }
}

/// The last node a breadth-first walk from `start` reaches, and everybody's parent on the walk.
fn farthest(edges: &Edges, start: usize) -> (usize, Vec<Option<usize>>) {
    let mut parent = vec![None; edges.len()];
    let mut queue = VecDeque::from([start]);
    let mut last = start;
    while let Some(node) = queue.pop_front() {
        last = node;
        for &next in &edges[node] {
            if next != start && parent[next].is_none() {
                parent[next] = Some(node);
                queue.push_back(next);
            }
        }
    }
    (last, parent)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Number of edges on the longest way down a binary tree of `nodes`.
    fn levels(nodes: usize) -> usize {
        (nodes + 1).next_power_of_two().trailing_zeros() as usize
    }

    fn check(zones: &[usize]) -> DoubleTree {
        let built = DoubleTree::build(zones);
        let sizes: Vec<usize> = members(zones).iter().map(Vec::len).collect();
        for tree in &built.trees {
            assert_eq!(
                tree.parent.iter().filter(|parent| parent.is_none()).count(),
                1
            );
            assert_eq!(tree.parent[tree.root], None);
            let mut seen = vec![false; zones.len()];
            let mut walk = vec![tree.root];
            while let Some(node) = walk.pop() {
                assert!(!seen[node], "node {node} has two parents");
                seen[node] = true;
                assert!(
                    tree.children[node]
                        .iter()
                        .all(|&child| tree.parent[child] == Some(node))
                );
                walk.extend(&tree.children[node]);
            }
            assert!(
                seen.iter().all(|&seen| seen),
                "a tree spans all nodes of {sizes:?}"
            );
            let bound: usize = sizes.iter().map(|&size| 2 * levels(size)).max().unwrap();
            assert!(
                tree.depth() < bound + sizes.len(),
                "{sizes:?}: depth {}",
                tree.depth()
            );
            let crossing: Vec<(usize, usize)> = (0..zones.len())
                .filter_map(|node| tree.parent[node].map(|parent| (parent, node)))
                .filter(|&(parent, node)| zones[parent] != zones[node])
                .map(|(parent, node)| (parent.min(node), parent.max(node)))
                .collect();
            let mut gateways: Vec<(usize, usize)> = built
                .gateways
                .iter()
                .map(|&(a, b)| (a.min(b), a.max(b)))
                .collect();
            gateways.sort_unstable();
            let mut sorted = crossing.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, gateways, "only gateways cross in {sizes:?}");
            let distinct = zones.iter().collect::<BTreeSet<_>>().len();
            assert_eq!(
                crossing.len(),
                distinct - 1,
                "one edge a border in {sizes:?}"
            );
        }
        let most = (0..zones.len())
            .map(|node| built.degree(node))
            .max()
            .unwrap();
        let limit = if sizes.len() <= 2 { 4 } else { 5 };
        assert!(most <= limit, "{sizes:?}: a node has {most} edges");
        built
    }

    #[test]
    fn one_zone_of_any_size_is_spanned_with_at_most_four_edges_a_node() {
        for nodes in 1..=300 {
            check(&vec![0; nodes]);
        }
        check(&vec![0; 1250]);
    }

    #[test]
    fn no_node_is_interior_in_both_trees_of_a_zone() {
        for nodes in 3..=300 {
            let mut edges = [vec![Vec::new(); nodes], vec![Vec::new(); nodes]];
            join_zone(&mut edges, &(0..nodes).collect::<Vec<_>>());
            let both = (0..nodes).filter(|&n| edges[0][n].len() > 1 && edges[1][n].len() > 1);
            assert_eq!(both.count(), 0, "{nodes} nodes");
        }
    }

    #[test]
    fn two_zones_of_any_split_are_joined_by_one_pair() {
        for nodes in 2..=200 {
            for first in 1..nodes {
                let zones: Vec<usize> = (0..nodes).map(|node| usize::from(node >= first)).collect();
                check(&zones);
            }
        }
    }

    #[test]
    fn zones_that_alternate_in_rank_order_still_cross_once() {
        check(&(0..64).map(|node| node % 2).collect::<Vec<_>>());
        check(
            &(0..61)
                .map(|node| usize::from(node % 7 == 0))
                .collect::<Vec<_>>(),
        );
    }

    #[test]
    fn more_zones_form_a_chain() {
        for sizes in [[1, 1, 1], [2, 2, 2], [5, 1, 7], [8, 8, 8], [17, 33, 9]] {
            let zones: Vec<usize> = sizes
                .iter()
                .enumerate()
                .flat_map(|(zone, &size)| vec![zone; size])
                .collect();
            assert_eq!(check(&zones).gateways.len(), 2);
        }
    }

    #[test]
    fn the_two_last_reductions_of_a_pair_are_on_different_nodes() {
        let pair = DoubleTree::build(&["a", "b"]);
        assert_eq!((pair.trees[0].root, pair.trees[1].root), (0, 1));
    }

    #[test]
    fn trees_over_some_nodes_cross_where_those_over_all_do_or_not_at_all() {
        let zones: Vec<usize> = (0..24).map(|node| usize::from(node >= 9)).collect();
        let all = check(&zones);
        let (near, far) = all.gateway().unwrap();
        let without: Vec<usize> = (0..24).filter(|&node| node != far).collect();
        assert_eq!(all.of_nodes(&without), None);
        let near_zone = all.of_nodes(&[0, 3, 4]).unwrap();
        assert_eq!(near_zone, DoubleTree::build(&[0; 3]));
        for some in 0..1 << 8 {
            let mut nodes: Vec<usize> = (0..8).filter(|bit| some >> bit & 1 == 1).collect();
            nodes.extend(
                (0..8)
                    .filter(|bit| some >> bit & 2 == 2)
                    .map(|bit| 12 + bit),
            );
            nodes.extend([near, far]);
            nodes.sort_unstable();
            nodes.dedup();
            let part = all.of_nodes(&nodes).unwrap();
            let (one, other) = part.gateway().unwrap();
            assert_eq!((nodes[one], nodes[other]), (near, far));
            for tree in &part.trees {
                let crosses = |&at: &usize| {
                    tree.parent[at].is_some_and(|up| zones[nodes[at]] != zones[nodes[up]])
                };
                assert_eq!((0..nodes.len()).filter(crosses).count(), 1);
                assert!((0..nodes.len()).all(|at| tree.path(at).last() == Some(tree.root)));
            }
        }
    }

    #[test]
    fn a_tree_knows_the_child_on_the_way_to_a_node() {
        let tree = &DoubleTree::build(&[0; 7]).trees[0];
        for node in 0..7 {
            let path: Vec<usize> = tree.path(node).collect();
            for pair in path.windows(2) {
                assert_eq!(tree.toward(pair[1], node), Some(pair[0]));
            }
            assert_eq!(tree.toward(node, node), None);
        }
    }
}
