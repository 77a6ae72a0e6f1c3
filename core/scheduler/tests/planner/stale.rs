//! Leaders that see the cluster late, each kind of objects as of another moment, and that follow
//! each other: whatever they see, no gang that trains whole is ended or loses its grace. [`World`]
//! asserts that at each deletion.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use scheduler::{JobKey, JobPhase};
use sim::{Rng, for_each_seed};

use crate::blinks::{healthy, undisturbed};
use crate::build::{job, key, nodes};
use crate::crowd::{is_over, trouble};
use crate::world::{Crash, Deed, Event, Kind, Program, World};

/// Each kind is seen late, and says nothing for up to minutes now and then.
pub(crate) fn late(rng: &mut Rng, world: &mut World) {
    world.lag(rng);
    for kind in Kind::ALL {
        for _ in 0..rng.range(0..3) {
            let from = Duration::from_secs(rng.range(0..500));
            let length = *rng.pick(&[5, 20, 70, 200]);
            let length = Duration::from_secs(rng.range(1..length));
            world.queue.at(from, Event::Hang(kind, length));
        }
    }
}

/// Nodes that train are not in what the leader knows.
fn missed(rng: &mut Rng, world: &mut World) {
    let names: Vec<_> = world.machines.keys().cloned().collect();
    for name in names {
        if rng.chance(1, 3) {
            let at = Duration::from_secs(rng.range(30..400));
            world.queue.at(at, Event::Miss(name));
        }
    }
}

#[test]
fn a_gang_that_nothing_disturbs_is_not_ended_by_what_its_leader_sees_late() {
    for_each_seed(40, |rng| {
        let mut world = healthy(rng);
        late(rng, &mut world);
        missed(rng, &mut world);
        world.run_until("every job ended", is_over);
        world.settle();
        undisturbed(&world);
    });
}

#[test]
fn all_jobs_end_whatever_goes_wrong_and_however_late_it_is_seen() {
    for_each_seed(40, |rng| {
        let mut world = trouble(rng);
        world.operator.crash = Crash::default();
        late(rng, &mut world);
        world.run_until("every job ended", is_over);
        world.settle();
    });
}

/// Leaders follow each other; some were only asleep, and send what they had begun when they wake.
fn takeovers(rng: &mut Rng, writes: u64) -> Crash {
    Crash {
        after: (0..rng.range(1..6)).map(|_| rng.range(1..writes)).collect(),
        vacancy: Duration::from_millis(rng.range(0..20_000)),
        returns: rng
            .chance(3, 4)
            .then(|| Duration::from_millis(rng.range(0..60_000))),
    }
}

#[test]
fn a_gang_that_nothing_disturbs_trains_to_its_end_whoever_leads_and_however_late_it_sees() {
    for_each_seed(40, |rng| {
        let mut world = healthy(rng);
        late(rng, &mut world);
        missed(rng, &mut world);
        world.operator.crash = takeovers(rng, 40);
        world.run_until("every job ended", is_over);
        world.settle();
        for stored in world.jobs.values() {
            let status = &stored.job.status;
            let fate = (status.phase, status.restarts);
            assert_eq!(fate, (JobPhase::Succeeded, 0), "{}", world.describe());
        }
    });
}

#[test]
fn all_jobs_end_whatever_goes_wrong_whoever_leads_and_however_late_it_sees() {
    for_each_seed(40, |rng| {
        let mut world = trouble(rng);
        late(rng, &mut world);
        world.operator.crash = takeovers(rng, 300);
        world.run_until("every job ended", is_over);
        world.settle();
    });
}

/// Jobs that are deleted at some time and created again under their names, while leaders follow
/// each other.
fn recreated(rng: &mut Rng) -> World {
    let mut world = World::new(rng, nodes("a:4 b:3"));
    for name in ["one", "two", "three"] {
        let size = u32::try_from(rng.range(1..4)).unwrap();
        let mut one = job(name, size);
        one.max_restarts = 9;
        let mut first = Program::trains(rng.range(20..300));
        first.saves = rng.chance(1, 2);
        if rng.chance(1, 2) {
            first.faults.push_back((rng.range(0..20_000), 0));
        }
        world.submit(one.clone(), first);
        let mut from = 0;
        for number in 1..3 {
            from += rng.range(2..60);
            let mut next = one.clone();
            world.after(from, Deed::Delete(one.key));
            next.key = JobKey {
                uid: format!("uid-{name}-{number}").into(),
                ..key(name)
            };
            let program = Program::trains(rng.range(20..200));
            let create = Deed::Create(Box::new(next.clone()), program);
            world.after(from, create);
            one = next;
        }
    }
    late(rng, &mut world);
    world.operator.crash = Crash {
        after: (0..12).map(|_| rng.range(1..150)).collect(),
        vacancy: Duration::from_millis(rng.range(0..500)),
        returns: Some(Duration::from_millis(rng.range(0..90_000))),
    };
    world
}

fn last_ones_end(world: &mut World) {
    let last = |world: &World| {
        let ended = |key: &JobKey| key.uid.ends_with("-2");
        let mut jobs = world.jobs.iter().filter(|(key, _)| ended(key));
        jobs.all(|(_, stored)| stored.job.status.phase == JobPhase::Succeeded)
            && world.jobs.keys().filter(|key| ended(key)).count() == 3
    };
    world.run_until("every last job ended", last);
    world.settle();
    for stored in world.jobs.values() {
        let status = &stored.job.status;
        assert_eq!(status.restarts, 0, "{}", world.describe());
    }
}

#[test]
fn nothing_meant_for_a_deleted_job_touches_the_one_that_has_its_name() {
    for_each_seed(40, |rng| last_ones_end(&mut recreated(rng)));
}

#[test]
fn deletions_by_name_alone_would_end_gangs_of_later_jobs() {
    let mut ended = 0;
    for_each_seed(40, |rng| {
        let mut world = recreated(rng);
        world.deletes_by_name = true;
        let run = catch_unwind(AssertUnwindSafe(|| last_ones_end(&mut world)));
        ended += u32::from(run.is_err());
    });
    assert!(ended > 0, "no late deletion hit a later job");
}
