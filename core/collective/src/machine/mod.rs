//! The collective protocol of one node in one epoch, as a step function: inputs in, effects out. Owns order,
//! agreement, flow control and failure. Leaves bytes, sockets, threads and clocks to the shell.
//!
//! # What the shell does
//! - One machine per group and epoch; a new epoch gets a new machine. `now` is any monotonic time that never
//!   goes back, the same origin for all calls of one machine.
//! - Links: a reliable link to each of [`Machine::peers`] that delivers every frame once. Frames may overtake each
//!   other, except that a link is not reported lost before all that came over it was handed in.
//! - Memory: `slots` receive slots of `chunk_bytes` for each of [`Machine::receives`], `slots` send slots for
//!   each of [`Machine::sends`], one input per rank and one result per operation.
//! - Incoming `Up` and `Down`: after the header ask [`Machine::place`], read the payload there, then hand in
//!   [`Input::Frame`]. Every other frame is handed in at once.
//! - Each [`Ticket`] is reported once with [`Input::Done`], also after the operation failed.
//! - The k-th `Submit` or `Refuse` of a local rank is operation k: the shell counts along. A call that was made
//!   and cannot be carried out is handed in too, or the rank's later calls would meet other calls than their own.
//! - After each `handle`, carry out the effects, then sleep until the next input or [`Machine::wake_at`],
//!   whichever comes first, and hand in [`Input::Tick`] then.

mod agree;
mod cause;
mod config;
mod down;
mod fail;
mod flow;
mod io;
mod link;
mod operation;
mod receive;
mod up;
mod watch;

use std::collections::BTreeMap;
use std::time::Duration;

pub use cause::{Broken, Cause, Claim, Mismatch, Reason, Refusal, Verdict, Violation};
pub use config::{
    Config, ConfigError, DEFAULT_CHUNK_BYTES, DEFAULT_SLOTS, MAX_SLOTS, MIN_CHUNK_BYTES, Timing,
};
pub use io::{Buffer, Effect, Fence, Frame, Input, OpId, Placement, Region, Ticket};

use crate::op::Call;
use crate::schedule::Plan;
use link::{Link, Parent};
use operation::{Brought, Operation};

/// Operations a rank may have in flight; a further `Submit` must wait (see [`Machine::may_submit`]).
pub const MAX_IN_FLIGHT: u64 = 64;

/// What was dropped, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames of another attempt or epoch.
    pub stale_frames: u64,
    /// Frames for an operation that had failed before.
    pub late_frames: u64,
}

/// What a ticket stands for.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// A reduction or copy for a chunk.
    Part { op: OpId, chunk: u32 },
    /// A payload on its way to the parent.
    Up { op: OpId, tree: usize, slot: u8 },
    /// A payload on its way to a child.
    Down { op: OpId, tree: usize, peer: usize },
}

/// One node's part in the collectives of one epoch.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    now: Duration,
    links: BTreeMap<usize, Link>,
    /// The send slots of each tree in which this node has a parent.
    parents: [Option<(usize, Parent)>; 2],
    ops: BTreeMap<OpId, Operation>,
    /// How many operations each local rank has called.
    called: Vec<u64>,
    /// Local ranks that closed their session.
    gone: Vec<bool>,
    work: BTreeMap<Ticket, Work>,
    tickets: u64,
    broken: Option<Broken>,
    farewell: Farewell,
    counters: Counters,
    /// Effects of the input at hand.
    out: Vec<Effect>,
}

/// How this node leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Farewell {
    /// Not at all.
    No,
    /// When nothing is in flight any more.
    Due,
    /// It has.
    Said,
}

