//! Power cuts after any step of the disk, in random use and while the store opens, and flushes that fail.

use sim::{for_each_seed, print_count};

use crate::world::World;

#[test]
fn a_power_cut_after_any_step_takes_nothing_that_was_acknowledged() {
    let (mut cuts, mut damaged, mut torn) = (0, 0, 0);
    for_each_seed(2_000, |rng| {
        let mut world = World::new(rng.fork());
        for _ in 0..rng.range(1..6) {
            world.shell.steps_left = Some(rng.range(1..60));
            while world.happens().is_ok() {}
            let summary = world.reopens(rng.range(0..3));
            cuts += 1;
            damaged += summary.damaged as u64;
            torn += summary.torn as u64;
        }
    });
    print_count("cuts", cuts);
    print_count("damaged", damaged);
    print_count("torn", torn);
}
