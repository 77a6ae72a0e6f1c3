//! Jobs that are pinned to one node, to validate it: when they get it, what they leave to others,
//! and that they give it back whatever happens.

use std::time::Duration;

use scheduler::{
    Action, ConditionKind, EndCause, Exit, Job, JobKey, JobKind, JobPhase, PodState, Policy, Ready,
    Sights, Snapshot, WhenBusy, Wish,
};
use sim::{Rng, explore, print_count};
use topology::NodeName;

use crate::build::{acknowledge, at, job, key, nodes};
use crate::decisions::{decide, placed, queue, reason, recorded, step};
use crate::gangs::running;
use crate::life::is_over;
use crate::properties::apply;
use crate::world::{Crash, Deed, Event, Program, World};

pub(crate) fn validation(name: &str, node: &str) -> Job {
    Job {
        key: JobKey {
            kind: JobKind::NodeValidation,
            namespace: "fireflyer-validation".into(),
            ..key(name)
        },
        pin: Some(node.into()),
        class: "".into(),
        procs_per_node: None,
        stall: None,
        max_restarts: 0,
        grace: Duration::from_secs(5),
        ..job(name, 1)
    }
}

/// One that runs on the first of two nodes.
fn validating() -> Snapshot {
    let mut snapshot = queue("a:2", vec![validation("check", "a-000")]);
    step(&mut snapshot, at(0));
    snapshot.pods[0].state = PodState::Running;
    step(&mut snapshot, at(1));
    assert_eq!(snapshot.jobs[0].status.phase, JobPhase::Running);
    snapshot
}

#[test]
fn it_gets_its_node_whatever_class_the_node_has_and_whoever_wants_it_emptied() {
    type Change = fn(&mut Snapshot);
    let changes: [Change; 7] = [
        |_| {},
        |snapshot| snapshot.nodes[0].class = "".into(),
        |snapshot| snapshot.nodes[0].short = Some("7 of 8 nvidia.com/gpu".into()),
        |snapshot| snapshot.nodes[0].suspect_until = Some(at(60)),
        |snapshot| snapshot.nodes[0].quarantine = Some("weekly-1".into()),
        |snapshot| snapshot.nodes[0].wishes = [(Wish::Cordoned, at(0))].into(),
        |snapshot| {
            snapshot.nodes[0].wishes = [(Wish::Tainted("example.com/repair".into()), at(0))].into();
        },
    ];
    for change in changes {
        let mut snapshot = queue("a:2", vec![validation("check", "a-000")]);
        change(&mut snapshot);
        let plan = decide(&snapshot, at(0));
        assert_eq!(placed(&plan), ["check: a-000"], "{:?}", snapshot.nodes[0]);
        let key = |action: &Action| matches!(action, Action::CreateKey { .. });
        assert!(!plan.jobs[0].actions.iter().any(key), "it has no sidecar");
    }
}

#[test]
fn it_waits_for_a_node_that_is_in_use_or_away_and_says_so() {
    let mut snapshot = running(2);
    snapshot.jobs.push(validation("check", "a-001"));
    snapshot.jobs.push(validation("other", "a-009"));
    let plan = decide(&snapshot, at(50));
    assert!(placed(&plan).is_empty());
    assert_eq!(reason(&plan, "check").0, "NodeInUse");
    assert_eq!(reason(&plan, "other").0, "NodeUnknown");

    let mut snapshot = queue("a:2", vec![validation("check", "a-000")]);
    snapshot.nodes[0].ready = Ready::False;
    assert_eq!(reason(&decide(&snapshot, at(0)), "check").0, "NodeNotReady");
    snapshot.nodes[0].ready = Ready::True;
    snapshot.nodes[0].wishes = [(Wish::Deleted, at(0))].into();
    assert_eq!(reason(&decide(&snapshot, at(0)), "check").0, "NodeNotReady");
}

#[test]
fn quarantine_keeps_jobs_away_and_moves_none() {
    let mut snapshot = queue("a:2", vec![job("train", 2)]);
    snapshot.nodes[0].quarantine = Some("weekly-1".into());
    assert!(placed(&decide(&snapshot, at(0))).is_empty());

    let mut snapshot = running(2);
    snapshot.nodes[0].quarantine = Some("weekly-1".into());
    let before = snapshot.clone();
    step(&mut snapshot, at(50));
    assert_eq!(snapshot.jobs, before.jobs);
    assert_eq!(snapshot.pods, before.pods);
}

