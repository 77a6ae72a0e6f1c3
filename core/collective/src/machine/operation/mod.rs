//! One operation in flight on this node: who called it, how much of the inputs may be read, which chunks are
//! started and settled, and what still uses its buffers. How chunks move is in `up` and `down`, how its ranks come to
//! agree in `agree`, and what each sends the others in `exchange`.

mod agree;
mod down;
mod exchange;
mod status;
mod up;

use std::collections::BTreeMap;
use std::time::Duration;
use topology::OnPeerLoss;

use super::cause::{Cause, Claim, Mismatch, Reason, Verdict};
use super::io::{Effect, OpId, Splits, Ticket};
use super::node::{Node, Work};
use super::retention::Retention;
use super::traffic::Traffic;
use super::view::GroupView;
use crate::op::{Call, OpKind};
use crate::recovery::{Retained, Served};
use crate::schedule::{Chunk, ChunkPlan, Flow, Step};
use exchange::Exchange;
pub use status::OperationStatus;

/// What an operation needs of its group to move on.
pub(super) struct Context<'a> {
    pub(super) view: &'a GroupView,
    pub(super) node: &'a mut Node,
    pub(super) traffic: &'a mut Traffic,
    pub(super) retention: &'a mut Retention,
}

/// What a local rank has brought.
#[derive(Clone, Copy, Debug)]
pub(super) struct Brought {
    pub(super) call: Call,
    /// Why this node cannot carry it out.
    pub(super) refused: Option<Reason>,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Chunks move.
    Open,
    /// A verdict was asked of the parent; it will come down.
    Refused,
    /// The outcome is final here; it was not delivered to every local rank.
    Final,
    /// Every local rank knows the outcome; buffers may still be in use.
    Ended,
}

/// Local work on one chunk, between its start and what follows it.
#[derive(Clone, Debug)]
struct Part {
    /// Reductions and copies that are not finished.
    left: u32,
    /// Receive slots it reads: (peer, slot).
    reads: Vec<(usize, u8)>,
    /// The send slot of what goes up next.
    slot: Option<u8>,
}

/// How many chunks of one tree are done.
#[derive(Clone, Copy, Debug, Default)]
struct Half {
    /// Chunks whose local work was started, in order.
    started: u32,
    /// Chunks that came down, or were turned here.
    settled: u32,
    /// How many will.
    expected: u32,
}

/// One operation.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    id: OpId,
    /// What each local rank brought, so far.
    brought: Vec<Option<Brought>>,
    /// Whether the outcome was delivered to each local rank.
    delivered: Vec<bool>,
    stage: Stage,
    /// What was called, where a node of the epoch before has the result already.
    served: Option<Claim>,
    /// The whole result lies here since that epoch, and may be in use: it is not written again.
    holds: bool,
    /// The epoch whose members took part, when it is not this one.
    epoch: Option<u32>,
    /// Set when all local ranks made the same call.
    plan: Option<ChunkPlan>,
    halves: [Half; 2],
    /// What its ranks send each other, if that is what it is for.
    exchange: Exchange,
    /// A bit for each chunk that settled.
    settled: Vec<u64>,
    /// Work on chunks, by index.
    parts: BTreeMap<u32, Part>,
    /// Tickets that are out and use its buffers.
    tickets: u32,
    /// Chunks in backlogs.
    queued: u32,
    /// When this node first knew of it.
    began: Duration,
    /// Whether those who are missing have been named and asked for.
    asked: bool,
}

impl Operation {
    pub(super) fn new(id: OpId, local: usize, now: Duration) -> Self {
        Self {
            id,
            brought: vec![None; local],
            delivered: vec![false; local],
            stage: Stage::Open,
            served: None,
            holds: false,
            epoch: None,
            plan: None,
            halves: [Half::default(); 2],
            exchange: Exchange::default(),
            settled: Vec::new(),
            parts: BTreeMap::new(),
            tickets: 0,
            queued: 0,
            began: now,
            asked: false,
        }
    }

    /// One that a node of the epoch before has the result of. `mine`: what is final of it here.
    pub(super) fn served(
        view: &GroupView,
        served: &Served,
        delivered: Vec<bool>,
        mine: Option<Retained>,
    ) -> Self {
        // When it began matters for what waits for ranks only.
        let mut operation = Self::new(served.retained.op, delivered.len(), Duration::ZERO);
        operation.delivered = delivered;
        operation.holds = mine.is_some_and(|held| held.complete);
        operation.epoch = Some(served.retained.epoch);
        let holder = view.index_of(served.holder).unwrap_or(0);
        operation.served = Some(Claim {
            rank: view.first(holder),
            call: served.retained.call,
        });
        if served.spread {
            let (call, bytes) = (served.retained.call, served.retained.bytes);
            let plan = ChunkPlan::served(call, bytes, holder, view.chunk_bytes);
            operation.plan(view, plan);
        } else {
            operation.stage = Stage::Final;
        }
        operation
    }

