//! Messages from one rank to another. Who receives asks for a message when it has called for it, so bytes travel only
//! when their place is there, and nothing has to be kept for those who come late but the question. They go over a link
//! between the two nodes where there is one, and along the edges of the first tree otherwise: so between zones they cross
//! where the gateways do. Who passes them on keeps them in slots, which the node before it counts. What arrives always
//! has its place, and ways in a tree never turn, so no slot waits for itself.
//!
//! Links that make a way shorter are asked for at the first message between two nodes of a zone, as long as both have
//! fewer than [`super::MAX_LINKS`]; until they stand, and beyond that, the tree serves.

use std::collections::{BTreeMap, VecDeque};

use super::cause::{Claim, Mismatch, Reason, Verdict, Violation};
use super::edge::{Parent, Slot};
use super::group::Group;
use super::node::{Node, Work};
use super::post::Post;
use super::{
    Broken, Buffer, Effect, Frame, MAX_IN_FLIGHT, MessageId, NO_SLOT, OpId, Placement, RELAY,
    Region, Stream,
};
use crate::op::Call;

/// Messages of operations that one node asks its own zone for at a time: some chunks from each of many.
const ASKED_NEAR: usize = 64;
/// And of other zones. The questions of 1,250 nodes meet at the gateways, whose link queues 4,096 frames.
const ASKED_FAR: usize = 2;

/// What a rank has called for a message, and why its node cannot carry that out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) call: Call,
    pub(super) refused: Option<Reason>,
}

/// A message of a rank here.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) op: OpId,
    /// The local rank whose input it lies in, and where.
    rank: usize,
    offset: u64,
    bytes: u64,
    pub(super) own: Want,
    /// The next chunk that goes out, of so many; and how many have not left.
    next: u32,
    chunks: u32,
    left: u32,
}

impl Outgoing {
    pub(super) fn new(
        op: OpId,
        rank: usize,
        offset: u64,
        own: Want,
        bytes: u64,
        chunk_bytes: u32,
    ) -> Self {
        let chunks = chunks(bytes, chunk_bytes);
        Self {
            op,
            rank,
            offset,
            bytes,
            own,
            next: 0,
            chunks,
            left: chunks,
        }
    }
}

/// A message for a rank here.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) op: OpId,
    rank: usize,
    offset: u64,
    bytes: u64,
    pub(super) call: Call,
    asked: bool,
    /// A bit for each chunk that has come, and how many have not.
    came: Vec<u64>,
    left: u32,
}

impl Incoming {
    pub(super) fn new(
        op: OpId,
        rank: usize,
        offset: u64,
        call: Call,
        bytes: u64,
        chunk_bytes: u32,
    ) -> Self {
        let left = chunks(bytes, chunk_bytes);
        Self {
            op,
            rank,
            offset,
            bytes,
            call,
            asked: false,
            came: vec![0; (left as usize).div_ceil(64)],
            left,
        }
    }

    fn has(&self, chunk: u32) -> bool {
        let word = self.came.get((chunk / 64) as usize);
        word.is_some_and(|word| word & (1 << (chunk % 64)) != 0)
    }
}

/// At least one: a message without bytes says that it was sent.
fn chunks(bytes: u64, chunk_bytes: u32) -> u32 {
    bytes.div_ceil(u64::from(chunk_bytes)).max(1) as u32
}

/// The range of a chunk in a message.
fn extent(bytes: u64, chunk: u32, chunk_bytes: u32) -> (u64, u64) {
    let skipped = u64::from(chunk) * u64::from(chunk_bytes);
    let length = bytes.saturating_sub(skipped).min(u64::from(chunk_bytes));
    (skipped, length)
}

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
struct Relayed {
    message: MessageId,
    chunk: u32,
    bytes: u32,
    peer: usize,
    slot: u8,
}

