//! The operations of a group that are in flight on this node, in their order. One operation is in `operation`, what
//! neighbours say of them in `receive`, who is late in `late`, and how they come to an end in `finish`.

mod finish;
mod late;
mod receive;

use std::collections::BTreeMap;
use std::time::Duration;

use super::cause::Verdict;
use super::config::Start;
use super::io::OpId;
use super::node::{Node, Work};
use super::operation::{Context, Operation, OperationStatus};
use super::ready::ReadyQueue;
use super::retention::Retention;
use super::traffic::Traffic;
use super::view::GroupView;
use crate::op::OpKind;
use crate::recovery::Retained;
pub(super) use receive::ChunkId;

/// Operations in flight.
#[derive(Debug)]
pub(super) struct Operations {
    ops: BTreeMap<OpId, Operation>,
    /// How many operations each local rank has called.
    called: Vec<u64>,
    ready: ReadyQueue,
    /// The operation that has closed the group, when that is final here.
    closed: Option<OpId>,
    /// Whether nobody needs that any more.
    is_closed_everywhere: bool,
}

impl Operations {
    pub(super) fn new(called: Vec<u64>) -> Self {
        Self {
            ops: BTreeMap::new(),
            called,
            ready: ReadyQueue::default(),
            closed: None,
            is_closed_everywhere: false,
        }
    }

    /// Begins with what was reported: operations that are served need nothing of the ranks here.
    pub(super) fn take_over(&mut self, view: &GroupView, retention: &mut Retention, start: &Start) {
        let closes = |held: &Retained| held.call.kind == OpKind::Close && held.verdict.is_none();
        let all = start.resume.served.iter().map(|served| &served.retained);
        let mut all = start.retained.iter().chain(all);
        self.closed = all.find(|held| closes(held)).map(|held| held.op);
        for held in &start.retained {
            if held.op < start.resume.base {
                retention.keep(*held); // To be released.
            }
        }
        for held in start.forgotten() {
            retention.keep(held);
        }
        for served in &start.resume.served {
            let op = served.retained.op;
            let delivered: Vec<bool> = start.delivered.iter().map(|&first| first > op).collect();
            let mine = start.mine(op);
            if let Some(held) = mine {
                retention.keep(held);
            }
            if !served.spread && !delivered.contains(&false) {
                continue;
            }
            let operation = Operation::served(view, served, delivered, mine);
            self.ops.insert(op, operation);
            self.ready.mark_ready(op);
        }
    }

    pub(super) fn get(&self, id: OpId) -> Option<&Operation> {
        self.ops.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: OpId) -> Option<&mut Operation> {
        self.ops.get_mut(&id)
    }

    /// An operation that a rank here or a neighbour has begun.
    pub(super) fn begin(&mut self, node: &Node, id: OpId) -> &mut Operation {
        let (local, now) = (self.called.len(), node.now);
        self.ready.mark_ready(id);
        let operation = self.ops.entry(id);
        operation.or_insert_with(|| Operation::new(id, local, now))
    }

    /// The next operation that a local rank calls.
    pub(super) fn called(&self, rank: usize) -> OpId {
        self.called[rank]
    }

    /// A local rank calls it.
    pub(super) fn call(&mut self, rank: usize) -> OpId {
        let id = self.called[rank];
        self.called[rank] += 1;
        id
    }

    /// A message that an operation consists of is where it belongs.
    pub(super) fn message_over(&mut self, id: OpId) {
        if let Some(operation) = self.ops.get_mut(&id) {
            operation.message_over();
            self.ready.mark_ready(id);
        }
    }

    /// Two ranks do not agree about what one sends the other in an operation.
    pub(super) fn mismatch(&mut self, id: OpId, verdict: Verdict) {
        if let Some(operation) = self.ops.get_mut(&id) {
            operation.mismatch(verdict);
            self.ready.mark_ready(id);
        }
    }

    /// The first operation that is not over here.
    pub(super) fn oldest(&self) -> OpId {
        let called = self.called.iter().copied().min().unwrap_or(0);
        self.ops.keys().next().map_or(called, |&id| id.min(called))
    }

    /// Whether a local rank waits for an operation.
    pub(super) fn is_awaited(&self) -> bool {
        // What only others have begun keeps nobody: they learn that this node leaves.
        self.ops.values().any(Operation::is_called)
    }

