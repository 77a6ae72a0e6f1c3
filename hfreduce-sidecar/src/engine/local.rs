//! The engine's local side: processes that attach, call and let go. Every process is lost or leaves alone;
//! what that means for the others is asked of the machine.

use collective::machine::{GroupId, Input, OpId, Reason, WORLD};
use collective::{Call, CallError};
use rustix::event::epoll;
use tracing::{debug, info, warn};
use wire::attach::{self, Channel, Standing, ToClient, ToSidecar};
use wire::entry::FailureKind;
use wire::ring;

use super::exchange::wrong_input;
use super::waits::Who;
use super::{CLIENT, CLIENT_BELL, Engine, KIND, Notice, Seat, Use, VISITOR};
use crate::codec;
use crate::pool::PoolError;
use crate::session::{self, Begin, Heard, Session, Taken};

/// A call waits until results in use are let go.
pub(super) struct Stalled;

/// Connections of processes that have not said who they are: twice a node's processes.
const VISITOR_LIMIT: usize = 128;

impl Engine {
    pub(super) fn accept(&mut self) {
        match self.listener.accept() {
            Ok(None) => {}
            Ok(Some(_)) if self.visitors.len() >= VISITOR_LIMIT => {
                warn!("too many local connections that do not attach");
            }
            Ok(Some(channel)) => {
                let visitor = self.next_visitor;
                self.next_visitor = (visitor + 1) & !KIND;
                if self.watch(&channel, VISITOR | visitor).is_ok() {
                    self.visitors.insert(visitor, channel);
                }
            }
            Err(error) => warn!(%error, "failed to accept a local process"),
        }
    }

    pub(super) fn greet(&mut self, visitor: u64) {
        let Some(channel) = self.visitors.get(&visitor) else {
            return;
        };
        let message = match channel.receive::<ToSidecar>() {
            Ok(None) => return,
            Ok(Some(message)) => message,
            Err(error) => {
                debug!(%error, "a local connection ended before it attached");
                self.visitors.remove(&visitor);
                return;
            }
        };
        let Some(channel) = self.visitors.remove(&visitor) else {
            return;
        };
        epoll::delete(self.park.poll(), &channel).ok();
        let reason = match message {
            ToSidecar::Attach {
                version,
                local_rank,
                again,
                groups,
            } if version == attach::VERSION => {
                match self.seat(local_rank as usize, again, groups) {
                    Ok((rank, begin)) => return self.welcome(channel, rank, begin),
                    Err(reason) => reason,
                }
            }
            ToSidecar::Attach { version, .. } => format!(
                "the client speaks version {version}, this sidecar {}: use the wheel and the sidecar \
                 of one release",
                attach::VERSION
            ),
            ToSidecar::Ranks { .. }
            | ToSidecar::Group(_)
            | ToSidecar::Lend { .. }
            | ToSidecar::Allocate { .. }
            | ToSidecar::Free { .. }
            | ToSidecar::Detach => "the first message must be `attach`".to_owned(),
        };
        warn!(reason, "refused a local process");
        channel.send(&ToClient::Refused { reason }, &[]).ok();
    }

    /// Whether a process may attach, and where it begins. `again`: what it says it was told before; `groups`: of how many
    /// it will tell.
    fn seat(
        &self,
        rank: usize,
        again: Option<OpId>,
        groups: u32,
    ) -> Result<(usize, Begin), String> {
        match self.seats.get(rank) {
            Some(Seat::Free) => {
                let begin = match again {
                    None => Begin::Afresh,
                    Some(_) if groups as usize > attach::GROUP_LIMIT => {
                        return Err(format!(
                            "local rank {rank} would tell of {groups} groups; {} are the most",
                            attach::GROUP_LIMIT
                        ));
                    }
                    Some(told) if told < attach::OPERATION_LIMIT && self.has_forgotten(rank) => {
                        Begin::Again { told, groups }
                    }
                    Some(told) => {
                        return Err(format!(
                            "local rank {rank} says that it was told the ends of {told} operations before, which this \
                             sidecar knows nothing of; the attempt has to start again"
                        ));
                    }
                };
                Ok((rank, begin))
            }
            Some(Seat::Taken) => Err(format!("local rank {rank} is attached already")),
            Some(Seat::Left) => Err(format!(
                "local rank {rank} has attached and left before; the attempt has to start again"
            )),
            None => Err(format!(
                "there is no local rank {rank}: this node has {} processes",
                self.seats.len()
            )),
        }
    }

