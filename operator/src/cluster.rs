//! What the operator knows of the cluster: one mirror for each kind it reads, fed by watches and by
//! its own writes, and one signal that something changed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use contract::identity::JobId;
use crds::{Fabric, NodeValidationPolicy};
use kube::ResourceExt;
use scheduler::{JobKey, JobKind};
use tokio::sync::{Notify, watch};

use crate::labels::LabelPool;
use crate::mirror::{Mirror, MirrorOwner, Mirrored, NO_VERSION, ObjectKey};
use crate::training_job::job_view::JobView;
use crate::training_job::mirrored_job::MirroredJob;
use crate::training_job::translate::{MirroredAttempt, MirroredClaim, MirroredNode, MirroredPod};
use crate::workload::{Workload, object_key};

/// A mirror of which the API server has not shown for so long that it is complete is stale: whoever
/// has a fresher one should lead, and nothing is decided by what it does not show.
pub const STALE: Duration = Duration::from_secs(60);

/// All mirrors. Shared by the watches, the planner's loop and the rendezvous service.
#[derive(Debug, Default)]
pub struct SharedCluster {
    mirrors: Mutex<Mirrors>,
    changed: Notify,
    /// Counts requests for new listings.
    listings: watch::Sender<u64>,
    /// Jobs by what their sidecars call them, under a lock of its own: whoever asks has proved
    /// nothing yet.
    ids: Mutex<BTreeMap<JobId, JobKey>>,
    /// The labels of all nodes.
    pub labels: LabelPool,
}

/// Jobs that have gone are forgotten when there are twice as many as there are jobs, and these
/// more.
const FORGET: usize = 1024;

/// The mirrors, under one lock: a snapshot is of one moment.
#[derive(Debug, Default)]
pub struct Mirrors {
    /// Nodes.
    pub nodes: Mirror<MirroredNode>,
    /// TrainingJobs.
    pub jobs: Mirror<MirroredJob>,
    /// NodeValidations.
    pub validations: Mirror<MirroredJob>,
    /// ConfigMaps of attempts.
    pub attempts: Mirror<MirroredAttempt>,
    /// Pods of ours.
    pub pods: Mirror<MirroredPod>,
    /// Claims.
    pub claims: Mirror<MirroredClaim>,
    /// The Fabric.
    pub fabrics: Mirror<Fabric>,
    /// NodeValidationPolicies. No plan waits for them.
    pub policies: Mirror<NodeValidationPolicy>,
}

impl Mirrored for Fabric {
    type Derived = ();
}
impl Mirrored for NodeValidationPolicy {
    type Derived = ();
}

impl Mirrors {
    /// Whether every kind was listed once.
    pub fn is_synced(&self) -> bool {
        self.nodes.is_synced()
            && self.jobs.is_synced()
            && self.validations.is_synced()
            && self.attempts.is_synced()
            && self.pods.is_synced()
            && self.claims.is_synced()
            && self.fabrics.is_synced()
    }

    /// Whether every kind was listed since a request for it. One that is stale by now is not waited
    /// for: what it does not show decides nothing.
    pub fn is_listed(&self, request: u64, now: Instant) -> bool {
        let listed = [
            self.nodes.is_listed(request),
            self.jobs.is_listed(request),
            self.validations.is_listed(request),
            self.attempts.is_listed(request),
            self.pods.is_listed(request),
            self.claims.is_listed(request),
            self.fabrics.is_listed(request),
        ];
        let stale = |age: Option<Duration>| age.is_some_and(|age| age > STALE);
        let ages = self.ages(now);
        listed
            .into_iter()
            .zip(ages)
            .all(|(listed, (_, age))| listed || stale(age))
    }

