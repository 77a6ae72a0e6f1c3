//! The collective protocol of one node in one epoch, as a step function: inputs in, effects out. Owns order,
//! agreement, flow control and failure. Leaves bytes, sockets, threads and clocks to the shell.
//!
//! # What the shell does
//! - One machine per epoch, with all its groups; a new epoch gets a new machine. `now` is any monotonic time that never
//!   goes back, the same origin for all calls of one machine.
//! - Links: a reliable link to each of [`Machine::peers`] that delivers every frame once. Frames may overtake each
//!   other, except that a link is not reported lost before all that came over it was handed in.
//! - Memory: `slots` receive slots of `chunk_bytes` for each of [`Machine::receives`], `slots` send slots for
//!   each of [`Machine::sends`], one input per rank and one result per operation, and where ranks get something of their
//!   own one buffer for each of them.
//! - Incoming `ReduceChunk`, `BroadcastChunk` and `Data`: after the header ask [`Machine::place`], read the payload there, then hand in
//!   [`Input::Frame`]. Every other frame is handed in at once. Where one takes long to come in, [`Machine::on_alive`] says that
//!   its sender lives.
//! - Each [`Ticket`] is reported once with [`Input::Done`], also after the operation failed.
//! - The k-th `Submit` or `Refuse` of a local rank is operation k: the shell counts along. A call that was made
//!   and cannot be carried out is handed in too, or the rank's later calls would meet other calls than their own.
//! - Where operations wait for the next epoch ([`topology::OnPeerLoss::Shrink`]): build the machine when its links stand, so that it
//!   notices a loss before the start, and hand calls in after the start. After [`Effect::Stopped`] keep calls, inputs and
//!   results, and hand in nothing but [`Input::Done`]. When the machine is idle and the next epoch is committed, build
//!   the next one with [`Machine::resume`]: it needs a result buffer for each operation that is served. Then each rank's
//!   calls are handed in again from the first that was not delivered; inputs before that may go.
//! - After each `handle`, carry out the effects, then sleep until the next input or [`Machine::wake_at`],
//!   whichever comes first, and hand in [`Input::Tick`] then.

mod cause;
mod config;
mod dispute;
mod group;
mod io;
mod node;
mod open;
mod operation;
mod operations;
mod p2p;
mod ready;
mod receive;
mod retention;
mod slots;
mod traffic;
mod view;
mod watch;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::op::Call;
use crate::recovery::EpochReport;
pub use cause::{Broken, CallRefusal, Cause, Claim, Mismatch, ProtocolViolation, Reason, Verdict};
pub use config::{
    Config, ConfigError, DEFAULT_CHUNK_BYTES, DEFAULT_SLOTS, DEFAULT_WINDOW, Handover,
    MAX_IN_FLIGHT, MAX_MESSAGES, MAX_SLOTS, MIN_CHUNK_BYTES, Recovery, Start, Timing,
};
pub use dispute::{Claimed, Dispute, MAX_GROUPS, MAX_LINKS, OpenError, OpenReason, Opener};
use group::Group;
pub use io::{
    Buffer, Effect, FIRST_SEND_RECV, FORWARDING, Fence, Frame, GroupId, Input, MessageId, NO_SLOT,
    OpId, Placement, Region, Splits, Stream, Ticket, WORLD, Watermark,
};
pub use node::Counters;
use node::{Leaving, Node};
use open::Openings;
pub use operation::OperationStatus;
use p2p::PairCall;
use retention::Retention;

/// One node's part in the collectives of one epoch.
#[derive(Debug)]
pub struct Machine {
    node: Node,
    groups: BTreeMap<GroupId, Group>,
    openings: Openings,
    /// Where groups begin that are not open yet in this epoch.
    starts: BTreeMap<GroupId, Start>,
    /// Whether the groups know of the end of the epoch.
    closed: bool,
}

impl Machine {
    /// A machine that has started no operation. `now` starts the silence timers. Needs a configuration that
    /// passes [`Config::check`].
    #[must_use]
    pub fn new(config: Config, now: Duration) -> Self {
        Self::resume(config, Vec::new(), now)
    }

