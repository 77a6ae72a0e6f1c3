//! Promises: what the statuses of waiting jobs keep for them goes to nobody else.

use std::collections::{BTreeMap, BTreeSet};

use topology::{Class, NodeName, Zone};

use super::{Facts, Outcome, PROMISE_KEPT, Replay, ensure, is_lost_member};
use crate::plan::NewAttempt;
use crate::promise::Promise;
use crate::snapshot::{Job, JobKey, Node, Snapshot};
use crate::status::{JobPhase, JobStatus};
use crate::time::Timestamp;

/// What is promised to whom.
#[derive(Debug, Default)]
pub(super) struct Promises<'a> {
    /// Who has a promise over a node by name.
    named: BTreeMap<&'a NodeName, BTreeSet<&'a JobKey>>,
    /// How many nodes beyond these each job was promised in a zone.
    more: BTreeMap<(&'a JobKey, &'a Zone), usize>,
    /// Jobs with a promised right to cross zones.
    crossing: BTreeSet<&'a JobKey>,
    /// The validations that are not over, by their node.
    runs: BTreeMap<&'a NodeName, Vec<&'a Job>>,
}

impl<'a> Promises<'a> {
    /// Jobs with a promised right to cross zones, whether they cross already or not.
    pub(super) fn crossing(&self) -> &BTreeSet<&'a JobKey> {
        &self.crossing
    }
}

impl<'a> Facts<'a> {
    /// Reads what is promised from the snapshot.
    pub(super) fn read_promises(&mut self, snapshot: &'a Snapshot) {
        let mut users: BTreeMap<&NodeName, BTreeSet<&JobKey>> = BTreeMap::new();
        for pod in snapshot.pods.iter().filter(|pod| !pod.terminal) {
            users.entry(&pod.node).or_default().insert(&pod.job);
        }
        for (key, attempt) in &self.held {
            let status = &self.jobs[*key].status;
            for (rank, node) in (0..).zip(&attempt.nodes) {
                if !is_lost_member(status, attempt.number, rank) {
                    users.entry(node).or_default().insert(key);
                }
            }
        }
        for plan in &snapshot.under_way {
            for node in plan.nodes() {
                users.entry(node).or_default().insert(&plan.job);
            }
        }
        let starting: BTreeSet<&JobKey> = snapshot
            .under_way
            .iter()
            .filter(|plan| plan.attempt().is_some())
            .map(|plan| &plan.job)
            .collect();
        let mut promises = Promises::default();
        for job in &snapshot.jobs {
            let is_over = job.status.phase.is_terminal() && !self.occupies(job);
            if let Some(pin) = job.pin.as_ref().filter(|_| !is_over) {
                promises.runs.entry(pin).or_default().push(job);
            }
        }
        for job in snapshot.jobs.iter().filter(|job| self.waits(job)) {
            let Some(promise) = &job.status.promise else {
                continue;
            };
            if !stands(promise, self.now) || starting.contains(&job.key) {
                continue;
            }
            let names = self.attempts.get(&(&job.key, promise.attempt));
            let mut counts: BTreeMap<&Zone, usize> = BTreeMap::new();
            for name in names.into_iter().flat_map(|attempt| &attempt.nodes) {
                let Some(node) = self.nodes.get(name) else {
                    continue;
                };
                let avoided = job.status.avoided.get(name);
                let bad = avoided.is_some_and(|avoided| avoided.until > self.now);
                let mut users = users.get(name).into_iter().flatten();
                let alone = users.all(|user| **user == job.key);
                if promise.zones.contains_key(&node.zone)
                    && self.is_sound(node, job)
                    && alone
                    && !bad
                {
                    promises.named.entry(name).or_default().insert(&job.key);
                    *counts.entry(&node.zone).or_default() += 1;
                }
            }
            for (zone, count) in &promise.zones {
                let named = counts.get(zone).copied().unwrap_or(0);
                let more = (*count as usize).saturating_sub(named);
                promises.more.insert((&job.key, zone), more);
            }
            if promise.zones.len() > 1 {
                promises.crossing.insert(&job.key);
            }
        }
        self.promises = promises;
    }

    /// Whether a job has no nodes, or is leaving them, and may get some.
    fn waits(&self, job: &Job) -> bool {
        let JobStatus { phase, .. } = job.status;
        let leaves = phase == JobPhase::Interrupting;
        let none = !phase.is_terminal() && !self.held.contains_key(&job.key);
        (leaves || none) && !job.deleting && !job.suspend && job.problem.is_none()
    }

