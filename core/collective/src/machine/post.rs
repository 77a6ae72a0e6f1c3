//! Messages that two ranks call for and the others need not know of. Those of a pair and a tag are matched in their
//! order, whatever else the two do; they have no place in the order of the group's operations. They are not held when an
//! epoch ends: they fail with the cause.

use super::cause::{Cause, Claim, Mismatch, Reason, Refusal, Verdict, Violation};
use super::group::Group;
use super::message::{Incoming, Outgoing, Want};
use super::node::Node;
use super::{Broken, Effect, MessageId, OpId, Stream};
use crate::op::{Call, OpKind};

/// Pairs of ranks and tags that one node counts messages of, in a group and direction.
const MAX_STREAMS: usize = 1 << 16;

/// A call of a rank here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Post {
    /// The local rank.
    rank: usize,
    call: Call,
    /// Whether it was told the end.
    told: bool,
    /// Work that is out and uses its input or its place.
    pub(super) tickets: u32,
}

impl Group {
    /// A local rank sends or receives.
    pub(super) fn post(
        &mut self,
        node: &mut Node,
        rank: usize,
        op: OpId,
        call: Call,
        refused: Option<Reason>,
    ) {
        let post = Post {
            rank,
            call,
            told: false,
            tickets: 0,
        };
        self.mail.posts.insert(op, post);
        if let Some(broken) = node.broken {
            self.end_post(node, op, Some(broken.into()));
            return;
        }
        let own = self.part.layout.ranks(self.part.node).start + rank as u32;
        let (from, to) = match call.kind.root() {
            Some(to) if matches!(call.kind, OpKind::Send { .. }) => (own, to),
            Some(from) => (from, own),
            None => return self.refuse_post(node, op, Reason::Root),
        };
        let sends = from == own;
        let other = if sends { to } else { from };
        if other >= self.part.layout.whole() || other == own {
            return self.refuse_post(node, op, Reason::Root);
        }
        let counts = match sends {
            true => &mut self.mail.sent,
            false => &mut self.mail.received,
        };
        let stream = (from, to, call.tag);
        if counts.len() >= MAX_STREAMS && !counts.contains_key(&stream) {
            return self.refuse_post(node, op, Reason::Tags);
        }
        let count = counts.entry(stream).or_default();
        let message = MessageId {
            from,
            to,
            of: Stream::Tag(call.tag),
            number: *count,
        };
        *count += 1;
        if let Some(lost) = self.lost_for(&call) {
            return self.refuse_post(node, op, lost); // The same on the other side, if that is there.
        }
        if let Some(reason) = refused {
            self.refuse_post(node, op, reason);
        }
        let (own, bytes) = (Want { call, refused }, call.input_bytes());
        if sends {
            let outgoing = Outgoing::new(op, rank, 0, own, bytes, self.chunk_bytes);
            self.offer(node, message, outgoing);
            self.refuse_sends_to_nobody(node);
            return;
        }
        if refused.is_none() {
            let incoming = Incoming::new(op, rank, 0, call, bytes, self.chunk_bytes);
            self.mail.incoming.insert(message, incoming);
        }
        self.ask_for(node, message, own);
    }

    /// A call that cannot be carried out.
    fn refuse_post(&mut self, node: &mut Node, op: OpId, reason: Reason) {
        let Some(&Post { rank, call, .. }) = self.mail.posts.get(&op) else {
            return;
        };
        let claim = Claim {
            rank: self.global(rank),
            call,
        };
        let refusal: Verdict = Refusal { claim, reason }.into();
        self.end_post(node, op, Some(refusal.into()));
    }

    /// The two ranks of a message do not mean the same, or the node of one cannot take part: both are told.
    pub(super) fn disagree(
        &mut self,
        node: &mut Node,
        message: MessageId,
        op: OpId,
        own: Want,
        want: Want,
        mismatch: Verdict,
    ) {
        self.mail.outgoing.remove(&message);
        let refusal = |rank, reason, call| {
            let claim = self.claim(rank, call);
            Verdict::from(Refusal { claim, reason })
        };
        let verdict = match (want.refused, own.refused) {
            (Some(reason), _) => refusal(message.to, reason, want.call),
            (None, Some(reason)) => refusal(message.from, reason, own.call),
            (None, None) => mismatch,
        };
        self.end_post(node, op, Some(verdict.into()));
        if want.refused.is_some() {
            return; // Its rank was told when it called.
        }
        let to = self.part.layout.node_of(message.to);
        if to == self.part.node {
            self.denied_here(node, message, own);
            return;
        }
        let frame = own.said_to_receiver(self.id, message);
        self.pass_on(node, to, frame, None).ok();
    }

