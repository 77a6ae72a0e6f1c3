//! Ranks that ended well while others of their gang go on. What a pod says goes with it: pods are
//! collected or deleted once they have ended, and kubelets rewrite them. So the job's status
//! remembers who has ended well, for as long as the attempt holds nodes. What it remembers counts
//! more than what a pod says later.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::gang::Wake;
use crate::job_planner::JobPlanner;
use crate::ledger::JobView;
use crate::snapshot::{Pod, PodState};
use crate::status::CompletedRanks;

/// Ends that come so close to each other are recorded together, and a gang that ends as a whole
/// within it needs no record at all. So there is at most one record in this time.
const TOGETHER: Duration = Duration::from_secs(1);

impl<'a> JobView<'a> {
    /// Returns true if it is remembered that a rank ended well, whatever its pod says by now.
    pub(crate) fn is_completed(&self, attempt: u32, rank: u32) -> bool {
        self.departed.contains_key(&(attempt, rank)) || self.is_recorded(attempt, rank)
    }

    fn is_recorded(&self, attempt: u32, rank: u32) -> bool {
        let known = self.job.and_then(|job| job.status.completed.as_ref());
        known.is_some_and(|known| known.attempt == attempt && known.ranks.contains(&rank))
    }

    /// Returns true if a rank has ended well.
    pub(crate) fn rank_ended_well(&self, attempt: u32, rank: u32) -> bool {
        let says = |pod: &&Pod| pod.state == PodState::Succeeded;
        self.is_completed(attempt, rank) || self.pods.get(&(attempt, rank)).is_some_and(says)
    }

    /// Returns true if all ranks that take part have ended well.
    pub(crate) fn has_ended_well(&self, attempt: u32) -> bool {
        let found = self.attempts.get(&attempt);
        found.is_some_and(|found| {
            let mut places = self.places(found);
            places.all(|(rank, _)| self.rank_ended_well(attempt, rank))
        })
    }

    /// Returns true if a rank has no pod although it has something to do.
    pub(crate) fn is_missing(&self, attempt: u32, rank: u32) -> bool {
        !self.pods.contains_key(&(attempt, rank)) && !self.is_completed(attempt, rank)
    }

    /// The pods of those who take part and are not known to have ended well, by rank.
    pub(crate) fn unfinished(&self, attempt: u32) -> impl Iterator<Item = &'a Pod> {
        self.members(attempt)
            .filter(move |pod| !self.is_completed(attempt, pod.rank))
    }
}

impl JobPlanner<'_> {
    /// Remembers who has ended well, before the others do.
    pub(crate) fn learn_completed(&mut self, wake: &mut Wake) {
        let attempt = self.job.status.attempt;
        let holds = self.status.phase.holds_nodes() && self.status.attempt == attempt;
        if !holds {
            return;
        }
        let view = self.view;
        let says = |pod: &&Pod| pod.state == PodState::Succeeded;
        let ended = view.members(attempt).filter(says);
        let ended = ended.map(|pod| (pod.rank, pod.since));
        let departed = view.departed.range((attempt, 0)..=(attempt, u32::MAX));
        let departed = departed.map(|((_, rank), since)| (*rank, *since));
        let news = ended.chain(departed);
        let news = news.filter(|(rank, _)| {
            *rank < self.job.nodes
                && !view.is_lost_member(attempt, *rank)
                && !view.is_recorded(attempt, *rank)
        });
        let (ranks, since): (BTreeSet<u32>, BTreeSet<_>) = news.unzip();
        let Some(due) = since.first().map(|first| *first + TOGETHER) else {
            return;
        };
        if due > self.now {
            wake.at(due);
            return;
        }
        let known = self.status.completed.take();
        let mut known = known.filter(|known| known.attempt == attempt);
        let completed = known.get_or_insert_with(|| CompletedRanks {
            attempt,
            ranks: BTreeSet::new(),
        });
        completed.ranks.extend(ranks);
        self.status.completed = known;
    }
}
