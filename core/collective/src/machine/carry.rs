//! How the bytes of messages travel. Over a link between the two nodes where there is one, and along the edges of the first
//! tree otherwise: so between zones they cross where the gateways do. Who passes them on keeps them in slots, which the
//! node before it counts. What arrives always has its place, and ways in a tree never turn, so no slot waits for itself.
//!
//! Links that make a way shorter are asked for at the first message between two nodes of a zone, as long as a node has
//! fewer than [`super::MAX_LINKS`]; until they stand, and beyond that, the tree serves.

use std::collections::VecDeque;

use super::cause::Violation;
use super::edge::{Parent, Slot};
use super::group::Group;
use super::mail::extent;
use super::node::{Node, Work};
use super::{Broken, Effect, Frame, MessageId, NO_SLOT, OpId, Placement, RELAY, Region};

/// Frames that others may have passed on before a group stands here: twice what a link queues.
const MAX_UNSAID: usize = 8192;

/// Where bytes go next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hop {
    node: usize,
    /// Whether that node has to pass them on, and needs a slot for it.
    passes: bool,
}

/// A payload that is handed over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parcel {
    hop: Hop,
    /// The next node's slot, or none.
    slot: u8,
    content: Content,
}

#[derive(Clone, Copy, Debug)]
enum Content {
    /// A chunk of a message of a rank here; `into`: the call of a rank here that gets it.
    Own {
        message: MessageId,
        chunk: u32,
        into: Option<OpId>,
    },
    /// What another node has handed over in this slot.
    Relayed { peer: usize, slot: u8 },
}

impl Parcel {
    /// The calls whose memory it uses.
    fn posts(&self, op: OpId) -> impl Iterator<Item = OpId> + use<> {
        let into = match self.content {
            Content::Own { into, .. } => into,
            Content::Relayed { .. } => None,
        };
        std::iter::once(op).chain(into)
    }
}

/// A chunk that has to be passed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relayed {
    message: MessageId,
    chunk: u32,
    bytes: u32,
    peer: usize,
    slot: u8,
}

/// What waits for one hop.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) relayed: VecDeque<Relayed>,
    pub(super) own: VecDeque<MessageId>,
    /// Payloads on their way, at most as many as an edge has slots.
    pub(super) sending: u8,
    /// The next node's slots.
    slots: Parent,
}

