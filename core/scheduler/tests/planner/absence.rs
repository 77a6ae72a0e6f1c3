//! What is not seen ends nothing before a read has confirmed that it is gone, and nobody's patience
//! ends by what is old.

use std::sync::Arc;
use std::time::Duration;

use scheduler::{
    Absent, Action, GangLiveness, JobPhase, PodState, Policy, Snapshot, Timestamp, Wish,
};

use crate::build::{GRACE, at, job, key};
use crate::decisions::{decide, placed, queue, recorded};
use crate::gangs::running;

/// Reads what the plan misses: nothing exists but what the snapshot shows.
pub(crate) fn confirm(snapshot: &mut Snapshot, now: Timestamp) {
    snapshot.absent = decide(snapshot, now).confirm.into_iter().collect();
}

fn pod(rank: u32) -> Absent {
    Absent::Pod {
        job: key("train"),
        attempt: 1,
        rank,
    }
}

#[test]
fn a_pod_that_is_not_seen_ends_nothing_before_a_read_has_missed_it_too() {
    let mut snapshot = running(2);
    snapshot.pods.pop();
    let plan = decide(&snapshot, at(9));
    assert!(plan.is_empty(), "{plan:#?}");
    assert_eq!(plan.confirm, [pod(1)]);
    // Something else was not found.
    snapshot.absent = [pod(0)].into();
    assert!(decide(&snapshot, at(9)).is_empty());
    snapshot.absent = [pod(1)].into();
    let status = recorded(&decide(&snapshot, at(9)), "train");
    assert_eq!(status.phase, JobPhase::Restarting);
}

#[test]
fn a_gang_whose_pods_are_not_seen_is_not_given_up_because_its_nodes_can_take_none() {
    let mut snapshot = running(2);
    snapshot.jobs[0].status.phase = JobPhase::Assigned;
    snapshot.pods.clear();
    // A deposed leader has created its pods, and one of its nodes has been cordoned since.
    snapshot.nodes[1].wishes = [(Wish::Cordoned, at(0))].into();
    let plan = decide(&snapshot, at(9));
    assert!(plan.is_empty(), "{plan:#?}");
    assert_eq!(plan.confirm, [pod(1)]);
    confirm(&mut snapshot, at(9));
    let status = recorded(&decide(&snapshot, at(9)), "train");
    assert_eq!(status.phase, JobPhase::Restarting);
}

#[test]
fn of_two_attempts_with_one_node_the_younger_does_not_give_way_while_it_may_train() {
    let mut snapshot = running(2);
    snapshot.jobs[0].status.phase = JobPhase::Assigned;
    snapshot.attempts[0].created = at(5);
    let mut other = snapshot.jobs[0].clone();
    other.key = key("other");
    other.nodes = 1;
    let mut older = snapshot.attempts[0].clone();
    older.job = key("other");
    older.nodes.truncate(1);
    older.created = at(1);
    snapshot.jobs.push(other);
    snapshot.attempts.push(older);
    let fate = |snapshot: &Snapshot, name: &str| {
        let plan = decide(snapshot, at(9));
        let is_ended = |action: &Action| match action {
            Action::Record { status, .. } => status.phase == JobPhase::Restarting,
            _ => false,
        };
        let mut plans = plan.jobs.iter().filter(|plan| *plan.job.name == *name);
        plans.any(|plan| plan.actions.iter().any(is_ended))
    };
    // That its pods run is seen, though not recorded.
    assert!(!fate(&snapshot, "train"));
    // They are seen as they were, and all of its sidecars send heartbeats.
    for pod in &mut snapshot.pods {
        pod.state = PodState::Starting;
    }
    let set_liveness = |snapshot: &mut Snapshot, ranks: usize| {
        let nodes = snapshot.attempts[0].nodes.iter().take(ranks);
        let alive = GangLiveness {
            alive: nodes.cloned().collect(),
            ..GangLiveness::default()
        };
        snapshot.liveness = [((key("train"), 1), Arc::new(alive))].into();
    };
    set_liveness(&mut snapshot, 2);
    assert!(!fate(&snapshot, "train"), "it sends heartbeats");
    confirm(&mut snapshot, at(9));
    assert!(fate(&snapshot, "other"), "it has no right to them");
    // Before this leader has listened long enough, nobody knows.
    snapshot.liveness.clear();
    snapshot.absent.clear();
    snapshot.heartbeats_known_at = at(10);
    assert!(!fate(&snapshot, "train") && !fate(&snapshot, "other"));
    // A gang that is not whole does not train.
    snapshot.heartbeats_known_at = at(9);
    let mut joins = snapshot.clone();
    set_liveness(&mut joins, 1);
    assert!(fate(&joins, "train") && !fate(&joins, "other"));
    snapshot.pods.clear();
    assert!(!fate(&snapshot, "train"), "they are not seen");
    assert!(decide(&snapshot, at(9)).confirm.contains(&pod(0)));
    confirm(&mut snapshot, at(9));
    assert!(fate(&snapshot, "train"));
    assert!(!fate(&snapshot, "other"));
}

