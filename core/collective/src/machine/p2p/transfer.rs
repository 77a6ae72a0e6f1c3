//! How the bytes of messages travel. Over a link between the two nodes where there is one, and along the edges of the first
//! tree otherwise: so between zones they cross where the gateways do.
//!
//! Links that make a way shorter are asked for at the first message between two nodes of a zone, as long as a node has
//! fewer than [`MAX_LINKS`](crate::machine::MAX_LINKS); until they stand, and beyond that, the tree serves.

use super::P2p;
use super::matching::most_asked;
use super::message::Piece;
use super::queues::{Content, Forwarded, Hop, Next, SendDesc};
use crate::machine::cause::{Broken, ProtocolViolation};
use crate::machine::io::{
    Effect, FORWARDING, Frame, MessageId, NO_SLOT, Placement, Region, Ticket,
};
use crate::machine::node::{Node, Work};
use crate::machine::view::GroupView;

/// Frames that others may have passed on before a group is open here, beside what ranks may ask for: twice what a link
/// queues.
const MAX_DEFERRED: u64 = 8192;

impl P2p {
    /// Two nodes of a zone that send each other something want a link.
    pub(super) fn want_link(view: &GroupView, node: &mut Node, to: usize) {
        if to != view.node && view.trees.share_zone(view.node, to) {
            node.connect_if_there_is_room(view.nodes[to]);
        }
    }

    /// Sends a frame without payload on its way to a node. `from`: who has sent it here.
    pub(super) fn route(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        to: usize,
        frame: Frame,
        from: Option<usize>,
    ) -> Result<(), ProtocolViolation> {
        let hop = Hop::towards(view, node, to).node;
        if Some(hop) == from {
            return Err(ProtocolViolation::Direction);
        }
        if !self.is_open {
            self.deferred.push_back((to, frame));
            let too_many = self.deferred.len() as u64 > MAX_DEFERRED + most_asked(view);
            return if too_many {
                Err(ProtocolViolation::Message)
            } else {
                Ok(())
            };
        }
        if !has_left(node, view.nodes[hop]) {
            view.send(node, hop, frame, None);
        }
        Ok(())
    }

    /// Sends what there is room for.
    pub(in crate::machine) fn pump(&mut self, view: &GroupView, node: &mut Node) {
        while let Some((to, frame)) = self.deferred.pop_front() {
            self.route(view, node, to, frame, None).ok();
        }
        self.ask_more(view, node);
        for hop in self.queues.hops() {
            while node.broken.is_none() && self.pump_hop(view, node, hop).is_some() {}
        }
    }

    fn pump_hop(&mut self, view: &GroupView, node: &mut Node, hop: Hop) -> Option<()> {
        let slot = self.queues.room(view, hop)?;
        if has_left(node, view.nodes[hop.node]) {
            return None;
        }
        match self.queues.next(hop)? {
            Next::Relayed(relayed) => self.send_forwarded(view, node, hop, slot, relayed),
            Next::Own(message) => self.send_own(view, node, hop, slot, message),
        }
        Some(())
    }

    fn send_forwarded(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        hop: Hop,
        slot: u8,
        relayed: Forwarded,
    ) {
        let Forwarded {
            message,
            chunk,
            bytes,
            peer,
            slot: from,
        } = relayed;
        let region = Region {
            buffer: view.receive(peer, FORWARDING, from),
            offset: 0,
            bytes: u64::from(bytes),
        };
        let content = Content::Relayed { peer, slot: from };
        let desc = SendDesc { hop, slot, content };
        self.hand_over(view, node, (message, chunk), region, desc);
    }

    /// The next chunk of a message.
    fn send_own(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        hop: Hop,
        slot: u8,
        message: MessageId,
    ) {
        let now = Hop::towards(view, node, view.home(message.to));
        if now != hop {
            // A link has come meanwhile.
            self.queues.push(view, now, message);
            while self.pump_hop(view, node, now).is_some() {}
            return;
        }
        let Some(outgoing) = self.outgoing.get_mut(&message) else {
            return; // Its operation has failed.
        };
        let (op, rank) = (outgoing.op, outgoing.rank);
        let (chunk, offset, bytes) = outgoing.take(view.chunk_bytes);
        if !outgoing.is_sent() {
            // Others have their turn.
            self.queues.push(view, hop, message);
        }
        let region = Region {
            buffer: view.input(op, rank),
            offset,
            bytes,
        };
        let incoming = self.incoming.get(&message);
        let content = Content::Own {
            op,
            message,
            chunk,
            into: incoming.map(|incoming| incoming.op),
        };
        let desc = SendDesc { hop, slot, content };
        self.hand_over(view, node, (message, chunk), region, desc);
    }