    fn welcome(&mut self, channel: Channel, rank: usize, begin: Begin) {
        let standing = Standing {
            local_rank: rank as u32,
            rank: self.standing.rank + rank as u32,
            ..self.standing
        };
        let noted = self.welcomed.as_ref().map(|list| list.note(rank));
        if let Some(Err(error)) = noted {
            // The next sidecar would not wait for it, and might contradict what it was told.
            let reason = format!("failed to note it in the run directory: {error}");
            warn!(rank, reason, "refused a local process");
            channel.send(&ToClient::Refused { reason }, &[]).ok();
            return;
        }
        let lasts = self.welcomed.is_some();
        let lends = (self.limit_bytes, self.places.inputs.clone());
        let session = Session::welcome(channel, standing, lends, begin, lasts);
        let session = match session {
            Ok(session) => session,
            Err(error) => {
                warn!(%error, rank, "failed to welcome a local process");
                return;
            }
        };
        let watched = self
            .watch(session.channel(), CLIENT | rank as u64)
            .and_then(|()| self.watch(&session.bell, CLIENT_BELL | rank as u64));
        if let Err(error) = watched {
            warn!(%error, rank, "failed to poll a local process");
            return;
        }
        let told = begin.first();
        info!(
            local_rank = rank,
            rank = standing.rank,
            told,
            "process attached"
        );
        self.seats[rank] = Seat::Taken;
        self.told[rank] = told;
        self.sessions.insert(rank, session);
        self.metrics.clients.set(self.sessions.len() as i64);
        if self.awaited.is_none() {
            self.tell_members(rank);
        }
        self.note_told(rank);
    }

    pub(super) fn hear(&mut self, rank: usize) {
        let Some(session) = self.sessions.get_mut(&rank) else {
            return;
        };
        match session.hear() {
            Ok(Heard::Nothing) => self.note_told(rank),
            Ok(Heard::Detached) => {
                // What it wrote before it left counts.
                self.take_entries(rank);
                let called_any = self.sessions.get(&rank).is_some_and(Session::has_called);
                info!(local_rank = rank, "process detached");
                self.close_session(rank);
                // A process that never called anything may come again.
                self.seats[rank] = if called_any { Seat::Left } else { Seat::Free };
                if called_any {
                    self.handle(Input::RankLeft { rank });
                } else if let Some(Err(error)) =
                    self.welcomed.as_ref().map(|list| list.strike(rank))
                {
                    warn!(%error, local_rank = rank, "the next sidecar will wait for a process that left");
                }
            }
            Err(error) => self.lose_session(rank, &error),
        }
    }

    pub(super) fn wake(&mut self, rank: usize) {
        if let Some(session) = self.sessions.get(&rank)
            && !session.bell.clear()
        {
            // Closed, so it rings without end. Whether it has left, and how, is said over its socket.
            epoll::delete(self.park.poll(), &session.bell).ok();
        }
    }

    pub(super) fn lose_session(&mut self, rank: usize, error: &session::Error) {
        if self.sessions.contains_key(&rank) {
            warn!(%error, local_rank = rank, "process lost");
            self.close_session(rank);
            self.seats[rank] = Seat::Left;
            self.notices.send(Notice::RankLost).ok();
            self.handle(Input::RankLost { rank });
        }
    }

    fn close_session(&mut self, rank: usize) {
        let Some(session) = self.sessions.remove(&rank) else {
            return;
        };
        // Dropping does not remove them: the client holds the same open files.
        epoll::delete(self.park.poll(), session.channel()).ok();
        epoll::delete(self.park.poll(), &session.bell).ok();
        let held: Vec<(GroupId, OpId)> = session.holds().collect();
        for op in held {
            self.let_go(op);
        }
        self.metrics.clients.set(self.sessions.len() as i64);
    }

