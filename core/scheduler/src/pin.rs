//! Jobs that run on one given node, to validate it: whether the node can take one now, and why not,
//! and which nodes they are to have next. Leaves what is kept for others to `assign`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use topology::NodeName;

use crate::assign::Placement;
use crate::filter::Waiting;
use crate::ledger::Ledger;
use crate::node::{NodeReason, Ready, State, Wish};
use crate::plan::PlacedNode;
use crate::promise;
use crate::snapshot::{DryRun, Job, JobKey, JobKind, Node, Snapshot, WhenBusy};
use crate::time::Timestamp;

/// Returns why a node cannot be validated now, as far as its object says. One that is short of
/// something, suspect, cordoned, tainted by people or in quarantine is why one validates. One that
/// is being deleted, or whose kubelet does not answer or takes no pods, runs nothing. `taint` is
/// one of Kubernetes' own.
pub fn validation_obstacle(
    ready: Ready,
    taint: Option<&Arc<str>>,
    is_deleted: bool,
) -> Option<String> {
    if is_deleted {
        return Some(format!("it is {}", Wish::Deleted));
    }
    let why = match (ready, taint) {
        (Ready::False, _) => NodeReason::NotReady,
        (Ready::Unknown, _) => NodeReason::LeaseOut,
        (Ready::True, Some(taint)) => NodeReason::Tainted(Arc::clone(taint)),
        (Ready::True, None) => return None,
    };
    Some(why.to_string())
}

fn obstacle(node: &Node) -> Option<String> {
    let is_deleted = node.wishes.contains_key(&Wish::Deleted);
    validation_obstacle(node.ready, node.taint.as_ref(), is_deleted)
}

/// The node, if it can take the job; else why the job waits. `take` says whether nobody else is to
/// have the node.
pub(crate) fn place<'a>(
    name: &NodeName,
    ledger: &Ledger<'a>,
    take: impl FnOnce(&'a Node) -> bool,
) -> Result<Placement, Waiting> {
    let Some(node) = ledger.node(name) else {
        let message = format!(
            "Waiting: the cluster has no node {name}; it runs when the node joins, or delete it and \
             create it again with another nodeName"
        );
        return Err(Waiting::warning("NodeUnknown", message));
    };
    let lost = match ledger.states().of(name) {
        State::Lost { why } => Some(why.to_string()),
        State::Usable
        | State::NoNewWork { .. }
        | State::Leaving { .. }
        | State::Suspect { .. }
        | State::Short { .. } => None,
    };
    if let Some(why) = lost.or_else(|| obstacle(node)) {
        let message = format!("Waiting: node {name} cannot be validated now: {why}");
        return Err(Waiting::warning("NodeNotReady", message));
    }
    if !ledger.is_vacant(name) {
        let message = format!("Waiting: node {name} is in use; it is validated when it is free");
        return Err(Waiting::new("NodeInUse", message));
    }
    if !take(node) {
        let message = format!("Waiting: node {name} is kept for somebody who waits for it");
        return Err(Waiting::new("NodeReserved", message));
    }
    Ok(Placement {
        places: vec![PlacedNode {
            node: node.name.clone(),
            zone: node.zone.clone(),
            leaf: node.leaf.clone(),
        }],
        crossing: false,
    })
}

/// The names of the validations for each of some nodes.
type Runs<'a> = BTreeMap<&'a NodeName, BTreeSet<&'a Arc<str>>>;

/// The validations that are to have their node before everybody else and can run there as it is.
#[derive(Debug, Default)]
pub(crate) struct NextRuns<'a> {
    /// By their node, whoever uses that.
    expected: Runs<'a>,
    /// Nodes among these that somebody uses. For jobs they are nodes like others: whoever waits for
    /// one of them waits for a node that comes free.
    used: BTreeSet<&'a NodeName>,
    /// Nodes that are kept for jobs that restart.
    kept: BTreeSet<&'a NodeName>,
}

