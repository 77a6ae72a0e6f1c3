//! Gangs that go on without lost nodes: which Events follow, what is freed, when they are complete,
//! and when the usual end of an attempt takes over.

use scheduler::{
    Action, CommittedMembers, ConditionKind, Exit, Gone, JobPhase, PodState, Policy, Ready,
    Snapshot, Stuck, Wish, check,
};

use crate::absence::confirm;
use crate::build::{EXIT, at, job, key, node};
use crate::decisions::{decide, placed, queue, recorded, step};
use crate::gangs::{deletions, train};
use crate::life::{Life, is_over, live, lose_node, succeeded_uncharged};
use crate::properties::apply;
use crate::world::{Deed, Program, World};
use topology::CheckpointRef;

const LOST: &str = "Goes on with 2 of 3 nodes: lost a-002";

/// A gang of three that has started and may go on with fewer, on a cluster without another node.
fn running() -> Snapshot {
    let mut one = job("train", 3);
    one.shrinks = true;
    let mut snapshot = queue("a:3", vec![one]);
    train(&mut snapshot);
    commit(&mut snapshot, &[]);
    assert!(decide(&snapshot, at(2)).is_empty());
    snapshot
}

/// The others go on without these.
fn commit(snapshot: &mut Snapshot, lost: &[u32]) {
    let status = &mut snapshot.jobs[0].status;
    let epoch = status.membership.as_ref().map_or(1, |last| last.epoch + 1);
    status.membership = Some(CommittedMembers {
        attempt: 1,
        epoch,
        participants: 3 - lost.len() as u32,
        lost: lost.iter().copied().collect(),
        lost_nodes: lost.iter().map(|rank| format!("a-{rank:03}")).collect(),
        record: None,
    });
}

fn end(snapshot: &mut Snapshot, rank: usize, state: PodState) {
    snapshot.pods[rank].state = state;
    snapshot.pods[rank].terminal = true;
}

fn failed() -> PodState {
    PodState::Failed(Exit {
        rank: Some(2),
        finished: Some(at(9)),
        ..Exit::default()
    })
}

fn stuck(since: u64) -> Stuck {
    Stuck {
        job: key("train"),
        attempt: 1,
        since: at(since),
        message: "1 nodes are left, fewer than 2".to_owned(),
    }
}

#[test]
fn a_loss_ends_nothing_and_the_others_learn_who_is_gone() {
    let losses: [fn(&mut Snapshot); 3] = [
        |snapshot| snapshot.nodes[2].ready = Ready::Unknown,
        |snapshot| end(snapshot, 2, failed()),
        |snapshot| drop(snapshot.pods.remove(2)),
    ];
    for loss in losses {
        let mut snapshot = running();
        loss(&mut snapshot);
        confirm(&mut snapshot, at(10));
        let plan = decide(&snapshot, at(10));
        assert!(plan.is_empty(), "{plan:#?}");
        let gone = Gone {
            job: key("train"),
            attempt: 1,
            ranks: vec![2],
            completed: Vec::new(),
        };
        assert_eq!(plan.gone, [gone]);
        snapshot.jobs[0].shrinks = false;
        let plan = decide(&snapshot, at(10));
        assert_eq!(recorded(&plan, "train").phase, JobPhase::Restarting);
        assert_eq!(plan.gone, []);
    }
}

#[test]
fn a_dead_node_that_kubernetes_has_tainted_is_not_left_for_another() {
    let mut snapshot = running();
    snapshot.nodes.push(node("a-003", "a"));
    snapshot.nodes[2].ready = Ready::Unknown;
    snapshot.nodes[2].wishes = [(Wish::Cordoned, at(0))].into();
    assert!(decide(&snapshot, at(60)).is_empty());
    // Somebody's wish is.
    snapshot.nodes[2].ready = Ready::True;
    let status = recorded(&decide(&snapshot, at(60)), "train");
    assert_eq!(status.phase, JobPhase::Interrupting);
}

#[test]
fn before_its_start_a_gang_that_loses_a_node_begins_again() {
    let mut snapshot = running();
    snapshot.jobs[0].status.membership = None;
    snapshot.nodes[2].ready = Ready::Unknown;
    let plan = decide(&snapshot, at(10));
    assert_eq!(recorded(&plan, "train").phase, JobPhase::Restarting);
}

