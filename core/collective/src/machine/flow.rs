//! How operations go on: does everything that has become possible, on the way `up` and `down`, ends operations and
//! lets go of their buffers.

use super::group::Group;
use super::node::Node;
use super::operation::Stage;
use super::{Buffer, Effect, OpId, Region};
use crate::schedule::{self, Chunk, Step};

impl Group {
    /// Does everything that has become possible.
    pub(super) fn advance(&mut self, node: &mut Node) {
        if node.broken.is_none() {
            while self.advance_once(node) {}
            self.pump(node);
        }
        self.end_and_release(node);
    }

    fn advance_once(&mut self, node: &mut Node) -> bool {
        let ids: Vec<OpId> = self.ops.keys().copied().collect();
        let mut moved = false;
        for id in ids {
            self.judge(node, id);
            for tree in 0..2 {
                while self.start(node, id, tree).is_some() {
                    moved = true;
                }
            }
        }
        moved
    }

    /// A chunk of an operation that is planned, and this node's step.
    pub(super) fn step(&self, id: OpId, index: u32) -> Option<(Chunk, Step)> {
        let chunk = self.ops.get(&id)?.plan.as_ref()?.chunk(index);
        let step = schedule::step(&self.trees.trees[chunk.tree()], &chunk, self.node);
        Some((chunk, step))
    }

    fn end_and_release(&mut self, node: &mut Node) {
        for (&id, operation) in &mut self.ops {
            if operation.stage == Stage::Open && operation.is_done() {
                operation.stage = Stage::Ended;
                let ends = (0..operation.brought.len()).map(|rank| Effect::End {
                    op: id,
                    rank,
                    outcome: Ok(()),
                });
                node.out.extend(ends);
            }
        }
        let out = &mut node.out;
        self.ops.retain(|&op, operation| {
            let in_use = operation.stage != Stage::Ended || !operation.is_idle();
            if !in_use && operation.brought.iter().any(Option::is_some) {
                out.push(Effect::Release { op });
            }
            in_use
        });
    }
}

/// A chunk's place in the result.
pub(super) fn result(op: OpId, chunk: &Chunk) -> Region {
    Region {
        buffer: Buffer::Result { op },
        offset: chunk.offset,
        bytes: chunk.bytes,
    }
}
