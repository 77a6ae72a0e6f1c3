//! What a leader knows of the API server: a copy of each kind, as a watch delivers it in order and
//! late, with the leader's own writes laid over it. The rules are those of the operator's mirrors.
//! Without copies it sees everything.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use scheduler::{
    Absent, Action, Attempt, CollectedPod, Job, JobKey, Node, Pod, PodState, Snapshot, Timestamp,
};
use sim::Rng;
use topology::NodeName;

use super::api::REMEMBERED;
use super::{Event, World};

/// Of what is older nothing is given away, as the operator has it.
const STALE: Duration = Duration::from_secs(60);
/// A watch says that it is complete no more often than this.
const BOOKMARK_MS: u64 = 5000;

/// Namespace and name of a job.
type Name = (Arc<str>, Arc<str>);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Nodes,
    Jobs,
    Attempts,
    Pods,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Nodes, Self::Jobs, Self::Attempts, Self::Pods];
}

#[derive(Debug)]
struct News<K, V> {
    at: Duration,
    due: Duration,
    version: u64,
    key: K,
    value: Option<V>,
}

/// The copy of one kind, by the names of the objects.
#[derive(Debug)]
struct WatchedCopy<K, V> {
    /// What there is, with the version of its last change.
    truth: BTreeMap<K, (u64, V)>,
    news: VecDeque<News<K, V>>,
    /// What the watch has delivered.
    delivered: BTreeMap<K, (u64, V)>,
    /// The same, and what the leader knows of its own writes.
    shown: BTreeMap<K, (u64, V)>,
    position: u64,
    /// The function that says whether a value is remembered when it is gone or replaced; and the
    /// values that are: as the leader knows, and as the watch of each replica has delivered.
    is_remembered: fn(&V) -> bool,
    departed: Vec<(Duration, V)>,
    missed: Vec<(Duration, V)>,
    /// From when until when the watch says nothing.
    hangs: Option<(Duration, Duration)>,
}

impl<K: Ord + Clone, V: Clone + PartialEq> WatchedCopy<K, V> {
    fn new(is_remembered: fn(&V) -> bool) -> Self {
        Self {
            is_remembered,
            departed: Vec::new(),
            missed: Vec::new(),
            truth: BTreeMap::new(),
            news: VecDeque::new(),
            delivered: BTreeMap::new(),
            shown: BTreeMap::new(),
            position: 0,
            hangs: None,
        }
    }

    /// Finds out what has changed. Returns when that is delivered.
    fn note(
        &mut self,
        objects: Vec<(K, V)>,
        now: Duration,
        lag: Duration,
        version: &mut u64,
    ) -> Option<Duration> {
        let last = self.news.back().map_or(Duration::ZERO, |news| news.due);
        let due = last.max(now + lag);
        let before = self.news.len();
        let mut left = std::mem::take(&mut self.truth);
        let mut changes = Vec::new();
        for (key, value) in objects {
            let old = left.remove(&key);
            if let Some(old) = old.filter(|(_, old)| *old == value) {
                self.truth.insert(key, old);
            } else {
                *version += 1;
                changes.push((*version, key.clone(), Some(value.clone())));
                self.truth.insert(key, (*version, value));
            }
        }
        for key in left.into_keys() {
            *version += 1;
            changes.push((*version, key, None));
        }
        for (version, key, value) in changes {
            self.news.push_back(News {
                at: now,
                due,
                version,
                key,
                value,
            });
        }
        (self.news.len() > before).then_some(due)
    }

    /// The watch delivers what is due.
    fn deliver(&mut self, now: Duration) -> bool {
        if self.hangs.is_some_and(|(_, until)| now < until) {
            return false;
        }
        self.hangs = None;
        let mut delivered = false;
        while self.news.front().is_some_and(|news| news.due <= now) {
            let Some(news) = self.news.pop_front() else {
                break;
            };
            delivered = true;
            self.position = news.version;
            match news.value {
                Some(value) => {
                    let old = self
                        .delivered
                        .insert(news.key.clone(), (news.version, value.clone()));
                    if !(self.is_remembered)(&value) {
                        self.remember(old, now, true);
                    }
                    self.set(news.key, (news.version, value));
                }
                None => {
                    let old = self.delivered.remove(&news.key);
                    self.remember(old, now, true);
                    if let Some((version, _)) = self.shown.get(&news.key)
                        && *version <= news.version
                    {
                        self.shown.remove(&news.key);
                    }
                }
            }
        }
        delivered
    }

