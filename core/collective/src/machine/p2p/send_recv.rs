//! Messages that two ranks call for and the others need not know of. Those of a pair and a tag are matched in their
//! order, whatever else the two do; they have no place in the order of the group's operations. They are not held when an
//! epoch ends: they fail with the cause.

use super::P2p;
use super::message::{Incoming, Outgoing, PairCall, SendRecv};
use crate::machine::cause::{
    Broken, CallRefusal, Cause, Mismatch, ProtocolViolation, Reason, Verdict,
};
use crate::machine::io::{Effect, MessageId, OpId, Stream};
use crate::machine::node::Node;
use crate::machine::view::GroupView;
use crate::op::OpKind;

/// Pairs of ranks and tags that one node counts messages of, in a group and direction.
const MAX_STREAMS: usize = 1 << 16;

impl P2p {
    /// A local rank sends or receives.
    pub(in crate::machine) fn call(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        rank: usize,
        op: OpId,
        own: PairCall,
    ) {
        let PairCall { call, refused } = own;
        let delivered = false;
        let entry = SendRecv {
            rank,
            call,
            delivered,
        };
        self.calls.insert(op, entry);
        if let Some(broken) = node.broken {
            self.end_call(view, node, op, Some(broken.into()));
            return;
        }
        let here = view.rank(rank);
        let (from, to) = match call.kind.root() {
            Some(to) if matches!(call.kind, OpKind::Send { .. }) => (here, to),
            Some(from) => (from, here),
            None => return self.refuse(view, node, op, Reason::Root),
        };
        let sends = from == here;
        let other = if sends { to } else { from };
        if other >= view.layout.whole() || other == here {
            return self.refuse(view, node, op, Reason::Root);
        }
        let counts = match sends {
            true => &mut self.sequence.sent,
            false => &mut self.sequence.received,
        };
        let stream = (from, to, call.tag);
        if counts.len() >= MAX_STREAMS && !counts.contains_key(&stream) {
            return self.refuse(view, node, op, Reason::Tags);
        }
        let count = counts.entry(stream).or_default();
        let message = MessageId {
            from,
            to,
            of: Stream::Tag(call.tag),
            number: *count,
        };
        *count += 1;
        if let Some(lost) = view.lost_for(&call) {
            // The same on the other side, if that is there.
            return self.refuse(view, node, op, lost);
        }
        if let Some(reason) = refused {
            self.refuse(view, node, op, reason);
        }
        if sends {
            let outgoing = Outgoing::new(op, rank, 0, own, view.chunk_bytes);
            self.send(view, node, message, outgoing);
            // Of many messages none is looked at again for each further one.
            if has_left(view, node, to) {
                self.refuse_sends_to_nobody(view, node);
            }
            return;
        }
        if refused.is_none() {
            let incoming = Incoming::new(op, rank, 0, call, view.chunk_bytes);
            self.incoming.insert(message, incoming);
        }
        self.ask_for(view, node, message, own);
    }

    /// A call that cannot be carried out.
    fn refuse(&mut self, view: &GroupView, node: &mut Node, op: OpId, reason: Reason) {
        let Some(&SendRecv { rank, call, .. }) = self.calls.get(&op) else {
            return;
        };
        let claim = view.claim(view.rank(rank), call);
        let refusal: Verdict = CallRefusal { claim, reason }.into();
        self.end_call(view, node, op, Some(refusal.into()));
    }

    /// The two ranks of a message do not mean the same, or the node of one cannot take part: both learn it.
    pub(super) fn disagree(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        message: MessageId,
        own: PairCall,
        theirs: PairCall,
        mismatch: Verdict,
    ) {
        let Some(outgoing) = self.outgoing.remove(&message) else {
            return;
        };
        let refusal = |rank, reason, call| {
            let claim = view.claim(rank, call);
            Verdict::from(CallRefusal { claim, reason })
        };
        let verdict = match (theirs.refused, own.refused) {
            (Some(reason), _) => refusal(message.to, reason, theirs.call),
            (None, Some(reason)) => refusal(message.from, reason, own.call),
            (None, None) => mismatch,
        };
        self.end_call(view, node, outgoing.op, Some(verdict.into()));
        if theirs.refused.is_some() {
            return; // Its rank learnt it when it called.
        }
        let to = view.home(message.to);
        if to == view.node {
            self.rejected_here(view, node, message, own);
            return;
        }
        let frame = own.reject(view.id, message);
        self.route(view, node, to, frame, None).ok();
    }

