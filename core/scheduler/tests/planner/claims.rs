//! Places that are kept for jobs that restart or move, single decisions: who gets what meanwhile,
//! when that ends, and that the check refuses plans that take it.

use std::collections::BTreeMap;

use scheduler::{
    Action, Exit, JobKey, JobPhase, Plan, PodState, Policy, Promise, Ready, Snapshot, Timestamp,
    Wish, check,
};

use crate::build::{acknowledge, at, job, nodes};
use crate::decisions::{decide, placed, queue, recorded, step};
use crate::gangs::train;
use crate::properties::apply;

/// `big` trains on a-000 to a-003 of five nodes; small jobs wait behind it.
fn crowded() -> Snapshot {
    let mut snapshot = queue("a:5", vec![job("big", 4)]);
    train(&mut snapshot);
    for name in ["small-1", "small-2", "small-3"] {
        let mut small = job(name, 1);
        small.created = at(1);
        snapshot.jobs.push(small);
    }
    snapshot
}

/// A node of `big` dies for a moment, and its attempt ends.
fn struck() -> Snapshot {
    let mut snapshot = crowded();
    // The spare is busy with something else for a moment.
    snapshot.nodes[4].wishes = [(Wish::Cordoned, at(0))].into();
    snapshot.nodes[0].ready = Ready::Unknown;
    step(&mut snapshot, at(100));
    assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Restarting);
    snapshot.nodes[0].ready = Ready::True;
    snapshot.nodes[4].wishes.clear();
    snapshot
}

fn promise(snapshot: &Snapshot) -> &Promise {
    snapshot.jobs[0].status.promise.as_ref().unwrap()
}

#[test]
fn small_jobs_do_not_take_the_nodes_of_a_job_that_restarts() {
    let mut snapshot = struck();
    let Promise {
        attempt,
        zones,
        until,
        delayed_by,
    } = promise(&snapshot).clone();
    assert_eq!(delayed_by, None);
    assert_eq!((attempt, zones), (1, BTreeMap::from([("a".into(), 4)])));
    assert_eq!(until, at(192));
    // Its pods leave one after the other. The node that it lacks is found: not the one that died.
    let mut taken = Vec::new();
    for second in [100, 101, 102] {
        let plan = decide(&snapshot, at(second));
        taken.extend(placed(&plan));
        apply(&mut snapshot, &plan, at(second));
        if let Some(pod) = snapshot.pods.iter_mut().find(|pod| !pod.terminal) {
            pod.terminal = true;
        }
    }
    assert_eq!(taken, ["small-1: a-000"]);
    snapshot.pods.retain(|pod| *pod.job.name != *"big");
    let plan = decide(&snapshot, at(103));
    assert_eq!(placed(&plan), ["big: a-001 a-002 a-003 a-004"]);
    assert_eq!(recorded(&plan, "big").promise, None);
    apply(&mut snapshot, &plan, at(103));
    // Nothing is kept any more, the old assignment neither.
    assert_eq!(snapshot.attempts.len(), 2, "{:?}", snapshot.attempts);
}

#[test]
fn a_promise_ends_by_itself() {
    let mut snapshot = struck();
    snapshot.pods.clear();
    // It cannot come back: its image, say, is gone, and with it the right to a place.
    let mut stays = snapshot.clone();
    stays.nodes[1].short = Some("0 of 1 fireflyer.dev/node".into());
    stays.nodes[2].short = Some("0 of 1 fireflyer.dev/node".into());
    assert_eq!(placed(&decide(&stays, at(191))), [""; 0]);
    let plan = decide(&stays, at(191));
    apply(&mut stays, &plan, at(191));
    assert_eq!(decide(&stays, at(191)).wake_at, Some(at(192)));
    assert_eq!(placed(&decide(&stays, at(192))).len(), 3);
    let plan = decide(&stays, at(192));
    apply(&mut stays, &plan, at(192));
    assert!(
        stays
            .attempts
            .iter()
            .all(|attempt| *attempt.job.name != *"big")
    );
    // Whoever suspends or deletes the job ends it at once.
    let spoilers: [fn(&mut scheduler::Job); 2] =
        [|job| job.suspend = true, |job| job.deleting = true];
    for spoil in spoilers {
        let mut ended = snapshot.clone();
        spoil(&mut ended.jobs[0]);
        assert_eq!(placed(&decide(&ended, at(101))).len(), 3);
    }
}

#[test]
fn nothing_is_promised_over_a_long_back_off() {
    for (restarts, promised) in [(0, true), (4, true), (5, false)] {
        let mut snapshot = crowded();
        snapshot.jobs[0].max_restarts = 9;
        snapshot.jobs[0].status.restarts = restarts;
        snapshot.pods[0].state = PodState::Failed(Exit::default());
        snapshot.pods[0].terminal = true;
        let status = recorded(&decide(&snapshot, at(9)), "big");
        assert_eq!(status.promise.is_some(), promised, "{restarts}");
    }
}

