//! Connections that have proved a key and have not said hello: one of each rank at most, so that
//! whoever knows the key of one gang holds no more than its ranks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use contract::identity::{Identity, JobId, Party};
use tokio_util::sync::CancellationToken;

/// Job, attempt and rank.
type Rank = (JobId, u32, u32);

/// Who is to say hello. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Hellos(Arc<Mutex<Pending>>);

#[derive(Debug, Default)]
struct Pending {
    next: u64,
    ranks: BTreeMap<Rank, (u64, CancellationToken)>,
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct PendingHello {
    hellos: Hellos,
    rank: Rank,
    number: u64,
    replaced: CancellationToken,
}

impl Hellos {
    /// A place for the connection of a rank, which ends the one before; none for who is no rank.
    pub(super) fn enter(&self, identity: &Identity) -> Option<PendingHello> {
        let Party::Sidecar { rank } = identity.party else {
            return None;
        };
        let rank = (identity.job, identity.attempt, rank);
        let replaced = CancellationToken::new();
        let mut pending = self.lock();
        let number = pending.next;
        pending.next += 1;
        let before = pending.ranks.insert(rank, (number, replaced.clone()));
        if let Some((_, before)) = before {
            before.cancel();
        }
        Some(PendingHello {
            hellos: self.clone(),
            rank,
            number,
            replaced,
        })
    }

    // Every change is one step, so a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingHello {
    /// Waits until the rank has connected once more.
    pub(super) async fn replaced(&self) {
        self.replaced.cancelled().await;
    }
}

impl Drop for PendingHello {
    fn drop(&mut self) {
        let mut pending = self.hellos.lock();
        let ours = |(number, _): &(u64, _)| *number == self.number;
        if pending.ranks.get(&self.rank).is_some_and(ours) {
            pending.ranks.remove(&self.rank);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_connection_of_a_rank_has_its_place() {
        let hellos = Hellos::default();
        let identity = |rank| Identity {
            job: JobId::new("u-1"),
            attempt: 1,
            party: Party::Sidecar { rank },
        };
        let first = hellos.enter(&identity(0)).unwrap();
        let other = hellos.enter(&identity(1)).unwrap();
        let second = hellos.enter(&identity(0)).unwrap();
        assert!(first.replaced.is_cancelled());
        assert!(!other.replaced.is_cancelled());
        drop((first, other));
        assert!(!second.replaced.is_cancelled());
        assert_eq!(
            hellos.lock().ranks.len(),
            1,
            "what is replaced leaves its place"
        );
        drop(second);
        assert!(hellos.lock().ranks.is_empty());
        let operator = Identity {
            party: Party::Operator,
            ..identity(0)
        };
        assert!(hellos.enter(&operator).is_none());
    }
}
