//! What comes from neighbours: every frame is checked here once against what its sender may send now. A frame
//! that may not be is a broken protocol and ends the epoch with the sender's name; one of another epoch is dropped.

use super::cause::Violation;
use super::edge::Arrival;
use super::group::Group;
use super::history::MARKS;
use super::message::Want;
use super::node::Node;
use super::operation::{Operation, Stage};
use super::{
    Broken, Fence, Frame, GroupId, MAX_IN_FLIGHT, Machine, OpId, Placement, RELAY, Region, WORLD,
};
use crate::schedule::{Carry, Chunk, Step};

impl Machine {
    /// Where the payload of an `Up` or `Down` goes. Only looks; the frame itself comes with
    /// [`super::Input::Frame`].
    #[must_use]
    pub fn place(&self, peer: usize, fence: Fence, frame: &Frame) -> Placement {
        if fence != self.node.config.fence || self.node.broken.is_some() {
            return Placement::Discard;
        }
        let group = frame.group().and_then(|group| self.groups.get(&group));
        let place = group.and_then(|group| Some((group, group.part.place(peer)?)));
        place.map_or(Placement::Discard, |(group, peer)| group.place(peer, frame))
    }

    pub(super) fn frame(&mut self, peer: usize, fence: Fence, frame: Frame) {
        if fence != self.node.config.fence {
            self.node.counters.stale_frames += 1;
            return;
        }
        self.node.hear(peer);
        if self.node.broken.is_some() {
            return;
        }
        if let Err(violation) = self.deliver(peer, frame) {
            let by = self.node.config.node;
            let broken = Broken::Protocol {
                node: peer,
                by,
                violation,
            };
            self.node.break_with(broken, None);
        }
    }

    fn deliver(&mut self, peer: usize, frame: Frame) -> Result<(), Violation> {
        let node = &mut self.node;
        let group = match frame {
            Frame::Up { group, .. }
            | Frame::Refuse { group, .. }
            | Frame::Down { group, .. }
            | Frame::Fail { group, .. }
            | Frame::Want { group, .. }
            | Frame::Data { group, .. }
            | Frame::Deny { group, .. }
            | Frame::Credit { group, .. }
            | Frame::Awaiting { group, .. }
            | Frame::Mark { group, .. } => group,
            Frame::Abort { broken } => {
                node.break_with(broken, Some(peer));
                return Ok(());
            }
            Frame::Heartbeat => return Ok(()),
            Frame::Bye { group, ended } => {
                self.bye(peer, group, ended);
                return Ok(());
            }
            Frame::Open { .. } | Frame::Opened { .. } => {
                return self.heard_of_opening(peer, &frame);
            }
        };
        let Some(group) = self.groups.get_mut(&group) else {
            // Of one that is closed here: what others had to say before they heard how its operations ended.
            node.counters.late_frames += 1;
            return Ok(());
        };
        let peer = group.part.place(peer).ok_or(Violation::Direction)?;
        group.frame(node, peer, frame)
    }

    /// A neighbour leaves. That is nobody's loss unless an operation that it has not ended still needs it.
    fn bye(&mut self, peer: usize, id: GroupId, ended: u64) {
        if let Some(link) = self.node.links.get_mut(&peer)
            && id == WORLD
        {
            link.bye = true;
            for group in self.groups.values_mut() {
                group.refuse_sends_to_nobody(&mut self.node);
            }
        }
        let handover = self.node.config.recovery.handover;
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let Some(peer) = group.part.place(peer) else {
            return; // Linked for the sake of other groups.
        };
        let Some(edge) = group.edges.get_mut(&peer) else {
            return;
        };
        edge.bye = Some(ended);
        group.marked_by_farewell(peer, ended, handover);
        group.check_departures_of_open(&mut self.node);
    }
}

impl Group {
    fn place(&self, peer: usize, frame: &Frame) -> Placement {
        let region = match *frame {
            Frame::Up {
                tree, slot, bytes, ..
            } => {
                let buffer = self.receive(peer, tree, slot);
                let bytes = u64::from(bytes);
                self.check_slot(peer, tree, slot, bytes).map(|()| Region {
                    buffer,
                    offset: 0,
                    bytes,
                })
            }
            Frame::Down { op, .. } if self.holds(op) => return Placement::Discard,
            Frame::Down {
                tree,
                op,
                chunk,
                bytes,
                ..
            } => self
                .check_down(peer, tree, op, chunk, bytes)
                .map(|(chunk, _)| Region {
                    bytes: u64::from(bytes),
                    ..self.result(op, &chunk)
                }),
            Frame::Data {
                message,
                chunk,
                slot,
                bytes,
                ..
            } => return self.place_part(peer, message, chunk, slot, bytes),
            Frame::Refuse { .. }
            | Frame::Fail { .. }
            | Frame::Want { .. }
            | Frame::Deny { .. }
            | Frame::Credit { .. }
            | Frame::Awaiting { .. }
            | Frame::Mark { .. }
            | Frame::Abort { .. }
            | Frame::Heartbeat
            | Frame::Bye { .. }
            | Frame::Open { .. }
            | Frame::Opened { .. } => return Placement::Discard,
        };
        region.map_or(Placement::Discard, Placement::Into)
    }