#[test]
fn a_gang_that_is_not_seen_to_train_has_its_whole_grace() {
    let mut snapshot = running(2);
    snapshot.jobs[0].status.phase = JobPhase::Starting;
    snapshot.jobs[0].suspend = true;
    for pod in &mut snapshot.pods {
        pod.state = PodState::Starting;
    }
    let plan = decide(&snapshot, at(9));
    let graces = plan.jobs[0]
        .actions
        .iter()
        .filter_map(|action| match action {
            Action::DeletePod { grace, .. } => Some(*grace),
            _ => None,
        });
    assert_eq!(graces.collect::<Vec<_>>(), [GRACE; 2]);
}

#[test]
fn an_assignment_that_is_not_seen_ends_nothing_before_a_read_has_missed_it_too() {
    let mut snapshot = running(2);
    snapshot.attempts.clear();
    let plan = decide(&snapshot, at(9));
    assert!(plan.is_empty(), "{plan:#?}");
    let missed = Absent::Attempt {
        job: key("train"),
        number: 1,
    };
    assert_eq!(plan.confirm, [missed]);
    confirm(&mut snapshot, at(9));
    let status = recorded(&decide(&snapshot, at(9)), "train");
    assert_eq!(status.phase, JobPhase::Restarting);
}

#[test]
fn a_node_that_is_not_seen_ends_nothing_before_a_read_has_missed_it_too() {
    let mut snapshot = running(2);
    let gone = snapshot.nodes.remove(1).name;
    let plan = decide(&snapshot, at(9));
    assert!(plan.is_empty(), "{plan:#?}");
    assert_eq!(plan.confirm, [Absent::Node(gone)]);
    confirm(&mut snapshot, at(9));
    let status = recorded(&decide(&snapshot, at(9)), "train");
    assert_eq!(status.phase, JobPhase::Restarting);
    // What is confirmed stays so for as long as it matters.
    assert_eq!(decide(&snapshot, at(9)).confirm.len(), 1);
}

#[test]
fn a_pod_on_a_node_that_is_not_seen_keeps_its_job_before_a_read_has_missed_the_node() {
    let mut snapshot = running(2);
    snapshot.jobs[0].deleting = true;
    snapshot.jobs[0].finalizer = true;
    for pod in &mut snapshot.pods {
        pod.delete_by = Some(at(30));
    }
    snapshot.nodes.truncate(0);
    let lets_go = |snapshot: &Snapshot| {
        let plan = decide(snapshot, at(9));
        let mut actions = plan.jobs.iter().flat_map(|plan| &plan.actions);
        actions.any(|action| *action == Action::RemoveFinalizer)
    };
    assert!(!lets_go(&snapshot));
    confirm(&mut snapshot, at(9));
    assert!(lets_go(&snapshot));
}

#[test]
fn of_many_things_that_are_not_seen_all_are_confirmed_in_the_end() {
    let nodes = 40;
    let mut snapshot = running(nodes);
    snapshot.jobs[0].suspend = true;
    snapshot.jobs[0].shrinks = true;
    snapshot.jobs[0].status.phase = JobPhase::Interrupting;
    snapshot.pods.clear();
    for _ in 0..nodes {
        confirm(&mut snapshot, at(9));
    }
    let status = recorded(&decide(&snapshot, at(9)), "train");
    assert_eq!(status.phase, JobPhase::Suspended);
}

#[test]
fn a_gang_has_not_left_before_it_is_sure_that_nobody_knows_what_was_saved() {
    let mut snapshot = running(2);
    snapshot.jobs[0].suspend = true;
    snapshot.jobs[0].status.phase = JobPhase::Interrupting;
    snapshot.pods.clear();
    let plan = decide(&snapshot, at(9));
    assert!(plan.is_empty(), "{plan:#?}");
    assert_eq!(plan.confirm, [pod(0)], "the others say nothing");
    confirm(&mut snapshot, at(9));
    let status = recorded(&decide(&snapshot, at(9)), "train");
    assert_eq!(status.phase, JobPhase::Suspended);
}

