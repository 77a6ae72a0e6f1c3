//! Single decisions about gangs: what ends an attempt, what follows from it, how it leaves.

use std::time::Duration;

use scheduler::{
    Action, ConditionKind, EndCause, Exit, JobPhase, Plan, Pod, PodState, Problem, Ready, Snapshot,
    Timestamp, Wish,
};

use crate::absence::confirm;
use crate::build::{at, job, nodes};
use crate::decisions::{decide, placed, queue, reason, recorded, step};
use crate::properties::apply;
use topology::NodeName;

/// A job of so many nodes that trains, on a cluster with one node to spare.
pub(crate) fn running(size: u32) -> Snapshot {
    let mut snapshot = queue(&format!("a:{}", size + 1), vec![job("train", size)]);
    train(&mut snapshot);
    assert!(decide(&snapshot, at(2)).is_empty());
    snapshot
}

/// The only job gets its nodes, and all its pods train from the first second on.
pub(crate) fn train(snapshot: &mut Snapshot) {
    step(snapshot, at(0));
    for pod in &mut snapshot.pods {
        pod.state = PodState::Running;
    }
    step(snapshot, at(1));
    assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Running);
}

pub(crate) fn deletions(plan: &Plan) -> Vec<(u32, Duration)> {
    let actions = plan.jobs.iter().flat_map(|job| &job.actions);
    let deleted = actions.filter_map(|action| match action {
        Action::DeletePod { rank, grace, .. } => Some((*rank, *grace)),
        _ => None,
    });
    deleted.collect()
}

pub(crate) fn fail(pod: &mut Pod, rank: u32, finished: Timestamp) {
    pod.since = finished;
    let exit = Exit {
        rank: Some(rank),
        signal: Some(9),
        finished: Some(finished),
        ..Exit::default()
    };
    pod.state = PodState::Failed(exit);
    pod.terminal = true;
}

#[test]
fn the_first_rank_that_failed_is_charged_and_survivors_get_two_seconds() {
    let mut snapshot = running(3);
    fail(&mut snapshot.pods[0], 0, at(12));
    fail(&mut snapshot.pods[1], 5, at(11));
    let plan = decide(&snapshot, at(13));
    let status = recorded(&plan, "train");
    assert_eq!(
        (status.phase, status.restarts, status.replans),
        (JobPhase::Restarting, 1, 0)
    );
    assert_eq!(status.retry_at, Some(at(15)));
    let failure = status.failure.unwrap();
    assert_eq!(failure.rank, Some(5));
    assert_eq!(
        failure.message,
        "rank 5 on node a-001 was killed by signal 9"
    );
    let grace = Duration::from_secs(2);
    assert_eq!(deletions(&plan), [(0, grace), (1, grace), (2, grace)]);
}

#[test]
fn survivors_get_what_their_job_says_and_a_second() {
    let mut snapshot = running(2);
    snapshot.jobs[0].exit = Duration::from_secs(30);
    fail(&mut snapshot.pods[0], 0, at(12));
    let grace = Duration::from_secs(31);
    let plan = decide(&snapshot, at(13));
    assert_eq!(deletions(&plan), [(0, grace), (1, grace)]);
}

#[test]
fn back_off_doubles_up_to_its_cap() {
    for (restarts, seconds) in [
        (0, 2),
        (1, 4),
        (2, 8),
        (6, 128),
        (7, 256),
        (8, 300),
        (90, 300),
    ] {
        let mut snapshot = running(1);
        snapshot.jobs[0].max_restarts = 100;
        snapshot.jobs[0].status.restarts = restarts;
        fail(&mut snapshot.pods[0], 0, at(12));
        assert_eq!(
            recorded(&decide(&snapshot, at(13)), "train").retry_at,
            Some(at(13 + seconds))
        );
    }
}

