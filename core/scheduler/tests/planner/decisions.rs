//! Single decisions about who gets which nodes: what is planned for one small snapshot.

use scheduler::{
    Action, ConditionKind, Exit, Job, JobPhase, JobStatus, Plan, PodState, Policy, Problem, Ready,
    Snapshot, Timestamp, Wish, ZonePolicy, check, plan,
};

use crate::absence::confirm;
use crate::build::{at, job, nodes};
use crate::gangs::{deletions, fail, running, train};
use crate::properties::apply;

pub(crate) fn decide(snapshot: &Snapshot, now: Timestamp) -> Plan {
    let policy = Policy::default();
    let plan = plan(snapshot, &policy, now);
    check(snapshot, &policy, now, &plan).unwrap();
    plan
}

pub(crate) fn queue(nodes_text: &str, jobs: Vec<Job>) -> Snapshot {
    Snapshot {
        nodes: nodes(nodes_text),
        jobs,
        ..Snapshot::default()
    }
}

/// Decides and writes.
pub(crate) fn step(snapshot: &mut Snapshot, now: Timestamp) {
    confirm(snapshot, now);
    let plan = decide(snapshot, now);
    apply(snapshot, &plan, now);
}

/// The nodes that each job gets, as `job: node node`.
pub(crate) fn placed(plan: &Plan) -> Vec<String> {
    let mut all = Vec::new();
    for job in &plan.jobs {
        for action in &job.actions {
            if let Action::CreateAttempt(attempt) = action {
                let nodes: Vec<_> = attempt
                    .nodes
                    .iter()
                    .map(|place| place.node.as_str())
                    .collect();
                all.push(format!("{}: {}", job.job.name, nodes.join(" ")));
            }
        }
    }
    all
}

/// What the plan says about why a job has no nodes.
pub(crate) fn reason(plan: &Plan, job: &str) -> (String, String) {
    let status = recorded(plan, job);
    let condition = &status.conditions[&ConditionKind::Assigned];
    assert!(!condition.holds);
    (condition.reason.clone(), condition.message.clone())
}

pub(crate) fn recorded(plan: &Plan, job: &str) -> JobStatus {
    let found = plan.jobs.iter().find(|one| *one.job.name == *job).unwrap();
    let last = found.actions.iter().rev().find_map(|action| match action {
        Action::Record { status, .. } => Some((**status).clone()),
        _ => None,
    });
    last.unwrap()
}

fn unplaceable(cluster: &str, change: impl Fn(&mut Job), policy: &Policy) -> String {
    let mut one = job("train", 4);
    change(&mut one);
    let plan = plan(&queue(cluster, vec![one]), policy, at(0));
    let (reason, message) = reason(&plan, "train");
    assert_eq!(reason, "Unplaceable");
    message
}

#[test]
fn what_can_never_fit_says_why_with_numbers() {
    let policy = Policy::default();
    let same = |_: &mut Job| {};
    let single = |job: &mut Job| job.zone_policy = ZonePolicy::Single;
    assert_eq!(
        unplaceable("a:2", same, &policy),
        "Unplaceable: needs 4 nodes of class a100, the cluster has 2"
    );
    assert_eq!(
        unplaceable("a:2", |job| job.class = "h100".into(), &policy),
        "Unplaceable: needs 4 nodes of class h100, the cluster has no node of that class"
    );
    assert_eq!(
        unplaceable("a:2 b:2", single, &policy),
        "Unplaceable: needs 4 nodes of class a100 in one zone, the largest has 2"
    );
    assert_eq!(
        unplaceable("a:1 b:2 c:1", same, &policy),
        "Unplaceable: needs 4 nodes of class a100 in two zones, the largest two have 3"
    );
    assert_eq!(
        unplaceable(
            "a:2 b:2",
            same,
            &Policy {
                max_cross_zone_jobs: 0,
                ..policy
            }
        ),
        "Unplaceable: needs 4 nodes of class a100 in one zone, the largest has 2 and no job may \
         cross zones"
    );
}

