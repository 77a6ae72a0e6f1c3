//! The way down: a chunk of the result is passed on to every child that needs it, as far as there is room.

use super::{Context, Operation};
use crate::machine::cause::ProtocolViolation;
use crate::machine::io::Frame;
use crate::machine::node::Work;
use crate::machine::traffic::Traffic;
use crate::machine::view::GroupView;
use crate::schedule::{Chunk, Forwarding, Step};

impl Operation {
    /// A chunk of the result is here: pass it on.
    pub(in crate::machine) fn settle(&mut self, traffic: &mut Traffic, chunk: &Chunk, step: &Step) {
        self.mark_settled(chunk);
        self.queued += step.to_children.len() as u32;
        for &(peer, _) in &step.to_children {
            traffic.push_down(peer, chunk.tree(), self.id, chunk.index);
        }
    }

    /// Sends a chunk down to a child, for which it is the next. None while there is no room.
    pub(in crate::machine) fn send_down(
        &mut self,
        at: &mut Context<'_>,
        peer: usize,
        tree: usize,
        index: u32,
    ) -> Option<()> {
        let (chunk, step) = self.step(at.view, index)?;
        let loaded = step.to_children.contains(&(peer, Forwarding::Payload)) && chunk.bytes > 0;
        if loaded && at.traffic.is_full(at.view, peer, tree) {
            return None;
        }
        at.traffic.pop_down(peer, tree, loaded);
        self.queued -= 1;
        let op = self.id;
        let payload = loaded.then(|| {
            (
                self.ticket(at.view, at.node, Work::Down { op, tree, peer }),
                at.view.result(op, &chunk),
            )
        });
        let frame = Frame::BroadcastChunk {
            group: at.view.id,
            tree: tree as u8,
            op,
            chunk: index,
            bytes: if loaded { chunk.bytes as u32 } else { 0 },
            watermark: at.retention.watermark_down(peer, tree),
        };
        at.view.send(at.node, peer, frame, payload);
        Some(())
    }

    /// The chunk that the parent sends down, if it may now.
    pub(in crate::machine) fn check_down(
        &self,
        view: &GroupView,
        tree: u8,
        index: u32,
        bytes: u32,
    ) -> Result<(Chunk, Step), ProtocolViolation> {
        let plan = self.plan.as_ref().filter(|_| self.is_open());
        let plan = plan.ok_or(ProtocolViolation::Chunk)?;
        if index >= plan.chunks() || self.is_settled(index) {
            return Err(ProtocolViolation::Chunk);
        }
        let (chunk, step) = self.step(view, index).ok_or(ProtocolViolation::Chunk)?;
        let carry = step.from_parent.ok_or(ProtocolViolation::Chunk)?;
        if chunk.tree() != usize::from(tree) || carry.payload(chunk.bytes) != u64::from(bytes) {
            return Err(ProtocolViolation::Chunk);
        }
        Ok((chunk, step))
    }
}
