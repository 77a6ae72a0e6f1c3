//! One group's traffic with its neighbours in the trees: which receive slots a child has filled, what waits to be sent down
//! to it, and in which send slots parts for a parent are staged. Whether a neighbour lives is known to `node`.

use std::collections::{BTreeMap, VecDeque};

use super::cause::{ProtocolViolation, Verdict};
use super::config::MAX_IN_FLIGHT;
use super::io::{Frame, OpId};
use super::node::Node;
use super::slots::SendSlots;
use super::view::GroupView;
use crate::op::Call;

/// The tree that carries verdicts: every operation has a chunk in it.
pub(super) const VERDICTS: usize = 0;

/// A part that a child has sent and that is not yet combined.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) slot: u8,
    pub(super) bytes: u32,
    pub(super) call: Call,
    /// The rank that speaks for the child.
    pub(super) rank: u32,
}

/// One tree's traffic with a child.
#[derive(Clone, Debug, Default)]
struct Child {
    /// Parts by operation and chunk; each holds a slot, so there are at most `slots`.
    arrived: BTreeMap<(OpId, u32), Arrival>,
    /// Receive slots in use, a bit each.
    taken: u64,
    /// Chunks that have to go down, oldest first: at most the chunks of the operations in flight.
    backlog: VecDeque<(OpId, u32)>,
    /// Payloads on their way down, at most `slots`.
    sending: u8,
}

/// A neighbour.
#[derive(Clone, Debug)]
struct Edge {
    /// What it is in each tree, if it is a child there.
    child: [Option<Child>; 2],
    /// What its subtree cannot carry out, by operation: at most one for each operation in flight.
    refused: BTreeMap<OpId, Verdict>,
    /// The operations it had ended when it left.
    ended: Option<u64>,
}

/// All neighbours.
#[derive(Debug)]
pub(super) struct Traffic {
    edges: BTreeMap<usize, Edge>,
    /// `(peer, tree)` of every child.
    below: Vec<(usize, u8)>,
    /// The send slots of each tree in which this node has a parent.
    parents: [Option<SendSlots>; 2],
}

impl Traffic {
    pub(super) fn new(view: &GroupView) -> Self {
        let is_child = |peer, tree| view.children(tree).contains(&peer);
        let peers = view.trees.tree_peers(view.node).into_iter();
        let edges: BTreeMap<usize, Edge> = peers
            .map(|peer| {
                let child = [0, 1].map(|tree| is_child(peer, tree).then(Child::default));
                let edge = Edge {
                    child,
                    refused: BTreeMap::new(),
                    ended: None,
                };
                (peer, edge)
            })
            .collect();
        let below = edges
            .keys()
            .flat_map(|&peer| [(peer, 0u8), (peer, 1)])
            .filter(|&(peer, tree)| is_child(peer, tree.into()))
            .collect();
        let slots = |tree| view.parent(tree).map(|_| SendSlots::new(view.window));
        Self {
            edges,
            below,
            parents: [0, 1].map(slots),
        }
    }

    /// `(peer, tree)` of every child.
    pub(super) fn below(&self) -> &[(usize, u8)] {
        &self.below
    }

    fn child(&self, peer: usize, tree: usize) -> Option<&Child> {
        self.edges.get(&peer)?.child[tree].as_ref()
    }

    fn child_mut(&mut self, peer: usize, tree: usize) -> Option<&mut Child> {
        self.edges.get_mut(&peer)?.child[tree].as_mut()
    }

    /// The send slots of a tree; none at its root.
    pub(super) fn parent(&self, tree: usize) -> Option<&SendSlots> {
        self.parents[tree].as_ref()
    }

    pub(super) fn parent_mut(&mut self, tree: usize) -> Option<&mut SendSlots> {
        self.parents[tree].as_mut()
    }