impl<'a> NextRuns<'a> {
    pub(crate) fn new(snapshot: &'a Snapshot, now: Timestamp) -> Self {
        let expected = expected(snapshot, |_| true);
        if expected.is_empty() {
            return Self::default();
        }
        let jobs = snapshot.jobs.iter();
        let holding = jobs.filter(|job| job.status.phase.holds_nodes());
        let holding: BTreeSet<_> = holding.map(|job| (&job.key, job.status.attempt)).collect();
        let attempts = snapshot.attempts.iter();
        let held = attempts.filter(|attempt| holding.contains(&(&attempt.job, attempt.number)));
        let held = held.flat_map(|attempt| &attempt.nodes);
        let pods = snapshot.pods.iter().filter(|pod| !pod.terminal);
        let under_way = snapshot.under_way.iter().flat_map(|plan| plan.nodes());
        let used = held.chain(pods.map(|pod| &pod.node)).chain(under_way);
        Self {
            used: used.filter(|node| expected.contains_key(node)).collect(),
            kept: promise::kept_for_restarts(snapshot, now),
            expected,
        }
    }

    /// The first of a node, whoever uses the node.
    pub(crate) fn expects(&self, node: &NodeName) -> Option<&'a Arc<str>> {
        self.expected.get(node)?.first().copied()
    }

    /// The one that gets a node which nobody uses.
    pub(crate) fn awaits(&self, node: &NodeName) -> Option<&'a Arc<str>> {
        let is_free = !self.used.contains(node) && !self.kept.contains(node);
        self.expects(node).filter(|_| is_free)
    }

    /// Nodes that nobody uses and that validations get, unless jobs that restart need them.
    pub(crate) fn after_restarts(&self) -> impl Iterator<Item = &'a NodeName> {
        let nodes = self.kept.iter().copied();
        nodes.filter(|node| self.expected.contains_key(node) && !self.used.contains(node))
    }
}

/// The validations for which jobs are asked to leave a node: those that could run there as it is.
/// Nobody is asked while a job is to get the node back for its restart.
pub(crate) fn interrupting(
    snapshot: &Snapshot,
    now: Timestamp,
) -> BTreeMap<NodeName, Vec<Arc<str>>> {
    let interrupts =
        |job: &Job| job.when_busy == WhenBusy::Interrupt && job.dry_run == DryRun::Accepted;
    let mut runs = expected(snapshot, interrupts);
    if !runs.is_empty() {
        let kept = promise::kept_for_restarts(snapshot, now);
        runs.retain(|node, _| !kept.contains(node));
    }
    let names = |runs: BTreeSet<&Arc<str>>| runs.into_iter().map(Arc::clone).collect();
    runs.into_iter()
        .map(|(node, runs)| (node.clone(), names(runs)))
        .collect()
}

fn expected(snapshot: &Snapshot, which: impl Fn(&Job) -> bool) -> Runs<'_> {
    let jobs = snapshot.jobs.iter().filter(|job| which(job));
    let waiting: Vec<_> = jobs
        .filter_map(|job| Some((job.awaits()?, &job.key)))
        .collect();
    let mut runs = Runs::new();
    if waiting.is_empty() {
        return runs;
    }
    let nodes = snapshot.nodes.iter();
    let sound = nodes.filter(|node| obstacle(node).is_none());
    let sound: BTreeSet<&NodeName> = sound.map(|node| &node.name).collect();
    // What an earlier one of its name has left is in its way.
    let pods = snapshot.pods.iter().map(|pod| &pod.job);
    let attempts = snapshot.attempts.iter().map(|attempt| &attempt.job);
    let mut keys: BTreeMap<_, BTreeSet<&Arc<str>>> = BTreeMap::new();
    for key in pods
        .chain(attempts)
        .filter(|key| key.kind == JobKind::NodeValidation)
    {
        keys.entry((&key.namespace, &key.name))
            .or_default()
            .insert(&key.uid);
    }
    let is_first = |key: &JobKey| {
        let uids = keys.get(&(&key.namespace, &key.name));
        uids.is_none_or(|uids| uids.iter().all(|uid| **uid == key.uid))
    };
    for (node, key) in waiting {
        if sound.contains(node) && is_first(key) {
            runs.entry(node).or_default().insert(&key.name);
        }
    }
    runs
}
