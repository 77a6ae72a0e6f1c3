//! Pods that acknowledge or still train when their job is over, has gone on or is being deleted.

use scheduler::{Action, Exit, JobPhase, PodState, Snapshot};

use crate::build::{GRACE, acknowledge, at};
use crate::decisions::{decide, recorded, step};
use crate::gangs::{deletions, running};
use topology::CheckpointRef;

/// A gang whose program failed for good. Its pods are not released yet.
fn failed() -> Snapshot {
    let mut snapshot = running(2);
    snapshot.jobs[0].max_restarts = 0;
    let trains = snapshot.pods.clone();
    snapshot.pods[1].state = PodState::Failed(Exit::default());
    snapshot.pods[1].terminal = true;
    step(&mut snapshot, at(9));
    assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Failed);
    snapshot.pods = trains;
    snapshot
}

fn releases(snapshot: &Snapshot) -> bool {
    let plan = decide(snapshot, at(20));
    let mut actions = plan.jobs.iter().flat_map(|plan| &plan.actions);
    actions.any(|action| matches!(action, Action::StripPod { rank: 0, .. }))
}

// SAVE-1
#[test]
fn what_is_acknowledged_after_the_jobs_end_is_recorded_and_its_pod_released() {
    let mut snapshot = failed();
    let ack = acknowledge(&mut snapshot);
    let before = snapshot.jobs[0].status.clone();
    let status = recorded(&decide(&snapshot, at(20)), "train");
    assert_eq!(status.last_checkpoint, Some(ack));
    assert_eq!(
        (status.phase, status.finished_at),
        (before.phase, before.finished_at)
    );
    assert!(releases(&snapshot));
    step(&mut snapshot, at(20));
    assert!(!snapshot.jobs[0].finalizer);
    // Of a job that holds nothing little is known, and nothing is recorded any more.
    let mut over = failed();
    acknowledge(&mut over);
    over.jobs[0].finalizer = false;
    assert!(releases(&over));
    let plan = decide(&over, at(20));
    let mut actions = plan.jobs.iter().flat_map(|plan| &plan.actions);
    assert!(!actions.any(|action| matches!(action, Action::Record { .. })));
}

// SAVE-1
#[test]
fn what_a_pod_acknowledges_for_an_attempt_that_is_long_over_stops_no_later_one() {
    let mut snapshot = running(2);
    let old = snapshot.pods.clone();
    snapshot.pods[1].state = PodState::Failed(Exit::default());
    step(&mut snapshot, at(9));
    snapshot.pods.clear();
    step(&mut snapshot, at(20));
    assert_eq!(snapshot.jobs[0].status.attempt, 2);
    // Its node was cut off, and is back.
    let mut late = old[0].clone();
    let ack = CheckpointRef {
        attempt: 1,
        step: 7,
        digest: "d".to_owned(),
    };
    late.state = PodState::Interrupted {
        ack: Some(ack.clone()),
    };
    late.terminal = true;
    snapshot.pods.push(late);
    let status = recorded(&decide(&snapshot, at(30)), "train");
    assert_eq!((status.attempt, status.last_checkpoint), (2, Some(ack)));
    assert!(releases(&snapshot));
}

// SAVE-2
#[test]
fn a_gang_of_a_deleted_job_has_its_whole_grace_though_it_is_not_seen_to_train() {
    let mut snapshot = running(2);
    snapshot.jobs[0].deleting = true;
    for pod in &mut snapshot.pods {
        pod.state = PodState::Starting;
    }
    let plan = decide(&snapshot, at(9));
    assert_eq!(deletions(&plan), [(0, GRACE), (1, GRACE)]);
}