#[test]
fn a_lost_node_is_not_charged_and_the_next_attempt_goes_elsewhere() {
    let mut snapshot = running(2);
    snapshot.nodes[1].ready = Ready::Unknown;
    let plan = decide(&snapshot, at(50));
    let status = recorded(&plan, "train");
    assert_eq!((status.restarts, status.replans), (0, 1));
    assert_eq!(
        status.failure.as_ref().unwrap().message,
        "node a-001 was lost: its Lease ran out"
    );
    apply(&mut snapshot, &plan, at(50));
    // The survivor has left; the pod on the dead node is still there and blocks nothing.
    snapshot.pods[0].terminal = true;
    let plan = decide(&snapshot, at(55));
    assert_eq!(placed(&plan), ["train: a-000 a-002"]);
    assert_eq!(recorded(&plan, "train").attempt, 2);
}

#[test]
fn a_rank_that_fails_beside_a_silent_node_is_not_charged() {
    let mut snapshot = running(2);
    snapshot.nodes[1].suspect_until = Some(at(100));
    fail(&mut snapshot.pods[0], 0, at(10));
    // The silent node may still report that its own rank failed.
    let plan = decide(&snapshot, at(10));
    assert!(plan.is_empty());
    assert_eq!(plan.wake_at, Some(at(11)));
    let status = recorded(&decide(&snapshot, at(11)), "train");
    assert_eq!((status.restarts, status.replans), (0, 1));
    assert_eq!(status.failure.unwrap().node, Some("a-001".into()));
    fail(&mut snapshot.pods[1], 1, at(9));
    assert_eq!(recorded(&decide(&snapshot, at(11)), "train").restarts, 1);
}

#[test]
fn a_vanished_pod_restarts_the_gang_uncharged() {
    let mut snapshot = running(2);
    snapshot.pods.pop();
    confirm(&mut snapshot, at(9));
    let status = recorded(&decide(&snapshot, at(9)), "train");
    assert_eq!((status.phase, status.restarts), (JobPhase::Restarting, 0));
}

#[test]
fn a_node_that_failed_is_avoided_if_another_will_do() {
    let mut snapshot = running(2);
    snapshot.nodes.extend(nodes("b:1"));
    fail(&mut snapshot.pods[0], 0, at(9));
    step(&mut snapshot, at(9));
    snapshot.pods.clear();
    assert_eq!(placed(&decide(&snapshot, at(20))), ["train: a-001 a-002"]);
    snapshot.nodes[2].ready = Ready::Unknown;
    assert_eq!(placed(&decide(&snapshot, at(20))), ["train: a-000 a-001"]);
}

#[test]
fn a_cordoned_node_is_left_only_if_there_is_a_place_elsewhere() {
    let mut snapshot = running(2);
    snapshot.nodes[0].wishes = [(Wish::Cordoned, at(0))].into();
    let plan = decide(&snapshot, at(60));
    assert_eq!(recorded(&plan, "train").phase, JobPhase::Interrupting);
    snapshot.nodes[2].ready = Ready::Unknown;
    assert!(
        decide(&snapshot, at(60)).is_empty(),
        "it goes on where it is"
    );
}

#[test]
fn nobody_takes_the_place_of_a_job_that_is_moving() {
    let mut snapshot = running(2);
    snapshot.nodes[0].wishes = [(Wish::Cordoned, at(0))].into();
    step(&mut snapshot, at(60));
    snapshot.jobs.push(job("thief", 1));
    assert!(placed(&decide(&snapshot, at(61))).is_empty());
}

#[test]
fn a_job_that_is_suspended_before_its_pods_exist_promises_itself_nothing_more() {
    let mut snapshot = running(2);
    fail(&mut snapshot.pods[1], 1, at(9));
    step(&mut snapshot, at(10));
    snapshot.pods.clear();
    // The leader stops after it has decided the next attempt.
    let mut plan = decide(&snapshot, at(20));
    let mut decided = false;
    plan.jobs[0].actions.retain(|action| {
        let keep = !decided;
        decided |= matches!(action, Action::CreateAttempt(_));
        keep
    });
    apply(&mut snapshot, &plan, at(20));
    let status = &snapshot.jobs[0].status;
    assert_eq!(
        (status.phase, status.promise.is_some()),
        (JobPhase::Assigned, true)
    );
    snapshot.jobs[0].suspend = true;
    step(&mut snapshot, at(21));
    assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Interrupting);
    // The person thinks again, and the promise was about the attempt before.
    snapshot.jobs[0].suspend = false;
    step(&mut snapshot, at(22));
    assert_eq!(snapshot.jobs[0].status.promise, None);
}