    fn frame(&mut self, node: &mut Node, peer: usize, frame: Frame) -> Result<(), Violation> {
        match frame {
            Frame::Up {
                tree,
                op,
                chunk,
                slot,
                bytes,
                call,
                rank,
                mark,
                ..
            } => {
                let arrival = Arrival {
                    slot,
                    bytes,
                    call,
                    rank,
                };
                self.up(node, peer, tree, op, chunk, arrival)?;
                if usize::from(tree) == MARKS {
                    self.marked(peer, mark)?;
                }
                Ok(())
            }
            Frame::Down {
                tree,
                op,
                chunk,
                bytes,
                mark,
                ..
            } => {
                self.down(node, peer, tree, op, chunk, bytes)?;
                if usize::from(tree) == MARKS {
                    self.marked(peer, mark)?;
                }
                Ok(())
            }
            Frame::Refuse { op, verdict, .. } => self.refused(node, peer, op, verdict),
            Frame::Fail { op, verdict, .. } => self.failed(node, peer, op, verdict),
            Frame::Want {
                message,
                call,
                refused,
                ..
            } => self.wanted(node, peer, message, Want { call, refused }),
            Frame::Data {
                message,
                chunk,
                slot,
                bytes,
                ..
            } => self.part_came(node, peer, message, chunk, slot, bytes),
            Frame::Deny {
                message,
                call,
                refused,
                ..
            } => self.denied(node, peer, message, Want { call, refused }),
            Frame::Credit {
                tree: RELAY, slot, ..
            } => self.relay_credit(peer, slot),
            Frame::Credit { tree, slot, .. } => self.credit(peer, tree, slot),
            Frame::Awaiting { op, .. } => self.awaiting(node, peer, op),
            Frame::Mark { mark, .. } => self.marked(peer, mark),
            Frame::Abort { .. }
            | Frame::Heartbeat
            | Frame::Bye { .. }
            | Frame::Open { .. }
            | Frame::Opened { .. } => Ok(()),
        }
    }

    fn up(
        &mut self,
        node: &mut Node,
        peer: usize,
        tree: u8,
        id: OpId,
        chunk: u32,
        arrival: Arrival,
    ) -> Result<(), Violation> {
        self.check_slot(peer, tree, arrival.slot, u64::from(arrival.bytes))?;
        let tree = usize::from(tree);
        if self
            .child(peer, tree)
            .is_some_and(|child| child.arrived.contains_key(&(id, chunk)))
        {
            return Err(Violation::Chunk);
        }
        if let Some(child) = self.child_mut(peer, tree) {
            child.taken |= 1 << arrival.slot;
        }
        if !self.is_live(id)? {
            node.counters.late_frames += 1;
            self.return_slot(node, peer, tree, arrival.slot);
            return Ok(());
        }
        self.check_part(id, peer, tree, chunk, &arrival)?;
        if let Some(child) = self.child_mut(peer, tree) {
            child.arrived.insert((id, chunk), arrival);
        }
        self.hear_of(node, id);
        Ok(())
    }

    fn down(
        &mut self,
        node: &mut Node,
        peer: usize,
        tree: u8,
        id: OpId,
        chunk: u32,
        bytes: u32,
    ) -> Result<(), Violation> {
        // An exchange may have failed since this was sent.
        let is_open = |one: &Operation| one.stage == Stage::Open;
        if bytes == 0 && !self.ops.get(&id).is_some_and(is_open) && !self.is_live(id)? {
            node.counters.late_frames += 1;
            return Ok(());
        }
        let (chunk, step) = self.check_down(peer, tree, id, chunk, bytes)?;
        self.settle(id, &chunk, &step);
        Ok(())
    }

    fn credit(&mut self, peer: usize, tree: u8, slot: u8) -> Result<(), Violation> {
        match self.parents.get_mut(usize::from(tree)) {
            Some(Some((parent, slots))) if *parent == peer => {
                if slots.returned(slot) {
                    Ok(())
                } else {
                    Err(Violation::Slot)
                }
            }
            Some(_) => Err(Violation::Direction),
            None => Err(Violation::Tree),
        }
    }

