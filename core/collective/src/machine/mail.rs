//! Messages from one rank to another. Who receives asks for a message when it has called for it, so bytes travel only
//! when their place is there, and nothing has to be kept for those who come late but the question. Which way they take is
//! in `carry` and `relay`.

use std::collections::{BTreeMap, VecDeque};

use super::carry::{Hop, Queue};
use super::cause::{Claim, Mismatch, Verdict, Violation};
use super::group::Group;
use super::message::{Incoming, Outgoing, Want};
use super::node::Node;
use super::post::Post;
use super::{Broken, Buffer, Frame, MAX_IN_FLIGHT, MessageId, OpId, Region, Stream};
use crate::op::Call;

/// Messages of operations that one node asks its own zone for at a time: some chunks from each of many.
const ASKED_NEAR: usize = 64;
/// And of other zones. The questions of 1,250 nodes meet at the gateways, whose link queues 4,096 frames.
const ASKED_FAR: usize = 2;

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
    pub(super) queues: BTreeMap<Hop, Queue>,
    /// To be passed on to these nodes when the group stands here.
    pub(super) unsaid: VecDeque<(usize, Frame)>,
    /// Slots of this node that each neighbour has filled, a bit each.
    pub(super) taken: BTreeMap<usize, u64>,
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
        self.unsaid.clear();
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
    pub(super) fn ask_more(&mut self, node: &mut Node) {
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
        let frame = want.asked_of_sender(self.id, message);
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
            let frame = want.asked_of_sender(self.id, message);
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
        let Some(outgoing) = self.mail.outgoing.get_mut(&message) else {
            return;
        };
        outgoing.is_wanted = true;
        let (own, op) = (outgoing.own, outgoing.op);
        let size = |call: Call| (call.dtype, call.count);
        let agree = size(own.call) == size(want.call);
        if agree && own.refused.is_none() && want.refused.is_none() {
            let hop = self.hop(node, self.home(message.to));
            self.queue(hop).own.push_back(message);
            return;
        }
        let mismatch: Verdict = Mismatch {
            one: self.claim(message.from, own.call),
            other: self.claim(message.to, want.call),
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

    /// What a rank of the group has called, by its global number.
    pub(super) fn claim(&self, rank: u32, call: Call) -> Claim {
        let rank = self.part.name(rank);
        Claim { rank, call }
    }

    /// Where a chunk for a rank here belongs, if it is expected.
    pub(super) fn target(&self, message: &MessageId, chunk: u32) -> Option<Region> {
        let incoming = self.mail.incoming.get(message)?;
        let (offset, bytes) = incoming.place(chunk, self.chunk_bytes)?;
        let buffer = Buffer::Own {
            group: self.id,
            op: incoming.op,
            rank: self.part.locals[incoming.rank],
        };
        Some(Region {
            buffer,
            offset,
            bytes,
        })
    }

    pub(super) fn came(&mut self, node: &mut Node, message: MessageId, chunk: u32) {
        let Some(incoming) = self.mail.incoming.get_mut(&message) else {
            return;
        };
        if !incoming.take(chunk) {
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
    pub(super) fn message_over(&mut self, node: &mut Node, op: OpId) {
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
