//! The API server: what a write does, and when it is refused.

use std::time::Duration;

use scheduler::{
    Action, Attempt, CollectedPod, JobKey, JobKind, NewAttempt, Pod, PodState, Timestamp, Wish,
};

use super::machine::RESTARTED;
use super::{Deed, Event, PodId, Running, World};

/// The time for which a replica remembers a pod that ended well and is gone.
pub(super) const REMEMBERED: Duration = Duration::from_secs(300);

/// A write that was refused: somebody else was first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict;

impl World {
    /// Somebody may want to plan.
    pub(crate) fn changed(&mut self) {
        self.operator.dirty = true;
        if !self.operator.awake {
            self.operator.awake = true;
            self.queue.after(Duration::from_millis(10), Event::Plan);
        }
    }

    /// Performs one write of an operator. `version` is what it knows of the job object.
    pub(crate) fn perform(
        &mut self,
        key: &JobKey,
        action: Action,
        version: &mut u64,
    ) -> Result<(), Conflict> {
        self.changed();
        match action {
            Action::AddFinalizer => self.update(key, version, |job| job.finalizer = true),
            Action::RemoveFinalizer => self.update(key, version, |job| job.finalizer = false),
            Action::Record { status, .. } => self.update(key, version, |job| job.status = *status),
            Action::DeleteJob => self.update(key, version, |job| job.deleting = true),
            Action::CreateAttempt(attempt) => self.create_attempt(key, attempt),
            Action::CreateKey { attempt } => {
                self.keys.insert((key.clone(), attempt));
                self.collect_later(key);
                Ok(())
            }
            Action::CreatePod {
                attempt,
                rank,
                node,
                finalizer,
            } => self.create_pod((key.clone(), attempt, rank), node, finalizer),
            Action::DeletePod {
                attempt,
                rank,
                grace,
            } => {
                let id = self.hit((key.clone(), attempt, rank));
                self.nobody_healthy_is_killed(&id, grace);
                self.delete_pod(&id, grace);
                Ok(())
            }
            Action::StripPod { attempt, rank } => {
                let id = self.hit((key.clone(), attempt, rank));
                if let Some(running) = self.pods.get_mut(&id) {
                    running.pod.finalizer = false;
                }
                self.reap(&id);
                Ok(())
            }
            Action::DeleteAttempt { attempt } => {
                let id = self.hit_attempt((key.clone(), attempt));
                // The Secret first, in a write of its own.
                if !self.keys.remove(&id) {
                    self.attempts.remove(&id);
                }
                Ok(())
            }
        }
    }

    fn update(
        &mut self,
        key: &JobKey,
        version: &mut u64,
        change: impl FnOnce(&mut scheduler::Job),
    ) -> Result<(), Conflict> {
        let stored = self.jobs.get_mut(key).ok_or(Conflict)?;
        if stored.version != *version {
            return Err(Conflict);
        }
        change(&mut stored.job);
        stored.version += 1;
        *version = stored.version;
        self.forget_if_deleted(key);
        Ok(())
    }

    /// A deleted object without finalizers is gone, and what it owned is collected a little later.
    fn forget_if_deleted(&mut self, key: &JobKey) {
        let over = self
            .jobs
            .get(key)
            .is_some_and(|stored| stored.job.deleting && !stored.job.finalizer);
        if over {
            self.jobs.remove(key);
            self.gone.push(key.clone());
            self.queue.after(Duration::from_secs(1), Event::Collect);
        }
    }

    fn create_attempt(&mut self, key: &JobKey, new: NewAttempt) -> Result<(), Conflict> {
        let id = (key.clone(), new.number);
        let names = self.attempts.keys();
        let mut names = names.map(|(job, number)| (&job.namespace, &job.name, *number));
        if names.any(|taken| taken == (&key.namespace, &key.name, new.number)) {
            return Err(Conflict);
        }
        let attempt = Attempt {
            job: key.clone(),
            number: new.number,
            nodes: new.nodes.into_iter().map(|place| place.node).collect(),
            crossing: new.crossing,
            created: self.stamp(),
            seen: Timestamp::default(),
        };
        if let (Some(stored), Some(resume)) = (self.jobs.get(key), new.resume) {
            let step = stored.saved;
            assert_eq!(resume.step, step, "{key} is pinned to an old checkpoint");
        }
        self.attempts.insert(id, attempt);
        self.collect_later(key);
        Ok(())
    }

