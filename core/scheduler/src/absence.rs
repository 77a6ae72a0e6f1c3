//! What is not in the snapshot where it is expected. A copy of the cluster may lack what exists, so
//! absence ends nothing before a read of the API server has confirmed it: the plan names what is to
//! be read, and the next one acts on what was not found.

use std::collections::BTreeSet;

use crate::ledger::{JobView, Ledger};
use crate::snapshot::{Absent, JobKey};
use crate::status::JobPhase;

/// Objects of one job that are asked for at once.
const ASKED: usize = 16;

/// What is to be read before the absence of it may count.
pub(crate) fn doubts(ledger: &Ledger<'_>) -> Vec<Absent> {
    let mut doubts = BTreeSet::new();
    for (key, view) in ledger.views() {
        if ledger.is_untouchable(key) || ledger.is_under_way(key) {
            continue;
        }
        let missed = of_job(key, view, ledger).into_iter();
        // What is confirmed is named for as long as it counts, and leaves room for what is not.
        let (known, open): (Vec<_>, Vec<_>) = missed
            .chain(nodes_of(view, ledger))
            .partition(|object| ledger.is_absent(object));
        doubts.extend(known);
        doubts.extend(open.into_iter().take(ASKED));
    }
    doubts.into_iter().collect()
}

/// Nodes that the job's attempt holds or its pods are on, and that have no object.
fn nodes_of(view: &JobView<'_>, ledger: &Ledger<'_>) -> Vec<Absent> {
    let held = view.holding().into_iter().flat_map(|attempt| {
        let places = view.places(attempt);
        // Nobody misses the node of a rank that ended well.
        places.filter(|(rank, _)| !view.is_completed(attempt.number, *rank))
    });
    let pods = view.pods.values().filter(|pod| !pod.terminal);
    let nodes = held.map(|(_, node)| node).chain(pods.map(|pod| &pod.node));
    let missed = nodes.filter(|node| ledger.states().is_in_doubt(node));
    missed.map(|node| Absent::Node(node.clone())).collect()
}

fn of_job(key: &JobKey, view: &JobView<'_>, ledger: &Ledger<'_>) -> Vec<Absent> {
    let Some(job) = view.job else {
        let kept = view.pods.values().any(|pod| pod.finalizer || pod.unowned);
        return kept.then(|| Absent::Job(key.clone())).into_iter().collect();
    };
    let phase = job.status.phase;
    let attempt = job.status.attempt;
    if job.deleting || !phase.holds_nodes() {
        return Vec::new();
    }
    let pod = |rank| Absent::Pod {
        job: key.clone(),
        attempt,
        rank,
    };
    let missing = |rank: &u32| view.is_missing(attempt, *rank);
    if phase == JobPhase::Interrupting {
        let speaks =
            |rank: &u32| job.may_acknowledge(*rank) && !view.is_lost_member(attempt, *rank);
        let silent = (0..job.nodes).filter(|rank| speaks(rank) && missing(rank));
        return silent.map(pod).collect();
    }
    let begins = phase == JobPhase::Assigned;
    let Some(found) = view.holding() else {
        if begins && view.gang(attempt).next().is_none() {
            return Vec::new(); // Its nodes are not chosen yet.
        }
        let number = attempt;
        return vec![Absent::Attempt {
            job: key.clone(),
            number,
        }];
    };
    // While the gang is being created, that its pods are missing is no news, unless they are to be
    // created no more.
    let over = !begins || job.problem.is_some() || ledger.is_superseded(key);
    let ends = |node| over || !ledger.can_take_pod(job, node);
    let mut places = view.places(found);
    let first = places.find(|(rank, node)| missing(rank) && ends(node));
    first.map(|(rank, _)| pod(rank)).into_iter().collect()
}

impl JobView<'_> {
    /// Whether a pod that may have acknowledged for its gang is not seen, though nobody has
    /// confirmed that it is gone.
    pub(crate) fn may_speak_unseen(&self, ledger: &Ledger<'_>) -> bool {
        let Some(job) = self.job else {
            return false;
        };
        let attempt = job.status.attempt;
        (0..job.nodes).any(|rank| {
            let speaks = job.may_acknowledge(rank) && !self.is_lost_member(attempt, rank);
            speaks && self.is_missing(attempt, rank) && {
                let job = job.key.clone();
                !ledger.is_absent(&Absent::Pod { job, attempt, rank })
            }
        })
    }
}
