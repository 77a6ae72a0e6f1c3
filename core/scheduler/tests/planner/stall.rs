//! Gangs that train and make no progress: when their ranks are asked for stacks, when their attempt
//! ends, and what ends nothing.

use std::time::Duration;

use scheduler::{
    Action, ConditionKind, GangProgress, JobPhase, Plan, PodState, ProgressSign, Snapshot,
    StacksAsked, Stalled, Timestamp,
};
use topology::SignKind;

use crate::build::{at, job, key};
use crate::decisions::{decide, queue, recorded, step};
use crate::gangs::{deletions, train};
use crate::life::{Life, is_over, live};
use crate::world::Program;

/// Time without progress that the job allows, in seconds.
const STALL: u64 = 600;
const SILENCE: &str = "no progress for 600 s: the last sign of it was step 41";

/// A gang of two that trains since second 1 and reported step 41 in second 100.
fn silent() -> Snapshot {
    let mut one = job("train", 2);
    one.stall = Some(Duration::from_secs(STALL));
    let mut snapshot = queue("a:3", vec![one]);
    train(&mut snapshot);
    snapshot.jobs[0].seen = at(1);
    know(&mut snapshot, progress(Some(100), None));
    snapshot
}

fn progress(newest: Option<u64>, asked: Option<u64>) -> GangProgress {
    GangProgress {
        newest: newest.map(|second| ProgressSign {
            at: at(second),
            kind: SignKind::Step,
        }),
        step: newest.map(|_| 41),
        is_heard: true,
        asked: asked.map(|second| StacksAsked {
            at: at(second),
            nodes: 2,
            of: 2,
        }),
    }
}

fn know(snapshot: &mut Snapshot, progress: GangProgress) {
    snapshot.progress = [((key("train"), 1), progress)].into();
}

/// The event of the only job's record.
fn event(plan: &Plan) -> (&'static str, String) {
    let actions = plan.jobs.iter().flat_map(|job| &job.actions);
    let event = actions.into_iter().find_map(|action| match action {
        Action::Record { event, .. } => event.clone(),
        _ => None,
    });
    let event = event.unwrap();
    (event.reason, event.message)
}

fn does_nothing(snapshot: &Snapshot, now: Timestamp) -> Option<Timestamp> {
    let plan = decide(snapshot, now);
    assert!(plan.is_empty() && plan.stalled.is_empty(), "{plan:#?}");
    plan.wake_at
}

#[test]
fn a_gang_without_progress_is_asked_for_stacks_at_the_limit_and_no_millisecond_before() {
    let snapshot = silent();
    let limit = at(100 + STALL);
    let before = Timestamp::from_millis(limit.as_millis() - 1);
    assert_eq!(does_nothing(&snapshot, before), Some(limit));
    let plan = decide(&snapshot, limit);
    assert!(plan.is_empty());
    let stalled = Stalled {
        job: key("train"),
        attempt: 1,
        since: at(100),
        message: SILENCE.to_owned(),
    };
    assert_eq!(plan.stalled, [stalled]);
}

#[test]
fn ten_seconds_after_the_question_the_attempt_ends_as_stalled_and_is_charged() {
    let mut snapshot = silent();
    know(&mut snapshot, progress(Some(100), Some(700)));
    assert_eq!(does_nothing(&snapshot, at(709)), Some(at(710)));
    let plan = decide(&snapshot, at(710));
    let status = recorded(&plan, "train");
    assert_eq!(
        (status.phase, status.restarts, status.replans),
        (JobPhase::Restarting, 1, 0)
    );
    assert_eq!(status.retry_at, Some(at(712)), "the usual back-off");
    let (_, reason) = status.newest.unwrap().ended.unwrap();
    assert_eq!(reason, "Stalled");
    let message = "no progress for 610 s: the last sign of it was step 41; its ranks were asked to \
                   print their stacks: see the logs of its pods";
    let failure = status.failure.unwrap();
    assert_eq!((failure.node, &*failure.message), (None, message));
    assert!(status.avoided.is_empty(), "no node is at fault");
    assert!(status.promise.is_some(), "it comes back to its nodes");
    let (reason, text) = event(&plan);
    assert_eq!(reason, "Restarting");
    assert_eq!(text, format!("{message}; restart 1 of 3"));
    let grace = Duration::from_secs(2);
    assert_eq!(deletions(&plan), [(0, grace), (1, grace)]);
}

#[test]
fn a_job_without_restarts_left_fails_when_it_stalls() {
    let mut snapshot = silent();
    snapshot.jobs[0].max_restarts = 0;
    know(&mut snapshot, progress(Some(100), Some(700)));
    let status = recorded(&decide(&snapshot, at(710)), "train");
    assert_eq!(status.phase, JobPhase::Failed);
    let failed = &status.conditions[&ConditionKind::Failed];
    assert_eq!(failed.reason, "TooManyRestarts");
}

