//! Makes the planner's snapshot from the mirrors and from what the gangs reported. Pure but for the
//! lock that the caller holds: one moment, plain values.

mod job;
mod node;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::fabric::{FabricSpec, NodeClass};
use scheduler::{
    CheckpointReport, GangLiveness, GangProgress, Job, JobKey, Pod, Policy, Snapshot, Stuck,
    Timestamp,
};
use topology::NodeName;

use crate::cluster::Mirrors;
use crate::node_validation;
use crate::training_job::job_view::JobView;
use crate::training_job::mirrored_job::{MirroredJob, Over};
use crate::training_job::{assignments, translate};
use crate::workload::Workload;

/// The time between checks of whether a validation is still kept for the quarantine of its node.
const KEPT_PERIOD: Duration = Duration::from_secs(60);

/// What the rendezvous service knows beyond the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// Newest durable checkpoint, for each attempt that reported one.
    pub checkpoints: BTreeMap<(JobKey, u32), CheckpointReport>,
    /// Nodes that peers gave up, and until when that counts.
    pub suspects: BTreeMap<NodeName, Timestamp>,
    /// Gangs that were to go on without lost nodes and cannot.
    pub stuck: BTreeMap<(JobKey, u32), Stuck>,
    /// Which nodes are alive, for each attempt whose sidecars have dialled this leader.
    pub gangs: BTreeMap<(JobKey, u32), Arc<GangLiveness>>,
    /// Progress of each of them. A newer sign of progress alone is no news: it is here, and wakes
    /// nobody.
    pub progress: BTreeMap<(JobKey, u32), GangProgress>,
}

/// The snapshot; none before there is a Fabric, because nothing has a class then. What is being
/// written, what dry runs have shown and what has lately gone is for the caller to add. Of jobs
/// that are over it contains those that left something running, and those whose time is over.
pub fn snapshot(mirrors: &Mirrors, reports: &Reports, expired: &[JobKey]) -> Option<Snapshot> {
    let fabric = &mirrors.fabric()?.spec;
    let whole = mirrors.all_jobs().filter_map(MirroredJob::whole);
    let mut jobs: Vec<Job> = whole
        .filter_map(|workload| match workload {
            Workload::Training(job) => job::of(workload, job, fabric, mirrors),
            Workload::Validation(validation) => {
                node_validation::job(workload, validation, fabric, mirrors)
            }
        })
        .collect();
    let mut pods: Vec<Pod> = mirrors
        .pods
        .values()
        .map(|mirrored| mirrored.pod.clone())
        .collect();
    let left: BTreeSet<&JobKey> = pods.iter().map(|pod| &pod.job).chain(expired).collect();
    let over = left
        .into_iter()
        .filter_map(|key| match mirrors.named(key)? {
            MirroredJob::Over(over) if over.key == *key => Some(Job {
                ttl: over.ttl.filter(|_| !keeps_quarantine(over, mirrors)),
                ..over.as_job()
            }),
            MirroredJob::Over(_) | MirroredJob::Whole(_) | MirroredJob::Unreadable(_) => None,
        });
    let over: Vec<Job> = over.collect();
    jobs.extend(over);
    let unreadable = mirrors.all_jobs().filter_map(MirroredJob::unreadable);
    let unreadable: Vec<JobKey> = unreadable.cloned().collect();
    let mut mirrored = Vec::new();
    for key in jobs.iter().map(|job| &job.key).chain(&unreadable) {
        let name = translate::name_of(key);
        let resting = mirrors.pods.resting_with(&name);
        pods.extend(resting.map(|mirrored| mirrored.pod.clone()));
        mirrored.extend(mirrors.attempts.resting_with(&name));
    }
    let (attempts, doubtful) = assignments::known(mirrors, fabric, &mirrored);
    Some(Snapshot {
        nodes: mirrors
            .nodes
            .values()
            .map(|mirrored| node::of(mirrored, fabric, reports))
            .collect(),
        jobs,
        attempts,
        doubtful,
        pods,
        absent: BTreeSet::new(),
        departed: Vec::new(),
        pods_as_of: None,
        is_stale: false,
        unreadable,
        liveness: reports.gangs.clone(),
        progress: reports.progress.clone(),
        heartbeats_known_at: Timestamp::default(),
        unheard_since: BTreeMap::new(),
        reports: reports.checkpoints.values().cloned().collect(),
        stuck: reports.stuck.values().cloned().collect(),
        under_way: Vec::new(),
    })
}

/// The jobs that have outlived their end for as long as they wanted, and when the next one will
/// have. Looks at all that are over, so it is for once in a while.
pub fn expired(
    mirrors: &Mirrors,
    policy: &Policy,
    now: Timestamp,
) -> (Vec<JobKey>, Option<Timestamp>) {
    let mut expired = Vec::new();
    let mut next: Option<Timestamp> = None;
    for mirrored in mirrors.all_over() {
        let MirroredJob::Over(over) = mirrored else {
            continue;
        };
        // Whoever recorded the end may have had another clock: ours must agree that time has
        // passed.
        let Some(ttl) = over.ttl else { continue };
        let slack = ttl.min(policy.clock_slack);
        let mut end = (over.finished_at + ttl).max(over.seen() + slack);
        if end <= now && keeps_quarantine(over, mirrors) {
            end = now + KEPT_PERIOD;
        }
        if end <= now {
            expired.push(over.key.clone());
        } else {
            next = Some(next.map_or(end, |next| next.min(end)));
        }
    }
    (expired, next)
}

/// Whether it is a validation on which the quarantine of its node rests.
fn keeps_quarantine(over: &Over, mirrors: &Mirrors) -> bool {
    let run = over.run.as_deref();
    run.is_some_and(|run| run.keeps_quarantine(mirrors))
}

/// The planner's figures, with what the Fabric sets.
pub fn policy(fabric: &FabricSpec) -> Policy {
    let patience = fabric.classes.iter().map(|class| {
        let seconds = class.start_progress_deadline_seconds;
        (
            class.name.as_str().into(),
            Duration::from_secs(seconds.into()),
        )
    });
    Policy {
        max_cross_zone_jobs: fabric.max_cross_zone_jobs,
        start_patience_of: patience.collect(),
        ..Policy::default()
    }
}

/// The class that a job runs on: the one that it names or was given when it was first looked at,
/// else the Fabric's default.
pub fn class_of<'a>(job: &JobView, fabric: &'a FabricSpec) -> Option<&'a NodeClass> {
    match class_name(job) {
        Some(name) => fabric.classes.iter().find(|class| class.name == *name),
        None => fabric.default_class(),
    }
}

/// The class that is certain for a job, whatever happens to the Fabric.
fn class_name(job: &JobView) -> Option<&String> {
    let given = || job.status.as_ref()?.node_class.as_ref();
    job.spec.node_class.as_ref().or_else(given)
}
