//! One chain after the other: each target has as many slots as it lacks chains, and a chain takes a slot in each of as many
//! domains as it has replicas. Targets have numbers here.
//!
//! As many chains as possible: with `k` chains to go, a domain with `k` or more slots has to give one to each of them, and
//! any other choice leaves `k - 1` chains possible as long as the slots of the others suffice. So the domains with most
//! slots come first. Among equals those that have shared fewest chains are taken, so that the load of a lost target falls on
//! many others.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::PoolShape;

/// Targets that are equally good and compared by whom they have met: with more, a pool of thousands of targets would take
/// minutes, and these differ little.
const COMPARED: usize = 64;

/// What a target has so far.
#[derive(Clone, Debug, Default)]
struct Share {
    free: usize,
    chains: usize,
    heads: usize,
    tails: usize,
}

/// The chains that are still to be made.
#[derive(Debug)]
pub(crate) struct Draw {
    /// The targets of each domain.
    domains: Vec<Vec<usize>>,
    replicas: usize,
    shares: Vec<Share>,
    /// How many chains two targets share, the lesser first.
    shared: BTreeMap<(usize, usize), usize>,
}

impl Draw {
    pub(crate) fn new(domains: Vec<Vec<usize>>, shape: PoolShape) -> Self {
        let share = Share {
            free: shape.chains_per_target,
            ..Share::default()
        };
        let targets = domains.iter().map(Vec::len).sum();
        Self {
            shares: vec![share; targets],
            domains,
            replicas: shape.replicas,
            shared: BTreeMap::new(),
        }
    }

    /// The next chain; none where too few domains have slots.
    pub(crate) fn next(&mut self) -> Option<Vec<usize>> {
        let slots = |targets: &Vec<usize>| targets.iter().map(|at| self.shares[*at].free).sum();
        let mut open: Vec<(usize, &[usize])> = self
            .domains
            .iter()
            .map(|targets| (slots(targets), targets.as_slice()))
            .filter(|(slots, _)| *slots > 0)
            .collect();
        let mut members: Vec<usize> = Vec::with_capacity(self.replicas);
        while members.len() < self.replicas {
            let most = open.iter().map(|(slots, _)| *slots).max()?;
            let fullest = open
                .iter()
                .enumerate()
                .filter(|(_, (slots, _))| *slots == most);
            let candidates: Vec<(usize, usize)> = fullest
                .flat_map(|(at, (_, targets))| targets.iter().map(move |target| (at, *target)))
                .collect();
            let free = |(_, target): &(usize, usize)| self.shares[*target].free;
            let most_free = candidates.iter().map(free).max()?;
            let best = candidates
                .iter()
                .filter(|candidate| free(candidate) == most_free);
            let met = |(_, target): &&(usize, usize)| -> usize {
                members
                    .iter()
                    .map(|member| self.met(*member, *target))
                    .sum()
            };
            let (at, target) = *best.take(COMPARED).min_by_key(met)?;
            members.push(target);
            open.remove(at);
        }
        let chain = self.in_order(members);
        let taken: Vec<_> = chain.iter().copied().map(Some).collect();
        self.take(&taken);
        Some(chain)
    }

    /// Head and tail are those that lack most in that role by the chains that they have.
    fn in_order(&self, mut members: Vec<usize>) -> Vec<usize> {
        members.sort_unstable();
        let lacks =
            |role: usize, share: &Share| (share.chains + 1) as i64 - (role * self.replicas) as i64;
        let mut most = |lack: &dyn Fn(&Share) -> i64| {
            let at =
                (0..members.len()).min_by_key(|at| Reverse(lack(&self.shares[members[*at]])))?;
            Some(members.remove(at))
        };
        let head = most(&|share| lacks(share.heads, share));
        let tail = most(&|share| lacks(share.tails, share));
        head.into_iter().chain(members).chain(tail).collect()
    }

    /// Counts a chain. What the pool does not have is none.
    pub(crate) fn take(&mut self, chain: &[Option<usize>]) {
        for (at, target) in chain.iter().enumerate() {
            let Some(target) = *target else {
                continue;
            };
            let share = &mut self.shares[target];
            share.free = share.free.saturating_sub(1);
            share.chains += 1;
            share.heads += usize::from(at == 0);
            share.tails += usize::from(at + 1 == chain.len());
            for other in chain[at + 1..].iter().flatten() {
                *self.shared.entry(pair(target, *other)).or_default() += 1;
            }
        }
    }

    fn met(&self, one: usize, other: usize) -> usize {
        self.shared.get(&pair(one, other)).copied().unwrap_or(0)
    }
}

fn pair(one: usize, other: usize) -> (usize, usize) {
    (one.min(other), one.max(other))
}
