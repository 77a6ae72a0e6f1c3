//! The check is itself checked: good plans, spoiled by hand, are refused for the right reason.

use std::time::Duration;

use scheduler::{
    Action, ConditionKind, JobPhase, JobStatus, Node, Plan, PodState, Policy, Ready, Snapshot,
    Wish, check, plan,
};

use crate::build::{acknowledge, at, job, nodes};
use crate::pauses::{delayed, refused as refused_nodes};
use crate::properties::apply;

/// Two jobs get nodes, one of them crossing.
fn good() -> (Snapshot, Plan) {
    let jobs = vec![job("big", 5), job("small", 2)];
    let snapshot = Snapshot {
        nodes: nodes("a:4 b:4"),
        jobs,
        ..Snapshot::default()
    };
    let plan = plan(&snapshot, &Policy::default(), at(0));
    assert_eq!(plan.jobs.len(), 2);
    (snapshot, plan)
}

fn refused(snapshot: &Snapshot, plan: &Plan, expected: &str) {
    let violation = check(snapshot, &Policy::default(), at(0), plan);
    assert_eq!(
        violation.map_err(|violation| violation.invariant),
        Err(expected)
    );
}

fn attempt_of(plan: &mut Plan, job: usize) -> &mut scheduler::NewAttempt {
    let attempt = plan.jobs[job]
        .actions
        .iter_mut()
        .find_map(|action| match action {
            Action::CreateAttempt(attempt) => Some(attempt),
            _ => None,
        });
    attempt.unwrap()
}

fn drop_actions(plan: &mut Plan, job: usize, mut drop: impl FnMut(&Action) -> bool) {
    plan.jobs[job].actions.retain(|action| !drop(action));
}

#[test]
fn a_good_plan_passes() {
    let (snapshot, plan) = good();
    assert_eq!(check(&snapshot, &Policy::default(), at(0), &plan), Ok(()));
}

#[test]
fn a_node_in_two_gangs_is_refused() {
    let (snapshot, mut plan) = good();
    let stolen = attempt_of(&mut plan, 0).nodes[0].clone();
    attempt_of(&mut plan, 1).nodes[0] = stolen;
    refused(&snapshot, &plan, "one-gang-per-node");
}

#[test]
fn a_node_twice_in_one_gang_is_refused() {
    let (snapshot, mut plan) = good();
    let attempt = attempt_of(&mut plan, 0);
    attempt.nodes[1] = attempt.nodes[0].clone();
    refused(&snapshot, &plan, "one-gang-per-node");
}

#[test]
fn a_held_node_is_refused() {
    let (mut snapshot, plan) = good();
    let mut other = plan.clone();
    other.jobs.remove(0);
    apply(&mut snapshot, &other, at(0));
    snapshot.pods.clear();
    let mut stealing = plan;
    stealing.jobs.remove(1);
    let stolen = snapshot.attempts[0].nodes[0].clone();
    let zone = stealing.jobs[0].clone();
    assert_eq!(zone.job.name.as_ref(), "big");
    let place = &mut attempt_of(&mut stealing, 0).nodes[0];
    place.zone = stolen.as_str()[..1].into();
    place.node = stolen;
    refused(&snapshot, &stealing, "one-gang-per-node");
}

#[test]
fn a_node_where_an_older_pod_still_runs_is_refused() {
    let (mut snapshot, plan) = good();
    let mut state = snapshot.clone();
    apply(&mut state, &plan, at(0));
    let mut leftover = state.pods.swap_remove(0);
    leftover.job.uid = "an earlier one".into();
    snapshot.pods.push(leftover);
    refused(&snapshot, &plan, "one-gang-per-node");
}

#[test]
fn half_a_gang_is_refused() {
    let (snapshot, mut plan) = good();
    attempt_of(&mut plan, 0).nodes.pop();
    refused(&snapshot, &plan, "gang-whole");
}

#[test]
fn a_missing_pod_is_refused() {
    let (snapshot, mut plan) = good();
    drop_actions(&mut plan, 1, |action| {
        matches!(action, Action::CreatePod { rank: 1, .. })
    });
    refused(&snapshot, &plan, "gang-whole");
}

#[test]
fn a_pod_that_may_acknowledge_and_would_not_wait_for_the_record_is_refused() {
    for (shrinks, first) in [(false, 0), (true, 1)] {
        let (mut snapshot, _) = good();
        snapshot.jobs[1].shrinks = shrinks;
        let mut plan = plan(&snapshot, &Policy::default(), at(0));
        assert_eq!(check(&snapshot, &Policy::default(), at(0), &plan), Ok(()));
        for action in &mut plan.jobs[1].actions {
            if let Action::CreatePod {
                rank, finalizer, ..
            } = action
                && *rank == first
            {
                *finalizer = false;
            }
        }
        refused(&snapshot, &plan, "no-lost-save");
    }
}