#[test]
fn a_change_of_members_has_one_event() {
    let mut snapshot = running();
    end(&mut snapshot, 2, failed());
    commit(&mut snapshot, &[2]);
    let plan = decide(&snapshot, at(10));
    let status = recorded(&plan, "train");
    assert_eq!((status.phase, status.ready), (JobPhase::Running, 2));
    assert_eq!(status.conditions[&ConditionKind::Running].message, LOST);
    assert!(status.is(ConditionKind::Running));
    let event = plan.jobs[0].actions.iter().find_map(|action| match action {
        Action::Record { event, .. } => event.clone(),
        _ => None,
    });
    assert_eq!(event.unwrap().message, LOST);
    // The pod that failed keeps its log.
    assert_eq!(deletions(&plan), []);
    assert_eq!(plan.gone, []);
    apply(&mut snapshot, &plan, at(10));
    assert!(decide(&snapshot, at(11)).is_empty());
}

#[test]
fn a_lost_node_is_free_when_its_pod_has_gone() {
    let mut snapshot = running();
    snapshot.jobs.push({
        let mut next = job("next", 1);
        next.created = at(5);
        next
    });
    snapshot.nodes[2].ready = Ready::Unknown;
    commit(&mut snapshot, &[2]);
    let plan = decide(&snapshot, at(10));
    assert_eq!(
        deletions(&plan),
        [(2, EXIT + Policy::default().exit_margin)]
    );
    apply(&mut snapshot, &plan, at(10));
    // The node was only unheard: its pod still runs.
    snapshot.nodes[2].ready = Ready::True;
    let plan = decide(&snapshot, at(11));
    assert_eq!(placed(&plan), Vec::<String>::new());
    apply(&mut snapshot, &plan, at(11));
    snapshot.pods.retain(|pod| pod.rank != 2);
    let plan = decide(&snapshot, at(12));
    assert_eq!(placed(&plan), ["next: a-002"]);
    apply(&mut snapshot, &plan, at(12));
    // Neither gives way to the other, nor wants the other's node when one of its own is cordoned.
    snapshot.nodes[0].wishes = [(Wish::Cordoned, at(0))].into();
    let plan = decide(&snapshot, at(60));
    assert!(plan.jobs.iter().all(|plan| plan.job != key("train")));
}

#[test]
fn a_gang_is_complete_when_those_who_are_left_ended_well_also_without_rank_0() {
    for lost in 0..3 {
        let mut snapshot = running();
        end(&mut snapshot, lost, failed());
        commit(&mut snapshot, &[lost as u32]);
        step(&mut snapshot, at(10));
        let mut left = (0..3).filter(|rank| *rank != lost);
        end(&mut snapshot, left.next().unwrap(), PodState::Succeeded);
        let status = recorded(&decide(&snapshot, at(11)), "train");
        assert_eq!(status.phase, JobPhase::Running);
        end(&mut snapshot, left.next().unwrap(), PodState::Succeeded);
        let plan = decide(&snapshot, at(12));
        assert_eq!(recorded(&plan, "train").phase, JobPhase::Succeeded);
    }
}

#[test]
fn a_member_that_fails_when_all_others_have_ended_well_restarts_the_gang() {
    let mut snapshot = running();
    end(&mut snapshot, 0, PodState::Succeeded);
    end(&mut snapshot, 1, PodState::Succeeded);
    end(&mut snapshot, 2, failed());
    let status = recorded(&decide(&snapshot, at(10)), "train");
    assert_eq!((status.phase, status.restarts), (JobPhase::Restarting, 1));
}

#[test]
fn a_gang_that_cannot_go_on_is_ended_and_a_program_that_failed_is_charged() {
    let mut snapshot = running();
    snapshot.stuck = vec![stuck(10)];
    let plan = decide(&snapshot, at(14));
    assert!(plan.is_empty());
    assert_eq!(plan.wake_at, Some(at(15)));
    let status = recorded(&decide(&snapshot, at(15)), "train");
    assert_eq!((status.phase, status.restarts), (JobPhase::Restarting, 0));
    assert_eq!(status.failure.unwrap().message, stuck(0).message);
    // The launcher reports a failed rank when the others of its pod have ended.
    snapshot.jobs[0].exit = EXIT * 30;
    assert!(decide(&snapshot, at(15)).is_empty());
    snapshot.jobs[0].exit = EXIT;

    end(&mut snapshot, 2, failed());
    let status = recorded(&decide(&snapshot, at(11)), "train");
    assert_eq!((status.phase, status.restarts), (JobPhase::Restarting, 1));

    // One that failed before and was done without is not why.
    commit(&mut snapshot, &[2]);
    step(&mut snapshot, at(12));
    assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Running);
    snapshot.nodes[1].ready = Ready::Unknown;
    let status = recorded(&decide(&snapshot, at(13)), "train");
    assert_eq!(
        status.failure.unwrap().message,
        "node a-001 was lost: its Lease ran out"
    );
    assert_eq!(status.restarts, 0);
}