    /// How long ago each mirror was known to be complete; none before its first listing.
    pub fn ages(&self, now: Instant) -> [(&'static str, Option<Duration>); 7] {
        let age = |complete_until: Option<Instant>| {
            complete_until.map(|at| now.saturating_duration_since(at))
        };
        [
            ("Node", age(self.nodes.complete_until())),
            ("TrainingJob", age(self.jobs.complete_until())),
            ("NodeValidation", age(self.validations.complete_until())),
            ("ConfigMap", age(self.attempts.complete_until())),
            ("Pod", age(self.pods.complete_until())),
            ("PersistentVolumeClaim", age(self.claims.complete_until())),
            ("Fabric", age(self.fabrics.complete_until())),
        ]
    }

    /// Whether some mirror is stale.
    pub fn is_stale(&self, now: Instant) -> bool {
        let is_stale = |(_, age): &(_, Option<Duration>)| age.is_none_or(|age| age > STALE);
        self.ages(now).iter().any(is_stale)
    }

    /// The jobs of one kind.
    pub fn of(&self, kind: JobKind) -> &Mirror<MirroredJob> {
        match kind {
            JobKind::TrainingJob => &self.jobs,
            JobKind::NodeValidation => &self.validations,
        }
    }

    /// The jobs of one kind, to be changed.
    pub fn of_mut(&mut self, kind: JobKind) -> &mut Mirror<MirroredJob> {
        match kind {
            JobKind::TrainingJob => &mut self.jobs,
            JobKind::NodeValidation => &mut self.validations,
        }
    }

    /// All jobs that are looked at in every pass, of whatever kind.
    pub fn all_jobs(&self) -> impl Iterator<Item = &MirroredJob> {
        self.jobs.values().chain(self.validations.values())
    }

    /// All jobs that are over, of whatever kind.
    pub fn all_over(&self) -> impl Iterator<Item = &MirroredJob> {
        self.jobs.resting().chain(self.validations.resting())
    }

    /// What is kept under the name of a job, perhaps of another of that name.
    pub fn named(&self, key: &JobKey) -> Option<&MirroredJob> {
        let (namespace, name) = object_key(key);
        self.of(key.kind).get(&namespace, &name)
    }

    /// The object of this name, if it is still the one with this uid, and not over.
    pub fn workload(&self, key: &JobKey) -> Option<&Workload> {
        let job = self.named(key)?.whole()?;
        (job.metadata().uid.as_deref() == Some(&*key.uid)).then_some(job)
    }

    /// The same of a TrainingJob.
    pub fn job(&self, key: &JobKey) -> Option<&Arc<JobView>> {
        self.workload(key)?.training()
    }

    /// The object of a job does not exist.
    pub fn job_missing(&mut self, key: &JobKey) {
        let (namespace, name) = object_key(key);
        self.of_mut(key.kind).missing(&namespace, &name);
    }

    /// The Fabric, once there is one.
    pub fn fabric(&self) -> Option<&Fabric> {
        self.fabrics.get("", crds::names::FABRIC)
    }
}

impl SharedCluster {
    /// The mirrors, locked: look or write, then let go. Never across an await.
    pub fn mirrors(&self) -> MutexGuard<'_, Mirrors> {
        // Every update leaves a mirror whole, so a panic elsewhere does not spoil it.
        self.mirrors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes by what name sidecars of this job ask for it.
    pub fn note_job(&self, key: &JobKey) {
        let id = JobId::new(&key.uid);
        let mut ids = self.ids();
        if ids.contains_key(&id) {
            return;
        }
        ids.insert(id, key.clone());
        let noted = ids.len();
        drop(ids);
        if noted > FORGET {
            self.forget_jobs(noted, id);
        }
    }

    /// The job that its sidecars call so. It may be gone.
    pub fn job_of(&self, id: JobId) -> Option<JobKey> {
        self.ids().get(&id).cloned()
    }

    /// Forgets jobs that are gone, when there are many of them. The newest is about to come into
    /// the mirror.
    fn forget_jobs(&self, noted: usize, newest: JobId) {
        let mirrors = self.mirrors();
        let complete = mirrors.jobs.is_synced() && !mirrors.jobs.is_listing();
        if complete && noted > 2 * mirrors.jobs.len() + FORGET {
            let stays = |id: &JobId, key: &JobKey| *id == newest || mirrors.job(key).is_some();
            self.ids().retain(|id, key| stays(id, key));
        }
    }

    fn ids(&self) -> MutexGuard<'_, BTreeMap<JobId, JobKey>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that something changed.
    pub fn notify(&self) {
        self.changed.notify_one();
    }

    /// Waits until something has changed since the last wait.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Asks for a new listing of every kind. Returns the number of the request.
    pub fn list_again(&self) -> u64 {
        self.listings.send_modify(|requests| *requests += 1);
        *self.listings.borrow()
    }

    /// Tells of requests for new listings.
    pub fn listings(&self) -> watch::Receiver<u64> {
        self.listings.subscribe()
    }

    /// Whether some mirror is so old that another replica may know better.
    pub fn is_stale(&self) -> bool {
        self.mirrors().is_stale(now())
    }
}

impl MirrorOwner for SharedCluster {
    type Mirrors = Mirrors;

    fn mirrors(&self) -> MutexGuard<'_, Mirrors> {
        Self::mirrors(self)
    }

    fn notify(&self) {
        Self::notify(self);
    }

    fn listings(&self) -> watch::Receiver<u64> {
        Self::listings(self)
    }
}

/// Our own clock, as the mirrors count by it.
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The key of an object in its mirror.
pub fn key_of<K: ResourceExt>(object: &K) -> ObjectKey {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// The version of an object; [`NO_VERSION`] when the API server sent none that is a number.
pub fn version_of<K: ResourceExt>(object: &K) -> u64 {
    object
        .resource_version()
        .and_then(|version| version.parse().ok())
        .unwrap_or(NO_VERSION)
}
