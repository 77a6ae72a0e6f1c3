//! Many jobs at once under random trouble: all end, nothing is booked twice, nothing is left over.

use std::time::Duration;

use scheduler::{ConditionKind, JobPhase, ZonePolicy};
use sim::{Rng, explore, for_each_seed};
use topology::NodeName;

use crate::build::{at, job, key, nodes};
use crate::validation::validate;
use crate::world::{Crash, Deed, Event, Program, World};

fn program(rng: &mut Rng, longest_seconds: u64) -> Program {
    let mut program = Program::trains(rng.range(1..longest_seconds));
    for _ in 0..rng.range(0..3) {
        let rank = u32::try_from(rng.range(0..3)).unwrap();
        program.faults.push_back((rng.range(0..60_000), rank));
    }
    program.saves = rng.chance(4, 5);
    program.survivors_hang = rng.chance(1, 4);
    program.straggles = straggles(rng);
    program
}

/// Ranks end at once, or one after the other.
pub(crate) fn straggles(rng: &mut Rng) -> u64 {
    *rng.pick(&[0, 3000, 60_000, 200_000])
}

/// Pods that have ended are collected, or rewritten by their kubelets.
pub(crate) fn collect(rng: &mut Rng, world: &mut World) {
    for _ in 0..rng.range(0..30) {
        let most = rng.range(1..6).try_into().unwrap();
        world.after(rng.range(1..900), Deed::CollectPods(most));
    }
    for _ in 0..rng.range(0..4) {
        world.after(rng.range(1..900), Deed::Rewrite);
    }
}

/// Init containers that take so many seconds at most.
pub(crate) fn steps(rng: &mut Rng, longest_seconds: u64) -> Vec<u64> {
    let count = rng.range(0..4);
    let mut steps = (0..count).map(|_| rng.range(1..longest_seconds * 1000));
    steps.by_ref().collect()
}

pub(crate) fn is_over(world: &World) -> bool {
    let mut jobs = world.jobs.values();
    world.to_come == 0 && jobs.all(|stored| stored.job.status.phase.is_terminal())
}

/// A small cluster in two zones where everything goes wrong.
pub(crate) fn trouble(rng: &mut Rng) -> World {
    let (a, b) = (rng.range(2..7), rng.range(1..6));
    let mut world = World::new(rng, nodes(&format!("a:{a} b:{b}")));
    let names: Vec<NodeName> = world.machines.keys().cloned().collect();
    world.operator.crash = Crash {
        after: (0..rng.range(0..12)).map(|_| rng.range(1..300)).collect(),
        vacancy: Duration::from_millis(rng.range(0..20_000)),
        returns: rng
            .chance(1, 2)
            .then(|| Duration::from_millis(rng.range(0..15_000))),
    };
    // Patience is as much shorter as preparations are.
    let prepares = rng.chance(1, 3);
    if prepares {
        world.policy.start_patience = Duration::from_secs(120);
        world.policy.start_reported_after = Duration::from_secs(rng.range(1..100));
    }
    for index in 0..rng.range(3..12) {
        let name = format!("job-{index:03}");
        let largest = a.max(b).max(if rng.chance(1, 3) { a + b } else { 0 });
        let mut one = job(&name, u32::try_from(rng.range(1..largest + 1)).unwrap());
        one.created = at(index);
        one.max_restarts = 9;
        one.shrinks = rng.chance(1, 2);
        if u64::from(one.nodes) <= a.max(b) && rng.chance(1, 4) {
            one.zone_policy = ZonePolicy::Single;
        }
        let mut program = program(rng, 200);
        if prepares {
            program.init = steps(rng, 90);
        }
        if rng.chance(1, 4) {
            one.stall = Some(Duration::from_secs(60));
            program.hangs.push_back(rng.range(0..100_000));
        }
        world.submit(one, program);
        if rng.chance(1, 3) {
            let from = rng.range(0..300);
            world.after(from, Deed::Suspend(key(&name), true));
            world.after(from + rng.range(0..100), Deed::Suspend(key(&name), false));
        }
        if rng.chance(1, 6) {
            let delete = if rng.chance(1, 2) {
                Deed::Delete(key(&name))
            } else {
                Deed::DeleteForeground(key(&name))
            };
            world.after(rng.range(0..600), delete);
        }
        if rng.chance(1, 4) {
            world.after(rng.range(0..600), Deed::Evict(key(&name), 0));
        }
    }
    for name in names {
        if rng.chance(1, 3) {
            let from = rng.range(0..600);
            let to = from + rng.range(1..200);
            world
                .queue
                .at(Duration::from_secs(from), Event::Die(name.clone()));
            world
                .queue
                .at(Duration::from_secs(to), Event::Revive(name.clone()));
        }
        if rng.chance(1, 4) {
            let from = rng.range(0..600);
            world.after(from, Deed::Cordon(name.clone(), true));
            world.after(from + rng.range(1..200), Deed::Cordon(name.clone(), false));
        }
        if rng.chance(1, 4) {
            let from = rng.range(0..600);
            world.after(from, Deed::Taint(name.clone(), true));
            world.after(from + rng.range(1..200), Deed::Taint(name.clone(), false));
        }
        let machine = world.machines.get_mut(&name).unwrap();
        machine.refuses = u32::try_from(rng.range(0..2)).unwrap();
        if prepares {
            machine.pull = rng.range(0..100_000);
        }
    }
    collect(rng, &mut world);
    world.operator.is_alone = rng.chance(1, 3);
    if rng.chance(1, 4) {
        let from = rng.range(0..400);
        let length = *rng.pick(&[60, 600, 3 * 3600]);
        world.after(from, Deed::Storage(true));
        world.after(from + rng.range(1..length + 1), Deed::Storage(false));
    }
    validate(rng, &mut world);
    world
}