/// What waits for one hop.
#[derive(Debug)]
struct Queue {
    relayed: VecDeque<Relayed>,
    own: VecDeque<MessageId>,
    /// Payloads on their way, at most as many as an edge has slots.
    sending: u8,
    /// The next node's slots.
    slots: Parent,
}

/// All messages of a group that concern this node.
#[derive(Debug, Default)]
pub(super) struct Mail {
    pub(super) outgoing: BTreeMap<MessageId, Outgoing>,
    pub(super) incoming: BTreeMap<MessageId, Incoming>,
    /// Asked for before a rank here has called: at most what may be in flight.
    wanted: BTreeMap<MessageId, Want>,
    /// Not asked for yet: of the own zone, and of others.
    unasked: [VecDeque<MessageId>; 2],
    asked: [usize; 2],
    queues: BTreeMap<Hop, Queue>,
    /// Slots of this node that each neighbour has filled, a bit each.
    taken: BTreeMap<usize, u64>,
    pub(super) posts: BTreeMap<OpId, Post>,
    /// How many messages were sent and received under a tag: of (from, to, tag).
    pub(super) sent: BTreeMap<(u32, u32, u64), u64>,
    pub(super) received: BTreeMap<(u32, u32, u64), u64>,
}

impl Mail {
    /// Whether something waits for room.
    pub(super) fn waits(&self) -> bool {
        let mut queues = self.queues.values();
        queues.any(|queue| !queue.own.is_empty() || !queue.relayed.is_empty())
    }

    fn forget(&mut self) {
        self.incoming.clear();
        self.outgoing.clear();
        self.wanted.clear();
        self.unasked = Default::default();
        for queue in self.queues.values_mut() {
            queue.own.clear();
            queue.relayed.clear();
        }
    }

    /// Whether a rank here waits for a message, or a neighbour for one to be passed on.
    pub(super) fn is_in_use(&self) -> bool {
        !self.posts.is_empty() || self.taken.values().any(|taken| *taken != 0)
    }
}

