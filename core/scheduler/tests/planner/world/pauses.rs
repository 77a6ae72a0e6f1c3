//! Checks the rules for validations beside jobs without the planner's means: nobody is interrupted
//! for one that cannot start, none stands before a restart, and the place of whoever waits for one
//! is not given away.

use std::collections::BTreeSet;

use scheduler::{
    Action, Attempt, DryRun, Job, JobKey, JobPhase, Node, Plan, Ready, Snapshot, Timestamp,
    WhenBusy, Wish,
};
use topology::NodeName;

use super::World;

/// A job that waits for the place of an attempt that is over.
struct Waiter<'a> {
    job: &'a Job,
    attempt: &'a Attempt,
    /// True if a validation has one of the attempt's nodes.
    is_delayed: bool,
}

impl World {
    /// Looks at what a leader decides, with what it has seen.
    pub(super) fn validations_are_fair(
        &mut self,
        snapshot: &Snapshot,
        plan: &Plan,
        now: Timestamp,
    ) {
        let mut waiters = waiters(snapshot);
        // Who gets nodes waits no more.
        let under_way = snapshot.under_way.iter().map(|plan| &**plan);
        let plans: Vec<_> = under_way.chain(&plan.jobs).collect();
        waiters.retain(|waiter| {
            let mut own = plans.iter().filter(|plan| plan.job == waiter.job.key);
            own.all(|plan| plan.attempt().is_none())
        });
        let mut delayed = BTreeSet::new();
        for waiter in waiters.iter().filter(|waiter| waiter.is_delayed) {
            let key = &waiter.job.key;
            let promise = waiter.job.status.promise.as_ref();
            let counts = promise.is_some_and(|promise| promise.until > now);
            if counts || self.operator.delayed.contains(key) {
                delayed.insert(key.clone());
            }
        }
        self.operator.delayed = delayed;
        for (key, action) in plan
            .jobs
            .iter()
            .flat_map(|plan| plan.actions.iter().map(|action| (&plan.job, action)))
        {
            let fails = match action {
                Action::Record { status, .. } if status.phase == JobPhase::Interrupting => {
                    let said = &status.conditions[&scheduler::ConditionKind::Running].reason;
                    let is_asked = said == "NodeValidation" && is_new(key, snapshot);
                    is_asked && !has_a_reason(key, snapshot)
                }
                Action::CreateAttempt(new) => {
                    let mut places = new.nodes.iter().map(|place| &place.node);
                    places.any(|node| self.is_somebody_elses(key, node, &waiters, snapshot, now))
                }
                _ => false,
            };
            assert!(
                !fails,
                "unfair to jobs: {key} {action:#?}\n{}",
                self.describe()
            );
        }
    }

    /// Returns true if a node is not for this job, because another waits for its place.
    fn is_somebody_elses(
        &self,
        key: &JobKey,
        node: &NodeName,
        waiters: &[Waiter<'_>],
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> bool {
        let node = snapshot.nodes.iter().find(|one| one.name == *node).unwrap();
        let taker = job_of(key, snapshot);
        let is_run = taker.pin.is_some();
        // Two jobs may have a right to one node, which each had in turn: the first in the queue
        // gets it.
        let own = taker.status.promise.as_ref().map(|promise| promise.attempt);
        let mut attempts = snapshot.attempts.iter();
        let is_own = attempts.any(|attempt| {
            attempt.job == *key && Some(attempt.number) == own && attempt.nodes.contains(&node.name)
        });
        if is_own {
            return false;
        }
        let mut others = waiters.iter().filter(|waiter| waiter.job.key != *key);
        others.any(|waiter| {
            let status = &waiter.job.status;
            let Some(promise) = &status.promise else {
                return !is_run && self.operator.delayed.contains(&waiter.job.key);
            };
            let failed = status.failure.as_ref().map(|failure| failure.attempt);
            let before_restart = is_run
                && failed == Some(promise.attempt)
                && promise.until > now
                && is_well(node, now);
            let while_it_waits = !is_run && self.operator.delayed.contains(&waiter.job.key);
            let avoided = status.avoided.get(&node.name);
            let is_bad = avoided.is_some_and(|avoided| avoided.until > now);
            (before_restart || while_it_waits)
                && waiter.attempt.nodes.contains(&node.name)
                && promise.zones.contains_key(&node.zone)
                && node.class == waiter.job.class
                && !is_bad
        })
    }

    /// A leader is killed: what it has seen and not recorded is not known to the next.
    pub(super) fn forget_what_was_not_recorded(&mut self) {
        let jobs = &self.jobs;
        self.operator.delayed.retain(|key| {
            let promise = jobs
                .get(key)
                .and_then(|one| one.job.status.promise.as_ref());
            promise.is_some_and(|promise| promise.delayed_by.is_some())
        });
    }
}

fn job_of<'a>(key: &JobKey, snapshot: &'a Snapshot) -> &'a Job {
    snapshot.jobs.iter().find(|job| job.key == *key).unwrap()
}

