//! Objects that the operator did not write, or that this version cannot read: they take nothing
//! from anybody, and they end no gang that trains.

use scheduler::{
    Action, Attempt, ConditionKind, Doubt, Doubtful, JobPhase, PodState, Policy, Snapshot, plan,
    vet,
};

use crate::absence::confirm;
use crate::build::{at, job, key, node};
use crate::decisions::decide;
use crate::gangs::running;
use crate::properties::apply;

/// Another ConfigMap of the first job's attempt, which names other nodes.
fn second(snapshot: &Snapshot, nodes: &[&str]) -> Attempt {
    Attempt {
        nodes: nodes.iter().map(|&node| node.into()).collect(),
        ..snapshot.attempts[0].clone()
    }
}

fn doubtful(snapshot: &mut Snapshot, doubt: Doubt) {
    snapshot.doubtful = vec![Doubtful {
        job: snapshot.jobs[0].key.clone(),
        number: 1,
        doubt,
    }];
}

/// Plans and writes until nothing is left to write.
fn settle(snapshot: &mut Snapshot) {
    for _ in 0..10 {
        let next = decide(snapshot, at(9));
        if next.is_empty() {
            return;
        }
        apply(snapshot, &next, at(9));
    }
    panic!("still planning: {:#?}", decide(snapshot, at(9)));
}

#[test]
fn two_attempts_of_one_number_take_nothing_from_others() {
    for forged_first in [true, false] {
        let mut snapshot = running(2);
        snapshot
            .nodes
            .extend([node("b-000", "b"), node("b-001", "b")]);
        let forged = Attempt {
            crossing: true,
            ..second(&snapshot, &["b-000", "b-001"])
        };
        snapshot.attempts.push(forged);
        if forged_first {
            snapshot.attempts.reverse();
        }
        snapshot.jobs.push(job("other", 2));

        let policy = Policy::default();
        let (kept, violations) = vet(&snapshot, &policy, at(9), plan(&snapshot, &policy, at(9)));
        assert_eq!(violations, []);
        let other = kept.jobs.iter().find(|plan| plan.job == key("other"));
        let places = &other.and_then(|plan| plan.attempt()).unwrap().nodes;
        assert_eq!((places[0].node.as_str(), places.len()), ("b-000", 2));
        settle(&mut snapshot);
        let status = &snapshot.jobs[0].status;
        assert_eq!((status.phase, status.attempt), (JobPhase::Running, 1));
    }
}

#[test]
fn a_gang_whose_assignment_is_unproved_trains_on_and_says_so() {
    let mut snapshot = running(2);
    let pods = snapshot.pods.clone();
    snapshot.attempts.clear();
    doubtful(&mut snapshot, Doubt::Unproved);
    // Its pods keep their nodes, though no ConfigMap does.
    snapshot.jobs.push(job("other", 2));
    settle(&mut snapshot);
    let status = &snapshot.jobs[0].status;
    assert_eq!((status.phase, status.attempt), (JobPhase::Running, 1));
    assert!(status.is(ConditionKind::AssignmentUnproved));
    assert_eq!(snapshot.pods, pods);
    let waits = &snapshot.jobs[1].status;
    assert_eq!(waits.phase, JobPhase::Queued);

    // Proved again: the condition goes.
    let mut proved = running(2);
    proved.jobs[0].status = snapshot.jobs[0].status.clone();
    settle(&mut proved);
    let status = &proved.jobs[0].status;
    assert!(!status.is(ConditionKind::AssignmentUnproved));
    assert_eq!(status.phase, JobPhase::Running);
}

#[test]
fn an_unproved_attempt_in_which_nobody_trains_gives_way_to_the_next_number() {
    let mut snapshot = running(2);
    snapshot.attempts.clear();
    doubtful(&mut snapshot, Doubt::Unproved);
    for pod in &mut snapshot.pods {
        pod.state = PodState::Failed(scheduler::Exit::default());
        pod.terminal = true;
    }
    let next = decide(&snapshot, at(9));
    apply(&mut snapshot, &next, at(9));
    assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Restarting);
    assert_eq!(snapshot.jobs[0].status.restarts, 0, "nobody's fault");
    snapshot.pods.clear();
    let later = decide(&snapshot, at(99));
    let new = later.jobs[0].attempt().unwrap();
    assert_eq!(new.number, 2);
}

#[test]
fn a_configmap_that_is_there_before_its_job_starts_does_not_discard_its_plan() {
    let mut snapshot = crate::decisions::queue("a:2", vec![job("train", 2)]);
    doubtful(&mut snapshot, Doubt::Unproved);
    let first = decide(&snapshot, at(9));
    assert_eq!(first.jobs[0].attempt().unwrap().number, 1);
}

