//! Planning goes on while earlier plans are being written: what is under way is neither planned
//! again nor given to others.

use std::sync::Arc;

use scheduler::{Action, JobPlan, Plan, PodState, Policy, Snapshot, check};

use crate::build::{at, job};
use crate::decisions::{decide, placed, queue, reason};
use crate::properties::apply;

/// Writes the first `writes` of a job's actions; the rest is under way.
fn begin(snapshot: &mut Snapshot, plan: &JobPlan, writes: usize) {
    let written = JobPlan {
        job: plan.job.clone(),
        actions: plan.actions[..writes].to_vec(),
    };
    let written = Plan {
        jobs: vec![written],
        ..Plan::default()
    };
    apply(snapshot, &written, at(0));
    snapshot.under_way.push(Arc::new(plan.clone()));
}

/// Finalizer, record, ConfigMap, Secret, three pods, record.
fn big() -> (Snapshot, JobPlan) {
    let snapshot = queue("a:4", vec![job("big", 3)]);
    let plan = decide(&snapshot, at(0)).jobs.remove(0);
    assert_eq!(plan.actions.len(), 8);
    (snapshot, plan)
}

// GANG-1
#[test]
fn others_are_placed_beside_what_is_being_written_after_each_of_its_writes() {
    for written in 0..8 {
        let (mut snapshot, plan) = big();
        begin(&mut snapshot, &plan, written);
        snapshot.jobs.push(job("one", 1));
        snapshot.jobs.push(job("two", 2));
        let next = decide(&snapshot, at(1));
        assert_eq!(placed(&next), ["one: a-003"], "after {written} writes");
        assert_eq!(reason(&next, "two").0, "WaitingForNodes");
        assert!(
            next.jobs.iter().all(|other| other.job != plan.job),
            "after {written} writes"
        );
    }
}

// GANG-1
#[test]
fn nodes_stay_taken_when_the_job_is_deleted_while_its_pods_are_on_their_way() {
    for gone in [false, true] {
        let (mut snapshot, plan) = big();
        begin(&mut snapshot, &plan, 5);
        snapshot.jobs[0].deleting = true;
        if gone {
            snapshot.jobs.clear();
        }
        snapshot.jobs.push(job("two", 2));
        assert_eq!(placed(&decide(&snapshot, at(1))), [""; 0]);
        // Written to the end: what its pods do not use is free.
        snapshot.under_way.clear();
        assert_eq!(placed(&decide(&snapshot, at(2))), ["two: a-001 a-002"]);
    }
}

// ZONE-1
#[test]
fn a_crossing_that_is_being_written_counts_once() {
    for (written, limit, crosses) in [(0, 1, false), (0, 2, true), (7, 2, true)] {
        let mut snapshot = queue("a:3 b:3", vec![job("big", 4)]);
        let plan = decide(&snapshot, at(0)).jobs.remove(0);
        begin(&mut snapshot, &plan, written);
        snapshot.nodes.extend(crate::build::nodes("c:3 d:3"));
        snapshot.jobs.push(job("other", 4));
        let policy = Policy {
            max_cross_zone_jobs: limit,
            ..Policy::default()
        };
        let next = scheduler::plan(&snapshot, &policy, at(1));
        check(&snapshot, &policy, at(1), &next).unwrap();
        assert_eq!(placed(&next).len(), usize::from(crosses), "{next:?}");
    }
}

#[test]
fn a_waiting_head_of_the_queue_keeps_its_place_while_its_record_is_written() {
    let mut snapshot = queue("a:4", vec![job("a-two", 2), job("b-head", 4)]);
    let plan = decide(&snapshot, at(0));
    let (two, head) = (&plan.jobs[0], &plan.jobs[1]);
    begin(&mut snapshot, two, two.actions.len());
    snapshot.under_way.clear();
    begin(&mut snapshot, head, 0);
    snapshot.jobs.push(job("c-late", 2));
    assert_eq!(placed(&decide(&snapshot, at(1))), [""; 0]);
}

#[test]
fn what_a_plan_leaves_undone_is_planned_once_it_is_no_longer_under_way() {
    let (mut snapshot, plan) = big();
    begin(&mut snapshot, &plan, 5);
    assert!(decide(&snapshot, at(1)).is_empty());
    snapshot.under_way.clear();
    let rest = decide(&snapshot, at(2)).jobs.remove(0).actions;
    let expected = ["CreateKey", "CreatePod", "CreatePod", "Record"];
    let kinds: Vec<String> = rest.iter().map(|action| format!("{action:?}")).collect();
    assert_eq!(kinds.len(), expected.len(), "{kinds:?}");
    for (kind, expected) in kinds.iter().zip(expected) {
        assert!(kind.starts_with(expected), "{kinds:?}");
    }
}

#[test]
fn the_check_refuses_what_collides_with_what_is_under_way() {
    let refused = |snapshot: &Snapshot, plan: &Plan| {
        let violation = check(snapshot, &Policy::default(), at(1), plan);
        violation.unwrap_err().invariant
    };
    let (mut snapshot, plan) = big();
    let again = Plan {
        jobs: vec![plan.clone()],
        ..Plan::default()
    };
    begin(&mut snapshot, &plan, 0);
    assert_eq!(refused(&snapshot, &again), "one-plan-per-job");

    let (other, _) = big();
    let mut thief = other.jobs[0].clone();
    thief.key.uid = "thief".into();
    thief.key.name = "thief".into();
    let mut stealing = again;
    stealing.jobs[0].job = thief.key.clone();
    snapshot.jobs.push(thief);
    assert_eq!(refused(&snapshot, &stealing), "one-gang-per-node");
}

#[test]
fn a_gang_that_leaves_frees_its_nodes_while_its_plan_is_still_being_written() {
    let mut snapshot = queue("a:2", vec![job("a", 2)]);
    let first = decide(&snapshot, at(0));
    apply(&mut snapshot, &first, at(0));
    // Its back-off is long, so its place is reserved for nobody.
    snapshot.jobs[0].status.replans = 9;
    for pod in &mut snapshot.pods {
        pod.state = PodState::Refused("evicted".to_owned());
        pod.terminal = true;
    }
    let plan = decide(&snapshot, at(1)).jobs.remove(0);
    snapshot.jobs.push(job("b", 2));
    begin(&mut snapshot, &plan, 0);
    // Not recorded: it holds its nodes.
    assert_eq!(placed(&decide(&snapshot, at(1))), [""; 0]);
    let recorded = plan
        .actions
        .iter()
        .position(|action| matches!(action, Action::Record { .. }));
    snapshot.under_way.clear();
    begin(&mut snapshot, &plan, recorded.unwrap() + 1);
    assert_eq!(placed(&decide(&snapshot, at(1))), ["b: a-000 a-001"]);
}
