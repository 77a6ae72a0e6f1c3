//! Ranks that end before others: what their pods said stays true when these are collected, deleted
//! or rewritten, for as long as the attempt lasts and no longer.

use std::collections::BTreeSet;
use std::sync::Arc;

use scheduler::{
    Action, CollectedPod, CommittedMembers, CompletedRanks, Exit, GangLiveness, JobPhase, Plan,
    PodState, Ready, Sights, Snapshot, Timestamp, WhenBusy, Wish,
};

use crate::absence::confirm;
use crate::build::{at, key};
use crate::decisions::{decide, recorded, step};
use crate::gangs::{deletions, fail, running};
use crate::properties::apply;
use crate::validation::validation;

fn end(snapshot: &mut Snapshot, rank: usize, now: Timestamp) {
    let pod = &mut snapshot.pods[rank];
    pod.state = PodState::Succeeded;
    pod.terminal = true;
    pod.since = now;
}

fn millis(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// The ranks that the status remembers.
fn remembered(snapshot: &Snapshot) -> Vec<u32> {
    let completed = snapshot.jobs[0].status.completed.iter();
    completed.flat_map(|known| known.ranks.clone()).collect()
}

fn records(plan: &Plan) -> usize {
    let actions = plan.jobs.iter().flat_map(|job| &job.actions);
    let records = actions.filter(|action| matches!(action, Action::Record { .. }));
    records.count()
}

fn departed(rank: u32, since: Timestamp) -> CollectedPod {
    CollectedPod {
        job: key("train"),
        attempt: 1,
        rank,
        since,
    }
}

/// Nothing is planned for ten minutes, whatever reads find; then the others end, too.
fn goes_on_to_its_end(mut snapshot: Snapshot, others: &[u32]) {
    for minute in 1..=10 {
        let now = at(60 * minute);
        confirm(&mut snapshot, now);
        let plan = decide(&snapshot, now);
        assert!(plan.is_empty(), "{plan:#?}");
        assert_eq!(plan.confirm, [], "nothing is missed");
    }
    let now = at(700);
    for pod in &mut snapshot.pods {
        if others.contains(&pod.rank) {
            pod.state = PodState::Succeeded;
            pod.terminal = true;
            pod.since = now;
        }
    }
    let status = recorded(&decide(&snapshot, now), "train");
    assert_eq!((status.phase, status.attempt), (JobPhase::Succeeded, 1));
    assert_eq!(status.completed, None);
}

#[test]
fn a_rank_that_ended_well_and_was_collected_ends_nothing() {
    let mut snapshot = running(3);
    end(&mut snapshot, 1, at(9));
    let plan = decide(&snapshot, at(9));
    assert_eq!((plan.is_empty(), plan.wake_at), (true, Some(at(10))));
    step(&mut snapshot, at(10));
    let status = &snapshot.jobs[0].status;
    assert_eq!((status.phase, status.attempt), (JobPhase::Running, 1));
    assert_eq!(remembered(&snapshot), [1]);
    snapshot.pods.remove(1);
    goes_on_to_its_end(snapshot, &[0, 2]);
}

#[test]
fn a_rank_that_was_collected_before_its_end_was_recorded_ends_nothing() {
    let mut snapshot = running(3);
    snapshot.pods.remove(1);
    snapshot.departed = vec![departed(1, at(9))];
    confirm(&mut snapshot, at(9));
    assert!(decide(&snapshot, at(9)).is_empty());
    step(&mut snapshot, at(10));
    assert_eq!(remembered(&snapshot), [1]);
    // Now it need not be remembered elsewhere.
    snapshot.departed.clear();
    goes_on_to_its_end(snapshot, &[0, 2]);
}

#[test]
fn all_ranks_may_be_gone_but_the_first_whose_pod_waits_for_the_record() {
    let mut snapshot = running(3);
    end(&mut snapshot, 0, at(9));
    snapshot.pods.truncate(1);
    snapshot.departed = vec![departed(1, at(8)), departed(2, at(9))];
    let status = recorded(&decide(&snapshot, at(9)), "train");
    assert_eq!(status.phase, JobPhase::Succeeded);
}

#[test]
fn what_a_pod_says_later_does_not_undo_that_its_rank_ended_well() {
    let later: [fn(&mut Snapshot); 5] = [
        // A kubelet that restarts admits it anew, and refuses it.
        |snapshot| {
            snapshot.pods[1].state = PodState::Refused("UnexpectedAdmissionError".to_owned());
        },
        |snapshot| fail(&mut snapshot.pods[1], 1, at(20)),
        |snapshot| snapshot.pods[1].state = PodState::Interrupted { ack: None },
        |snapshot| snapshot.nodes[1].ready = Ready::Unknown,
        |snapshot| {
            let gone = snapshot.nodes.remove(1).name;
            snapshot.absent.insert(scheduler::Absent::Node(gone));
            snapshot.pods.remove(1);
        },
    ];
    for later in later {
        let mut snapshot = running(3);
        end(&mut snapshot, 1, at(9));
        step(&mut snapshot, at(10));
        later(&mut snapshot);
        let plan = decide(&snapshot, at(30));
        assert!(plan.is_empty(), "{plan:#?}");
        // Others fail as ever.
        fail(&mut snapshot.pods[0], 0, at(31));
        let status = recorded(&decide(&snapshot, at(40)), "train");
        assert_eq!((status.phase, status.restarts), (JobPhase::Restarting, 1));
    }
}

#[test]
fn a_rank_beside_a_silent_node_whose_own_rank_had_ended_well_is_charged() {
    let mut snapshot = running(3);
    end(&mut snapshot, 1, at(9));
    step(&mut snapshot, at(10));
    snapshot.pods.remove(1);
    snapshot.nodes[1].suspect_until = Some(at(100));
    fail(&mut snapshot.pods[1], 2, at(20));
    let status = recorded(&decide(&snapshot, at(30)), "train");
    assert_eq!((status.restarts, status.replans), (1, 0));
}

#[test]
fn ends_are_recorded_at_most_once_a_second_and_those_of_a_whole_gang_not_at_all() {
    let mut snapshot = running(60);
    let mut written = 0;
    // One rank each 100 ms, and a look each 50 ms.
    for tick in 0..118 {
        let now = millis(9000 + 50 * tick);
        if tick % 2 == 0 {
            end(&mut snapshot, usize::try_from(tick / 2).unwrap(), now);
        }
        let plan = decide(&snapshot, now);
        written += records(&plan);
        apply(&mut snapshot, &plan, now);
    }
    assert_eq!(remembered(&snapshot).len(), 55, "the last ones are to come");
    assert_eq!(written, 5, "writes in 5.9 s");

    let mut snapshot = running(3);
    for (rank, at) in [(0, 9000), (2, 9500), (1, 9990)] {
        end(&mut snapshot, rank, millis(at));
        let status = decide(&snapshot, millis(at));
        assert_eq!(records(&status), usize::from(rank == 1));
    }
}

#[test]
fn who_ended_well_in_an_attempt_counts_for_no_other() {
    let mut snapshot = running(3);
    end(&mut snapshot, 1, at(9));
    step(&mut snapshot, at(10));
    fail(&mut snapshot.pods[2], 2, at(11));
    step(&mut snapshot, at(12));
    assert_eq!(remembered(&snapshot), []);
    snapshot.pods.clear();
    step(&mut snapshot, at(30));
    for pod in &mut snapshot.pods {
        pod.state = PodState::Running;
    }
    step(&mut snapshot, at(31));
    // A release between has left it there, and the mirror still remembers the pod.
    snapshot.jobs[0].status.completed = Some(CompletedRanks {
        attempt: 1,
        ranks: BTreeSet::from([1]),
    });
    snapshot.departed = vec![departed(1, at(9))];
    snapshot.pods.retain(|pod| pod.rank != 1);
    confirm(&mut snapshot, at(40));
    let status = recorded(&decide(&snapshot, at(40)), "train");
    assert_eq!((status.phase, status.attempt), (JobPhase::Restarting, 2));
}

#[test]
fn a_gang_that_is_asked_to_leave_after_a_rank_has_ended_leaves_and_one_that_ends_has_succeeded() {
    let mut snapshot = running(3);
    end(&mut snapshot, 1, at(9));
    step(&mut snapshot, at(10));
    snapshot.pods.remove(1);
    snapshot.jobs[0].suspend = true;
    let plan = decide(&snapshot, at(20));
    let ranks: Vec<u32> = deletions(&plan).into_iter().map(|(rank, _)| rank).collect();
    assert_eq!(ranks, [0, 2]);
    apply(&mut snapshot, &plan, at(20));
    confirm(&mut snapshot, at(21));
    assert_eq!(remembered(&snapshot), [1]);
    let mut ended = snapshot.clone();
    for pod in &mut snapshot.pods {
        pod.state = PodState::Interrupted { ack: None };
        pod.terminal = true;
    }
    let status = recorded(&decide(&snapshot, at(22)), "train");
    assert_eq!(
        (status.phase, status.completed),
        (JobPhase::Suspended, None)
    );
    // The signal came when all was done.
    for pod in &mut ended.pods {
        pod.state = PodState::Succeeded;
        pod.terminal = true;
    }
    let status = recorded(&decide(&ended, at(22)), "train");
    assert_eq!(status.phase, JobPhase::Succeeded);
}

#[test]
fn a_gang_that_may_shrink_does_not_take_a_rank_that_ended_well_for_lost() {
    let mut snapshot = running(3);
    snapshot.jobs[0].shrinks = true;
    snapshot.jobs[0].status.membership = Some(CommittedMembers {
        attempt: 1,
        epoch: 1,
        participants: 3,
        ..CommittedMembers::default()
    });
    end(&mut snapshot, 1, at(9));
    step(&mut snapshot, at(10));
    snapshot.pods.remove(1);
    confirm(&mut snapshot, at(20));
    let plan = decide(&snapshot, at(20));
    assert!(
        plan.is_empty() && plan.gone[0].ranks.is_empty(),
        "{plan:#?}"
    );
    snapshot.pods[1].state = PodState::Failed(Exit::default());
    snapshot.pods[1].terminal = true;
    let plan = decide(&snapshot, at(30));
    assert_eq!(plan.gone[0].ranks, [2], "the one that failed is");
    goes_on_to_its_end_without(snapshot, 2);
}

/// The gang goes on without a rank, and the last of the others ends.
fn goes_on_to_its_end_without(mut snapshot: Snapshot, lost: u32) {
    let status = &mut snapshot.jobs[0].status;
    let members = status.membership.as_mut().unwrap();
    members.lost.insert(lost);
    members.participants = 2;
    end(&mut snapshot, 0, at(40));
    let status = recorded(&decide(&snapshot, at(40)), "train");
    assert_eq!(status.phase, JobPhase::Succeeded);
}

#[test]
fn a_lease_that_runs_out_ends_nothing_while_it_is_not_known_what_became_of_the_pod() {
    let mut snapshot = running(3);
    // The second rank has ended well, and its sidecar left; the watch says nothing of pods.
    snapshot.pods_as_of = Some(at(9));
    snapshot.nodes[1].ready = Ready::Unknown;
    let node = snapshot.nodes[1].name.clone();
    snapshot.unheard_since.insert(node, at(10));
    let plan = decide(&snapshot, at(12));
    assert!(plan.is_empty(), "{plan:#?}");
    assert_eq!(plan.wake_at, Some(at(13)), "it looks again");
    let mut lost = snapshot.clone();
    lost.pods_as_of = Some(at(10));
    let status = recorded(&decide(&lost, at(12)), "train");
    assert_eq!(status.phase, JobPhase::Restarting);
    // Who has not left is lost at once.
    let mut silent = snapshot.clone();
    let mut gang = GangLiveness::default();
    gang.quiet.insert(silent.nodes[1].name.clone());
    silent.liveness.insert((key("train"), 1), Arc::new(gang));
    let status = recorded(&decide(&silent, at(12)), "train");
    assert_eq!(status.phase, JobPhase::Restarting);
}

/// Rank 1 of three has ended well, which is recorded, and its pod was collected.
fn beside_an_ended_rank() -> Snapshot {
    let mut snapshot = running(3);
    end(&mut snapshot, 1, at(9));
    step(&mut snapshot, at(10));
    assert_eq!(remembered(&snapshot), [1]);
    snapshot.pods.remove(1);
    snapshot
}

#[test]
fn nobody_leaves_for_the_sake_of_the_node_of_a_rank_that_is_over() {
    let wishes = [
        Wish::Cordoned,
        Wish::Tainted("karpenter.sh/disrupted".into()),
        Wish::Deleted,
    ];
    for wish in wishes {
        let mut snapshot = beside_an_ended_rank();
        snapshot.nodes[1].wishes = [(wish.clone(), at(20))].into();
        for second in 21..300 {
            confirm(&mut snapshot, at(second));
            let plan = decide(&snapshot, at(second));
            assert!(plan.is_empty(), "{wish:?}: {plan:#?}");
        }
    }
}

#[test]
fn a_validation_of_the_node_of_a_rank_that_is_over_interrupts_nobody() {
    let mut snapshot = beside_an_ended_rank();
    let mut run = validation("check", "a-001");
    run.when_busy = WhenBusy::Interrupt;
    snapshot.jobs.push(run);
    let mut sights = Sights::default();
    for second in 11..300 {
        confirm(&mut snapshot, at(second));
        let mut seen = snapshot.clone();
        sights.fill_in(&mut seen, &scheduler::Policy::default(), at(second));
        let plan = decide(&seen, at(second));
        apply(&mut snapshot, &plan, at(second));
        let phase = snapshot.jobs[0].status.phase;
        assert_eq!(phase, JobPhase::Running, "second {second}");
    }
}

#[test]
fn the_others_do_not_wait_for_who_ended_well_and_do_not_call_it_lost() {
    let mut snapshot = beside_an_ended_rank();
    confirm(&mut snapshot, at(20));
    let completed: Vec<_> = decide(&snapshot, at(20)).gone.into_iter().collect();
    assert_eq!(completed.len(), 1);
    assert_eq!(
        (&completed[0].ranks[..], &completed[0].completed[..]),
        (&[][..], &[1][..])
    );
    // The next epoch is without it, as it would be without a rank that was lost.
    snapshot.jobs[0].shrinks = true;
    snapshot.jobs[0].status.membership = Some(CommittedMembers {
        attempt: 1,
        epoch: 2,
        participants: 2,
        lost: [1].into(),
        lost_nodes: vec!["a-001".to_owned()],
        ..CommittedMembers::default()
    });
    let plan = format!("{:?}", decide(&snapshot, at(21)));
    assert!(!plan.contains("NodesLost"), "{plan}");
}

/// As the pods of a gang show it that has no proof, or no ConfigMap any more.
#[test]
fn a_gang_whose_ended_rank_has_no_known_node_goes_on_to_its_end() {
    let mut snapshot = beside_an_ended_rank();
    snapshot.attempts[0].nodes[1] = "".into();
    goes_on_to_its_end(snapshot, &[0, 2]);
}