#[test]
fn a_pod_on_another_rank_s_node_is_refused() {
    let (snapshot, mut plan) = good();
    for action in &mut plan.jobs[1].actions {
        if let Action::CreatePod { rank, .. } = action {
            *rank = 1 - *rank;
        }
    }
    refused(&snapshot, &plan, "gang-whole");
}

/// ZONE-1.
#[test]
fn too_many_crossing_jobs_are_refused() {
    let (snapshot, plan) = good();
    let policy = Policy {
        max_cross_zone_jobs: 0,
        ..Policy::default()
    };
    let violation = check(&snapshot, &policy, at(0), &plan).unwrap_err();
    assert_eq!(violation.invariant, "crossing-limit");
}

#[test]
fn a_crossing_beside_a_deleted_job_whose_trainers_still_run_is_refused() {
    let (mut snapshot, plan) = good();
    let mut first = Snapshot {
        nodes: nodes("c:4 d:4"),
        jobs: vec![job("first", 5)],
        ..Snapshot::default()
    };
    let started = scheduler::plan(&first, &Policy::default(), at(0));
    apply(&mut first, &started, at(0));
    first.jobs[0].deleting = true;
    for pod in &mut first.pods {
        pod.state = PodState::Running;
    }
    snapshot.nodes.extend(first.nodes);
    snapshot.jobs.extend(first.jobs);
    snapshot.attempts.extend(first.attempts);
    snapshot.pods.extend(first.pods);
    refused(&snapshot, &plan, "crossing-limit");
    for pod in &mut snapshot.pods {
        pod.terminal = true;
    }
    assert_eq!(check(&snapshot, &Policy::default(), at(0), &plan), Ok(()));
}

// ZONE-1
#[test]
fn a_crossing_beside_trainers_of_whose_crossing_only_their_pods_or_status_know_is_refused() {
    let known: [fn(&mut Snapshot); 2] = [
        |first| first.jobs.clear(),
        |first| {
            for pod in &mut first.pods {
                pod.crossing = false;
            }
        },
    ];
    for known in known {
        let (mut snapshot, plan) = good();
        let mut first = Snapshot {
            nodes: nodes("c:4 d:4"),
            jobs: vec![job("first", 5)],
            ..Snapshot::default()
        };
        let started = scheduler::plan(&first, &Policy::default(), at(0));
        apply(&mut first, &started, at(0));
        first.jobs[0].deleting = true;
        known(&mut first);
        for pod in &mut first.pods {
            pod.state = PodState::Running;
        }
        snapshot.nodes.extend(first.nodes);
        snapshot.jobs.extend(first.jobs);
        snapshot.pods.extend(first.pods);
        refused(&snapshot, &plan, "crossing-limit");
        for pod in &mut snapshot.pods {
            pod.terminal = true;
        }
        assert_eq!(check(&snapshot, &Policy::default(), at(0), &plan), Ok(()));
    }
}

/// A job of three that trains, one rank of which has ended well and is gone, and the record of the
/// second end.
fn ending() -> (Snapshot, Plan) {
    let mut snapshot = crate::gangs::running(3);
    snapshot.pods[1].state = PodState::Succeeded;
    snapshot.pods[1].terminal = true;
    crate::decisions::step(&mut snapshot, at(10));
    snapshot.pods.remove(1);
    snapshot.pods[1].state = PodState::Succeeded;
    let plan = plan(&snapshot, &Policy::default(), at(20));
    assert_eq!(check(&snapshot, &Policy::default(), at(20), &plan), Ok(()));
    (snapshot, plan)
}

#[test]
fn a_record_that_forgets_or_invents_who_ended_well_is_refused() {
    let spoilers: [fn(&mut JobStatus); 5] = [
        |status| {
            status
                .completed
                .as_mut()
                .unwrap()
                .ranks
                .retain(|rank| *rank != 1);
        },
        |status| status.completed = None,
        |status| status.completed.as_mut().unwrap().ranks.extend([0]),
        |status| status.completed.as_mut().unwrap().attempt = 2,
        |status| {
            status.phase = JobPhase::Succeeded;
            status.set(ConditionKind::Complete, true, "Succeeded", "", at(20));
        },
    ];
    for spoil in spoilers {
        let (snapshot, mut plan) = ending();
        let Action::Record { status, .. } = &mut plan.jobs[0].actions[0] else {
            panic!("no record: {plan:#?}");
        };
        spoil(status);
        let violation = check(&snapshot, &Policy::default(), at(20), &plan);
        let invariant = violation.map_err(|violation| violation.invariant);
        assert_eq!(invariant, Err("one-end"));
    }
}

