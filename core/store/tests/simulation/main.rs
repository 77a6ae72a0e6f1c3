//! Nodes of a gang with clients that call, under crashes, sidecars that forget, partitions and epochs that are cut short.
//! What the clients were told is what one store could have told them, each call done once; in the end all are answered.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

mod client;
mod history;
mod world;

use sim::{CrashPoint, Rng};
use world::{Faults, World};

/// Any number of nodes and faults: STORE-1, STORE-3, STORE-4.
#[test]
fn clients_are_told_what_one_store_would_tell_them_whatever_fails() {
    sim::explore(1000, |rng| {
        let nodes = 1 + rng.below(4) as u32;
        let faults = Faults {
            crashes: rng.below(nodes as usize),
            forgets: rng.below(4),
            cuts: rng.below(4),
            epochs: rng.below(3),
            exiles: rng.below(2),
        };
        World::new(rng, nodes, faults, CrashPoint::never()).run();
    });
}

/// A run is counted, then repeated with a crash of the first member, or of the last, before each step: STORE-2.
#[test]
fn a_crash_at_any_step_loses_nothing_that_was_acknowledged() {
    sim::for_each_seed(3, |rng| {
        let seed = rng.next_u64();
        let run = |crash| World::new(&mut Rng::new(seed), 3, Faults::default(), crash).run();
        let steps = run(CrashPoint::never());
        for step in 0..steps {
            run(CrashPoint::at(step));
        }
    });
}
