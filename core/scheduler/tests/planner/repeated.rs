//! What happens again and again: bad nodes, missing images, a program that fails now and then.

use std::time::Duration;

use scheduler::{
    Avoided, ConditionKind, EndCause, Exit, Job, JobKey, JobPhase, PodState, Problem, Ready,
    Snapshot,
};
use sim::Rng;
use topology::NodeName;

use crate::build::{at, job, key, nodes};
use crate::decisions::{decide, placed, queue, recorded, step};
use crate::gangs::train;
use crate::world::{Crash, Event, Program, World};

fn job_of(namespace: &str, name: &str, nodes: u32) -> Job {
    let mut job = job(name, nodes);
    job.key.namespace = namespace.into();
    job
}

fn attempt_of(world: &World, key: &JobKey) -> u32 {
    world.jobs[key].job.status.attempt
}

fn runs(world: &World, key: &JobKey) -> bool {
    world.jobs[key].job.status.phase == JobPhase::Running
}

#[test]
fn two_bad_nodes_cost_a_job_two_attempts_and_the_third_namespace_none() {
    let mut world = World::new(&mut Rng::new(1), nodes("a:40"));
    // Jobs of one node go to the first ones by name.
    for name in ["a-000", "a-001"] {
        world
            .machines
            .get_mut(&NodeName::from(name))
            .unwrap()
            .refuses = u32::MAX;
    }
    for (namespace, attempts) in [("one", 3), ("two", 3), ("three", 1)] {
        let one = job_of(namespace, "train", 1);
        let key = one.key.clone();
        world.submit(one, Program::trains(7200));
        world.run_until("it trains", |world| runs(world, &key));
        assert_eq!(attempt_of(&world, &key), attempts, "{namespace}");
    }
}

fn bad(cause: EndCause, until: u64) -> Avoided {
    Avoided {
        until: at(until),
        cause,
        count: 1,
    }
}

/// Jobs of two namespaces failed on these nodes.
fn failed_on(cause: EndCause, names: &[&str], namespaces: [&str; 2]) -> Snapshot {
    let mut snapshot = queue("a:5", Vec::new());
    for namespace in namespaces {
        let mut old = job_of(namespace, &format!("old-{namespace}"), 9);
        for name in names {
            let avoided = bad(cause, 1000);
            old.status.avoided.insert((*name).into(), avoided);
        }
        snapshot.jobs.push(old);
    }
    snapshot
}

#[test]
fn only_what_users_cannot_bring_about_makes_a_node_suspect_for_all() {
    for (cause, first) in [
        (EndCause::NodeRefused, "a-001"),
        (EndCause::NodeLost, "a-001"),
        (EndCause::ProgramFailed, "a-000"),
        (EndCause::Blocked, "a-000"),
        (EndCause::NotBound, "a-000"),
        (EndCause::PodEnded, "a-000"),
        (EndCause::Silent, "a-000"),
    ] {
        let mut snapshot = failed_on(cause, &["a-000"], ["one", "two"]);
        snapshot.jobs.push(job("train", 1));
        let expected = format!("train: {first}");
        assert_eq!(placed(&decide(&snapshot, at(9))), [expected], "{cause:?}");
        assert_eq!(placed(&decide(&snapshot, at(1000))), ["train: a-000"]);
    }
    let mut same = failed_on(EndCause::NodeRefused, &["a-000"], ["one", "one"]);
    same.jobs.push(job("train", 1));
    assert_eq!(placed(&decide(&same, at(9))), ["train: a-000"]);
}

#[test]
fn one_node_in_twenty_may_be_suspect_and_a_job_that_needs_all_gets_all() {
    let mut snapshot = failed_on(EndCause::NodeLost, &["a-000", "a-001"], ["one", "two"]);
    snapshot.jobs.push(job("train", 4));
    let expected = "train: a-001 a-002 a-003 a-004";
    assert_eq!(placed(&decide(&snapshot, at(9))), [expected]);
    snapshot.jobs[2].nodes = 5;
    assert_eq!(placed(&decide(&snapshot, at(9))).len(), 1);
}