#[test]
fn a_configmap_that_was_there_before_its_attempt_gets_no_pods() {
    // Recorded, but somebody had written a ConfigMap of that name before.
    let mut snapshot = running(2);
    snapshot.attempts.clear();
    snapshot.pods.clear();
    snapshot.jobs[0].status.phase = JobPhase::Assigned;
    doubtful(&mut snapshot, Doubt::Unproved);
    let next = decide(&snapshot, at(9));
    let creates = |action: &Action| {
        matches!(
            action,
            Action::CreateAttempt(_) | Action::CreateKey { .. } | Action::CreatePod { .. }
        )
    };
    assert!(!next.jobs[0].actions.iter().any(creates), "{next:?}");
    apply(&mut snapshot, &next, at(9));
    assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Restarting);
    let later = decide(&snapshot, at(99));
    assert_eq!(later.jobs[0].attempt().unwrap().number, 2);
}

#[test]
fn an_attempt_that_cannot_be_read_keeps_its_nodes_and_ends_nothing() {
    let mut snapshot = running(2);
    doubtful(&mut snapshot, Doubt::Unreadable);
    // One has ended already: its pod no longer occupies its node, the attempt still does.
    snapshot.pods[0].state = PodState::Succeeded;
    snapshot.pods[0].terminal = true;
    snapshot.jobs.push(job("other", 2));
    settle(&mut snapshot);
    let status = &snapshot.jobs[0].status;
    assert_eq!((status.phase, status.attempt), (JobPhase::Running, 1));
    assert!(!status.is(ConditionKind::AssignmentUnproved));
    assert_eq!(snapshot.jobs[1].status.phase, JobPhase::Queued);

    // Not even its nodes can be read, and no pod trains yet.
    snapshot.attempts.clear();
    for pod in &mut snapshot.pods {
        pod.state = PodState::Starting;
        pod.terminal = false;
    }
    let next = decide(&snapshot, at(9));
    let touched = next.jobs.iter().any(|plan| plan.job == key("train"));
    assert!(!touched, "{next:?}");
}

#[test]
fn a_doubtful_attempt_gets_no_missing_pods() {
    let mut snapshot = running(2);
    snapshot.jobs[0].status.phase = JobPhase::Assigned;
    snapshot.pods.clear();
    let expected = decide(&snapshot, at(9));
    assert!(!expected.is_empty(), "otherwise its pods are created");
    doubtful(&mut snapshot, Doubt::Unreadable);
    let policy = Policy::default();
    let (kept, violations) = vet(&snapshot, &policy, at(9), expected);
    let [violation] = &violations[..] else {
        panic!("the check lets it pass: {kept:?}")
    };
    assert!(violation.detail.contains("in doubt"), "{violation}");
    settle(&mut snapshot);
    assert_eq!(snapshot.pods, []);
    assert!(snapshot.jobs[0].status.phase.holds_nodes());
}

#[test]
fn a_forged_attempt_of_the_past_is_deleted_once() {
    let mut snapshot = running(2);
    snapshot.jobs[0].status.attempt = 2;
    snapshot.attempts[0].number = 2;
    for pod in &mut snapshot.pods {
        pod.attempt = 2;
    }
    doubtful(&mut snapshot, Doubt::Unproved);
    let next = decide(&snapshot, at(9));
    assert_eq!(next.jobs[0].actions, [Action::DeleteAttempt { attempt: 1 }]);
    snapshot.doubtful.clear();
    assert!(decide(&snapshot, at(9)).is_empty());
    // What claims to be of a later attempt is left alone.
    doubtful(&mut snapshot, Doubt::Unproved);
    snapshot.doubtful[0].number = 3;
    assert!(decide(&snapshot, at(9)).is_empty());
}

#[test]
fn pods_that_lost_their_owner_are_removed_with_their_job() {
    let mut snapshot = running(2);
    let gone = snapshot.jobs.remove(0).key;
    for pod in &mut snapshot.pods {
        pod.finalizer = true;
    }
    confirm(&mut snapshot, at(9));
    let kinds = |snapshot: &Snapshot| {
        let next = decide(snapshot, at(9));
        let actions = next.jobs.into_iter().flat_map(|plan| plan.actions);
        let delete = |action| matches!(action, Action::DeletePod { .. });
        actions.map(delete).collect::<Vec<bool>>()
    };
    assert_eq!(
        kinds(&snapshot),
        [false, false],
        "{gone}: the garbage collector deletes"
    );
    for pod in &mut snapshot.pods {
        pod.unowned = true;
    }
    assert_eq!(kinds(&snapshot), [true, true, false, false]);
    // Until they have left, their nodes are theirs.
    snapshot.jobs.push(job("other", 2));
    settle(&mut snapshot);
    assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Queued);
}
