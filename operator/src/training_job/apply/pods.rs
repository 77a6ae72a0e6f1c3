//! The part of `apply` that writes pods: creates and deletes them, takes the finalizer off.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::names;
use kube::api::{DeleteParams, Patch};
use scheduler::{Action, JobKey};
use serde_json::json;

use super::{Applier, Error, Progress, same_uid};
use crate::clock;
use crate::cluster::{key_of, version_of};
use crate::node_validation;
use crate::training_job::observe::class_of;
use crate::training_job::pod::{self, Rank};
use crate::training_job::translate;
use crate::training_job::write::{self, NewObject};
use crate::views::PodView;
use crate::workload::Workload;

/// Pods that one request deletes: the selector goes into a URL.
const GROUP: usize = 128;

/// Pods of one attempt that are deleted together.
pub(super) struct Group {
    attempt: u32,
    ranks: Vec<u32>,
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
        let body = match job {
            Workload::Validation(validation) => {
                let role = {
                    let mirrors = self.cluster.mirrors();
                    node_validation::partner::role(validation, progress.fabric, &mirrors)
                };
                let role = role.as_ref();
                node_validation::pod::build(key, validation, &self.settings, attempt, node, role)
            }
            Workload::Training(job) => {
                let class = class_of(job, progress.fabric);
                let class = class.ok_or_else(|| stale("the node class"))?;
                let attempt_name = names::attempt_name(&key.name, attempt);
                let (resume, crossing) = {
                    let mirrors = self.cluster.mirrors();
                    let mirrored = mirrors.attempts.get(&key.namespace, &attempt_name);
                    let mirrored = mirrored.ok_or_else(|| stale("the attempt"))?;
                    (mirrored.resume.clone(), mirrored.attempt.crossing)
                };
                let place = Rank {
                    attempt,
                    key_name: &self.key_name(key, attempt, self.signer_of(key, attempt)),
                    rank,
                    node,
                    finalizer,
                    crossing,
                    resume: resume.as_ref(),
                };
                let held = progress.template.as_ref();
                let held = held.ok_or_else(|| stale("the template"))?;
                let template = held.text.template();
                let template =
                    template.map_err(|error| Error::Stale(format!("job {key}: {error}")))?;
                pod::build(job, &template, class, &self.settings, place)
            }
        };
        // Up to a hundred pods wait for their turn: as text, since a tree takes many times as much.
        let object = NewObject::from(&body);
        drop(body);
        let created = progress.writer.create::<PodView>(&key.namespace, object);
        match created.await {
            Ok(view) => {
                self.saw_pod(view);
                Ok(())
            }
            Err(write::Error::Exists { .. }) => {
                let name = names::pod_name(&key.name, attempt, rank);
                let view: PodView = self.writer.get(&key.namespace, &name).await?;
                let owner = translate::owner(&view.metadata);
                let found = translate::pod(view.clone());
                self.saw_pod(view);
                if found.is_some_and(|found| found.pod.job == *key) {
                    return Ok(());
                }
                // One that only points to the job is nobody's of ours.
                let owner = owner.filter(|owner| owner != key);
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
        if translate::job_of(&view.metadata).as_ref() != Some(key) {
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

    /// The deletions as few requests, so that a gang is asked to leave at once. None when they must
    /// go one by one: a selector does not find all of them.
    pub(super) fn groups(&self, key: &JobKey, actions: &[Action]) -> Option<Vec<Group>> {
        if actions.len() < 2 {
            return None;
        }
        let mirrors = self.cluster.mirrors();
        let mut groups: Vec<Group> = Vec::new();
        for action in actions {
            let Action::DeletePod {
                attempt,
                rank,
                grace,
            } = *action
            else {
                return None;
            };
            let name = names::pod_name(&key.name, attempt, rank);
            let mirrored = mirrors.pods.get(&key.namespace, &name);
            if mirrored.is_some_and(|mirrored| mirrored.pod.job != *key || !mirrored.is_labelled) {
                return None;
            }
            let grace_seconds = u32::try_from(grace.as_secs()).unwrap_or(u32::MAX);
            match groups.last_mut() {
                Some(group)
                    if (group.attempt, group.grace_seconds) == (attempt, grace_seconds)
                        && group.ranks.len() < GROUP =>
                {
                    group.ranks.push(rank);
                }
                Some(_) | None => groups.push(Group {
                    attempt,
                    ranks: vec![rank],
                    grace_seconds,
                }),
            }
        }
        Some(groups)
    }

    /// The API server deletes the pods of one request one after the other, so the requests go out
    /// together.
    pub(super) async fn delete_groups(
        &self,
        key: &JobKey,
        groups: Vec<Group>,
    ) -> Result<(), Error> {
        let deletions = groups.iter().map(|group| self.delete_group(key, group));
        // Each is tried to its end; the first failure is reported.
        let done = futures::future::join_all(deletions).await;
        done.into_iter().collect()
    }

    async fn delete_group(&self, key: &JobKey, group: &Group) -> Result<(), Error> {
        let Group {
            attempt,
            ranks,
            grace_seconds,
        } = group;
        let numbers: Vec<String> = ranks.iter().map(ToString::to_string).collect();
        // A later job of this name has another uid, and is not hit however late this arrives.
        let selector = format!(
            "{}={},{}={attempt},{} in ({})",
            names::LABEL_JOB_UID,
            key.uid,
            names::LABEL_ATTEMPT,
            names::LABEL_RANK,
            numbers.join(","),
        );
        let params = DeleteParams::default().grace_period(*grace_seconds);
        self.writer
            .delete_all::<PodView>(&key.namespace, &selector, &params)
            .await?;
        // The answer shows the pods as they were before, so what follows is noted here.
        let grace = Duration::from_secs((*grace_seconds).into());
        let delete_by = clock::now() + grace;
        let mut mirrors = self.cluster.mirrors();
        for rank in ranks {
            let name = names::pod_name(&key.name, *attempt, *rank);
            mirrors.pods.touched(&key.namespace, &name, |mirrored| {
                if mirrored.pod.delete_by.is_none() {
                    mirrored.pod.delete_by = Some(delete_by);
                    mirrored.pod.grace = grace;
                }
            });
        }
        Ok(())
    }

    fn pod_uid(&self, key: &JobKey, name: &str) -> Option<Arc<str>> {
        let mirrors = self.cluster.mirrors();
        let mirrored = mirrors.pods.get(&key.namespace, name)?;
        (mirrored.pod.job == *key).then(|| Arc::clone(&mirrored.uid))
    }
}