    fn remember(&mut self, gone: Option<(u64, V)>, now: Duration, is_delivered: bool) {
        let Some((_, value)) = gone.filter(|(_, value)| (self.is_remembered)(value)) else {
            return;
        };
        for list in [&mut self.departed, &mut self.missed] {
            list.retain(|(at, _)| *at + REMEMBERED > now);
        }
        if is_delivered {
            self.missed.push((now, value.clone()));
        }
        self.departed.push((now, value));
    }

    fn set(&mut self, key: K, new: (u64, V)) {
        if self.shown.get(&key).is_none_or(|old| old.0 <= new.0) {
            self.shown.insert(key, new);
        }
    }

    /// Up to when the watch has delivered everything.
    fn complete(&self, now: Duration) -> Duration {
        let silent = self.hangs.map_or(now, |(from, _)| from);
        self.news.front().map_or(silent, |news| news.at.min(silent))
    }

    fn hang(&mut self, now: Duration, until: Duration) {
        let from = self.complete(now);
        self.hangs = Some((from, until));
    }

    /// The leader created an object, or found that it exists.
    fn created(&mut self, key: &K) {
        if let Some(found) = self.truth.get(key).filter(|found| found.0 > self.position) {
            self.set(key.clone(), found.clone());
        }
    }

    /// The leader has read an object.
    fn found(&mut self, key: &K, now: Duration) {
        match self.truth.get(key).cloned() {
            Some(found) => {
                if !(self.is_remembered)(&found.1) {
                    let old = self.shown.get(key).cloned();
                    self.remember(old, now, false);
                }
                self.set(key.clone(), found);
            }
            None => {
                let old = self.shown.remove(key);
                self.remember(old, now, false);
            }
        }
    }

    /// The leader has changed an object, or found it gone.
    fn changed(&mut self, key: &K, now: Duration) {
        if self.shown.contains_key(key) {
            self.found(key, now);
        }
    }

    fn values(&self) -> impl Iterator<Item = &V> {
        self.shown.values().map(|(_, value)| value)
    }
}

#[derive(Debug)]
pub(crate) struct Copies {
    nodes: WatchedCopy<NodeName, Node>,
    /// With what updates are conditional on.
    jobs: WatchedCopy<Name, (Job, u64)>,
    attempts: WatchedCopy<(Name, u32), Attempt>,
    pods: WatchedCopy<(Name, u32, u32), Pod>,
    /// The most milliseconds that each kind lags.
    lags: [u64; 4],
    rng: Rng,
    version: u64,
    /// When the leader began to lead.
    leads_from: Duration,
}

fn name_of(key: &JobKey) -> Name {
    (key.namespace.clone(), key.name.clone())
}

impl Copies {
    fn ages(&self, now: Duration) -> [Duration; 4] {
        [
            self.nodes.complete(now),
            self.jobs.complete(now),
            self.attempts.complete(now),
            self.pods.complete(now),
        ]
        .map(|complete| now.saturating_sub(complete))
    }
}

impl World {
    /// From now on the leader sees each kind as it was a little while ago.
    pub(crate) fn lag(&mut self, rng: &mut Rng) {
        let lags = [(); 4].map(|()| *rng.pick(&[5, 300, 3000, 10_000]));
        self.copies = Some(Copies {
            nodes: WatchedCopy::new(|_| false),
            jobs: WatchedCopy::new(|_| false),
            attempts: WatchedCopy::new(|_| false),
            pods: WatchedCopy::new(|pod: &Pod| pod.state == PodState::Succeeded),
            lags,
            rng: rng.fork(),
            version: 0,
            leads_from: Duration::ZERO,
        });
        self.note();
    }

    /// The watch of one kind says nothing for a while.
    pub(super) fn hang(&mut self, kind: Kind, length: Duration) {
        let now = self.queue.now();
        let until = now + length;
        let Some(copies) = &mut self.copies else {
            return;
        };
        match kind {
            Kind::Nodes => copies.nodes.hang(now, until),
            Kind::Jobs => copies.jobs.hang(now, until),
            Kind::Attempts => copies.attempts.hang(now, until),
            Kind::Pods => copies.pods.hang(now, until),
        }
        self.queue.at(until, Event::Deliver);
    }

