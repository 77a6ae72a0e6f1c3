//! What neighbours say of operations: every frame is checked here once against what its sender may send now.

use super::Operations;
use crate::machine::cause::{Broken, ProtocolViolation, Verdict};
use crate::machine::config::MAX_IN_FLIGHT;
use crate::machine::io::OpId;
use crate::machine::node::Node;
use crate::machine::operation::{Context, Operation};
use crate::machine::traffic::{Arrival, Traffic, VERDICTS};
use crate::machine::view::GroupView;
use crate::schedule::{Chunk, Step};

/// A chunk, as a frame names it.
#[derive(Clone, Copy, Debug)]
pub(in crate::machine) struct ChunkId {
    pub(in crate::machine) tree: u8,
    pub(in crate::machine) op: OpId,
    pub(in crate::machine) chunk: u32,
}

impl Operations {
    /// A child's part of a chunk has come.
    pub(in crate::machine) fn on_part(
        &mut self,
        at: &mut Context<'_>,
        peer: usize,
        ChunkId { tree, op, chunk }: ChunkId,
        arrival: Arrival,
    ) -> Result<(), ProtocolViolation> {
        let Arrival { slot, bytes, .. } = arrival;
        at.traffic.check_slot(at.view, peer, tree, slot, bytes)?;
        let tree = usize::from(tree);
        if at.traffic.arrival(peer, tree, op, chunk).is_some() {
            return Err(ProtocolViolation::Chunk);
        }
        at.traffic.take_slot(peer, tree, slot);
        if !self.is_live(op)? {
            at.node.counters.late_frames += 1;
            at.traffic.return_slot(at.view, at.node, peer, tree, slot);
            return Ok(());
        }
        if let Some(operation) = self.ops.get(&op) {
            operation.check_part(at.view, peer, tree, chunk, &arrival)?;
        }
        at.traffic.keep(peer, tree, op, chunk, arrival);
        self.note_begun(at.view, at.node, at.traffic, op);
        Ok(())
    }

    /// A chunk of the result has come from the parent.
    pub(in crate::machine) fn on_chunk(
        &mut self,
        at: &mut Context<'_>,
        peer: usize,
        id: ChunkId,
        bytes: u32,
    ) -> Result<(), ProtocolViolation> {
        // An exchange may have failed since this was sent.
        let is_open = self.ops.get(&id.op).is_some_and(Operation::is_open);
        if bytes == 0 && !is_open && !self.is_live(id.op)? {
            at.node.counters.late_frames += 1;
            return Ok(());
        }
        let (chunk, step) = self.check_chunk(at.view, peer, id, bytes)?;
        if let Some(operation) = self.ops.get_mut(&id.op) {
            operation.settle(at.traffic, &chunk, &step);
        }
        Ok(())
    }

    /// The chunk that comes from the parent, if it may come now.
    pub(in crate::machine) fn check_chunk(
        &self,
        view: &GroupView,
        peer: usize,
        ChunkId { tree, op, chunk }: ChunkId,
        bytes: u32,
    ) -> Result<(Chunk, Step), ProtocolViolation> {
        view.check_parent(peer, tree)?;
        let operation = self.ops.get(&op).ok_or(ProtocolViolation::Chunk)?;
        operation.check_down(view, tree, chunk, bytes)
    }

    /// The subtree of a child cannot carry an operation out.
    pub(in crate::machine) fn on_refuse(
        &mut self,
        at: &mut Context<'_>,
        peer: usize,
        id: OpId,
        verdict: Verdict,
    ) -> Result<(), ProtocolViolation> {
        if !at.view.children(VERDICTS).contains(&peer) {
            return Err(ProtocolViolation::Direction);
        }
        if !self.is_live(id)? {
            at.node.counters.late_frames += 1;
            return Ok(());
        }
        at.traffic.refuse(peer, id, verdict)?;
        self.note_begun(at.view, at.node, at.traffic, id);
        Ok(())
    }

    /// Whether the parent may say now that an operation has failed.
    pub(in crate::machine) fn check_fail(
        &self,
        view: &GroupView,
        peer: usize,
        id: OpId,
    ) -> Result<(), ProtocolViolation> {
        if view.parent(VERDICTS) != Some(peer) {
            return Err(ProtocolViolation::Direction);
        }
        // We sent our part or our refusal, so we know the operation.
        let operation = self.ops.get(&id).filter(|one| !one.is_over());
        if operation.is_some_and(Operation::is_complete_here) {
            Ok(())
        } else {
            Err(ProtocolViolation::Operation)
        }
    }

    /// Others have waited long for an operation. Before the group `is_open` here, links to the others may be missing: then
    /// this node asks when it is open, if the operation is late by then.
    pub(in crate::machine) fn on_awaiting(
        &mut self,
        at: &mut Context<'_>,
        peer: usize,
        id: OpId,
        is_open: bool,
    ) -> Result<(), ProtocolViolation> {
        if !at.view.tree_peers(0).any(|neighbour| neighbour == peer) {
            return Err(ProtocolViolation::Direction);
        }
        if !self.is_live(id)? {
            return Ok(());
        }
        self.note_begun(at.view, at.node, at.traffic, id);
        if is_open && at.node.broken.is_none() {
            self.ask(at.view, at.node, id, Some(peer));
        }
        Ok(())
    }

    /// Whether an operation may still happen here; false when it is over. A peer can be ahead by what it may
    /// have in flight beyond what we have called.
    pub(in crate::machine) fn is_live(&self, id: OpId) -> Result<bool, ProtocolViolation> {
        if let Some(operation) = self.ops.get(&id) {
            return Ok(!operation.is_over());
        }
        if id > self.oldest() + 2 * MAX_IN_FLIGHT {
            return Err(ProtocolViolation::Operation);
        }
        Ok(self.called.iter().any(|&called| called <= id))
    }

    /// Others have begun an operation.
    pub(in crate::machine) fn note_begun(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        traffic: &Traffic,
        id: OpId,
    ) {
        self.begin(node, id);
        self.check_departures(view, node, traffic, id);
    }

    /// Somebody has left: an operation may need it.
    pub(in crate::machine) fn check_departures_of_open(
        &self,
        view: &GroupView,
        node: &mut Node,
        traffic: &Traffic,
    ) {
        for (&id, _) in self.ops.iter().filter(|(_, one)| !one.is_over()) {
            self.check_departures(view, node, traffic, id);
        }
    }

    /// An operation that needs somebody who has left never ends: say so instead of waiting.
    pub(in crate::machine) fn check_departures(
        &self,
        view: &GroupView,
        node: &mut Node,
        traffic: &Traffic,
        op: OpId,
    ) {
        let by = node.config.node;
        if let Some(left) = traffic.left_before(op) {
            let left = view.nodes[left];
            node.break_with(Broken::NodeLeft { node: left, by, op }, None);
            return;
        }
        let is_gone = |rank: usize| node.left.contains(&view.locals[rank]);
        let mut ranks = 0..self.called.len();
        if let Some(rank) = ranks.find(|&rank| is_gone(rank) && self.called[rank] <= op) {
            let rank = view.global(rank);
            node.break_with(Broken::RankLeft { rank, by, op }, None);
        }
    }
}
