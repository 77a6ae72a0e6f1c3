//! Carries out a plan: the only code that writes to the API server for jobs. Each job's actions go
//! in their order and stop at the first that fails; what a write answers is laid over the mirrors,
//! so that the next plan contains it.

mod attempts;
mod pods;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crds::fabric::FabricSpec;
use crds::names;
use crds::training_job::TrainingJob;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::events::v1::Event as ApiEvent;
use k8s_openapi::jiff;
use kube::api::{DeleteParams, Patch, Preconditions};
use scheduler::{Action, Event, JobKey, JobPlan, Plan, Status};
use serde_json::json;
use tracing::{debug, info, warn};

use crate::cluster::{Cluster, key_of, version_of};
use crate::training_job::pod::Settings;
use crate::training_job::status;
use crate::training_job::write::{self, Writer};
use crate::views::{AttemptView, PodView};
use crate::watch;

/// Longest note of an Event that the API server takes.
const NOTE_BYTES: usize = 1000;

/// Why a job's actions stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A write failed.
    #[error(transparent)]
    Write(#[from] write::Error),
    /// Somebody else decided this attempt, or the job is another one by now.
    #[error("{0}; looking again")]
    Stale(String),
    /// A name that the job needs is taken by something else.
    #[error("failed to create {what}: {owner} has one of this name")]
    Taken {
        /// What was to be created.
        what: String,
        /// Whose it is.
        owner: String,
        /// Whether it goes away by itself.
        leaving: bool,
    },
    /// The assignment could not be packed.
    #[error(transparent)]
    Assignment(#[from] wire::assignment::Error),
}

impl Error {
    /// How long and in which way the job has to wait.
    pub fn wait(&self) -> Wait {
        match self {
            Self::Stale(_) | Self::Write(write::Error::Conflict { .. }) => Wait::Look,
            Self::Write(write::Error::Refused { reason, .. }) => {
                Wait::Refused(format!("the API server refuses its objects: {reason}"))
            }
            Self::Taken { leaving: false, .. } => Wait::Refused(self.to_string()),
            Self::Write(_) | Self::Taken { .. } | Self::Assignment(_) => Wait::Retry,
        }
    }
}

/// What helps after a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Looking again is all it takes.
    Look,
    /// Trying again later.
    Retry,
    /// Only somebody can help; the sentence says what is wrong.
    Refused(String),
}

/// The jobs as the snapshot saw them.
pub type Jobs = BTreeMap<JobKey, Arc<TrainingJob>>;

/// Carries out plans.
#[derive(Clone, Debug)]
pub struct Applier {
    /// Sends.
    pub writer: Writer,
    /// Takes the answers.
    pub cluster: Arc<Cluster>,
    /// What all pods have in common.
    pub settings: Settings,
    /// From which each attempt's key is derived.
    pub master: Arc<[u8]>,
    /// Name of this operator's pod, for Events.
    pub instance: String,
}

/// The state of one job's application: its version after the last own write.
struct Progress<'a> {
    key: &'a JobKey,
    job: Option<Arc<TrainingJob>>,
    fabric: &'a FabricSpec,
}

impl Applier {
    /// Applies a plan, all jobs at once. Returns how each job that stopped early did so.
    pub async fn apply(
        &self,
        plan: Plan,
        jobs: &Jobs,
        fabric: &FabricSpec,
    ) -> Vec<(JobKey, Error)> {
        let mut running: FuturesUnordered<_> = plan
            .jobs
            .into_iter()
            .map(|plan| self.apply_job(plan, jobs, fabric))
            .collect();
        let mut stopped = Vec::new();
        while let Some((key, result)) = running.next().await {
            if let Err(error) = result {
                stopped.push((key, error));
            }
        }
        stopped
    }

    async fn apply_job(
        &self,
        plan: JobPlan,
        jobs: &Jobs,
        fabric: &FabricSpec,
    ) -> (JobKey, Result<(), Error>) {
        let JobPlan { job: key, actions } = plan;
        let mut progress = Progress {
            key: &key,
            job: jobs.get(&key).cloned(),
            fabric,
        };
        let mut result = Ok(());
        let mut rest = &actions[..];
        while let Some(first) = rest.first() {
            let alike = rest
                .iter()
                .take_while(|action| go_together(first, action))
                .count();
            let (now, later) = rest.split_at(alike.max(1));
            result = match now {
                [one] => self.act(&mut progress, one).await,
                several => self.act_together(&progress, several).await,
            };
            if result.is_err() {
                self.look_again(&key, &now[..1]).await;
                break;
            }
            rest = later;
        }
        (key, result)
    }

