//! What is simulated: which ranks, on which trees, with which sizes.

use collective::machine::{Handover, Recovery};
use collective::{DoubleTree, Layout};
use sim::Rng;

use crate::fixture::draw;

/// What is simulated.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) layout: Layout,
    pub(crate) trees: DoubleTree,
    pub(crate) chunk_bytes: u32,
    pub(crate) slots: u8,
    /// Operations a rank calls without waiting for the first of them.
    pub(crate) window: usize,
    pub(crate) recovery: Recovery,
}

impl Group {
    pub(crate) fn new(ranks: &[u32], zones: &[u64]) -> Self {
        Self {
            layout: Layout::new(ranks).unwrap(),
            trees: DoubleTree::build(zones),
            chunk_bytes: 512,
            slots: 2,
            window: 2,
            recovery: Recovery::default(),
        }
    }

    pub(crate) fn uniform(nodes: usize, ranks: u32) -> Self {
        Self::new(&vec![ranks; nodes], &vec![0; nodes])
    }

    pub(crate) fn random(rng: &mut Rng, nodes: usize) -> Self {
        let ranks = draw::ranks(rng, nodes);
        let split = rng.below(nodes + 1);
        let zones: Vec<u64> = (0..nodes).map(|node| u64::from(node >= split)).collect();
        let chunk_bytes = *rng.pick(&[512, 576, 1024]);
        let slots = rng.range(1..5) as u8;
        let recovery = Recovery {
            handover: *rng.pick(&[Handover::Immediate, Handover::Stable]),
            ..Recovery::default()
        };
        Self {
            recovery,
            chunk_bytes,
            slots,
            window: 1 + rng.below(4),
            ..Self::new(&ranks, &zones)
        }
    }
}