#[test]
fn a_missing_image_is_reported_and_restarts_nothing() {
    let mut snapshot = queue("a:1", vec![job("train", 1)]);
    step(&mut snapshot, at(0));
    snapshot.pods[0].state = PodState::Blocked(Problem {
        reason: "ImageError",
        message: "image nowhere/none:1 cannot be had".to_owned(),
    });
    let plan = decide(&snapshot, at(5));
    let status = recorded(&plan, "train");
    assert_eq!((status.phase, status.attempt), (JobPhase::Starting, 1));
    let running = &status.conditions[&ConditionKind::Running];
    assert_eq!(
        (running.holds, running.reason.as_str()),
        (false, "ImageError")
    );
    assert!(running.message.contains("nowhere/none:1"));
    apply(&mut snapshot, &plan, at(5));
    let plan = decide(&snapshot, at(500));
    assert!(plan.is_empty());
    assert_eq!(plan.wake_at, Some(at(600)));
    let status = recorded(&decide(&snapshot, at(600)), "train");
    assert_eq!((status.phase, status.restarts), (JobPhase::Restarting, 0));
}

#[test]
fn a_pod_that_is_not_bound_in_time_gives_its_nodes_back() {
    let mut snapshot = queue("a:1", vec![job("train", 1)]);
    step(&mut snapshot, at(0));
    let plan = decide(&snapshot, at(29));
    assert_eq!((plan.is_empty(), plan.wake_at), (true, Some(at(30))));
    let status = recorded(&decide(&snapshot, at(30)), "train");
    assert_eq!(
        (status.phase, status.restarts, status.replans),
        (JobPhase::Restarting, 0, 1)
    );
}

#[test]
fn two_leaders_assignments_to_one_node_are_settled_for_the_older() {
    let mut one = queue("a:2", vec![job("a", 2)]);
    step(&mut one, at(0));
    let mut other = queue("a:2", vec![job("b", 2)]);
    step(&mut other, at(1));
    let mut both = one;
    both.jobs.append(&mut other.jobs);
    both.attempts.append(&mut other.attempts);
    both.pods.append(&mut other.pods);
    let plan = decide(&both, at(2));
    assert_eq!(plan.jobs.len(), 1);
    assert_eq!(recorded(&plan, "b").phase, JobPhase::Restarting);
}

#[test]
fn a_finished_job_keeps_its_pods_for_their_logs_until_its_time_is_over() {
    let mut snapshot = running(2);
    snapshot.jobs[0].ttl = Some(Duration::from_secs(60));
    for pod in &mut snapshot.pods {
        pod.state = PodState::Succeeded;
        pod.terminal = true;
    }
    step(&mut snapshot, at(10));
    let plan = decide(&snapshot, at(11));
    assert_eq!((plan.is_empty(), plan.wake_at), (true, Some(at(70))));
    assert_eq!(snapshot.pods.len(), 2);
    assert_eq!(
        decide(&snapshot, at(70)).jobs[0].actions,
        [Action::DeleteJob]
    );
}

#[test]
fn a_finished_job_keeps_pods_whose_sidecars_are_still_leaving() {
    // The kubelet reports the trainer's end a second before that of its sidecar.
    let mut snapshot = running(2);
    for pod in &mut snapshot.pods {
        pod.state = PodState::Succeeded;
    }
    let plan = decide(&snapshot, at(10));
    assert_eq!(recorded(&plan, "train").phase, JobPhase::Succeeded);
    apply(&mut snapshot, &plan, at(10));
    assert_eq!(deletions(&decide(&snapshot, at(10))), []);
    assert_eq!(snapshot.pods.len(), 2);
}