    /// The rank that was to send has called something else.
    pub(super) fn denied(
        &mut self,
        node: &mut Node,
        peer: usize,
        message: MessageId,
        theirs: Want,
    ) -> Result<(), Violation> {
        self.check_ranks(&message)?;
        let to = self.part.layout.node_of(message.to);
        if to == self.part.node {
            self.denied_here(node, message, theirs);
            return Ok(());
        }
        let frame = theirs.said_to_receiver(self.id, message);
        self.pass_on(node, to, frame, Some(peer))
    }

    fn denied_here(&mut self, node: &mut Node, message: MessageId, theirs: Want) {
        let Some(incoming) = self.forget_incoming(&message) else {
            node.counters.late_frames += 1;
            return;
        };
        let one = self.claim(message.from, theirs.call);
        let verdict: Verdict = match theirs.refused {
            Some(reason) => Refusal { claim: one, reason }.into(),
            None => Mismatch {
                one,
                other: self.claim(message.to, incoming.call),
            }
            .into(),
        };
        self.end_post(node, incoming.op, Some(verdict.into()));
    }

    /// Tells a rank the end of its message, and lets go of it when nothing uses it.
    pub(super) fn end_post(&mut self, node: &mut Node, op: OpId, failed: Option<Cause>) {
        let Some(post) = self.mail.posts.get_mut(&op) else {
            return;
        };
        if !std::mem::replace(&mut post.told, true) {
            let outcome = failed.map_or(Ok(node.config.fence.epoch), Err);
            node.out.push(Effect::End {
                group: self.id,
                op,
                rank: self.part.locals[post.rank],
                outcome,
            });
        }
        self.release_post(node, op);
    }

    /// Lets go of a message whose end was told, once nothing uses it.
    pub(super) fn release_post(&mut self, node: &mut Node, op: OpId) {
        let mut over = self.mail.posts.get(&op).into_iter();
        if over.any(|post| post.told && post.tickets == 0) {
            self.mail.posts.remove(&op);
            let group = self.id;
            node.out.push(Effect::FreeInputs { group, op });
            node.out.push(Effect::Release { group, op });
        }
    }

    /// What is sent to a rank that has left without calling for it is never received: whoever sends is told as soon as this
    /// node knows.
    pub(super) fn refuse_sends_to_nobody(&mut self, node: &mut Node) {
        let sends = self.mail.outgoing.iter();
        let lost = sends.filter(|(message, sent)| {
            let is_tagged = message.of != Stream::Operation;
            is_tagged && !sent.is_wanted && self.has_rank_left(node, message.to)
        });
        let lost: Vec<_> = lost.map(|(message, sent)| (*message, sent.op)).collect();
        for (message, op) in lost {
            self.mail.outgoing.remove(&message);
            self.refuse_post(node, op, Reason::Left);
        }
    }

    /// Whether a rank of the group is known to have left in good order, alone or with its node.
    fn has_rank_left(&self, node: &Node, rank: u32) -> bool {
        let home = self.home(rank);
        if home != self.part.node {
            return node.has_left(self.part.nodes[home]);
        }
        let local = rank - self.part.layout.ranks(home).start;
        self.gone[local as usize]
    }

    /// The group is over: what was not matched by then never will be.
    pub(super) fn close_posts(&mut self, node: &mut Node) {
        for op in self.mail.posts.keys().copied().collect::<Vec<_>>() {
            self.refuse_post(node, op, Reason::Closed);
        }
    }

    /// The epoch is over.
    pub(super) fn break_posts(&mut self, node: &mut Node, broken: Broken) {
        for op in self.mail.posts.keys().copied().collect::<Vec<_>>() {
            self.end_post(node, op, Some(broken.into()));
        }
    }
}