#[test]
fn a_shrunken_gang_is_suspended_and_comes_back_whole() {
    let mut snapshot = running();
    snapshot.nodes[2].ready = Ready::Unknown;
    commit(&mut snapshot, &[2]);
    step(&mut snapshot, at(10));
    snapshot.jobs[0].suspend = true;
    step(&mut snapshot, at(11));
    assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Interrupting);
    let asked = snapshot.pods.iter().filter(|pod| pod.delete_by.is_some());
    assert_eq!(asked.count(), 3);
    for pod in &mut snapshot.pods[..2] {
        pod.state = PodState::Interrupted { ack: None };
        pod.terminal = true;
    }
    step(&mut snapshot, at(12));
    assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Suspended);
    snapshot.jobs[0].suspend = false;
    snapshot.nodes[2].ready = Ready::True;
    snapshot.pods.clear();
    step(&mut snapshot, at(13));
    let status = &snapshot.jobs[0].status;
    assert_eq!((status.attempt, &status.membership), (2, &None));
    assert_eq!(snapshot.attempts.last().unwrap().nodes.len(), 3);
}

/// Rank 0 is lost and the others were asked to stop; rank 1 saved for them.
fn suspended_without_rank_0() -> (Snapshot, CheckpointRef) {
    let mut snapshot = running();
    assert!(snapshot.pods.iter().all(|pod| pod.finalizer));
    snapshot.nodes[0].ready = Ready::Unknown;
    commit(&mut snapshot, &[0]);
    step(&mut snapshot, at(10));
    snapshot.jobs[0].suspend = true;
    step(&mut snapshot, at(11));
    let ack = CheckpointRef {
        attempt: 1,
        step: 7,
        digest: "d".to_owned(),
    };
    for pod in &mut snapshot.pods[1..] {
        let ack = (pod.rank == 1).then(|| ack.clone());
        pod.state = PodState::Interrupted { ack };
        pod.terminal = true;
    }
    (snapshot, ack)
}

// SAVE-1
#[test]
fn without_rank_0_the_pod_that_acknowledged_stays_until_that_is_recorded() {
    let (mut snapshot, ack) = suspended_without_rank_0();
    let plan = decide(&snapshot, at(12));
    let status = recorded(&plan, "train");
    assert_eq!(
        (status.phase, status.last_checkpoint),
        (JobPhase::Suspended, Some(ack.clone()))
    );
    let actions = &plan.jobs[0].actions;
    let strips = [1, 2].map(|rank| Action::StripPod { attempt: 1, rank });
    assert!(matches!(actions[0], Action::Record { .. }), "{actions:#?}");
    assert_eq!(actions[1..3], strips);
    apply(&mut snapshot, &plan, at(12));
    let left: Vec<u32> = snapshot.pods.iter().map(|pod| pod.rank).collect();
    assert_eq!(left, [0], "what is on the dead node is Kubernetes' to end");
    // The next attempt goes on there.
    snapshot.jobs[0].suspend = false;
    snapshot.nodes[0].ready = Ready::True;
    snapshot.pods.clear();
    let plan = decide(&snapshot, at(13));
    let next = plan.jobs[0].attempt().unwrap();
    assert_eq!(next.resume, Some(ack));
}

#[test]
fn pods_are_deleted_together_before_any_is_released() {
    let mut snapshot = running();
    snapshot.stuck = vec![stuck(0)];
    let plan = decide(&snapshot, at(14));
    assert_eq!(deletions(&plan).len(), 3);
    let actions = &plan.jobs[0].actions;
    let deletes = |action: &Action| matches!(action, Action::DeletePod { .. });
    let strips = |action: &Action| matches!(action, Action::StripPod { .. });
    let last = actions.iter().rposition(deletes);
    assert!(last < actions.iter().position(strips), "{actions:#?}");
    assert_eq!(actions.iter().filter(|action| strips(action)).count(), 3);
}

