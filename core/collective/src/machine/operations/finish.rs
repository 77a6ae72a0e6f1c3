//! How operations come to an end: their outcome is delivered to the ranks, and what nobody needs any more is released.

use topology::OnPeerLoss;

use super::Operations;
use crate::machine::cause::{Broken, Verdict};
use crate::machine::io::{Effect, OpId};
use crate::machine::node::Node;
use crate::machine::operation::Context;
use crate::machine::view::GroupView;
use crate::op::OpKind;

impl Operations {
    /// The outcome of an operation is final here.
    pub(in crate::machine) fn finish(
        &mut self,
        at: &mut Context<'_>,
        id: OpId,
        verdict: Option<Verdict>,
    ) {
        let epoch = at.node.config.fence.epoch;
        let operation = self.ops.get_mut(&id);
        let Some(held) = operation.and_then(|operation| operation.finish(epoch, verdict)) else {
            return;
        };
        if held.call.kind == OpKind::Close && verdict.is_none() {
            self.closed = Some(id);
        }
        at.retention.keep(held);
    }

    /// Ends what is done, and lets go of what is over. `is_in_use`: whether messages use what belongs to an operation.
    pub(in crate::machine) fn end_and_release(
        &mut self,
        at: &mut Context<'_>,
        is_in_use: impl Fn(OpId) -> bool,
    ) {
        if at.node.holds() {
            return;
        }
        let done = self.ops.iter().filter(|(_, operation)| operation.is_done());
        for id in done.map(|(&id, _)| id).collect::<Vec<_>>() {
            self.finish(at, id, None);
        }
        if at.node.broken.is_none() {
            // What is delivered may be news to others, and at the root what they say may let more be delivered.
            at.retention.pass_watermarks(at.view, at.node);
            for operation in self.ops.values_mut() {
                operation.deliver(at);
            }
            at.retention.pass_watermarks(at.view, at.node);
        }
        self.release(at, is_in_use);
    }

    /// Lets go of what is over and used by nobody here, and of results that nobody can need any more.
    fn release(&mut self, at: &mut Context<'_>, is_in_use: impl Fn(OpId) -> bool) {
        let (group, on_peer_loss) = (at.view.id, at.view.recovery.on_peer_loss);
        let mut released = Vec::new();
        self.ops.retain(|&op, operation| {
            let in_use = !operation.is_released() || is_in_use(op);
            if !in_use && (operation.is_called() || operation.is_served()) {
                at.node.out.push(Effect::FreeInputs { group, op });
                released.push(op);
            }
            in_use
        });
        let retained = at
            .retention
            .release(on_peer_loss, |op| self.ops.contains_key(&op));
        if on_peer_loss == OnPeerLoss::Shrink {
            released = retained;
        }
        for op in released {
            self.is_closed_everywhere |= self.closed == Some(op);
            at.node.out.push(Effect::Release { group, op });
        }
    }

    /// The epoch is over: what is in flight ends with the cause, or waits for the next epoch.
    pub(in crate::machine) fn close(&mut self, view: &GroupView, node: &mut Node, broken: Broken) {
        for operation in self.ops.values_mut() {
            operation.close(view, node, broken.into());
        }
    }
}
