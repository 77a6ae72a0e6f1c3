//! How chunks move: when a node has what a step needs, it works on the chunk, sends it up or turns it, and passes
//! on what comes down. Chunks of a tree are started in order and a slot is kept for the oldest operation, which is
//! what keeps bounded slots free of deadlock: the first chunk that is not finished never waits for a later one.

use super::link::{Arrival, Slot};
use super::operation::{Operation, Part, Stage};
use super::{Buffer, Effect, Farewell, Frame, Machine, OpId, Region, Work};
use crate::op::ReduceOp;
use crate::schedule::{self, Carry, Chunk, Flow, Step};

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

    /// Starts the next chunk of one tree, if everything for it is here.
    fn start(&mut self, id: OpId, tree: usize) -> Option<()> {
        let operation = self
            .ops
            .get(&id)
            .filter(|operation| operation.stage == Stage::Open)?;
        let plan = operation.plan.as_ref()?;
        let started = operation.halves[tree].started;
        if started == plan.chunks_of(tree) {
            return None;
        }
        let (chunk, step) = self.step(id, 2 * started + tree as u32)?;
        let arrivals = self.arrivals(id, &chunk, &step)?;
        let inputs = if step.own {
            self.inputs(id, &chunk)?
        } else {
            Vec::new()
        };
        let slot = match step.to_parent {
            Some(_) => Some(self.free_slot(id, tree)?),
            None => None,
        };

        for &(peer, _) in &arrivals {
            self.child_mut(peer, tree)?
                .arrived
                .remove(&(id, chunk.index));
        }
        if let (Some(slot), Some((_, parent))) = (slot, &mut self.parents[tree]) {
            parent.set(slot, Slot::Filling);
        }
        let reads: Vec<(usize, u8)> = arrivals
            .iter()
            .map(|&(peer, arrival)| (peer, arrival.slot))
            .collect();
        let received: Vec<Region> = arrivals
            .iter()
            .filter(|(_, arrival)| arrival.bytes > 0)
            .map(|&(peer, arrival)| self.received(peer, tree, arrival))
            .collect();
        let left = self.begin_part(id, &chunk, inputs, received, slot);
        let operation = self.ops.get_mut(&id)?;
        operation.halves[tree].started += 1;
        operation
            .parts
            .insert(chunk.index, Part { left, reads, slot });
        if left == 0 {
            self.finish_part(id, chunk.index);
        }
        Some(())
    }

    /// A send slot for an operation. The last free one is kept for the oldest operation that still has chunks to
    /// start: a later one may sit in the parent's slots until the oldest is through, so it must not take them all.
    fn free_slot(&self, id: OpId, tree: usize) -> Option<u8> {
        let waits = |operation: &Operation| {
            let started = operation.halves[tree].started;
            let all = operation
                .plan
                .as_ref()
                .is_some_and(|plan| started == plan.chunks_of(tree));
            operation.stage == Stage::Open && !all
        };
        let is_oldest = !self.ops.range(..id).any(|(_, operation)| waits(operation));
        let (_, parent) = self.parents[tree].as_ref()?;
        parent.free(if is_oldest { 0 } else { 1 })
    }

    /// What the children have sent for a chunk; `None` while something is missing or disagrees.
    fn arrivals(&self, id: OpId, chunk: &Chunk, step: &Step) -> Option<Vec<(usize, Arrival)>> {
        let call = self.ops.get(&id)?.plan.as_ref()?.call();
        let one = |&(peer, _): &(usize, Carry)| {
            let child = self.links.get(&peer)?.child[chunk.tree()].as_ref()?;
            let arrival = child
                .arrived
                .get(&(id, chunk.index))
                .filter(|arrival| arrival.call == *call)?;
            Some((peer, *arrival))
        };
        step.from_children.iter().map(one).collect()
    }

    /// This node's own part of a chunk as (where it is, offset in the result); `None` while not all may be read.
    fn inputs(&self, id: OpId, chunk: &Chunk) -> Option<Vec<(Region, u64)>> {
        let pieces = self
            .ops
            .get(&id)?
            .pieces(chunk, &self.config.layout, self.config.node)?;
        let region = |(rank, offset, bytes, target)| {
            (
                Region {
                    buffer: Buffer::Input { op: id, rank },
                    offset,
                    bytes,
                },
                target,
            )
        };
        Some(pieces.into_iter().map(region).collect())
    }

    fn received(&self, peer: usize, tree: usize, arrival: Arrival) -> Region {
        let buffer = Buffer::Receive {
            peer,
            tree: tree as u8,
            slot: arrival.slot,
        };
        Region {
            buffer,
            offset: 0,
            bytes: u64::from(arrival.bytes),
        }
    }

    /// Hands the chunk's local work out and returns how many pieces it is.
    fn begin_part(
        &mut self,
        id: OpId,
        chunk: &Chunk,
        inputs: Vec<(Region, u64)>,
        received: Vec<Region>,
        slot: Option<u8>,
    ) -> u32 {
        if chunk.bytes == 0 {
            return 0;
        }
        let work = Work::Part {
            op: id,
            chunk: chunk.index,
        };
        match chunk.flow {
            Flow::Combine { .. } if self.sends_input(chunk, slot) => 0,
            Flow::Combine { .. } => {
                let inputs = inputs.into_iter().map(|(region, _)| region);
                // Local ranks in rank order, then children in node order: never the order of arrival.
                let sources = inputs.chain(received).collect();
                let ticket = self.ticket(work);
                let Some((op, dtype)) = self.arithmetic(id) else {
                    return 0;
                };
                // The last reduction is at the root; only it divides.
                let divisor = match (op, slot) {
                    (ReduceOp::Avg, None) => self.config.layout.world(),
                    _ => 1,
                };
                let destination = match slot {
                    Some(slot) => self.staged(chunk, slot),
                    None => result(id, chunk),
                };
                self.out.push(Effect::Reduce {
                    ticket,
                    op,
                    dtype,
                    divisor,
                    sources,
                    destination,
                });
                1
            }
            Flow::Spread { .. } => {
                let copies = received
                    .into_iter()
                    .map(|region| (region, chunk.offset))
                    .chain(inputs);
                let mut left = 0;
                for (source, offset) in copies {
                    let ticket = self.ticket(work);
                    let destination = Region {
                        buffer: Buffer::Result { op: id },
                        offset,
                        bytes: source.bytes,
                    };
                    self.out.push(Effect::Copy {
                        ticket,
                        source,
                        destination,
                    });
                    left += 1;
                }
                left
            }
        }
    }

    fn arithmetic(&self, id: OpId) -> Option<(ReduceOp, crate::dtype::DType)> {
        let call = self.ops.get(&id)?.plan.as_ref()?.call();
        Some((call.reduce_op()?, call.dtype))
    }

    /// A leaf with one rank has nothing to combine: its input goes up as it is.
    fn sends_input(&self, chunk: &Chunk, slot: Option<u8>) -> bool {
        let children = &self.config.trees.trees[chunk.tree()].children[self.config.node];
        slot.is_some() && children.is_empty() && self.called.len() == 1
    }

    fn staged(&self, chunk: &Chunk, slot: u8) -> Region {
        Region {
            buffer: Buffer::Send {
                tree: chunk.tree() as u8,
                slot,
            },
            offset: 0,
            bytes: chunk.bytes,
        }
    }

    /// The local work on a chunk is finished: give the receive slots back, then send it up or turn it.
    pub(super) fn finish_part(&mut self, id: OpId, index: u32) {
        let Some(operation) = self.ops.get_mut(&id) else {
            return;
        };
        let Some(part) = operation.parts.remove(&index) else {
            return;
        };
        let over = operation.stage == Stage::Ended;
        let Some((chunk, step)) = self.step(id, index) else {
            return;
        };
        let tree = chunk.tree();
        for (peer, slot) in part.reads {
            self.return_slot(peer, tree, slot);
        }
        match part.slot {
            Some(slot) if over => {
                if let Some((_, parent)) = &mut self.parents[tree] {
                    parent.set(slot, Slot::Free);
                }
            }
            Some(slot) => self.send_up(id, &chunk, &step, slot),
            None if over => {}
            None => {
                if self.parents[tree].is_none() {
                    self.settle(id, &chunk, &step);
                }
            }
        }
    }

    fn send_up(&mut self, id: OpId, chunk: &Chunk, step: &Step, slot: u8) {
        let tree = chunk.tree();
        let Some(&call) = self
            .ops
            .get(&id)
            .and_then(|op| op.plan.as_ref())
            .map(|plan| plan.call())
        else {
            return;
        };
        let Some(peer) = self.parents[tree].as_ref().map(|&(peer, _)| peer) else {
            return;
        };
        let region = match chunk.flow {
            Flow::Combine { .. } if self.sends_input(chunk, Some(slot)) => Region {
                buffer: Buffer::Input { op: id, rank: 0 },
                ..result(id, chunk)
            },
            Flow::Combine { .. } => self.staged(chunk, slot),
            Flow::Spread { .. } => result(id, chunk),
        };
        let loaded = step.to_parent == Some(Carry::Payload) && chunk.bytes > 0;
        let payload = loaded.then(|| (self.ticket(Work::Up { op: id, tree, slot }), region));
        let bytes = if loaded { chunk.bytes as u32 } else { 0 };
        if let Some((_, parent)) = &mut self.parents[tree] {
            parent.set(
                slot,
                Slot::Sent {
                    left: !loaded,
                    returned: false,
                },
            );
        }
        let rank = self.global(0);
        let frame = Frame::Up {
            tree: tree as u8,
            op: id,
            chunk: chunk.index,
            slot,
            bytes,
            call,
            rank,
        };
        self.send(peer, frame, payload);
    }

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
    fn pump(&mut self) {
        for (peer, tree) in self.receives() {
            while self.pump_one(peer, usize::from(tree)).is_some() {}
        }
    }

    fn pump_one(&mut self, peer: usize, tree: usize) -> Option<()> {
        let room = self.config.slots;
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
                self.ticket(Work::Down { op: id, tree, peer }),
                result(id, &chunk),
            )
        });
        let bytes = if loaded { chunk.bytes as u32 } else { 0 };
        self.send(
            peer,
            Frame::Down {
                tree: tree as u8,
                op: id,
                chunk: index,
                bytes,
            },
            payload,
        );
        Some(())
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
fn result(op: OpId, chunk: &Chunk) -> Region {
    Region {
        buffer: Buffer::Result { op },
        offset: chunk.offset,
        bytes: chunk.bytes,
    }
}