impl Machine {
    /// A machine that has started no operation. `now` starts the silence timers. Needs a configuration that
    /// passes [`Config::check`].
    #[must_use]
    pub fn new(config: Config, now: Duration) -> Self {
        let node = config.node;
        let trees = &config.trees.trees;
        let link = |peer: usize| {
            Link::new(
                [0, 1].map(|tree| trees[tree].parent[peer] == Some(node)),
                now,
            )
        };
        let links = config
            .trees
            .neighbours(node)
            .into_iter()
            .map(|peer| (peer, link(peer)))
            .collect();
        let parents = [0, 1]
            .map(|tree| trees[tree].parent[node].map(|peer| (peer, Parent::new(config.slots))));
        let local = config.layout.local(node);
        Self {
            now,
            links,
            parents,
            ops: BTreeMap::new(),
            called: vec![0; local],
            gone: vec![false; local],
            work: BTreeMap::new(),
            tickets: 0,
            broken: None,
            farewell: Farewell::No,
            counters: Counters::default(),
            out: Vec::new(),
            config,
        }
    }

    /// The nodes it needs a link to, ascending.
    #[must_use]
    pub fn peers(&self) -> Vec<usize> {
        self.links.keys().copied().collect()
    }

    /// `(peer, tree)` of every child that needs receive slots.
    #[must_use]
    pub fn receives(&self) -> Vec<(usize, u8)> {
        let edges = self.links.iter().flat_map(|(&peer, link)| {
            (0u8..)
                .zip(&link.child)
                .map(move |(tree, child)| (peer, tree, child.is_some()))
        });
        edges
            .filter(|&(.., is_child)| is_child)
            .map(|(peer, tree, _)| (peer, tree))
            .collect()
    }

    /// The trees in which it has a parent, hence send slots.
    #[must_use]
    pub fn sends(&self) -> Vec<u8> {
        let parents = (0u8..).zip(&self.parents);
        parents
            .filter(|(_, parent)| parent.is_some())
            .map(|(tree, _)| tree)
            .collect()
    }

    /// Whether a local rank may call its next operation now, or has to wait for earlier ones to be released.
    #[must_use]
    pub fn may_submit(&self, rank: usize) -> bool {
        self.called[rank] < self.oldest() + MAX_IN_FLIGHT
    }

    /// Why the epoch is over, if it is.
    #[must_use]
    pub fn broken(&self) -> Option<Broken> {
        self.broken
    }

    /// What was dropped so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Takes one input and appends what has to be done.
    pub fn handle(&mut self, now: Duration, input: Input, effects: &mut Vec<Effect>) {
        self.pass_time(now);
        match input {
            Input::Submit { rank, call, ready } => self.submit(rank, call, Ok(ready)),
            Input::Refuse { rank, call, reason } => self.submit(rank, call, Err(reason)),
            Input::Ready { rank, op, ready } => self.ready(rank, op, ready),
            Input::Frame { peer, fence, frame } => self.frame(peer, fence, frame),
            Input::Done { ticket } => self.done(ticket),
            Input::PeerLost { peer } => self.peer_lost(peer),
            Input::RankLost { rank } => {
                let rank = self.global(rank);
                self.break_with(
                    Broken::RankLost {
                        rank,
                        by: self.config.node,
                    },
                    None,
                );
            }
            Input::RankLeft { rank } => self.rank_left(rank),
            Input::Revoke => self.break_with(Broken::Revoked, None),
            Input::Leave => self.farewell = Farewell::Due,
            Input::Tick => {}
        }
        self.watch();
        self.advance();
        effects.append(&mut self.out);
    }

    fn global(&self, rank: usize) -> u32 {
        self.config.layout.ranks(self.config.node).start + rank as u32
    }

    /// The first operation that is not released.
    fn oldest(&self) -> OpId {
        let called = self.called.iter().copied().min().unwrap_or(0);
        self.ops.keys().next().map_or(called, |&id| id.min(called))
    }

