//! Chooses nodes for one gang among free ones: whole, inside one zone if it fits, few leaves, ranks
//! contiguous by zone and leaf. Pure arithmetic over free nodes; who is next is not its business.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use topology::{Leaf, NodeName, Zone};

use crate::plan::PlacedNode;
use crate::snapshot::Node;

/// The free nodes of one class.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool<'a> {
    zones: BTreeMap<&'a Zone, FreeZone<'a>>,
    /// What is reserved for the blocked job at the head of the queue, once there is one.
    reserved: Option<Reserved<'a>>,
}

#[derive(Clone, Debug, Default)]
struct FreeZone<'a> {
    count: usize,
    leaves: BTreeMap<&'a Leaf, BTreeSet<&'a NodeName>>,
}

/// What the head of the queue keeps others from taking.
#[derive(Clone, Copy, Debug)]
enum Reserved<'a> {
    Nothing,
    Zone(&'a Zone),
    Everything,
}

impl<'a> Pool<'a> {
    pub(crate) fn add(&mut self, node: &'a Node) {
        let zone = self.zones.entry(&node.zone).or_default();
        let fresh = zone
            .leaves
            .entry(&node.leaf)
            .or_default()
            .insert(&node.name);
        zone.count += usize::from(fresh);
    }

    /// Takes a node out; false if it was not in.
    pub(crate) fn remove(&mut self, node: &Node) -> bool {
        let Some(zone) = self.zones.get_mut(&node.zone) else {
            return false;
        };
        let Some(leaf) = zone.leaves.get_mut(&node.leaf) else {
            return false;
        };
        let was_in = leaf.remove(&node.name);
        zone.count -= usize::from(was_in);
        was_in
    }

    /// Keeps for the head of the queue the zone in which it will fit first: the one with the most
    /// free nodes among those that are large enough at all. Nobody else takes nodes there, so the
    /// most that is free never shrinks and the head gets its turn.
    pub(crate) fn reserve_zone(&mut self, large_enough: impl Fn(&Zone) -> bool) {
        let best = self
            .zones
            .iter()
            .filter(|(zone, _)| large_enough(zone))
            .min_by_key(|(name, zone)| (Reverse(zone.count), **name));
        // If no such zone has a free node, nothing there can be taken before the next plan either.
        self.reserved = Some(best.map_or(Reserved::Nothing, |(zone, _)| Reserved::Zone(zone)));
    }

    /// Keeps everything: the head needs two zones.
    pub(crate) fn reserve_everything(&mut self) {
        self.reserved = Some(Reserved::Everything);
    }

    pub(crate) fn has_reservation(&self) -> bool {
        self.reserved.is_some()
    }

    /// Whether a zone is not kept for the head of the queue.
    pub(crate) fn is_open(&self, zone: &Zone) -> bool {
        match self.reserved {
            None | Some(Reserved::Nothing) => true,
            Some(Reserved::Zone(kept)) => zone != kept,
            Some(Reserved::Everything) => false,
        }
    }

    fn open(&self) -> impl Iterator<Item = (&'a Zone, &FreeZone<'a>)> {
        let zones = self.zones.iter().map(|(name, zone)| (*name, zone));
        zones.filter(|(name, _)| self.is_open(name))
    }

    /// Up to so many nodes of a zone, reserved or not.
    pub(crate) fn some_of(&self, zone: &Zone, count: usize) -> Vec<PlacedNode> {
        let free = self.zones.get(zone);
        free.map_or_else(Vec::new, |free| free.pick(zone, count))
    }

    /// Nodes in one zone: the zone that is left with the fewest free ones.
    pub(crate) fn in_one_zone(&self, needed: usize) -> Option<Vec<PlacedNode>> {
        let (zone, free) = self
            .open()
            .filter(|(_, zone)| zone.count >= needed)
            .min_by_key(|(name, zone)| (zone.count, *name))?;
        Some(ranked(free.pick(zone, needed)))
    }

    /// Nodes in two zones: as many as possible on one side.
    pub(crate) fn in_two_zones(&self, needed: usize) -> Option<Vec<PlacedNode>> {
        let mut zones: Vec<_> = self.open().filter(|(_, zone)| zone.count > 0).collect();
        zones.sort_by_key(|(name, zone)| (Reverse(zone.count), *name));
        let [(first, most), (second, more), ..] = zones.as_slice() else {
            return None;
        };
        if most.count + more.count < needed {
            return None;
        }
        // At least one on the other side: this is only asked when one zone does not do.
        let here = most.count.min(needed.checked_sub(1)?);
        let mut places = most.pick(first, here);
        places.extend(more.pick(second, needed - here));
        Some(ranked(places))
    }
}