    /// The parent has returned a slot.
    pub(super) fn on_credit(
        &mut self,
        view: &GroupView,
        peer: usize,
        tree: u8,
        slot: u8,
    ) -> Result<(), ProtocolViolation> {
        view.check_parent(peer, tree)?;
        let slots = self.parents[usize::from(tree)].as_mut();
        if slots.is_some_and(|slots| slots.returned(slot)) {
            Ok(())
        } else {
            Err(ProtocolViolation::Slot)
        }
    }

    /// Whether a child may fill a receive slot now with so many bytes.
    pub(super) fn check_slot(
        &self,
        view: &GroupView,
        peer: usize,
        tree: u8,
        slot: u8,
        bytes: u32,
    ) -> Result<(), ProtocolViolation> {
        if tree > 1 {
            return Err(ProtocolViolation::Tree);
        }
        let child = self.child(peer, usize::from(tree));
        let child = child.ok_or(ProtocolViolation::Direction)?;
        if slot >= view.slots || child.taken & (1 << slot) != 0 {
            return Err(ProtocolViolation::Slot);
        }
        if bytes > view.chunk_bytes {
            return Err(ProtocolViolation::Chunk);
        }
        Ok(())
    }

    /// A child has filled a receive slot.
    pub(super) fn take_slot(&mut self, peer: usize, tree: usize, slot: u8) {
        if let Some(child) = self.child_mut(peer, tree) {
            child.taken |= 1 << slot;
        }
    }

    pub(super) fn return_slot(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        peer: usize,
        tree: usize,
        slot: u8,
    ) {
        if let Some(child) = self.child_mut(peer, tree) {
            child.taken &= !(1 << slot);
        }
        if node.broken.is_none() {
            let frame = Frame::Credit {
                group: view.id,
                tree: tree as u8,
                slot,
            };
            view.send(node, peer, frame, None);
        }
    }

    /// A part of a chunk that a child has sent, and that is not combined yet.
    pub(super) fn arrival(
        &self,
        peer: usize,
        tree: usize,
        id: OpId,
        chunk: u32,
    ) -> Option<&Arrival> {
        self.child(peer, tree)?.arrived.get(&(id, chunk))
    }

