//! Places that are kept for jobs without nodes: what a promise says, which promises are valid, and
//! which nodes they keep. Leaves giving them to `assign`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use topology::{NodeName, Zone};

use crate::avoid::avoided;
use crate::ledger::{JobView, Ledger};
use crate::queue;
use crate::snapshot::{Attempt, Job, JobKey, Node, Snapshot};
use crate::status::{JobPhase, JobStatus};
use crate::time::Timestamp;

/// A job's right to a place while it has none. It is in the job's status before anything follows
/// from it, so a new leader honours it. It ends by itself, once nothing delays it any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The nodes of this attempt come first, as far as they are good. Its ConfigMap stays as long.
    pub attempt: u32,
    /// How many nodes in which zone; at most two zones, at most as many nodes as the job needs.
    pub zones: BTreeMap<Zone, u32>,
    /// Until when.
    pub until: Timestamp,
    /// The validation that has one of the attempt's nodes, or is to have it next. As long as it is
    /// named here the promise stands, whatever `until` says.
    pub delayed_by: Option<Arc<str>>,
}

impl Promise {
    /// The place of an attempt. None if its nodes are known to be in no zone or in more than two.
    pub(crate) fn of_attempt(
        attempt: &Attempt,
        ledger: &Ledger<'_>,
        until: Timestamp,
    ) -> Option<Self> {
        let mut zones: BTreeMap<Zone, u32> = BTreeMap::new();
        let mut unknown = 0;
        for name in &attempt.nodes {
            match ledger.node(name) {
                Some(node) => *zones.entry(node.zone.clone()).or_default() += 1,
                None => unknown += 1,
            }
        }
        if zones.len() > 2 {
            return None;
        }
        let largest = zones.iter_mut().max_by_key(|(_, count)| **count);
        *largest?.1 += unknown;
        Some(Self {
            attempt: attempt.number,
            zones,
            until,
            delayed_by: None,
        })
    }
}

impl JobStatus {
    /// The promise, unless it has run out.
    pub(crate) fn promised(&self, now: Timestamp) -> Option<&Promise> {
        let promise = self.promise.as_ref();
        promise.filter(|promise| promise.until > now || promise.delayed_by.is_some())
    }

    /// Returns true if the promise is for a restart: the attempt failed or was lost, and nobody had
    /// asked it to leave.
    fn is_for_restart(&self, promise: &Promise) -> bool {
        let failed = self.failure.as_ref().map(|failure| failure.attempt);
        failed == Some(promise.attempt)
    }
}

/// The nodes of attempts that failed or were lost, as long as their jobs are to get them back: no
/// validation stands before a restart.
pub(crate) fn kept_for_restarts(snapshot: &Snapshot, now: Timestamp) -> BTreeSet<&NodeName> {
    let restarting = snapshot.jobs.iter().filter_map(|job| {
        let status = &job.status;
        let waits = matches!(status.phase, JobPhase::Restarting | JobPhase::Assigned);
        let promise = status.promised(now)?;
        (waits && is_wanted(job) && status.is_for_restart(promise))
            .then_some((&job.key, promise.attempt))
    });
    let restarting: BTreeSet<_> = restarting.collect();
    if restarting.is_empty() {
        return BTreeSet::new();
    }
    let attempts = snapshot.attempts.iter();
    attempts
        .filter(|attempt| restarting.contains(&(&attempt.job, attempt.number)))
        .flat_map(|attempt| &attempt.nodes)
        .collect()
}

/// Returns true if nothing speaks against nodes for the job: it is not being deleted or suspended,
/// and it has no problem.
fn is_wanted(job: &Job) -> bool {
    !job.deleting && !job.suspend && job.problem.is_none()
}

/// What a standing promise keeps.
#[derive(Debug)]
pub(crate) struct Standing<'a> {
    pub(crate) job: &'a Job,
    /// Good nodes of its own attempt. Some may not be free yet.
    pub(crate) own: Vec<&'a Node>,
    /// How many more in which zone.
    pub(crate) more: BTreeMap<&'a Zone, usize>,
    /// Whether it keeps a right to cross zones that is not counted yet.
    pub(crate) crosses: bool,
    /// All nodes of its own attempt, if it is for a restart: before that none is validated that it
    /// may need.
    pub(crate) before_validations: &'a [NodeName],
}

/// All standing promises, in the order of the queue.
pub(crate) fn standing<'a>(ledger: &Ledger<'a>) -> Vec<Standing<'a>> {
    let views = ledger.views();
    let mut jobs: Vec<_> = views
        .filter_map(|(key, view)| valid_promise(key, view, ledger).map(|found| (view, found)))
        .collect();
    if jobs.is_empty() {
        return Vec::new();
    }
    jobs.sort_by_cached_key(|(_, (job, _))| queue::rank(job));
    let users = ledger.users();
    jobs.into_iter()
        .map(|(view, (job, promise))| keep(job, promise, view, &users, ledger))
        .collect()
}

/// Whether a job has a right to a place: it waits for one, and nobody wants that it does not.
fn valid_promise<'a>(
    key: &JobKey,
    view: &JobView<'a>,
    ledger: &Ledger<'a>,
) -> Option<(&'a Job, &'a Promise)> {
    let job = view.job?;
    let promise = job.status.promised(ledger.now())?;
    let phase = job.status.phase;
    let waits = phase == JobPhase::Interrupting || view.holding().is_none() && !phase.is_terminal();
    (waits && is_wanted(job) && !ledger.gets_nodes(key)).then_some((job, promise))
}

fn keep<'a>(
    job: &'a Job,
    promise: &'a Promise,
    view: &JobView<'a>,
    users: &BTreeMap<&'a NodeName, BTreeSet<&'a JobKey>>,
    ledger: &Ledger<'a>,
) -> Standing<'a> {
    let bad: BTreeSet<&NodeName> = avoided(job, ledger.now()).into_iter().collect();
    let by_others = |name: &NodeName| {
        let mut users = users.get(name).into_iter().flatten();
        users.any(|user| **user != job.key)
    };
    let mut more: BTreeMap<&Zone, usize> = BTreeMap::new();
    for (zone, count) in &promise.zones {
        more.insert(zone, *count as usize);
    }
    let attempt = view.attempts.get(&promise.attempt);
    let names = attempt.map_or(&[][..], |attempt| attempt.nodes.as_slice());
    let mut own = Vec::new();
    for node in names.iter().filter_map(|name| ledger.node(name)) {
        let good = ledger.is_healthy(node) && node.class == job.class;
        if good
            && !bad.contains(&node.name)
            && !by_others(&node.name)
            && let Some(left) = more.get_mut(&node.zone)
        {
            *left = left.saturating_sub(1);
            own.push(node);
        }
    }
    Standing {
        job,
        own,
        more,
        crosses: promise.zones.len() > 1 && !ledger.is_crossing(&job.key),
        before_validations: if job.status.is_for_restart(promise) {
            names
        } else {
            &[]
        },
    }
}