    pub(super) fn may_submit(&self, group: GroupId, rank: usize) -> bool {
        // A broken epoch answers every call at once, as does a group that is no more.
        let lane = self.sessions.get(&rank).and_then(|one| one.lane(group));
        let is_dead = lane.is_some_and(|lane| lane.dead.is_some());
        let reopens = lane.is_some_and(|lane| lane.reopens);
        let next = lane.and_then(|lane| lane.first_waiting());
        let may = match next {
            Some(waiting) if waiting.called.call.is_between_two() => self.machine.may_post(group),
            Some(_) | None => self.machine.may_submit(group, rank),
        };
        self.is_over() || is_dead || may && !reopens
    }

    pub(super) fn look_at_rings(&mut self) -> bool {
        let mut busy = false;
        let mut next = self.sessions.keys().next().copied();
        while let Some(rank) = next {
            busy |= self.take_entries(rank);
            next = self
                .sessions
                .range(rank + 1..)
                .next()
                .map(|(&rank, _)| rank);
        }
        busy
    }

    /// Takes a ring's worth of entries at most: a process that writes faster than it is read must not
    /// keep the others, and the peers, from their turn.
    fn take_entries(&mut self, rank: usize) -> bool {
        let mut any = false;
        for _ in 0..ring::CAPACITY {
            let Some(session) = self.sessions.get_mut(&rank) else {
                break;
            };
            match session.take() {
                Ok(None) => break,
                Ok(Some(taken)) => {
                    any = true;
                    match taken {
                        Taken::Release(group, op) => self.let_go((group, op)),
                        Taken::Open(group) => self.open(group, rank),
                        Taken::Call | Taken::Nothing => {}
                    }
                }
                Err(error) => {
                    self.lose_session(rank, &error);
                    break;
                }
            }
        }
        let waiting = |engine: &Self, from| engine.sessions.get(&rank)?.first_waiting_from(from);
        let mut next = waiting(self, WORLD);
        while let Some(group) = next {
            while self.may_submit(group, rank) && self.take_up(group, rank) {
                any = true;
            }
            next = waiting(self, group + 1);
        }
        any
    }

    /// Gives the first call that waits its place in the order of operations. False when there is none, or
    /// when results in use leave no memory for its own: then it waits, and all behind it, until some are let
    /// go. A call that cannot be carried out takes its place too, and fails on every rank: without it the
    /// calls behind it would meet other calls than theirs on other nodes.
    fn take_up(&mut self, group: GroupId, rank: usize) -> bool {
        let Some(lane) = self.sessions.get(&rank).and_then(|one| one.lane(group)) else {
            return false;
        };
        let Some(waiting) = lane.first_waiting() else {
            return false;
        };
        if waiting.called.call.is_between_two() {
            return self.post(group, rank);
        }
        let op = lane.next_op;
        let over = self.over.clone().or_else(|| lane.dead.clone());
        let call = codec::call_from_wire(&waiting.called.call);
        let Ok(refused) = self.examine((group, op), rank, &call) else {
            return false;
        };
        if group == WORLD {
            self.came(Who::Rank(rank), op);
        }
        let reason = refused.as_ref().map(|(reason, _)| *reason);
        let session = self.sessions.get_mut(&rank);
        let Some(waiting) = session.and_then(|session| session.accept(group, reason)) else {
            return false;
        };
        if let Some(over) = over {
            self.fail(rank, (group, op), over);
            return true;
        }
        if !self.is_over() {
            self.uses.entry((group, op)).or_default();
        }
        if let Some((reason, detail)) = refused {
            warn!(local_rank = rank, operation = op, %call, detail, "refused a call");
            self.handle(Input::Refuse {
                group,
                rank,
                call,
                reason,
            });
            return true;
        }
        let input = waiting.input.ok().flatten();
        let ready = input.as_ref().map_or(0, |input| input.bytes as u64);
        if let Some(input) = input.filter(|_| !self.is_over()) {
            self.memory.bring(group, op, rank, input);
        }
        self.handle(match waiting.splits {
            Some(splits) => Input::Exchange {
                group,
                rank,
                call,
                splits,
            },
            None => Input::Submit {
                group,
                rank,
                call,
                ready,
            },
        });
        true
    }

