//! Agreement before data: every part that goes up brings its sender's call, and a node combines it only with an
//! equal one. A disagreement, or a call that cannot be carried out, goes up tree 0 in place of the part, once
//! everybody below has called; the root of tree 0 hands the verdict down, so all ranks fail with the same names and
//! the group goes on.

use super::cause::{Claim, Mismatch, Verdict, Violation};
use super::group::Group;
use super::node::Node;
use super::operation::Stage;
use super::{Frame, MAX_IN_FLIGHT, OpId};

/// The tree that carries verdicts: every operation has a chunk in it.
const VERDICTS: usize = 0;

impl Group {
    /// Decides whether this node's subtree can carry out the operation, when all of it has called it.
    pub(super) fn judge(&mut self, node: &mut Node, id: OpId) {
        let Some(verdict) = self.verdict(id) else {
            self.judge_late(node, id);
            return;
        };
        match self.parents[VERDICTS].as_ref().map(|&(peer, _)| peer) {
            Some(peer) => {
                if let Some(operation) = self.ops.get_mut(&id) {
                    operation.stage = Stage::Refused;
                }
                let group = self.id;
                let frame = Frame::Refuse {
                    group,
                    op: id,
                    verdict,
                };
                self.send(node, peer, frame, None);
            }
            None => self.fail_operation(node, id, verdict),
        }
    }

    /// That two ranks do not agree about what one sends the other is found after all have agreed about the call. No node
    /// ends the operation then: two of them never say that everything is where it belongs.
    fn judge_late(&mut self, node: &mut Node, id: OpId) {
        let Some(operation) = self.ops.get(&id).filter(|one| one.stage == Stage::Open) else {
            return;
        };
        let exchanges = operation.call().is_some_and(|call| call.kind.exchanges());
        if !exchanges || operation.halves[VERDICTS].started == 0 || operation.exchange.is_refused {
            return;
        }
        let below = self.edges.values();
        let below = below.filter_map(|edge| edge.refused.get(&id)).next();
        let Some(verdict) = operation.exchange.dispute.or(below.copied()) else {
            return;
        };
        match self.parents[VERDICTS].as_ref().map(|&(peer, _)| peer) {
            Some(peer) => {
                if let Some(operation) = self.ops.get_mut(&id) {
                    operation.exchange.is_refused = true;
                }
                let (group, op) = (self.id, id);
                self.send(node, peer, Frame::Refuse { group, op, verdict }, None);
            }
            None => self.fail_operation(node, id, verdict),
        }
    }

    /// The first reason to fail in the order children, own ranks, own rank against child: it does not depend on
    /// who came first.
    fn verdict(&self, id: OpId) -> Option<Verdict> {
        let operation = self
            .ops
            .get(&id)
            .filter(|operation| operation.stage == Stage::Open && operation.served.is_none())?;
        if operation.halves[VERDICTS].started > 0 || !operation.complete_here() {
            return None;
        }
        let rank = self.global(0);
        let call = operation.brought.first().copied().flatten()?.call;
        let mut refused = None;
        let mut differs = None;
        for peer in &self.part.trees.trees[VERDICTS].children[self.part.node] {
            let edge = self.edges.get(peer)?;
            if let Some(&verdict) = edge.refused.get(&id) {
                refused = refused.or(Some(verdict));
                continue;
            }
            // Chunk 0 is the first of tree 0 for every call.
            let arrival = edge.child[VERDICTS].as_ref()?.arrived.get(&(id, 0))?;
            if arrival.call != call {
                let other = Claim {
                    rank: arrival.rank,
                    call: arrival.call,
                };
                let one = Claim { rank, call };
                differs = differs.or(Some(Mismatch { one, other }.into()));
            }
        }
        let globals = |rank| self.global(rank);
        let own = || operation.verdict(globals).or(operation.exchange.dispute);
        refused.or_else(own).or(differs)
    }

    pub(super) fn refused(
        &mut self,
        node: &mut Node,
        peer: usize,
        id: OpId,
        verdict: Verdict,
    ) -> Result<(), Violation> {
        if self.child(peer, VERDICTS).is_none() {
            return Err(Violation::Direction);
        }
        if !self.is_live(id)? {
            node.counters.late_frames += 1;
            return Ok(());
        }
        if let Some(edge) = self.edges.get_mut(&peer) {
            edge.refused.insert(id, verdict);
            if edge.refused.len() as u64 > 2 * MAX_IN_FLIGHT {
                return Err(Violation::Operation);
            }
        }
        self.hear_of(node, id);
        Ok(())
    }

    pub(super) fn failed(
        &mut self,
        node: &mut Node,
        peer: usize,
        id: OpId,
        verdict: Verdict,
    ) -> Result<(), Violation> {
        match &self.parents[VERDICTS] {
            Some((parent, _)) if *parent == peer => {}
            Some(_) | None => return Err(Violation::Direction),
        }
        // We sent our part or our refusal, so we know the operation.
        let operation = self
            .ops
            .get(&id)
            .filter(|operation| !operation.stage.is_over());
        if operation.is_none_or(|operation| !operation.complete_here()) {
            return Err(Violation::Operation);
        }
        self.fail_operation(node, id, verdict);
        Ok(())
    }

    /// Ends one operation with a verdict and passes it on; parts that came for it are dropped.
    fn fail_operation(&mut self, node: &mut Node, id: OpId, verdict: Verdict) {
        self.finish(node, id, Some(verdict));
        self.drop_messages(id);
        for (peer, tree) in self.below.clone() {
            if usize::from(tree) == VERDICTS {
                let group = self.id;
                let frame = Frame::Fail {
                    group,
                    op: id,
                    verdict,
                };
                self.send(node, peer, frame, None);
            }
            self.drop_arrivals(node, id, peer, usize::from(tree));
        }
        for edge in self.edges.values_mut() {
            edge.refused.remove(&id);
        }
    }

    fn drop_arrivals(&mut self, node: &mut Node, id: OpId, peer: usize, tree: usize) {
        let Some(child) = self.child_mut(peer, tree) else {
            return;
        };
        let dropped: Vec<(u32, u8)> = child
            .arrived
            .range((id, 0)..=(id, u32::MAX))
            .map(|(key, arrival)| (key.1, arrival.slot))
            .collect();
        for (chunk, slot) in dropped {
            if let Some(child) = self.child_mut(peer, tree) {
                child.arrived.remove(&(id, chunk));
            }
            node.counters.late_frames += 1;
            self.return_slot(node, peer, tree, slot);
        }
    }
}
