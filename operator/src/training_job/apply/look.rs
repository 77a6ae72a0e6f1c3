//! The part of `apply` that reads: what became of a write that failed.

use std::sync::Arc;
use std::time::Instant;

use crds::{NodeValidation, names};
use scheduler::{Action, JobKey, JobKind};

use super::Applier;
use crate::cluster::{key_of, version_of};
use crate::training_job::job_view::JobView;
use crate::training_job::{translate, write};
use crate::views::{AttemptView, NodeView, PodView};
use crate::watch;
use crate::workload::{Workload, object_key};

impl Applier {
    /// Reads the job; none when it is another one by now, or gone.
    pub(super) async fn look_at_job(&self, key: &JobKey) -> Result<Option<Workload>, write::Error> {
        let (namespace, name) = object_key(key);
        let found = match key.kind {
            JobKind::TrainingJob => {
                let job = self.writer.get::<JobView>(&namespace, &name).await;
                job.map(Workload::from)
            }
            JobKind::NodeValidation => {
                let job = self.writer.get::<NodeValidation>(&namespace, &name).await;
                job.map(Workload::from)
            }
        };
        match found {
            Ok(job) => {
                let job = job.slim();
                self.saw_job(&job);
                let same = job.metadata().uid.as_deref() == Some(&*key.uid);
                Ok(same.then_some(job))
            }
            Err(write::Error::Missing { .. }) => {
                self.cluster.mirrors().job_missing(key);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The same of a job that trains.
    pub(super) async fn look_at_training(
        &self,
        key: &JobKey,
    ) -> Result<Option<Arc<JobView>>, write::Error> {
        let job = self.look_at_job(key).await?;
        Ok(job.and_then(|job| job.training().cloned()))
    }

    /// Whether a job is gone for sure, or another one by now.
    pub async fn job_is_absent(&self, key: &JobKey) -> bool {
        matches!(self.look_at_job(key).await, Ok(None))
    }

    /// Whether the ConfigMap of an attempt is gone for sure. If it is not, it is seen.
    pub async fn attempt_is_absent(&self, namespace: &str, name: &str) -> bool {
        match self.writer.get::<AttemptView>(namespace, name).await {
            Ok(view) => {
                let found = watch::attempt(&view, &self.masters);
                // What somebody else put there is no attempt of ours.
                let is_absent = found.is_none();
                if let Some(attempt) = found {
                    let (at, version) = (key_of(&view), version_of(&view));
                    let mut mirrors = self.cluster.mirrors();
                    mirrors.attempts.found(at, version, attempt);
                }
                is_absent
            }
            Err(write::Error::Missing { .. }) => {
                self.cluster.mirrors().attempts.missing(namespace, name);
                true
            }
            Err(_still_unknown) => false,
        }
    }

    /// Whether a node is gone for sure. If it is not, it is seen.
    pub async fn node_is_absent(&self, name: &str) -> bool {
        match self.writer.get::<NodeView>("", name).await {
            Ok(view) => {
                let (at, version) = (key_of(&view), version_of(&view));
                let node = translate::node(view, &self.settings.taints, &self.cluster.labels);
                if let Some(node) = node {
                    self.cluster.mirrors().nodes.found(at, version, node);
                }
                false
            }
            Err(write::Error::Missing { .. }) => {
                self.cluster.mirrors().nodes.missing("", name);
                true
            }
            Err(_still_unknown) => false,
        }
    }

    /// Whether a pod is gone for sure. If it is not, it is seen.
    pub async fn pod_is_absent(&self, namespace: &str, name: &str) -> bool {
        match self.writer.get::<PodView>(namespace, name).await {
            Ok(view) => {
                let (at, version) = (key_of(&view), version_of(&view));
                if let Some(pod) = translate::pod(view) {
                    self.cluster.mirrors().pods.found(at, version, pod);
                }
                false
            }
            Err(write::Error::Missing { .. }) => {
                self.cluster.mirrors().pods.missing(namespace, name);
                true
            }
            Err(_still_unknown) => false,
        }
    }

    /// After a write that failed or whose outcome is not known: reads what it was about, so that
    /// the next plan does not rest on a guess.
    pub(super) async fn look_again(&self, key: &JobKey, action: &Action) {
        let (namespace, name) = (&key.namespace, &key.name);
        // What is still unknown then is for the next write to find out.
        self.look_at_job(key).await.ok();
        match action {
            Action::CreateAttempt(new) => {
                let attempt = names::attempt_name(name, new.number);
                let found = self.writer.get::<AttemptView>(namespace, &attempt).await;
                if let Ok(view) = found
                    && let Some(attempt) = watch::attempt(&view, &self.masters)
                {
                    let (at, version) = (key_of(&view), version_of(&view));
                    let mut mirrors = self.cluster.mirrors();
                    mirrors
                        .attempts
                        .created(at, version, attempt, Instant::now());
                }
            }
            Action::CreatePod { attempt, rank, .. }
            | Action::DeletePod { attempt, rank, .. }
            | Action::StripPod { attempt, rank } => {
                let pod = names::pod_name(name, *attempt, *rank);
                match self.writer.get::<PodView>(namespace, &pod).await {
                    Ok(view) => self.saw_pod(view),
                    Err(write::Error::Missing { .. }) => {
                        self.cluster.mirrors().pods.missing(namespace, &pod);
                    }
                    Err(_still_unknown) => {}
                }
            }
            Action::AddFinalizer
            | Action::RemoveFinalizer
            | Action::Record { .. }
            | Action::CreateKey { .. }
            | Action::DeleteAttempt { .. }
            | Action::DeleteJob => {}
        }
    }
}
