//! Power cuts after any step of the disk, in random use and while the store opens, and flushes that fail.

use sim::{for_each_seed, is_replay, print_count};

use crate::world::World;

#[test]
fn a_power_cut_after_any_step_takes_nothing_that_was_acknowledged() {
    let (mut cuts, mut damaged, mut torn) = (0, 0, 0);
    for_each_seed(2_000, |rng| {
        let mut world = World::new(rng.fork());
        // Some begin with a journal that has gone round.
        if rng.chance(1, 8) {
            while world.shell.rounds == 0 {
                world.happens().unwrap();
            }
        }
        for _ in 0..rng.range(1..6) {
            world.shell.steps_left = Some(rng.range(1..60));
            while world.happens().is_ok() {}
            let summary = world.reopens(rng.range(0..3));
            cuts += 1;
            damaged += summary.damaged as u64;
            torn += summary.torn as u64;
        }
    });
    assert!(is_replay() || damaged.min(torn) > 50, "{damaged} {torn}");
    print_count("cuts", cuts);
    print_count("damaged", damaged);
    print_count("torn", torn);
}

#[test]
fn after_a_flush_that_failed_the_store_opens_with_what_will_stay() {
    for_each_seed(500, |rng| {
        let mut world = World::new(rng.fork());
        for _ in 0..rng.range(1..4) {
            for _ in 0..rng.range(0..150) {
                world.happens().unwrap();
            }
            world.flush_fails();
            for _ in 0..rng.range(0..20) {
                world.happens().unwrap();
            }
            world.reopens(0);
        }
    });
}