#[test]
fn a_crossing_that_is_not_admitted_or_not_allowed_is_refused() {
    let (snapshot, mut plan) = good();
    attempt_of(&mut plan, 0).crossing = false;
    refused(&snapshot, &plan, "crossing-limit");
    let (mut snapshot, plan) = good();
    snapshot.jobs[0].zone_policy = scheduler::ZonePolicy::Single;
    refused(&snapshot, &plan, "crossing-limit");
}

#[test]
fn a_crossing_is_refused_when_one_zone_has_enough_healthy_nodes_even_if_they_are_busy() {
    let (mut snapshot, plan) = good();
    let mut state = snapshot.clone();
    apply(&mut state, &plan, at(0));
    let mut busy = state.pods.swap_remove(0);
    busy.job.uid = "an earlier one".into();
    busy.crossing = false;
    busy.node = "a-004".into();
    snapshot.nodes = nodes("a:5 b:4");
    snapshot.pods.push(busy);
    refused(&snapshot, &plan, "crossing-limit");
    // Its fifth node may be back soon, until that was hoped for long enough.
    snapshot.nodes[4].wishes = [(Wish::Cordoned, at(0))].into();
    refused(&snapshot, &plan, "crossing-limit");
    snapshot.jobs[0].status.no_zone_since = Some(at(0));
    assert_eq!(check(&snapshot, &Policy::default(), at(300), &plan), Ok(()));
}

#[test]
fn ranks_that_are_not_contiguous_by_zone_are_refused() {
    let (snapshot, mut plan) = good();
    attempt_of(&mut plan, 0).nodes.rotate_left(1);
    refused(&snapshot, &plan, "crossing-limit");
}

#[test]
fn unhealthy_nodes_are_refused() {
    let spoilers: [fn(&mut Node); 5] = [
        |node| node.ready = Ready::Unknown,
        |node| node.wishes = [(Wish::Cordoned, at(0))].into(),
        |node| node.short = Some("0 of 1 fireflyer.dev/node".into()),
        |node| node.suspect_until = Some(at(9)),
        |node| node.class = "h100".into(),
    ];
    for spoil in spoilers {
        let (mut snapshot, plan) = good();
        snapshot.nodes.iter_mut().for_each(spoil);
        refused(&snapshot, &plan, "healthy-nodes");
    }
}

#[test]
fn creating_before_recording_is_refused() {
    let (snapshot, mut plan) = good();
    drop_actions(&mut plan, 0, |action| {
        matches!(action, Action::Record { .. })
    });
    refused(&snapshot, &plan, "record-first");
    let (snapshot, mut plan) = good();
    drop_actions(&mut plan, 0, |action| {
        matches!(action, Action::AddFinalizer)
    });
    refused(&snapshot, &plan, "finalizer-while-held");
    let (snapshot, mut plan) = good();
    drop_actions(&mut plan, 0, |action| {
        matches!(action, Action::CreateKey { .. })
    });
    refused(&snapshot, &plan, "record-first");
}

/// Both jobs train.
fn training() -> Snapshot {
    let (mut snapshot, first) = good();
    apply(&mut snapshot, &first, at(0));
    snapshot
        .pods
        .iter_mut()
        .for_each(|pod| pod.state = PodState::Running);
    let second = plan(&snapshot, &Policy::default(), at(0));
    apply(&mut snapshot, &second, at(0));
    snapshot
}

fn only(snapshot: &Snapshot, actions: Vec<Action>) -> Plan {
    let job = snapshot.jobs[0].key.clone();
    Plan {
        jobs: vec![scheduler::JobPlan { job, actions }],
        ..Plan::default()
    }
}

#[test]
fn killing_a_training_pod_is_refused() {
    let snapshot = training();
    let delete = |grace| Action::DeletePod {
        attempt: 1,
        rank: 0,
        grace,
    };
    let kill = delete(Duration::ZERO);
    refused(
        &snapshot,
        &only(&snapshot, vec![kill.clone()]),
        "record-first",
    );
    let mut status = Box::new(snapshot.jobs[0].status.clone());
    status.phase = JobPhase::Interrupting;
    let ask = Action::Record {
        status,
        event: None,
    };
    refused(
        &snapshot,
        &only(&snapshot, vec![ask.clone(), kill]),
        "no-lost-save",
    );
    let gently = only(&snapshot, vec![ask, delete(snapshot.jobs[0].grace)]);
    assert_eq!(check(&snapshot, &Policy::default(), at(0), &gently), Ok(()));
}