    /// A node is not in what the leader knows, though it exists.
    pub(super) fn miss(&mut self, name: &NodeName) {
        if let Some(copies) = &mut self.copies {
            copies.nodes.delivered.remove(name);
            copies.nodes.shown.remove(name);
            self.changed();
        }
    }

    /// What has changed will be delivered.
    pub(super) fn note(&mut self) {
        let Some(mut copies) = self.copies.take() else {
            return;
        };
        let now = self.queue.now();
        let lags = copies.lags;
        let rng = &mut copies.rng;
        let [nodes, jobs, attempts, pods] =
            lags.map(|longest| Duration::from_millis(rng.range(0..longest)));
        let version = &mut copies.version;
        let machines = self.machines.values().filter(|machine| !machine.gone);
        let seen = machines.map(|machine| {
            let node = &machine.node;
            let suspect_until = None;
            (
                node.name.clone(),
                Node {
                    suspect_until,
                    ..node.clone()
                },
            )
        });
        let nodes = copies.nodes.note(seen.collect(), now, nodes, version);
        let seen = self.jobs.values();
        let seen = seen.map(|one| (name_of(&one.job.key), (one.job.clone(), one.version)));
        let jobs = copies.jobs.note(seen.collect(), now, jobs, version);
        let seen = self.attempts.values();
        let seen = seen.map(|one| ((name_of(&one.job), one.number), one.clone()));
        let attempts = copies.attempts.note(seen.collect(), now, attempts, version);
        let seen = self.pods.values().map(|running| &running.pod);
        let seen = seen.map(|pod| ((name_of(&pod.job), pod.attempt, pod.rank), pod.clone()));
        let pods = copies.pods.note(seen.collect(), now, pods, version);
        for due in [nodes, jobs, attempts, pods].into_iter().flatten() {
            self.queue.at(due, Event::Deliver);
        }
        self.copies = Some(copies);
    }

    /// The watches deliver what is due.
    pub(super) fn deliver(&mut self) {
        let now = self.queue.now();
        let Some(copies) = &mut self.copies else {
            return;
        };
        let delivered = [
            copies.nodes.deliver(now),
            copies.jobs.deliver(now),
            copies.attempts.deliver(now),
            copies.pods.deliver(now),
        ];
        if delivered.contains(&true) {
            self.changed();
        }
    }

    /// Another operator will lead: it knows what its watches have delivered, and nothing of the
    /// last one's writes.
    pub(super) fn forget_own_writes(&mut self, leads_from: Duration) {
        let Some(copies) = &mut self.copies else {
            return;
        };
        copies.leads_from = leads_from;
        copies.nodes.shown = copies.nodes.delivered.clone();
        copies.jobs.shown = copies.jobs.delivered.clone();
        copies.attempts.shown = copies.attempts.delivered.clone();
        copies.pods.shown = copies.pods.delivered.clone();
        copies.pods.departed = copies.pods.missed.clone();
    }

    /// Whether the leader has seen all that was there when it began to lead. It does not wait for a
    /// kind that is stale.
    pub(super) fn has_listed(&self) -> bool {
        let now = self.queue.now();
        self.copies.as_ref().is_none_or(|copies| {
            let leads = now.saturating_sub(copies.leads_from);
            let mut ages = copies.ages(now).into_iter();
            ages.all(|age| age <= leads || age > STALE)
        })
    }

    /// Replaces what there is by what the leader knows of it.
    pub(super) fn as_copied(&self, snapshot: &mut Snapshot) {
        let Some(copies) = &self.copies else {
            return;
        };
        let suspects = |node: &Node| Node {
            suspect_until: self.machines[&node.name].node.suspect_until,
            ..node.clone()
        };
        snapshot.nodes = copies.nodes.values().map(suspects).collect();
        snapshot.jobs = copies.jobs.values().map(|(job, _)| job.clone()).collect();
        snapshot.attempts = copies.attempts.values().cloned().collect();
        snapshot.pods = copies.pods.values().cloned().collect();
        let now = self.queue.now();
        let departed = copies.pods.departed.iter();
        let departed = departed.filter(|(at, _)| *at + REMEMBERED > now);
        let since = |at: Duration| Timestamp::default() + at + self.clocks.operator;
        snapshot.departed = departed
            .map(|(at, pod)| CollectedPod {
                job: pod.job.clone(),
                attempt: pod.attempt,
                rank: pod.rank,
                since: since(*at),
            })
            .collect();
        let rounded = |age: Duration| {
            let complete = now.saturating_sub(age).as_millis();
            let complete = u64::try_from(complete).unwrap();
            Duration::from_millis(complete - complete % BOOKMARK_MS)
        };
        let alive = copies.ages(now).map(rounded);
        snapshot.is_stale = alive.iter().any(|alive| now.saturating_sub(*alive) > STALE);
        let millis = u64::try_from(alive[3].as_millis()).unwrap();
        snapshot.pods_as_of = Some(Timestamp::from_millis(millis) + self.clocks.operator);
    }