impl Group {
    /// The neighbours that have something passed on here.
    pub(super) fn relays(&self) -> impl Iterator<Item = usize> + '_ {
        let passes = self.part.nodes.len() > 2;
        let neighbours = self.part.trees.trees[0].neighbours(self.part.node);
        neighbours.filter(move |_| passes)
    }

    fn home(&self, rank: u32) -> usize {
        self.part.layout.node_of(rank)
    }

    /// The next node on the way to another.
    fn hop(&self, node: &Node, to: usize) -> Hop {
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
    fn want_link(&self, node: &mut Node, to: usize) {
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
        if node.has_left(peer) {
            let (by, op) = (node.config.node, 0);
            node.break_with(Broken::NodeLeft { node: peer, by, op }, None);
        } else {
            self.send(node, hop, frame, None);
        }
        Ok(())
    }

    pub(super) fn check_ranks(&self, message: &MessageId) -> Result<(), Violation> {
        let exists = |rank: u32| self.part.layout.has_rank(rank);
        if exists(message.from) && exists(message.to) {
            Ok(())
        } else {
            Err(Violation::Message)
        }
    }

    /// A rank here expects a message.
    pub(super) fn expect(&mut self, message: MessageId, incoming: Incoming) {
        let far = !self.is_near(message.from);
        self.mail.unasked[usize::from(far)].push_back(message);
        self.mail.incoming.insert(message, incoming);
    }

    fn is_near(&self, rank: u32) -> bool {
        self.part.trees.share_zone(self.part.node, self.home(rank))
    }

    /// Asks for messages as far as there is room.
    fn ask_more(&mut self, node: &mut Node) {
        for (far, limit) in [ASKED_NEAR, ASKED_FAR].into_iter().enumerate() {
            while self.mail.asked[far] < limit && node.broken.is_none() {
                let Some(message) = self.mail.unasked[far].pop_front() else {
                    break;
                };
                let Some(incoming) = self.mail.incoming.get_mut(&message) else {
                    continue;
                };
                incoming.asked = true;
                self.mail.asked[far] += 1;
                let (call, refused) = (incoming.call, None);
                self.ask_for(node, message, Want { call, refused });
            }
        }
    }

    /// Tells the node of the rank that sends what is expected of it.
    pub(super) fn ask_for(&mut self, node: &mut Node, message: MessageId, want: Want) {
        let from = self.home(message.from);
        self.want_link(node, from);
        if from == self.part.node {
            self.want_here(node, message, want);
            return;
        }
        let Want { call, refused } = want;
        let frame = Frame::Want {
            group: self.id,
            message,
            call,
            refused,
        };
        // Of our own ranks: there is no turning back.
        self.pass_on(node, from, frame, None).ok();
    }

    /// A question has come.
    pub(super) fn wanted(
        &mut self,
        node: &mut Node,
        peer: usize,
        message: MessageId,
        want: Want,
    ) -> Result<(), Violation> {
        self.check_ranks(&message)?;
        let from = self.home(message.from);
        if from != self.part.node {
            let frame = Frame::Want {
                group: self.id,
                message,
                call: want.call,
                refused: want.refused,
            };
            return self.pass_on(node, from, frame, Some(peer));
        }
        let is_old = match message.of {
            Stream::Operation => !self.is_live(message.number)?,
            Stream::Tag(tag) => {
                let sent = self.mail.sent.get(&(message.from, message.to, tag));
                let is_sent = sent.is_some_and(|sent| message.number < *sent);
                is_sent && !self.mail.outgoing.contains_key(&message)
            }
        };
        if is_old {
            node.counters.late_frames += 1;
            return Ok(());
        }
        let pairs = self.called.len() as u64 * u64::from(self.part.layout.whole());
        if self.mail.wanted.len() as u64 > 2 * MAX_IN_FLIGHT * pairs {
            return Err(Violation::Message);
        }
        if message.of == Stream::Operation {
            self.hear_of(node, message.number);
        }
        self.want_here(node, message, want);
        Ok(())
    }

    /// What is asked of a rank that has left never comes: say so instead of waiting.
    pub(super) fn check_wanted_of(&mut self, node: &mut Node, local: usize) {
        let rank = self.part.layout.ranks(self.part.node).start + local as u32;
        let mut wanted = self.mail.wanted.keys();
        let tagged = |message: &&MessageId| message.of != Stream::Operation;
        if wanted.any(|message| message.from == rank && tagged(&message)) {
            let (rank, by, op) = (self.global(local), node.config.node, 0);
            node.break_with(Broken::RankLeft { rank, by, op }, None);
        }
    }

    fn want_here(&mut self, node: &mut Node, message: MessageId, want: Want) {
        if self.mail.outgoing.contains_key(&message) {
            self.meet(node, message, want);
        } else {
            self.mail.wanted.insert(message, want);
            let local = (message.from - self.part.layout.ranks(self.part.node).start) as usize;
            if self.gone[local] {
                self.check_wanted_of(node, local);
            }
        }
    }

    /// A rank here sends a message.
    pub(super) fn offer(&mut self, node: &mut Node, message: MessageId, outgoing: Outgoing) {
        self.want_link(node, self.home(message.to));
        self.mail.outgoing.insert(message, outgoing);
        if let Some(want) = self.mail.wanted.remove(&message) {
            self.meet(node, message, want);
        }
    }

    /// Both ranks have called: the message goes out if they mean the same.
    fn meet(&mut self, node: &mut Node, message: MessageId, want: Want) {
        let Some(outgoing) = self.mail.outgoing.get(&message) else {
            return;
        };
        let (own, op) = (outgoing.own, outgoing.op);
        let size = |call: Call| (call.dtype, call.count);
        let agree = size(own.call) == size(want.call);
        if agree && own.refused.is_none() && want.refused.is_none() {
            let hop = self.hop(node, self.home(message.to));
            self.queue(hop).own.push_back(message);
            return;
        }
        let claim = |rank, call| Claim {
            rank: self.part.name(rank),
            call,
        };
        let mismatch: Verdict = Mismatch {
            one: claim(message.from, own.call),
            other: claim(message.to, want.call),
        }
        .into();
        match message.of {
            Stream::Operation => {
                // Of two different operations the trees find out, in words about these.
                let same = std::mem::discriminant(&own.call.kind)
                    == std::mem::discriminant(&want.call.kind);
                if let Some(operation) = self.ops.get_mut(&op).filter(|_| same) {
                    operation.exchange.dispute.get_or_insert(mismatch);
                    self.turns.stir(op);
                }
            }
            Stream::Tag(_) => self.disagree(node, message, op, own, want, mismatch),
        }
    }

    fn queue(&mut self, hop: Hop) -> &mut Queue {
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

    /// Where a chunk for a rank here belongs, if it is expected.
    fn target(&self, message: &MessageId, chunk: u32) -> Option<Region> {
        let incoming = self.mail.incoming.get(message)?;
        let (offset, bytes) = extent(incoming.bytes, chunk, self.chunk_bytes);
        let buffer = Buffer::Own {
            group: self.id,
            op: incoming.op,
            rank: self.part.locals[incoming.rank],
        };
        let is_new = chunk < chunks(incoming.bytes, self.chunk_bytes) && !incoming.has(chunk);
        is_new.then_some(Region {
            buffer,
            offset: incoming.offset + offset,
            bytes,
        })
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

    fn came(&mut self, node: &mut Node, message: MessageId, chunk: u32) {
        let Some(incoming) = self.mail.incoming.get_mut(&message) else {
            return;
        };
        if let Some(word) = incoming.came.get_mut((chunk / 64) as usize) {
            *word |= 1 << (chunk % 64);
        }
        incoming.left -= 1;
        if incoming.left > 0 {
            return;
        }
        let op = incoming.op;
        self.forget_incoming(&message);
        self.message_over(node, op);
    }

    /// A message is not expected any more; others may be asked for.
    pub(super) fn forget_incoming(&mut self, message: &MessageId) -> Option<Incoming> {
        let incoming = self.mail.incoming.remove(message)?;
        if incoming.asked {
            let far = usize::from(!self.is_near(message.from));
            self.mail.asked[far] -= 1;
        }
        Some(incoming)
    }

    /// A message from or to a rank here is where it belongs.
    fn message_over(&mut self, node: &mut Node, op: OpId) {
        match self.ops.get_mut(&op) {
            Some(operation) => {
                operation.exchange.left -= 1;
                self.turns.stir(op);
            }
            None => self.end_post(node, op, None),
        }
    }

    /// An operation is over before its messages are.
    pub(super) fn drop_messages(&mut self, op: OpId) {
        let is_its = |message: &MessageId| (message.of, message.number) == (Stream::Operation, op);
        self.mail.outgoing.retain(|message, _| !is_its(message));
        self.mail.wanted.retain(|message, _| !is_its(message));
        let incoming = self.mail.incoming.keys().copied();
        for message in incoming.filter(is_its).collect::<Vec<_>>() {
            self.forget_incoming(&message);
        }
    }

    /// The epoch is over: nothing is sent and nothing is expected any more.
    pub(super) fn close_mail(&mut self, node: &mut Node, broken: Broken) {
        self.mail.forget();
        self.break_posts(node, broken);
    }

    /// The group is over: the same. Says whether nothing is on its way from here any more.
    pub(super) fn finish_mail(&mut self, node: &mut Node) -> bool {
        self.mail.forget();
        self.close_posts(node);
        let mut queues = self.mail.queues.values();
        self.mail.posts.is_empty() && queues.all(|queue| queue.sending == 0)
    }
}
