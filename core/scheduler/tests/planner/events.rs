//! Events: each comes with its transition and only then. Planning the same state again, as a resync
//! or a restarted operator does, emits nothing.

use scheduler::{
    Action, Exit, JobStatus, Plan, PodState, Policy, Problem, Ready, Snapshot, Timestamp, Wish,
    plan,
};
use sim::{Rng, for_each_seed};

use crate::build::{at, job};
use crate::crowd;
use crate::decisions::{decide, queue};
use crate::properties::apply;

/// The Events of a plan, as `job Reason`, with a mark for warnings.
fn events(plan: &Plan) -> Vec<String> {
    let mut all = Vec::new();
    for job in &plan.jobs {
        for action in &job.actions {
            if let Action::Record {
                event: Some(event), ..
            } = action
            {
                let mark = if event.warning { "!" } else { "" };
                all.push(format!("{} {}{mark}", job.job.name, event.reason));
            }
        }
    }
    all
}

/// Plans and writes; returns the Events, and checks that they are not emitted again.
fn step(snapshot: &mut Snapshot, now: Timestamp) -> Vec<String> {
    let plan = decide(snapshot, now);
    apply(snapshot, &plan, now);
    let again = decide(snapshot, now);
    assert_eq!(events(&again), [""; 0], "emitted again");
    events(&plan)
}

fn all(snapshot: &mut Snapshot, state: &PodState, terminal: bool) {
    for pod in &mut snapshot.pods {
        pod.state = state.clone();
        pod.terminal = terminal;
    }
}

fn running(size: u32) -> Snapshot {
    let mut snapshot = queue(&format!("a:{}", size + 1), vec![job("train", size)]);
    assert_eq!(step(&mut snapshot, at(0)), ["train Assigned"]);
    all(&mut snapshot, &PodState::Running, false);
    assert_eq!(step(&mut snapshot, at(1)), ["train Running"]);
    snapshot
}

#[test]
fn a_job_that_waits_tells_each_reason_once() {
    let mut snapshot = queue("a:2", vec![job("train", 3)]);
    assert_eq!(step(&mut snapshot, at(0)), ["train Unplaceable!"]);
    // Other figures are no other reason.
    snapshot.nodes.pop();
    assert_eq!(step(&mut snapshot, at(1)), [""; 0]);
    snapshot.jobs[0].problem = Some(Problem {
        reason: "ClaimUnusable",
        message: "claim data does not exist".to_owned(),
    });
    assert_eq!(step(&mut snapshot, at(2)), ["train ClaimUnusable!"]);
    snapshot.jobs[0].problem = None;
    snapshot.nodes = crate::build::nodes("a:3");
    snapshot.nodes[0].wishes = [(Wish::Cordoned, at(0))].into();
    assert_eq!(step(&mut snapshot, at(3)), ["train WaitingForHealthyNodes"]);
    snapshot.nodes[0].wishes.clear();
    assert_eq!(step(&mut snapshot, at(4)), ["train Assigned"]);
    snapshot.jobs.push(job("waits", 3));
    assert_eq!(step(&mut snapshot, at(5)), ["waits WaitingForNodes"]);
}

#[test]
fn a_job_that_ends_tells_how() {
    let mut snapshot = running(2);
    all(&mut snapshot, &PodState::Succeeded, true);
    assert_eq!(step(&mut snapshot, at(9)), ["train Succeeded"]);
    assert_eq!(step(&mut snapshot, at(99)), [""; 0]);

    let mut snapshot = running(2);
    snapshot.jobs[0].max_restarts = 1;
    let failed = PodState::Failed(Exit::default());
    all(&mut snapshot, &failed, true);
    assert_eq!(step(&mut snapshot, at(9)), ["train Restarting!"]);
    snapshot.pods.clear();
    assert_eq!(step(&mut snapshot, at(20)), ["train Assigned"]);
    all(&mut snapshot, &PodState::Running, false);
    assert_eq!(step(&mut snapshot, at(21)), ["train Running"]);
    all(&mut snapshot, &failed, true);
    assert_eq!(step(&mut snapshot, at(22)), ["train Failed!"]);
}

