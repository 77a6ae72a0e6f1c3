//! The part of `apply` that writes the job object itself, and the Events about it.

use std::sync::Arc;

use crds::names;
use crds::training_job::{TrainingJob, TrainingJobStatus};
use k8s_openapi::api::events::v1::Event as ApiEvent;
use k8s_openapi::jiff;
use kube::api::{DeleteParams, Patch, Preconditions};
use scheduler::{Event, JobKey, Status};
use serde_json::json;
use tracing::{info, warn};

use super::{Applier, Error, Progress, gone_is_fine};
use crate::cluster::{key_of, version_of};
use crate::training_job::{status, write};
use crate::watch;

/// Longest note of an Event that the API server takes.
const NOTE_BYTES: usize = 1000;

impl Applier {
    pub(super) async fn set_finalizer(
        &self,
        progress: &mut Progress<'_>,
        present: bool,
    ) -> Result<(), Error> {
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

    pub(super) async fn record(
        &self,
        progress: &mut Progress<'_>,
        status: &Status,
    ) -> Result<(), Error> {
        let Some(job) = &progress.job else {
            return Err(Error::Stale(format!("job {} is gone", progress.key)));
        };
        let shown = status::to_api(status, &progress.key.name, job.metadata.generation);
        let job = self.write_status(progress.key, job, &shown).await?;
        info!(job = %progress.key, phase = ?status.phase, attempt = status.attempt, "recorded");
        progress.job = Some(job);
        Ok(())
    }

    /// Replaces the status of the job as it was seen; a conflict when it has changed since.
    pub(super) async fn write_status(
        &self,
        key: &JobKey,
        seen: &TrainingJob,
        status: &TrainingJobStatus,
    ) -> Result<Arc<TrainingJob>, write::Error> {
        let (namespace, name) = (&key.namespace, &key.name);
        let body = json!({
            "apiVersion": format!("{}/v1alpha1", names::GROUP),
            "kind": "TrainingJob",
            "metadata": {
                "name": &**name,
                "namespace": &**namespace,
                "uid": seen.metadata.uid,
                "resourceVersion": seen.metadata.resource_version,
            },
            "status": status,
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
        Ok(job)
    }

    /// Publishes an Event. It is for people: that one is lost stops nothing.
    pub(super) async fn publish(&self, progress: &Progress<'_>, event: &Event) {
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

    pub(super) async fn delete_job(&self, progress: &Progress<'_>) -> Result<(), Error> {
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
}
