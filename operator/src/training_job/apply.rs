//! Carries out a plan: the only code that writes to the API server for jobs. Each job's actions go
//! in their order and stop at the first that fails; what a write answers is laid over the mirrors,
//! so that the next plan contains it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::fabric::FabricSpec;
use crds::names;
use crds::training_job::TrainingJob;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::events::v1::Event as ApiEvent;
use k8s_openapi::jiff;
use kube::api::{DeleteParams, Patch, Preconditions};
use scheduler::{Action, Event, JobKey, JobPlan, NewAttempt, Plan, Status, Timestamp};
use serde_json::json;
use tracing::{debug, info, warn};
use wire::assignment::{ALGORITHM, AssignedNode, Assignment, CheckpointPlace, JobRef, VERSION};
use wire::handshake::Key;
use wire::run_dir::CheckpointRef;

use crate::cluster::{Cluster, key_of, version_of};
use crate::training_job::observe::class_of;
use crate::training_job::pod::{self, Rank, Settings};
use crate::training_job::write::{self, Writer};
use crate::training_job::{status, translate};
use crate::views::{AttemptView, PodView};
use crate::watch;

/// Port that rank 0 offers to the training framework. The pod network gives each pod its own.
const MASTER_PORT: u16 = 29_500;
/// Pods that a deletion of all others may name as exceptions: the selector goes into a URL.
const SPARED: usize = 16;
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

    async fn act_on_pod(&self, progress: &Progress<'_>, action: &Action) -> Result<(), Error> {
        match action {
            Action::CreatePod {
                attempt,
                rank,
                node,
            } => {
                self.create_pod(progress, *attempt, *rank, node.as_str())
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
            | Action::DeleteAttempt { .. }
            | Action::DeleteJob => Ok(()),
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

    /// Secret first: when the ConfigMap exists, everything its pods mount does.
    async fn create_attempt(&self, progress: &Progress<'_>, new: &NewAttempt) -> Result<(), Error> {
        let Some(job) = &progress.job else {
            return Err(Error::Stale(format!("job {} is gone", progress.key)));
        };
        let key = progress.key;
        let metadata = json!({
            "name": names::attempt_name(&key.name, new.number),
            "namespace": &*key.namespace,
            "labels": {
                names::LABEL_JOB: &*key.name,
                names::LABEL_ATTEMPT: new.number.to_string(),
            },
            "ownerReferences": [pod::owner_reference(job)],
        });
        let secret = Key::derive(&self.master, &key.uid, new.number);
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "immutable": true,
            "data": {"key": ByteString(secret.as_bytes().to_vec())},
        });
        match self.writer.create::<Secret>(&key.namespace, &secret).await {
            // The same bytes, whoever wrote them: they follow from the job and the attempt.
            Ok(_) | Err(write::Error::Exists { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let assignment = assignment(job, progress.fabric, new)?;
        let packed = ByteString(assignment.to_gz()?);
        let config_map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "immutable": true,
            "binaryData": {translate::ASSIGNMENT_FILE: packed},
        });
        let created: AttemptView = match self.writer.create(&key.namespace, &config_map).await {
            Ok(created) => created,
            Err(write::Error::Exists { .. }) => return Err(self.who_has(key, new.number).await),
            Err(error) => return Err(error.into()),
        };
        if let Some(attempt) = watch::attempt(&created) {
            let (key, version) = (key_of(&created), version_of(&created));
            self.cluster
                .mirrors()
                .attempts
                .created(key, version, attempt, Instant::now());
        }
        Ok(())
    }

    /// Why the ConfigMap of an attempt exists already.
    async fn who_has(&self, key: &JobKey, attempt: u32) -> Error {
        let name = names::attempt_name(&key.name, attempt);
        let found: AttemptView = match self.writer.get(&key.namespace, &name).await {
            Ok(found) => found,
            Err(error) => return error.into(),
        };
        match translate::owner(&found.metadata) {
            Some(owner) if owner == *key => Error::Stale(format!(
                "attempt {attempt} of job {key} was decided already"
            )),
            Some(owner) => Error::Taken {
                what: format!("ConfigMap {name}"),
                owner: format!("an earlier job {owner}"),
                leaving: true,
            },
            None => Error::Taken {
                what: format!("ConfigMap {name}"),
                owner: format!("somebody in namespace {}", key.namespace),
                leaving: false,
            },
        }
    }

    async fn delete_attempt(&self, key: &JobKey, attempt: u32) -> Result<(), Error> {
        let name = names::attempt_name(&key.name, attempt);
        let params = DeleteParams::default();
        let config_map = self
            .writer
            .delete::<ConfigMap>(&key.namespace, &name, &params)
            .await
            .map(drop);
        gone_is_fine(config_map)?;
        let secret = self
            .writer
            .delete::<Secret>(&key.namespace, &name, &params)
            .await
            .map(drop);
        gone_is_fine(secret)?;
        self.cluster
            .mirrors()
            .attempts
            .missing(&key.namespace, &name);
        Ok(())
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

    async fn create_pod(
        &self,
        progress: &Progress<'_>,
        attempt: u32,
        rank: u32,
        node: &str,
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
            rank,
            node,
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
                let same = translate::owner(&view.metadata).as_ref() == Some(key);
                self.saw_pod(view);
                if same {
                    return Ok(());
                }
                Err(Error::Stale(format!("pod {name} belongs to another job")))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn saw_pod(&self, view: PodView) {
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
    fn group(&self, key: &JobKey, actions: &[Action]) -> Option<Group> {
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

    async fn delete_group(&self, key: &JobKey, group: Group) -> Result<(), Error> {
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

/// Pods of one attempt that are deleted together.
struct Group {
    attempt: u32,
    ranks: BTreeSet<u32>,
    /// Other pods of the attempt, which stay.
    spared: Vec<u32>,
    grace_seconds: u32,
}

fn now() -> Timestamp {
    let millis = jiff::Timestamp::now().as_millisecond();
    Timestamp::from_millis(u64::try_from(millis).unwrap_or(0))
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

/// What the attempt's ConfigMap says.
fn assignment(
    job: &TrainingJob,
    fabric: &FabricSpec,
    new: &NewAttempt,
) -> Result<Assignment, Error> {
    let class = class_of(job, fabric)
        .ok_or_else(|| Error::Stale("the node class of the job is gone".to_owned()))?;
    let name = |name: &Option<String>| name.clone().unwrap_or_default();
    let nodes = new.nodes.iter().map(|place| AssignedNode {
        name: place.node.to_string(),
        zone: place.zone.to_string(),
        leaf: place.leaf.to_string(),
    });
    Ok(Assignment {
        version: VERSION,
        job: JobRef {
            namespace: name(&job.metadata.namespace),
            name: name(&job.metadata.name),
            uid: name(&job.metadata.uid),
        },
        attempt: new.number,
        algorithm: ALGORITHM,
        procs_per_node: pod::procs_per_node(job, class),
        nodes: nodes.collect(),
        crossing: new.crossing,
        master_port: MASTER_PORT,
        checkpoint: job
            .spec
            .checkpoint
            .as_ref()
            .map(|checkpoint| CheckpointPlace {
                claim_name: checkpoint.claim_name.clone(),
                path: pod::checkpoint_folder(job).unwrap_or_default().to_owned(),
            }),
        resume: new.resume.as_ref().map(|checkpoint| CheckpointRef {
            attempt: checkpoint.attempt,
            step: checkpoint.step,
            digest: checkpoint.digest.clone(),
        }),
    })
}

fn gone_is_fine(result: Result<(), write::Error>) -> Result<(), Error> {
    match result {
        Ok(()) | Err(write::Error::Missing { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn same_uid(uid: &str) -> Preconditions {
    Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: None,
    }
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
