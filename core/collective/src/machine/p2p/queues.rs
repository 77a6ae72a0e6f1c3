//! What waits for the next node on its way to another. Who passes chunks on keeps them in slots, which the node before it
//! counts. What arrives always has its place, and ways in a tree never turn, so no slot waits for itself.

use std::collections::{BTreeMap, VecDeque};

use crate::machine::cause::ProtocolViolation;
use crate::machine::io::{MessageId, NO_SLOT, OpId};
use crate::machine::node::Node;
use crate::machine::slots::SendSlots;
use crate::machine::view::GroupView;

/// Where bytes go next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hop {
    pub(super) node: usize,
    /// Whether that node has to pass them on, and needs a slot for it.
    pub(super) passes: bool,
}

impl Hop {
    /// The next node on the way to another.
    pub(super) fn towards(view: &GroupView, node: &Node, to: usize) -> Self {
        let (own, trees) = (view.node, &view.trees);
        let is_direct = to == own || trees.share_zone(own, to) && node.is_linked(view.nodes[to]);
        let next = if is_direct {
            to
        } else {
            trees.next_towards(own, to)
        };
        Self {
            node: next,
            passes: next != to,
        }
    }
}

/// A chunk that has to be passed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Forwarded {
    pub(super) message: MessageId,
    pub(super) chunk: u32,
    pub(super) bytes: u32,
    /// The neighbour that has handed it over, and the slot of this node that it lies in.
    pub(super) peer: usize,
    pub(super) slot: u8,
}

/// A payload that is being handed over.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendDesc {
    pub(super) hop: Hop,
    /// The next node's slot, or none.
    pub(super) slot: u8,
    pub(super) content: Content,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    /// A chunk of a message of a rank here; `into`: the call of a rank here that gets it.
    Own {
        op: OpId,
        message: MessageId,
        chunk: u32,
        into: Option<OpId>,
    },
    /// What another node has handed over in this slot.
    Relayed { peer: usize, slot: u8 },
}

impl SendDesc {
    /// The calls whose memory it uses.
    pub(super) fn users(&self) -> impl Iterator<Item = OpId> + use<> {
        let (op, into) = match self.content {
            Content::Own { op, into, .. } => (Some(op), into),
            Content::Relayed { .. } => (None, None),
        };
        op.into_iter().chain(into)
    }
}

/// What goes next over a hop.
pub(super) enum Next {
    Relayed(Forwarded),
    /// A chunk of this message.
    Own(MessageId),
}

/// What waits for one hop.
#[derive(Debug)]
struct Queue {
    relayed: VecDeque<Forwarded>,
    own: VecDeque<MessageId>,
    /// Payloads on their way, at most as many as an edge has slots.
    sending: u8,
    /// The next node's slots.
    slots: SendSlots,
}

#[derive(Debug, Default)]
pub(super) struct Queues {
    queues: BTreeMap<Hop, Queue>,
    /// Slots of this node that each neighbour has filled, a bit each.
    taken: BTreeMap<usize, u64>,
}

impl Queues {
    fn queue(&mut self, view: &GroupView, hop: Hop) -> &mut Queue {
        let slots = if hop.passes { view.window } else { 0 };
        self.queues.entry(hop).or_insert_with(|| Queue {
            relayed: VecDeque::new(),
            own: VecDeque::new(),
            sending: 0,
            slots: SendSlots::new(slots),
        })
    }

    pub(super) fn hops(&self) -> Vec<Hop> {
        self.queues.keys().copied().collect()
    }

    /// A message of a rank here waits behind the others.
    pub(super) fn push(&mut self, view: &GroupView, hop: Hop, message: MessageId) {
        self.queue(view, hop).own.push_back(message);
    }

    /// A neighbour has filled a slot with what has to be passed on.
    pub(super) fn forward(&mut self, view: &GroupView, hop: Hop, relayed: Forwarded) {
        *self.taken.entry(relayed.peer).or_default() |= 1 << relayed.slot;
        self.queue(view, hop).relayed.push_back(relayed);
    }

    /// The slot of the next node that something may be sent in, if anything waits and there is room.
    pub(super) fn room(&self, view: &GroupView, hop: Hop) -> Option<u8> {
        let queue = self.queues.get(&hop)?;
        if queue.relayed.is_empty() && queue.own.is_empty() || queue.sending >= view.window {
            return None;
        }
        match hop.passes {
            true => queue.slots.free(0),
            false => Some(NO_SLOT),
        }
    }

    pub(super) fn next(&mut self, hop: Hop) -> Option<Next> {
        let queue = self.queues.get_mut(&hop)?;
        let forwarded = queue.relayed.pop_front().map(Next::Relayed);
        forwarded.or_else(|| queue.own.pop_front().map(Next::Own))
    }

    /// A payload is being handed over.
    pub(super) fn begin(&mut self, view: &GroupView, desc: &SendDesc) {
        let queue = self.queue(view, desc.hop);
        queue.sending += 1;
        if desc.hop.passes {
            queue.slots.send(desc.slot, false);
        }
    }

    /// It has left.
    pub(super) fn end(&mut self, view: &GroupView, desc: &SendDesc) {
        let queue = self.queue(view, desc.hop);
        queue.sending -= 1;
        if desc.hop.passes {
            queue.slots.left(desc.slot);
        }
    }

    /// The next node has passed on what was in a slot.
    pub(super) fn on_credit(&mut self, peer: usize, slot: u8) -> Result<(), ProtocolViolation> {
        let (node, passes) = (peer, true);
        let queue = self.queues.get_mut(&Hop { node, passes });
        let queue = queue.ok_or(ProtocolViolation::Direction)?;
        if queue.slots.returned(slot) {
            Ok(())
        } else {
            Err(ProtocolViolation::Slot)
        }
    }

    /// Whether a neighbour may fill a slot of this node now with so many bytes.
    pub(super) fn check(
        &self,
        view: &GroupView,
        peer: usize,
        slot: u8,
        bytes: u32,
    ) -> Result<(), ProtocolViolation> {
        if !view.forwards().any(|one| one == peer) {
            return Err(ProtocolViolation::Direction);
        }
        let taken = self.taken.get(&peer).copied().unwrap_or(0);
        if slot >= view.slots || taken & (1 << slot) != 0 {
            return Err(ProtocolViolation::Slot);
        }
        if bytes == 0 || bytes > view.chunk_bytes {
            return Err(ProtocolViolation::Chunk);
        }
        Ok(())
    }

    /// What a neighbour has put into a slot of this node was passed on.
    pub(super) fn free(&mut self, peer: usize, slot: u8) {
        if let Some(taken) = self.taken.get_mut(&peer) {
            *taken &= !(1 << slot);
        }
    }

    /// Whether a slot of this node holds something.
    pub(super) fn hold_slots(&self) -> bool {
        self.taken.values().any(|taken| *taken != 0)
    }

    /// Whether nothing is on its way from here.
    pub(super) fn are_idle(&self) -> bool {
        self.queues.values().all(|queue| queue.sending == 0)
    }

    pub(super) fn clear(&mut self) {
        for queue in self.queues.values_mut() {
            queue.own.clear();
            queue.relayed.clear();
        }
    }
}
