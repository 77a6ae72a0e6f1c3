//! The part of `apply` that writes the job object itself, and the Events about it.

use std::sync::Arc;

use crds::names;
use crds::training_job::{TrainingJob, TrainingJobStatus};
use k8s_openapi::api::events::v1::Event as ApiEvent;
use k8s_openapi::jiff;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, Preconditions};
use scheduler::{JobEvent, JobKey, JobStatus};
use serde_json::json;
use tracing::{info, warn};

use super::{Applier, Error, Progress, gone_is_fine, patch};
use crate::cluster::{key_of, version_of};
use crate::training_job::mirrored_job::MirroredJob;
use crate::training_job::write::Writer;
use crate::training_job::{status, write};

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
        match progress
            .writer
            .patch::<TrainingJob>(namespace, name, None, &patch)
            .await
        {
            Ok(job) => {
                let gone = !present && job.metadata.deletion_timestamp.is_some();
                if gone && job.finalizers().is_empty() {
                    self.cluster.mirrors().jobs.missing(namespace, name);
                    progress.job = None;
                } else {
                    progress.job = Some(self.saw_job(job));
                }
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
        status: &JobStatus,
    ) -> Result<(), Error> {
        let Some(job) = &progress.job else {
            return Err(Error::Stale(format!("job {} is gone", progress.key)));
        };
        let (name, generation) = (&progress.key.name, job.metadata.generation);
        let shown = status::to_api(status, name, generation, job.status.as_ref());
        let writer = &progress.writer;
        let job = self.write_status(writer, progress.key, job, &shown).await?;
        info!(job = %progress.key, phase = ?status.phase, attempt = status.attempt, "recorded");
        progress.job = Some(job);
        Ok(())
    }

    /// Changes the status of the job from what was seen; a conflict when it has changed since. What
    /// this release does not know stays as it is.
    pub(super) async fn write_status(
        &self,
        writer: &Writer,
        key: &JobKey,
        seen: &TrainingJob,
        status: &TrainingJobStatus,
    ) -> Result<Arc<TrainingJob>, write::Error> {
        let (namespace, name) = (&key.namespace, &key.name);
        let body = json!({
            "metadata": {
                "uid": seen.metadata.uid,
                "resourceVersion": seen.metadata.resource_version,
            },
            "status": patch::between(seen.status.as_ref(), status),
        });
        let patch = Patch::Merge(body);
        let job: TrainingJob = writer
            .patch(namespace, name, Some("status"), &patch)
            .await?;
        let job = self.saw_job(job);
        self.drop_superseded(key, seen, &job).await;
        Ok(job)
    }

    /// Lays a job over its mirror.
    pub(super) fn saw_job(&self, mut job: TrainingJob) -> Arc<TrainingJob> {
        let (key, version) = (key_of(&job), version_of(&job));
        job.metadata.managed_fields = None;
        let job = Arc::new(job);
        let mirrored = MirroredJob::new(&job);
        self.cluster.mirrors().jobs.changed(key, version, mirrored);
        job
    }

    /// Publishes an Event. It is for people: that one is lost stops nothing.
    pub(super) async fn publish(&self, progress: &Progress<'_>, event: &JobEvent) {
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
        let created = progress.writer.create::<ApiEvent>(&job.namespace, &body);
        if let Err(error) = created.await {
            warn!(%job, reason = event.reason, %error, "an Event was lost");
        }
    }

    pub(super) async fn delete_job(&self, progress: &Progress<'_>) -> Result<(), Error> {
        let JobKey {
            namespace,
            name,
            uid,
        } = progress.key;
        let resource_version = {
            let mirrors = self.cluster.mirrors();
            match (&progress.job, mirrors.jobs.get(namespace, name)) {
                (Some(job), _) => job.metadata.resource_version.clone(),
                (None, Some(MirroredJob::Over(over))) if over.key == *progress.key => {
                    Some(over.version.clone())
                }
                (None, _) => return Ok(()),
            }
        };
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: Some(uid.to_string()),
            resource_version,
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
