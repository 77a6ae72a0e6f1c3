//! One operation in flight on this node: who called it, how much of the inputs may be read, which chunks are
//! started and settled, and what still uses its buffers.

use std::collections::BTreeMap;
use std::time::Duration;

use super::cause::{Cause, Claim, Mismatch, Reason, Refusal, Verdict};
use super::exchange::Exchange;
use crate::layout::Layout;
use crate::op::{Call, OpKind};
use crate::schedule::{Chunk, Flow, Plan};
use crate::tree::DoubleTree;

/// What a local rank has brought.
#[derive(Clone, Copy, Debug)]
pub(super) struct Brought {
    pub(super) call: Call,
    /// Bytes of its input that may be read.
    pub(super) ready: u64,
    /// Why this node cannot carry it out.
    pub(super) refused: Option<Reason>,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Chunks move.
    Open,
    /// A verdict was asked of the parent; it will come down.
    Refused,
    /// The outcome is final here; not every local rank was told.
    Final,
    /// Every local rank knows the outcome; buffers may still be in use.
    Ended,
}

impl Stage {
    /// Whether nothing that others send can change the outcome here.
    pub(super) const fn is_over(self) -> bool {
        match self {
            Self::Open | Self::Refused => false,
            Self::Final | Self::Ended => true,
        }
    }
}

/// Local work on one chunk, between its start and what follows it.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Reductions and copies that are not finished.
    pub(super) left: u32,
    /// Receive slots it reads: (peer, slot).
    pub(super) reads: Vec<(usize, u8)>,
    /// The send slot of what goes up next.
    pub(super) slot: Option<u8>,
}

/// How many chunks of one tree are done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Half {
    /// Chunks whose local work was started, in order.
    pub(super) started: u32,
    /// Chunks that came down, or were turned here.
    pub(super) settled: u32,
    /// How many will.
    pub(super) expected: u32,
}

/// One operation.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    /// What each local rank brought, so far.
    pub(super) brought: Vec<Option<Brought>>,
    /// Whether each local rank was told the outcome.
    pub(super) told: Vec<bool>,
    pub(super) stage: Stage,
    /// What was called, where a node of the epoch before has the result already.
    pub(super) served: Option<Claim>,
    /// The whole result lies here since that epoch, and may be in use: it is not written again.
    pub(super) holds: bool,
    /// The epoch whose members took part, when it is not this one.
    pub(super) epoch: Option<u32>,
    /// Set when all local ranks made the same call.
    pub(super) plan: Option<Plan>,
    pub(super) halves: [Half; 2],
    /// What its ranks send each other, if that is what it is for.
    pub(super) exchange: Exchange,
    /// A bit for each chunk that settled.
    settled: Vec<u64>,
    /// Work on chunks, by index.
    pub(super) parts: BTreeMap<u32, Part>,
    /// Tickets that are out and use its buffers.
    pub(super) tickets: u32,
    /// Chunks in backlogs.
    pub(super) queued: u32,
    /// When this node first heard of it.
    pub(super) began: Duration,
    /// Whether those who are missing have been named and asked for.
    pub(super) asked: bool,
}

