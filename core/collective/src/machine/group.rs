//! One group on this node: hands calls and frames to what they concern and what follows from one to the other. Operations
//! are in `operations`, messages between two ranks in `p2p`, slots of the trees' edges in `traffic`, and what is kept for
//! others in `retention`. Nodes and ranks have their numbers in the group here; `view` knows those of the epoch.

use std::time::Duration;
use topology::OnPeerLoss;

use super::cause::{Broken, ProtocolViolation, Reason, Verdict};
use super::config::{Config, MAX_IN_FLIGHT, Start};
use super::io::{
    Effect, FORWARDING, Frame, MessageId, OpId, Placement, Region, Splits, Stream, Ticket,
    Watermark,
};
use super::node::{Leaving, Node, Work};
use super::operation::{Brought, Context, Operation, OperationStatus};
use super::operations::{ChunkId, Operations};
use super::p2p::{Event, P2p, PairCall, Piece};
use super::retention::{Retention, WATERMARK_TREE};
use super::traffic::{Arrival, Traffic};
use super::view::GroupView;
use crate::op::Call;
use crate::recovery::{GroupReport, MAX_RETAINED};

/// One group.
#[derive(Debug)]
pub(super) struct Group {
    view: GroupView,
    /// Whether its ranks may call.
    is_open: bool,
    ops: Operations,
    traffic: Traffic,
    retention: Retention,
    p2p: P2p,
}

impl Group {
    /// The group of all ranks, which is open as long as the epoch lasts.
    pub(super) fn world(config: &Config, start: Option<&Start>) -> Self {
        let mut group = Self::new(GroupView::world(config), start);
        group.open();
        group
    }

    /// A group that is not open yet.
    pub(super) fn new(view: GroupView, start: Option<&Start>) -> Self {
        let called = start.map_or_else(
            || vec![0; view.locals.len()],
            |start| start.delivered.clone(),
        );
        let base = start.map_or(0, |start| start.resume.base);
        let mut ops = Operations::new(called.clone());
        let mut retention = Retention::new(base, called, view.children(WATERMARK_TREE));
        if let Some(start) = start {
            ops.take_over(&view, &mut retention, start);
        }
        Self {
            is_open: false,
            ops,
            traffic: Traffic::new(&view),
            retention,
            p2p: P2p::default(),
            view,
        }
    }

    /// All its nodes have begun it and are linked.
    pub(super) fn open(&mut self) {
        self.is_open = true;
        self.p2p.open();
    }

    pub(super) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Everybody it exchanges frames with in its trees, as links know them.
    pub(super) fn peers(&self) -> impl Iterator<Item = usize> {
        self.view.peers()
    }

    /// `(peer, tree)` of everybody who fills slots of this node.
    pub(super) fn receives(&self) -> Vec<(usize, u8)> {
        let below = self.traffic.below().iter().copied();
        let relays = self.view.forwards().map(|peer| (peer, FORWARDING));
        let all = below.chain(relays);
        all.map(|(peer, tree)| (self.view.nodes[peer], tree))
            .collect()
    }

    /// The trees in which it has a parent, hence send slots.
    pub(super) fn sends(&self) -> Vec<u8> {
        self.view.sends()
    }

    pub(super) fn may_submit(&self, rank: usize) -> bool {
        let Some(rank) = self.view.local(rank).filter(|_| self.is_open) else {
            return false;
        };
        let retained = match self.view.recovery.on_peer_loss {
            OnPeerLoss::Restart => OpId::MAX,
            OnPeerLoss::Shrink => self.retention.released() + MAX_RETAINED,
        };
        self.ops.called(rank) < (self.oldest() + MAX_IN_FLIGHT).min(retained)
    }

    /// The first operation that is not over here.
    pub(super) fn oldest(&self) -> OpId {
        self.ops.oldest()
    }

    /// Whether a rank here, or a neighbour, waits for something.
    pub(super) fn is_busy(&self) -> bool {
        self.ops.is_awaited() || self.p2p.is_busy()
    }

    /// How far this node is.
    pub(super) fn report(&self) -> GroupReport {
        self.retention.report(self.view.id)
    }

    /// The operations that are not over here.
    pub(super) fn in_flight(&self, now: Duration) -> impl Iterator<Item = OperationStatus> {
        self.ops.in_flight(&self.view, &self.traffic, now)
    }