#[test]
fn a_job_waits_for_its_zone_although_two_zones_have_room() {
    let mut busy = queue("a:4 b:3", vec![job("a-first", 2)]);
    let first = decide(&busy, at(0));
    assert_eq!(placed(&first), ["a-first: b-000 b-001"]);
    apply(&mut busy, &first, at(0));
    let mut second = busy.clone();
    second.jobs.push(job("b-second", 4));
    assert_eq!(
        placed(&decide(&second, at(1))),
        ["b-second: a-000 a-001 a-002 a-003"]
    );
    let mut third = busy;
    third.jobs.push(job("b-one", 1));
    let plan = decide(&third, at(1));
    assert_eq!(placed(&plan), ["b-one: b-002"]);
    apply(&mut third, &plan, at(1));
    third.jobs.push(job("c-two", 2));
    step(&mut third, at(2));
    third.jobs.push(job("d-four", 4));
    let plan = decide(&third, at(3));
    let expected = "Waiting: needs 4 free nodes of class a100 in one zone";
    assert_eq!(
        reason(&plan, "d-four"),
        ("WaitingForNodes".to_owned(), expected.to_owned())
    );
}

#[test]
fn a_job_crosses_when_no_zone_is_large_enough_and_only_so_many_do() {
    let plan = decide(&queue("a:3 b:4", vec![job("a", 5)]), at(0));
    assert_eq!(placed(&plan), ["a: a-000 b-000 b-001 b-002 b-003"]);
    assert_eq!(recorded(&plan, "a").zones, ["a".into(), "b".into()]);
    let mut two = queue("a:6 b:6", vec![job("a", 7)]);
    step(&mut two, at(0));
    two.nodes.extend(nodes("c:6 d:6"));
    two.jobs.push(job("b", 7));
    assert_eq!(reason(&decide(&two, at(0)), "b").0, "WaitingForCrossing");
}

#[test]
fn a_crossing_job_that_moves_into_one_zone_crosses_until_it_has_left() {
    let mut snapshot = queue("a:1 b:2", vec![job("a", 3)]);
    train(&mut snapshot);
    snapshot.nodes = nodes("a:6 b:7");
    snapshot.nodes[0].wishes = [(Wish::Cordoned, at(0))].into();
    step(&mut snapshot, at(60));
    assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Interrupting);
    snapshot.jobs.push(job("b", 8));
    let plan = decide(&snapshot, at(61));
    assert_eq!(placed(&plan), [""; 0]);
    assert_eq!(reason(&plan, "b").0, "WaitingForCrossing");
}

// ZONE-1
#[test]
fn a_crossing_job_whose_assignment_went_first_crosses_until_its_trainers_have_stopped() {
    // Foreground deletion, and that of a namespace, take the ConfigMap away and leave pods their
    // grace.
    let deleted = |snapshot: &mut Snapshot| {
        snapshot.jobs[0].deleting = true;
        snapshot.attempts.clear();
    };
    let ends: [&dyn Fn(&mut Snapshot); 4] = [
        &deleted,
        // Pods of an earlier release do not say that they cross: the status does.
        &|snapshot| {
            deleted(snapshot);
            for pod in &mut snapshot.pods {
                pod.crossing = false;
            }
        },
        // The job is gone, too.
        &|snapshot| {
            snapshot.jobs.clear();
            snapshot.attempts.clear();
        },
        // It was void already.
        &|snapshot| {
            fail(&mut snapshot.pods[1], 1, at(9));
            step(snapshot, at(9));
            assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Restarting);
            deleted(snapshot);
        },
    ];
    for end in ends {
        let mut snapshot = queue("a:6 b:6", vec![job("a", 7)]);
        snapshot.jobs[0].finalizer = true;
        train(&mut snapshot);
        end(&mut snapshot);
        snapshot.nodes.extend(nodes("c:6 d:6"));
        snapshot.jobs.push(job("b", 7));
        assert_eq!(
            reason(&decide(&snapshot, at(10)), "b").0,
            "WaitingForCrossing"
        );
        for pod in &mut snapshot.pods {
            pod.terminal = true;
            pod.state = PodState::Interrupted { ack: None };
        }
        let placed = placed(&decide(&snapshot, at(20)));
        assert!(placed.iter().any(|job| job.starts_with("b: ")));
    }
}

