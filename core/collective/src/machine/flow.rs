//! How operations go on: does everything that has become possible, on the way `up` and `down`, ends operations and
//! lets go of their buffers.

use super::group::Group;
use super::node::Node;
use super::operation::Stage;
use super::{Effect, OnPeerLoss, OpId, Verdict};
use crate::op::OpKind;
use crate::recovery::Held;
use crate::schedule::{self, Chunk, Plan, Step};

impl Group {
    /// Does everything that has become possible.
    pub(super) fn advance(&mut self, node: &mut Node) {
        if node.broken.is_none() {
            // What that brings to an end, or finds wrong, lets operations go on.
            self.pump_mail(node);
            while let Some(id) = self.next_turn() {
                self.judge(node, id);
                for tree in 0..2 {
                    while self.start(node, id, tree).is_some() {}
                }
            }
            self.pump(node);
        }
        self.end_and_release(node);
    }

    /// Whether a part waits for a slot to the parent, or a chunk for one to a child.
    pub(super) fn waits_for_room(&self) -> bool {
        let children = || self.edges.values().flat_map(|edge| &edge.child).flatten();
        self.turns.wait_for_slots()
            || children().any(|child| !child.backlog.is_empty())
            || self.mail.waits()
    }

    /// A chunk of an operation that is planned, and this node's step.
    pub(super) fn step(&self, id: OpId, index: u32) -> Option<(Chunk, Step)> {
        let chunk = self.ops.get(&id)?.plan.as_ref()?.chunk(index);
        let step = schedule::step(&self.part.trees.trees[chunk.tree()], &chunk, self.part.node);
        Some((chunk, step))
    }

    /// The outcome of an operation is final here.
    pub(super) fn finish(&mut self, node: &Node, id: OpId, verdict: Option<Verdict>) {
        let Some(operation) = self.ops.get_mut(&id) else {
            return;
        };
        operation.stage = Stage::Final;
        if operation.holds {
            return; // It was kept before.
        }
        let Some(call) = operation.call() else {
            return;
        };
        if call.kind == OpKind::Close && verdict.is_none() {
            self.closed = Some(id);
        }
        let plan = operation.plan.as_ref();
        self.history.keep(Held {
            op: id,
            epoch: operation.epoch.unwrap_or(node.config.fence.epoch),
            call,
            bytes: plan.map_or(0, Plan::bytes),
            complete: true,
            verdict,
        });
    }

    fn end_and_release(&mut self, node: &mut Node) {
        if node.holds() {
            return;
        }
        let done: Vec<OpId> = self
            .ops
            .iter()
            .filter(|(_, operation)| operation.stage == Stage::Open && operation.is_done())
            .map(|(&id, _)| id)
            .collect();
        for id in done {
            self.finish(node, id, None);
        }
        if node.broken.is_none() {
            // What is told may be news to others, and at the root what they say may let more be told.
            self.pass_marks(node);
            self.tell(node);
            self.pass_marks(node);
        }
        self.release_kept(node);
        self.release(node);
    }

    /// Tells ranks the outcomes that may be told.
    fn tell(&mut self, node: &mut Node) {
        let recovery = node.config.recovery;
        for (&op, operation) in &mut self.ops {
            if operation.stage != Stage::Final {
                continue;
            }
            let Some(held) = self.history.kept(op).copied() else {
                // Let go when all ranks of all nodes had been told, before the last of it came by here.
                operation.stage = Stage::Ended;
                continue;
            };
            for rank in 0..operation.brought.len() {
                let Some(brought) = operation.brought[rank] else {
                    continue;
                };
                if operation.told[rank] || !self.history.may_tell(rank, op, &recovery) {
                    continue;
                }
                operation.told[rank] = true;
                self.history.tell(rank, op);
                let global = self.part.global(rank);
                let outcome = match held.verdict {
                    None => operation.success(global, brought.call, held.epoch),
                    Some(verdict) => Err(verdict.into()),
                };
                node.out.push(Effect::End {
                    group: self.id,
                    op,
                    rank: self.part.locals[rank],
                    outcome,
                });
            }
            if operation.told.iter().all(|&told| told) {
                operation.stage = Stage::Ended;
            }
        }
    }

    /// Lets go of what is over and used by nobody here.
    fn release(&mut self, node: &mut Node) {
        let released = match node.config.recovery.on_peer_loss {
            OnPeerLoss::Fail => OpId::MAX,
            OnPeerLoss::Hold => self.history.released(),
        };
        let (group, closed) = (self.id, self.closed);
        let mut over = false;
        self.ops.retain(|&op, operation| {
            let in_use = operation.stage != Stage::Ended || !operation.is_idle();
            let was_called = operation.brought.iter().any(Option::is_some);
            if !in_use && (was_called || operation.served.is_some()) {
                node.out.push(Effect::FreeInputs { group, op });
                if op < released {
                    node.out.push(Effect::Release { group, op });
                    over |= closed == Some(op);
                }
            }
            in_use
        });
        self.over |= over;
    }
}
