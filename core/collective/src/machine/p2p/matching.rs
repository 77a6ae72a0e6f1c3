//! Who receives says so to who sends; when both have called and mean the same, the message goes out.

use super::message::{Incoming, Outgoing, PairCall, Transfer};
use super::queues::Hop;
use super::{Event, P2p};
use crate::machine::cause::{Broken, Mismatch, ProtocolViolation, Verdict};
use crate::machine::config::{MAX_IN_FLIGHT, MAX_MESSAGES};
use crate::machine::io::{MessageId, OpId, Region, Stream};
use crate::machine::node::Node;
use crate::machine::view::GroupView;
use crate::op::Call;

/// Messages of operations that one node asks its own zone for at a time: some chunks from each of many.
const ASKED_NEAR: usize = 64;
/// And of other zones. The questions of 1,250 nodes meet at the gateways, whose link queues 4,096 frames.
const ASKED_FAR: usize = 2;

/// Messages that all ranks of a group may have asked for at once, beside those of operations.
pub(super) fn most_asked(view: &GroupView) -> u64 {
    MAX_MESSAGES * u64::from(view.layout.whole())
}

impl P2p {
    /// A rank here expects a message of an operation.
    pub(in crate::machine) fn expect(&mut self, view: &GroupView, transfer: Transfer) {
        let Transfer {
            message,
            rank,
            offset,
            call,
        } = transfer;
        let far = !view.is_near(message.from);
        self.requests.waiting[usize::from(far)].push_back(message);
        let incoming = Incoming::new(message.number, rank, offset, call, view.chunk_bytes);
        self.incoming.insert(message, incoming);
    }

    /// Asks for messages of operations as far as there is room.
    pub(super) fn ask_more(&mut self, view: &GroupView, node: &mut Node) {
        for (far, limit) in [ASKED_NEAR, ASKED_FAR].into_iter().enumerate() {
            while self.requests.asked[far] < limit && node.broken.is_none() {
                let Some(message) = self.requests.waiting[far].pop_front() else {
                    break;
                };
                let Some(incoming) = self.incoming.get_mut(&message) else {
                    continue;
                };
                incoming.asked = true;
                self.requests.asked[far] += 1;
                let (call, refused) = (incoming.call, None);
                self.ask_for(view, node, message, PairCall { call, refused });
            }
        }
    }

    /// Announces to the sending node what is expected of it.
    pub(super) fn ask_for(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        message: MessageId,
        theirs: PairCall,
    ) {
        let from = view.home(message.from);
        Self::want_link(view, node, from);
        if from == view.node {
            self.asked_here(view, node, message, theirs);
            return;
        }
        let frame = theirs.ready_to_receive(view.id, message);
        // Of our own ranks: there is no turning back.
        self.route(view, node, from, frame, None).ok();
    }

    /// A rank elsewhere is ready to receive. Needs a message of ranks of the group, of an operation that is not over.
    pub(in crate::machine) fn on_ready_to_receive(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        peer: usize,
        message: MessageId,
        theirs: PairCall,
    ) -> Result<(), ProtocolViolation> {
        let from = view.home(message.from);
        if from != view.node {
            let frame = theirs.ready_to_receive(view.id, message);
            return self.route(view, node, from, frame, Some(peer));
        }
        if self.is_sent(&message) {
            node.counters.late_frames += 1;
            return Ok(());
        }
        let pairs = view.locals.len() as u64 * u64::from(view.layout.whole());
        if self.early.len() as u64 > 2 * MAX_IN_FLIGHT * pairs + most_asked(view) {
            return Err(ProtocolViolation::Message);
        }
        self.asked_here(view, node, message, theirs);
        Ok(())
    }

    /// Whether a message that is no part of an operation was sent before.
    fn is_sent(&self, message: &MessageId) -> bool {
        let Stream::Tag(tag) = message.of else {
            return false;
        };
        let sent = self.sequence.sent.get(&(message.from, message.to, tag));
        let is_past = sent.is_some_and(|sent| message.number < *sent);
        is_past && !self.outgoing.contains_key(message)
    }

    /// What is asked of a rank that has left never comes: say so instead of waiting.
    pub(super) fn check_asked_of(&self, view: &GroupView, node: &mut Node, local: usize) {
        let rank = view.rank(local);
        let mut early = self.early.keys();
        if early.any(|message| message.from == rank && message.of != Stream::Operation) {
            let (rank, by, op) = (view.global(local), node.config.node, 0);
            node.break_with(Broken::RankLeft { rank, by, op }, None);
        }
    }

