//! The part of `apply` that writes the job object itself, and the Events about it.

use std::sync::Arc;

use crds::training_job::TrainingJobStatus;
use crds::{NodeValidation, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, Preconditions};
use scheduler::{JobEvent, JobKey, JobKind, JobStatus};
use serde_json::{Value, json};
use tracing::info;

use super::{Applier, Error, Progress, gone_is_fine, patch};
use crate::event::{CLUSTER_NAMESPACE, Event};
use crate::node_validation;
use crate::training_job::job_view::{JobText, JobView};
use crate::training_job::mirrored_job::MirroredJob;
use crate::training_job::write::Writer;
use crate::training_job::{status, write};
use crate::workload::{Workload, object_key};

impl Applier {
    pub(super) async fn set_finalizer(
        &self,
        progress: &mut Progress<'_>,
        present: bool,
    ) -> Result<(), Error> {
        let Some(job) = &progress.job else {
            return Ok(()); // Gone, and its finalizers with it.
        };
        let metadata = job.metadata();
        let finalizers = match job {
            // Others may have set as many as they like, so they are not kept.
            Workload::Training(_) => {
                let writer = &progress.writer;
                let (namespace, name) = object_key(progress.key);
                match writer.get::<JobText>(&namespace, &name).await {
                    Err(write::Error::Missing { .. }) if !present => {
                        self.cluster.mirrors().job_missing(progress.key);
                        return Ok(());
                    }
                    read => read?.metadata.finalizers,
                }
            }
            Workload::Validation(_) => metadata.finalizers.clone(),
        };
        let mut finalizers = finalizers.unwrap_or_default();
        finalizers.retain(|finalizer| finalizer != names::FINALIZER);
        let last = finalizers.is_empty();
        if present {
            finalizers.push(names::FINALIZER.to_owned());
        }
        let metadata = json!({
            "finalizers": finalizers,
            "resourceVersion": metadata.resource_version,
            "uid": metadata.uid,
        });
        let patch = json!({"metadata": metadata});
        match self
            .patch_job(&progress.writer, progress.key, None, patch)
            .await
        {
            Ok(job) => {
                let metadata = job.metadata();
                if !present && last && metadata.deletion_timestamp.is_some() {
                    self.cluster.mirrors().job_missing(progress.key);
                    progress.job = None;
                } else {
                    self.saw_job(&job);
                    progress.job = Some(job);
                }
                Ok(())
            }
            Err(write::Error::Missing { .. }) if !present => {
                self.cluster.mirrors().job_missing(progress.key);
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
        let (key, writer) = (progress.key, &progress.writer);
        let job = match &progress.job {
            None => return Err(Error::Stale(format!("job {key} is gone"))),
            Some(Workload::Training(job)) => {
                let generation = job.metadata.generation;
                let shown = status::to_api(status, &key.name, generation, job.status.as_ref());
                let job = self.write_status(writer, key, job, &shown).await?;
                Workload::Training(job)
            }
            Some(Workload::Validation(validation)) => {
                let shown = {
                    let mirrors = self.cluster.mirrors();
                    node_validation::record(status, key, validation, progress.fabric, &mirrors)
                };
                let changes = patch::changes(&validation.status, &shown);
                let body = of_status(&validation.metadata, changes);
                let job = self.patch_job(writer, key, Some("status"), body).await?;
                self.saw_job(&job);
                job
            }
        };
        info!(job = %key, phase = ?status.phase, attempt = status.attempt, "recorded");
        progress.job = Some(job);
        Ok(())
    }

    /// Changes the status of a job that trains from what was seen; a conflict when it has changed
    /// since. What this release does not know stays as it is.
    pub(super) async fn write_status(
        &self,
        writer: &Writer,
        key: &JobKey,
        seen: &JobView,
        status: &TrainingJobStatus,
    ) -> Result<Arc<JobView>, write::Error> {
        let changes = patch::between(seen.status.as_ref(), status);
        let patch = Patch::Merge(of_status(&seen.metadata, changes));
        let (namespace, name) = (&key.namespace, &key.name);
        let job: JobView = writer
            .patch(namespace, name, Some("status"), &patch)
            .await?;
        let job = Arc::new(job);
        self.saw_job(&Workload::Training(Arc::clone(&job)));
        self.drop_superseded(key, seen, &job).await;
        Ok(job)
    }

    /// Changes the object of a job.
    async fn patch_job(
        &self,
        writer: &Writer,
        key: &JobKey,
        subresource: Option<&str>,
        body: Value,
    ) -> Result<Workload, write::Error> {
        let (namespace, name) = object_key(key);
        let patch = Patch::Merge(body);
        let job: Workload = match key.kind {
            JobKind::TrainingJob => {
                let job = writer.patch::<JobView>(&namespace, &name, subresource, &patch);
                job.await?.into()
            }
            JobKind::NodeValidation => {
                let job = writer.patch::<NodeValidation>(&namespace, &name, subresource, &patch);
                job.await?.into()
            }
        };
        Ok(job.slim())
    }

    /// Lays a job over its mirror.
    pub(super) fn saw_job(&self, job: &Workload) {
        let metadata = job.metadata();
        let key = (
            metadata.namespace.clone().unwrap_or_default(),
            metadata.name.clone().unwrap_or_default(),
        );
        let version = metadata.resource_version.as_ref();
        let version = version
            .and_then(|version| version.parse().ok())
            .unwrap_or(0);
        let mirrored = MirroredJob::new(job.clone());
        let mut mirrors = self.cluster.mirrors();
        mirrors.of_mut(job.kind()).changed(key, version, mirrored);
    }

    /// Publishes an Event about a job.
    pub(super) async fn publish(&self, progress: &Progress<'_>, event: &JobEvent) {
        let job = progress.key;
        let (of_object, _) = object_key(job);
        let namespace = match job.kind {
            JobKind::TrainingJob => &*job.namespace,
            JobKind::NodeValidation => CLUSTER_NAMESPACE,
        };
        let (note, warning) = match &progress.job {
            Some(Workload::Validation(validation)) => {
                node_validation::status::event(event, validation)
            }
            Some(Workload::Training(_)) | None => (event.message.clone(), event.warning),
        };
        let regarding = json!({
            "apiVersion": names::API_VERSION,
            "kind": job.kind.as_str(),
            "name": &*job.name,
            "namespace": of_object,
            "uid": &*job.uid,
        });
        let event = Event {
            name: &job.name,
            regarding,
            namespace,
            instance: &self.instance,
            reason: event.reason,
            note: &note,
            warning,
        };
        event.publish(&progress.writer).await;
    }

    pub(super) async fn delete_job(&self, progress: &Progress<'_>) -> Result<(), Error> {
        let key = progress.key;
        let resource_version = {
            let mirrors = self.cluster.mirrors();
            match (&progress.job, mirrors.named(key)) {
                (Some(job), _) => job.metadata().resource_version.clone(),
                (None, Some(MirroredJob::Over(over))) if over.key == *key => {
                    Some(over.version.clone())
                }
                (None, _) => return Ok(()),
            }
        };
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: Some(key.uid.to_string()),
            resource_version,
        });
        let (namespace, name) = object_key(key);
        let writer = &self.writer;
        let deleted = match key.kind {
            JobKind::TrainingJob => {
                let deleted = writer.delete::<JobView>(&namespace, &name, &params);
                deleted.await.map(drop)
            }
            JobKind::NodeValidation => {
                let deleted = writer.delete::<NodeValidation>(&namespace, &name, &params);
                deleted.await.map(drop)
            }
        };
        gone_is_fine(deleted)?;
        self.cluster.mirrors().job_missing(key);
        Ok(())
    }
}

/// The patch of a status, from what was seen of its object.
fn of_status(seen: &ObjectMeta, changes: Value) -> Value {
    json!({
        "metadata": {"uid": seen.uid, "resourceVersion": seen.resource_version},
        "status": changes,
    })
}
