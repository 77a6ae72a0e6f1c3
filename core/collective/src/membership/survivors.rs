//! Who can go on together: the largest set of nodes that reach each other, from what each says it reached.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Whom a node has reached when it had stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// Answered.
    pub reached: BTreeSet<u32>,
    /// Were asked and have not answered.
    pub unreached: BTreeSet<u32>,
}

impl Reach {
    /// Whether a node can have asked so many.
    pub(super) fn is_sound(&self) -> bool {
        let most = MOST_ASKED as usize;
        self.reached.len() <= most && self.unreached.len() <= most
    }
}

/// So few members all ask each other, which is no more each than ten thousand ask: of larger rings two parts that are
/// joined by lost members only are too rare to care.
const ALL_ASK: usize = 29;
/// Nobody asks more, however many members there are.
pub const MOST_ASKED: u32 = 64;

/// Whom a node asks whether it is reached: those at distance 1, 2, 4, ... in either direction in the ring of members.
/// Everybody is asked by those it asks, each part of the members that is cut off notices, and ten thousand nodes ask
/// 28 each. Up to 29 members ask all.
#[must_use]
pub fn probes(members: &[u32], rank: u32) -> BTreeSet<u32> {
    let count = members.len();
    let Ok(at) = members.binary_search(&rank) else {
        return BTreeSet::new();
    };
    let next = |&distance: &usize| {
        if count <= ALL_ASK {
            Some(distance + 1)
        } else {
            distance.checked_mul(2)
        }
    };
    let distances = std::iter::successors(Some(1), next);
    let around = distances
        .take_while(|&distance| distance < count)
        .flat_map(|distance| [(at + distance) % count, (at + count - distance) % count]);
    around
        .map(|other| members[other])
        .filter(|&other| other != rank)
        .collect()
}

/// Whether two have reached each other.
fn is_mutual(reach: &BTreeMap<u32, &Reach>, one: u32, other: u32) -> bool {
    let sees = |from, to| {
        reach
            .get(&from)
            .is_some_and(|reach| reach.reached.contains(&to))
    };
    sees(one, other) && sees(other, one)
}

/// Pairs of which one has not reached the other.
fn torn(reach: &BTreeMap<u32, &Reach>, among: &BTreeSet<u32>) -> Vec<(u32, u32)> {
    let among = |rank: &u32| among.contains(rank);
    reach
        .iter()
        .filter(|(rank, _)| among(rank))
        .flat_map(|(&rank, reach)| {
            reach
                .unreached
                .iter()
                .copied()
                .filter(among)
                .map(move |other| (rank.min(other), rank.max(other)))
        })
        .collect()
}

/// Whether everybody reaches everybody that was asked.
#[must_use]
pub(super) fn is_whole(reach: &BTreeMap<u32, &Reach>) -> bool {
    let all: BTreeSet<u32> = reach.keys().copied().collect();
    torn(reach, &all).is_empty() && component(reach, &all).len() == all.len()
}

/// The largest set that reaches each other; of equal ones that with the lowest rank. Where two of it have not reached
/// each other although others lead from one to the other, the one with more such pairs stays out, then the higher.
#[must_use]
pub fn survivors(reach: &BTreeMap<u32, &Reach>) -> BTreeSet<u32> {
    let mut left: BTreeSet<u32> = reach.keys().copied().collect();
    loop {
        left = component(reach, &left);
        let mut torn = torn(reach, &left);
        torn.sort_unstable();
        torn.dedup();
        let mut count: BTreeMap<u32, usize> = BTreeMap::new();
        for (one, other) in torn {
            *count.entry(one).or_default() += 1;
            *count.entry(other).or_default() += 1;
        }
        let Some((&worst, _)) = count.iter().max_by_key(|&(&rank, &pairs)| (pairs, rank)) else {
            return left;
        };
        left.remove(&worst);
    }
}

