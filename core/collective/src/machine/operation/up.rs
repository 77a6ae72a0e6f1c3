//! The way up: when a node has what a step needs, it works on the chunk and sends it up or, at the root, turns it.
//! Chunks of a tree are started in order and a slot is kept for the oldest operation, which is what keeps bounded
//! slots free of deadlock: the first chunk that is not finished never waits for a later one.

use super::{Context, Operation, Part, Stage};
use crate::machine::cause::{Broken, ProtocolViolation};
use crate::machine::io::{Buffer, Effect, Frame, Region, Ticket};
use crate::machine::node::{Node, Work};
use crate::machine::traffic::{Arrival, Traffic};
use crate::machine::view::GroupView;
use crate::numerics::{Arithmetic, Form};
use crate::op::Call;
use crate::reduce_op::ReduceOp;
use crate::schedule::{Chunk, Flow, Forwarding, Step};

/// Where the local work on a chunk reads.
struct Sources {
    /// This node's own part, and where each piece belongs in the result.
    own: Vec<(Region, u64)>,
    /// What children have sent.
    received: Vec<Region>,
}

impl Operation {
    /// The chunk of a tree that has to be started next.
    pub(in crate::machine) fn next_chunk(
        &self,
        view: &GroupView,
        tree: usize,
    ) -> Option<(Chunk, Step)> {
        let plan = self.plan.as_ref().filter(|_| self.has_to_start(tree))?;
        self.step(view, plan.nth_of(tree, self.halves[tree].started))
    }

    /// Starts that chunk, if everything for it is here. `slot`: the send slot for what goes up.
    pub(in crate::machine) fn start(
        &mut self,
        at: &mut Context<'_>,
        chunk: &Chunk,
        step: &Step,
        slot: Option<u8>,
    ) -> Option<()> {
        let tree = chunk.tree();
        let arrivals = self.arrivals(at.traffic, chunk, step)?;
        let own = if step.own {
            self.inputs(at.view, chunk)?
        } else {
            Vec::new()
        };
        for &(peer, _) in &arrivals {
            at.traffic.take(peer, tree, self.id, chunk.index);
        }
        if let (Some(slot), Some(parent)) = (slot, at.traffic.parent_mut(tree)) {
            parent.fill(slot);
        }
        let reads = arrivals.iter().map(|&(peer, part)| (peer, part.slot));
        let reads: Vec<(usize, u8)> = reads.collect();
        let received = arrivals.iter().filter(|(_, part)| part.bytes > 0);
        let received = received.map(|&(peer, part)| Region {
            buffer: at.view.receive(peer, tree as u8, part.slot),
            offset: 0,
            bytes: u64::from(part.bytes),
        });
        let received = received.collect();
        let left = self.begin_part(at.view, at.node, chunk, Sources { own, received }, slot);
        self.halves[tree].started += 1;
        self.parts.insert(chunk.index, Part { left, reads, slot });
        if left == 0 {
            self.finish_part(at, chunk.index);
        }
        Some(())
    }

    /// What the children have sent for a chunk; `None` while something is missing or disagrees.
    fn arrivals(
        &self,
        traffic: &Traffic,
        chunk: &Chunk,
        step: &Step,
    ) -> Option<Vec<(usize, Arrival)>> {
        let call = self.plan.as_ref()?.call();
        let one = |&(peer, _): &(usize, Forwarding)| {
            let part = traffic.arrival(peer, chunk.tree(), self.id, chunk.index);
            Some((peer, *part.filter(|part| part.call == *call)?))
        };
        step.from_children.iter().map(one).collect()
    }

    /// This node's own part of a chunk as (where it is, offset in the result); `None` while not all may be read.
    fn inputs(&self, view: &GroupView, chunk: &Chunk) -> Option<Vec<(Region, u64)>> {
        let region = |(rank, offset, bytes, target)| {
            let buffer = view.input(self.id, rank);
            let region = Region {
                buffer,
                offset,
                bytes,
            };
            (region, target)
        };
        let pieces = self.pieces(view, chunk)?;
        Some(pieces.into_iter().map(region).collect())
    }

