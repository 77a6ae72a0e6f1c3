//! The slots of the next node, as the node counts them that fills them.

/// A slot's way through a hand-over to the next node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Slot {
    /// Nobody uses it.
    #[default]
    Free,
    /// Being filled, or what it holds is being prepared.
    Filling,
    /// Sent; free again when the bytes have left here and the next node has returned its side.
    Sent { left: bool, returned: bool },
}

/// The slots towards one node.
#[derive(Clone, Debug, Default)]
pub(super) struct SendSlots {
    slots: Vec<Slot>,
}

impl SendSlots {
    pub(super) fn new(slots: u8) -> Self {
        Self {
            slots: vec![Slot::Free; usize::from(slots)],
        }
    }

    /// A free slot, if more than `kept` are free.
    pub(super) fn free(&self, kept: usize) -> Option<u8> {
        let slots = (0u8..).zip(&self.slots);
        let mut free = slots.filter(|&(_, slot)| *slot == Slot::Free);
        free.nth(kept).map(|(slot, _)| slot)
    }

    /// Something is prepared in it.
    pub(super) fn fill(&mut self, slot: u8) {
        self.set(slot, Slot::Filling);
    }

    /// It is not needed after all.
    pub(super) fn cancel(&mut self, slot: u8) {
        self.set(slot, Slot::Free);
    }

    /// What it holds was sent. `left`: there are no bytes that have to leave first.
    pub(super) fn send(&mut self, slot: u8, left: bool) {
        let returned = false;
        self.set(slot, Slot::Sent { left, returned });
    }

    /// The bytes have left.
    pub(super) fn left(&mut self, slot: u8) {
        if let Slot::Sent { returned, .. } = self.slots[usize::from(slot)] {
            self.set(slot, Slot::after(true, returned));
        }
    }

    /// The next node returned the slot; false when it never had it.
    pub(super) fn returned(&mut self, slot: u8) -> bool {
        match self.slots.get(usize::from(slot)) {
            Some(&Slot::Sent {
                left,
                returned: false,
            }) => {
                self.set(slot, Slot::after(left, true));
                true
            }
            Some(Slot::Free | Slot::Filling | Slot::Sent { .. }) | None => false,
        }
    }

    fn set(&mut self, slot: u8, state: Slot) {
        self.slots[usize::from(slot)] = state;
    }
}

impl Slot {
    const fn after(left: bool, returned: bool) -> Self {
        if left && returned {
            Self::Free
        } else {
            Self::Sent { left, returned }
        }
    }
}