#[test]
fn a_lost_node_has_one_event() {
    let mut snapshot = running(2);
    snapshot.nodes[0].ready = Ready::Unknown;
    assert_eq!(step(&mut snapshot, at(9)), ["train Replanning!"]);
}

#[test]
fn a_missing_image_has_one_event_however_often_the_kubelet_tries() {
    let mut snapshot = queue("a:1", vec![job("train", 1)]);
    step(&mut snapshot, at(0));
    let missing = PodState::Blocked(Problem {
        reason: "ImageError",
        message: "image nowhere/none:1 cannot be pulled".to_owned(),
    });
    all(&mut snapshot, &missing, false);
    assert_eq!(step(&mut snapshot, at(1)), ["train ImageError!"]);
    for second in 2..60 {
        assert_eq!(step(&mut snapshot, at(second)), [""; 0]);
    }
}

#[test]
fn an_interruption_tells_that_it_began_and_how_it_ended() {
    let mut snapshot = running(2);
    snapshot.jobs[0].suspend = true;
    assert_eq!(step(&mut snapshot, at(9)), ["train Interrupting"]);
    let saved = PodState::Interrupted { ack: None };
    all(&mut snapshot, &saved, true);
    assert_eq!(step(&mut snapshot, at(10)), ["train Suspended"]);
    assert_eq!(step(&mut snapshot, at(99)), [""; 0]);
    snapshot.pods.clear();
    snapshot.jobs[0].suspend = false;
    assert_eq!(
        step(&mut snapshot, at(100)),
        ["train Resumed", "train Assigned"]
    );

    let mut snapshot = running(2);
    snapshot.nodes[0].wishes = [(Wish::Cordoned, at(0))].into();
    assert_eq!(step(&mut snapshot, at(60)), ["train Interrupting"]);
    all(&mut snapshot, &saved, true);
    let plan = decide(&snapshot, at(61));
    assert_eq!(events(&plan), ["train Released"]);
    apply(&mut snapshot, &plan, at(61));
    assert_eq!(step(&mut snapshot, at(61)), ["train Assigned"]);
}

#[test]
fn a_deleted_job_tells_nothing() {
    let mut snapshot = running(2);
    snapshot.jobs[0].deleting = true;
    assert_eq!(step(&mut snapshot, at(9)), [""; 0]);
}

/// Phase, zones, how many take part, and what each condition says in one word. The zones, because a
/// new leader may choose other nodes for an attempt that was recorded and not decided. How many
/// take part, because a gang that goes on without a lost node may lose another: that is news with
/// the same reason.
fn words(status: &JobStatus) -> impl PartialEq + std::fmt::Debug {
    let conditions = status.conditions.iter();
    let words =
        conditions.map(|(kind, condition)| (*kind, condition.holds, condition.reason.clone()));
    (
        status.phase,
        status.zones.clone(),
        status.ready,
        words.collect::<Vec<_>>(),
    )
}

#[test]
fn whatever_goes_wrong_an_event_comes_with_another_phase_reason_or_size_and_never_twice() {
    for_each_seed(100, |rng| {
        let mut world = crowd::trouble(&mut Rng::new(rng.range(0..u64::MAX)));
        for _ in 0..20 {
            world.advance(usize::try_from(rng.range(1..100)).unwrap());
            let (snapshot, policy, now) = (world.snapshot(), Policy::default(), world.now());
            for job_plan in plan(&snapshot, &policy, now).jobs {
                let job = snapshot.jobs.iter().find(|job| job.key == job_plan.job);
                let mut before = job.map(|job| job.status.clone());
                for action in job_plan.actions {
                    let Action::Record { status, event } = action else {
                        continue;
                    };
                    let old = before.replace(*status.clone()).unwrap();
                    if let Some(event) = event {
                        assert_ne!(words(&old), words(&status), "{event:?}");
                    }
                }
            }
        }
    });
}