#[test]
fn a_crossing_job_that_is_deleted_or_suspended_crosses_until_its_trainers_have_stopped() {
    let ends: [fn(&mut Snapshot); 3] = [
        |snapshot| snapshot.jobs[0].deleting = true,
        |snapshot| snapshot.jobs[0].suspend = true,
        // One rank has failed, and while the others are asked to leave somebody suspends the job.
        |snapshot| {
            snapshot.pods[1].state = PodState::Failed(Exit::default());
            snapshot.pods[1].terminal = true;
            step(snapshot, at(9));
            assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Restarting);
            snapshot.jobs[0].suspend = true;
        },
    ];
    for end in ends {
        let mut snapshot = queue("a:6 b:6", vec![job("a", 7)]);
        snapshot.jobs[0].finalizer = true;
        train(&mut snapshot);
        end(&mut snapshot);
        snapshot.nodes.extend(nodes("c:6 d:6"));
        snapshot.jobs.push(job("b", 7));
        let plan = decide(&snapshot, at(10));
        assert_eq!(reason(&plan, "b").0, "WaitingForCrossing");
        apply(&mut snapshot, &plan, at(10));
        for pod in &mut snapshot.pods {
            pod.terminal = true;
            pod.state = PodState::Succeeded;
        }
        step(&mut snapshot, at(20));
        step(&mut snapshot, at(21));
        let b = snapshot.jobs.iter().find(|job| *job.key.name == *"b");
        assert_eq!(b.unwrap().status.phase, JobPhase::Starting);
    }
}

#[test]
fn a_job_that_crosses_again_by_its_promise_counts_once() {
    let policy = Policy {
        max_cross_zone_jobs: 2,
        ..Policy::default()
    };
    let mut snapshot = queue("a:3 b:3", vec![job("a", 5)]);
    train(&mut snapshot);
    snapshot.pods[1].state = PodState::Failed(Exit::default());
    snapshot.pods[1].terminal = true;
    step(&mut snapshot, at(9));
    snapshot.pods.clear();
    snapshot.nodes.extend(nodes("c:4 d:4"));
    snapshot.jobs.push(job("b", 5));
    let plan = plan(&snapshot, &policy, at(20));
    assert_eq!(placed(&plan).len(), 2);
    assert_eq!(check(&snapshot, &policy, at(20), &plan), Ok(()));
}

#[test]
fn dead_nodes_of_the_zone_make_a_job_cross_after_five_minutes() {
    let mut snapshot = queue("a:4 b:3", vec![job("a", 4)]);
    snapshot.nodes[0].ready = Ready::Unknown;
    let plan = decide(&snapshot, at(0));
    assert_eq!(placed(&plan), [""; 0]);
    assert_eq!(reason(&plan, "a").0, "WaitingForZone");
    assert_eq!(plan.wake_at, Some(at(300)));
    apply(&mut snapshot, &plan, at(0));
    assert!(decide(&snapshot, at(299)).is_empty());
    // Nobody else takes what the zone still has.
    snapshot.jobs.push(job("z-late", 2));
    assert_eq!(placed(&decide(&snapshot, at(299))), ["z-late: b-000 b-001"]);
    snapshot.jobs.pop();
    let placed = placed(&decide(&snapshot, at(300)));
    assert_eq!(placed, ["a: a-001 a-002 a-003 b-000"]);
}

#[test]
fn an_agent_that_restarts_makes_no_job_cross() {
    let mut snapshot = queue("a:6 b:4", vec![job("a", 6)]);
    snapshot.nodes[2].short = Some("0 of 1 fireflyer.dev/node".into());
    step(&mut snapshot, at(0));
    assert_eq!(snapshot.jobs[0].status.no_zone_since, Some(at(0)));
    snapshot.nodes[2].short = None;
    let plan = decide(&snapshot, at(20));
    let expected = "a: a-000 a-001 a-002 a-003 a-004 a-005";
    assert_eq!(placed(&plan), [expected]);
    assert_eq!(recorded(&plan, "a").no_zone_since, None);
}

#[test]
fn too_few_healthy_nodes_is_not_unplaceable() {
    let mut snapshot = queue("a:4", vec![job("a", 4)]);
    snapshot.nodes[0].wishes = [(Wish::Cordoned, at(0))].into();
    let expected = "Waiting: needs 4 healthy nodes of class a100";
    assert_eq!(
        reason(&decide(&snapshot, at(0)), "a"),
        ("WaitingForHealthyNodes".to_owned(), expected.to_owned())
    );
}

