//! The calls of local processes: taken from their rings, given their place in the order of operations, and handed to the
//! machine. One that cannot be carried out takes its place too; one without memory for its result waits.

use collective::machine::{GroupId, Input, OpId, Reason, WORLD};
use collective::{Call, CallError};
use tracing::warn;
use wire::entry::FailureKind;
use wire::ring;

use super::Engine;
use super::exchange::wrong_input;
use super::waits::Who;
use crate::codec;
use crate::pool::PoolError;
use crate::session::Taken;

/// A call waits until results in use are let go, or memory is made.
pub(super) struct Stalled;

impl Engine {
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
    pub(super) fn take_entries(&mut self, rank: usize) -> bool {
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
            // The bell rings when it is there.
            PoolError::Preparing => return Err(Stalled),
            PoolError::TooLarge { .. } => Reason::Limit,
            PoolError::Segment(_) | PoolError::Unable(_) => Reason::Memory,
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
}

pub(super) fn reason_of(error: &CallError) -> Reason {
    match error {
        CallError::Root { .. } => Reason::Root,
        CallError::Size { .. } => Reason::Size,
        CallError::Factor { .. } => Reason::Factor,
        CallError::Parts { .. } => Reason::Parts,
    }
}
