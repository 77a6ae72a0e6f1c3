//! Many worlds, and how often each fault was survived in each phase.

use std::collections::BTreeMap;

use sim::{explore, is_replay, print_count};

use crate::faults::{Fault, Phase};
use crate::world::World;

/// Runs so many worlds, and prints what was survived. Returns what never happened.
pub(crate) fn survive(count: u64) -> Vec<(Fault, Phase)> {
    let mut survived: BTreeMap<(Fault, Phase), u64> = BTreeMap::new();
    let mut lost = 0;
    explore(count, &[], |rng| {
        let mut world = World::new(rng);
        world.run();
        lost += world.lost;
        for met in world.met {
            *survived.entry(met).or_default() += 1;
        }
    });
    let mut never = Vec::new();
    for fault in Fault::ALL {
        for phase in Phase::ALL {
            let count = survived.get(&(fault, phase)).copied().unwrap_or_default();
            print_count(&format!("{fault:?} in {phase:?}"), count);
            if count == 0 {
                never.push((fault, phase));
            }
        }
    }
    print_count("contents that could not be written", lost);
    assert!(lost > 0 || is_replay(), "nothing was lost");
    never
}
