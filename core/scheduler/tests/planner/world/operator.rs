//! The operator around the planner: look, plan, check, write, and look again while it writes.
//! Killed after any write; what a deposed one still had to write may come later.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use scheduler::{Absent, Action, CompletedRanks, JobKey, JobPlan, Sights};

use super::{Event, World};

/// What exists and is still missed is read again after so long.
const READ_AGAIN: Duration = Duration::from_secs(2);
/// Then it looks although nothing has happened.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// The moments when operators are killed, and what happens to what they still had to write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Crash {
    /// After these numbers of writes.
    pub(crate) after: Vec<u64>,
    /// How long nobody leads.
    pub(crate) vacancy: Duration,
    /// Whether the killed one was only asleep, and goes on with its old plan when this much time
    /// has passed.
    pub(crate) returns: Option<Duration>,
}

/// What the leading operator is doing, and what deposed ones still might do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operator {
    pub(crate) crash: Crash,
    /// Whether something changed since it looked.
    pub(crate) dirty: bool,
    /// Whether a Plan or Write event is on its way.
    pub(crate) awake: bool,
    /// Whether a deposed operator ever came back: then its pods may run beside others.
    pub(crate) haunted: bool,
    /// Actions left per job, with the version of the job object that they build on.
    left: BTreeMap<JobKey, Left>,
    ghosts: VecDeque<BTreeMap<JobKey, Left>>,
    /// What it reads because its plan misses it, and what it did not find.
    pub(crate) reading: BTreeSet<Absent>,
    pub(crate) absent: BTreeSet<Absent>,
    /// Jobs whose first pod it tries, and those whose pod the API server takes.
    trying: BTreeSet<JobKey>,
    pub(super) tried: BTreeSet<JobKey>,
    next_wake: Option<u64>,
    pub(super) sights: Sights,
    /// True if nobody watches while nobody leads: there is no other replica.
    pub(crate) is_alone: bool,
    /// Until then no replica watches.
    pub(super) blind_until: Duration,
    /// Until then no sidecar has dialled the new leader.
    pub(super) deaf_until: Duration,
    pub(crate) plans: u64,
    /// Jobs that were seen to wait for a validation while their place was promised.
    pub(super) delayed: BTreeSet<JobKey>,
}

#[derive(Clone, Debug)]
struct Left {
    plan: Arc<JobPlan>,
    actions: VecDeque<Action>,
    version: u64,
}

impl Operator {
    /// The plans that are not written to their end.
    pub(crate) fn under_way(&self) -> Vec<Arc<JobPlan>> {
        self.left
            .values()
            .map(|left| Arc::clone(&left.plan))
            .collect()
    }
}

impl World {
    /// Plans, also while earlier plans are being written.
    pub(crate) fn plan(&mut self) {
        if !self.has_listed() {
            self.queue.after(Duration::from_secs(1), Event::Plan);
            return;
        }
        self.operator.dirty = false;
        self.operator.plans += 1;
        let mut snapshot = self.objects();
        let now = self.clock();
        self.operator
            .sights
            .fill_in(&mut snapshot, &self.policy, now);
        let plan = scheduler::plan(&snapshot, &self.policy, now);
        if let Err(violation) = scheduler::check(&snapshot, &self.policy, now, &plan) {
            panic!("{violation}\n{plan:#?}\n{}", self.describe());
        }
        self.validations_are_fair(&snapshot, &plan, now);
        if self.operator.plans.is_multiple_of(16) {
            crate::properties::converges(&snapshot, &self.policy, now);
        }
        self.ask_for_stacks(&plan.stalled);
        let missed: BTreeSet<Absent> = plan.confirm.into_iter().collect();
        self.operator.absent.retain(|one| missed.contains(one));
        self.operator.reading.retain(|one| missed.contains(one));
        for one in missed {
            let known = self.operator.absent.contains(&one);
            if !known && self.operator.reading.insert(one.clone()) {
                let delay = self.delay(1, 20);
                self.queue.after(delay, Event::Read(one));
            }
        }
        for job in plan.dry_runs {
            if self.operator.trying.insert(job.clone()) {
                let delay = self.delay(1, 50);
                self.queue.after(delay, Event::Tried(job));
            }
        }
        for plan in plan.jobs {
            let version = self.known_version(&plan.job);
            let left = Left {
                actions: plan.actions.clone().into(),
                plan: Arc::new(plan),
                version,
            };
            self.operator.left.insert(left.plan.job.clone(), left);
        }
        // News wakes it; that a kind has become fresh again is none.
        let look = snapshot.is_stale.then(|| now + LONGEST_SLEEP);
        if let Some(wake) = plan.wake_at.into_iter().chain(look).min() {
            assert!(
                wake > now,
                "it would wake at once, for ever\n{}",
                self.describe()
            );
            if self.operator.next_wake != Some(wake.as_millis()) {
                self.operator.next_wake = Some(wake.as_millis());
                let at = Duration::from_millis(wake.as_millis());
                self.queue.at(at - self.clocks.operator, Event::Wake);
            }
        }
        self.go_on();
    }