    /// Tells a process that its call has failed.
    pub(super) fn fail(&mut self, rank: usize, (group, op): (GroupId, OpId), text: String) {
        let Some(session) = self.sessions.get_mut(&rank) else {
            return;
        };
        let Some(called) = session.ended(group, op) else {
            return;
        };
        self.metrics.failed(&called.call);
        if let Err(error) = session.fail(called.ticket, FailureKind::Broken, text) {
            self.lose_session(rank, &error);
        }
    }

    /// Why the first call that waits cannot be carried out here, if it cannot; otherwise there is memory for what it makes.
    /// An error: it has to wait until results in use are let go.
    pub(super) fn examine(
        &mut self,
        id: (GroupId, OpId),
        rank: usize,
        call: &Call,
    ) -> Result<Option<(Reason, String)>, Stalled> {
        let lane = self.sessions.get(&rank).and_then(|one| one.lane(id.0));
        let Some((lane, waiting)) = lane.and_then(|lane| Some((lane, lane.first_waiting()?)))
        else {
            return Err(Stalled);
        };
        match (call.check(lane.size), &waiting.input) {
            (Err(error), _) => return Ok(Some((reason_of(&error), error.to_string()))),
            (Ok(()), Err(wrong)) => return Ok(Some((wrong_input(call), wrong.clone()))),
            (Ok(()), Ok(_)) => {}
        }
        let (size, own_bytes) = (lane.size, waiting.called.own_bytes);
        let provided = self
            .provide(id, call, size)
            .and_then(|()| self.provide_own(id, rank, own_bytes));
        let Err(error) = provided else {
            return Ok(None);
        };
        let reason = match error {
            PoolError::Full { .. } => {
                self.stall(rank, id, &error);
                return Err(Stalled);
            }
            PoolError::TooLarge { .. } => Reason::Limit,
            PoolError::Segment(_) => Reason::Memory,
        };
        Ok(Some((reason, error.to_string())))
    }

    fn stall(&mut self, rank: usize, (group, op): (GroupId, OpId), full: &PoolError) {
        let session = self.sessions.get_mut(&rank);
        if let Some(lane) = session.and_then(|session| session.lane_mut(group))
            && !std::mem::replace(&mut lane.stalled, true)
        {
            warn!(
                local_rank = rank,
                operation = op,
                reason = %full,
                "a call waits until processes of this node drop results"
            );
        }
    }

    /// Memory for the result of an operation, from the first local rank that calls it. One that calls it later
    /// needs it too, or has called something else, and then it has no result: it must not wait for memory
    /// that is given back only when it has called.
    fn provide(
        &mut self,
        (group, op): (GroupId, OpId),
        call: &Call,
        size: u32,
    ) -> Result<(), PoolError> {
        if self.is_over() || self.uses.contains_key(&(group, op)) {
            return Ok(());
        }
        let bytes = call.result_bytes(size);
        self.memory
            .provide(group, op, usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// A process does not read a result any more.
    fn let_go(&mut self, op: (GroupId, OpId)) {
        if let Some(used) = self.uses.get_mut(&op) {
            used.holders = used.holders.saturating_sub(1);
        }
        self.forget_if_unused(op);
    }

    pub(super) fn forget_if_unused(&mut self, op: (GroupId, OpId)) {
        let unused = |used: &Use| used.released && used.holders == 0;
        if self.uses.get(&op).is_some_and(unused) {
            self.uses.remove(&op);
            self.memory.forget_result(op.0, op.1);
        }
    }

    pub(super) fn forget_gone(&mut self) {
        let gone = self.memory.take_gone();
        if gone.is_empty() {
            return;
        }
        let ranks: Vec<usize> = self.sessions.keys().copied().collect();
        for rank in ranks {
            let Some(session) = self.sessions.get_mut(&rank) else {
                continue;
            };
            let told = gone.iter().try_for_each(|number| session.forget(*number));
            if let Err(error) = told {
                self.lose_session(rank, &error);
            }
        }
    }
}

pub(super) fn reason_of(error: &CallError) -> Reason {
    match error {
        CallError::Root { .. } => Reason::Root,
        CallError::Size { .. } => Reason::Size,
        CallError::Factor { .. } => Reason::Factor,
        CallError::Parts { .. } => Reason::Parts,
    }
}