#[test]
fn the_head_of_the_queue_keeps_its_zone_and_others_use_the_rest() {
    let mut snapshot = queue("a:4 b:2", vec![job("a", 2)]);
    snapshot.jobs[0].zone_policy = ZonePolicy::Single;
    // It takes b, which is left with the least; then c takes one of a.
    let plan = decide(&snapshot, at(0));
    apply(&mut snapshot, &plan, at(0));
    snapshot.jobs.push(job("c", 1));
    step(&mut snapshot, at(0));
    snapshot.jobs.push(job("d-head", 4));
    snapshot.jobs.push(job("e", 1));
    let plan = decide(&snapshot, at(0));
    assert!(
        placed(&plan).is_empty(),
        "e would take what the head waits for"
    );
    // When b is free again, e may have it.
    for pod in snapshot.pods.iter_mut().filter(|pod| *pod.job.name == *"a") {
        pod.state = PodState::Succeeded;
        pod.terminal = true;
    }
    step(&mut snapshot, at(1));
    assert_eq!(placed(&decide(&snapshot, at(2))), ["e: b-000"]);
}

#[test]
fn a_claim_that_cannot_be_used_keeps_the_job_queued() {
    let mut one = job("a", 2);
    let problem = "claim data is ReadWriteOnce; a job with 2 nodes needs ReadWriteMany";
    one.problem = Some(Problem {
        reason: "ClaimUnusable",
        message: problem.to_owned(),
    });
    let plan = decide(&queue("a:2", vec![one]), at(0));
    assert_eq!(
        reason(&plan, "a"),
        ("ClaimUnusable".to_owned(), problem.to_owned())
    );
    assert_eq!(recorded(&plan, "a").phase, JobPhase::Queued);
}

#[test]
fn a_job_whose_pods_are_refused_gives_its_nodes_to_others() {
    // One pod was created, then the API server refused the next.
    let mut snapshot = queue("a:2", vec![job("train", 2), job("waits", 2)]);
    let plan = decide(&snapshot, at(0));
    apply(&mut snapshot, &plan, at(0));
    snapshot.jobs[0].status.phase = JobPhase::Assigned;
    snapshot.pods.pop();
    snapshot.jobs[0].problem = Some(Problem {
        reason: "Refused",
        message: "the API server refuses its objects: quota".to_owned(),
    });
    assert!(decide(&snapshot, at(1)).is_empty(), "its pod may be there");
    confirm(&mut snapshot, at(1));
    let plan = decide(&snapshot, at(1));
    let status = recorded(&plan, "train");
    assert_eq!(
        (status.phase, status.restarts, status.replans),
        (JobPhase::Restarting, 0, 1)
    );
    assert!(status.failure.unwrap().message.contains("quota"));
    assert_eq!(deletions(&plan).len(), 1);
    apply(&mut snapshot, &plan, at(1));
    assert_eq!(snapshot.attempts, []);
    snapshot.pods.clear();
    assert_eq!(placed(&decide(&snapshot, at(2))), ["waits: a-000 a-001"]);

    // Then it waits and says why; when the refusal is no longer believed, it tries again.
    snapshot.jobs.retain(|job| *job.key.name == *"train");
    let plan = decide(&snapshot, at(9));
    assert_eq!(reason(&plan, "train").0, "Refused");
    apply(&mut snapshot, &plan, at(9));
    assert!(decide(&snapshot, at(10)).is_empty());
    snapshot.jobs[0].problem = None;
    assert_eq!(placed(&decide(&snapshot, at(70))), ["train: a-000 a-001"]);
}

#[test]
fn a_problem_does_not_disturb_a_gang_that_has_all_its_pods() {
    let mut snapshot = running(2);
    snapshot.jobs[0].problem = Some(Problem {
        reason: "ClaimUnusable",
        message: "claim data does not exist".to_owned(),
    });
    assert!(decide(&snapshot, at(3)).is_empty());
}

#[test]
fn a_namesake_s_leftovers_are_waited_for() {
    let mut snapshot = running(2);
    let mut again = job("train", 2);
    again.key.uid = "another".into();
    snapshot.jobs = vec![again];
    snapshot.nodes.extend(nodes("b:2"));
    let (word, message) = reason(&decide(&snapshot, at(1)), "train");
    assert_eq!(word, "NameTaken");
    assert!(!message.contains("dead"), "{message}");

    // A pod on a dead node does not go by itself: the sentence says where it is.
    snapshot.nodes[1].ready = Ready::Unknown;
    let (_, message) = reason(&decide(&snapshot, at(2)), "train");
    assert!(message.contains("node a-001, which is dead"), "{message}");
}
