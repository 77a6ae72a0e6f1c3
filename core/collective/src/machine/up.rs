//! The way up: when a node has what a step needs, it works on the chunk and sends it up or, at the root, turns it.
//! Chunks of a tree are started in order and a slot is kept for the oldest operation, which is what keeps bounded
//! slots free of deadlock: the first chunk that is not finished never waits for a later one.

use super::edge::{Arrival, Slot};
use super::group::Group;
use super::node::{Node, Work};
use super::operation::{Operation, Part, Stage};
use super::{Buffer, Effect, Frame, Machine, OpId, Region};
use crate::numerics::{Arithmetic, Form};
use crate::op::{Call, ReduceOp};
use crate::schedule::{Carry, Chunk, Flow, Step};

impl Machine {
    /// Where the result of a chunk belongs whose part goes up in a frame, if the receiver computes it and sends it back.
    /// Only looks. A shell that shares memory with the receiver may let it write there what it would send; the machines
    /// of both say and hear the same either way, so who writes which bytes is no business of theirs.
    #[must_use]
    pub fn answer(&self, frame: &Frame) -> Option<Region> {
        let Frame::Up {
            group,
            tree,
            op,
            chunk,
            ..
        } = *frame
        else {
            return None;
        };
        self.groups.get(&group)?.answer(tree.into(), op, chunk)
    }
}

impl Group {
    /// Of a part of this chunk.
    fn answer(&self, tree: usize, id: OpId, index: u32) -> Option<Region> {
        let (parent, _) = self.parents.get(tree)?.as_ref()?;
        let (chunk, step) = self.step(id, index)?;
        let is_root = self.part.trees.trees[tree].root == *parent;
        let is_combined = matches!(chunk.flow, Flow::Combine { .. });
        let [up, down] = [step.to_parent, step.from_parent];
        let comes_back = up == Some(Carry::Payload) && down == up && !self.holds(id);
        (is_root && is_combined && comes_back).then(|| self.result(id, &chunk))
    }