#[test]
fn a_container_that_runs_on_after_its_trainer_does_not_hold_the_node_for_ever() {
    let mut snapshot = running(2);
    snapshot.jobs[0].ttl = Some(Duration::from_secs(60));
    for pod in &mut snapshot.pods {
        pod.state = PodState::Succeeded;
    }
    step(&mut snapshot, at(10));
    snapshot.jobs[0].seen = at(10);
    let plan = decide(&snapshot, at(39));
    assert_eq!((plan.is_empty(), plan.wake_at), (true, Some(at(40))));
    let survivor = Duration::from_secs(2);
    let plan = decide(&snapshot, at(40));
    assert_eq!(deletions(&plan), [(0, survivor), (1, survivor)]);
}

#[test]
fn a_gang_that_does_not_join_blames_no_node() {
    let mut snapshot = queue("a:2", vec![job("train", 2)]);
    step(&mut snapshot, at(0));
    for pod in &mut snapshot.pods {
        pod.state = PodState::Starting;
    }
    let status = recorded(&decide(&snapshot, at(7200)), "train");
    let failure = status.failure.unwrap();
    assert_eq!((status.phase, failure.node), (JobPhase::Restarting, None));
    assert_eq!(failure.message, "the gang did not join in time");
}

#[test]
fn a_gang_that_was_asked_on_one_node_only_has_not_succeeded() {
    // The flag is shared by all ranks: those that got no SIGTERM end with code 0.
    let mut snapshot = running(2);
    snapshot.pods[0].state = PodState::Succeeded;
    snapshot.pods[1].state = PodState::Interrupted { ack: None };
    snapshot.pods.iter_mut().for_each(|pod| pod.terminal = true);
    let status = recorded(&decide(&snapshot, at(9)), "train");
    assert_eq!((status.phase, status.restarts), (JobPhase::Restarting, 0));
}

#[test]
fn a_node_that_loses_its_class_keeps_its_job_and_gets_no_other() {
    let mut snapshot = running(2);
    for node in &mut snapshot.nodes {
        node.class = "".into();
    }
    assert!(decide(&snapshot, at(9)).is_empty());
    let mut classless = job("z", 1);
    classless.class = "".into();
    snapshot.jobs.push(classless);
    assert_eq!(reason(&decide(&snapshot, at(9)), "z").0, "Unplaceable");
}

#[test]
fn a_pod_whose_job_is_gone_only_loses_its_finalizer() {
    let mut snapshot = running(2);
    let attempt = 1;
    snapshot.jobs.clear();
    confirm(&mut snapshot, at(9));
    let plan = decide(&snapshot, at(9));
    assert_eq!(
        plan.jobs[0].actions,
        [Action::StripPod { attempt, rank: 0 }]
    );
}

#[test]
fn a_pod_that_its_controller_marked_failed_because_its_node_is_gone_is_a_lost_node() {
    for (why, cause, says) in [
        (
            "DeletionByPodGC: PodGC: node no longer exists",
            EndCause::NodeLost,
            "node a-001 was lost: its pod was marked Failed: DeletionByPodGC: PodGC: node no longer exists",
        ),
        (
            "UnexpectedAdmissionError: no device",
            EndCause::NodeRefused,
            "node a-001 refused its pod: UnexpectedAdmissionError: no device",
        ),
        (
            "Evicted: the node was low on memory",
            EndCause::PodEnded,
            "the pod on node a-001 was ended: Evicted: the node was low on memory",
        ),
    ] {
        let mut snapshot = running(2);
        snapshot.pods[1].state = PodState::Refused(why.to_owned());
        snapshot.pods[1].terminal = true;
        let status = recorded(&decide(&snapshot, at(9)), "train");
        assert_eq!((status.restarts, status.replans), (0, 1));
        assert_eq!(status.failure.unwrap().message, says);
        assert_eq!(status.avoided[&NodeName::from("a-001")].cause, cause);
    }
}
