//! Clusters whose nodes blink while their programs train: no healthy gang is ended by it.

use std::time::Duration;

use scheduler::{JobKey, JobPhase, Ready};
use sim::{Rng, explore, for_each_seed};
use topology::NodeName;

use crate::build::{job, key, nodes};
use crate::crowd::{collect, is_over, steps, straggles};
use crate::stale::late;
use crate::validation::validate;
use crate::world::{Clocks, Crash, Deed, Event, Program, World};

/// Two jobs that train for some minutes, and nothing that could disturb them.
pub(crate) fn healthy(rng: &mut Rng) -> World {
    let mut world = World::new(rng, nodes("a:5 b:4"));
    for (name, size) in [("one", rng.range(1..5)), ("two", rng.range(1..5))] {
        let mut one = job(name, u32::try_from(size).unwrap());
        one.shrinks = rng.chance(1, 3);
        let mut program = Program::trains(rng.range(200..500));
        program.straggles = straggles(rng);
        world.submit(one, program);
    }
    collect(rng, &mut world);
    let ten = Duration::from_secs(600);
    world.clocks = match rng.range(0..3) {
        0 => Clocks::default(),
        1 => Clocks {
            operator: ten,
            cluster: Duration::ZERO,
        },
        _ => Clocks {
            operator: Duration::ZERO,
            cluster: ten,
        },
    };
    world
}

fn takeovers(rng: &mut Rng) -> Crash {
    Crash {
        after: (0..rng.range(0..4)).map(|_| rng.range(20..60)).collect(),
        vacancy: Duration::from_millis(rng.range(0..60_000)),
        returns: None,
    }
}

/// Every job has ended well in its first attempt.
pub(crate) fn undisturbed(world: &World) {
    for stored in world.jobs.values() {
        let status = &stored.job.status;
        let fate = (status.phase, status.attempt, status.restarts);
        assert_eq!(fate, (JobPhase::Succeeded, 1, 0), "{}", world.describe());
    }
}

/// Some programs have init containers that take hours, and some machines an image to get.
fn prepare(rng: &mut Rng, world: &mut World) {
    for stored in world.jobs.values_mut() {
        stored.program.init = steps(rng, 115 * 60);
    }
    for machine in world.machines.values_mut() {
        if rng.chance(1, 2) {
            machine.pull = rng.range(0..115 * 60_000);
        }
    }
}

/// Nodes stop being Ready for a while, one by one or all at once, though everything on them lives.
fn blink(rng: &mut Rng, world: &mut World) {
    let names: Vec<NodeName> = world.machines.keys().cloned().collect();
    let mut report = |name: &NodeName, seconds: u64, ready| {
        let event = Event::Report(name.clone(), ready);
        world.queue.at(Duration::from_secs(seconds), event);
    };
    for name in &names {
        for _ in 0..rng.range(0..4) {
            let from = rng.range(30..500);
            report(name, from, Ready::False);
            report(name, from + rng.range(1..30), Ready::True);
        }
    }
    for name in &names {
        if rng.chance(1, 3) {
            let from = rng.range(30..500);
            let mut at = |seconds: u64, tainted| {
                let event = Event::Do(Deed::Taint(name.clone(), tainted));
                world.queue.at(Duration::from_secs(seconds), event);
            };
            at(from, true);
            at(from + rng.range(1..400), false);
        }
    }
    let mut report = |name: &NodeName, seconds: u64, ready| {
        let event = Event::Report(name.clone(), ready);
        world.queue.at(Duration::from_secs(seconds), event);
    };
    if rng.chance(1, 2) {
        let from = rng.range(30..300);
        let to = from + rng.range(1..400);
        for name in &names {
            report(name, from, Ready::Unknown);
            report(name, to, Ready::True);
        }
    }
}

#[test]
fn no_gang_that_trains_is_ended_because_nodes_blink() {
    for_each_seed(500, |rng| {
        let mut world = healthy(rng);
        world.run_until("all train", |world| {
            let trains = |phase| phase == JobPhase::Running;
            world
                .jobs
                .values()
                .all(|stored| trains(stored.job.status.phase))
        });
        world.operator.crash = takeovers(rng);
        blink(rng, &mut world);
        world.run_until("every job ended", is_over);
        world.settle();
        undisturbed(&world);
    });
}