    /// Hands the chunk's local work out and returns how many pieces it is.
    fn begin_part(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        chunk: &Chunk,
        sources: Sources,
        slot: Option<u8>,
    ) -> u32 {
        if chunk.bytes == 0 {
            return 0;
        }
        match chunk.flow {
            Flow::Combine { .. } if self.sends_input(view, chunk, slot) => 0,
            Flow::Combine { .. } => self.combine(view, node, chunk, sources, slot),
            // Where the result is already, nothing is written to it.
            Flow::Spread { .. } if self.holds => 0,
            Flow::Spread { .. } => self.gather(view, node, chunk, sources),
        }
    }

    fn combine(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        chunk: &Chunk,
        Sources { own, received }: Sources,
        slot: Option<u8>,
    ) -> u32 {
        let Some((call, op)) = self.arithmetic() else {
            return 0;
        };
        let (is_root, world) = (slot.is_none(), view.layout.world());
        let scale = call.scale(own.len(), own.len() + received.len(), is_root, world);
        // Local ranks in rank order, then children in node order: never the order of arrival.
        let mut sources: Vec<Region> = own.into_iter().map(|(region, _)| region).collect();
        let mut partials = Vec::new();
        if call.widening() == 1 {
            sources.extend(received);
        } else {
            partials = received;
        }
        let (destination, form) = match slot {
            Some(slot) if call.widening() > 1 => (staged(view, chunk, slot), Form::Partial),
            Some(slot) => (staged(view, chunk, slot), Form::Elements),
            None => (view.result(self.id, chunk), Form::Elements),
        };
        let ticket = self.part_ticket(view, node, chunk);
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

    fn gather(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        chunk: &Chunk,
        Sources { own, received }: Sources,
    ) -> u32 {
        let received = received.into_iter().map(|region| (region, chunk.offset));
        let mut left = 0;
        for (source, offset) in received.chain(own) {
            let ticket = self.part_ticket(view, node, chunk);
            let destination = Region {
                offset,
                bytes: source.bytes,
                ..view.result(self.id, chunk)
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

    fn part_ticket(&mut self, view: &GroupView, node: &mut Node, chunk: &Chunk) -> Ticket {
        let (op, chunk) = (self.id, chunk.index);
        self.ticket(view, node, Work::Part { op, chunk })
    }

    fn arithmetic(&self) -> Option<(Call, ReduceOp)> {
        let call = *self.plan.as_ref()?.call();
        Some((call, call.reduce_op()?))
    }

    /// A leaf with one rank has nothing to combine: its input goes up as it is, unless it is scaled or widened.
    fn sends_input(&self, view: &GroupView, chunk: &Chunk, slot: Option<u8>) -> bool {
        let changes = self
            .arithmetic()
            .is_some_and(|(call, _)| call.scales_inputs() || call.widening() > 1);
        let is_leaf = view.children(chunk.tree()).is_empty();
        slot.is_some() && is_leaf && self.brought.len() == 1 && !changes
    }

    /// A piece of the local work on a chunk is done.
    pub(in crate::machine) fn piece_done(&mut self, at: &mut Context<'_>, index: u32) {
        let Some(part) = self.parts.get_mut(&index) else {
            return;
        };
        part.left -= 1;
        if part.left == 0 {
            self.finish_part(at, index);
        }
    }

    /// The local work on a chunk is finished: give the receive slots back, then send it up or turn it.
    fn finish_part(&mut self, at: &mut Context<'_>, index: u32) {
        let Some(part) = self.parts.remove(&index) else {
            return;
        };
        let over = self.stage == Stage::Ended;
        let Some((chunk, step)) = self.step(at.view, index) else {
            return;
        };
        let tree = chunk.tree();
        for (peer, slot) in part.reads {
            at.traffic.return_slot(at.view, at.node, peer, tree, slot);
        }
        match part.slot {
            Some(slot) if over => {
                if let Some(parent) = at.traffic.parent_mut(tree) {
                    parent.cancel(slot);
                }
            }
            Some(slot) => self.send_up(at, &chunk, &step, slot),
            None if over => {}
            None => {
                if at.view.parent(tree).is_none() {
                    self.settle(at.traffic, &chunk, &step);
                }
            }
        }
    }

    fn send_up(&mut self, at: &mut Context<'_>, chunk: &Chunk, step: &Step, slot: u8) {
        let (op, tree) = (self.id, chunk.tree());
        let call = self.plan.as_ref().map(|plan| *plan.call());
        let (Some(call), Some(peer)) = (call, at.view.parent(tree)) else {
            return;
        };
        let result = at.view.result(op, chunk);
        let region = match chunk.flow {
            Flow::Combine { .. } if self.sends_input(at.view, chunk, Some(slot)) => Region {
                buffer: at.view.input(op, 0),
                ..result
            },
            Flow::Combine { .. } => staged(at.view, chunk, slot),
            Flow::Spread { .. } => result,
        };
        let loaded = step.to_parent == Some(Forwarding::Payload) && chunk.bytes > 0;
        let work = Work::Up { op, tree, slot };
        let payload = loaded.then(|| (self.ticket(at.view, at.node, work), region));
        if let Some(parent) = at.traffic.parent_mut(tree) {
            parent.send(slot, !loaded);
        }
        let frame = Frame::ReduceChunk {
            group: at.view.id,
            tree: tree as u8,
            op,
            chunk: chunk.index,
            slot,
            bytes: if loaded { region.bytes as u32 } else { 0 },
            call,
            rank: at.view.global(0),
            watermark: at.retention.watermark_up(tree),
        };
        at.view.send(at.node, peer, frame, payload);
    }

    /// A part whose call agrees with ours has to be the one the schedule expects. One that disagrees, or comes
    /// before our ranks have called, waits for the comparison.
    pub(in crate::machine) fn check_part(
        &self,
        view: &GroupView,
        peer: usize,
        tree: usize,
        index: u32,
        arrival: &Arrival,
    ) -> Result<(), ProtocolViolation> {
        let plan = self.plan.as_ref();
        let Some(plan) = plan.filter(|plan| *plan.call() == arrival.call) else {
            return Ok(());
        };
        if index >= plan.chunks() {
            return Err(ProtocolViolation::Chunk);
        }
        let (chunk, step) = self.step(view, index).ok_or(ProtocolViolation::Chunk)?;
        let fits = |&(child, carry): &(usize, Forwarding)| {
            child == peer
                && chunk.tree() == tree
                && carry.payload(chunk.part_bytes) == u64::from(arrival.bytes)
        };
        if step.from_children.iter().any(fits) {
            Ok(())
        } else {
            Err(ProtocolViolation::Chunk)
        }
    }

    /// Parts that came before our ranks had called could not be checked then.
    pub(in crate::machine) fn check_early_parts(
        &self,
        view: &GroupView,
        node: &mut Node,
        traffic: &Traffic,
    ) {
        for (peer, tree, chunk, arrival) in traffic.arrivals(self.id) {
            if let Err(violation) = self.check_part(view, peer, tree, chunk, &arrival) {
                let broken = Broken::Protocol {
                    node: view.nodes[peer],
                    by: node.config.node,
                    violation,
                };
                node.break_with(broken, None);
            }
        }
    }
}

/// The send slot of a part.
fn staged(view: &GroupView, chunk: &Chunk, slot: u8) -> Region {
    Region {
        buffer: Buffer::Send {
            group: view.id,
            tree: chunk.tree() as u8,
            slot,
        },
        offset: 0,
        bytes: chunk.part_bytes,
    }
}