    /// Whether the group is over on this node.
    pub(super) fn are_closed(&self) -> bool {
        self.is_closed_everywhere && self.ops.is_empty()
    }

    /// The operations that are not over here.
    pub(super) fn in_flight(
        &self,
        view: &GroupView,
        traffic: &Traffic,
        now: Duration,
    ) -> impl Iterator<Item = OperationStatus> {
        let open = self.ops.values().filter(|one| !one.is_over());
        open.map(move |one| one.status(view, traffic, now))
    }

    /// The oldest operation that may have become able to move.
    pub(super) fn next(&mut self, traffic: &Traffic) -> Option<OpId> {
        let Self {
            ops, called, ready, ..
        } = self;
        ready.next(|id, tree| free_slot(ops, called, traffic, id, tree).is_some())
    }

    /// Decides whether an operation can be carried out, as far as that is known. At the root it has failed with the
    /// verdict that is returned.
    pub(super) fn judge(&mut self, at: &mut Context<'_>, id: OpId) -> Option<Verdict> {
        self.ops.get_mut(&id)?.judge(at)
    }

    /// Starts the next chunk of one tree, if everything for it is here.
    pub(super) fn start(&mut self, at: &mut Context<'_>, id: OpId, tree: usize) -> Option<()> {
        let (chunk, step) = self.ops.get(&id)?.next_chunk(at.view, tree)?;
        let slot = match step.to_parent {
            Some(_) => {
                let slot = free_slot(&self.ops, &self.called, at.traffic, id, tree);
                if slot.is_none() {
                    self.ready.wait_for_slot(id, tree);
                }
                Some(slot?)
            }
            None => None,
        };
        self.ops.get_mut(&id)?.start(at, &chunk, &step, slot)
    }

    /// Sends down what the children have room for.
    pub(super) fn pump(&mut self, at: &mut Context<'_>) {
        for (peer, tree) in at.traffic.below().to_vec() {
            while self.pump_one(at, peer, usize::from(tree)).is_some() {}
        }
    }

    fn pump_one(&mut self, at: &mut Context<'_>, peer: usize, tree: usize) -> Option<()> {
        let (id, chunk) = at.traffic.next_down(peer, tree)?;
        self.ops.get_mut(&id)?.send_down(at, peer, tree, chunk)
    }

    /// Work for an operation is done.
    pub(super) fn done(&mut self, at: &mut Context<'_>, work: Work) {
        let (Work::Part { op, .. } | Work::Up { op, .. } | Work::Down { op, .. }) = work else {
            return;
        };
        let mut operation = self.ops.get_mut(&op);
        if let Some(operation) = &mut operation {
            operation.ticket_done();
        }
        match work {
            Work::Part { chunk, .. } => {
                if let Some(operation) = operation {
                    operation.piece_done(at, chunk);
                }
            }
            Work::Up { tree, slot, .. } => {
                if let Some(parent) = at.traffic.parent_mut(tree) {
                    parent.left(slot);
                }
            }
            Work::Down { tree, peer, .. } => at.traffic.left_for(peer, tree),
            Work::P2p => {}
        }
    }
}

/// A send slot for an operation. The last free one is kept for the oldest operation that still has chunks to
/// start: a later one may sit in the parent's slots until the oldest is through, so it must not take them all.
fn free_slot(
    ops: &BTreeMap<OpId, Operation>,
    called: &[u64],
    traffic: &Traffic,
    id: OpId,
    tree: usize,
) -> Option<u8> {
    let parent = traffic.parent(tree)?;
    let slot = parent.free(0)?;
    (parent.free(1).is_some() || is_oldest(ops, called, id, tree)).then_some(slot)
}

/// Whether no earlier operation has chunks to start.
fn is_oldest(ops: &BTreeMap<OpId, Operation>, called: &[u64], id: OpId, tree: usize) -> bool {
    // What is served moves before our ranks have called what comes before it.
    let called = called.iter().copied().min().unwrap_or(0);
    let all_known = (called..id).all(|earlier| ops.contains_key(&earlier));
    let mut earlier = ops.range(..id);
    all_known && !earlier.any(|(_, operation)| operation.may_start(tree))
}
