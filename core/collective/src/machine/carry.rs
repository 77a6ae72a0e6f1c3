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
use super::message::extent;
use super::node::{Node, Work};
use super::relay::Relayed;
use super::{Broken, Effect, Frame, MessageId, NO_SLOT, OpId, RELAY, Region};

/// Frames that others may have passed on before a group stands here: twice what a link queues.
const MAX_UNSAID: usize = 8192;

/// Where bytes go next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hop {
    pub(super) node: usize,
    /// Whether that node has to pass them on, and needs a slot for it.
    pub(super) passes: bool,
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

/// What waits for one hop.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) relayed: VecDeque<Relayed>,
    pub(super) own: VecDeque<MessageId>,
    /// Payloads on their way, at most as many as an edge has slots.
    pub(super) sending: u8,
    /// The next node's slots.
    pub(super) slots: Parent,
}

impl Group {
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
        if !has_left(node, peer) {
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
        if has_left(node, self.part.nodes[hop.node]) {
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

    pub(super) fn data(&self, message: MessageId, chunk: u32, slot: u8, bytes: u32) -> Frame {
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
}

/// Whether the next node has said farewell. What was to go over it never arrives: that ends the epoch.
fn has_left(node: &mut Node, peer: usize) -> bool {
    let left = node.has_left(peer);
    if left {
        let (by, op) = (node.config.node, 0);
        node.break_with(Broken::NodeLeft { node: peer, by, op }, None);
    }
    left
}