    /// On which version of a job object the leader's next write is conditional.
    pub(super) fn known_version(&self, key: &JobKey) -> u64 {
        let Some(copies) = &self.copies else {
            return self.jobs.get(key).map_or(0, |stored| stored.version);
        };
        let shown = copies.jobs.shown.get(&name_of(key));
        let shown = shown.filter(|(_, (job, _))| job.key == *key);
        shown.map_or(0, |(_, (_, version))| *version)
    }

    /// Whether the leader knows of the pod: one that it does not know it cannot delete.
    pub(super) fn knows_pod(&self, key: &JobKey, attempt: u32, rank: u32) -> bool {
        self.copies.as_ref().is_none_or(|copies| {
            let shown = copies.pods.shown.get(&(name_of(key), attempt, rank));
            shown.is_some_and(|(_, pod)| pod.job == *key)
        })
    }

    /// The rendezvous service has written to a job object, as the leader.
    pub(super) fn saw_job(&mut self, key: &JobKey) {
        self.note();
        let now = self.queue.now();
        if let Some(copies) = &mut self.copies
            && now >= copies.leads_from
        {
            copies.jobs.changed(&name_of(key), now);
        }
    }

    /// The leader knows what it has written; and of a write that was refused it has looked why.
    pub(super) fn saw(&mut self, key: &JobKey, action: &Action, refused: bool) {
        self.note();
        let now = self.queue.now();
        let Some(copies) = &mut self.copies else {
            return;
        };
        let name = name_of(key);
        if refused {
            copies.jobs.changed(&name, now);
        }
        match action {
            Action::AddFinalizer | Action::RemoveFinalizer | Action::Record { .. } => {
                copies.jobs.changed(&name, now);
            }
            Action::CreateKey { .. } => {}
            Action::DeleteJob => drop(copies.jobs.shown.remove(&name)),
            Action::CreateAttempt(new) => copies.attempts.created(&(name, new.number)),
            Action::DeleteAttempt { attempt } => copies.attempts.changed(&(name, *attempt), now),
            Action::CreatePod { attempt, rank, .. } => {
                copies.pods.created(&(name, *attempt, *rank));
            }
            Action::StripPod { attempt, rank } => {
                copies.pods.changed(&(name, *attempt, *rank), now);
            }
            Action::DeletePod { attempt, rank, .. } => {
                let id = (name, *attempt, *rank);
                // Of pods that are deleted together the answer does not contain the new versions.
                if !copies.rng.chance(1, 2) {
                    copies.pods.changed(&id, now);
                } else if let Some((_, truth)) = copies.pods.truth.get(&id)
                    && let Some((_, shown)) = copies.pods.shown.get_mut(&id)
                    && shown.delete_by.is_none()
                {
                    (shown.delete_by, shown.grace) = (truth.delete_by, truth.grace);
                }
            }
        }
    }

    /// A read found an object, or that it is gone. Whether the leader sees now what there is.
    pub(super) fn has_read(&mut self, object: &Absent) -> bool {
        let now = self.queue.now();
        let Some(copies) = &mut self.copies else {
            return true;
        };
        match object {
            Absent::Job(key) => {
                let name = name_of(key);
                copies.jobs.changed(&name, now);
                copies.jobs.shown.contains_key(&name) == copies.jobs.truth.contains_key(&name)
            }
            Absent::Node(node) => {
                copies.nodes.found(node, now);
                true
            }
            Absent::Attempt { job, number } => {
                copies.attempts.found(&(name_of(job), *number), now);
                true
            }
            Absent::Pod { job, attempt, rank } => {
                copies.pods.found(&(name_of(job), *attempt, *rank), now);
                true
            }
        }
    }
}