#[test]
fn a_job_remembers_the_last_sixty_four_bad_nodes() {
    let mut snapshot = queue("a:1", vec![job("train", 1)]);
    train(&mut snapshot);
    for index in 0..64_u64 {
        let avoided = bad(EndCause::NotBound, 5000 + index);
        let name = format!("b-{index:03}").as_str().into();
        snapshot.jobs[0].status.avoided.insert(name, avoided);
    }
    snapshot.nodes[0].ready = Ready::Unknown;
    let status = recorded(&decide(&snapshot, at(9)), "train");
    assert_eq!(status.avoided.len(), 64);
    assert!(!status.avoided.contains_key(&NodeName::from("b-000")));
    assert_eq!(
        status.avoided[&NodeName::from("a-000")],
        bad(EndCause::NodeLost, 3609)
    );
}

#[test]
fn a_job_that_never_runs_is_stuck_from_its_fifth_attempt_until_it_runs() {
    let mut snapshot = queue("a:1", vec![job("train", 1)]);
    let mut pauses = Vec::new();
    let mut now = 0;
    for round in 1..=12 {
        step(&mut snapshot, at(now));
        for pod in &mut snapshot.pods {
            pod.state = PodState::Blocked(Problem {
                reason: "ImageError",
                message: "image nowhere/none:1 of container trainer cannot be pulled".to_owned(),
            });
        }
        let patience = if round == 1 { 600 } else { 60 };
        step(&mut snapshot, at(now + patience - 1));
        assert_eq!(snapshot.jobs[0].status.refusals, round - 1);
        now += patience;
        step(&mut snapshot, at(now));
        let status = &snapshot.jobs[0].status;
        assert_eq!((status.phase, status.restarts), (JobPhase::Restarting, 0));
        assert_eq!(status.promise, None);
        assert_eq!(status.is(ConditionKind::Stuck), round >= 5, "{round}");
        let retry = status.retry_at.unwrap().as_millis() / 1000;
        pauses.push((retry - now) / 60);
        snapshot.pods.clear();
        now = retry;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 240, 240, 240, 240]);
    let stuck = &snapshot.jobs[0].status.conditions[&ConditionKind::Stuck];
    assert_eq!(stuck.reason, "Blocked");
    assert!(
        stuck.message.contains("nowhere/none:1") && stuck.message.contains("create it again"),
        "{}",
        stuck.message
    );
    step(&mut snapshot, at(now));
    snapshot.pods[0].state = PodState::Running;
    step(&mut snapshot, at(now + 1));
    let status = &snapshot.jobs[0].status;
    assert!(!status.is(ConditionKind::Stuck));
    assert_eq!((status.refusals, status.replans), (0, 0));
}

#[test]
fn a_misspelt_image_holds_its_nodes_for_a_fiftieth_of_a_day() {
    let mut world = World::new(&mut Rng::new(3), nodes("a:4"));
    let program = Program {
        blocked: true,
        ..Program::trains(60)
    };
    world.submit(job("train", 3), program);
    let day = Duration::from_secs(24 * 3600);
    let mut held = Duration::ZERO;
    while world.queue.now() < day {
        let before = world.queue.now();
        let phase = world.jobs[&key("train")].job.status.phase;
        let holds = phase.holds_nodes() || !world.pods.is_empty();
        world.advance(1);
        held += (world.queue.now() - before) * u32::from(holds);
    }
    assert!(held <= day / 50, "{held:?}");
    // The registry may be mended: it still tries.
    assert!(
        attempt_of(&world, &key("train")) >= 12,
        "{}",
        world.describe()
    );
}