impl Group {
    /// The neighbours that have something passed on here.
    pub(super) fn relays(&self) -> impl Iterator<Item = usize> + '_ {
        let passes = self.part.nodes.len() > 2;
        let neighbours = self.part.trees.trees[0].neighbours(self.part.node);
        neighbours.filter(move |_| passes)
    }

    pub(super) fn home(&self, rank: u32) -> usize {
        self.part.layout.node_of(rank)
    }

    /// The next node on the way to another.
    pub(super) fn hop(&self, node: &Node, to: usize) -> Hop {
        let own = self.part.node;
        let trees = &self.part.trees;
        let is_direct =
            to == own || trees.share_zone(own, to) && node.is_linked(self.part.nodes[to]);
        let next = if is_direct {
            to
        } else {
            trees.next_towards(own, to)
        };
        Hop {
            node: next,
            passes: next != to,
        }
    }

    /// Two nodes of a zone that send each other something want a link.
    pub(super) fn want_link(&self, node: &mut Node, to: usize) {
        if to != self.part.node && self.part.trees.share_zone(self.part.node, to) {
            node.connect_if_there_is_room(self.part.nodes[to]);
        }
    }

    /// Sends a frame without payload on its way to a node. `from`: who has sent it here.
    pub(super) fn pass_on(
        &mut self,
        node: &mut Node,
        to: usize,
        frame: Frame,
        from: Option<usize>,
    ) -> Result<(), Violation> {
        let hop = self.hop(node, to).node;
        if Some(hop) == from {
            return Err(Violation::Direction);
        }
        let peer = self.part.nodes[hop];
        if !self.stands {
            // Others may be ahead, and a link of ours not stand yet.
            self.mail.unsaid.push_back((to, frame));
            let too_many = self.mail.unsaid.len() > MAX_UNSAID;
            return if too_many {
                Err(Violation::Message)
            } else {
                Ok(())
            };
        }
        if node.has_left(peer) {
            let (by, op) = (node.config.node, 0);
            node.break_with(Broken::NodeLeft { node: peer, by, op }, None);
        } else {
            self.send(node, hop, frame, None);
        }
        Ok(())
    }

    pub(super) fn queue(&mut self, hop: Hop) -> &mut Queue {
        let slots = if hop.passes { self.slots } else { 0 };
        let queue = self.mail.queues.entry(hop);
        queue.or_insert_with(|| Queue {
            relayed: VecDeque::new(),
            own: VecDeque::new(),
            sending: 0,
            slots: Parent::new(slots),
        })
    }

    /// Sends what there is room for.
    pub(super) fn pump_mail(&mut self, node: &mut Node) {
        while let Some((to, frame)) = self.mail.unsaid.pop_front() {
            self.pass_on(node, to, frame, None).ok();
        }
        self.ask_more(node);
        let hops: Vec<Hop> = self.mail.queues.keys().copied().collect();
        for hop in hops {
            while node.broken.is_none() && self.pump_hop(node, hop).is_some() {}
        }
    }

    fn pump_hop(&mut self, node: &mut Node, hop: Hop) -> Option<()> {
        let room = self.slots;
        let queue = self.mail.queues.get_mut(&hop)?;
        if queue.relayed.is_empty() && queue.own.is_empty() || queue.sending >= room {
            return None;
        }
        let slot = match hop.passes {
            true => queue.slots.free(0)?,
            false => NO_SLOT,
        };
        if node.has_left(self.part.nodes[hop.node]) {
            let (left, by) = (self.part.nodes[hop.node], node.config.node);
            let broken = Broken::NodeLeft {
                node: left,
                by,
                op: 0,
            };
            node.break_with(broken, None);
            return None;
        }
        match queue.relayed.pop_front() {
            Some(relayed) => self.send_relayed(node, hop, slot, relayed),
            None => self.send_own(node, hop, slot)?,
        }
        Some(())
    }

    fn send_relayed(&mut self, node: &mut Node, hop: Hop, slot: u8, relayed: Relayed) {
        let Relayed {
            message,
            chunk,
            bytes,
            peer,
            slot: from,
        } = relayed;
        let region = Region {
            buffer: self.receive(peer, RELAY, from),
            offset: 0,
            bytes: u64::from(bytes),
        };
        let content = Content::Relayed { peer, slot: from };
        let parcel = Parcel { hop, slot, content };
        self.hand_over(node, (message, chunk), region, OpId::MAX, parcel);
    }

    /// The next chunk of the next message.
    fn send_own(&mut self, node: &mut Node, hop: Hop, slot: u8) -> Option<()> {
        let message = self.mail.queues.get_mut(&hop)?.own.pop_front()?;
        let now = self.hop(node, self.home(message.to));
        if now != hop {
            // A link has come meanwhile.
            self.queue(now).own.push_back(message);
            while self.pump_hop(node, now).is_some() {}
            return Some(());
        }
        let chunk_bytes = self.chunk_bytes;
        let Some(outgoing) = self.mail.outgoing.get_mut(&message) else {
            return Some(()); // Its operation has failed.
        };
        let chunk = outgoing.next;
        outgoing.next += 1;
        let (op, rank, is_last) = (outgoing.op, outgoing.rank, outgoing.next == outgoing.chunks);
        let (skipped, bytes) = extent(outgoing.bytes, chunk, chunk_bytes);
        let offset = outgoing.offset + skipped;
        if !is_last {
            // Others have their turn.
            self.mail.queues.get_mut(&hop)?.own.push_back(message);
        }
        let region = Region {
            buffer: self.input(op, rank),
            offset,
            bytes,
        };
        let incoming = self.mail.incoming.get(&message);
        let content = Content::Own {
            message,
            chunk,
            into: incoming.map(|incoming| incoming.op),
        };
        let parcel = Parcel { hop, slot, content };
        self.hand_over(node, (message, chunk), region, op, parcel);
        Some(())
    }

    fn hand_over(
        &mut self,
        node: &mut Node,
        (message, chunk): (MessageId, u32),
        region: Region,
        op: OpId,
        parcel: Parcel,
    ) {
        let Hop { node: next, passes } = parcel.hop;
        let loaded = region.bytes > 0;
        let slot = if loaded { parcel.slot } else { NO_SLOT };
        if loaded && passes {
            let state = Slot::Sent {
                left: false,
                returned: false,
            };
            self.queue(parcel.hop).slots.set(slot, state);
        }
        if !loaded {
            if next != self.part.node {
                let frame = self.data(message, chunk, slot, 0);
                self.send(node, next, frame, None);
            }
            self.chunk_left(node, parcel);
            return;
        }
        self.queue(parcel.hop).sending += 1;
        let ticket = self.ticket(node, Work::Mail { op, parcel });
        for post in parcel.posts(op) {
            if let Some(post) = self.mail.posts.get_mut(&post) {
                post.tickets += 1;
            }
        }
        if next != self.part.node {
            let frame = self.data(message, chunk, slot, region.bytes as u32);
            self.send(node, next, frame, Some((ticket, region)));
        } else if let Some(destination) = self.target(&message, chunk) {
            node.out.push(Effect::Copy {
                ticket,
                source: region,
                destination,
            });
        }
    }

    fn data(&self, message: MessageId, chunk: u32, slot: u8, bytes: u32) -> Frame {
        Frame::Data {
            group: self.id,
            message,
            chunk,
            slot,
            bytes,
        }
    }

    /// A payload has been handed over.
    pub(super) fn parcel_left(&mut self, node: &mut Node, op: OpId, parcel: Parcel) {
        let queue = self.queue(parcel.hop);
        queue.sending -= 1;
        if parcel.hop.passes {
            queue.slots.left(parcel.slot);
        }
        for post in parcel.posts(op) {
            if let Some(post) = self.mail.posts.get_mut(&post) {
                post.tickets -= 1;
            }
        }
        self.chunk_left(node, parcel);
        for post in parcel.posts(op) {
            self.release_post(node, post);
        }
    }

    /// What follows when a chunk is on its way, with a payload or without.
    fn chunk_left(&mut self, node: &mut Node, parcel: Parcel) {
        match parcel.content {
            Content::Own { message, chunk, .. } => {
                if parcel.hop.node == self.part.node {
                    self.came(node, message, chunk);
                }
                let Some(outgoing) = self.mail.outgoing.get_mut(&message) else {
                    return;
                };
                outgoing.left -= 1;
                if outgoing.left == 0 {
                    let op = outgoing.op;
                    self.mail.outgoing.remove(&message);
                    self.message_over(node, op);
                }
            }
            Content::Relayed { peer, slot } => {
                if let Some(taken) = self.mail.taken.get_mut(&peer) {
                    *taken &= !(1 << slot);
                }
                if node.broken.is_none() {
                    let (group, tree) = (self.id, RELAY);
                    self.send(node, peer, Frame::Credit { group, tree, slot }, None);
                }
            }
        }
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
