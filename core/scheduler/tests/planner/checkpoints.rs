//! What is known of checkpoints: acknowledged, reported, passed over, not to be read; and where
//! attempts resume from.

use std::time::Duration;

use scheduler::{
    Action, CheckpointReport, ConditionKind, JobPhase, JobStatus, PodState, ProgramCause, Ready,
    Snapshot,
};

use crate::build::{GRACE, acknowledge, at, key};
use crate::decisions::{decide, recorded, step};
use crate::gangs::{deletions, fail, running};
use crate::properties::apply;
use topology::CheckpointRef;

#[test]
fn an_acknowledged_interruption_pins_the_next_attempt_to_its_checkpoint() {
    let mut snapshot = running(2);
    snapshot.jobs[0].suspend = true;
    let plan = decide(&snapshot, at(10));
    assert_eq!(recorded(&plan, "train").phase, JobPhase::Interrupting);
    assert_eq!(deletions(&plan), [(0, GRACE), (1, GRACE)]);
    apply(&mut snapshot, &plan, at(10));
    assert!(decide(&snapshot, at(11)).is_empty());
    let ack = acknowledge(&mut snapshot);
    let plan = decide(&snapshot, at(12));
    let status = recorded(&plan, "train");
    assert_eq!(status.phase, JobPhase::Suspended);
    assert!(status.is(ConditionKind::CheckpointDurable) && status.is(ConditionKind::Suspended));
    assert_eq!(status.last_checkpoint, Some(ack.clone()));
    apply(&mut snapshot, &plan, at(12));
    assert!(snapshot.pods.is_empty() && snapshot.attempts.is_empty());
    assert!(!snapshot.jobs[0].finalizer && decide(&snapshot, at(13)).is_empty());
    snapshot.jobs[0].suspend = false;
    let plan = decide(&snapshot, at(14));
    let resume = plan.jobs[0].actions.iter().find_map(|action| match action {
        Action::CreateAttempt(attempt) => Some((attempt.number, attempt.resume.clone())),
        _ => None,
    });
    assert_eq!(resume, Some((2, Some(ack))));
}

#[test]
fn an_acknowledgement_is_recorded_whatever_else_ended_the_attempt() {
    // While nobody led, rank 0 was drained and saved; then its peer failed, or its node was lost.
    let fails: [fn(&mut Snapshot); 2] = [
        |snapshot| fail(&mut snapshot.pods[1], 1, at(9)),
        |snapshot| snapshot.nodes[0].ready = Ready::Unknown,
    ];
    for fails in fails {
        let mut snapshot = running(2);
        let ack = acknowledge(&mut snapshot);
        fails(&mut snapshot);
        let plan = decide(&snapshot, at(12));
        let status = recorded(&plan, "train");
        assert_eq!(status.phase, JobPhase::Restarting);
        assert_eq!(status.last_checkpoint, Some(ack));
    }
}

#[test]
fn an_acknowledgement_that_comes_after_the_end_of_its_attempt_is_recorded() {
    let mut snapshot = running(2);
    fail(&mut snapshot.pods[1], 1, at(9));
    let plan = decide(&snapshot, at(10));
    // The leader stops after its record. The survivor is drained, and saves.
    let mut plan = plan;
    let is_record = |action: &Action| matches!(action, Action::Record { .. });
    plan.jobs[0].actions.retain(is_record);
    apply(&mut snapshot, &plan, at(10));
    let ack = acknowledge(&mut snapshot);
    let plan = decide(&snapshot, at(20));
    assert_eq!(recorded(&plan, "train").last_checkpoint, Some(ack));
}

/// The newest attempt gets its nodes again and its program cannot go on for this reason; what is
/// recorded then.
fn cannot_resume(snapshot: &mut Snapshot, now: &mut u64, cause: &ProgramCause) -> JobStatus {
    let mut pod = snapshot.pods[0].clone();
    fail(&mut pod, 0, at(*now));
    if let PodState::Failed(exit) = &mut pod.state {
        exit.cause = Some(cause.clone());
    }
    snapshot.pods[0] = pod;
    step(snapshot, at(*now));
    snapshot.pods.clear();
    let status = snapshot.jobs[0].status.clone();
    if let Some(retry) = status.retry_at {
        step(snapshot, retry);
        for pod in &mut snapshot.pods {
            pod.state = PodState::Running;
        }
        *now = retry.as_millis() / 1000 + 1;
        step(snapshot, at(*now));
    }
    status
}