    fn create_pod(
        &mut self,
        id: PodId,
        node: topology::NodeName,
        finalizer: bool,
    ) -> Result<(), Conflict> {
        if let Some(taken) = self.of_that_name(&id) {
            return if taken == id { Ok(()) } else { Err(Conflict) };
        }
        let (job, attempt, rank) = id.clone();
        if !self.operator.haunted {
            let key = (id.0.clone(), id.1);
            // A validation has none, also one that is gone by now.
            let no_key = id.0.kind == JobKind::NodeValidation;
            let known = no_key || self.keys.contains(&key);
            assert!(known, "{id:?} created before its key");
        }
        self.collect_later(&job);
        let decided = self.attempts.get(&(job.clone(), attempt));
        let pod = Pod {
            crossing: decided.is_some_and(|decided| decided.crossing),
            job,
            attempt,
            rank,
            node,
            state: PodState::Unbound,
            terminal: false,
            delete_by: None,
            grace: Duration::ZERO,
            finalizer,
            unowned: false,
            preparation: None,
            since: Timestamp::default(),
        };
        self.pods.insert(
            id.clone(),
            Running {
                pod,
                dialled: false,
                stopping: false,
                born: self.born,
            },
        );
        self.born += 1;
        let delay = self.delay(10, 800);
        self.queue.after(delay, Event::Bind(id));
        Ok(())
    }

    /// The pod that has the name of this one, perhaps of a later job.
    fn of_that_name(&self, (job, attempt, rank): &PodId) -> Option<PodId> {
        let mut found = self.pods.keys().filter(|(other, number, place)| {
            let named = (&other.namespace, &other.name) == (&job.namespace, &job.name);
            named && (number, place) == (attempt, rank)
        });
        found.next().cloned()
    }

    /// The pod that a deletion hits.
    fn hit(&self, id: PodId) -> PodId {
        let found = self.deletes_by_name.then(|| self.of_that_name(&id));
        found.flatten().unwrap_or(id)
    }

    /// The attempt that a deletion hits.
    fn hit_attempt(&self, id: (JobKey, u32)) -> (JobKey, u32) {
        let mut attempts = self.attempts.keys();
        let named = |(job, number): &&(JobKey, u32)| {
            (&job.namespace, &job.name, *number) == (&id.0.namespace, &id.0.name, id.1)
        };
        let found = self.deletes_by_name.then(|| attempts.find(named).cloned());
        found.flatten().unwrap_or(id)
    }

    /// An object whose owner is gone does not live long.
    fn collect_later(&mut self, owner: &JobKey) {
        if !self.jobs.contains_key(owner) {
            self.queue.after(Duration::from_secs(1), Event::Collect);
        }
    }

    pub(crate) fn collect(&mut self) {
        let jobs = &self.jobs;
        self.attempts.retain(|(job, _), _| jobs.contains_key(job));
        self.keys.retain(|(job, _)| jobs.contains_key(job));
        let orphans: Vec<PodId> = self
            .pods
            .keys()
            .filter(|(job, ..)| !jobs.contains_key(job))
            .cloned()
            .collect();
        for id in orphans {
            self.delete_pod(&id, Duration::from_secs(5));
        }
        self.changed();
    }

    pub(crate) fn delete_pod(&mut self, id: &PodId, grace: Duration) {
        let end = self.stamp() + grace;
        let Some(running) = self.pods.get_mut(id) else {
            return;
        };
        if running.pod.delete_by.is_none_or(|old| end < old) {
            running.pod.delete_by = Some(end);
            running.pod.grace = grace;
        }
        let terminal = running.pod.terminal;
        self.changed();
        if terminal {
            self.reap(id);
        } else {
            self.stop(id, grace);
        }
    }

    /// Removes a pod object that is deleted, has ended and carries no finalizer.
    pub(crate) fn reap(&mut self, id: &PodId) {
        let Some(Running { pod, .. }) = self.pods.get(id) else {
            return;
        };
        if pod.delete_by.is_none() || !pod.terminal || pod.finalizer {
            return;
        }
        if let PodState::Interrupted { ack: Some(ack) } = &pod.state
            && let Some(stored) = self.jobs.get(&id.0)
            && !stored.job.deleting
        {
            let last = stored.job.status.last_checkpoint.as_ref();
            let known = last.map(|last| (last.attempt, last.step));
            assert!(
                known >= Some((ack.attempt, ack.step)),
                "{ack:?} was dropped unrecorded"
            );
        }
        if matches!(&pod.state, PodState::Refused(why) if why == RESTARTED) {
            self.run(id).cause_is_gone = true;
        }
        self.forget(id);
        self.pods.remove(id);
        self.changed();
    }

