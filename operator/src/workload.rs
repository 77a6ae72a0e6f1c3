//! What the planner plans for: an object of the API that gets whole nodes. A TrainingJob trains on
//! them, a NodeValidation checks one. What both have in common is here, so that whoever writes,
//! reads or owns their objects takes the kind as a value.

use std::sync::Arc;
use std::time::Duration;

use crds::{NodeValidation, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use scheduler::{JobKey, JobKind, JobStatus};
use serde_json::{Value, json};

use crate::mirror::ObjectKey;
use crate::node_validation;
use crate::training_job::job_view::JobView;
use crate::training_job::status;

/// A TrainingJob, all but its pod template, or a NodeValidation.
#[derive(Clone, Debug, PartialEq)]
pub enum Workload {
    /// A gang that trains.
    Training(Arc<JobView>),
    /// One run of checks on one node.
    Validation(Arc<NodeValidation>),
}

/// Where the object of a job is: NodeValidations are the cluster's, and have no namespace.
pub fn object_key(key: &JobKey) -> ObjectKey {
    let namespace = match key.kind {
        JobKind::TrainingJob => &*key.namespace,
        JobKind::NodeValidation => "",
    };
    (namespace.to_owned(), key.name.to_string())
}

/// Makes the garbage collector remove an object with that of this kind that has this metadata.
pub fn owner_reference(kind: &str, metadata: &ObjectMeta) -> Value {
    json!({
        "apiVersion": names::API_VERSION,
        "kind": kind,
        "name": metadata.name,
        "uid": metadata.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

impl Workload {
    /// The kind of the object.
    pub fn kind(&self) -> JobKind {
        match self {
            Self::Training(_) => JobKind::TrainingJob,
            Self::Validation(_) => JobKind::NodeValidation,
        }
    }

    /// Its metadata.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Training(job) => &job.metadata,
            Self::Validation(validation) => &validation.metadata,
        }
    }

    /// Who it is; none if the API server has not named it in full.
    pub fn key(&self) -> Option<JobKey> {
        let metadata = self.metadata();
        let namespace = match self {
            Self::Training(_) => metadata.namespace.as_deref()?,
            Self::Validation(_) => names::VALIDATION_NAMESPACE,
        };
        Some(JobKey {
            kind: self.kind(),
            namespace: namespace.into(),
            name: metadata.name.as_deref()?.into(),
            uid: metadata.uid.as_deref()?.into(),
        })
    }

    /// The job, if it trains.
    pub fn training(&self) -> Option<&Arc<JobView>> {
        match self {
            Self::Training(job) => Some(job),
            Self::Validation(_) => None,
        }
    }

    /// Whole nodes that it needs.
    pub fn nodes(&self) -> u32 {
        match self {
            Self::Training(job) => job.spec.nodes,
            Self::Validation(_) => 1,
        }
    }

    /// What the planner recorded about it, if anything.
    pub fn status(&self) -> Option<JobStatus> {
        match self {
            Self::Training(job) => job.status.as_ref().map(status::from_api),
            Self::Validation(validation) => {
                let status = validation.status.as_ref()?;
                Some(node_validation::status::from_api(validation, status))
            }
        }
    }

    /// Whether what was recorded answers its spec as it is now.
    pub fn is_observed(&self) -> bool {
        let observed = match self {
            Self::Training(job) => job.status.as_ref().map(|status| status.observed_generation),
            Self::Validation(validation) => {
                let status = validation.status.as_ref();
                status.map(|status| status.observed_generation)
            }
        };
        observed.is_none_or(|observed| observed == self.metadata().generation)
    }

    /// How long it is kept after its end; for ever if absent.
    pub fn ttl(&self) -> Option<Duration> {
        let seconds = match self {
            Self::Training(job) => job.spec.ttl_seconds_after_finished,
            Self::Validation(validation) => validation.spec.ttl_seconds_after_finished,
        };
        seconds.map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// Makes the garbage collector remove an object with it.
    pub fn owner_reference(&self) -> Value {
        owner_reference(self.kind().as_str(), self.metadata())
    }

    /// The same without the record of who set which field, which nobody reads.
    #[must_use]
    pub fn slim(mut self) -> Self {
        if let Self::Validation(validation) = &mut self {
            Arc::make_mut(validation).metadata.managed_fields = None;
        }
        self
    }
}

impl From<JobView> for Workload {
    fn from(job: JobView) -> Self {
        Self::Training(Arc::new(job))
    }
}

impl From<NodeValidation> for Workload {
    fn from(validation: NodeValidation) -> Self {
        Self::Validation(Arc::new(validation))
    }
}
