//! How operations go on: does everything that has become possible, on the way `up` and `down`, ends operations and
//! lets go of their buffers, and says farewell when nothing is left.

use super::operation::Stage;
use super::{Buffer, Effect, Farewell, Frame, Machine, OpId, Region};
use crate::schedule::{self, Chunk, Step};

impl Machine {
    /// Does everything that has become possible.
    pub(super) fn advance(&mut self) {
        if self.broken.is_none() {
            while self.advance_once() {}
            self.pump();
        }
        self.end_and_release();
        self.say_farewell();
    }

    fn advance_once(&mut self) -> bool {
        let ids: Vec<OpId> = self.ops.keys().copied().collect();
        let mut moved = false;
        for id in ids {
            self.judge(id);
            for tree in 0..2 {
                while self.start(id, tree).is_some() {
                    moved = true;
                }
            }
        }
        moved
    }

    /// A chunk of an operation that is planned, and this node's step.
    pub(super) fn step(&self, id: OpId, index: u32) -> Option<(Chunk, Step)> {
        let chunk = self.ops.get(&id)?.plan.as_ref()?.chunk(index);
        let step = schedule::step(
            &self.config.trees.trees[chunk.tree()],
            &chunk,
            self.config.node,
        );
        Some((chunk, step))
    }

    fn end_and_release(&mut self) {
        for (&id, operation) in &mut self.ops {
            if operation.stage == Stage::Open && operation.is_done() {
                operation.stage = Stage::Ended;
                let ends = (0..operation.brought.len()).map(|rank| Effect::End {
                    op: id,
                    rank,
                    outcome: Ok(()),
                });
                self.out.extend(ends);
            }
        }
        let out = &mut self.out;
        self.ops.retain(|&op, operation| {
            let in_use = operation.stage != Stage::Ended || !operation.is_idle();
            if !in_use && operation.brought.iter().any(Option::is_some) {
                out.push(Effect::Release { op });
            }
            in_use
        });
    }

    fn say_farewell(&mut self) {
        // What only others have begun does not keep us: our farewell tells them.
        let in_flight = self
            .ops
            .values()
            .any(|operation| operation.brought.iter().any(Option::is_some));
        if self.farewell != Farewell::Due || in_flight || self.broken.is_some() {
            return;
        }
        self.farewell = Farewell::Said;
        let ended = self.oldest();
        for peer in self.peers() {
            self.send(peer, Frame::Bye { ended }, None);
        }
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