#[test]
fn letting_go_too_early_is_refused() {
    let mut snapshot = training();
    let plan = only(&snapshot, vec![Action::RemoveFinalizer]);
    refused(&snapshot, &plan, "finalizer-while-held");
    // Also when it no longer holds anything on paper, but its pods still run.
    snapshot.jobs[0].status.phase = JobPhase::Restarting;
    refused(&snapshot, &plan, "finalizer-while-held");
    refused(
        &snapshot,
        &only(&snapshot, vec![Action::DeleteJob]),
        "one-end",
    );
}

#[test]
fn an_end_that_is_not_true_is_refused() {
    let snapshot = training();
    let mut status = Box::new(snapshot.jobs[0].status.clone());
    status.phase = JobPhase::Succeeded;
    let unsaid = Action::Record {
        status: status.clone(),
        event: None,
    };
    refused(&snapshot, &only(&snapshot, vec![unsaid]), "one-end");
    status.set(
        scheduler::ConditionKind::Complete,
        true,
        "Succeeded",
        "",
        at(0),
    );
    let untrue = Action::Record {
        status,
        event: None,
    };
    refused(&snapshot, &only(&snapshot, vec![untrue]), "one-end");
}

/// A plan that changes the status of the first job, long after its promise would have ended.
fn changed(snapshot: &Snapshot, change: impl FnOnce(&mut JobStatus)) -> Option<&'static str> {
    let mut status = Box::new(snapshot.jobs[0].status.clone());
    change(&mut status);
    let record = Action::Record {
        status,
        event: None,
    };
    let plan = only(snapshot, vec![record]);
    let found = check(snapshot, &Policy::default(), at(400), &plan);
    found.err().map(|violation| violation.invariant)
}

#[test]
fn a_promise_that_ends_while_one_of_its_nodes_is_validated_is_refused() {
    let snapshot = delayed();
    let kept = Some("promise-kept");
    assert_eq!(changed(&snapshot, |status| status.promise = None), kept);
    let forget = |status: &mut JobStatus| {
        if let Some(promise) = &mut status.promise {
            promise.delayed_by = None;
            promise.until = at(500);
        }
    };
    assert_eq!(changed(&snapshot, forget), kept);
    // Once the validation is over, it may end.
    let mut over = snapshot;
    over.jobs[1].status.phase = JobPhase::Succeeded;
    over.pods.clear();
    assert_eq!(changed(&over, forget), None);
    // And it cannot be made to stand for what does not exist.
    let wait = |status: &mut JobStatus| {
        if let Some(promise) = &mut status.promise {
            promise.delayed_by = Some("another".into());
        }
    };
    assert_eq!(changed(&over, wait), kept);
}

/// Checks the plan of a planner that knows of no promise to the first job.
fn careless(snapshot: &Snapshot, seconds: u64) -> Result<(), &'static str> {
    let mut blind = snapshot.clone();
    blind.jobs[0].status.promise = None;
    let mut plan = plan(&blind, &Policy::default(), at(seconds));
    plan.jobs.retain(|plan| plan.job != snapshot.jobs[0].key);
    assert!(plan.jobs.iter().any(|plan| plan.attempt().is_some()));
    let found = check(snapshot, &Policy::default(), at(seconds), &plan);
    found.map_err(|violation| violation.invariant)
}

#[test]
fn what_is_promised_is_refused_to_others_as_long_as_it_is_delayed() {
    let mut snapshot = delayed();
    let mut other = job("other", 1);
    other.status.phase = JobPhase::Restarting;
    other.status.attempt = 1;
    snapshot.jobs.push(other);
    assert_eq!(careless(&snapshot, 400), Err("promise-kept"));
}

#[test]
fn a_validation_before_a_restart_is_refused() {
    let mut snapshot = refused_nodes(4).snapshot;
    snapshot.jobs.truncate(3);
    assert_eq!(careless(&snapshot, 51), Err("promise-kept"));
}

/// SAVE-2.
#[test]
fn dropping_an_acknowledgement_is_refused() {
    let mut snapshot = training();
    acknowledge(&mut snapshot);
    let mut status = Box::new(snapshot.jobs[0].status.clone());
    status.phase = JobPhase::Restarting;
    let forget = Action::Record {
        status,
        event: None,
    };
    let strip = Action::StripPod {
        attempt: 1,
        rank: 0,
    };
    refused(
        &snapshot,
        &only(&snapshot, vec![forget, strip]),
        "no-lost-save",
    );
}

#[test]
fn a_bad_plan_for_one_job_does_not_stop_the_others() {
    let (snapshot, mut plan) = good();
    attempt_of(&mut plan, 0).nodes.pop();
    let (left, violations) = scheduler::vet(&snapshot, &Policy::default(), at(0), plan.clone());
    assert_eq!(left.jobs, plan.jobs[1..]);
    assert_eq!(
        violations[0].to_string(),
        "the plan for team/big breaks gang-whole: 4 nodes for a job of 5"
    );
}
