//! Who is slow: of those whose parts of an operation meet on this node, its processes and the nodes below it, the last
//! one kept the others waiting, from when all others were there. Rank by rank that adds up to who holds a job back.

use std::collections::BTreeMap;
use std::time::Duration;

use collective::machine::OpId;

/// Operations that are watched; older ones that never end are forgotten first.
const LIMIT: usize = 256;

/// Who brings something to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    /// A local rank.
    Rank(usize),
    /// A neighbour below.
    Node(usize),
}

#[derive(Clone, Copy, Debug)]
struct Arrivals {
    came: usize,
    last: Duration,
}

/// The operations that are not complete here.
#[derive(Debug, Default)]
pub(super) struct Waits(BTreeMap<OpId, Arrivals>);

impl Waits {
    /// Somebody has come, of `expected` who each come once. When that was the last one: how long it kept the others.
    pub(super) fn came(&mut self, op: OpId, expected: usize, now: Duration) -> Option<Duration> {
        if expected < 2 {
            return None;
        }
        if self.0.len() >= LIMIT && !self.0.contains_key(&op) {
            self.0.pop_first();
        }
        let arrivals = self.0.entry(op).or_insert(Arrivals { came: 0, last: now });
        arrivals.came += 1;
        let before = std::mem::replace(&mut arrivals.last, now);
        if arrivals.came < expected {
            return None;
        }
        self.0.remove(&op);
        Some(now.saturating_sub(before))
    }

    /// A new epoch begins: parts come again.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn the_last_one_is_charged_from_the_one_before() {
        let mut waits = Waits::default();
        assert_eq!(waits.came(0, 3, at(0)), None);
        assert_eq!(waits.came(1, 3, at(1)), None);
        assert_eq!(waits.came(0, 3, at(10)), None);
        assert_eq!(waits.came(0, 3, at(35)), Some(at(25)));
        assert_eq!(waits.came(1, 1, at(40)), None, "who is alone keeps nobody");
    }

    #[test]
    fn what_never_completes_is_forgotten() {
        let mut waits = Waits::default();
        for op in 0..LIMIT as u64 + 1 {
            waits.came(op, 2, at(0));
        }
        assert_eq!(waits.0.len(), LIMIT);
        assert_eq!(waits.came(0, 2, at(5)), None, "it begins anew");
    }
}