    /// Starts the next chunk of one tree, if everything for it is here.
    pub(super) fn start(&mut self, node: &mut Node, id: OpId, tree: usize) -> Option<()> {
        let operation = self
            .ops
            .get(&id)
            .filter(|operation| operation.stage == Stage::Open)?;
        let plan = operation.plan.as_ref()?;
        let started = operation.halves[tree].started;
        if started == plan.chunks_of(tree) {
            return None;
        }
        let (chunk, step) = self.step(id, plan.nth_of(tree, started))?;
        let slot = match step.to_parent {
            Some(_) => {
                let slot = self.free_slot(id, tree);
                if slot.is_none() {
                    self.turns.starve(id, tree);
                }
                Some(slot?)
            }
            None => None,
        };
        let arrivals = self.arrivals(id, &chunk, &step)?;
        let inputs = if step.own {
            self.inputs(id, &chunk)?
        } else {
            Vec::new()
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
        let left = self.begin_part(node, id, &chunk, inputs, received, slot);
        let operation = self.ops.get_mut(&id)?;
        operation.halves[tree].started += 1;
        operation
            .parts
            .insert(chunk.index, Part { left, reads, slot });
        if left == 0 {
            self.finish_part(node, id, chunk.index);
        }
        Some(())
    }

    /// A send slot for an operation. The last free one is kept for the oldest operation that still has chunks to
    /// start: a later one may sit in the parent's slots until the oldest is through, so it must not take them all.
    pub(super) fn free_slot(&self, id: OpId, tree: usize) -> Option<u8> {
        let (_, parent) = self.parents[tree].as_ref()?;
        let slot = parent.free(0)?;
        (parent.free(1).is_some() || self.is_oldest(id, tree)).then_some(slot)
    }

    /// Whether no earlier operation has chunks to start.
    fn is_oldest(&self, id: OpId, tree: usize) -> bool {
        let waits = |operation: &Operation| {
            let unplanned = operation.stage == Stage::Open && operation.plan.is_none();
            unplanned || operation.has_to_start(tree)
        };
        // What is served moves before our ranks have called what comes before it.
        let called = self.called.iter().copied().min().unwrap_or(0);
        let all_known = (called..id).all(|earlier| self.ops.contains_key(&earlier));
        all_known && !self.ops.range(..id).any(|(_, operation)| waits(operation))
    }

    /// What the children have sent for a chunk; `None` while something is missing or disagrees.
    fn arrivals(&self, id: OpId, chunk: &Chunk, step: &Step) -> Option<Vec<(usize, Arrival)>> {
        let call = self.ops.get(&id)?.plan.as_ref()?.call();
        let one = |&(peer, _): &(usize, Carry)| {
            let child = self.edges.get(&peer)?.child[chunk.tree()].as_ref()?;
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
            .pieces(chunk, &self.part.layout, self.part.node)?;
        let region = |(rank, offset, bytes, target)| {
            (
                Region {
                    buffer: self.input(id, rank),
                    offset,
                    bytes,
                },
                target,
            )
        };
        Some(pieces.into_iter().map(region).collect())
    }

    fn received(&self, peer: usize, tree: usize, arrival: Arrival) -> Region {
        let buffer = self.receive(peer, tree as u8, arrival.slot);
        Region {
            buffer,
            offset: 0,
            bytes: u64::from(arrival.bytes),
        }
    }

    /// Hands the chunk's local work out and returns how many pieces it is.
    fn begin_part(
        &mut self,
        node: &mut Node,
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
            Flow::Combine { .. } if self.sends_input(id, chunk, slot) => 0,
            Flow::Combine { .. } => {
                let own = inputs.len();
                let Some((call, op)) = self.arithmetic(id) else {
                    return 0;
                };
                let (is_root, world) = (slot.is_none(), self.part.layout.world());
                let scale = call.scale(own, own + received.len(), is_root, world);
                // Local ranks in rank order, then children in node order: never the order of arrival.
                let mut sources: Vec<Region> =
                    inputs.into_iter().map(|(region, _)| region).collect();
                let mut partials = Vec::new();
                if call.widening() == 1 {
                    sources.extend(received);
                } else {
                    partials = received;
                }
                let (destination, form) = match slot {
                    Some(slot) if call.widening() > 1 => (self.staged(chunk, slot), Form::Partial),
                    Some(slot) => (self.staged(chunk, slot), Form::Elements),
                    None => (self.result(id, chunk), Form::Elements),
                };
                let ticket = self.ticket(node, work);
                node.out.push(Effect::Reduce {
                    ticket,
                    arithmetic: Arithmetic {
                        dtype: call.dtype,
                        op,
                        scale,
                        form,
                    },
                    sources,
                    partials,
                    destination,
                });
                1
            }
            // Where the result is already, nothing is written to it.
            Flow::Spread { .. } if self.holds(id) => 0,
            Flow::Spread { .. } => {
                let copies = received
                    .into_iter()
                    .map(|region| (region, chunk.offset))
                    .chain(inputs);
                let mut left = 0;
                for (source, offset) in copies {
                    let ticket = self.ticket(node, work);
                    let destination = Region {
                        buffer: Buffer::Result {
                            group: self.id,
                            op: id,
                        },
                        offset,
                        bytes: source.bytes,
                    };
                    node.out.push(Effect::Copy {
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

    fn arithmetic(&self, id: OpId) -> Option<(Call, ReduceOp)> {
        let call = *self.ops.get(&id)?.plan.as_ref()?.call();
        Some((call, call.reduce_op()?))
    }

    /// A leaf with one rank has nothing to combine: its input goes up as it is, unless it is scaled or widened.
    fn sends_input(&self, id: OpId, chunk: &Chunk, slot: Option<u8>) -> bool {
        let children = &self.part.trees.trees[chunk.tree()].children[self.part.node];
        let changes = self
            .arithmetic(id)
            .is_some_and(|(call, _)| call.scales_inputs() || call.widening() > 1);
        slot.is_some() && children.is_empty() && self.called.len() == 1 && !changes
    }

    fn staged(&self, chunk: &Chunk, slot: u8) -> Region {
        Region {
            buffer: Buffer::Send {
                group: self.id,
                tree: chunk.tree() as u8,
                slot,
            },
            offset: 0,
            bytes: chunk.part_bytes,
        }
    }

    /// The local work on a chunk is finished: give the receive slots back, then send it up or turn it.
    pub(super) fn finish_part(&mut self, node: &mut Node, id: OpId, index: u32) {
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
            self.return_slot(node, peer, tree, slot);
        }
        match part.slot {
            Some(slot) if over => {
                if let Some((_, parent)) = &mut self.parents[tree] {
                    parent.set(slot, Slot::Free);
                }
            }
            Some(slot) => self.send_up(node, id, &chunk, &step, slot),
            None if over => {}
            None => {
                if self.parents[tree].is_none() {
                    self.settle(id, &chunk, &step);
                }
            }
        }
    }

    fn send_up(&mut self, node: &mut Node, id: OpId, chunk: &Chunk, step: &Step, slot: u8) {
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
            Flow::Combine { .. } if self.sends_input(id, chunk, Some(slot)) => Region {
                buffer: self.input(id, 0),
                ..self.result(id, chunk)
            },
            Flow::Combine { .. } => self.staged(chunk, slot),
            Flow::Spread { .. } => self.result(id, chunk),
        };
        let loaded = step.to_parent == Some(Carry::Payload) && chunk.bytes > 0;
        let payload = loaded.then(|| (self.ticket(node, Work::Up { op: id, tree, slot }), region));
        let bytes = if loaded { region.bytes as u32 } else { 0 };
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
            group: self.id,
            tree: tree as u8,
            op: id,
            chunk: chunk.index,
            slot,
            bytes,
            call,
            rank,
            mark: self.mark_up(tree),
        };
        self.send(node, peer, frame, payload);
    }
}