#[test]
fn the_finalizer_of_a_pod_stays_before_a_read_has_missed_its_job() {
    let mut snapshot = running(2);
    snapshot.jobs.clear();
    let plan = decide(&snapshot, at(9));
    assert!(plan.is_empty(), "{plan:#?}");
    assert_eq!(plan.confirm, [Absent::Job(key("train"))]);
}

#[test]
fn a_pod_waits_as_long_as_nobody_knows_what_became_of_it() {
    let mut snapshot = running(2);
    snapshot.jobs[0].status.phase = JobPhase::Starting;
    snapshot.pods[0].state = PodState::Unbound;
    snapshot.jobs[0].status = recorded(&decide(&snapshot, at(2)), "train");
    let over = at(1) + Policy::default().bind_patience + Duration::from_secs(60);
    snapshot.pods_as_of = Some(at(2));
    let plan = decide(&snapshot, over);
    assert!(plan.is_empty(), "{plan:#?}");
    assert!(
        plan.wake_at.is_some_and(|wake| wake > over),
        "it looks again"
    );
    snapshot.pods_as_of = Some(over);
    let status = recorded(&decide(&snapshot, over), "train");
    assert_eq!(status.phase, JobPhase::Restarting);
}

#[test]
fn nothing_is_given_away_while_something_that_may_hold_it_is_not_seen() {
    let mut snapshot = queue("a:2", vec![job("train", 2)]);
    snapshot.is_stale = true;
    assert!(decide(&snapshot, at(1)).is_empty());
    snapshot.is_stale = false;
    assert_eq!(placed(&decide(&snapshot, at(1))), ["train: a-000 a-001"]);
}

#[test]
fn a_job_that_cannot_be_read_is_left_alone_and_keeps_its_nodes() {
    let mut snapshot = running(2);
    let nodes = snapshot.nodes.len() as u32;
    snapshot.jobs.clear();
    snapshot.unreadable = vec![key("train")];
    // Not even its pods show on which nodes it is.
    snapshot.pods.clear();
    let plan = decide(&snapshot, at(9));
    assert!(plan.is_empty() && plan.confirm.is_empty(), "{plan:#?}");
    snapshot.jobs = vec![job("other", nodes - 1)];
    assert_eq!(placed(&decide(&snapshot, at(9))), [] as [&str; 0]);
}

#[test]
fn a_change_of_the_spec_that_asks_for_nothing_is_taken_note_of_once() {
    let mut snapshot = running(2);
    snapshot.jobs[0].observed = false;
    let plan = decide(&snapshot, at(9));
    assert_eq!(recorded(&plan, "train"), snapshot.jobs[0].status);
    assert_eq!(plan.jobs[0].actions.len(), 1);
    snapshot.jobs[0].observed = true;
    assert!(decide(&snapshot, at(9)).is_empty());
    // Also of one that has ended.
    let mut over = job("over", 1);
    over.status.phase = JobPhase::Succeeded;
    over.status.set(
        scheduler::ConditionKind::Complete,
        true,
        "Succeeded",
        "Every rank ended well",
        at(1),
    );
    over.observed = false;
    snapshot.jobs.push(over);
    assert_eq!(decide(&snapshot, at(9)).jobs.len(), 1);
}

#[test]
fn an_acknowledgement_is_awaited_though_its_node_went_when_the_pod_had_ended() {
    let mut snapshot = running(2);
    snapshot.jobs[0].status.phase = JobPhase::Interrupting;
    for pod in &mut snapshot.pods {
        pod.delete_by = Some(at(9) + GRACE);
        pod.finalizer = pod.rank == 0;
        pod.terminal = pod.rank != 0;
    }
    // Its pod has ended with the acknowledgement, which is not seen yet; then its Node went, as it
    // was asked to.
    let gone = snapshot.pods[0].node.clone();
    snapshot.nodes.retain(|node| node.name != gone);
    snapshot.absent.insert(Absent::Node(gone));
    let plan = decide(&snapshot, at(10));
    assert!(plan.is_empty(), "{plan:#?}");
    let over = at(9) + GRACE + Policy::default().leave_patience;
    snapshot.pods_as_of = Some(over);
    let status = recorded(&decide(&snapshot, over), "train");
    assert_eq!(status.phase, JobPhase::Restarting);
}