#[test]
fn checkpoints_that_cannot_be_read_now_are_tried_again_and_charge_nothing() {
    let mut snapshot = running(1);
    let cause = ProgramCause::CheckpointUnavailable("failed to read: stale".to_owned());
    let mut now = 12;
    let began = now;
    let mut nth = 0;
    // Storage is away for three hours.
    while now - began < 3 * 3600 {
        nth += 1;
        let failed = now;
        let status = cannot_resume(&mut snapshot, &mut now, &cause);
        assert_eq!(
            (status.phase, status.restarts, status.unreadable),
            (JobPhase::Restarting, 0, nth)
        );
        let pause = Duration::from_secs((5 << nth.min(8)).min(900));
        assert_eq!(status.retry_at, Some(at(failed) + pause));
        let running = &status.conditions[&ConditionKind::Running];
        assert_eq!(
            (&*running.reason, &*running.message),
            ("CheckpointUnavailable", "failed to read: stale")
        );
        assert_eq!(status.is(ConditionKind::Stuck), nth >= 5);
    }
    assert!(nth < 20, "its nodes are free between {nth} tries");
    let stuck = |snapshot: &Snapshot| {
        let stuck = &snapshot.jobs[0].status.conditions[&ConditionKind::Stuck];
        (stuck.holds, stuck.reason.clone(), stuck.since)
    };
    let since = stuck(&snapshot).2;
    // Its program runs again, and has yet to say whether it can read.
    assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Running);
    let reason = "CheckpointUnavailable".to_owned();
    assert_eq!(stuck(&snapshot), (true, reason.clone(), since));
    let text = &snapshot.jobs[0].status.conditions[&ConditionKind::Stuck].message;
    assert!(text.starts_with(&format!(
        "{nth} attempts in a row could not read checkpoints"
    )));
    // Storage is back. What an earlier attempt saved does not say so.
    let attempt = snapshot.jobs[0].status.attempt;
    let report = |attempt| CheckpointReport {
        job: key("train"),
        attempt,
        checkpoint: CheckpointRef {
            attempt,
            step: 9,
            digest: "d".to_owned(),
        },
        passed_over: None,
    };
    snapshot.reports = vec![report(1)];
    step(&mut snapshot, at(now + 60));
    assert_eq!(stuck(&snapshot), (true, reason, since));
    snapshot.reports = vec![report(attempt)];
    step(&mut snapshot, at(now + 61));
    let runs = (false, "Runs".to_owned(), at(now + 61));
    assert_eq!(stuck(&snapshot), runs);
}

#[test]
fn a_job_that_could_read_its_checkpoint_again_is_not_stuck_when_it_ends_otherwise() {
    let cause = ProgramCause::CheckpointUnavailable("stale".to_owned());
    let ends: [fn(&mut Snapshot, u64); 2] = [
        |snapshot, now| {
            snapshot.pods[0].state = PodState::Succeeded;
            step(snapshot, at(now));
        },
        |snapshot, now| {
            fail(&mut snapshot.pods[0], 0, at(now));
            step(snapshot, at(now));
            snapshot.pods.clear();
            step(snapshot, at(now + 60));
            snapshot.pods[0].state = PodState::Running;
            step(snapshot, at(now + 61));
        },
    ];
    for end in ends {
        let (mut snapshot, mut now) = (running(1), 12);
        for _ in 0..6 {
            cannot_resume(&mut snapshot, &mut now, &cause);
        }
        assert!(snapshot.jobs[0].status.is(ConditionKind::Stuck));
        end(&mut snapshot, now);
        assert!(!snapshot.jobs[0].status.is(ConditionKind::Stuck));
    }
}

#[test]
fn an_acknowledged_checkpoint_that_cannot_be_read_now_stays_the_one_to_resume_from() {
    let mut snapshot = running(2);
    snapshot.jobs[0].suspend = true;
    step(&mut snapshot, at(10));
    let ack = acknowledge(&mut snapshot);
    step(&mut snapshot, at(11));
    snapshot.jobs[0].suspend = false;
    step(&mut snapshot, at(12));
    snapshot.pods[0].state = PodState::Running;
    snapshot.pods[1].state = PodState::Running;
    step(&mut snapshot, at(13));
    let cause = ProgramCause::CheckpointUnavailable("the folder is empty".to_owned());
    let mut now = 14;
    for number in 3..=5 {
        let mut pod = snapshot.pods[0].clone();
        fail(&mut pod, 0, at(now));
        if let PodState::Failed(exit) = &mut pod.state {
            exit.cause = Some(cause.clone());
        }
        snapshot.pods[0] = pod;
        step(&mut snapshot, at(now));
        snapshot.pods.clear();
        let retry = snapshot.jobs[0].status.retry_at.unwrap();
        let plan = decide(&snapshot, retry);
        let next = plan.jobs[0].attempt().unwrap();
        assert_eq!(
            (next.number, next.resume.as_ref()),
            (number, Some(&ack)),
            "the attempt before trained nothing"
        );
        apply(&mut snapshot, &plan, retry);
        for pod in &mut snapshot.pods {
            pod.state = PodState::Running;
        }
        now = retry.as_millis() / 1000 + 1;
        step(&mut snapshot, at(now));
    }
    // What was trained since may have been saved.
    fail(&mut snapshot.pods[0], 0, at(now));
    step(&mut snapshot, at(now));
    snapshot.pods.clear();
    let plan = decide(&snapshot, snapshot.jobs[0].status.retry_at.unwrap());
    assert_eq!(plan.jobs[0].attempt().unwrap().resume, None);
}

