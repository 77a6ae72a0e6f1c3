//! The part of `apply` that writes pods: creates and deletes them, takes the finalizer off.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::names;
use k8s_openapi::jiff;
use kube::api::{DeleteParams, Patch, Preconditions};
use scheduler::{Action, JobKey, Timestamp};
use serde_json::json;

use super::{Applier, Error, Progress};
use crate::cluster::{key_of, version_of};
use crate::training_job::observe::class_of;
use crate::training_job::pod::{self, Rank};
use crate::training_job::translate;
use crate::training_job::write;
use crate::views::PodView;

/// Pods that a deletion of all others may name as exceptions: the selector goes into a URL.
const SPARED: usize = 16;

/// Pods of one attempt that are deleted together.
pub(super) struct Group {
    attempt: u32,
    ranks: BTreeSet<u32>,
    /// Other pods of the attempt, which stay.
    spared: Vec<u32>,
    grace_seconds: u32,
}

impl Applier {
    pub(super) async fn act_on_pod(
        &self,
        progress: &Progress<'_>,
        action: &Action,
    ) -> Result<(), Error> {
        match action {
            Action::CreatePod {
                attempt,
                rank,
                node,
                finalizer,
            } => {
                self.create_pod(progress, *attempt, *rank, node.as_str(), *finalizer)
                    .await
            }
            Action::DeletePod {
                attempt,
                rank,
                grace,
            } => {
                let seconds = u32::try_from(grace.as_secs()).unwrap_or(u32::MAX);
                self.delete_pod(progress.key, *attempt, *rank, seconds)
                    .await
            }
            Action::StripPod { attempt, rank } => {
                self.strip_pod(progress.key, *attempt, *rank).await
            }
            Action::AddFinalizer
            | Action::RemoveFinalizer
            | Action::Record { .. }
            | Action::CreateAttempt(_)
            | Action::CreateKey { .. }
            | Action::DeleteAttempt { .. }
            | Action::DeleteJob => Ok(()),
        }
    }