impl Operation {
    pub(super) fn new(local: usize, now: Duration) -> Self {
        Self {
            brought: vec![None; local],
            told: vec![false; local],
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

    /// What is called, or what the first of the ranks that disagree has called.
    pub(super) fn call(&self) -> Option<Call> {
        let planned = self.plan.as_ref().map(|plan| *plan.call());
        let brought = || self.brought.iter().flatten().next();
        planned.or_else(|| Some(brought()?.call))
    }

    /// What a rank is told of an operation that succeeded in an epoch.
    pub(super) fn success(&self, rank: u32, call: Call, epoch: u32) -> Result<u32, Cause> {
        match self.served.filter(|one| one.call != call) {
            // It has called something else than before the epoch ended.
            Some(one) => {
                let other = Claim { rank, call };
                Err(Verdict::from(Mismatch { one, other }).into())
            }
            None => Ok(epoch),
        }
    }

    /// Local ranks that have not called it.
    pub(super) fn missing(&self) -> Vec<usize> {
        (0..self.brought.len())
            .filter(|&rank| self.brought[rank].is_none())
            .collect()
    }

    /// Whether all local ranks have called it.
    pub(super) fn complete_here(&self) -> bool {
        self.brought.iter().all(Option::is_some)
    }

    /// A local rank's call that cannot be carried out, or two that differ. `global` numbers local ranks.
    pub(super) fn verdict(&self, global: impl Fn(usize) -> u32) -> Option<Verdict> {
        let claims = || {
            self.brought.iter().enumerate().filter_map(|(rank, b)| {
                let rank = global(rank);
                b.map(|b| (Claim { rank, call: b.call }, b.refused))
            })
        };
        let refused = claims().find_map(|(claim, refused)| {
            let reason = refused?;
            Some(Refusal { claim, reason }.into())
        });
        refused.or_else(|| {
            let (one, _) = claims().next()?;
            let (other, _) = claims().find(|(other, _)| other.call != one.call)?;
            Some(Mismatch { one, other }.into())
        })
    }

    /// Plans it once all local ranks have agreed.
    pub(super) fn plan(&mut self, plan: Plan, trees: &DoubleTree, node: usize) {
        for (index, tree) in trees.trees.iter().enumerate() {
            self.halves[index].expected = plan.settles(tree, index, node);
        }
        self.settled = vec![0; (plan.chunks() as usize).div_ceil(64)];
        self.plan = Some(plan);
    }

    /// Marks a chunk as settled; false when it was before.
    pub(super) fn settle(&mut self, chunk: &Chunk) -> bool {
        let (word, bit) = ((chunk.index / 64) as usize, 1 << (chunk.index % 64));
        let fresh = self.settled[word] & bit == 0;
        self.settled[word] |= bit;
        self.halves[chunk.tree()].settled += u32::from(fresh);
        fresh
    }

    pub(super) fn is_settled(&self, index: u32) -> bool {
        self.settled[(index / 64) as usize] & (1 << (index % 64)) != 0
    }

    /// Whether everything that concerns this node has happened.
    pub(super) fn is_done(&self) -> bool {
        self.plan.is_some() && self.halves.iter().all(|half| half.settled == half.expected)
    }

    /// Whether it is planned and chunks of a tree are not started.
    pub(super) fn has_to_start(&self, tree: usize) -> bool {
        let started = self.halves[tree].started;
        let plan = self.plan.as_ref().filter(|_| self.stage == Stage::Open);
        plan.is_some_and(|plan| started < plan.chunks_of(tree))
    }

    /// Whether nothing uses its buffers.
    pub(super) fn is_idle(&self) -> bool {
        self.tickets == 0 && self.queued == 0
    }

    /// The pieces of the inputs that make up this node's part of a chunk: (local rank, offset in its input,
    /// bytes, offset in the result). `None` while some of it may not be read yet.
    pub(super) fn pieces(
        &self,
        chunk: &Chunk,
        layout: &Layout,
        node: usize,
    ) -> Option<Vec<(usize, u64, u64, u64)>> {
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
        let pieces: Vec<_> = match (plan.call().kind, chunk.flow) {
            (OpKind::AllGather, _) => {
                let each = plan.call().input_bytes();
                let first = layout.ranks(node).start;
                (0..self.brought.len())
                    .filter_map(|rank| {
                        let start = u64::from(first + rank as u32) * each;
                        let (from, to) = (start.max(chunk.offset), (start + each).min(end));
                        (from < to).then(|| (rank, from - start, to - from, from))
                    })
                    .collect()
            }
            (OpKind::Broadcast { root }, _) => {
                vec![whole((root - layout.ranks(node).start) as usize)]
            }
            (_, Flow::Combine { .. } | Flow::Spread { .. }) => {
                (0..self.brought.len()).map(whole).collect()
            }
        };
        let readable = |&(rank, from, bytes, _): &(usize, u64, u64, u64)| {
            self.brought[rank].is_some_and(|brought| brought.ready >= from + bytes)
        };
        pieces.iter().all(readable).then_some(pieces)
    }
}
