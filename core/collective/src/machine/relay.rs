//! What other nodes hand over: chunks of messages, which belong to a rank here or have to be passed on. Those wait in slots
//! of this node, which each neighbour counts.

use super::carry::Hop;
use super::cause::Violation;
use super::group::Group;
use super::node::Node;
use super::{MessageId, NO_SLOT, Placement, RELAY, Region};

/// A chunk that has to be passed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relayed {
    pub(super) message: MessageId,
    pub(super) chunk: u32,
    pub(super) bytes: u32,
    pub(super) peer: usize,
    pub(super) slot: u8,
}

impl Group {
    /// The neighbours that have something passed on here.
    pub(super) fn relays(&self) -> impl Iterator<Item = usize> + '_ {
        let passes = self.part.nodes.len() > 2;
        let neighbours = self.part.trees.trees[0].neighbours(self.part.node);
        neighbours.filter(move |_| passes)
    }

    /// A slot that the next node has passed on is free again.
    pub(super) fn relay_credit(&mut self, peer: usize, slot: u8) -> Result<(), Violation> {
        let hop = Hop {
            node: peer,
            passes: true,
        };
        let queue = self.mail.queues.get_mut(&hop);
        let queue = queue.ok_or(Violation::Direction)?;
        if queue.slots.returned(slot) {
            Ok(())
        } else {
            Err(Violation::Slot)
        }
    }

    pub(super) fn place_part(
        &self,
        peer: usize,
        message: MessageId,
        chunk: u32,
        slot: u8,
        bytes: u32,
    ) -> Placement {
        let bytes = u64::from(bytes);
        let place = if self.check_ranks(&message).is_err() {
            None
        } else if self.home(message.to) == self.part.node {
            self.target(&message, chunk)
                .filter(|region| region.bytes == bytes)
        } else {
            let buffer = self.receive(peer, RELAY, slot);
            let is_free = self.check_relay(peer, slot, bytes).is_ok();
            is_free.then_some(Region {
                buffer,
                offset: 0,
                bytes,
            })
        };
        place.map_or(Placement::Discard, Placement::Into)
    }

    fn check_relay(&self, peer: usize, slot: u8, bytes: u64) -> Result<(), Violation> {
        if !self.relays().any(|one| one == peer) {
            return Err(Violation::Direction);
        }
        let taken = self.mail.taken.get(&peer).copied().unwrap_or(0);
        if slot >= self.slots || taken & (1 << slot) != 0 {
            return Err(Violation::Slot);
        }
        if bytes == 0 || bytes > u64::from(self.chunk_bytes) {
            return Err(Violation::Chunk);
        }
        Ok(())
    }

    /// A chunk has come, and lies where it belongs.
    pub(super) fn part_came(
        &mut self,
        node: &mut Node,
        peer: usize,
        message: MessageId,
        chunk: u32,
        slot: u8,
        bytes: u32,
    ) -> Result<(), Violation> {
        self.check_ranks(&message)?;
        let to = self.home(message.to);
        if to == self.part.node {
            if slot != NO_SLOT {
                return Err(Violation::Slot);
            }
            if !self.mail.incoming.contains_key(&message) {
                node.counters.late_frames += 1; // Its operation has failed.
                return Ok(());
            }
            let place = self.target(&message, chunk);
            if place.is_none_or(|region| region.bytes != u64::from(bytes)) {
                return Err(Violation::Chunk);
            }
            self.came(node, message, chunk);
            return Ok(());
        }
        if bytes == 0 {
            let frame = self.data(message, chunk, slot, bytes);
            return self.pass_on(node, to, frame, Some(peer));
        }
        self.check_relay(peer, slot, u64::from(bytes))?;
        let hop = self.hop(node, to);
        if hop.node == peer {
            return Err(Violation::Direction);
        }
        *self.mail.taken.entry(peer).or_default() |= 1 << slot;
        self.queue(hop).relayed.push_back(Relayed {
            message,
            chunk,
            bytes,
            peer,
            slot,
        });
        Ok(())
    }
}