    /// Actions on pods of one kind: they do not depend on each other.
    async fn act_together(&self, progress: &Progress<'_>, actions: &[Action]) -> Result<(), Error> {
        debug!(job = %progress.key, action = kind(&actions[0]), pods = actions.len(), "applying");
        if let Some(group) = self.group(progress.key, actions) {
            match self.delete_group(progress.key, group).await {
                // An operator newer than its chart may not delete collections: one by one then.
                Err(Error::Write(write::Error::Refused { .. })) => {}
                done => return done,
            }
        }
        let mut running: FuturesUnordered<_> = actions
            .iter()
            .map(|action| self.act_on_pod(progress, action))
            .collect();
        let mut result = Ok(());
        while let Some(one) = running.next().await {
            // All are tried: what succeeded is seen, the first failure is told.
            if result.is_ok() {
                result = one;
            }
        }
        result
    }

    async fn act(&self, progress: &mut Progress<'_>, action: &Action) -> Result<(), Error> {
        debug!(job = %progress.key, action = kind(action), "applying");
        match action {
            Action::AddFinalizer => self.set_finalizer(progress, true).await,
            Action::RemoveFinalizer => self.set_finalizer(progress, false).await,
            Action::Record { status, event } => {
                self.record(progress, status).await?;
                if let Some(event) = event {
                    self.publish(progress, event).await;
                }
                Ok(())
            }
            Action::CreateAttempt(attempt) => self.create_attempt(progress, attempt).await,
            Action::DeleteAttempt { attempt } => self.delete_attempt(progress.key, *attempt).await,
            Action::DeleteJob => self.delete_job(progress).await,
            Action::CreatePod { .. } | Action::DeletePod { .. } | Action::StripPod { .. } => {
                self.act_on_pod(progress, action).await
            }
        }
    }

