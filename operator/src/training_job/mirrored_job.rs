//! The parts of a job that are kept: all but the pod template of one that may still run, little of
//! one that is over, and the name of one that this release cannot read.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crds::names;
use kube::{Resource, ResourceExt};
use scheduler::{DryRun, Job, JobKey, JobKind, JobPhase, JobStatus, Timestamp};
use tracing::warn;

use crate::clock;
use crate::mirror::{Mirrored, ObjectKey};
use crate::node_validation::{FinishedRuns, Run};
use crate::training_job::translate;
use crate::views::Guarded;
use crate::workload::Workload;

/// What is kept of a TrainingJob or a NodeValidation.
#[derive(Clone, Debug, PartialEq)]
pub enum MirroredJob {
    /// All that anybody asks about it.
    Whole(Workload),
    /// It has ended and holds nothing.
    Over(Over),
    /// A newer release wrote what this one does not know: not to be touched.
    Unreadable(JobKey),
}

/// What is kept of a job that has ended and holds nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Over {
    /// Who it is.
    pub key: JobKey,
    /// Its version.
    pub version: String,
    /// When it was created.
    pub created: Timestamp,
    /// Whether it ended well.
    pub succeeded: bool,
    /// Its last attempt.
    pub attempt: u32,
    /// When it ended.
    pub finished_at: Timestamp,
    /// How long it is kept.
    pub ttl: Option<Duration>,
    /// What it found, if it validated a node.
    pub run: Option<Arc<Run>>,
    /// Since when that is known, by our own clock.
    pub seen: Option<Instant>,
}

impl MirroredJob {
    /// What is kept of a job.
    pub fn new(job: Workload) -> Self {
        over(&job).map_or_else(|| Self::Whole(job), Self::Over)
    }

    /// What is kept of a job of this kind that perhaps cannot be read.
    pub fn guarded<K>(job: Guarded<K>, kind: JobKind) -> Option<Self>
    where
        K: Resource<DynamicType = ()> + Into<Workload> + Clone + Debug,
    {
        let (name, namespace, uid) = (job.name_any(), job.namespace(), job.uid());
        match job.0 {
            Ok(job) => Some(Self::new(job.into().slim())),
            Err(error) => {
                let kind_name = kind.as_str();
                warn!(kind = kind_name, namespace, name, %error, "failed to read a job; it is ignored until a release that reads it runs");
                let namespace = match kind {
                    JobKind::TrainingJob => namespace?.into(),
                    JobKind::NodeValidation => names::VALIDATION_NAMESPACE.into(),
                };
                Some(Self::Unreadable(JobKey {
                    kind,
                    namespace,
                    name: name.into(),
                    uid: uid?.into(),
                }))
            }
        }
    }

    /// Who it is, of one that cannot be read.
    pub fn unreadable(&self) -> Option<&JobKey> {
        match self {
            Self::Unreadable(key) => Some(key),
            Self::Whole(_) | Self::Over(_) => None,
        }
    }

    /// The whole job, of one that is not over.
    pub fn whole(&self) -> Option<&Workload> {
        match self {
            Self::Whole(job) => Some(job),
            Self::Over(_) | Self::Unreadable(_) => None,
        }
    }
}

impl Over {
    /// Since when it is known to be over, as the planner counts it.
    pub fn seen(&self) -> Timestamp {
        self.seen.map_or_else(clock::now, clock::at)
    }

    /// What the planner needs to clean up after it.
    pub fn as_job(&self) -> Job {
        let phase = match self.succeeded {
            true => JobPhase::Succeeded,
            false => JobPhase::Failed,
        };
        Job {
            key: self.key.clone(),
            created: self.created,
            nodes: 1,
            pin: None,
            when_busy: scheduler::WhenBusy::default(),
            class: "".into(),
            procs_per_node: None,
            zone_policy: scheduler::ZonePolicy::default(),
            suspend: false,
            grace: Duration::ZERO,
            exit: Duration::ZERO,
            stall: None,
            max_restarts: 0,
            shrinks: false,
            ttl: self.ttl,
            deleting: false,
            finalizer: false,
            observed: true,
            problem: None,
            hold: None,
            dry_run: DryRun::Unknown,
            status: JobStatus {
                phase,
                attempt: self.attempt,
                finished_at: Some(self.finished_at),
                ..JobStatus::default()
            },
            seen: self.seen(),
        }
    }
}

impl Mirrored for MirroredJob {
    type Derived = FinishedRuns;

    fn rests_with(&self) -> Option<ObjectKey> {
        match self {
            Self::Over(Over { key, .. }) => Some(translate::name_of(key)),
            Self::Whole(_) | Self::Unreadable(_) => None,
        }
    }

    fn sighted(&mut self, before: Option<&Self>, now: Instant) {
        let Self::Over(over) = self else { return };
        let known = match before {
            Some(Self::Over(before)) if before.key == over.key => before.seen,
            Some(_) | None => over.seen,
        };
        over.seen = Some(known.unwrap_or(now));
    }
}

/// What is kept of a job if it has ended, holds nothing, and all of its spec is taken note of.
fn over(job: &Workload) -> Option<Over> {
    let status = job.status()?;
    if !status.phase.is_terminal() {
        return None;
    }
    let metadata = job.metadata();
    let finalizers = metadata.finalizers.as_deref().unwrap_or_default();
    let held = finalizers.iter().any(|one| one == names::FINALIZER);
    if held || metadata.deletion_timestamp.is_some() || !job.is_observed() {
        return None;
    }
    Some(Over {
        key: job.key()?,
        version: metadata.resource_version.clone()?,
        created: translate::created(metadata),
        succeeded: status.phase == JobPhase::Succeeded,
        attempt: status.attempt,
        finished_at: status.finished_at?,
        ttl: job.ttl(),
        run: match job {
            Workload::Training(_) => None,
            Workload::Validation(validation) => Some(Arc::new(Run::of(validation))),
        },
        seen: None,
    })
}