/// Returns true if the job was not asked to leave before.
fn is_new(key: &JobKey, snapshot: &Snapshot) -> bool {
    job_of(key, snapshot).status.phase != JobPhase::Interrupting
}

/// Returns true if a validation that interrupts could start if the job were not there.
fn has_a_reason(key: &JobKey, snapshot: &Snapshot) -> bool {
    let job = job_of(key, snapshot);
    let is_it = |attempt: &&Attempt| attempt.job == *key && attempt.number == job.status.attempt;
    let attempt = snapshot.attempts.iter().find(is_it).unwrap();
    let mut runs = snapshot.jobs.iter().filter(|run| {
        let phase = run.status.phase;
        let waits = !phase.holds_nodes() && !phase.is_terminal() && !run.deleting;
        let accepted = run.dry_run == DryRun::Accepted && run.problem.is_none();
        waits && accepted && run.when_busy == WhenBusy::Interrupt
    });
    runs.any(|run| {
        let mut nodes = snapshot.nodes.iter();
        let node = nodes.find(|node| Some(&node.name) == run.pin.as_ref());
        node.is_some_and(|node| {
            let goes = node.wishes.contains_key(&Wish::Deleted);
            let can = node.ready == Ready::True && node.taint.is_none() && !goes;
            can && attempt.nodes.contains(&node.name)
        })
    })
}

/// Returns true if nothing speaks against the node.
fn is_well(node: &Node, now: Timestamp) -> bool {
    let suspect = node.suspect_until.is_some_and(|until| until > now);
    let is_kept_away = node.taint.is_some() || node.foreign_taint.is_some();
    let open = node.ready == Ready::True && node.wishes.is_empty() && !is_kept_away;
    open && node.quarantine.is_none() && node.short.is_none() && !suspect
}

fn waiters(snapshot: &Snapshot) -> Vec<Waiter<'_>> {
    let runs = snapshot
        .jobs
        .iter()
        .filter(|run| run.pin.is_some() && run.status.phase.holds_nodes() && !run.deleting);
    let validated: BTreeSet<&NodeName> = runs.filter_map(|run| run.pin.as_ref()).collect();
    let jobs = snapshot.jobs.iter().filter(|job| {
        let wanted = !job.deleting && !job.suspend && job.problem.is_none();
        wanted && job.status.phase == JobPhase::Restarting
    });
    let waiters = jobs.filter_map(|job| {
        let promised = job.status.promise.as_ref()?.attempt;
        let mut attempts = snapshot.attempts.iter();
        let attempt = attempts.find(|one| one.job == job.key && one.number == promised)?;
        let mut nodes = attempt.nodes.iter();
        Some(Waiter {
            job,
            attempt,
            is_delayed: nodes.any(|node| validated.contains(node)),
        })
    });
    waiters.collect()
}