    /// A local rank has called it.
    pub(super) fn bring(&mut self, rank: usize, brought: Brought, splits: Splits) {
        self.brought[rank] = Some(brought);
        if !self.is_served() {
            self.exchange.bring(rank, splits);
        }
    }

    /// Plans it if all local ranks have called alike, and says whether.
    pub(super) fn plan_if_agreed(&mut self, view: &GroupView) -> bool {
        if !self.is_complete_here() || self.own_verdict(view).is_some() {
            return false;
        }
        let Some(call) = self.call() else {
            return false;
        };
        let plan = match view.recovery.on_peer_loss {
            OnPeerLoss::Restart => ChunkPlan::new(call, &view.layout, view.chunk_bytes),
            OnPeerLoss::Shrink => ChunkPlan::kept(call, &view.layout, view.chunk_bytes),
        };
        self.plan(view, plan);
        true
    }

    fn plan(&mut self, view: &GroupView, plan: ChunkPlan) {
        for (index, tree) in view.trees.trees.iter().enumerate() {
            self.halves[index].expected = plan.settles(tree, index, view.node);
        }
        self.settled = vec![0; (plan.chunks() as usize).div_ceil(64)];
        self.plan = Some(plan);
    }

    /// What is called, or what the first of the ranks that disagree has called.
    pub(super) fn call(&self) -> Option<Call> {
        let planned = self.plan.as_ref().map(|plan| *plan.call());
        let brought = || self.brought.iter().flatten().next();
        planned.or_else(|| Some(brought()?.call))
    }

    /// Whether chunks move.
    pub(super) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    /// Whether nothing that others send can change the outcome here.
    pub(super) const fn is_over(&self) -> bool {
        match self.stage {
            Stage::Open | Stage::Refused => false,
            Stage::Final | Stage::Ended => true,
        }
    }

    /// Whether a node of the epoch before has the result.
    pub(super) const fn is_served(&self) -> bool {
        self.served.is_some()
    }

    /// Whether the result lay here before it was served.
    pub(super) const fn holds(&self) -> bool {
        self.holds
    }

    /// Whether a local rank has called it.
    pub(super) fn is_called(&self) -> bool {
        self.brought.iter().any(Option::is_some)
    }

    /// Whether all local ranks have called it.
    pub(super) fn is_complete_here(&self) -> bool {
        self.brought.iter().all(Option::is_some)
    }

    /// Local ranks that have not called it.
    fn missing(&self) -> Vec<usize> {
        (0..self.brought.len())
            .filter(|&rank| self.brought[rank].is_none())
            .collect()
    }

    /// When this node first knew of it, if it waits for ranks here or below and nobody has asked for them.
    pub(super) fn waits_since(&self) -> Option<Duration> {
        let waits = !self.asked && self.served.is_none() && self.halves[0].started == 0;
        waits.then_some(self.began)
    }

    /// Names the local ranks that are missing. None where that was done before.
    pub(super) fn ask(&mut self) -> Option<Vec<usize>> {
        let asked = std::mem::replace(&mut self.asked, true);
        (!asked).then(|| self.missing())
    }

    /// A message that it consists of is where it belongs.
    pub(super) const fn message_over(&mut self) {
        self.exchange.message_over();
    }

    /// Two ranks do not agree about what one sends the other.
    pub(super) fn mismatch(&mut self, verdict: Verdict) {
        self.exchange.mismatch(verdict);
    }

    /// A chunk, and this node's step, once it is planned.
    pub(super) fn step(&self, view: &GroupView, index: u32) -> Option<(Chunk, Step)> {
        let chunk = self.plan.as_ref()?.chunk(index);
        Some((chunk, view.step(&chunk)))
    }

    /// Whether everything that concerns this node has happened.
    pub(super) fn is_done(&self) -> bool {
        let settled = || self.halves.iter().all(|half| half.settled == half.expected);
        self.is_open() && self.plan.is_some() && settled()
    }

    /// Whether it has chunks of a tree to start, or may come to have some.
    pub(super) fn may_start(&self, tree: usize) -> bool {
        let is_unplanned = self.is_open() && self.plan.is_none();
        is_unplanned || self.has_to_start(tree)
    }

    /// Whether it is planned and chunks of a tree are not started.
    fn has_to_start(&self, tree: usize) -> bool {
        let started = self.halves[tree].started;
        let plan = self.plan.as_ref().filter(|_| self.is_open());
        plan.is_some_and(|plan| started < plan.chunks_of(tree))
    }

    /// The outcome is final here. Returns what has to be kept of it, if that is news.
    pub(super) fn finish(&mut self, epoch: u32, verdict: Option<Verdict>) -> Option<Retained> {
        self.stage = Stage::Final;
        if self.holds {
            return None; // It was kept before.
        }
        let call = self.call()?;
        Some(Retained {
            op: self.id,
            epoch: self.epoch.unwrap_or(epoch),
            call,
            bytes: self.plan.as_ref().map_or(0, ChunkPlan::bytes),
            complete: true,
            verdict,
        })
    }

