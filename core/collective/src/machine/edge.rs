//! One group's traffic with one neighbour: which receive slots it has filled, what waits to be sent down to it, and in
//! which send slots parts for it are staged. Whether the neighbour lives is known to `node`.

use std::collections::{BTreeMap, VecDeque};

use super::cause::Verdict;
use super::io::OpId;
use crate::op::Call;

/// A part that a child has sent and that is not yet combined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) slot: u8,
    pub(super) bytes: u32,
    pub(super) call: Call,
    /// The rank that speaks for the child.
    pub(super) rank: u32,
}

/// One tree's traffic with a child.
#[derive(Clone, Debug, Default)]
pub(super) struct Child {
    /// Parts by operation and chunk; each holds a slot, so there are at most `slots`.
    pub(super) arrived: BTreeMap<(OpId, u32), Arrival>,
    /// Receive slots in use, a bit each.
    pub(super) taken: u64,
    /// Chunks that have to go down, oldest first: at most the chunks of the operations in flight.
    pub(super) backlog: VecDeque<(OpId, u32)>,
    /// Payloads on their way down, at most `slots`.
    pub(super) sending: u8,
}

/// A neighbour.
#[derive(Clone, Debug)]
pub(super) struct Edge {
    /// What it is in each tree, if it is a child there.
    pub(super) child: [Option<Child>; 2],
    /// What its subtree cannot carry out, by operation: at most one for each operation in flight.
    pub(super) refused: BTreeMap<OpId, Verdict>,
    /// The operations it had ended when it said farewell.
    pub(super) bye: Option<u64>,
}

impl Edge {
    pub(super) fn new(child: [bool; 2]) -> Self {
        Self {
            child: child.map(|is_child| is_child.then(Child::default)),
            refused: BTreeMap::new(),
            bye: None,
        }
    }
}

/// A send slot's way through a hand-over to the parent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Slot {
    /// Nobody uses it.
    #[default]
    Free,
    /// Being filled, or what it holds is being prepared.
    Filling,
    /// Sent; free again when the bytes have left here and the parent has returned its side.
    Sent { left: bool, returned: bool },
}

/// The send slots towards a parent.
#[derive(Clone, Debug, Default)]
pub(super) struct Parent {
    pub(super) slots: Vec<Slot>,
}

impl Parent {
    pub(super) fn new(slots: u8) -> Self {
        Self {
            slots: vec![Slot::Free; usize::from(slots)],
        }
    }

    /// A free slot, if more than `kept` are free.
    pub(super) fn free(&self, kept: usize) -> Option<u8> {
        let mut free = (0u8..)
            .zip(&self.slots)
            .filter(|&(_, slot)| *slot == Slot::Free);
        free.nth(kept).map(|(slot, _)| slot)
    }

    pub(super) fn set(&mut self, slot: u8, state: Slot) {
        self.slots[usize::from(slot)] = state;
    }

    /// The bytes have left.
    pub(super) fn left(&mut self, slot: u8) {
        if let Slot::Sent { returned, .. } = self.slots[usize::from(slot)] {
            self.set(slot, Self::after(true, returned));
        }
    }

    /// The parent returned the slot; false when it never had it.
    pub(super) fn returned(&mut self, slot: u8) -> bool {
        match self.slots.get(usize::from(slot)) {
            Some(&Slot::Sent {
                left,
                returned: false,
            }) => {
                self.set(slot, Self::after(left, true));
                true
            }
            Some(Slot::Free | Slot::Filling | Slot::Sent { .. }) | None => false,
        }
    }

    fn after(left: bool, returned: bool) -> Slot {
        if left && returned {
            Slot::Free
        } else {
            Slot::Sent { left, returned }
        }
    }
}