/// The largest connected part; the first of equal ones.
fn component(reach: &BTreeMap<u32, &Reach>, among: &BTreeSet<u32>) -> BTreeSet<u32> {
    let mut rest = among.clone();
    let mut largest = BTreeSet::new();
    while let Some(first) = rest.pop_first() {
        let mut part = BTreeSet::from([first]);
        let mut open = vec![first];
        while let Some(one) = open.pop() {
            let reached = reach.get(&one).map(|one| &one.reached);
            let found: Vec<u32> = reached
                .into_iter()
                .flatten()
                .copied()
                .filter(|other| rest.contains(other) && is_mutual(reach, one, *other))
                .collect();
            for other in found {
                rest.remove(&other);
                part.insert(other);
                open.push(other);
            }
        }
        if part.len() > largest.len() {
            largest = part;
        }
    }
    largest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everybody asks along the expander; pairs for which `cut` holds do not reach each other.
    fn reach(count: u32, cut: impl Fn(u32, u32) -> bool) -> Vec<Reach> {
        let members: Vec<u32> = (0..count).collect();
        let one = |rank: u32| {
            let (unreached, reached) = probes(&members, rank)
                .into_iter()
                .partition(|&other| cut(rank.min(other), rank.max(other)));
            Reach { reached, unreached }
        };
        members.iter().map(|&rank| one(rank)).collect()
    }

    fn survive(reach: &[Reach], reported: impl Fn(u32) -> bool) -> Vec<u32> {
        let reach = (0..).zip(reach).filter(|&(rank, _)| reported(rank));
        survivors(&reach.collect()).into_iter().collect()
    }

    #[test]
    fn asking_is_mutual_and_logarithmic() {
        for count in [1, 2, 3, 5, 8, 29, 30, 100, 10_000] {
            let members: Vec<u32> = (0..count).map(|rank| rank * 3).collect();
            for &rank in &members {
                let asked = probes(&members, rank);
                assert!(asked.len() <= 28 && (count == 1 || !asked.is_empty()));
                for other in asked {
                    assert!(probes(&members, other).contains(&rank));
                }
            }
        }
    }

    #[test]
    fn the_larger_side_of_a_partition_stays_and_of_equal_sides_that_of_the_lowest_rank() {
        for count in 2..40 {
            for border in 1..count {
                let reach = reach(count, |one, other| (one < border) != (other < border));
                let expected: Vec<u32> = if border >= count - border {
                    (0..border).collect()
                } else {
                    (border..count).collect()
                };
                assert_eq!(survive(&reach, |_| true), expected, "{border} of {count}");
            }
        }
    }

    #[test]
    fn two_of_any_small_gang_stay_when_all_others_are_lost() {
        for count in 2..=ALL_ASK as u32 {
            let reach = reach(count, |_, _| false);
            for other in 1..count {
                let reported = |rank| rank == 0 || rank == other;
                assert_eq!(survive(&reach, reported), [0, other], "of {count}");
            }
        }
    }

    #[test]
    fn of_two_that_do_not_reach_each_other_one_stays() {
        let reach = reach(6, |one, other| (one, other) == (1, 2));
        assert_eq!(survive(&reach, |_| true), [0, 1, 3, 4, 5]);
    }

    #[test]
    fn who_is_reached_and_has_reached_nobody_is_not_with_the_others() {
        let reached = |reached: &[u32]| Reach {
            reached: reached.iter().copied().collect(),
            unreached: BTreeSet::new(),
        };
        // It has lost its memory, and knows of fewer members than there are.
        let reach = [reached(&[1, 2]), reached(&[0, 2]), reached(&[])];
        assert_eq!(survive(&reach, |_| true), [0, 1]);
    }

    #[test]
    fn who_reaches_nobody_stays_out_and_who_is_silent_leaves_the_others_together() {
        let lonely = reach(9, |one, other| one == 4 || other == 4);
        assert_eq!(survive(&lonely, |_| true), [0, 1, 2, 3, 5, 6, 7, 8]);
        let dead = reach(9, |one, other| one == 0 || other == 0);
        assert_eq!(survive(&dead, |rank| rank != 0), [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