#[test]
fn one_that_is_next_gets_its_node_before_jobs_that_wait() {
    let next = Job {
        when_busy: WhenBusy::Next,
        ..validation("check", "a-000")
    };
    // Before one that could start, and before one that keeps what is free.
    let snapshot = queue("a:2", vec![next.clone(), job("train", 2)]);
    assert_eq!(placed(&decide(&snapshot, at(0))), ["check: a-000"]);

    // The node of a job stays a node like others: who waits waits for free nodes, not for healthy.
    let mut snapshot = running(2);
    snapshot.jobs.push(next);
    snapshot.jobs.push(job("large", 3));
    let plan = decide(&snapshot, at(50));
    assert!(placed(&plan).is_empty());
    assert_eq!(reason(&plan, "check").0, "NodeInUse");
    assert_eq!(reason(&plan, "large").0, "WaitingForNodes");
    // Its job ends: the validation has it, and nobody else.
    snapshot.jobs.remove(0);
    snapshot.attempts.clear();
    snapshot.pods.clear();
    let mut small = job("small", 2);
    small.created = at(60);
    snapshot.jobs.push(small);
    let plan = decide(&snapshot, at(60));
    assert_eq!(placed(&plan), ["small: a-001 a-002", "check: a-000"]);
}

#[test]
fn one_that_interrupts_asks_the_job_which_comes_back_to_its_nodes() {
    let mut snapshot = running(2);
    snapshot.nodes.truncate(2);
    snapshot.jobs.push(Job {
        when_busy: WhenBusy::Interrupt,
        ..validation("check", "a-000")
    });
    let mut sights = Sights::default();
    let mut look = |snapshot: &mut Snapshot, seconds| {
        for node in &mut snapshot.nodes {
            node.wishes.clear();
        }
        sights.fill_in(snapshot, &Policy::default(), at(seconds));
        decide(snapshot, at(seconds))
    };
    assert!(placed(&look(&mut snapshot, 50)).is_empty());
    let plan = look(&mut snapshot, 110);
    let status = recorded(&plan, "train");
    assert_eq!(status.phase, JobPhase::Interrupting);
    let said = &status.conditions[&ConditionKind::Running];
    assert_eq!(said.reason, "NodeValidation");
    apply(&mut snapshot, &plan, at(110));
    let ack = acknowledge(&mut snapshot);
    let plan = look(&mut snapshot, 111);
    apply(&mut snapshot, &plan, at(111));
    snapshot.pods.clear();
    let plan = look(&mut snapshot, 112);
    assert_eq!(placed(&plan), ["check: a-000"]);
    apply(&mut snapshot, &plan, at(112));
    // The rest of the job's nodes is kept for it, and it charges nothing.
    assert!(placed(&look(&mut snapshot, 113)).is_empty());
    let pods = |job: &str| {
        snapshot
            .pods
            .iter()
            .filter(|pod| &*pod.job.name == job)
            .count()
    };
    assert_eq!((pods("check"), pods("train")), (1, 0));
    let status = &snapshot.jobs[0].status;
    assert_eq!(status.last_checkpoint, Some(ack));
    assert_eq!((status.restarts, status.replans), (0, 0));
    snapshot.jobs.remove(1);
    snapshot
        .attempts
        .retain(|attempt| &*attempt.job.name == "train");
    snapshot.pods.clear();
    assert_eq!(placed(&look(&mut snapshot, 200)), ["train: a-000 a-001"]);
}

#[test]
fn one_that_is_held_has_its_node_and_gets_its_pod_when_that_is_over() {
    let mut held = validation("check", "a-000");
    held.hold = Some(Duration::from_secs(120));
    let mut snapshot = queue("a:1", vec![held, validation("other", "a-000")]);
    let plan = decide(&snapshot, at(0));
    assert_eq!(placed(&plan), ["check: a-000"]);
    apply(&mut snapshot, &plan, at(0));
    let plan = decide(&snapshot, at(1));
    assert!(plan.wake_at.is_some_and(|wake| wake <= at(120)));
    let said = &recorded(&plan, "check").conditions[&ConditionKind::Running];
    assert_eq!(said.reason, "Held");
    assert_eq!(reason(&plan, "other").0, "NodeInUse");
    apply(&mut snapshot, &plan, at(1));
    assert!(snapshot.pods.is_empty());
    // By its time, or because what it waited for is known.
    let mut known = snapshot.clone();
    known.jobs[0].hold = None;
    for (mut snapshot, now) in [(snapshot, 120), (known, 5)] {
        step(&mut snapshot, at(now));
        assert_eq!(snapshot.pods.len(), 1);
    }
}

