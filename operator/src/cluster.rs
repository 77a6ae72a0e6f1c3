//! What the operator knows of the cluster: one mirror for each kind it reads, fed by watches and by
//! its own writes, and one signal that something changed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crds::{Fabric, TrainingJob};
use kube::ResourceExt;
use tokio::sync::Notify;

use crate::mirror::{Kept, Key, Mirror};
use crate::training_job::translate::{Attempt, Claim, Node, Pod};

/// All mirrors. Shared by the watches, the planner's loop and the rendezvous service.
#[derive(Debug, Default)]
pub struct Cluster {
    mirrors: Mutex<Mirrors>,
    changed: Notify,
}

/// The mirrors, under one lock: a snapshot is of one moment.
#[derive(Debug, Default)]
pub struct Mirrors {
    /// Nodes.
    pub nodes: Mirror<Node>,
    /// TrainingJobs, whole: their templates are needed to build pods.
    pub jobs: Mirror<Arc<TrainingJob>>,
    /// ConfigMaps of attempts.
    pub attempts: Mirror<Attempt>,
    /// Pods of ours.
    pub pods: Mirror<Pod>,
    /// Claims.
    pub claims: Mirror<Claim>,
    /// The Fabric.
    pub fabrics: Mirror<Fabric>,
}

impl Kept for Arc<TrainingJob> {}
impl Kept for Fabric {}

impl Mirrors {
    /// Whether every kind was listed once.
    pub fn is_synced(&self) -> bool {
        self.nodes.is_synced()
            && self.jobs.is_synced()
            && self.attempts.is_synced()
            && self.pods.is_synced()
            && self.claims.is_synced()
            && self.fabrics.is_synced()
    }

    /// Drops what was created and never confirmed.
    pub fn expire(&mut self, now: Instant) {
        self.jobs.expire(now);
        self.attempts.expire(now);
        self.pods.expire(now);
    }

    /// The job of this name, if it is still the one with this uid.
    pub fn job(&self, key: &scheduler::JobKey) -> Option<&Arc<TrainingJob>> {
        let job = self.jobs.get(&key.namespace, &key.name)?;
        (job.metadata.uid.as_deref() == Some(&*key.uid)).then_some(job)
    }

    /// The Fabric, once there is one.
    pub fn fabric(&self) -> Option<&Fabric> {
        self.fabrics.get("", crds::names::FABRIC)
    }
}

impl Cluster {
    /// The mirrors, locked: look or write, then let go. Never across an await.
    pub fn mirrors(&self) -> MutexGuard<'_, Mirrors> {
        // Every update leaves a mirror whole, so a panic elsewhere does not spoil it.
        self.mirrors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that something changed.
    pub fn notify(&self) {
        self.changed.notify_one();
    }

    /// Waits until something has changed since the last wait.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// The key of an object in its mirror.
pub fn key_of<K: ResourceExt>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// The version of an object; 0 when the API server told none that is a number.
pub fn version_of<K: ResourceExt>(object: &K) -> u64 {
    object
        .resource_version()
        .and_then(|version| version.parse().ok())
        .unwrap_or(0)
}