    fn hand_over(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        (message, chunk): (MessageId, u32),
        region: Region,
        desc: SendDesc,
    ) {
        let next = desc.hop.node;
        let is_loaded = region.bytes > 0;
        let piece = Piece {
            message,
            chunk,
            slot: if is_loaded { desc.slot } else { NO_SLOT },
            bytes: region.bytes as u32,
        };
        let frame = piece.frame(view.id);
        if !is_loaded {
            if next != view.node {
                view.send(node, next, frame, None);
            }
            self.chunk_left(view, node, desc);
            return;
        }
        self.queues.begin(view, &desc);
        let ticket = node.ticket(view.id, Work::P2p);
        self.sending.insert(ticket, desc);
        for op in desc.users() {
            *self.in_use.entry(op).or_default() += 1;
        }
        if next != view.node {
            view.send(node, next, frame, Some((ticket, region)));
        } else if let Some(destination) = self.target(view, &message, chunk) {
            node.out.push(Effect::Copy {
                ticket,
                source: region,
                destination,
            });
        }
    }

    /// A payload has been handed over.
    pub(in crate::machine) fn done(&mut self, view: &GroupView, node: &mut Node, ticket: Ticket) {
        let Some(desc) = self.sending.remove(&ticket) else {
            return;
        };
        self.queues.end(view, &desc);
        for op in desc.users() {
            match self.in_use.get_mut(&op) {
                Some(count) if *count > 1 => *count -= 1,
                Some(_) | None => drop(self.in_use.remove(&op)),
            }
        }
        self.chunk_left(view, node, desc);
        for op in desc.users() {
            self.release_call(view, node, op);
        }
    }

    /// What follows when a chunk is on its way, with a payload or without.
    fn chunk_left(&mut self, view: &GroupView, node: &mut Node, desc: SendDesc) {
        match desc.content {
            Content::Own { message, chunk, .. } => {
                if desc.hop.node == view.node {
                    self.came(view, node, message, chunk);
                }
                let Some(outgoing) = self.outgoing.get_mut(&message) else {
                    return;
                };
                if outgoing.left() {
                    let op = outgoing.op;
                    self.outgoing.remove(&message);
                    self.message_over(view, node, op);
                }
            }
            Content::Relayed { peer, slot } => {
                self.queues.free(peer, slot);
                if node.broken.is_none() {
                    let (group, tree) = (view.id, FORWARDING);
                    view.send(node, peer, Frame::Credit { group, tree, slot }, None);
                }
            }
        }
    }

    /// A slot that the next node has passed on is free again.
    pub(in crate::machine) fn on_credit(
        &mut self,
        peer: usize,
        slot: u8,
    ) -> Result<(), ProtocolViolation> {
        self.queues.on_credit(peer, slot)
    }

    /// Where the payload of a chunk that comes in goes.
    pub(in crate::machine) fn place(
        &self,
        view: &GroupView,
        peer: usize,
        piece: &Piece,
    ) -> Placement {
        let Piece {
            ref message,
            chunk,
            slot,
            bytes,
        } = *piece;
        let place = if view.check_message(message).is_err() {
            None
        } else if view.home(message.to) == view.node {
            self.target(view, message, chunk)
                .filter(|region| region.bytes == u64::from(bytes))
        } else {
            let is_free = self.queues.check(view, peer, slot, bytes).is_ok();
            is_free.then_some(Region {
                buffer: view.receive(peer, FORWARDING, slot),
                offset: 0,
                bytes: u64::from(bytes),
            })
        };
        place.map_or(Placement::Discard, Placement::Into)
    }

    /// A chunk has come, and lies where it belongs: for a rank here, or to be passed on.
    pub(in crate::machine) fn on_data(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        peer: usize,
        piece: Piece,
    ) -> Result<(), ProtocolViolation> {
        let Piece {
            message,
            chunk,
            slot,
            bytes,
        } = piece;
        view.check_message(&message)?;
        let to = view.home(message.to);
        if to == view.node {
            if slot != NO_SLOT {
                return Err(ProtocolViolation::Slot);
            }
            if !self.incoming.contains_key(&message) {
                node.counters.late_frames += 1; // Its operation has failed.
                return Ok(());
            }
            let place = self.target(view, &message, chunk);
            if place.is_none_or(|region| region.bytes != u64::from(bytes)) {
                return Err(ProtocolViolation::Chunk);
            }
            self.came(view, node, message, chunk);
            return Ok(());
        }
        if bytes == 0 {
            return self.route(view, node, to, piece.frame(view.id), Some(peer));
        }
        self.queues.check(view, peer, slot, bytes)?;
        let hop = Hop::towards(view, node, to);
        if hop.node == peer {
            return Err(ProtocolViolation::Direction);
        }
        let forwarded = Forwarded {
            message,
            chunk,
            bytes,
            peer,
            slot,
        };
        self.queues.forward(view, hop, forwarded);
        Ok(())
    }
}

/// Whether the next node has left. What was to go over it never arrives: that ends the epoch.
fn has_left(node: &mut Node, peer: usize) -> bool {
    let left = node.has_left(peer);
    if left {
        let (by, op) = (node.config.node, 0);
        node.break_with(Broken::NodeLeft { node: peer, by, op }, None);
    }
    left
}