    /// Schedules the next write, or a look if something changed, or sleeps.
    fn go_on(&mut self) {
        let delay = self.delay(1, 10);
        let writes = !self.operator.left.is_empty();
        if self.operator.dirty && (!writes || self.rng.chance(1, 4)) {
            self.queue.after(delay, Event::Plan);
        } else if writes {
            self.queue.after(delay, Event::Write);
        } else {
            self.operator.awake = false;
        }
    }

    /// One write of one job, chosen at random: jobs are applied side by side.
    pub(crate) fn write(&mut self) {
        let mut left = std::mem::take(&mut self.operator.left);
        let wrote = self.write_one(&mut left, true);
        self.operator.left = left;
        if wrote && self.operator.crash.after.contains(&self.writes) {
            self.crash();
        } else {
            self.go_on();
        }
    }

    fn write_one(&mut self, left: &mut BTreeMap<JobKey, Left>, leads: bool) -> bool {
        let Some(index) = (!left.is_empty()).then(|| self.rng.below(left.len())) else {
            return false;
        };
        let key = left.keys().nth(index).unwrap().clone();
        let mut job = left.remove(&key).unwrap();
        let Some(action) = job.actions.pop_front() else {
            return false;
        };
        if let Action::DeleteAttempt { attempt } = &action
            && self.keys.contains(&(key.clone(), *attempt))
        {
            job.actions.push_front(action.clone());
        }
        let is_sent = match &action {
            Action::DeletePod { attempt, rank, .. } if leads => {
                self.knows_pod(&key, *attempt, *rank)
            }
            _ => true,
        };
        let done = match is_sent {
            true => self.perform(&key, action.clone(), &mut job.version),
            false => Ok(()),
        };
        if leads && is_sent {
            self.saw(&key, &action, done.is_err());
        }
        self.writes += 1;
        if done.is_ok() && !job.actions.is_empty() {
            left.insert(key, job);
        } else {
            // That a plan is written, or has failed, is news as well.
            self.operator.dirty = true;
        }
        true
    }

    /// A read arrives.
    pub(crate) fn read(&mut self, object: Absent) {
        let exists = match &object {
            Absent::Node(node) => !self.machines[node].gone,
            Absent::Job(job) => self.jobs.contains_key(job),
            Absent::Attempt { job, number } => self.attempts.contains_key(&(job.clone(), *number)),
            Absent::Pod { job, attempt, rank } => {
                self.pods.contains_key(&(job.clone(), *attempt, *rank))
            }
        };
        if !self.operator.reading.contains(&object) {
            return;
        }
        if !self.has_read(&object) {
            self.queue.after(READ_AGAIN, Event::Read(object));
            return;
        }
        self.operator.reading.remove(&object);
        if !exists {
            self.operator.absent.insert(object);
        }
        self.changed();
    }

    /// The answer to a dry run arrives, unless whoever asked is dead.
    pub(crate) fn tried(&mut self, job: JobKey) {
        if self.operator.trying.remove(&job) {
            self.operator.tried.insert(job);
            self.changed();
        }
    }

    /// The operator is killed (or paused); another leads after a while.
    fn crash(&mut self) {
        let left = std::mem::take(&mut self.operator.left);
        self.queue
            .retain(|event| !matches!(event, Event::Plan | Event::Write | Event::Wake));
        self.operator.next_wake = None;
        self.operator.reading.clear();
        self.operator.absent.clear();
        self.operator.trying.clear();
        self.operator.tried.clear();
        self.forget_what_was_not_recorded();
        self.operator.awake = true;
        let vacancy = self.operator.crash.vacancy;
        self.queue.after(vacancy, Event::Plan);
        if self.operator.is_alone {
            self.operator.blind_until = self.queue.now() + vacancy;
            for gone in std::mem::take(&mut self.departed) {
                let of_it = |one: &&CompletedRanks| one.attempt == gone.attempt;
                let stored = self.jobs.get(&gone.job);
                let known = stored.and_then(|stored| stored.job.status.completed.as_ref());
                let known = known.filter(of_it);
                if known.is_none_or(|known| !known.ranks.contains(&gone.rank)) {
                    let run = self.runs.entry((gone.job, gone.attempt)).or_default();
                    run.unseen = true;
                }
            }
        }
        // Whoever leads next knows nothing but what it sees, and sidecars take a moment to find it.
        self.operator.sights = Sights::default();
        self.forget_own_writes(self.queue.now() + vacancy);
        self.operator.deaf_until = self.queue.now() + vacancy + self.delay(200, 3000);
        self.queue.at(self.operator.deaf_until, Event::Listen);
        if let Some(returns) = self.operator.crash.returns {
            self.operator.haunted = true;
            self.operator.ghosts.push_back(left);
            self.queue.after(returns, Event::Haunt);
        }
    }

    /// A deposed operator wakes up and performs what it had planned.
    pub(crate) fn haunt(&mut self) {
        let Some(mut left) = self.operator.ghosts.pop_front() else {
            return;
        };
        while self.write_one(&mut left, false) {}
    }
}