    /// The machine of an epoch that goes on with the operations of the one before. Each rank then calls again what it
    /// has no outcome of, after it has opened its groups again. Needs a configuration of the members only.
    #[must_use]
    pub fn resume(config: Config, starts: Vec<Start>, now: Duration) -> Self {
        let is_refused = |start: &Start| start.resume.refused.is_some();
        let (refused, starts): (Vec<Start>, Vec<Start>) = starts.into_iter().partition(is_refused);
        let starts = starts.into_iter().map(|start| (start.resume.group, start));
        let mut starts: BTreeMap<GroupId, Start> = starts.collect();
        let world = Group::world(&config, starts.remove(&WORLD).as_ref());
        Self {
            node: Node::new(config, now),
            groups: BTreeMap::from([(WORLD, world)]),
            openings: Openings::of_refused(refused.into_iter()),
            starts,
            closed: false,
        }
    }

    /// The nodes it needs a link to from the start, ascending; later also those that it has got one to since.
    #[must_use]
    pub fn peers(&self) -> Vec<usize> {
        self.node.peers()
    }

    /// `(peer, tree)` of every child in a group that needs receive slots, and of every neighbour that has something
    /// passed on ([`FORWARDING`]).
    #[must_use]
    pub fn receives(&self, group: GroupId) -> Vec<(usize, u8)> {
        let group = self.groups.get(&group);
        group.map_or_else(Vec::new, Group::receives)
    }

    /// The trees in which it has a parent in a group, hence send slots.
    #[must_use]
    pub fn sends(&self, group: GroupId) -> Vec<u8> {
        self.groups.get(&group).map_or_else(Vec::new, Group::sends)
    }

    /// Whether a local rank may call its next operation of a group now, or has to wait for earlier ones to be released,
    /// or for the group to open.
    #[must_use]
    pub fn may_submit(&self, group: GroupId, rank: usize) -> bool {
        let group = self.groups.get(&group);
        group.is_some_and(|group| group.may_submit(rank))
    }

    /// Whether a local rank may send or receive a message in a group: it is open.
    #[must_use]
    pub fn may_send_recv(&self, group: GroupId) -> bool {
        let group = self.groups.get(&group);
        group.is_some_and(Group::is_open)
    }

    /// Why the epoch is over, if it is.
    #[must_use]
    pub fn broken(&self) -> Option<Broken> {
        self.node.broken
    }

