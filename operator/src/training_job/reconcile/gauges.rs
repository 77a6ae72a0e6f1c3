//! Shows what was seen as gauges: jobs by phase, nodes by state, where many fell away at once.

use std::collections::BTreeMap;

use health::Verdict;
use scheduler::{Job, JobKind, JobPhase, Node, Snapshot, States};

use crate::cluster::Mirrors;
use crate::metrics::Metrics;
use crate::node_validation;
use crate::training_job::mirrored_job::MirroredJob;

const PHASES: [JobPhase; 9] = [
    JobPhase::Queued,
    JobPhase::Assigned,
    JobPhase::Starting,
    JobPhase::Running,
    JobPhase::Interrupting,
    JobPhase::Restarting,
    JobPhase::Suspended,
    JobPhase::Succeeded,
    JobPhase::Failed,
];

/// How many jobs are over and hold nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended {
    succeeded: i64,
    failed: i64,
    /// Nodes by the verdict of their newest validation.
    validated: BTreeMap<Verdict, i64>,
}

/// Counts the jobs that are over and hold nothing.
pub(super) fn ended(mirrors: &Mirrors) -> Ended {
    let mut ended = Ended {
        validated: node_validation::verdicts(mirrors),
        ..Ended::default()
    };
    for mirrored in mirrors.jobs.resting() {
        if let MirroredJob::Over(over) = mirrored {
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
pub(super) fn show(metrics: &Metrics, snapshot: &Snapshot, ended: &Ended, states: &States<'_>) {
    metrics.jobs.reset();
    for phase in PHASES {
        metrics
            .jobs
            .with_label_values(&[&*format!("{phase:?}")])
            .set(match phase {
                JobPhase::Succeeded => ended.succeeded,
                JobPhase::Failed => ended.failed,
                JobPhase::Queued
                | JobPhase::Assigned
                | JobPhase::Starting
                | JobPhase::Running
                | JobPhase::Interrupting
                | JobPhase::Restarting
                | JobPhase::Suspended => 0,
            });
    }
    // Of those that are over, the snapshot has some again.
    let lives = |job: &&Job| {
        let trains = job.key.kind == JobKind::TrainingJob;
        trains && (job.finalizer || !job.status.phase.is_terminal())
    };
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
    metrics.validated.reset();
    for (verdict, count) in &ended.validated {
        let nodes = metrics.validated.with_label_values(&[verdict.as_str()]);
        nodes.set(*count);
    }
    metrics.avoided.reset();
    let by_all = states.avoided_by_all();
    let avoided = snapshot.nodes.iter().filter(classed);
    for node in avoided.filter(|node| by_all.contains_key(&node.name)) {
        let class = metrics.avoided.with_label_values(&[node.class.as_str()]);
        class.inc();
    }
    metrics.storms.reset();
    for storm in states.storms() {
        let labels = [storm.class.as_str(), storm.zone.as_str()];
        let nodes = i64::try_from(storm.not_ready).unwrap_or(i64::MAX);
        metrics.storms.with_label_values(&labels).set(nodes);
    }
}

#[cfg(test)]
mod tests {
    use daemon::Registry;
    use scheduler::{Avoided, EndCause, JobKey, Policy, Ready, Timestamp};

    use super::*;
    use crate::training_job::mirrored_job::Over;

    fn job(namespace: &str) -> Job {
        let over = Over {
            key: JobKey {
                kind: scheduler::JobKind::TrainingJob,
                namespace: namespace.into(),
                name: "digits".into(),
                uid: namespace.into(),
            },
            version: "1".to_owned(),
            created: Timestamp::default(),
            succeeded: false,
            attempt: 1,
            finished_at: Timestamp::default(),
            ttl: None,
            run: None,
            seen: None,
        };
        let mut job = over.as_job();
        let avoided = Avoided {
            until: Timestamp::from_millis(1000),
            cause: EndCause::NodeRefused,
            count: 1,
        };
        job.status.avoided.insert("n1".into(), avoided);
        job
    }

    #[test]
    fn nodes_that_all_jobs_avoid_are_counted_by_class() {
        let metrics = Metrics::new(&Registry::new("0").unwrap()).unwrap();
        let node = |name: &str| Node {
            name: name.into(),
            class: "a100".into(),
            zone: "a".into(),
            leaf: "".into(),
            ready: Ready::True,
            unready_since: Timestamp::default(),
            taint: None,
            foreign_taint: None,
            quarantine: None,
            wishes: BTreeMap::new(),
            short: None,
            suspect_until: None,
        };
        let mut snapshot = Snapshot {
            nodes: vec![node("n1"), node("n2")],
            jobs: vec![job("one"), job("two")],
            ..Snapshot::default()
        };
        let mut avoided = |now, jobs: usize| {
            snapshot.jobs.truncate(jobs);
            let states = States::new(&snapshot, &Policy::default(), Timestamp::from_millis(now));
            show(&metrics, &snapshot, &Ended::default(), &states);
            metrics.avoided.with_label_values(&["a100"]).get()
        };
        assert_eq!((avoided(1, 2), avoided(1000, 2)), (1, 0));
        assert_eq!(avoided(1, 1), 0, "of one namespace");
    }
}