#[test]
fn a_sign_that_comes_after_the_question_calls_the_end_off() {
    let mut snapshot = silent();
    know(&mut snapshot, progress(Some(709), None));
    assert_eq!(does_nothing(&snapshot, at(711)), Some(at(709 + STALL)));
}

#[test]
fn a_gang_that_is_not_heard_in_full_is_not_ended() {
    let mut snapshot = silent();
    for asked in [None, Some(700)] {
        know(
            &mut snapshot,
            GangProgress {
                is_heard: false,
                ..progress(Some(100), asked)
            },
        );
        does_nothing(&snapshot, at(9_000));
    }
    snapshot.progress.clear();
    does_nothing(&snapshot, at(9_000));
}

#[test]
fn a_leader_that_has_just_begun_to_look_is_patient_anew() {
    let mut snapshot = silent();
    snapshot.jobs[0].seen = at(650);
    assert_eq!(does_nothing(&snapshot, at(700)), Some(at(650 + STALL)));
}

#[test]
fn what_an_older_sidecar_and_an_operation_leave_to_say_is_in_the_text() {
    let mut snapshot = silent();
    let mut known = progress(Some(100), Some(700));
    for (nodes, text) in [
        (0, "its sidecars are of an older release"),
        (1, "the ranks of 1 of 2 nodes were asked"),
    ] {
        known.asked = Some(StacksAsked {
            at: at(700),
            nodes,
            of: 2,
        });
        known.newest = Some(ProgressSign {
            at: at(100),
            kind: SignKind::Operation,
        });
        know(&mut snapshot, known.clone());
        let message = recorded(&decide(&snapshot, at(710)), "train");
        let message = message.failure.unwrap().message;
        assert!(message.contains(text), "{message}");
        let last = "a collective that was finished; the last step reported is 41";
        assert!(message.contains(last), "{message}");
    }
}

#[test]
fn an_attempt_that_never_gave_a_sign_is_never_ended_and_says_so_once_until_one_comes() {
    let mut snapshot = silent();
    know(&mut snapshot, progress(None, None));
    assert_eq!(does_nothing(&snapshot, at(1)), Some(at(1 + STALL)));
    let plan = decide(&snapshot, at(1 + STALL));
    assert_eq!(event(&plan).0, "ProgressUnknown");
    step(&mut snapshot, at(1 + STALL));
    let status = &snapshot.jobs[0].status;
    assert!(status.is(ConditionKind::ProgressUnknown));
    assert_eq!(status.phase, JobPhase::Running);
    let message = &status.conditions[&ConditionKind::ProgressUnknown].message;
    assert!(message.contains("fireflyer.Checkpoint"), "{message}");
    does_nothing(&snapshot, at(1_000_000));
    know(&mut snapshot, progress(Some(1_000_000), None));
    step(&mut snapshot, at(1_000_001));
    let status = &snapshot.jobs[0].status;
    assert!(!status.is(ConditionKind::ProgressUnknown));
    let limit = at(1_000_000 + STALL);
    assert_eq!(does_nothing(&snapshot, at(1_000_002)), Some(limit));
}

#[test]
fn only_a_job_that_trains_and_sets_a_limit_is_watched() {
    let without: [fn(&mut Snapshot); 3] = [
        |snapshot| snapshot.jobs[0].stall = None,
        |snapshot| snapshot.jobs[0].status.phase = JobPhase::Starting,
        |snapshot| snapshot.pods[0].state = PodState::Starting,
    ];
    for change in without {
        let mut snapshot = silent();
        know(&mut snapshot, progress(Some(100), Some(700)));
        change(&mut snapshot);
        let plan = decide(&snapshot, at(710));
        assert_eq!(plan.stalled, []);
        assert_eq!(deletions(&plan), []);
    }
    let mut saves = silent();
    saves.jobs[0].suspend = true;
    step(&mut saves, at(650));
    know(&mut saves, progress(Some(100), Some(700)));
    assert_eq!(saves.jobs[0].status.phase, JobPhase::Interrupting);
    assert_eq!(decide(&saves, at(710)).stalled, []);
    step(&mut saves, at(710));
    assert_eq!(saves.jobs[0].status.restarts, 0);
}

#[test]
fn an_attempt_that_hangs_is_ended_once_and_not_early_whoever_leads() {
    live(&Life {
        set_up: |world| {
            let mut one = job("train", 3);
            one.stall = Some(Duration::from_secs(60));
            let program = Program {
                hangs: [30_000].into(),
                ..Program::trains(90)
            };
            world.submit(one, program);
        },
        over: is_over,
        verify: |world| {
            let status = &world.jobs[&key("train")].job.status;
            assert_eq!(
                (status.phase, status.restarts),
                (JobPhase::Succeeded, 1),
                "{}",
                world.describe()
            );
            let ended = status.restart_times[0];
            assert!(ended >= at(30 + 60 + 10), "{ended}");
        },
    });
}
