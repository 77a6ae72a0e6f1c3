//! Whole lives of jobs, with the operator killed after every single write of them.

use std::time::Duration;

use scheduler::{Condition, ConditionKind, JobPhase};
use sim::Rng;
use topology::NodeName;

use crate::build::{job, key, nodes};
use crate::world::{Crash, Deed, Event, Program, Running, World};

/// A life: what happens to a cluster of five nodes, and what must be true at the end.
pub(crate) struct Life {
    pub(crate) set_up: fn(&mut World),
    pub(crate) over: fn(&World) -> bool,
    pub(crate) verify: fn(&World),
}

/// Lives it undisturbed, then once for each of its writes and each way of losing the operator
/// there.
pub(crate) fn live(life: &Life) {
    let writes = once(life, 0, Crash::default());
    let seconds = Duration::from_secs;
    for after in 1..=writes {
        for (vacancy, returns) in [
            (Duration::ZERO, None),
            (seconds(5), None),
            (seconds(45), None),
            (Duration::ZERO, Some(seconds(1))),
            (Duration::ZERO, Some(seconds(7))),
            (seconds(2), Some(seconds(1))),
        ] {
            let crash = Crash {
                after: vec![after],
                vacancy,
                returns,
            };
            once(life, after, crash.clone());
            // And again right after it came back.
            once(
                life,
                after,
                Crash {
                    after: vec![after, after + 1, after + 3],
                    ..crash
                },
            );
        }
    }
}

fn once(life: &Life, seed: u64, crash: Crash) -> u64 {
    let what = format!("{crash:?}");
    let mut world = World::new(&mut Rng::new(seed), nodes("a:5"));
    world.operator.crash = crash;
    (life.set_up)(&mut world);
    world.run_until(&what, life.over);
    let writes = world.writes;
    world.settle();
    (life.verify)(&world);
    writes
}

fn phase(world: &World, name: &str) -> Option<JobPhase> {
    world
        .jobs
        .get(&key(name))
        .map(|stored| stored.job.status.phase)
}

pub(crate) fn is_over(world: &World) -> bool {
    world
        .jobs
        .values()
        .all(|stored| stored.job.status.phase.is_terminal())
}

fn succeeded(world: &World) {
    for stored in world.jobs.values() {
        let status = &stored.job.status;
        assert_eq!(status.phase, JobPhase::Succeeded, "{}", world.describe());
        assert!(status.is(ConditionKind::Complete) && !status.is(ConditionKind::Failed));
        let last = status
            .last_checkpoint
            .as_ref()
            .map(|last| (last.attempt, last.step));
        assert!(
            last >= stored.acked,
            "acknowledged {:?}, recorded {last:?}",
            stored.acked
        );
    }
}

pub(crate) fn succeeded_uncharged(world: &World) {
    succeeded(world);
    assert_eq!(
        world.jobs[&key("train")].job.status.restarts,
        0,
        "{}",
        world.describe()
    );
}

#[test]
fn a_job_succeeds() {
    live(&Life {
        set_up: |world| world.submit(job("train", 3), Program::trains(60)),
        over: is_over,
        verify: |world| {
            succeeded_uncharged(world);
            assert_eq!(
                world.jobs[&key("train")].job.status.attempt,
                1,
                "{}",
                world.describe()
            );
        },
    });
}

#[test]
fn a_suspended_job_saves_releases_and_goes_on_where_it_was() {
    live(&Life {
        set_up: |world| {
            world.submit(job("train", 3), Program::trains(60));
            world.after(20, Deed::Suspend(key("train"), true));
            world.after(120, Deed::Suspend(key("train"), false));
        },
        over: is_over,
        verify: succeeded_uncharged,
    });
}

#[test]
fn a_job_that_stays_suspended_holds_nothing() {
    live(&Life {
        set_up: |world| {
            world.submit(job("train", 3), Program::trains(60));
            world.after(20, Deed::Suspend(key("train"), true));
        },
        over: |world| is_over(world) || phase(world, "train") == Some(JobPhase::Suspended),
        verify: |world| {
            let stored = &world.jobs[&key("train")];
            if is_over(world) {
                // Nobody led until it had ended.
                return succeeded(world);
            }
            assert!(world.pods.is_empty() && world.attempts.is_empty() && !stored.job.finalizer);
            assert!(stored.job.status.is(ConditionKind::Suspended));
            let last = stored.job.status.last_checkpoint.as_ref();
            assert_eq!(last.map(|last| (last.attempt, last.step)), stored.acked);
        },
    });
}

