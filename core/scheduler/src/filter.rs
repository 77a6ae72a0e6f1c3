//! Which jobs may compete for nodes at all. Quotas will be one more filter here.

use crate::capacity::{Capacity, Reach, unplaceable};
use crate::ledger::Ledger;
use crate::snapshot::{DryRun, Job, Problem};

/// Why a job gets no nodes now. The texts hold no figure that changes while others come and go, so
/// that a waiting job's status is not written again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// Whether somebody should look.
    pub(crate) warning: bool,
    /// What to keep for it, when it only waits for others to end.
    pub(crate) reserve: Option<Reach>,
    /// Whether it waits because no zone has enough healthy nodes, although one has enough in total.
    pub(crate) no_zone: bool,
}

impl Waiting {
    pub(crate) fn new(reason: &'static str, message: String) -> Self {
        Self {
            reason,
            message,
            warning: false,
            reserve: None,
            no_zone: false,
        }
    }

    pub(crate) fn warning(reason: &'static str, message: String) -> Self {
        Self {
            reason,
            message,
            warning: true,
            reserve: None,
            no_zone: false,
        }
    }
}

/// The first reason for which the job must wait whatever is free.
pub(crate) fn excluded(
    job: &Job,
    ledger: &Ledger<'_>,
    capacity: Option<&Capacity<'_>>,
) -> Option<Waiting> {
    if let Some(Problem { reason, message }) = &job.problem {
        return Some(Waiting::warning(reason, message.clone()));
    }
    if let DryRun::Refused(message) = &job.dry_run {
        return Some(Waiting::warning("Refused", message.clone()));
    }
    if let Some(message) = name_taken(job, ledger) {
        return Some(Waiting::new("NameTaken", message));
    }
    if job.pin.is_some() {
        return None;
    }
    unplaceable(job, capacity, ledger.policy().max_cross_zone_jobs)
        .map(|message| Waiting::warning("Unplaceable", message))
}

fn name_taken(job: &Job, ledger: &Ledger<'_>) -> Option<String> {
    let mut namesakes = ledger.namesakes(&job.key).peekable();
    namesakes.peek()?;
    let message = "Waiting: objects of an earlier job of this name are still being deleted";
    // The kubelet of a dead node confirms no deletion: this pod will not go by itself.
    let mut nodes = namesakes.flat_map(|view| view.pods.values().map(|pod| &pod.node));
    Some(match nodes.find(|node| ledger.is_lost(node)) {
        Some(node) => format!(
            "{message}; a pod of it is on node {node}, which is dead: it goes when the node is back \
             or its Node object is deleted"
        ),
        None => message.to_owned(),
    })
}