    /// A pod that ended well is gone, or says something else from now on.
    fn forget(&mut self, id: &PodId) {
        let pod = self.pods[id].pod.clone();
        let since = self.clock();
        if pod.state != PodState::Succeeded {
            return;
        }
        if self.queue.now() < self.operator.blind_until {
            self.run(id).unseen = true;
            return;
        }
        self.departed.retain(|gone| gone.since + REMEMBERED > since);
        self.departed.push(CollectedPod {
            job: pod.job,
            attempt: pod.attempt,
            rank: pod.rank,
            since,
        });
    }

    /// Pods that have ended and whose objects nobody holds back, in the order of their creation.
    fn ended_pods(&self) -> Vec<PodId> {
        let ended = |one: &&Running| one.pod.terminal && !one.pod.finalizer;
        let mut ended: Vec<&Running> = self.pods.values().filter(ended).collect();
        ended.sort_by_key(|one| one.born);
        let id = |one: &Running| (one.pod.job.clone(), one.pod.attempt, one.pod.rank);
        ended.into_iter().map(id).collect()
    }

    pub(crate) fn deed(&mut self, deed: Deed) {
        match deed {
            Deed::Suspend(key, suspend) => {
                if let Some(stored) = self.jobs.get_mut(&key) {
                    stored.job.suspend = suspend;
                    stored.version += 1;
                }
            }
            Deed::Delete(key) => {
                if let Some(stored) = self.jobs.get_mut(&key) {
                    stored.job.deleting = true;
                    stored.version += 1;
                }
                self.forget_if_deleted(&key);
            }
            Deed::DeleteForeground(key) => {
                if let Some(stored) = self.jobs.get_mut(&key) {
                    stored.job.deleting = true;
                    stored.version += 1;
                    let grace = stored.job.grace;
                    self.attempts.retain(|(job, _), _| *job != key);
                    self.keys.retain(|(job, _)| *job != key);
                    let pods: Vec<PodId> = self.pods.keys().cloned().collect();
                    for id in pods.iter().filter(|(job, ..)| *job == key) {
                        self.delete_pod(id, grace);
                    }
                }
                self.forget_if_deleted(&key);
            }
            Deed::CollectPods(most) => {
                for id in self.ended_pods().into_iter().take(most) {
                    self.delete_pod(&id, Duration::ZERO);
                }
            }
            Deed::Rewrite => {
                for id in self.ended_pods().into_iter().take(1) {
                    self.forget(&id);
                    if let Some(running) = self.pods.get_mut(&id) {
                        let why = "UnexpectedAdmissionError".to_owned();
                        running.pod.state = PodState::Refused(why);
                    }
                }
            }
            Deed::Storage(away) => self.storage_away = away,
            Deed::Create(job, program) => {
                self.to_come -= 1;
                let named = |key: &JobKey| (key.namespace.clone(), key.name.clone());
                if self.jobs.keys().any(|key| named(key) == named(&job.key)) {
                    self.after(1, Deed::Create(job, program));
                } else {
                    self.submit(*job, program);
                }
            }
            Deed::Cordon(name, cordoned) => {
                if let Some(machine) = self.machines.get_mut(&name) {
                    let wishes = &mut machine.node.wishes;
                    if cordoned {
                        wishes.insert(Wish::Cordoned, Timestamp::default());
                    } else {
                        wishes.remove(&Wish::Cordoned);
                    }
                }
            }
            Deed::Agent(name, is_there) => self.set_agent(&name, is_there),
            Deed::Taint(name, tainted) => {
                if let Some(machine) = self.machines.get_mut(&name) {
                    let taint = || "example.com/agent-not-ready".into();
                    machine.node.foreign_taint = tainted.then(taint);
                }
            }
            Deed::DeleteNode(name) => self.delete_node(name),
            Deed::Evict(key, rank) => {
                if let Some(stored) = self.jobs.get(&key) {
                    let id = (key, stored.job.status.attempt, rank);
                    let grace = stored.job.grace;
                    self.delete_pod(&id, grace);
                }
            }
        }
        self.changed();
    }
}