#[test]
fn a_job_that_is_suspended_while_it_starts_resumes() {
    live(&Life {
        set_up: |world| {
            world.submit(job("train", 3), Program::trains(60));
            world.after(1, Deed::Suspend(key("train"), true));
            world.after(3, Deed::Suspend(key("train"), false));
        },
        over: is_over,
        verify: succeeded_uncharged,
    });
}

pub(crate) fn lose_node(world: &mut World, name: &str, from: u64, to: u64) {
    let name: NodeName = name.into();
    world
        .queue
        .at(Duration::from_secs(from), Event::Die(name.clone()));
    world.queue.at(Duration::from_secs(to), Event::Revive(name));
}

#[test]
fn a_job_survives_the_loss_of_a_node() {
    live(&Life {
        set_up: |world| {
            world.submit(job("train", 3), Program::trains(60));
            lose_node(world, "a-001", 20, 400);
        },
        over: is_over,
        verify: succeeded_uncharged,
    });
}

#[test]
fn a_job_whose_survivors_hang_survives_the_loss_of_a_node() {
    live(&Life {
        set_up: |world| {
            let program = Program {
                survivors_hang: true,
                ..Program::trains(60)
            };
            world.submit(job("train", 3), program);
            lose_node(world, "a-000", 20, 400);
        },
        over: is_over,
        verify: succeeded_uncharged,
    });
}

/// What the launcher of a rank that failed takes until its pod has ended, at most.
const LAUNCHER: Duration = Duration::from_millis(1500);

#[test]
fn survivors_that_ignore_sigterm_are_gone_5_s_after_the_first_rank_ended() {
    for (seed, silent_node) in (0..100).flat_map(|seed| [(seed, false), (seed, true)]) {
        let mut world = World::new(&mut Rng::new(seed), nodes("a:5"));
        let program = Program {
            survivors_hang: true,
            ..Program::trains(60)
        };
        world.submit(job("train", 3), program);
        world.run_until("it trains", |world| {
            world.pods.len() == 3 && world.pods.values().all(Running::trains)
        });
        let failed_at = world.queue.now();
        if silent_node {
            // Was it the program, or the node? The operator waits for the node's own report first.
            let node = world.pods[&(key("train"), 1, 2)].pod.node.clone();
            world.queue.after(Duration::ZERO, Event::Die(node));
        }
        let fails = Event::Fail((key("train"), 1, 1));
        world.queue.after(LAUNCHER, fails);
        world.run_until("no survivor trains", |world| {
            let alive = |running: &Running| world.machines[&running.pod.node].alive;
            let mut gang = world
                .pods
                .iter()
                .filter(|((_, attempt, _), _)| *attempt == 1);
            !gang.any(|(_, running)| running.trains() && alive(running))
        });
        let took = world.queue.now() - failed_at;
        assert!(took <= Duration::from_secs(5), "seed {seed}: {took:?}");
    }
}

#[test]
fn a_failing_rank_restarts_the_gang() {
    live(&Life {
        set_up: |world| {
            let faults = [(5000, 1), (9000, 2)].into();
            world.submit(
                job("train", 3),
                Program {
                    faults,
                    ..Program::trains(60)
                },
            );
        },
        over: is_over,
        verify: |world| {
            succeeded(world);
            assert_eq!(
                world.jobs[&key("train")].job.status.restarts,
                2,
                "{}",
                world.describe()
            );
        },
    });
}

