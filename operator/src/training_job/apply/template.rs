//! The part of `apply` that reads pod templates, which the mirrors do not keep: once for each
//! attempt that gets pods, and for the dry run of its first one.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use scheduler::JobKey;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Applier, Error, Progress};
use crate::training_job::job_view::{JobText, JobView};
use crate::training_job::write::{self, WritePurpose, Writer};
use crate::workload::Workload;

/// Attempts whose templates are held at a time: 64 of 64 KiB take 4 MiB.
const HELD: usize = 64;

/// Bounds what the templates of attempts that get pods take. Cheap to clone; clones share the
/// bound.
#[derive(Clone, Debug)]
pub struct Templates {
    permits: Arc<Semaphore>,
}

impl Default for Templates {
    fn default() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(HELD)),
        }
    }
}

/// The template of an attempt, as text: each pod is built from a tree of its own, which is gone
/// before the pod is sent.
pub(super) struct HeldTemplate {
    pub(super) text: JobText,
    _permit: OwnedSemaphorePermit,
}

impl Applier {
    /// Reads the template of the attempt that is about to get pods, unless that has happened.
    pub(super) async fn hold_template(&self, progress: &mut Progress<'_>) -> Result<(), Error> {
        let Some(Workload::Training(job)) = &progress.job else {
            return Ok(());
        };
        if progress.template.is_some() {
            return Ok(());
        }
        let permit = Arc::clone(&self.templates.permits).acquire_owned().await;
        let permit = permit.map_err(|_closed| progress.stopped())?;
        if progress.is_cancelled() {
            return Err(progress.stopped());
        }
        let writer = self.writer.for_purpose(WritePurpose::Template);
        let text = read_template(&writer, progress.key, job).await?;
        progress.template = Some(HeldTemplate {
            text,
            _permit: permit,
        });
        Ok(())
    }
}

/// Reads the template of a job as it was seen. If it has changed since, the next plan decides.
pub(super) async fn read_template(
    writer: &Writer,
    key: &JobKey,
    seen: &JobView,
) -> Result<JobText, Error> {
    let text = match writer.get::<JobText>(&key.namespace, &key.name).await {
        Err(write::Error::Missing { .. }) => {
            return Err(Error::Stale(format!("job {key} is gone")));
        }
        text => text?,
    };
    let of = |metadata: &ObjectMeta| (metadata.uid.clone(), metadata.generation);
    if of(&text.metadata) == of(&seen.metadata) {
        Ok(text)
    } else {
        Err(Error::Stale(format!(
            "job {key} has changed since it was planned"
        )))
    }
}