    /// Delivers the outcome to ranks as far as it may be.
    pub(super) fn deliver(&mut self, at: &mut Context<'_>) {
        let kept = at.retention.kept(self.id).copied();
        let Some(held) = kept.filter(|_| self.stage == Stage::Final) else {
            return;
        };
        for rank in 0..self.brought.len() {
            let Some(brought) = self.brought[rank] else {
                continue;
            };
            let recovery = &at.view.recovery;
            if self.delivered[rank] || !at.retention.may_deliver(rank, self.id, recovery) {
                continue;
            }
            self.delivered[rank] = true;
            at.retention.deliver(rank, self.id);
            let outcome = match held.verdict {
                None => self.success(at.view.global(rank), brought.call, held.epoch),
                Some(verdict) => Err(verdict.into()),
            };
            self.end(at.view, at.node, rank, outcome);
        }
        if self.delivered.iter().all(|&delivered| delivered) {
            self.stage = Stage::Ended;
        }
    }

    /// What a rank learns of an operation that succeeded in an epoch.
    fn success(&self, rank: u32, call: Call, epoch: u32) -> Result<u32, Cause> {
        match self.served.filter(|one| one.call != call) {
            // It has called something else than before the epoch ended.
            Some(one) => {
                let other = Claim { rank, call };
                Err(Verdict::from(Mismatch { one, other }).into())
            }
            None => Ok(epoch),
        }
    }

    fn end(&self, view: &GroupView, node: &mut Node, rank: usize, outcome: Result<u32, Cause>) {
        node.out.push(Effect::End {
            group: view.id,
            op: self.id,
            rank: view.locals[rank],
            outcome,
        });
    }

    /// The epoch is over: it fails with the cause, or waits for the next epoch.
    pub(super) fn close(&mut self, view: &GroupView, node: &mut Node, cause: Cause) {
        self.queued = 0;
        if self.stage == Stage::Ended {
            return;
        }
        self.stage = Stage::Ended;
        let holds = node.holds();
        for rank in 0..self.brought.len() {
            if self.brought[rank].is_some() && !self.delivered[rank] && !holds {
                self.end(view, node, rank, Err(cause));
            }
        }
    }

    /// Whether it is over and nothing uses its buffers.
    pub(super) fn is_released(&self) -> bool {
        self.stage == Stage::Ended && self.tickets == 0 && self.queued == 0
    }

    fn ticket(&mut self, view: &GroupView, node: &mut Node, work: Work) -> Ticket {
        self.tickets += 1;
        node.ticket(view.id, work)
    }

    /// Work on a ticket is done.
    pub(super) const fn ticket_done(&mut self) {
        self.tickets -= 1;
    }

    /// Marks a chunk as settled.
    fn mark_settled(&mut self, chunk: &Chunk) {
        let (word, bit) = ((chunk.index / 64) as usize, 1 << (chunk.index % 64));
        let fresh = self.settled[word] & bit == 0;
        self.settled[word] |= bit;
        self.halves[chunk.tree()].settled += u32::from(fresh);
    }

    fn is_settled(&self, index: u32) -> bool {
        self.settled[(index / 64) as usize] & (1 << (index % 64)) != 0
    }

    /// The pieces of the inputs that make up this node's part of a chunk: (local rank, offset in its input,
    /// bytes, offset in the result). `None` while ranks exchange what it stands for.
    fn pieces(&self, view: &GroupView, chunk: &Chunk) -> Option<Vec<(usize, u64, u64, u64)>> {
        let plan = self.plan.as_ref()?;
        if self.served.is_some() {
            return Some(Vec::new()); // The result is in its place.
        }
        if plan.call().kind.exchanges() {
            // The second chunk says that everything is where it belongs.
            return (chunk.index == 0 || self.exchange.is_over()).then(Vec::new);
        }
        let end = chunk.offset + chunk.bytes;
        let whole = |rank| (rank, chunk.offset, chunk.bytes, chunk.offset);
        let first = view.rank(0);
        Some(match (plan.call().kind, chunk.flow) {
            (OpKind::AllGather, _) => {
                let each = plan.call().input_bytes();
                (0..self.brought.len())
                    .filter_map(|rank| {
                        let start = u64::from(first + rank as u32) * each;
                        let (from, to) = (start.max(chunk.offset), (start + each).min(end));
                        (from < to).then(|| (rank, from - start, to - from, from))
                    })
                    .collect()
            }
            (OpKind::Broadcast { root }, _) => {
                vec![whole((root - first) as usize)]
            }
            (_, Flow::Combine { .. } | Flow::Spread { .. }) => {
                (0..self.brought.len()).map(whole).collect()
            }
        })
    }
}
