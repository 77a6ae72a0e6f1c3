//! What a job's record says about the time for which it had nodes.

use scheduler::{AttemptRecord, Exit, PodState, Snapshot};

use crate::build::{at, job};
use crate::decisions::{decide, queue, recorded, step};
use crate::gangs::running;

fn newest(snapshot: &Snapshot) -> AttemptRecord {
    snapshot.jobs[0].status.newest.clone().unwrap()
}

#[test]
fn an_attempt_is_recorded_with_its_nodes_and_ends_with_a_reason() {
    let mut snapshot = running(3);
    let AttemptRecord {
        attempt,
        nodes,
        names,
        since,
        ended,
    } = newest(&snapshot);
    assert_eq!((attempt, nodes, since, ended), (1, 3, at(0), None));
    assert_eq!(names, ["a-000".into(), "a-001".into(), "a-002".into()]);
    let exit = Exit {
        finished: Some(at(20)),
        ..Exit::default()
    };
    snapshot.pods[0].state = PodState::Failed(exit);
    snapshot.pods[0].terminal = true;
    step(&mut snapshot, at(21));
    let first = newest(&snapshot);
    assert_eq!(first.ended, Some((at(21), "Failed".to_owned())));
    assert_eq!(first.node_seconds(), Some(63));
    assert_eq!(snapshot.jobs[0].status.started_at, Some(at(0)));
}

#[test]
fn a_job_that_was_asked_to_leave_says_by_what() {
    let mut snapshot = running(2);
    snapshot.jobs[0].suspend = true;
    step(&mut snapshot, at(10));
    assert_eq!(newest(&snapshot).ended, None);
    snapshot.pods.clear();
    step(&mut snapshot, at(14));
    let (end, reason) = newest(&snapshot).ended.unwrap();
    assert_eq!((end, reason.as_str()), (at(14), "Suspended"));
}

#[test]
fn the_names_of_a_large_gang_are_cut_and_its_size_is_not() {
    let plan = decide(&queue("a:40", vec![job("large", 40)]), at(0));
    let record = recorded(&plan, "large").newest.unwrap();
    assert_eq!((record.nodes, record.names.len()), (40, 16));
}

#[test]
fn class_and_processes_are_recorded_once_with_the_first_record() {
    let mut snapshot = queue("a:1", vec![job("waits", 2)]);
    step(&mut snapshot, at(0));
    let class = snapshot.jobs[0].status.class.clone();
    assert_eq!(class, Some(("a100".into(), 8)));
    snapshot.jobs[0].procs_per_node = Some(4);
    snapshot.nodes.clear();
    step(&mut snapshot, at(1));
    assert_eq!(snapshot.jobs[0].status.class, class);
}
