//! Whose turn it is. An input moves few operations on: those it speaks of, and one that waits for a send slot. To try
//! all that are in flight each time would make a step of 46 layers cost the square of 46.

use std::collections::BTreeSet;

use super::group::Group;
use super::io::OpId;

/// Operations to be tried.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    /// Something was heard of them since they were tried.
    stirred: BTreeSet<OpId>,
    /// They found no send slot of a tree.
    starved: [BTreeSet<OpId>; 2],
}

impl Turns {
    pub(super) fn stir(&mut self, id: OpId) {
        self.stirred.insert(id);
    }

    pub(super) fn starve(&mut self, id: OpId, tree: usize) {
        self.starved[tree].insert(id);
    }

    /// Whether one has found no slot.
    pub(super) fn wait_for_slots(&self) -> bool {
        self.starved.iter().any(|starved| !starved.is_empty())
    }

    fn take(&mut self, id: OpId) {
        self.stirred.remove(&id);
        for starved in &mut self.starved {
            starved.remove(&id);
        }
    }
}

impl Group {
    /// The oldest operation that may have become able to move.
    pub(super) fn next_turn(&mut self) -> Option<OpId> {
        // Where the oldest of the starved finds no slot, no later one does.
        let fed = self.turns.starved.iter().enumerate();
        let fed = fed.filter_map(|(tree, starved)| {
            let &id = starved.first()?;
            self.free_slot(id, tree).map(|_| id)
        });
        let next = fed.chain(self.turns.stirred.first().copied()).min()?;
        self.turns.take(next);
        Some(next)
    }
}