#[test]
fn any_other_end_of_an_attempt_begins_the_count_of_unreadable_checkpoints_anew() {
    let mut snapshot = running(1);
    let cause = ProgramCause::CheckpointUnavailable("stale".to_owned());
    let mut now = 12;
    cannot_resume(&mut snapshot, &mut now, &cause);
    fail(&mut snapshot.pods[0], 0, at(now));
    let status = recorded(&decide(&snapshot, at(now)), "train");
    assert_eq!((status.restarts, status.unreadable), (1, 0));
}

#[test]
fn a_job_of_which_no_checkpoint_loads_is_not_tried_again() {
    let mut snapshot = running(1);
    let cause = ProgramCause::NoUsableCheckpoint("tried attempt-1/step-9: torn".to_owned());
    let status = cannot_resume(&mut snapshot, &mut 12, &cause);
    assert_eq!((status.phase, status.restarts), (JobPhase::Failed, 0));
    let failed = &status.conditions[&ConditionKind::Failed];
    assert_eq!(
        (&*failed.reason, &*failed.message),
        ("NoUsableCheckpoint", "tried attempt-1/step-9: torn")
    );
}

#[test]
fn a_damaged_checkpoint_that_was_passed_over_is_a_condition_until_the_next_attempt() {
    let mut snapshot = running(1);
    snapshot.reports.push(CheckpointReport {
        job: snapshot.jobs[0].key.clone(),
        attempt: 1,
        checkpoint: CheckpointRef {
            attempt: 1,
            step: 7,
            digest: "d".to_owned(),
        },
        passed_over: Some("resumed from attempt-1/step-7; attempt-1/step-9: torn".to_owned()),
    });
    step(&mut snapshot, at(5));
    let passed_over = |snapshot: &Snapshot| {
        let conditions = &snapshot.jobs[0].status.conditions;
        let condition = conditions
            .get(&ConditionKind::CheckpointPassedOver)
            .unwrap();
        (condition.holds, condition.message.clone())
    };
    let text = "Attempt 1 resumed from attempt-1/step-7; attempt-1/step-9: torn";
    assert_eq!(passed_over(&snapshot), (true, text.to_owned()));
    assert!(decide(&snapshot, at(6)).is_empty(), "it is said once");
    fail(&mut snapshot.pods[0], 0, at(9));
    step(&mut snapshot, at(9));
    snapshot.pods.clear();
    step(&mut snapshot, at(20));
    assert_eq!(snapshot.jobs[0].status.attempt, 2);
    for pod in &mut snapshot.pods {
        pod.state = PodState::Running;
    }
    // The rendezvous still knows the gang of the attempt before.
    step(&mut snapshot, at(21));
    assert!(!passed_over(&snapshot).0);
}

#[test]
fn after_a_failure_the_newest_checkpoint_that_verifies_is_used() {
    let mut snapshot = running(1);
    let checkpoint = CheckpointRef {
        attempt: 1,
        step: 7,
        digest: "d".to_owned(),
    };
    let job = snapshot.jobs[0].key.clone();
    snapshot.reports.push(CheckpointReport {
        job,
        attempt: 1,
        checkpoint: checkpoint.clone(),
        passed_over: None,
    });
    let plan = decide(&snapshot, at(5));
    assert_eq!(
        recorded(&plan, "train").last_checkpoint,
        Some(checkpoint),
        "an Event for the first one"
    );
    apply(&mut snapshot, &plan, at(5));
    snapshot.reports[0].checkpoint.step = 9;
    assert!(
        decide(&snapshot, at(6)).is_empty(),
        "later ones wait for the next transition"
    );
    fail(&mut snapshot.pods[0], 0, at(9));
    let plan = decide(&snapshot, at(9));
    assert_eq!(recorded(&plan, "train").last_checkpoint.unwrap().step, 9);
    apply(&mut snapshot, &plan, at(9));
    snapshot.pods.clear();
    let plan = decide(&snapshot, at(20));
    let pinned = plan.jobs[0]
        .actions
        .iter()
        .any(|action| matches!(action, Action::CreateAttempt(attempt) if attempt.resume.is_some()));
    assert!(
        !pinned,
        "the program may have saved a newer one that nobody reported"
    );
}
