//! Whole chains as in the tests of `craq`, over targets as they ship, on simulated disks that lose their power: the two
//! halves of a replica, and what lies between them.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

#[path = "../../../../core/craq/tests/chain/clients.rs"]
mod clients;
#[path = "../../../../core/craq/tests/chain/faults.rs"]
mod faults;
#[path = "../../../../core/craq/tests/chain/history.rs"]
mod history;
mod store;
#[path = "../../../../core/craq/tests/chain/world.rs"]
mod world;

use std::collections::BTreeMap;

use sim::{explore, is_replay, print_count};

use faults::{Fault, Phase};
use world::World;

#[test]
fn a_chain_over_targets_is_one_register_whatever_goes_wrong() {
    let mut survived: BTreeMap<(Fault, Phase), u64> = BTreeMap::new();
    let mut lost = 0;
    explore(200, &[], |rng| {
        let mut world = World::new(rng);
        world.run();
        lost += world.lost;
        for met in world.met {
            *survived.entry(met).or_default() += 1;
        }
    });
    for fault in Fault::ALL {
        for phase in Phase::ALL {
            let count = survived.get(&(fault, phase)).copied().unwrap_or_default();
            print_count(&format!("{fault:?} in {phase:?}"), count);
        }
    }
    print_count("contents that could not be written", lost);
    assert!(lost > 0 || is_replay(), "nothing was lost");
}
