//! Which operations to try next. An input moves few operations on: those it speaks of, and one that waits for a send slot.
//! To try all that are in flight each time would make a step of 46 layers cost the square of 46.

use std::collections::BTreeSet;

use super::io::OpId;

/// Operations that may have become able to move.
#[derive(Clone, Debug, Default)]
pub(super) struct ReadyQueue {
    /// Something has changed for them since they were tried.
    ready: BTreeSet<OpId>,
    /// They found no send slot of a tree.
    waits_for_slot: [BTreeSet<OpId>; 2],
}

impl ReadyQueue {
    pub(super) fn mark_ready(&mut self, id: OpId) {
        self.ready.insert(id);
    }

    pub(super) fn wait_for_slot(&mut self, id: OpId, tree: usize) {
        self.waits_for_slot[tree].insert(id);
    }

    /// Takes the oldest. `has_slot`: whether an operation finds a send slot of a tree now.
    pub(super) fn next(&mut self, has_slot: impl Fn(OpId, usize) -> bool) -> Option<OpId> {
        // Where the oldest of the starved finds no slot, no later one does.
        let fed = self.waits_for_slot.iter().enumerate();
        let fed = fed.filter_map(|(tree, starved)| {
            let &id = starved.first()?;
            has_slot(id, tree).then_some(id)
        });
        let next = fed.chain(self.ready.first().copied()).min()?;
        self.ready.remove(&next);
        for starved in &mut self.waits_for_slot {
            starved.remove(&next);
        }
        Some(next)
    }
}
