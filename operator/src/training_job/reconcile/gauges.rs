//! Shows what was seen as gauges: jobs by phase, nodes by state, where many fell away at once.

use scheduler::{Job, Node, Phase, Snapshot, States};

use crate::cluster::Mirrors;
use crate::metrics::Metrics;
use crate::training_job::kept::KeptJob;

const PHASES: [Phase; 9] = [
    Phase::Queued,
    Phase::Assigned,
    Phase::Starting,
    Phase::Running,
    Phase::Interrupting,
    Phase::Restarting,
    Phase::Suspended,
    Phase::Succeeded,
    Phase::Failed,
];

/// How many jobs are over and hold nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ended {
    succeeded: i64,
    failed: i64,
}

/// Counts the jobs that are over and hold nothing.
pub(super) fn ended(mirrors: &Mirrors) -> Ended {
    let mut ended = Ended::default();
    for kept in mirrors.jobs.resting() {
        if let KeptJob::Over(over) = kept {
            let count = match over.succeeded {
                true => &mut ended.succeeded,
                false => &mut ended.failed,
            };
            *count += 1;
        }
    }
    ended
}

/// Replaces what the gauges showed.
pub(super) fn show(metrics: &Metrics, snapshot: &Snapshot, ended: Ended, states: &States<'_>) {
    metrics.jobs.reset();
    for phase in PHASES {
        metrics
            .jobs
            .with_label_values(&[&*format!("{phase:?}")])
            .set(match phase {
                Phase::Succeeded => ended.succeeded,
                Phase::Failed => ended.failed,
                Phase::Queued
                | Phase::Assigned
                | Phase::Starting
                | Phase::Running
                | Phase::Interrupting
                | Phase::Restarting
                | Phase::Suspended => 0,
            });
    }
    // Of those that are over, the snapshot has some again.
    let lives = |job: &&Job| job.finalizer || !job.status.phase.is_terminal();
    for job in snapshot.jobs.iter().filter(lives) {
        metrics
            .jobs
            .with_label_values(&[&*format!("{:?}", job.status.phase)])
            .inc();
    }
    metrics.nodes.reset();
    let classed = |node: &&Node| !node.class.as_str().is_empty();
    for node in snapshot.nodes.iter().filter(classed) {
        metrics
            .nodes
            .with_label_values(&[node.class.as_str(), states.of(&node.name).as_str()])
            .inc();
    }
    metrics.storms.reset();
    for storm in states.storms() {
        let labels = [storm.class.as_str(), storm.zone.as_str()];
        let nodes = i64::try_from(storm.not_ready).unwrap_or(i64::MAX);
        metrics.storms.with_label_values(&labels).set(nodes);
    }
}
