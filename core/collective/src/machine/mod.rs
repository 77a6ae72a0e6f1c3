//! The collective protocol of one node in one epoch, as a step function: inputs in, effects out. Owns order,
//! agreement, flow control and failure. Leaves bytes, sockets, threads and clocks to the shell.
//!
//! # What the shell does
//! - One machine per epoch, with all its groups; a new epoch gets a new machine. `now` is any monotonic time that never
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
//! - Where operations wait for the next epoch ([`OnPeerLoss::Hold`]): build the machine when its links stand, so that it
//!   notices a loss before the start, and hand calls in after the start. After [`Effect::Stopped`] keep calls, inputs and
//!   results, and hand in nothing but [`Input::Done`]. When the machine is idle and the next epoch is committed, build
//!   the next one with [`Machine::resume`]: it needs a result buffer for each operation that is served. Then each rank's
//!   calls are handed in again from the first whose end it was not told; inputs before that may go.
//! - After each `handle`, carry out the effects, then sleep until the next input or [`Machine::wake_at`],
//!   whichever comes first, and hand in [`Input::Tick`] then.

mod agree;
mod cause;
mod config;
mod down;
mod edge;
mod flow;
mod group;
mod history;
mod io;
mod node;
mod operation;
mod receive;
mod status;
mod up;
mod watch;

use std::collections::BTreeMap;
use std::time::Duration;

pub use cause::{Broken, Cause, Claim, Mismatch, Reason, Refusal, Verdict, Violation};
pub use config::{
    Config, ConfigError, DEFAULT_CHUNK_BYTES, DEFAULT_SLOTS, Handover, MAX_SLOTS, MIN_CHUNK_BYTES,
    OnPeerLoss, Recovery, Start, Timing,
};
pub use io::{
    Buffer, Effect, Fence, Frame, GroupId, Input, Mark, OpId, Placement, Region, Ticket, WORLD,
};

pub use status::Status;

use crate::recovery::Report;
use group::Group;
use node::{Farewell, Node};

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

/// One node's part in the collectives of one epoch.
#[derive(Debug)]
pub struct Machine {
    node: Node,
    groups: BTreeMap<GroupId, Group>,
    /// Whether the groups have heard of the end of the epoch.
    closed: bool,
}

impl Machine {
    /// A machine that has started no operation. `now` starts the silence timers. Needs a configuration that
    /// passes [`Config::check`].
    #[must_use]
    pub fn new(config: Config, now: Duration) -> Self {
        let world = Group::new(WORLD, &config, None);
        Self::with_world(config, world, now)
    }

    /// The machine of an epoch that goes on with the operations of the one before. Each rank then calls again what it
    /// was not told the end of. Needs a configuration of the members only.
    #[must_use]
    pub fn resume(config: Config, start: &Start, now: Duration) -> Self {
        let world = Group::new(WORLD, &config, Some(start));
        Self::with_world(config, world, now)
    }

    fn with_world(config: Config, world: Group, now: Duration) -> Self {
        Self {
            node: Node::new(config, now),
            groups: BTreeMap::from([(WORLD, world)]),
            closed: false,
        }
    }

    /// The nodes it needs a link to, ascending.
    #[must_use]
    pub fn peers(&self) -> Vec<usize> {
        self.node.peers()
    }

    /// `(peer, tree)` of every child that needs receive slots.
    #[must_use]
    pub fn receives(&self) -> Vec<(usize, u8)> {
        let groups = self.groups.values();
        groups.flat_map(|group| group.below.clone()).collect()
    }

    /// The trees in which it has a parent, hence send slots.
    #[must_use]
    pub fn sends(&self) -> Vec<u8> {
        self.groups.values().flat_map(Group::sends).collect()
    }

    /// Whether a local rank may call its next operation now, or has to wait for earlier ones to be released.
    #[must_use]
    pub fn may_submit(&self, rank: usize) -> bool {
        self.groups[&WORLD].may_submit(rank)
    }

    /// Why the epoch is over, if it is.
    #[must_use]
    pub fn broken(&self) -> Option<Broken> {
        self.node.broken
    }

    /// Whether the shell works on nothing for it any more.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.node.work.is_empty()
    }

    /// Whether something could go on if a slot or a payload came back. Otherwise the shell may let them wait for the
    /// next input of another kind.
    #[must_use]
    pub fn waits_for_room(&self) -> bool {
        self.groups.values().any(Group::waits_for_room)
    }

    /// How far this node is.
    #[must_use]
    pub fn report(&self) -> Report {
        self.groups.values().map(Group::report).collect()
    }

    /// What was dropped so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.node.counters
    }

    /// Takes one input and appends what has to be done.
    pub fn handle(&mut self, now: Duration, input: Input, effects: &mut Vec<Effect>) {
        self.node.pass_time(now);
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
        for group in self.groups.values_mut() {
            group.watch(&mut self.node);
        }
        self.close();
        for group in self.groups.values_mut() {
            group.advance(&mut self.node);
        }
        self.say_farewell();
        effects.append(&mut self.node.out);
    }

    fn take(&mut self, input: Input) {
        let node = &mut self.node;
        let Some(world) = self.groups.get_mut(&WORLD) else {
            return;
        };
        match input {
            Input::Submit { rank, call, ready } => world.submit(node, rank, call, Ok(ready)),
            Input::Refuse { rank, call, reason } => world.submit(node, rank, call, Err(reason)),
            Input::Ready { rank, op, ready } => world.ready(rank, op, ready),
            Input::Frame { peer, fence, frame } => self.frame(peer, fence, frame),
            Input::Done { ticket } => {
                if let Some((id, work)) = node.work.remove(&ticket)
                    && let Some(group) = self.groups.get_mut(&id)
                {
                    group.done(node, work);
                }
            }
            Input::PeerLost { peer } => node.peer_lost(peer),
            Input::RankLost { rank } => {
                let (rank, by) = (world.global(rank), node.config.node);
                node.break_with(Broken::RankLost { rank, by }, None);
            }
            Input::RankLeft { rank } => world.rank_left(node, rank),
            Input::Revoke => node.break_with(Broken::Revoked, None),
            Input::Leave => node.farewell = Farewell::Due,
            Input::Tick => {}
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
        if self.node.holds() {
            self.node.out.push(Effect::Stopped { report });
        }
    }

    fn say_farewell(&mut self) {
        let in_flight = self.groups.values().any(Group::in_flight);
        if self.node.farewell != Farewell::Due || in_flight || self.node.broken.is_some() {
            return;
        }
        self.node.farewell = Farewell::Said;
        let ended = self.groups[&WORLD].oldest();
        for peer in self.node.peers() {
            self.node.send(peer, Frame::Bye { ended }, None);
        }
    }
}

#[cfg(test)]
mod tests;
