//! The way down: a chunk of the result is passed on to every child that needs it, as far as there is room.

use super::group::Group;
use super::node::{Node, Work};
use super::{Frame, OpId};
use crate::schedule::{Carry, Chunk, Step};

impl Group {
    /// A chunk of the result is here: pass it on.
    pub(super) fn settle(&mut self, id: OpId, chunk: &Chunk, step: &Step) {
        let Some(operation) = self.ops.get_mut(&id) else {
            return;
        };
        operation.settle(chunk);
        operation.queued += step.to_children.len() as u32;
        for &(peer, _) in &step.to_children {
            if let Some(child) = self.child_mut(peer, chunk.tree()) {
                child.backlog.push_back((id, chunk.index));
            }
        }
    }

    /// Sends down what the children have room for.
    pub(super) fn pump(&mut self, node: &mut Node) {
        for at in 0..self.below.len() {
            let (peer, tree) = self.below[at];
            while self.pump_one(node, peer, usize::from(tree)).is_some() {}
        }
    }

    fn pump_one(&mut self, node: &mut Node, peer: usize, tree: usize) -> Option<()> {
        let room = self.slots;
        let child = self.child_mut(peer, tree)?;
        let full = child.sending >= room;
        let &(id, index) = child.backlog.front()?;
        let (chunk, step) = self.step(id, index)?;
        let loaded = step.to_children.contains(&(peer, Carry::Payload)) && chunk.bytes > 0;
        if loaded && full {
            return None;
        }
        let child = self.child_mut(peer, tree)?;
        child.backlog.pop_front();
        child.sending += u8::from(loaded);
        self.ops.get_mut(&id)?.queued -= 1;
        let payload = loaded.then(|| {
            (
                self.ticket(node, Work::Down { op: id, tree, peer }),
                self.result(id, &chunk),
            )
        });
        let bytes = if loaded { chunk.bytes as u32 } else { 0 };
        let frame = Frame::Down {
            group: self.id,
            tree: tree as u8,
            op: id,
            chunk: index,
            bytes,
            mark: self.mark_down(peer, tree),
        };
        self.send(node, peer, frame, payload);
        Some(())
    }
}