#[test]
fn all_jobs_end_whatever_goes_wrong() {
    explore(400, &[30127965794730250], |rng| {
        let mut world = trouble(rng);
        world.run_until("every job ended", is_over);
        world.settle();
        for stored in world.jobs.values() {
            let last = stored.job.status.last_checkpoint.as_ref();
            let last = last.map(|last| (last.attempt, last.step));
            assert!(last >= stored.acked, "{}", world.describe());
            // Storage comes back.
            let failed = stored.job.status.conditions.get(&ConditionKind::Failed);
            let gave_up = failed.is_some_and(|failed| failed.reason == "NoUsableCheckpoint");
            assert!(!gave_up, "{}", world.describe());
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || {
        let mut world = trouble(&mut Rng::new(7));
        world.run_until("every job ended", is_over);
        world.describe()
    };
    assert_eq!(run(), run());
}

#[test]
fn a_hundred_jobs_share_two_hundred_nodes() {
    for_each_seed(1, |rng| {
        let mut world = World::new(rng, nodes("a:100 b:100"));
        for index in 0..100 {
            let size = *rng.pick(&[1, 1, 2, 4, 8, 16, 32, 64, 90, 120]);
            let mut one = job(&format!("job-{index:03}"), size);
            one.created = at(index / 10);
            world.submit(one, Program::trains(rng.range(30..600)));
        }
        world.run_until("every job ended", is_over);
        world.settle();
        let pods = world.pods.len() as u64;
        for stored in world.jobs.values() {
            assert_eq!(
                stored.job.status.phase,
                JobPhase::Succeeded,
                "{}",
                world.describe()
            );
        }
        // Each pod is created once. The rest: finalizer on and off, ConfigMap, rank 0 stripped, and
        // a record for each of waiting (at most for two reasons), Assigned, Starting, Running and
        // Succeeded.
        assert!(
            world.writes <= pods + 100 * 12,
            "{} writes for {pods} pods",
            world.writes
        );
    });
}

#[test]
fn a_big_job_is_not_starved_by_a_stream_of_small_ones() {
    for_each_seed(3, |rng| {
        let mut world = World::new(rng, nodes("a:8 b:4"));
        // The last comes after the moment at which the big one has to have ended.
        for index in 0..150 {
            let mut small = job(&format!("small-{index:03}"), 1);
            small.created = at(index * 4);
            let program = Program::trains(rng.range(30..90));
            world.run_until("time passes", |world| world.now() >= at(index * 4));
            world.submit(small, program);
            if index == 20 {
                let mut big = job("big", 8);
                big.created = at(index * 4 + 1);
                world.submit(big, Program::trains(60));
            }
            // Something always happens, so that time passes.
            world
                .queue
                .at(Duration::from_secs(index * 4 + 4), Event::Collect);
        }
        let big = &world.jobs[&key("big")].job.status;
        assert_eq!(big.phase, JobPhase::Succeeded, "{}", world.describe());
        let ended = big.finished_at.unwrap();
        // It waits at most for the longest small job of the queue before it.
        assert!(ended <= at(81 + 90 * 3 + 60), "it ended only at {ended}");
    });
}

#[test]
fn a_job_that_restarts_before_a_thousand_small_ones_has_its_place_within_a_minute() {
    for dies in [false, true] {
        let mut world = World::new(&mut Rng::new(u64::from(dies)), nodes("a:12 b:4"));
        let mut program = Program::trains(2000);
        if !dies {
            program.faults.push_back((10_000, 0));
        }
        world.submit(job("big", 10), program);
        let trains = |world: &World, attempt| {
            let status = &world.jobs[&key("big")].job.status;
            (status.phase, status.attempt) == (JobPhase::Running, attempt)
        };
        world.run_until("it trains", |world| trains(world, 1));
        for index in 0..1000 {
            let mut small = job(&format!("small-{index:04}"), 1);
            small.created = at(1);
            world.submit(small, Program::trains(30 + index));
        }
        let before = world.attempts[&(key("big"), 1)].nodes.clone();
        if dies {
            let second = Duration::from_secs(15);
            world.queue.at(second, Event::Die(before[0].clone()));
            world.queue.at(second * 3, Event::Revive(before[0].clone()));
        }
        world.run_until("it restarts", |world| !trains(world, 1));
        let limit = world.now() + Duration::from_secs(60);
        world.run_until("it trains again", |world| trains(world, 2));
        let after = &world.attempts[&(key("big"), 2)].nodes;
        let kept = world.now() <= limit || *after == before;
        assert!(kept, "dies: {dies}, from {before:?} to {after:?}");
    }
}