#[test]
fn a_pod_that_the_others_went_on_without_is_released_when_somebody_deletes_it() {
    let mut snapshot = running();
    end(&mut snapshot, 2, failed());
    commit(&mut snapshot, &[2]);
    step(&mut snapshot, at(10));
    assert!(decide(&snapshot, at(11)).is_empty());
    snapshot.pods[2].delete_by = Some(at(12));
    let plan = decide(&snapshot, at(12));
    let rank = 2;
    assert_eq!(
        plan.jobs[0].actions,
        [Action::StripPod { attempt: 1, rank }]
    );
    // Unless it holds what is recorded at the end only.
    let (with_ack, _) = suspended_without_rank_0();
    snapshot.pods[2].state = with_ack.pods[1].state.clone();
    assert!(decide(&snapshot, at(12)).is_empty());
}

#[test]
fn a_pod_that_is_asked_to_leave_makes_the_whole_gang_save() {
    let mut snapshot = running();
    snapshot.pods[1].delete_by = Some(at(99));
    let status = recorded(&decide(&snapshot, at(10)), "train");
    assert_eq!(status.phase, JobPhase::Interrupting);
    // On a dead node it is Kubernetes that cleans up.
    snapshot.nodes[1].ready = Ready::Unknown;
    assert!(decide(&snapshot, at(10)).is_empty());
}

#[test]
fn the_check_refuses_members_that_the_rendezvous_has_not_written() {
    let snapshot = running();
    let mut other = snapshot.clone();
    commit(&mut other, &[2]);
    let status = Box::new(other.jobs[0].status.clone());
    let record = Action::Record {
        status,
        event: None,
    };
    let plan = scheduler::Plan {
        jobs: vec![scheduler::JobPlan {
            job: key("train"),
            actions: vec![record],
        }],
        ..scheduler::Plan::default()
    };
    let violation = check(&snapshot, &Policy::default(), at(0), &plan).unwrap_err();
    assert_eq!(violation.detail, "the members change");
}

fn submit(world: &mut World, name: &str, nodes: u32, created: u64, program: Program) {
    let mut one = job(name, nodes);
    one.created = at(created);
    one.shrinks = true;
    world.submit(one, program);
}

fn went_on(world: &World) {
    succeeded_uncharged(world);
    let status = &world.jobs[&key("train")].job.status;
    let participants = status.membership.as_ref().map(|last| last.participants);
    let seen = (status.attempt, participants);
    assert_eq!(seen, (1, Some(2)), "{}", world.describe());
}

#[test]
fn a_job_lives_on_without_a_lost_node() {
    live(&Life {
        set_up: |world| {
            submit(world, "train", 3, 0, Program::trains(300));
            // Also a leader that came late has started it by then.
            lose_node(world, "a-001", 200, 600);
        },
        over: is_over,
        verify: went_on,
    });
}

#[test]
fn a_job_lives_on_without_a_rank_that_failed_and_another_uses_its_node() {
    live(&Life {
        set_up: |world| {
            let mut program = Program::trains(300);
            program.faults.push_back((10_000, 0));
            submit(world, "train", 3, 0, program);
            // With the two that are free it needs the one that is given back.
            submit(world, "next", 3, 1, Program::trains(30));
        },
        over: is_over,
        verify: |world| {
            went_on(world);
            let end = |name| world.jobs[&key(name)].job.status.finished_at;
            assert!(end("next") < end("train"), "{}", world.describe());
        },
    });
}

// SAVE-1
#[test]
fn a_job_without_rank_0_is_suspended_with_its_work_saved_and_goes_on_there() {
    live(&Life {
        set_up: |world| {
            submit(world, "train", 3, 0, Program::trains(300));
            lose_node(world, "a-000", 200, 600);
            world.after(260, Deed::Suspend(key("train"), true));
            world.after(620, Deed::Suspend(key("train"), false));
        },
        over: is_over,
        verify: |world| {
            succeeded_uncharged(world);
            // Nobody led for long enough that it ended where it was?
            if world.operator.crash.after.is_empty() {
                let stored = &world.jobs[&key("train")];
                let acked = stored.acked.map(|(attempt, _)| attempt);
                let seen = (acked, stored.job.status.attempt);
                assert_eq!(seen, (Some(1), 2), "{}", world.describe());
            }
        },
    });
}
