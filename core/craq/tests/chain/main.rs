//! Whole chains in one process: the members that ship, over a simulated network and stores that lose what was not
//! flushed, under clients that send again until they are answered. `SEED=n` replays one seed; with `SIM_SECONDS=n` the
//! test that explores goes on with new ones.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

mod clients;
mod faults;
mod history;
mod steps;
mod store;
mod world;

use std::collections::BTreeMap;

use sim::{explore, is_replay, print_count};

use faults::{Fault, Phase};
use world::World;

/// CRAQ-2, CRAQ-3, CRAQ-4, CRAQ-5, CRAQ-6 and CRAQ-7: whatever goes wrong, reads and writes are those of one chunk that
/// nobody copies, each write happens once or was refused, and in the end all members have the same.
#[test]
fn a_chain_is_one_register_whatever_goes_wrong() {
    let mut survived: BTreeMap<(Fault, Phase), u64> = BTreeMap::new();
    let mut lost = 0;
    explore(600, &[], |rng| {
        let mut world = World::new(rng);
        world.run();
        lost += world.lost;
        for met in world.met {
            *survived.entry(met).or_default() += 1;
        }
    });
    print_count("contents that could not be written", lost);
    assert!(lost > 0 || is_replay(), "nothing was lost");
    for fault in Fault::ALL {
        for phase in Phase::ALL {
            let count = survived.get(&(fault, phase)).copied().unwrap_or_default();
            print_count(&format!("{fault:?} in {phase:?}"), count);
            assert!(count > 0 || is_replay(), "no {fault:?} in {phase:?}");
        }
    }
}
