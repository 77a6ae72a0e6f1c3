//! Who suspects whom: of each rank at most so many others, because whoever knows the key of a gang may say anything.

use std::collections::BTreeMap;

use super::types::{Suspicion, SuspicionReason};
use crate::machine::MAX_LINKS;

/// Others that one rank may suspect at once: it sees those that it has links to.
pub(super) const MOST_SUSPECTS: usize = MAX_LINKS;

#[derive(Clone, Debug, Default)]
pub(super) struct Suspicions {
    /// By suspect, then by who suspects it.
    reasons: BTreeMap<(u32, u32), SuspicionReason>,
    /// How many others a rank suspects.
    of: BTreeMap<u32, usize>,
}

impl Suspicions {
    /// By suspect.
    pub(super) fn iter(&self) -> impl Iterator<Item = Suspicion> {
        let reasons = self.reasons.iter();
        reasons.map(|(&(rank, by), &reason)| Suspicion { rank, by, reason })
    }

    /// Who suspects this rank, and why.
    pub(super) fn against(&self, rank: u32) -> impl Iterator<Item = SuspicionReason> {
        let against = self.reasons.range((rank, 0)..=(rank, u32::MAX));
        against.map(|(_, &reason)| reason)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reasons.is_empty()
    }

    /// Notes a suspicion; the worst of several reasons counts. False if that changes nothing, or if there is no room.
    pub(super) fn note(&mut self, rank: u32, by: u32, reason: SuspicionReason) -> bool {
        let before = self.reasons.get(&(rank, by)).copied();
        if before.is_none() {
            let of = self.of.entry(by).or_default();
            if *of >= MOST_SUSPECTS {
                return false;
            }
            *of += 1;
        }
        let known = before.map_or(reason, |before| reason.min(before));
        self.reasons.insert((rank, by), known);
        before != Some(known)
    }

    /// Forgets a suspect that is only frozen; true if there was one.
    pub(super) fn thaw(&mut self, rank: u32, by: u32) -> bool {
        let is_frozen = self.reasons.get(&(rank, by)) == Some(&SuspicionReason::Frozen);
        if is_frozen {
            self.reasons.remove(&(rank, by));
            self.forget(by, 1);
        }
        is_frozen
    }

    /// Forgets all suspects of a rank that are only frozen; true if there was one.
    pub(super) fn thaw_all(&mut self, by: u32) -> bool {
        let before = self.reasons.len();
        self.reasons
            .retain(|&(_, of), reason| of != by || *reason != SuspicionReason::Frozen);
        let forgotten = before - self.reasons.len();
        self.forget(by, forgotten);
        forgotten > 0
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn forget(&mut self, by: u32, suspects: usize) {
        if let Some(of) = self.of.get_mut(&by) {
            *of -= suspects;
            if *of == 0 {
                self.of.remove(&by);
            }
        }
    }
}