#[test]
fn a_rank_that_always_fails_ends_the_job_with_its_log() {
    live(&Life {
        set_up: |world| {
            let faults = [(5000, 1); 9].into();
            let program = Program {
                faults,
                survivors_hang: true,
                ..Program::trains(60)
            };
            let mut train = job("train", 3);
            train.max_restarts = 1;
            world.submit(train, program);
        },
        over: is_over,
        verify: |world| {
            let status = &world.jobs[&key("train")].job.status;
            let failure = status.failure.as_ref().unwrap();
            assert_eq!((status.phase, failure.rank), (JobPhase::Failed, Some(1)));
            assert_eq!(
                failure.log.as_deref(),
                Some("ValueError: loss is not a number")
            );
            let text = |condition: &Condition| condition.message.clone();
            let message = status.conditions.get(&ConditionKind::Failed).map(text);
            assert_eq!(
                message.unwrap(),
                format!(
                    "rank 1 on node {} failed with exit code 1; all 1 restarts are used up",
                    failure.node.as_ref().unwrap()
                )
            );
        },
    });
}

#[test]
fn a_job_leaves_a_cordoned_node_with_its_work_saved() {
    live(&Life {
        set_up: |world| {
            world.submit(job("train", 3), Program::trains(200));
            world.after(20, Deed::Cordon("a-001".into(), true));
        },
        over: is_over,
        verify: |world| {
            succeeded_uncharged(world);
            let stored = &world.jobs[&key("train")];
            // Without an operator for long enough, it ends where it is.
            if world.operator.crash.after.is_empty() {
                let mut pods = world.pods.values();
                assert!(pods.all(|running| running.pod.node != "a-001".into()));
                assert!(stored.acked.is_some(), "{}", world.describe());
            }
        },
    });
}

#[test]
fn an_evicted_pod_makes_the_whole_gang_save() {
    live(&Life {
        set_up: |world| {
            world.submit(job("train", 3), Program::trains(60));
            world.after(20, Deed::Evict(key("train"), 1));
        },
        over: is_over,
        verify: succeeded_uncharged,
    });
}

#[test]
fn a_refused_pod_is_planned_again_uncharged() {
    live(&Life {
        set_up: |world| {
            world.machines.get_mut("a-001").unwrap().refuses = 2;
            world.submit(job("train", 3), Program::trains(30));
        },
        over: is_over,
        verify: succeeded_uncharged,
    });
}

#[test]
fn a_second_job_waits_for_the_first() {
    live(&Life {
        set_up: |world| {
            world.submit(job("train", 3), Program::trains(30));
            world.submit(job("other", 4), Program::trains(30));
        },
        over: is_over,
        verify: succeeded_uncharged,
    });
}

#[test]
fn a_finished_job_is_deleted_when_its_time_is_over() {
    live(&Life {
        set_up: |world| {
            let mut train = job("train", 3);
            train.ttl = Some(Duration::from_secs(100));
            world.submit(train, Program::trains(30));
        },
        over: |world| world.jobs.is_empty(),
        verify: |world| assert!(world.pods.is_empty() && world.attempts.is_empty()),
    });
}

#[test]
fn a_job_can_be_deleted_at_any_moment() {
    // Every 100 ms of the first 20 s, and then while it saves, restarts and ends.
    for tenth in (0..200).chain((200..1000).step_by(7)) {
        for crash in [0, 3, 5, 8, 9, 10, 11, 12] {
            let mut world = World::new(&mut Rng::new(tenth), nodes("a:5"));
            let vacancy = Duration::from_secs(crash);
            world.operator.crash = Crash {
                after: vec![crash, crash + 2],
                vacancy,
                returns: None,
            };
            let faults = [(30_000, 1)].into();
            world.submit(
                job("train", 3),
                Program {
                    faults,
                    ..Program::trains(60)
                },
            );
            world.after(70, Deed::Suspend(key("train"), true));
            let delete = Event::Do(Deed::Delete(key("train")));
            world.queue.at(Duration::from_millis(tenth * 100), delete);
            world.run_until("the job is gone", |world| world.jobs.is_empty());
            world.settle();
            assert!(
                world.pods.is_empty() && world.attempts.is_empty(),
                "{}",
                world.describe()
            );
        }
    }
}

#[test]
fn a_job_is_deleted_while_its_node_is_dead() {
    live(&Life {
        set_up: |world| {
            world.submit(job("train", 3), Program::trains(60));
            lose_node(world, "a-001", 20, 400);
            world.after(25, Deed::Delete(key("train")));
        },
        over: |world| world.jobs.is_empty() && world.pods.is_empty(),
        verify: |world| assert!(world.attempts.is_empty()),
    });
}