#[test]
fn two_of_one_node_run_one_after_the_other() {
    let both = vec![validation("one", "a-000"), validation("two", "a-000")];
    let plan = decide(&queue("a:2", both), at(0));
    assert_eq!(placed(&plan), ["one: a-000"]);
    assert_eq!(reason(&plan, "two").0, "NodeReserved");
}

#[test]
fn a_job_that_can_start_or_waits_for_the_zone_goes_first() {
    let mut snapshot = queue("a:2", vec![validation("check", "a-000"), job("train", 2)]);
    let plan = decide(&snapshot, at(0));
    assert_eq!(placed(&plan), ["train: a-000 a-001"]);

    // One that needs more than is free keeps what is free.
    snapshot = queue("a:3", vec![job("busy", 2)]);
    step(&mut snapshot, at(0));
    snapshot.jobs.push(job("large", 3));
    snapshot.jobs.push(validation("check", "a-002"));
    let plan = decide(&snapshot, at(1));
    assert!(placed(&plan).is_empty());
    assert_eq!(reason(&plan, "check").0, "NodeReserved");
    // What it cannot use anyway may be validated.
    snapshot.nodes[2].short = Some("7 of 8 nvidia.com/gpu".into());
    assert_eq!(placed(&decide(&snapshot, at(1))), ["check: a-002"]);
}

#[test]
fn nodes_that_are_promised_are_not_taken() {
    let mut snapshot = running(2);
    snapshot.pods[0].state = PodState::Refused("Evicted".to_owned());
    for pod in &mut snapshot.pods {
        pod.terminal = true;
    }
    step(&mut snapshot, at(50));
    assert!(snapshot.jobs[0].status.promise.is_some());
    snapshot.jobs.push(validation("check", "a-001"));
    snapshot.jobs[0].status.retry_at = Some(at(80));
    let plan = decide(&snapshot, at(52));
    assert!(placed(&plan).is_empty(), "{plan:#?}");
}

#[test]
fn it_is_tried_once_and_gives_its_node_back() {
    type End = fn(&mut Snapshot);
    let ends: [(End, &str); 4] = [
        (
            |snapshot| snapshot.pods[0].state = PodState::Failed(Exit::default()),
            EndCause::ProgramFailed.as_str(),
        ),
        (
            |snapshot| {
                snapshot.pods[0].state = PodState::Refused("DeadlineExceeded".to_owned());
            },
            EndCause::PodEnded.as_str(),
        ),
        (
            |snapshot| snapshot.pods[0].delete_by = Some(at(7)),
            EndCause::PodEnded.as_str(),
        ),
        (
            |snapshot| snapshot.nodes[0].ready = Ready::Unknown,
            EndCause::NodeLost.as_str(),
        ),
    ];
    for (end, reason) in ends {
        let mut snapshot = validating();
        end(&mut snapshot);
        // Past the time in which a new leader waits for sidecars.
        let plan = decide(&snapshot, at(60));
        let status = recorded(&plan, "check");
        assert_eq!(status.phase, JobPhase::Failed);
        assert_eq!(status.conditions[&ConditionKind::Failed].reason, reason);
        assert!(status.avoided.is_empty() && status.promise.is_none());
        assert_eq!(status.attempt, 1);
    }
}

#[test]
fn a_cordon_does_not_end_it() {
    let mut snapshot = validating();
    snapshot.nodes[0].wishes = [(Wish::Cordoned, at(0))].into();
    assert!(decide(&snapshot, at(1000)).is_empty());
}