    /// Whether it has ended all operations: the epoch is over, and none follows.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.node.broken.is_some() && !self.node.holds()
    }

    /// Whether the shell works on nothing for it any more.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.node.work.is_empty()
    }

    /// The operations that are not over here, by group and in their order.
    #[must_use]
    pub fn in_flight(&self) -> Vec<OperationStatus> {
        let groups = self.groups.values();
        groups
            .flat_map(|group| group.in_flight(self.node.now))
            .collect()
    }

    /// How far this node is.
    #[must_use]
    pub fn report(&self) -> EpochReport {
        let open = self.groups.values().map(Group::report);
        let is_refused = |id: GroupId| self.openings.dispute(id).is_some();
        let retained = self.starts.values();
        let retained = retained.filter(|start| !is_refused(start.resume.group));
        let refused = self.openings.refused();
        let refused = refused.filter(|of| !self.groups.contains_key(&of.group));
        open.chain(retained.map(Retention::report_of))
            .chain(refused)
            .collect()
    }

    /// What was dropped so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.node.counters
    }

    /// Part of a frame has come from a neighbour: it lives, however long the rest takes. What the machine is waiting for
    /// is not moved by it.
    pub fn on_alive(&mut self, now: Duration, peer: usize, effects: &mut Vec<Effect>) {
        self.node.pass_time(now);
        self.node.on_alive(peer);
        effects.append(&mut self.node.out);
    }

    /// Takes one input and appends what has to be done.
    pub fn handle(&mut self, now: Duration, input: Input, effects: &mut Vec<Effect>) {
        self.node.pass_time(now);
        let concerned = self.concerned(&input);
        self.take(input);
        for peer in self.node.watch() {
            let mut news = false;
            for group in self.groups.values_mut() {
                news |= group.beat(&mut self.node, peer);
            }
            if !news {
                self.node.send(peer, Frame::Heartbeat, None);
            }
        }
        match concerned {
            Some(id) if self.node.broken.is_none() => self.advance(id),
            Some(_) | None => self.advance_all(),
        }
        if self.node.broken.is_some() && !self.closed {
            self.advance_all(); // It ended just now.
        }
        self.leave_when_drained();
        effects.append(&mut self.node.out);
    }

    /// The only group that an input can move; none when it may be any.
    fn concerned(&self, input: &Input) -> Option<GroupId> {
        match *input {
            Input::Submit { group, .. }
            | Input::Refuse { group, .. }
            | Input::Exchange { group, .. }
            | Input::SendRecv { group, .. } => Some(group),
            Input::Done { ticket } => self.node.work.get(&ticket).map(|(group, _)| *group),
            Input::Frame { ref frame, .. } => frame.group(),
            Input::Open { .. }
            | Input::Linked { .. }
            | Input::PeerLost { .. }
            | Input::RankLost { .. }
            | Input::RankLeft { .. }
            | Input::Revoke
            | Input::Leave
            | Input::Tick => None,
        }
    }

    fn take(&mut self, input: Input) {
        let node = &mut self.node;
        match input {
            Input::Submit { group, rank, call } => {
                self.submit(group, rank, call, Ok(Splits::default()));
            }
            Input::Refuse {
                group,
                rank,
                call,
                reason,
            } => self.submit(group, rank, call, Err(reason)),
            Input::Exchange {
                group,
                rank,
                call,
                splits,
            } => self.submit(group, rank, call, Ok(splits)),
            Input::SendRecv {
                group,
                rank,
                op,
                call,
                refused,
            } => {
                if let Some(group) = self.groups.get_mut(&group) {
                    group.send_or_receive(node, rank, op, PairCall { call, refused });
                }
            }
            Input::Open {
                group,
                rank,
                ranks,
                replicated,
            } => self.open(group, rank, ranks, replicated),
            Input::Linked { peer } => self.linked(peer),
            Input::Frame { peer, fence, frame } => self.frame(peer, fence, frame),
            Input::Done { ticket } => {
                if let Some((id, work)) = node.work.remove(&ticket)
                    && let Some(group) = self.groups.get_mut(&id)
                {
                    group.done(node, ticket, work);
                }
            }
            Input::PeerLost { peer } => node.peer_lost(peer),
            Input::RankLost { rank } => {
                let by = node.config.node;
                let rank = node.config.layout.ranks(by).start + rank as u32;
                node.break_with(Broken::RankLost { rank, by }, None);
            }
            Input::RankLeft { rank } => {
                node.left.insert(rank);
                for group in self.groups.values_mut() {
                    group.rank_left(node, rank);
                }
                self.check_left();
            }
            Input::Revoke => node.break_with(Broken::Revoked, None),
            Input::Leave => node.leaving = Leaving::Draining,
            Input::Tick => {}
        }
    }

    fn submit(&mut self, group: GroupId, rank: usize, call: Call, splits: Result<Splits, Reason>) {
        if let Some(group) = self.groups.get_mut(&group) {
            group.submit(&mut self.node, rank, call, splits);
        }
    }

    fn advance(&mut self, id: GroupId) {
        // Others may not have begun a group that is not open: what is said to them would be lost.
        let Some(group) = self.groups.get_mut(&id).filter(|group| group.is_open()) else {
            return;
        };
        if group.advance(&mut self.node) {
            self.groups.remove(&id);
            self.node.out.push(Effect::Closed { group: id });
        }
    }

    fn advance_all(&mut self) {
        self.name_who_does_not_open();
        self.close();
        for id in self.groups.keys().copied().collect::<Vec<_>>() {
            self.advance(id);
        }
    }

    /// After the end of the epoch no group goes on: once.
    fn close(&mut self) {
        let Some(broken) = self.node.broken.filter(|_| !self.closed) else {
            return;
        };
        self.closed = true;
        let report = self.report();
        for group in self.groups.values_mut() {
            group.close(&mut self.node, broken);
        }
        self.close_openings(broken);
        if self.node.holds() {
            self.node.out.push(Effect::Stopped { report });
        }
    }

    fn leave_when_drained(&mut self) {
        let is_busy = self.groups.values().any(Group::is_busy);
        if self.node.leaving != Leaving::Draining || is_busy || self.node.broken.is_some() {
            return;
        }
        self.node.leaving = Leaving::Left;
        for (&id, group) in self.groups.iter().rev() {
            let ended = group.oldest();
            // The world last, and to everybody.
            let peers: Vec<usize> = match id {
                WORLD => self.node.peers(),
                _ => group.peers().collect(),
            };
            for peer in peers {
                self.node
                    .send(peer, Frame::Leaving { group: id, ended }, None);
            }
        }
    }
}

#[cfg(test)]
mod resume_tests;
#[cfg(test)]
mod tests;
