//! Nodes and the dry run of a job's first pod: who is asked about, who gets nodes, and who keeps
//! its turn.

use scheduler::{DryRun, JobEvent, JobPhase, Plan, PodState, Policy, Problem, Snapshot, check};

use crate::build::{at, job, key};
use crate::decisions::{decide, placed, queue, reason, step};
use crate::gangs::train;

fn asked(plan: &Plan) -> Vec<&str> {
    plan.dry_runs.iter().map(|job| &*job.name).collect()
}

/// `first` is older than `second`; each needs two of three nodes.
fn two(dry_run: DryRun) -> Snapshot {
    let mut first = job("first", 2);
    first.dry_run = dry_run;
    let mut second = job("second", 2);
    second.created = at(1);
    queue("a:3", vec![second, first])
}

#[test]
fn a_job_gets_no_nodes_before_the_api_server_takes_its_first_pod() {
    let mut snapshot = two(DryRun::Unknown);
    let plan = decide(&snapshot, at(2));
    assert_eq!(asked(&plan), ["first"]);
    assert_eq!(placed(&plan), Vec::<String>::new(), "it keeps its turn");

    snapshot.jobs[1].dry_run = DryRun::Accepted;
    let plan = decide(&snapshot, at(2));
    assert_eq!(placed(&plan), ["first: a-000 a-001"]);
    assert_eq!(asked(&plan), Vec::<&str>::new());

    snapshot.jobs[1].dry_run = DryRun::Unknown;
    let violation = check(&snapshot, &Policy::default(), at(2), &plan).unwrap_err();
    assert_eq!(violation.invariant, "pod-accepted");
}

#[test]
fn a_refused_job_says_why_and_holds_up_nobody() {
    let mut snapshot = two(DryRun::Refused("quota is used up".to_owned()));
    let plan = decide(&snapshot, at(2));
    let expected = ("Refused".to_owned(), "quota is used up".to_owned());
    assert_eq!(reason(&plan, "first"), expected);
    assert_eq!(placed(&plan), ["second: a-000 a-001"]);
    assert_eq!(asked(&plan), ["first"], "another answer may come");
    let first = &plan.jobs[0].actions[0];
    let scheduler::Action::Record { status, event } = first else {
        panic!("not a record: {first:?}");
    };
    assert_eq!((status.phase, status.attempt), (JobPhase::Queued, 0));
    assert!(matches!(
        event,
        Some(JobEvent {
            warning: true,
            reason: "Refused",
            ..
        })
    ));

    // The same words are written once.
    step(&mut snapshot, at(2));
    let plan = decide(&snapshot, at(3));
    assert!(
        plan.jobs.iter().all(|job| job.job != key("first")),
        "{plan:?}"
    );
}

#[test]
fn only_jobs_that_want_nodes_are_asked_about_and_in_their_turn() {
    let unknown = |name: &str| {
        let mut unknown = job(name, 9);
        unknown.dry_run = DryRun::Unknown;
        unknown
    };
    let mut jobs = vec![unknown("c"), unknown("b"), unknown("a")];
    jobs[2].created = at(1);
    let mut suspended = unknown("suspended");
    suspended.suspend = true;
    let mut deleted = unknown("deleted");
    deleted.deleting = true;
    let mut over = unknown("over");
    over.status.phase = JobPhase::Failed;
    let mut later = unknown("later");
    later.status.phase = JobPhase::Restarting;
    later.status.retry_at = Some(at(60));
    let mut hopeless = unknown("hopeless");
    hopeless.problem = Some(Problem {
        reason: "ClassUnknown",
        message: "no such class".to_owned(),
    });
    jobs.extend([suspended, deleted, over, later, hopeless]);
    let mut snapshot = queue("a:9", jobs);
    let plan = scheduler::plan(&snapshot, &Policy::default(), at(2));
    assert_eq!(asked(&plan), ["b", "c", "a"]);

    snapshot.is_stale = true;
    let plan = scheduler::plan(&snapshot, &Policy::default(), at(2));
    assert_eq!(asked(&plan), Vec::<&str>::new(), "nothing is given now");
}

#[test]
fn a_gang_that_has_its_nodes_is_neither_asked_about_nor_ended() {
    for dry_run in [DryRun::Unknown, DryRun::Refused("no".to_owned())] {
        let mut snapshot = queue("a:3", vec![job("train", 3)]);
        step(&mut snapshot, at(0));
        snapshot.jobs[0].dry_run = dry_run.clone();
        assert_eq!(asked(&decide(&snapshot, at(0))), Vec::<&str>::new());

        train(&mut snapshot);
        snapshot.jobs[0].dry_run = dry_run;
        let running = |snapshot: &Snapshot| {
            let mut pods = snapshot.pods.iter();
            pods.all(|pod| pod.state == PodState::Running && pod.delete_by.is_none())
        };
        step(&mut snapshot, at(9));
        assert!(running(&snapshot));
        assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Running);
    }
}

/// Whoever leads next asks again. If it took the finalizer off meanwhile, operators that are killed
/// after every write would put it on and take it off for ever.
#[test]
fn a_job_that_was_about_to_get_nodes_keeps_its_finalizer_while_its_pod_is_tried_again() {
    let mut snapshot = queue("a:3", vec![job("train", 3)]);
    snapshot.jobs[0].finalizer = true;
    snapshot.jobs[0].dry_run = DryRun::Unknown;
    let plan = decide(&snapshot, at(2));
    assert!(plan.jobs.is_empty(), "{plan:?}");
    // A refused one will hold nothing for long.
    snapshot.jobs[0].dry_run = DryRun::Refused("quota is used up".to_owned());
    step(&mut snapshot, at(2));
    assert!(!snapshot.jobs[0].finalizer);
}