    fn asked_here(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        message: MessageId,
        theirs: PairCall,
    ) {
        if self.outgoing.contains_key(&message) {
            self.pair(view, node, message, theirs);
            return;
        }
        self.early.insert(message, theirs);
        let local = (message.from - view.rank(0)) as usize;
        if node.left.contains(&view.locals[local]) {
            self.check_asked_of(view, node, local);
        }
    }

    /// A rank here sends a message of an operation.
    pub(in crate::machine) fn offer(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        transfer: Transfer,
    ) {
        let Transfer {
            message,
            rank,
            offset,
            call,
        } = transfer;
        let refused = None;
        let own = PairCall { call, refused };
        let outgoing = Outgoing::new(message.number, rank, offset, own, view.chunk_bytes);
        self.send(view, node, message, outgoing);
    }

    /// A rank here sends a message.
    pub(super) fn send(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        message: MessageId,
        outgoing: Outgoing,
    ) {
        Self::want_link(view, node, view.home(message.to));
        self.outgoing.insert(message, outgoing);
        if let Some(theirs) = self.early.remove(&message) {
            self.pair(view, node, message, theirs);
        }
    }

    /// Both ranks have called: the message goes out if they mean the same.
    fn pair(&mut self, view: &GroupView, node: &mut Node, message: MessageId, theirs: PairCall) {
        let Some(outgoing) = self.outgoing.get_mut(&message) else {
            return;
        };
        outgoing.is_wanted = true;
        let (own, op) = (outgoing.own, outgoing.op);
        let size = |call: Call| (call.dtype, call.count);
        let agree = size(own.call) == size(theirs.call);
        if agree && own.refused.is_none() && theirs.refused.is_none() {
            let hop = Hop::towards(view, node, view.home(message.to));
            self.queues.push(view, hop, message);
            return;
        }
        let mismatch = Mismatch {
            one: view.claim(message.from, own.call),
            other: view.claim(message.to, theirs.call),
        };
        let verdict = Verdict::from(mismatch);
        match message.of {
            Stream::Operation => {
                // Of two different operations the trees find out, in words about these.
                let kind = |call: Call| std::mem::discriminant(&call.kind);
                if kind(own.call) == kind(theirs.call) {
                    self.events.push(Event::Mismatch { op, verdict });
                }
            }
            Stream::Tag(_) => self.disagree(view, node, message, own, theirs, verdict),
        }
    }

    /// Where a chunk for a rank here belongs, if it is expected.
    pub(super) fn target(
        &self,
        view: &GroupView,
        message: &MessageId,
        chunk: u32,
    ) -> Option<Region> {
        let incoming = self.incoming.get(message)?;
        let (offset, bytes) = incoming.place(chunk, view.chunk_bytes)?;
        Some(Region {
            buffer: view.own(incoming.op, incoming.rank),
            offset,
            bytes,
        })
    }

    /// A chunk for a rank here lies where it belongs.
    pub(super) fn came(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        message: MessageId,
        chunk: u32,
    ) {
        let Some(incoming) = self.incoming.get_mut(&message) else {
            return;
        };
        if !incoming.take(chunk) {
            return;
        }
        let op = incoming.op;
        self.forget_incoming(view, &message);
        self.message_over(view, node, op);
    }

    /// A message is not expected any more; others may be asked for.
    pub(super) fn forget_incoming(
        &mut self,
        view: &GroupView,
        message: &MessageId,
    ) -> Option<Incoming> {
        let incoming = self.incoming.remove(message)?;
        if incoming.asked {
            let far = usize::from(!view.is_near(message.from));
            self.requests.asked[far] -= 1;
        }
        Some(incoming)
    }

    /// A message from or to a rank here is where it belongs.
    pub(super) fn message_over(&mut self, view: &GroupView, node: &mut Node, op: OpId) {
        if self.calls.contains_key(&op) {
            self.end_call(view, node, op, None);
        } else {
            self.events.push(Event::Over { op });
        }
    }

    /// An operation is over before its messages are.
    pub(in crate::machine) fn drop_messages(&mut self, view: &GroupView, op: OpId) {
        let is_its = |message: &MessageId| (message.of, message.number) == (Stream::Operation, op);
        self.outgoing.retain(|message, _| !is_its(message));
        self.early.retain(|message, _| !is_its(message));
        let incoming = self.incoming.keys().copied();
        for message in incoming.filter(is_its).collect::<Vec<_>>() {
            self.forget_incoming(view, &message);
        }
    }
}