/// Init containers and pulls of hours, under leaders that follow each other, while nodes blink and
/// agents keep new pods away: each gang trains in its first attempt.
#[test]
fn a_gang_that_prepares_for_hours_is_not_ended_whatever_blinks() {
    explore(400, &[], |rng| {
        let mut world = healthy(rng);
        prepare(rng, &mut world);
        world.run_until("all have joined", |world| {
            let joined = world.runs.values().filter(|run| run.joined);
            joined.count() == world.jobs.len()
        });
        world.operator.crash = takeovers(rng);
        blink(rng, &mut world);
        world.run_until("every job ended", is_over);
        world.settle();
        undisturbed(&world);
    });
}

/// Real losses, cordons, Nodes that are deleted and pods that a kubelet does not admit.
fn lose(rng: &mut Rng, world: &mut World) {
    let names: Vec<NodeName> = world.machines.keys().cloned().collect();
    for name in names {
        let from = rng.range(0..500);
        match rng.range(0..9) {
            0 => {
                let to = from + rng.range(1..200);
                let mut at = |seconds, event| {
                    world.queue.at(Duration::from_secs(seconds), event);
                };
                at(from, Event::Die(name.clone()));
                at(to, Event::Revive(name));
            }
            1 => {
                world.after(from, Deed::Cordon(name.clone(), true));
                world.after(from + rng.range(1..300), Deed::Cordon(name, false));
            }
            2 => world.after(from, Deed::DeleteNode(name)),
            3 => {
                world.after(from, Deed::Taint(name.clone(), true));
                world.after(from + rng.range(1..300), Deed::Taint(name, false));
            }
            4 => {
                let machine = world.machines.get_mut(&name).unwrap();
                machine.refuses = 1;
            }
            _ => {}
        }
    }
}

/// The first job is deleted, and another is created under its name.
fn recreate(rng: &mut Rng, world: &mut World) -> JobKey {
    let mut again = world.jobs[&key("one")].job.clone();
    again.key = JobKey {
        uid: "uid-one-again".into(),
        ..key("one")
    };
    let from = rng.range(2..300);
    let delete = if rng.chance(1, 2) {
        Deed::Delete(key("one"))
    } else {
        Deed::DeleteForeground(key("one"))
    };
    world.after(from, delete);
    let new = again.key.clone();
    let create = Deed::Create(Box::new(again), Program::trains(rng.range(20..300)));
    world.after(from, create);
    new
}

/// All at once, under leaders that follow each other and see each kind of objects late: [`World`]
/// asserts that nothing healthy is killed, and that who is asked to leave may save. `cargo xtask
/// sim nodes` goes on with it.
#[test]
fn whatever_happens_to_nodes_no_healthy_gang_is_ended() {
    explore(1500, &[], |rng| {
        let mut world = healthy(rng);
        if rng.chance(1, 5) {
            prepare(rng, &mut world);
        }
        world.operator.crash = takeovers(rng);
        blink(rng, &mut world);
        lose(rng, &mut world);
        validate(rng, &mut world);
        let sees_late = rng.chance(1, 2);
        if sees_late {
            late(rng, &mut world);
        }
        let last = match rng.chance(1, 4) {
            true => recreate(rng, &mut world),
            false => key("one"),
        };
        world.run_until("every job ended", |world| {
            world.jobs.contains_key(&last) && is_over(world)
        });
        world.settle();
        let gangs = world.jobs.values().filter(|one| one.job.pin.is_none());
        for stored in gangs {
            let status = &stored.job.status;
            assert_eq!(status.phase, JobPhase::Succeeded, "{}", world.describe());
            // Who sees a gang fail long after a node of it died and came back, or after the pod of
            // that node was collected, cannot know why it did.
            let mut runs = world
                .runs
                .iter()
                .filter(|((key, _), _)| *key == stored.job.key);
            let cause_is_gone = runs.any(|(_, run)| run.cause_is_gone);
            let charged = status.restarts > 0 && !sees_late && !cause_is_gone;
            assert!(!charged, "{}", world.describe());
        }
    });
}

#[test]
fn a_node_that_an_autoscaler_takes_away_is_left_with_the_work_saved() {
    for_each_seed(20, |rng| {
        let mut world = World::new(rng, nodes("a:4"));
        world.submit(job("train", 3), Program::trains(300));
        world.after(20, Deed::DeleteNode("a-001".into()));
        world.run_until("it has moved", |world| {
            let status = &world.jobs[&key("train")].job.status;
            (status.phase, status.attempt) == (JobPhase::Running, 2)
        });
        let stored = &world.jobs[&key("train")];
        assert!(stored.acked.is_some(), "{}", world.describe());
        world.run_until("it ended", is_over);
        world.settle();
    });
}