    fn submit(&mut self, rank: usize, call: Call, ready: Result<u64, Reason>) {
        let id = self.called[rank];
        self.called[rank] += 1;
        if self.farewell != Farewell::No {
            let node = self.config.node;
            self.break_with(
                Broken::NodeLeft {
                    node,
                    by: node,
                    op: id,
                },
                None,
            );
        }
        if let Some(broken) = self.broken {
            self.out.push(Effect::End {
                op: id,
                rank,
                outcome: Err(broken.into()),
            });
            return;
        }
        let first = self.global(0);
        let operation = self
            .ops
            .entry(id)
            .or_insert_with(|| Operation::new(self.gone.len(), self.now));
        operation.brought[rank] = Some(Brought {
            call,
            ready: ready.unwrap_or(0),
            refused: ready.err(),
        });
        if operation.complete_here() && operation.verdict(first).is_none() {
            let plan = Plan::new(call, &self.config.layout, self.config.chunk_bytes);
            operation.plan(plan, &self.config.trees, self.config.node);
            self.check_early_parts(id);
        }
        self.check_departures(id);
    }

    fn ready(&mut self, rank: usize, op: OpId, ready: u64) {
        if let Some(brought) = self
            .ops
            .get_mut(&op)
            .and_then(|operation| operation.brought[rank].as_mut())
        {
            brought.ready = brought.ready.max(ready);
        }
    }

    fn ticket(&mut self, work: Work) -> Ticket {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        let (Work::Part { op, .. } | Work::Up { op, .. } | Work::Down { op, .. }) = work;
        if let Some(operation) = self.ops.get_mut(&op) {
            operation.tickets += 1;
        }
        self.work.insert(ticket, work);
        ticket
    }

    fn done(&mut self, ticket: Ticket) {
        let Some(work) = self.work.remove(&ticket) else {
            return;
        };
        let (Work::Part { op, .. } | Work::Up { op, .. } | Work::Down { op, .. }) = work;
        if let Some(operation) = self.ops.get_mut(&op) {
            operation.tickets -= 1;
        }
        match work {
            Work::Part { op, chunk } => {
                let part = self
                    .ops
                    .get_mut(&op)
                    .and_then(|operation| operation.parts.get_mut(&chunk));
                let Some(part) = part else { return };
                part.left -= 1;
                if part.left == 0 {
                    self.finish_part(op, chunk);
                }
            }
            Work::Up { tree, slot, .. } => {
                if let Some((_, parent)) = &mut self.parents[tree] {
                    parent.left(slot);
                }
            }
            Work::Down { tree, peer, .. } => {
                if let Some(child) = self
                    .links
                    .get_mut(&peer)
                    .and_then(|link| link.child[tree].as_mut())
                {
                    child.sending -= 1;
                }
            }
        }
    }

    fn send(&mut self, peer: usize, frame: Frame, payload: Option<(Ticket, Region)>) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.sent = self.now;
        }
        self.out.push(Effect::Send {
            peer,
            frame,
            payload,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::config::tests::config;
    use super::*;

    #[test]
    fn a_rank_waits_when_all_it_may_have_in_flight_is_not_released() {
        let mut machine = Machine::new(config(), Duration::ZERO);
        let call = Call {
            dtype: crate::DType::U8,
            count: 1,
            ..Call::barrier()
        };
        let call = Call {
            kind: crate::OpKind::Broadcast { root: 0 },
            ..call
        };
        let mut effects = Vec::new();
        for _ in 0..MAX_IN_FLIGHT {
            assert!(machine.may_submit(0));
            machine.handle(
                Duration::ZERO,
                Input::Submit {
                    rank: 0,
                    call,
                    ready: 1,
                },
                &mut effects,
            );
        }
        assert!(!machine.may_submit(0), "copies are not reported yet");
        for ticket in 0..MAX_IN_FLIGHT {
            machine.handle(
                Duration::ZERO,
                Input::Done {
                    ticket: Ticket(ticket),
                },
                &mut effects,
            );
        }
        assert!(machine.may_submit(0));
        let released = effects
            .iter()
            .filter(|effect| matches!(effect, Effect::Release { .. }));
        assert_eq!(released.count() as u64, MAX_IN_FLIGHT);
    }
}
