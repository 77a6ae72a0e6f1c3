//! The part of `apply` that stores nothing: asks the API server whether it would take the first pod
//! of a job's next attempt.

use crds::fabric::FabricSpec;
use k8s_openapi::api::core::v1::Pod;

use super::template::read_template;
use super::{Applier, refusal};
use crate::node_validation;
use crate::proof::Signer;
use crate::training_job::observe::class_of;
use crate::training_job::pod::{self, Rank};
use crate::training_job::write::{Error, NewObject, WritePurpose};
use crate::workload::Workload;

/// The node that the pod is pinned to: which one it will be is not decided yet.
const SOME_NODE: &str = "dry-run";
/// What the API server says when a webhook that has side effects keeps it from trying.
const UNSUPPORTED: &str = "does not support dry run";

/// What the API server said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DryRunAnswer {
    /// It takes the pod, or cannot say before the pod is really created.
    Accepted,
    /// It does not; the sentence says why and what to do.
    Refused(String),
    /// Nothing about the pod; the sentence says why.
    Nothing(String),
    /// It was not asked: this replica may not lead any more, or the job has changed.
    NotAsked,
}

impl Applier {
    /// Tries the first pod of the job's next attempt.
    pub async fn dry_run(&self, job: &Workload, fabric: &FabricSpec) -> DryRunAnswer {
        let Some(key) = job.key() else {
            return DryRunAnswer::Nothing("it has no name".to_owned());
        };
        let before = job.status().map_or(0, |status| status.attempt);
        let attempt = before.saturating_add(1);
        let writer = self.writer.for_purpose(WritePurpose::DryRun);
        let body = match job {
            Workload::Validation(validation) => {
                let settings = &self.settings;
                node_validation::pod::build(&key, validation, settings, attempt, SOME_NODE, None)
            }
            Workload::Training(job) => {
                let Some(class) = class_of(job, fabric) else {
                    return DryRunAnswer::Nothing("its node class is gone".to_owned());
                };
                let first = Rank {
                    attempt,
                    key_name: &self.key_name(&key, attempt, Signer::Current),
                    rank: 0,
                    node: SOME_NODE,
                    finalizer: true,
                    crossing: false,
                    resume: None,
                };
                let template = match read_template(&writer, &key, job).await {
                    Ok(text) => text.template(),
                    Err(super::Error::Write(error)) => {
                        return DryRunAnswer::Nothing(error.to_string());
                    }
                    Err(_changed) => return DryRunAnswer::NotAsked,
                };
                match template {
                    Ok(template) => pod::build(job, &template, class, &self.settings, first),
                    // The planner knows, and asks no more.
                    Err(_unusable) => return DryRunAnswer::NotAsked,
                }
            }
        };
        let object = NewObject::from(&body);
        drop(body);
        // A job that has had its pods keeps running whatever its template says too much.
        let strict = before == 0;
        match writer.dry_run::<Pod>(&key.namespace, object, strict).await {
            // A pod of this name has been admitted before, or admission has passed and the name is
            // for the real creation to care about.
            Ok(()) | Err(Error::Exists { .. }) => DryRunAnswer::Accepted,
            Err(Error::Refused { reason, .. }) if reason.contains(UNSUPPORTED) => {
                DryRunAnswer::Accepted
            }
            Err(Error::Refused { reason, .. }) => {
                DryRunAnswer::Refused(refusal(&key.namespace, &reason))
            }
            Err(Error::Deposed { .. }) => DryRunAnswer::NotAsked,
            Err(error) => DryRunAnswer::Nothing(error.to_string()),
        }
    }
}