    /// All parts of an operation, as (child, tree, chunk, part).
    pub(super) fn arrivals(&self, id: OpId) -> Vec<(usize, usize, u32, Arrival)> {
        let mut all = Vec::new();
        for (&peer, edge) in &self.edges {
            for (tree, child) in edge.child.iter().enumerate() {
                let parts = |child: &'_ Child| {
                    let parts = child.arrived.range((id, 0)..=(id, u32::MAX));
                    let parts = parts.map(|(&(_, chunk), &part)| (peer, tree, chunk, part));
                    parts.collect::<Vec<_>>()
                };
                all.extend(child.iter().flat_map(parts));
            }
        }
        all
    }

    /// A part waits until it can be combined.
    pub(super) fn keep(
        &mut self,
        peer: usize,
        tree: usize,
        id: OpId,
        chunk: u32,
        arrival: Arrival,
    ) {
        if let Some(child) = self.child_mut(peer, tree) {
            child.arrived.insert((id, chunk), arrival);
        }
    }

    /// A part is being combined: its slot is still in use.
    pub(super) fn take(&mut self, peer: usize, tree: usize, id: OpId, chunk: u32) {
        if let Some(child) = self.child_mut(peer, tree) {
            child.arrived.remove(&(id, chunk));
        }
    }

    /// The subtree of a child cannot carry an operation out.
    pub(super) fn refuse(
        &mut self,
        peer: usize,
        id: OpId,
        verdict: Verdict,
    ) -> Result<(), ProtocolViolation> {
        let Some(edge) = self.edges.get_mut(&peer) else {
            return Ok(());
        };
        edge.refused.insert(id, verdict);
        if edge.refused.len() as u64 > 2 * MAX_IN_FLIGHT {
            return Err(ProtocolViolation::Operation);
        }
        Ok(())
    }

    pub(super) fn refused(&self, peer: usize, id: OpId) -> Option<Verdict> {
        self.edges.get(&peer)?.refused.get(&id).copied()
    }

    /// Why the first of the subtrees that cannot carry an operation out cannot.
    pub(super) fn first_refused(&self, id: OpId) -> Option<Verdict> {
        let mut below = self.edges.values();
        below.find_map(|edge| edge.refused.get(&id)).copied()
    }

    /// An operation has failed: says so below, and drops the parts that came for it.
    pub(super) fn fail(&mut self, view: &GroupView, node: &mut Node, id: OpId, verdict: Verdict) {
        for (peer, tree) in self.below.clone() {
            let tree = usize::from(tree);
            if tree == VERDICTS {
                let frame = Frame::Fail {
                    group: view.id,
                    op: id,
                    verdict,
                };
                view.send(node, peer, frame, None);
            }
            self.drop_arrivals(view, node, id, peer, tree);
        }
        for edge in self.edges.values_mut() {
            edge.refused.remove(&id);
        }
    }

    fn drop_arrivals(
        &mut self,
        view: &GroupView,
        node: &mut Node,
        id: OpId,
        peer: usize,
        tree: usize,
    ) {
        let Some(child) = self.child_mut(peer, tree) else {
            return;
        };
        let range = (id, 0)..=(id, u32::MAX);
        let dropped: Vec<u8> = child
            .arrived
            .range(range)
            .map(|(_, one)| one.slot)
            .collect();
        child.arrived.retain(|&(op, _), _| op != id);
        for slot in dropped {
            node.counters.late_frames += 1;
            self.return_slot(view, node, peer, tree, slot);
        }
    }

    /// A chunk of a result has to go down to a child.
    pub(super) fn push_down(&mut self, peer: usize, tree: usize, id: OpId, chunk: u32) {
        if let Some(child) = self.child_mut(peer, tree) {
            child.backlog.push_back((id, chunk));
        }
    }

    /// The chunk that has to go down to a child next.
    pub(super) fn next_down(&self, peer: usize, tree: usize) -> Option<(OpId, u32)> {
        self.child(peer, tree)?.backlog.front().copied()
    }

    /// Whether as many payloads are on their way to a child as may be.
    pub(super) fn is_full(&self, view: &GroupView, peer: usize, tree: usize) -> bool {
        let child = self.child(peer, tree);
        child.is_some_and(|child| child.sending >= view.window)
    }

    /// That chunk goes down, with a payload or without.
    pub(super) fn pop_down(&mut self, peer: usize, tree: usize, loaded: bool) {
        if let Some(child) = self.child_mut(peer, tree) {
            child.backlog.pop_front();
            child.sending += u8::from(loaded);
        }
    }

    /// A payload for a child has left.
    pub(super) fn left_for(&mut self, peer: usize, tree: usize) {
        if let Some(child) = self.child_mut(peer, tree) {
            child.sending -= 1;
        }
    }

    /// A node leaves in good order. False when it is no neighbour here.
    pub(super) fn leave(&mut self, peer: usize, ended: u64) -> bool {
        let edge = self.edges.get_mut(&peer);
        edge.map(|edge| edge.ended = Some(ended)).is_some()
    }

    /// A neighbour that has left without ending an operation.
    pub(super) fn left_before(&self, op: OpId) -> Option<usize> {
        let mut edges = self.edges.iter();
        let left = edges.find(|(_, edge)| edge.ended.is_some_and(|ended| ended <= op));
        left.map(|(&peer, _)| peer)
    }

    /// The epoch is over: nothing is combined and nothing goes down any more.
    pub(super) fn close(&mut self) {
        let children = self.edges.values_mut().flat_map(|edge| &mut edge.child);
        for child in children.flatten() {
            child.backlog.clear();
            child.arrived.clear();
        }
    }
}
