//! A network between numbered places: how long a message takes, whether it arrives, and in which order.
//! Decides only when; the messages stay in the simulation's own queue.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use crate::rng::Rng;

/// The longest way of a slow message: 200 ms, the least that TCP waits before it sends again.
pub const TAIL_NS: u64 = 200_000_000;

/// How the network treats messages.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Nanoseconds on the way, drawn anew for each message.
    pub delay_ns: Range<u64>,
    /// Of 1000 messages, how many take longer: up to [`TAIL_NS`].
    pub slow_per_mille: u64,
    /// Of 1000 messages, how many are lost.
    pub lost_per_mille: u64,
    /// Of 1000 messages, how many arrive twice.
    pub doubled_per_mille: u64,
    /// Whether messages of one directed link keep their order, as on a TCP connection.
    pub ordered: bool,
}

impl Conditions {
    /// Ordered and reliable, with a random delay of up to 1 ms: a TCP connection in one machine room.
    #[must_use]
    pub fn reliable() -> Self {
        Self {
            delay_ns: 1_000..1_000_000,
            slow_per_mille: 0,
            lost_per_mille: 0,
            doubled_per_mille: 0,
            ordered: true,
        }
    }
}

/// The state of all links.
#[derive(Clone, Debug)]
pub struct Network {
    rng: Rng,
    conditions: Conditions,
    /// Directed links that carry nothing.
    cut: BTreeSet<(usize, usize)>,
    /// When the last message of an ordered link arrives.
    last: BTreeMap<(usize, usize), Duration>,
}

impl Network {
    /// A whole network.
    #[must_use]
    pub fn new(rng: Rng, conditions: Conditions) -> Self {
        Self {
            rng,
            conditions,
            cut: BTreeSet::new(),
            last: BTreeMap::new(),
        }
    }

    /// When a message sent now arrives: never, once, or twice.
    pub fn deliver(
        &mut self,
        now: Duration,
        from: usize,
        to: usize,
    ) -> impl Iterator<Item = Duration> + use<> {
        let lost = self.rng.chance(self.conditions.lost_per_mille, 1000);
        let arrives = !lost && !self.cut.contains(&(from, to));
        let doubled = arrives && self.rng.chance(self.conditions.doubled_per_mille, 1000);
        let first = arrives.then(|| self.arrival(now, from, to));
        let second = doubled.then(|| self.arrival(now, from, to));
        first.into_iter().chain(second)
    }

    fn arrival(&mut self, now: Duration, from: usize, to: usize) -> Duration {
        let mut delay_ns = self.conditions.delay_ns.clone();
        let slow = self.conditions.slow_per_mille;
        if slow > 0 && self.rng.chance(slow, 1000) {
            delay_ns.end = delay_ns.end.max(TAIL_NS);
        }
        let arrival = now + Duration::from_nanos(self.rng.range(delay_ns));
        if !self.conditions.ordered {
            return arrival;
        }
        let last = self.last.entry((from, to)).or_default();
        *last = arrival.max(*last);
        *last
    }

    /// Stops both directions between two places.
    pub fn cut(&mut self, one: usize, other: usize) {
        self.cut.extend([(one, other), (other, one)]);
    }

    /// Stops everything between a set of places and the others.
    pub fn partition(&mut self, island: &BTreeSet<usize>, places: usize) {
        for &inside in island {
            for outside in (0..places).filter(|place| !island.contains(place)) {
                self.cut(inside, outside);
            }
        }
    }

    /// Whether nothing passes between two places.
    #[must_use]
    pub fn is_cut(&self, one: usize, other: usize) -> bool {
        self.cut.contains(&(one, other))
    }

    /// Lets everything through again. Returns between which places nothing passed, each pair once.
    pub fn heal(&mut self) -> Vec<(usize, usize)> {
        let cut = std::mem::take(&mut self.cut).into_iter();
        cut.filter(|(one, other)| one < other).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordered_link_never_overtakes_itself() {
        let mut network = Network::new(Rng::new(3), Conditions::reliable());
        let mut before = Duration::ZERO;
        for sent in 0..1000 {
            let sent = Duration::from_nanos(sent);
            let arrival = network.deliver(sent, 0, 1).next().unwrap();
            assert!(arrival >= before);
            before = arrival;
        }
    }

    #[test]
    fn a_partition_stops_what_crosses_it_and_nothing_else() {
        let mut network = Network::new(Rng::new(3), Conditions::reliable());
        network.partition(&BTreeSet::from([0, 1]), 4);
        let arrives = |network: &mut Network, from, to| {
            network.deliver(Duration::ZERO, from, to).next().is_some()
        };
        assert!(arrives(&mut network, 0, 1) && arrives(&mut network, 2, 3));
        assert!(!arrives(&mut network, 1, 2) && !arrives(&mut network, 2, 1));
        let healed = [(0, 2), (0, 3), (1, 2), (1, 3)];
        assert_eq!(network.heal(), healed);
        assert!(arrives(&mut network, 1, 2));
    }

    #[test]
    fn slow_messages_are_as_many_as_asked_and_within_the_limit() {
        let conditions = Conditions {
            slow_per_mille: 100,
            ordered: false,
            ..Conditions::reliable()
        };
        let usual = Duration::from_nanos(conditions.delay_ns.end);
        let mut network = Network::new(Rng::new(5), conditions);
        let arrivals = (0..10_000).flat_map(|_| network.deliver(Duration::ZERO, 0, 1));
        let slow: Vec<Duration> = arrivals.filter(|&arrival| arrival >= usual).collect();
        assert!((900..1100).contains(&slow.len()), "{}", slow.len());
        let longest = slow.into_iter().max().unwrap();
        let limit = Duration::from_nanos(TAIL_NS);
        assert!(limit * 9 / 10 < longest && longest < limit, "{longest:?}");
    }

    #[test]
    fn loss_and_doubling_happen_about_as_often_as_asked() {
        let conditions = Conditions {
            lost_per_mille: 100,
            doubled_per_mille: 300,
            ..Conditions::reliable()
        };
        let mut network = Network::new(Rng::new(9), conditions);
        let mut copies = [0u32; 3];
        for _ in 0..10_000 {
            copies[network.deliver(Duration::ZERO, 0, 1).count()] += 1;
        }
        assert!((900..1100).contains(&copies[0]), "{copies:?}");
        assert!((2500..2900).contains(&copies[2]), "{copies:?}");
    }
}