    /// Since when the oldest operation waits for ranks, if nobody has asked for them.
    pub(super) fn waits_since(&self) -> Option<Duration> {
        self.ops.waiting().map(|(_, since)| since)
    }

    fn context<'a>(&'a mut self, node: &'a mut Node) -> (&'a mut Operations, Context<'a>) {
        let context = Context {
            view: &self.view,
            node,
            traffic: &mut self.traffic,
            retention: &mut self.retention,
        };
        (&mut self.ops, context)
    }

    /// A rank of this node makes its next call.
    pub(super) fn submit(
        &mut self,
        node: &mut Node,
        rank: usize,
        call: Call,
        splits: Result<Splits, Reason>,
    ) {
        let Some(rank) = self.view.local(rank).filter(|_| !node.holds()) else {
            return; // The shell hands it to the next machine.
        };
        let id = self.ops.call(rank);
        if node.leaving != Leaving::No {
            let (left, by) = (node.config.node, node.config.node);
            let broken = Broken::NodeLeft {
                node: left,
                by,
                op: id,
            };
            node.break_with(broken, None);
        }
        if let Some(broken) = node.broken {
            node.out.push(Effect::End {
                group: self.view.id,
                op: id,
                rank: self.view.locals[rank],
                outcome: Err(broken.into()),
            });
            return;
        }
        let refused = splits.as_ref().err().copied();
        let brought = Brought {
            call,
            refused: refused.or_else(|| self.view.lost_for(&call)),
        };
        let operation = self.ops.begin(node, id);
        operation.bring(rank, brought, splits.unwrap_or_default());
        if operation.is_served() {
            return;
        }
        if operation.plan_if_agreed(&self.view) {
            operation.check_early_parts(&self.view, node, &self.traffic);
            self.begin_exchange(node, id);
        }
        self.ops
            .check_departures(&self.view, node, &self.traffic, id);
    }

    /// What ranks send each other in an operation goes out.
    fn begin_exchange(&mut self, node: &mut Node, id: OpId) {
        let operation = self.ops.get_mut(id);
        let transfers = operation.and_then(|operation| operation.begin_exchange(&self.view));
        let Some(transfers) = transfers else {
            return;
        };
        for transfer in transfers.receives {
            self.p2p.expect(&self.view, transfer);
        }
        for transfer in transfers.sends {
            self.p2p.offer(&self.view, node, transfer);
        }
        self.poll_p2p();
    }

    /// A rank of this node sends or receives.
    pub(super) fn send_or_receive(
        &mut self,
        node: &mut Node,
        rank: usize,
        op: OpId,
        call: PairCall,
    ) {
        if let Some(rank) = self.view.local(rank) {
            self.p2p.call(&self.view, node, rank, op, call);
        }
    }

    /// What has happened to messages that are part of operations.
    fn poll_p2p(&mut self) {
        for event in self.p2p.poll() {
            match event {
                Event::Over { op } => self.ops.message_over(op),
                Event::Mismatch { op, verdict } => self.ops.mismatch(op, verdict),
            }
        }
    }

    /// Work that was handed out is done.
    pub(super) fn done(&mut self, node: &mut Node, ticket: Ticket, work: Work) {
        match work {
            Work::Part { .. } | Work::Up { .. } | Work::Down { .. } => {
                let (ops, mut at) = self.context(node);
                ops.done(&mut at, work);
            }
            Work::P2p => {
                self.p2p.done(&self.view, node, ticket);
                self.poll_p2p();
            }
        }
    }

    /// Does everything that has become possible. True when the group is over.
    pub(super) fn advance(&mut self, node: &mut Node) -> bool {
        self.ops.watch(&self.view, node);
        if node.broken.is_none() {
            // What that brings to an end, or finds wrong, lets operations go on.
            self.p2p.pump(&self.view, node);
            self.poll_p2p();
            while let Some(id) = self.ops.next(&self.traffic) {
                self.advance_operation(node, id);
            }
            let (ops, mut at) = self.context(node);
            ops.pump(&mut at);
        }
        let mut at = Context {
            view: &self.view,
            node,
            traffic: &mut self.traffic,
            retention: &mut self.retention,
        };
        self.ops.end_and_release(&mut at, |op| self.p2p.uses(op));
        if !self.ops.are_closed() || !self.p2p.finish(&self.view, node) {
            return false;
        }
        self.retention.send_last_watermarks(&self.view, node);
        true
    }

    fn advance_operation(&mut self, node: &mut Node, id: OpId) {
        let (ops, mut at) = self.context(node);
        if let Some(verdict) = ops.judge(&mut at, id) {
            self.fail(node, id, verdict);
        }
        let (ops, mut at) = self.context(node);
        for tree in 0..2 {
            while ops.start(&mut at, id, tree).is_some() {}
        }
    }

    /// Ends one operation with a verdict and passes it on.
    fn fail(&mut self, node: &mut Node, id: OpId, verdict: Verdict) {
        let (ops, mut at) = self.context(node);
        ops.finish(&mut at, id, Some(verdict));
        self.p2p.drop_messages(&self.view, id);
        self.traffic.fail(&self.view, node, id, verdict);
    }

    /// The epoch is over: what is in flight ends with the cause.
    pub(super) fn close(&mut self, node: &mut Node, broken: Broken) {
        self.ops.close(&self.view, node, broken);
        self.traffic.close();
        self.p2p.close(&self.view, node, broken);
    }

    /// Says something new to a neighbour in place of a heartbeat. False when there is nothing.
    pub(super) fn beat(&mut self, node: &mut Node, peer: usize) -> bool {
        let peer = self.view.index_of(peer).filter(|_| self.is_open);
        peer.is_some_and(|peer| self.retention.beat(&self.view, node, peer))
    }

    /// A rank of this node has closed its session.
    pub(super) fn rank_left(&mut self, node: &mut Node, rank: usize) {
        if let Some(rank) = self.view.local(rank) {
            self.check_departures(node);
            self.p2p.rank_left(&self.view, node, rank);
        }
    }

    /// A node leaves the group, after ending so many operations.
    pub(super) fn node_left(&mut self, node: &mut Node, peer: usize, ended: u64) {
        let Some(peer) = self.view.index_of(peer) else {
            return; // Linked for the sake of other groups.
        };
        if self.traffic.leave(peer, ended) {
            self.retention.on_leave(&self.view, peer, ended);
            self.check_departures(node);
        }
    }

    fn check_departures(&self, node: &mut Node) {
        self.ops
            .check_departures_of_open(&self.view, node, &self.traffic);
    }

    /// A node leaves all groups.
    pub(super) fn refuse_sends_to_nobody(&mut self, node: &mut Node) {
        self.p2p.refuse_sends_to_nobody(&self.view, node);
    }

    /// Where the payload of a frame goes.
    pub(super) fn place(&self, peer: usize, frame: &Frame) -> Placement {
        let Some(peer) = self.view.index_of(peer) else {
            return Placement::Discard;
        };
        let region = match *frame {
            Frame::ReduceChunk {
                tree, slot, bytes, ..
            } => {
                let check = self.traffic.check_slot(&self.view, peer, tree, slot, bytes);
                check.map(|()| Region {
                    buffer: self.view.receive(peer, tree, slot),
                    offset: 0,
                    bytes: u64::from(bytes),
                })
            }
            Frame::BroadcastChunk { op, .. } if self.holds(op) => return Placement::Discard,
            Frame::BroadcastChunk {
                tree,
                op,
                chunk,
                bytes,
                ..
            } => {
                let id = ChunkId { tree, op, chunk };
                let chunk = self.ops.check_chunk(&self.view, peer, id, bytes);
                chunk.map(|(chunk, _)| Region {
                    bytes: u64::from(bytes),
                    ..self.view.result(op, &chunk)
                })
            }
            Frame::Data {
                message,
                chunk,
                slot,
                bytes,
                ..
            } => {
                let piece = Piece {
                    message,
                    chunk,
                    slot,
                    bytes,
                };
                return self.p2p.place(&self.view, peer, &piece);
            }
            Frame::Refuse { .. }
            | Frame::Fail { .. }
            | Frame::ReadyToReceive { .. }
            | Frame::ReceiveRejected { .. }
            | Frame::Credit { .. }
            | Frame::Awaiting { .. }
            | Frame::Watermark { .. }
            | Frame::Abort { .. }
            | Frame::Heartbeat
            | Frame::Leaving { .. }
            | Frame::Open { .. }
            | Frame::Opened { .. } => return Placement::Discard,
        };
        region.map_or(Placement::Discard, Placement::Into)
    }

    /// Whether the result of an operation lay here before it was served.
    fn holds(&self, op: OpId) -> bool {
        self.ops.get(op).is_some_and(Operation::holds)
    }

    /// A frame of the group from one of its nodes.
    pub(super) fn frame(
        &mut self,
        node: &mut Node,
        peer: usize,
        frame: Frame,
    ) -> Result<(), ProtocolViolation> {
        let peer = self
            .view
            .index_of(peer)
            .ok_or(ProtocolViolation::Direction)?;
        match frame {
            Frame::ReduceChunk {
                tree,
                op,
                chunk,
                slot,
                bytes,
                call,
                rank,
                watermark,
                ..
            } => {
                let arrival = Arrival {
                    slot,
                    bytes,
                    call,
                    rank,
                };
                let (ops, mut at) = self.context(node);
                ops.on_part(&mut at, peer, ChunkId { tree, op, chunk }, arrival)?;
                self.on_watermark_of(tree, peer, watermark)
            }
            Frame::BroadcastChunk {
                tree,
                op,
                chunk,
                bytes,
                watermark,
                ..
            } => {
                let (ops, mut at) = self.context(node);
                ops.on_chunk(&mut at, peer, ChunkId { tree, op, chunk }, bytes)?;
                self.on_watermark_of(tree, peer, watermark)
            }
            Frame::Refuse { op, verdict, .. } => {
                let (ops, mut at) = self.context(node);
                ops.on_refuse(&mut at, peer, op, verdict)
            }
            Frame::Fail { op, verdict, .. } => {
                self.ops.check_fail(&self.view, peer, op)?;
                self.fail(node, op, verdict);
                Ok(())
            }
            Frame::ReadyToReceive {
                message,
                call,
                refused,
                ..
            } => self.on_ready_to_receive(node, peer, message, PairCall { call, refused }),
            Frame::Data {
                message,
                chunk,
                slot,
                bytes,
                ..
            } => {
                let piece = Piece {
                    message,
                    chunk,
                    slot,
                    bytes,
                };
                let outcome = self.p2p.on_data(&self.view, node, peer, piece);
                self.poll_p2p();
                outcome
            }
            Frame::ReceiveRejected {
                message,
                call,
                refused,
                ..
            } => {
                let theirs = PairCall { call, refused };
                self.p2p.on_reject(&self.view, node, peer, message, theirs)
            }
            Frame::Credit {
                tree: FORWARDING,
                slot,
                ..
            } => self.p2p.on_credit(peer, slot),
            Frame::Credit { tree, slot, .. } => {
                self.traffic.on_credit(&self.view, peer, tree, slot)
            }
            Frame::Awaiting { op, .. } => {
                let is_open = self.is_open;
                let (ops, mut at) = self.context(node);
                ops.on_awaiting(&mut at, peer, op, is_open)
            }
            Frame::Watermark { watermark, .. } => self.on_watermark(peer, watermark),
            Frame::Abort { .. }
            | Frame::Heartbeat
            | Frame::Leaving { .. }
            | Frame::Open { .. }
            | Frame::Opened { .. } => Ok(()),
        }
    }

    fn on_watermark_of(
        &mut self,
        tree: u8,
        peer: usize,
        watermark: Watermark,
    ) -> Result<(), ProtocolViolation> {
        if usize::from(tree) == WATERMARK_TREE {
            self.on_watermark(peer, watermark)?;
        }
        Ok(())
    }

    fn on_watermark(&mut self, peer: usize, watermark: Watermark) -> Result<(), ProtocolViolation> {
        let oldest = self.oldest();
        self.retention
            .on_watermark(&self.view, peer, watermark, oldest)
    }

    /// A rank elsewhere is ready for a message of a rank here, or of one that this node is on the way to.
    fn on_ready_to_receive(
        &mut self,
        node: &mut Node,
        peer: usize,
        message: MessageId,
        call: PairCall,
    ) -> Result<(), ProtocolViolation> {
        self.view.check_message(&message)?;
        let is_here = self.view.home(message.from) == self.view.node;
        let is_ours = is_here && message.of == Stream::Operation;
        if is_ours && !self.ops.is_live(message.number)? {
            node.counters.late_frames += 1;
            return Ok(());
        }
        self.p2p
            .on_ready_to_receive(&self.view, node, peer, message, call)?;
        if is_ours {
            let (view, traffic) = (&self.view, &self.traffic);
            self.ops.note_begun(view, node, traffic, message.number);
        }
        self.poll_p2p();
        Ok(())
    }
}