#[test]
fn a_job_that_moves_has_its_new_place_in_the_pass_in_which_it_has_left() {
    let mut snapshot = queue("a:4", vec![job("mover", 2)]);
    train(&mut snapshot);
    snapshot.nodes[0].wishes = [(Wish::Cordoned, at(0))].into();
    step(&mut snapshot, at(62));
    assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Interrupting);
    let mut thief = job("thief", 2);
    thief.created = at(1);
    snapshot.jobs.push(thief);
    assert_eq!(placed(&decide(&snapshot, at(63))), [""; 0]);
    acknowledge(&mut snapshot);
    let plan = decide(&snapshot, at(64));
    assert_eq!(placed(&plan), [""; 0]);
    apply(&mut snapshot, &plan, at(64));
    let plan = decide(&snapshot, at(64));
    assert_eq!(placed(&plan), ["mover: a-001 a-002"]);
}

#[test]
fn a_drained_job_keeps_its_place_over_the_back_off() {
    let mut snapshot = queue("a:3", vec![job("big", 2)]);
    train(&mut snapshot);
    snapshot.pods[1].delete_by = Some(at(40));
    step(&mut snapshot, at(10));
    let mut thief = job("thief", 1);
    thief.created = at(1);
    snapshot.jobs.push(thief);
    acknowledge(&mut snapshot);
    let plan = decide(&snapshot, at(10));
    assert_eq!(placed(&plan), ["thief: a-002"]);
    apply(&mut snapshot, &plan, at(10));
    assert_eq!(promise(&snapshot).until, at(71));
    assert_eq!(placed(&decide(&snapshot, at(11))), ["big: a-000 a-001"]);
}

// ZONE-1
#[test]
fn a_crossing_job_that_restarts_keeps_its_right_to_cross() {
    let mut snapshot = queue("a:3 b:3", vec![job("big", 4)]);
    train(&mut snapshot);
    snapshot.nodes.extend(nodes("c:2 d:2"));
    snapshot.jobs.push(job("other", 4));
    snapshot.pods.pop();
    step(&mut snapshot, at(10));
    assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Restarting);
    let plan = decide(&snapshot, at(10));
    assert_eq!(placed(&plan), [""; 0]);
    snapshot.pods.clear();
    snapshot.nodes.retain(|node| node.zone != "c".into());
    let plan = decide(&snapshot, at(12));
    assert_eq!(placed(&plan), ["big: a-000 a-001 a-002 b-000"]);
}

fn refused(snapshot: &Snapshot, plan: &Plan, now: Timestamp) {
    let violation = check(snapshot, &Policy::default(), now, plan).unwrap_err();
    assert_eq!(violation.invariant, "promise-kept", "{violation}");
}

/// What a planner that knows of no promise would do.
fn careless(snapshot: &Snapshot, now: Timestamp) -> Plan {
    let mut blind = snapshot.clone();
    blind.jobs[0].status.promise = None;
    let mut plan = scheduler::plan(&blind, &Policy::default(), now);
    plan.jobs.retain(|plan| *plan.job.name != *"big");
    plan
}

#[test]
fn a_plan_that_gives_promised_nodes_to_others_is_refused() {
    let mut snapshot = struck();
    snapshot.pods.clear();
    let plan = careless(&snapshot, at(100));
    assert_eq!(placed(&plan).len(), 3);
    refused(&snapshot, &plan, at(100));
    // Also where only a number of nodes is promised: of two nodes that are free beside its own one
    // may go.
    let mut counted = snapshot.clone();
    counted.nodes.truncate(5);
    let mut plan = careless(&counted, at(100));
    let own: Vec<_> = ["a-001", "a-002", "a-003"].map(Into::into).into();
    plan.jobs
        .retain(|plan| plan.nodes().all(|node| !own.contains(node)));
    assert_eq!(check(&counted, &Policy::default(), at(100), &plan), Ok(()));
    counted.nodes.pop();
    refused(&counted, &plan, at(100));
    // When it has run out anybody may have them.
    let plan = careless(&snapshot, at(192));
    assert_eq!(check(&snapshot, &Policy::default(), at(192), &plan), Ok(()));
}

fn only(job: &JobKey, action: Action) -> Plan {
    Plan {
        jobs: vec![scheduler::JobPlan {
            job: job.clone(),
            actions: vec![action],
        }],
        ..Plan::default()
    }
}

#[test]
fn a_promise_that_is_too_large_and_one_that_loses_its_list_are_refused() {
    let snapshot = struck();
    let key = &snapshot.jobs[0].key;
    let gone = only(key, Action::DeleteAttempt { attempt: 1 });
    refused(&snapshot, &gone, at(101));
    let mut status = Box::new(snapshot.jobs[0].status.clone());
    if let Some(promise) = &mut status.promise {
        promise.zones.insert("b".into(), 1);
    }
    let record = Action::Record {
        status,
        event: None,
    };
    refused(&snapshot, &only(key, record), at(101));
}