impl FreeZone<'_> {
    /// Takes the smallest leaf that holds what is left to find, else the largest whole.
    fn pick(&self, zone: &Zone, needed: usize) -> Vec<PlacedNode> {
        let mut places = Vec::with_capacity(needed);
        let mut leaves: Vec<_> = self
            .leaves
            .iter()
            .filter(|(_, nodes)| !nodes.is_empty())
            .collect();
        leaves.sort_by_key(|(name, nodes)| (nodes.len(), **name));
        while places.len() < needed && !leaves.is_empty() {
            let left = needed - places.len();
            let fits = leaves.partition_point(|(_, nodes)| nodes.len() < left);
            let (leaf, nodes) = leaves.remove(fits.min(leaves.len() - 1));
            places.extend(nodes.iter().take(left).map(|node| PlacedNode {
                node: (*node).clone(),
                zone: zone.clone(),
                leaf: (*leaf).clone(),
            }));
        }
        places
    }
}

/// Rank order: by zone, then leaf, then name.
fn ranked(mut places: Vec<PlacedNode>) -> Vec<PlacedNode> {
    places.sort_by(|a, b| (&a.zone, &a.leaf, &a.node).cmp(&(&b.zone, &b.leaf, &b.node)));
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Ready;
    use crate::time::Timestamp;

    fn node(name: &str, zone: &str, leaf: &str) -> Node {
        Node {
            name: name.into(),
            class: "a100".into(),
            zone: zone.into(),
            leaf: leaf.into(),
            ready: Ready::True,
            unready_since: Timestamp::default(),
            taint: None,
            foreign_taint: None,
            quarantine: None,
            wishes: BTreeMap::new(),
            short: None,
            suspect_until: None,
        }
    }

    /// `zone/leaf/count` words.
    fn nodes(text: &str) -> Vec<Node> {
        let mut all = Vec::new();
        for word in text.split(' ') {
            let mut parts = word.split('/');
            let (zone, leaf) = (parts.next().unwrap(), parts.next().unwrap());
            for index in 0..parts.next().unwrap().parse().unwrap() {
                all.push(node(&format!("{zone}{leaf}{index}"), zone, leaf));
            }
        }
        all
    }

    fn check(
        text: &str,
        choose: impl Fn(&Pool<'_>) -> Option<Vec<PlacedNode>>,
        expected: Option<&str>,
    ) {
        let all = nodes(text);
        let mut pool = Pool::default();
        all.iter().for_each(|node| pool.add(node));
        let names = choose(&pool).map(|places| {
            places
                .iter()
                .map(|place| place.node.to_string())
                .collect::<Vec<_>>()
        });
        assert_eq!(
            names.map(|names| names.join(" ")).as_deref(),
            expected,
            "{text}"
        );
    }

    #[test]
    fn the_zone_with_the_least_to_spare_is_taken() {
        check(
            "a/x/4 b/x/3",
            |pool| pool.in_one_zone(3),
            Some("bx0 bx1 bx2"),
        );
        check(
            "a/x/3 b/x/3",
            |pool| pool.in_one_zone(3),
            Some("ax0 ax1 ax2"),
        );
    }

    #[test]
    fn no_zone_is_large_enough() {
        check("a/x/2 b/x/3", |pool| pool.in_one_zone(4), None);
    }

    #[test]
    fn the_smallest_leaf_that_fits_is_taken() {
        check(
            "a/x/4 a/y/2 a/z/3",
            |pool| pool.in_one_zone(2),
            Some("ay0 ay1"),
        );
    }

    #[test]
    fn a_gang_larger_than_a_leaf_fills_the_largest_first() {
        check(
            "a/x/2 a/y/4 a/z/3",
            |pool| pool.in_one_zone(6),
            Some("ax0 ax1 ay0 ay1 ay2 ay3"),
        );
    }

    #[test]
    fn a_crossing_gang_is_contiguous_by_zone() {
        check(
            "a/x/2 b/x/1 c/x/3",
            |pool| pool.in_two_zones(4),
            Some("ax0 cx0 cx1 cx2"),
        );
        check("a/x/2 b/x/1 c/x/3", |pool| pool.in_two_zones(6), None);
    }

    #[test]
    fn a_reservation_keeps_others_out() {
        check(
            "a/x/2 b/x/3",
            |pool| {
                let mut pool = pool.clone();
                pool.reserve_zone(|_| true);
                pool.in_one_zone(1)
            },
            Some("ax0"),
        );
    }
}