    async fn create_pod(
        &self,
        progress: &Progress<'_>,
        attempt: u32,
        rank: u32,
        node: &str,
        finalizer: bool,
    ) -> Result<(), Error> {
        let key = progress.key;
        let stale = |what: &str| Error::Stale(format!("{what} of job {key} is gone"));
        let job = progress.job.as_ref().ok_or_else(|| stale("the object"))?;
        let class = class_of(job, progress.fabric).ok_or_else(|| stale("the node class"))?;
        let attempt_name = names::attempt_name(&key.name, attempt);
        let resume = {
            let mirrors = self.cluster.mirrors();
            let kept = mirrors.attempts.get(&key.namespace, &attempt_name);
            kept.ok_or_else(|| stale("the attempt"))?.resume.clone()
        };
        let place = Rank {
            attempt,
            key_name: &self.key_name(key, attempt),
            rank,
            node,
            finalizer,
            resume: resume.as_ref(),
        };
        let body = pod::build(job, class, &self.settings, place);
        match self.writer.create::<PodView>(&key.namespace, &body).await {
            Ok(view) => {
                self.saw_pod(view);
                Ok(())
            }
            Err(write::Error::Exists { .. }) => {
                let name = names::pod_name(&key.name, attempt, rank);
                let view: PodView = self.writer.get(&key.namespace, &name).await?;
                let owner = translate::owner(&view.metadata);
                self.saw_pod(view);
                if owner.as_ref() == Some(key) {
                    return Ok(());
                }
                Err(Error::taken("pod", &name, key, owner))
            }
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn saw_pod(&self, view: PodView) {
        let (key, version) = (key_of(&view), version_of(&view));
        if let Some(pod) = translate::pod(view) {
            self.cluster
                .mirrors()
                .pods
                .created(key, version, pod, Instant::now());
        }
    }

    async fn delete_pod(
        &self,
        key: &JobKey,
        attempt: u32,
        rank: u32,
        grace_seconds: u32,
    ) -> Result<(), Error> {
        let name = names::pod_name(&key.name, attempt, rank);
        let Some(uid) = self.pod_uid(key, &name) else {
            return Ok(());
        };
        let params = DeleteParams::default()
            .grace_period(grace_seconds)
            .preconditions(same_uid(&uid));
        let left = self
            .writer
            .delete::<PodView>(&key.namespace, &name, &params)
            .await;
        let mut mirrors = self.cluster.mirrors();
        match left {
            Ok(Some(view)) => {
                let (at, version) = (key_of(&view), version_of(&view));
                if let Some(pod) = translate::pod(view) {
                    mirrors.pods.changed(at, version, pod);
                }
                Ok(())
            }
            Ok(None) | Err(write::Error::Missing { .. }) => {
                mirrors.pods.missing(&key.namespace, &name);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The pod's other finalizers are others' business, so it is read first.
    async fn strip_pod(&self, key: &JobKey, attempt: u32, rank: u32) -> Result<(), Error> {
        let name = names::pod_name(&key.name, attempt, rank);
        let view: PodView = match self.writer.get(&key.namespace, &name).await {
            Ok(view) => view,
            Err(write::Error::Missing { .. }) => {
                self.cluster.mirrors().pods.missing(&key.namespace, &name);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        if translate::owner(&view.metadata).as_ref() != Some(key) {
            return Err(Error::Stale(format!("pod {name} belongs to another job")));
        }
        let mut finalizers = view.metadata.finalizers.clone().unwrap_or_default();
        finalizers.retain(|finalizer| finalizer != names::FINALIZER);
        let last = finalizers.is_empty() && view.metadata.deletion_timestamp.is_some();
        let patch = Patch::Merge(json!({"metadata": {
            "finalizers": finalizers,
            "resourceVersion": view.metadata.resource_version,
        }}));
        match self
            .writer
            .patch::<PodView>(&key.namespace, &name, None, &patch)
            .await
        {
            Ok(view) => {
                let (at, version) = (key_of(&view), version_of(&view));
                let over = matches!(view.status.phase.as_str(), "Succeeded" | "Failed");
                let mut mirrors = self.cluster.mirrors();
                if last && over {
                    mirrors.pods.missing(&key.namespace, &name);
                } else if let Some(pod) = translate::pod(view) {
                    mirrors.pods.changed(at, version, pod);
                }
                Ok(())
            }
            Err(write::Error::Missing { .. }) => {
                self.cluster.mirrors().pods.missing(&key.namespace, &name);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The deletions as one request, when they are all or nearly all pods of an attempt: a gang of
    /// 1,250 is then released by one write. The pods were seen with this job's uid; the selector
    /// names it by job and attempt.
    pub(super) fn group(&self, key: &JobKey, actions: &[Action]) -> Option<Group> {
        let Action::DeletePod { attempt, grace, .. } = *actions.first()? else {
            return None;
        };
        let ranks: Option<BTreeSet<u32>> = actions
            .iter()
            .map(|action| {
                let Action::DeletePod {
                    attempt: other,
                    rank,
                    grace: same,
                } = *action
                else {
                    return None;
                };
                (other == attempt && same == grace).then_some(rank)
            })
            .collect();
        let ranks = ranks?;
        let mirrors = self.cluster.mirrors();
        let of_attempt = mirrors.pods.values().filter(|kept| {
            let same_name =
                (&kept.pod.job.namespace, &kept.pod.job.name) == (&key.namespace, &key.name);
            same_name && kept.pod.attempt == attempt
        });
        let mut spared = Vec::new();
        for kept in of_attempt {
            if kept.pod.job != *key {
                return None; // Of an earlier job of this name: one by one, by uid.
            }
            if !ranks.contains(&kept.pod.rank) {
                spared.push(kept.pod.rank);
            }
        }
        let grace_seconds = u32::try_from(grace.as_secs()).unwrap_or(u32::MAX);
        (spared.len() <= SPARED).then_some(Group {
            attempt,
            ranks,
            spared,
            grace_seconds,
        })
    }

    pub(super) async fn delete_group(&self, key: &JobKey, group: Group) -> Result<(), Error> {
        let Group {
            attempt,
            ranks,
            spared,
            grace_seconds,
        } = group;
        let mut selector = format!(
            "{}={},{}={attempt}",
            names::LABEL_JOB,
            key.name,
            names::LABEL_ATTEMPT
        );
        if !spared.is_empty() {
            let spared: Vec<String> = spared.iter().map(ToString::to_string).collect();
            selector.push_str(&format!(
                ",{} notin ({})",
                names::LABEL_RANK,
                spared.join(",")
            ));
        }
        let params = DeleteParams::default().grace_period(grace_seconds);
        self.writer
            .delete_all::<PodView>(&key.namespace, &selector, &params)
            .await?;
        // The answer shows the pods as they were before, so what follows is noted here.
        let delete_by = now() + Duration::from_secs(grace_seconds.into());
        let mut mirrors = self.cluster.mirrors();
        for rank in ranks {
            let name = names::pod_name(&key.name, attempt, rank);
            mirrors.pods.touched(&key.namespace, &name, |kept| {
                kept.pod.delete_by.get_or_insert(delete_by);
            });
        }
        Ok(())
    }

    fn pod_uid(&self, key: &JobKey, name: &str) -> Option<Arc<str>> {
        let mirrors = self.cluster.mirrors();
        let kept = mirrors.pods.get(&key.namespace, name)?;
        (kept.pod.job == *key).then(|| Arc::clone(&kept.uid))
    }
}

fn now() -> Timestamp {
    let millis = jiff::Timestamp::now().as_millisecond();
    Timestamp::from_millis(u64::try_from(millis).unwrap_or(0))
}

fn same_uid(uid: &str) -> Preconditions {
    Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: None,
    }
}
