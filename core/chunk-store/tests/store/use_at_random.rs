//! Contents after random edits, commits, discards and reads, compared with a model's.

use sim::{explore, print_count};

use crate::world::World;

#[test]
fn a_store_holds_what_was_put_into_it() {
    let (mut steps, mut full) = (0, 0);
    explore(300, &[207], |rng| {
        let mut world = World::new(rng.fork());
        for round in 0..400 {
            world.happens().unwrap();
            if round % 100 == 99 {
                world.settles().unwrap();
                world.check();
                world.shell.check_blocks();
            }
        }
        let before = world.now.clone();
        world.reopens(0);
        world.now = before;
        world.check();
        steps += world.shell.steps;
        full += world.full;
    });
    print_count("steps", steps);
    print_count("full", full);
}