/// Jobs and validations in a cluster whose nodes die, are cordoned and blink, under leaders that
/// are killed: at the end nobody holds anything.
// VALID-1
#[test]
fn no_node_stays_reserved() {
    let mut ended = 0;
    let mut failed = 0;
    explore(300, &[30127965979279710], |rng| {
        let mut world = World::new(rng, nodes("a:3 b:3"));
        let mut crashes: Vec<u64> = (0..rng.range(0..4)).map(|_| rng.range(1..60)).collect();
        crashes.sort_unstable();
        world.operator.crash = Crash {
            after: crashes,
            vacancy: Duration::from_secs(rng.range(0..40)),
            returns: rng
                .chance(1, 3)
                .then(|| Duration::from_secs(rng.range(1..10))),
        };
        for index in 0..rng.range(1..4) {
            let name = format!("train-{index}");
            let count = u32::try_from(rng.range(1..4)).unwrap();
            let create = Deed::Create(
                Box::new(job(&name, count)),
                Program::trains(rng.range(5..90)),
            );
            world.after(rng.range(0..60), create);
        }
        for index in 0..rng.range(1..6) {
            let one = Job {
                when_busy: *rng.pick(&[WhenBusy::Wait, WhenBusy::Next, WhenBusy::Interrupt]),
                hold: rng
                    .chance(1, 3)
                    .then(|| Duration::from_secs(rng.range(1..120))),
                ..validation(&format!("check-{index}"), &some_node(rng))
            };
            let key = one.key.clone();
            let mut program = Program::trains(rng.range(2..60));
            if rng.chance(1, 5) {
                program.faults = [(1000, 0)].into();
            }
            world.after(rng.range(0..60), Deed::Create(Box::new(one), program));
            if rng.chance(1, 8) {
                world.after(rng.range(5..90), Deed::Delete(key));
            }
        }
        for _ in 0..rng.range(0..4) {
            let node = some_node(rng).as_str().into();
            match rng.range(0..3) {
                0 => world.after(rng.range(1..90), Deed::Cordon(node, true)),
                1 => {
                    let dies = Duration::from_secs(rng.range(1..90));
                    let back = dies + Duration::from_secs(rng.range(50..300));
                    world.queue.at(dies, Event::Die(node.clone()));
                    world.queue.at(back, Event::Revive(node));
                }
                _ => {
                    let blinks = Duration::from_secs(rng.range(1..90));
                    let ready = |ready| Event::Report(node.clone(), ready);
                    world.queue.at(blinks, ready(Ready::False));
                    world.queue.at(blinks * 2, ready(Ready::True));
                }
            }
        }
        // By then everybody has created what they want.
        let created = Duration::from_secs(120);
        world.queue.at(created, Event::Listen);
        world.run_until("all is over", |world| {
            world.queue.now() >= created && is_over(world)
        });
        world.settle();
        for stored in world.jobs.values().filter(|one| one.job.pin.is_some()) {
            let status = &stored.job.status;
            assert!(status.replans <= 1, "{}", world.describe());
            ended += 1;
            failed += u64::from(status.phase == JobPhase::Failed);
        }
    });
    assert!(failed > 0 && failed < ended, "{failed} of {ended} failed");
    print_count("validations", ended);
}

/// Validations beside jobs, on nodes that blink, are cordoned or have no agent at that time; some
/// take longer than a promise lasts by itself.
pub(crate) fn validate(rng: &mut Rng, world: &mut World) {
    let names: Vec<NodeName> = world.machines.keys().cloned().collect();
    for index in 0..rng.range(0..6) {
        let node = rng.pick(&names).clone();
        let run = Job {
            when_busy: *rng.pick(&[WhenBusy::Wait, WhenBusy::Next, WhenBusy::Interrupt]),
            ..validation(&format!("check-{index}"), node.as_str())
        };
        let from = rng.range(0..500);
        let mut program = Program::trains(*rng.pick(&[5, 90, 400, 2000]));
        if rng.chance(1, 6) {
            program.faults = [(1000, 0)].into();
        }
        if rng.chance(1, 8) {
            world.after(from + rng.range(1..400), Deed::Delete(run.key.clone()));
        }
        world.after(from, Deed::Create(Box::new(run), program));
        let start = from.saturating_sub(rng.range(0..60));
        let end = start + rng.range(1..300);
        match rng.range(0..5) {
            0 => {
                let ready = *rng.pick(&[Ready::False, Ready::Unknown]);
                let mut report = |second, ready| {
                    let event = Event::Report(node.clone(), ready);
                    world.queue.at(Duration::from_secs(second), event);
                };
                report(start, ready);
                report(end, Ready::True);
            }
            1 => {
                world.after(start, Deed::Cordon(node.clone(), true));
                world.after(end, Deed::Cordon(node, false));
            }
            2 => {
                world.after(start, Deed::Agent(node.clone(), false));
                world.after(end, Deed::Agent(node, true));
            }
            _ => {}
        }
    }
}

fn some_node(rng: &mut Rng) -> String {
    let zone = if rng.chance(1, 2) { "a" } else { "b" };
    format!("{zone}-{:03}", rng.range(0..3))
}