    async fn set_finalizer(&self, progress: &mut Progress<'_>, present: bool) -> Result<(), Error> {
        let Some(job) = &progress.job else {
            return Ok(()); // Gone, and its finalizers with it.
        };
        let mut finalizers = job.metadata.finalizers.clone().unwrap_or_default();
        finalizers.retain(|finalizer| finalizer != names::FINALIZER);
        if present {
            finalizers.push(names::FINALIZER.to_owned());
        }
        let metadata = json!({
            "finalizers": finalizers,
            "resourceVersion": job.metadata.resource_version,
            "uid": job.metadata.uid,
        });
        let patch = Patch::Merge(json!({"metadata": metadata}));
        let (namespace, name) = (&progress.key.namespace, &progress.key.name);
        match self
            .writer
            .patch::<TrainingJob>(namespace, name, None, &patch)
            .await
        {
            Ok(job) => {
                let gone = !present && job.metadata.deletion_timestamp.is_some();
                let job = watch::slim_job(job);
                let mut mirrors = self.cluster.mirrors();
                if gone && job.metadata.finalizers.as_ref().is_none_or(Vec::is_empty) {
                    mirrors.jobs.missing(namespace, name);
                } else {
                    mirrors
                        .jobs
                        .changed(key_of(&*job), version_of(&*job), Arc::clone(&job));
                }
                drop(mirrors);
                progress.job = Some(job);
                Ok(())
            }
            Err(write::Error::Missing { .. }) if !present => {
                self.cluster.mirrors().jobs.missing(namespace, name);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn record(&self, progress: &mut Progress<'_>, status: &Status) -> Result<(), Error> {
        let Some(job) = &progress.job else {
            return Err(Error::Stale(format!("job {} is gone", progress.key)));
        };
        let (namespace, name) = (&progress.key.namespace, &progress.key.name);
        let body = json!({
            "apiVersion": format!("{}/v1alpha1", names::GROUP),
            "kind": "TrainingJob",
            "metadata": {
                "name": &**name,
                "namespace": &**namespace,
                "uid": job.metadata.uid,
                "resourceVersion": job.metadata.resource_version,
            },
            "status": status::to_api(status, name, job.metadata.generation),
        });
        let patch = Patch::Apply(body);
        let job: TrainingJob = self
            .writer
            .patch(namespace, name, Some("status"), &patch)
            .await?;
        let job = watch::slim_job(job);
        let version = version_of(&*job);
        self.cluster
            .mirrors()
            .jobs
            .changed(key_of(&*job), version, Arc::clone(&job));
        info!(job = %progress.key, phase = ?status.phase, attempt = status.attempt, "recorded");
        progress.job = Some(job);
        Ok(())
    }

    /// Publishes an Event. It is for people: that one is lost stops nothing.
    async fn publish(&self, progress: &Progress<'_>, event: &Event) {
        let job = progress.key;
        let now = jiff::Timestamp::now();
        let suffix = format!("{:x}", now.as_nanosecond());
        let mut note = event.message.clone();
        while note.len() > NOTE_BYTES {
            note.pop();
        }
        let body = json!({
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": format!("{}.{suffix}", job.name), "namespace": &*job.namespace},
            "eventTime": format!("{now:.6}"),
            "reportingController": "fireflyer.dev/operator",
            "reportingInstance": self.instance,
            "action": "Plan",
            "reason": event.reason,
            "note": note,
            "type": if event.warning { "Warning" } else { "Normal" },
            "regarding": {
                "apiVersion": format!("{}/v1alpha1", names::GROUP),
                "kind": "TrainingJob",
                "name": &*job.name,
                "namespace": &*job.namespace,
                "uid": &*job.uid,
            },
        });
        if let Err(error) = self.writer.create::<ApiEvent>(&job.namespace, &body).await {
            warn!(%job, reason = event.reason, %error, "an Event was lost");
        }
    }

    async fn delete_job(&self, progress: &Progress<'_>) -> Result<(), Error> {
        let Some(job) = &progress.job else {
            return Ok(());
        };
        let JobKey {
            namespace, name, ..
        } = progress.key;
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: job.metadata.uid.clone(),
            resource_version: job.metadata.resource_version.clone(),
        });
        let deleted = self
            .writer
            .delete::<TrainingJob>(namespace, name, &params)
            .await
            .map(drop);
        gone_is_fine(deleted)?;
        self.cluster.mirrors().jobs.missing(namespace, name);
        Ok(())
    }

    /// After a write that failed or whose outcome is not known: reads what it was about, so that
    /// the next plan does not rest on a guess.
    async fn look_again(&self, key: &JobKey, actions: &[Action]) {
        let (namespace, name) = (&key.namespace, &key.name);
        match self.writer.get::<TrainingJob>(namespace, name).await {
            Ok(job) => {
                let job = watch::slim_job(job);
                let (at, version) = (key_of(&*job), version_of(&*job));
                self.cluster.mirrors().jobs.changed(at, version, job);
            }
            Err(write::Error::Missing { .. }) => {
                self.cluster.mirrors().jobs.missing(namespace, name);
            }
            Err(_still_unknown) => {}
        }
        for action in actions {
            match action {
                Action::CreateAttempt(new) => {
                    let attempt = names::attempt_name(name, new.number);
                    let found = self.writer.get::<AttemptView>(namespace, &attempt).await;
                    if let Ok(view) = found
                        && let Some(attempt) = watch::attempt(&view)
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
                | Action::DeleteAttempt { .. }
                | Action::DeleteJob => {}
            }
        }
    }
}

/// Whether two neighbouring actions may be on their way at the same time.
fn go_together(first: &Action, other: &Action) -> bool {
    matches!(
        (first, other),
        (Action::CreatePod { .. }, Action::CreatePod { .. })
            | (Action::DeletePod { .. }, Action::DeletePod { .. })
            | (Action::StripPod { .. }, Action::StripPod { .. })
    )
}

/// A word for logs and metrics.
pub fn kind(action: &Action) -> &'static str {
    match action {
        Action::AddFinalizer => "add_finalizer",
        Action::RemoveFinalizer => "remove_finalizer",
        Action::Record { .. } => "record",
        Action::CreateAttempt(_) => "create_attempt",
        Action::CreatePod { .. } => "create_pod",
        Action::DeletePod { .. } => "delete_pod",
        Action::StripPod { .. } => "strip_pod",
        Action::DeleteAttempt { .. } => "delete_attempt",
        Action::DeleteJob => "delete_job",
    }
}

fn gone_is_fine(result: Result<(), write::Error>) -> Result<(), Error> {
    match result {
        Ok(()) | Err(write::Error::Missing { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