    /// The nodes that an attempt takes are not promised to others, and what is left in each zone is
    /// enough for what was promised there. Called when they count as taken.
    pub(super) fn keeps_promises(&mut self, job: &'a Job, attempt: &'a NewAttempt) -> Outcome {
        let usable_of =
            |class: &Class, node: &Node| self.states.is_usable(&node.name) && node.class == *class;
        let pinned = job.pin.as_ref().and_then(|pin| self.nodes.get(pin));
        let class = pinned.map_or(&job.class, |node| &node.class);
        // What no other work may go to is promised to nobody.
        let takes_nothing = pinned.is_some_and(|node| !usable_of(class, node));
        let mut used: BTreeMap<&Zone, usize> = BTreeMap::new();
        for place in &attempt.nodes {
            let owners = self.promises.named.get(&place.node);
            let own = owners.is_some_and(|owners| owners.contains(&job.key));
            ensure(own || owners.is_none(), PROMISE_KEPT, || {
                format!("node {} is promised to another job", place.node)
            })?;
            *used.entry(&place.zone).or_default() += usize::from(!own);
        }
        if takes_nothing {
            return Ok(());
        }
        for (zone, used) in used {
            let own = self.promises.more.get_mut(&(&job.key, zone));
            let taken = own.map_or(0, |own| {
                let taken = used.min(*own);
                *own -= taken;
                taken
            });
            let promised: usize = self
                .promises
                .more
                .iter()
                .filter(|((key, other), _)| **key != job.key && *other == zone)
                .filter(|((key, _), _)| {
                    let other = self.jobs.get(key);
                    other.is_some_and(|other| other.class == *class)
                })
                .map(|(_, more)| more)
                .sum();
            if used == taken || promised == 0 {
                continue;
            }
            let left = self.nodes.values().filter(|node| {
                let free = !self.taken.contains(&node.name)
                    && !self.promises.named.contains_key(&node.name);
                free && node.zone == *zone && usable_of(class, node)
            });
            let left = left.count();
            ensure(left >= promised, PROMISE_KEPT, || {
                format!("{left} nodes are left in zone {zone}, and {promised} are promised")
            })?;
        }
        Ok(())
    }

    /// A new promise is about the attempt that ends, and no larger than the job. Later only what it
    /// waits for changes, and how long it stands then.
    pub(super) fn promises_little(replay: &Replay<'a>, new: &JobStatus) -> Outcome {
        let Some(promise) = new.promise.as_ref() else {
            return Ok(());
        };
        let old = replay.status.promise.as_ref();
        if old.is_some_and(|old| (old.attempt, &old.zones) == (promise.attempt, &promise.zones)) {
            return Ok(());
        }
        let count: u64 = promise.zones.values().map(|count| u64::from(*count)).sum();
        let fits = count <= u64::from(replay.job.nodes) && promise.zones.len() <= 2;
        ensure(fits && promise.attempt == new.attempt, PROMISE_KEPT, || {
            format!("attempt {} promises {count} nodes", new.attempt)
        })
    }

    /// As long as a validation has one of the nodes of a job that waits for its place, the promise
    /// stands; and it waits for nothing that does not exist.
    pub(super) fn promises_as_long(&self, replay: &Replay<'a>, new: &JobStatus) -> Outcome {
        let old = replay.status;
        let waits = |status: &JobStatus| status.phase == JobPhase::Restarting;
        if let Some(promise) = old.promise.as_ref()
            && waits(old)
            && waits(new)
            && old.attempt == new.attempt
            && stands(promise, self.now)
        {
            let has_it = |run: &&Job| self.held.contains_key(&run.key);
            let held = self
                .runs_on(replay.job, promise.attempt)
                .any(|run| has_it(&run));
            let delayed =
                |new: &Promise| new.attempt == promise.attempt && new.delayed_by.is_some();
            let is_kept = new.promise.as_ref().is_some_and(delayed);
            ensure(!held || is_kept, PROMISE_KEPT, || {
                format!(
                    "what attempt {} had ends while it is validated",
                    promise.attempt
                )
            })?;
        }
        let Some(promise) = new.promise.as_ref() else {
            return Ok(());
        };
        let known = old.promise.as_ref().and_then(|old| old.delayed_by.as_ref());
        let Some(name) = promise
            .delayed_by
            .as_ref()
            .filter(|name| Some(*name) != known)
        else {
            return Ok(());
        };
        let mut runs = self.runs_on(replay.job, promise.attempt);
        ensure(runs.any(|run| run.key.name == *name), PROMISE_KEPT, || {
            format!(
                "attempt {} waits for {name}, which is not there",
                promise.attempt
            )
        })
    }

    /// The validations that are not over of nodes that an attempt had.
    fn runs_on(&self, job: &'a Job, attempt: u32) -> impl Iterator<Item = &'a Job> {
        let attempt = self.attempts.get(&(&job.key, attempt));
        let nodes = attempt.into_iter().flat_map(|attempt| &attempt.nodes);
        let runs = nodes.filter_map(|node| self.promises.runs.get(node));
        runs.flatten().copied()
    }

    /// Returns true if a job has pods that have not ended.
    fn occupies(&self, job: &Job) -> bool {
        let mut pods = self.pods.get(&job.key).into_iter().flatten();
        pods.any(|pod| !pod.terminal)
    }
}

/// Returns true if a promise is to be kept.
pub(super) fn stands(promise: &Promise, now: Timestamp) -> bool {
    promise.until > now || promise.delayed_by.is_some()
}