    /// The rank that was to send has called something else.
    pub(in crate::machine) fn on_reject(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        peer: usize,
        message: MessageId,
        theirs: PairCall,
    ) -> Result<(), ProtocolViolation> {
        view.check_message(&message)?;
        let to = view.home(message.to);
        if to == view.node {
            self.rejected_here(view, node, message, theirs);
            return Ok(());
        }
        let frame = theirs.reject(view.id, message);
        self.route(view, node, to, frame, Some(peer))
    }

    fn rejected_here(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        message: MessageId,
        theirs: PairCall,
    ) {
        let Some(incoming) = self.forget_incoming(view, &message) else {
            node.counters.late_frames += 1;
            return;
        };
        let one = view.claim(message.from, theirs.call);
        let verdict: Verdict = match theirs.refused {
            Some(reason) => CallRefusal { claim: one, reason }.into(),
            None => Mismatch {
                one,
                other: view.claim(message.to, incoming.call),
            }
            .into(),
        };
        self.end_call(view, node, incoming.op, Some(verdict.into()));
    }

    /// Delivers the end of a call to its rank, and lets go of it when nothing uses it.
    pub(super) fn end_call(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        op: OpId,
        failed: Option<Cause>,
    ) {
        let Some(call) = self.calls.get_mut(&op) else {
            return;
        };
        if !std::mem::replace(&mut call.delivered, true) {
            let outcome = failed.map_or(Ok(node.config.fence.epoch), Err);
            node.out.push(Effect::End {
                group: view.id,
                op,
                rank: view.locals[call.rank],
                outcome,
            });
        }
        self.release_call(view, node, op);
    }

    /// Lets go of a call whose end was delivered, once nothing uses it.
    pub(super) fn release_call(&mut self, view: &GroupView, node: &mut Node, op: OpId) {
        let is_over = self.calls.get(&op).is_some_and(|call| call.delivered);
        if is_over && !self.uses(op) {
            self.calls.remove(&op);
            let group = view.id;
            node.out.push(Effect::FreeInputs { group, op });
            node.out.push(Effect::Release { group, op });
        }
    }

    /// A local rank has closed its session.
    pub(in crate::machine) fn rank_left(&mut self, view: &GroupView, node: &mut Node, rank: usize) {
        self.check_asked_of(view, node, rank);
        self.refuse_sends_to_nobody(view, node);
    }

    /// What is sent to a rank that has left without calling for it is never received: whoever sends learns it as soon as
    /// this node knows.
    pub(in crate::machine) fn refuse_sends_to_nobody(&mut self, view: &GroupView, node: &mut Node) {
        let sends = self.outgoing.iter();
        let lost = sends.filter(|(message, sent)| {
            let is_tagged = message.of != Stream::Operation;
            is_tagged && !sent.is_wanted && has_left(view, node, message.to)
        });
        let lost: Vec<_> = lost.map(|(message, sent)| (*message, sent.op)).collect();
        for (message, op) in lost {
            self.outgoing.remove(&message);
            self.refuse(view, node, op, Reason::Left);
        }
    }

    /// The group is over: nothing is sent and nothing is expected any more, and what was not matched never will be. Says
    /// whether nothing is on its way from here any more.
    pub(in crate::machine) fn finish(&mut self, view: &GroupView, node: &mut Node) -> bool {
        self.forget();
        for op in self.calls.keys().copied().collect::<Vec<_>>() {
            self.refuse(view, node, op, Reason::Closed);
        }
        self.calls.is_empty() && self.queues.are_idle()
    }

    /// The epoch is over: the same.
    pub(in crate::machine) fn close(&mut self, view: &GroupView, node: &mut Node, broken: Broken) {
        self.forget();
        for op in self.calls.keys().copied().collect::<Vec<_>>() {
            self.end_call(view, node, op, Some(broken.into()));
        }
    }
}

/// Whether a rank of the group is known to have left in good order, alone or with its node.
fn has_left(view: &GroupView, node: &Node, rank: u32) -> bool {
    let home = view.home(rank);
    if home != view.node {
        return node.has_left(view.nodes[home]);
    }
    let local = (rank - view.rank(0)) as usize;
    node.left.contains(&view.locals[local])
}
