//! What the members that have stopped say: how far each is, and whom they reach. Counts who is reached by somebody, and
//! who was asked by somebody in vain, so that what one report changes does not cost a look at all others.

use std::collections::BTreeMap;

use super::survivors::Reach;
use crate::recovery::EpochReport;

/// What a stopped member has said.
#[derive(Clone, Debug)]
pub(super) struct Stopped {
    pub(super) report: EpochReport,
    pub(super) reach: Reach,
}

/// By rank, for the epoch at hand.
#[derive(Clone, Debug, Default)]
pub(super) struct Reports {
    stopped: BTreeMap<u32, Stopped>,
    /// How many have reached a rank.
    reached: BTreeMap<u32, usize>,
    /// How many have asked a rank in vain.
    unreached: BTreeMap<u32, usize>,
}

impl Reports {
    pub(super) fn len(&self) -> usize {
        self.stopped.len()
    }

    pub(super) fn contains(&self, rank: u32) -> bool {
        self.stopped.contains_key(&rank)
    }

    pub(super) fn get(&self, rank: u32) -> Option<&Stopped> {
        self.stopped.get(&rank)
    }

    /// A report replaces the one before of the same rank.
    pub(super) fn insert(&mut self, rank: u32, stopped: Stopped) {
        self.remove(rank);
        for &other in &stopped.reach.reached {
            *self.reached.entry(other).or_default() += 1;
        }
        for &other in &stopped.reach.unreached {
            *self.unreached.entry(other).or_default() += 1;
        }
        self.stopped.insert(rank, stopped);
    }

    pub(super) fn remove(&mut self, rank: u32) {
        let Some(Stopped { reach, .. }) = self.stopped.remove(&rank) else {
            return;
        };
        let forget = |counts: &mut BTreeMap<u32, usize>, other: u32| {
            if let Some(count) = counts.get_mut(&other) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&other);
                }
            }
        };
        for other in reach.reached {
            forget(&mut self.reached, other);
        }
        for other in reach.unreached {
            forget(&mut self.unreached, other);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether a rank was asked in vain, and nobody has reached it.
    pub(super) fn nobody_reaches(&self, rank: u32) -> bool {
        self.unreached.contains_key(&rank) && !self.reached.contains_key(&rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_nobody_reaches_follows_from_the_last_report_of_each() {
        let stopped = |reached: &[u32], unreached: &[u32]| Stopped {
            report: EpochReport::new(),
            reach: Reach {
                reached: reached.iter().copied().collect(),
                unreached: unreached.iter().copied().collect(),
            },
        };
        let mut reports = Reports::default();
        assert!(!reports.nobody_reaches(2), "nobody has asked");
        reports.insert(0, stopped(&[1], &[2]));
        assert!(reports.nobody_reaches(2));
        reports.insert(1, stopped(&[0, 2], &[]));
        assert!(!reports.nobody_reaches(2), "one has reached it");
        reports.insert(1, stopped(&[0], &[2]));
        assert!(reports.nobody_reaches(2));
        reports.remove(0);
        reports.insert(1, stopped(&[0], &[]));
        assert!(!reports.nobody_reaches(2), "nobody says so any more");
        reports.clear();
        assert_eq!((reports.len(), reports.contains(1)), (0, false));
    }
}