    fn check_slot(&self, peer: usize, tree: u8, slot: u8, bytes: u64) -> Result<(), Violation> {
        if tree > 1 {
            return Err(Violation::Tree);
        }
        let child = self
            .child(peer, usize::from(tree))
            .ok_or(Violation::Direction)?;
        if slot >= self.slots || child.taken & (1 << slot) != 0 {
            return Err(Violation::Slot);
        }
        if bytes > u64::from(self.chunk_bytes) {
            return Err(Violation::Chunk);
        }
        Ok(())
    }

    /// A part whose call agrees with ours has to be the one the schedule expects. One that disagrees, or comes
    /// before our ranks have called, waits for the comparison.
    fn check_part(
        &self,
        id: OpId,
        peer: usize,
        tree: usize,
        index: u32,
        arrival: &Arrival,
    ) -> Result<(), Violation> {
        let plan = self
            .ops
            .get(&id)
            .and_then(|operation| operation.plan.as_ref());
        let Some(plan) = plan.filter(|plan| *plan.call() == arrival.call) else {
            return Ok(());
        };
        if index >= plan.chunks() {
            return Err(Violation::Chunk);
        }
        let (chunk, step) = self.step(id, index).ok_or(Violation::Chunk)?;
        let fits = |&(child, carry): &(usize, Carry)| {
            child == peer
                && chunk.tree() == tree
                && payload(chunk.part_bytes, carry) == u64::from(arrival.bytes)
        };
        if step.from_children.iter().any(fits) {
            Ok(())
        } else {
            Err(Violation::Chunk)
        }
    }

    /// Parts that came before our ranks had called could not be checked then.
    pub(super) fn check_early_parts(&self, node: &mut Node, id: OpId) {
        let mut early = Vec::new();
        for (&peer, edge) in &self.edges {
            for (tree, child) in edge.child.iter().enumerate() {
                let arrived = child
                    .iter()
                    .flat_map(|child| child.arrived.range((id, 0)..=(id, u32::MAX)));
                early.extend(arrived.map(|(&(_, chunk), &arrival)| (peer, tree, chunk, arrival)));
            }
        }
        for (peer, tree, chunk, arrival) in early {
            if let Err(violation) = self.check_part(id, peer, tree, chunk, &arrival) {
                node.break_with(
                    Broken::Protocol {
                        node: self.part.nodes[peer],
                        by: node.config.node,
                        violation,
                    },
                    None,
                );
            }
        }
    }

    fn check_down(
        &self,
        peer: usize,
        tree: u8,
        id: OpId,
        index: u32,
        bytes: u32,
    ) -> Result<(Chunk, Step), Violation> {
        match self.parents.get(usize::from(tree)) {
            Some(Some((parent, _))) if *parent == peer => {}
            Some(_) => return Err(Violation::Direction),
            None => return Err(Violation::Tree),
        }
        let operation = self
            .ops
            .get(&id)
            .filter(|operation| operation.stage == Stage::Open);
        let operation = operation.ok_or(Violation::Chunk)?;
        let plan = operation.plan.as_ref().ok_or(Violation::Chunk)?;
        if index >= plan.chunks() || operation.is_settled(index) {
            return Err(Violation::Chunk);
        }
        let (chunk, step) = self.step(id, index).ok_or(Violation::Chunk)?;
        let carry = step.from_parent.ok_or(Violation::Chunk)?;
        if chunk.tree() != usize::from(tree) || payload(chunk.bytes, carry) != u64::from(bytes) {
            return Err(Violation::Chunk);
        }
        Ok((chunk, step))
    }

    /// Whether an operation may still happen here; false when it is over. A peer can be ahead by what it may
    /// have in flight beyond what we have called.
    pub(super) fn is_live(&self, id: OpId) -> Result<bool, Violation> {
        if let Some(operation) = self.ops.get(&id) {
            return Ok(!operation.stage.is_over());
        }
        if id > self.oldest() + 2 * MAX_IN_FLIGHT {
            return Err(Violation::Operation);
        }
        Ok(self.called.iter().any(|&called| called <= id))
    }

    /// Others have begun an operation.
    pub(super) fn hear_of(&mut self, node: &mut Node, id: OpId) {
        let local = self.called.len();
        self.ops
            .entry(id)
            .or_insert_with(|| Operation::new(local, node.now));
        self.turns.stir(id);
        self.check_departures(node, id);
    }

    pub(super) fn return_slot(&mut self, node: &mut Node, peer: usize, tree: usize, slot: u8) {
        if let Some(child) = self.child_mut(peer, tree) {
            child.taken &= !(1 << slot);
        }
        if node.broken.is_none() {
            let frame = Frame::Credit {
                group: self.id,
                tree: tree as u8,
                slot,
            };
            self.send(node, peer, frame, None);
        }
    }
}

fn payload(bytes: u64, carry: Carry) -> u64 {
    match carry {
        Carry::Payload => bytes,
        Carry::Empty => 0,
    }
}
