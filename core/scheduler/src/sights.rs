//! For how long the planner has seen things as they are, by its own clock: whatever is waited for
//! is measured from here. The clocks of the API server and of kubelets give an order and inform
//! people; they may be minutes off. Holds no more than the last snapshot did.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use topology::NodeName;

use crate::node::{Ready, Wish};
use crate::pin::interrupting;
use crate::policy::Policy;
use crate::snapshot::{Job, JobKey, Node, Pod, PodState, Snapshot};
use crate::status::JobPhase;
use crate::time::Timestamp;

/// When a planner first saw what its last snapshot shows. Starts empty: a new leader is patient
/// anew.
#[derive(Clone, Debug, Default)]
pub struct Sights {
    began: Option<Timestamp>,
    nodes: BTreeMap<NodeName, NodeSight>,
    unheard: BTreeMap<NodeName, Timestamp>,
    jobs: BTreeMap<JobKey, JobSight>,
    attempts: BTreeMap<(JobKey, u32), Timestamp>,
    /// By attempt and rank, of each job.
    pods: BTreeMap<JobKey, BTreeMap<(u32, u32), PodSight>>,
}

#[derive(Clone, Debug, Default)]
struct NodeSight {
    unready: Option<Timestamp>,
    wishes: BTreeMap<Wish, Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct JobSight {
    phase: JobPhase,
    attempt: u32,
    since: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Unbound,
    Bound,
    Running,
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct PodSight {
    step: Step,
    /// First sight of the pod, and of its step.
    seen: Timestamp,
    since: Timestamp,
    /// The most steps of its preparation that were seen: to repeat one is no progress.
    steps: u32,
    blocked: Option<Blocked>,
    /// Its grace, and when that is over.
    leaving: Option<(Duration, Timestamp)>,
}

/// Longest time that a kubelet waits before it pulls an image again, and some more.
const LONGEST_BACK_OFF: Duration = Duration::from_mins(6);

/// Something that a pod needs is missing, or was a moment ago.
#[derive(Clone, Copy, Debug)]
struct Blocked {
    first: Timestamp,
    last: Timestamp,
    /// Since when its kubelet has said nothing but that it waits before it pulls again.
    backs_off: Option<Timestamp>,
}

impl Blocked {
    fn at(now: Timestamp) -> Self {
        Self {
            first: now,
            last: now,
            backs_off: None,
        }
    }

    /// Notes what is seen of a pod that cannot start. Returns true if its kubelet pulls the image:
    /// it says of a failed pull that it waits, and goes on to say so during the next pull, however
    /// long that takes.
    fn note(&mut self, backs_off: bool, now: Timestamp) -> bool {
        self.last = now;
        self.backs_off = backs_off.then(|| self.backs_off.unwrap_or(now));
        let is_pulled = self
            .backs_off
            .is_some_and(|since| now >= since + LONGEST_BACK_OFF);
        if is_pulled {
            self.first = now;
        }
        is_pulled
    }
}

impl Sights {
    /// Fills in since when things are as the snapshot shows them, and which nodes pinned jobs want
    /// to be left. Forgets what it does not show.
    pub fn fill_in(&mut self, snapshot: &mut Snapshot, policy: &Policy, now: Timestamp) {
        let began = *self.began.get_or_insert(now);
        snapshot.heartbeats_known_at = began + policy.listen_grace;
        wish_for_pinned(snapshot, now);
        let nodes = std::mem::take(&mut self.nodes);
        for node in &mut snapshot.nodes {
            self.node(node, nodes.get(&node.name), now);
        }
        self.listen(snapshot, now);
        let jobs = std::mem::take(&mut self.jobs);
        for job in &mut snapshot.jobs {
            self.job(job, jobs.get(&job.key), now);
        }
        let attempts = std::mem::take(&mut self.attempts);
        for attempt in &mut snapshot.attempts {
            let key = (attempt.job.clone(), attempt.number);
            attempt.seen = attempts.get(&key).copied().unwrap_or(now);
            self.attempts.insert(key, attempt.seen);
        }
        self.pods(&mut snapshot.pods, now);
    }

    fn node(&mut self, node: &mut Node, old: Option<&NodeSight>, now: Timestamp) {
        let is_unready = node.ready != Ready::True;
        let unready = old.and_then(|old| old.unready).unwrap_or(now);
        node.unready_since = if is_unready { unready } else { now };
        for (wish, since) in &mut node.wishes {
            let known = old.and_then(|old| old.wishes.get(wish));
            *since = known.copied().unwrap_or(now);
        }
        if is_unready || !node.wishes.is_empty() {
            let sight = NodeSight {
                unready: is_unready.then_some(unready),
                wishes: node.wishes.clone(),
            };
            self.nodes.insert(node.name.clone(), sight);
        }
    }

    /// Notes which nodes are not heard though only that speaks for them.
    fn listen(&mut self, snapshot: &mut Snapshot, now: Timestamp) {
        let liveness = snapshot.liveness.values();
        let alive: BTreeSet<_> = liveness.flat_map(|gang| &gang.alive).collect();
        let known: BTreeSet<_> = snapshot.nodes.iter().map(|one| &one.name).collect();
        let is_gone = |name: &&NodeName| !known.contains(name);
        let used = snapshot.attempts.iter().flat_map(|one| &one.nodes);
        let unknown = snapshot
            .nodes
            .iter()
            .filter(|one| one.ready == Ready::Unknown);
        let unheard = unknown.map(|one| &one.name).chain(used.filter(is_gone));
        let unheard = unheard.filter(|name| !alive.contains(name)).map(|name| {
            let since = self.unheard.get(name);
            (name.clone(), since.copied().unwrap_or(now))
        });
        self.unheard = unheard.collect();
        snapshot.unheard_since.clone_from(&self.unheard);
    }

    fn job(&mut self, job: &mut Job, old: Option<&JobSight>, now: Timestamp) {
        let (phase, attempt) = (job.status.phase, job.status.attempt);
        let same = old.filter(|old| (old.phase, old.attempt) == (phase, attempt));
        // Of one that is over the caller may know since when.
        let first = match job.seen == Timestamp::default() {
            true => now,
            false => job.seen.min(now),
        };
        job.seen = same.map_or(first, |old| old.since);
        let sight = JobSight {
            phase,
            attempt,
            since: job.seen,
        };
        self.jobs.insert(job.key.clone(), sight);
    }

    fn pods(&mut self, pods: &mut [Pod], now: Timestamp) {
        let old = std::mem::take(&mut self.pods);
        // The stock scheduler binds in the order of creation. As long as it binds what was created
        // no later than a pod, that pod is not overdue.
        let mut bound: Option<Timestamp> = None;
        for of_job in pods.chunk_by_mut(|one, next| one.job == next.job) {
            let Some(job) = of_job.first().map(|pod| pod.job.clone()) else {
                continue;
            };
            let old = old.get(&job);
            let sights = self.pods.entry(job).or_default();
            for pod in of_job {
                let key = (pod.attempt, pod.rank);
                let step = step(pod);
                let steps = pod.preparation.as_ref().map_or(0, |at| at.steps);
                let before = old.and_then(|old| old.get(&key));
                let mut sight = match before {
                    Some(before) if before.step == step && steps <= before.steps => *before,
                    Some(_) | None => PodSight {
                        step,
                        seen: before.map_or(now, |before| before.seen),
                        since: now,
                        steps: before.map_or(steps, |before| before.steps.max(steps)),
                        blocked: None,
                        leaving: before.and_then(|before| before.leaving),
                    },
                };
                let mut is_blocked = matches!(pod.state, PodState::Blocked(_));
                if is_blocked {
                    let backs_off = pod.preparation.as_ref().is_some_and(|at| at.backs_off);
                    let blocked = sight.blocked.get_or_insert(Blocked::at(now));
                    if blocked.note(backs_off, now) {
                        pod.state = PodState::Starting;
                        is_blocked = false;
                    }
                } else {
                    sight.blocked = sight
                        .blocked
                        .filter(|one| now < one.last + LONGEST_BACK_OFF);
                }
                if before.is_some_and(|before| before.step == Step::Unbound)
                    && step != Step::Unbound
                {
                    bound = Some(bound.map_or(sight.seen, |first| first.min(sight.seen)));
                }
                sight.leaving = pod.delete_by.map(|_| {
                    let over = now + pod.grace;
                    match sight.leaving {
                        Some((grace, due)) if grace == pod.grace => (grace, due),
                        Some((_, due)) => (pod.grace, due.min(over)),
                        None => (pod.grace, over),
                    }
                });
                pod.delete_by = sight.leaving.map(|(_, due)| due);
                let blocked = sight.blocked.filter(|_| is_blocked);
                pod.since = blocked.map_or(sight.since, |blocked| blocked.first);
                sights.insert(key, sight);
            }
        }
        let Some(bound) = bound else {
            return;
        };
        for pod in pods.iter_mut().filter(|pod| pod.state == PodState::Unbound) {
            let sights = self.pods.get_mut(&pod.job);
            if let Some(sight) = sights.and_then(|sights| sights.get_mut(&(pod.attempt, pod.rank)))
                && sight.seen >= bound
            {
                sight.since = now;
                pod.since = now;
            }
        }
    }
}

fn step(pod: &Pod) -> Step {
    match pod.state {
        PodState::Unbound => Step::Unbound,
        PodState::Starting | PodState::Blocked(_) => Step::Bound,
        PodState::Running => Step::Running,
        PodState::Succeeded
        | PodState::Interrupted { .. }
        | PodState::Failed(_)
        | PodState::Refused(_) => Step::Ended,
    }
}

/// Whoever trains on a node that a pinned job interrupts is to leave it.
fn wish_for_pinned(snapshot: &mut Snapshot, now: Timestamp) {
    let wishes = interrupting(snapshot, now);
    for node in &mut snapshot.nodes {
        for by in wishes.get(&node.name).into_iter().flatten() {
            node.wishes.insert(Wish::Validated(Arc::clone(by)), now);
        }
    }
}