#[test]
fn failures_of_the_last_day_count() {
    let mut snapshot = queue("a:2", vec![job("train", 1)]);
    snapshot.jobs[0].max_restarts = 2;
    let hour = 3600;
    let mut fail = |hours: u64| {
        let now = at(hours * hour);
        step(&mut snapshot, now);
        for pod in &mut snapshot.pods {
            pod.state = PodState::Running;
        }
        step(&mut snapshot, now);
        for pod in &mut snapshot.pods {
            pod.state = PodState::Failed(Exit::default());
            pod.terminal = true;
        }
        step(&mut snapshot, now);
        snapshot.pods.clear();
        let status = &snapshot.jobs[0].status;
        (status.phase, status.restarts)
    };
    assert_eq!(fail(0), (JobPhase::Restarting, 1));
    assert_eq!(fail(20), (JobPhase::Restarting, 2));
    // The first is a day ago.
    assert_eq!(fail(24), (JobPhase::Restarting, 2));
    assert_eq!(fail(50), (JobPhase::Restarting, 1));
    assert_eq!(fail(51), (JobPhase::Restarting, 2));
    assert_eq!(fail(52), (JobPhase::Failed, 2));
}

/// How a job loses its nodes.
#[derive(Clone, Copy)]
enum Strike {
    /// A rank fails.
    Program,
    /// A machine restarts.
    Machine,
}

fn places(world: &World) -> Vec<NodeName> {
    let all = world
        .pods
        .iter()
        .filter(|((job, ..), _)| *job == key("big"));
    all.map(|(_, running)| running.pod.node.clone()).collect()
}

/// A job of five of six nodes, and behind it so many of one node that run for hours. Returns how
/// long it is without nodes that train. It always comes back to its own.
fn struck_in_a_crowd(seed: u64, small: u32, strike: Strike, crash: Crash) -> (World, Duration) {
    let mut world = World::new(&mut Rng::new(seed), nodes("a:6"));
    world.submit(job("big", 5), Program::trains(7200));
    world.run_until("it trains", |world| runs(world, &key("big")));
    for index in 0..small {
        let mut one = job(&format!("small-{index:04}"), 1);
        one.created = at(100 + u64::from(index));
        world.submit(one, Program::trains(36_000));
    }
    world.run_until("a small one has nodes", |world| world.pods.len() == 6);
    world.operator.crash = crash;
    let before = places(&world);
    let now = world.queue.now();
    match strike {
        Strike::Program => world.queue.at(now, Event::Fail((key("big"), 1, 2))),
        Strike::Machine => {
            let node = before[2].clone();
            world.queue.at(now, Event::Die(node.clone()));
            let back = now + Duration::from_secs(45);
            world.queue.at(back, Event::Revive(node));
        }
    }
    world.run_until("it lost its nodes", |world| !runs(world, &key("big")));
    let lost = world.queue.now();
    world.run_until("it trains again", |world| runs(world, &key("big")));
    assert_eq!(places(&world), before, "{}", world.describe());
    let took = world.queue.now() - lost;
    (world, took)
}

#[test]
fn a_big_job_that_restarts_is_back_on_its_nodes_before_a_hundred_small_ones() {
    // What died is suspect for a minute, and there is no other node.
    for (strike, seconds) in [(Strike::Program, 60), (Strike::Machine, 75)] {
        let (world, took) = struck_in_a_crowd(5, 100, strike, Crash::default());
        assert!(took <= Duration::from_secs(seconds), "{took:?}");
        assert_eq!(attempt_of(&world, &key("big")), 2);
    }
}

#[test]
fn a_new_leader_honours_what_the_old_one_promised() {
    for (seed, strike) in [(1, Strike::Program), (2, Strike::Machine)] {
        let (world, _) = struck_in_a_crowd(seed, 9, strike, Crash::default());
        for after in world.writes - 16..world.writes {
            let crash = Crash {
                after: vec![after, after + 2],
                vacancy: Duration::from_secs(5),
                returns: None,
            };
            struck_in_a_crowd(seed, 9, strike, crash);
        }
    }
}
