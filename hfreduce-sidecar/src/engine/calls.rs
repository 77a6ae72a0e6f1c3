//! The calls of local processes: taken from their rings, given their place in the order of operations, and handed to the
//! machine. One that cannot be carried out takes its place too; one without memory for its result waits.

use collective::machine::{FIRST_SEND_RECV, GroupId, OpId, Reason, WORLD};
use collective::session::{Called, Lane};
use collective::{Call, CallError};
use hfreduce_client::entry::FailureKind;
use link::ring;
use tracing::warn;

use super::Engine;
use super::waits::Who;
use crate::pool::PoolError;
use crate::session::{PendingCall, Taken};

/// Frames that wait to be sent while no further message is taken up. Each that is received is asked for by one, and ranks
/// may call for thousands at once: more than a link queues, for a neighbour that is busy.
pub(super) const QUESTIONS_LIMIT: usize = 1024;

/// A call waits until results in use are let go, or memory is made.
struct Stalled;

impl Engine {
    pub(super) fn look_at_rings(&mut self) -> bool {
        let mut busy = false;
        // Also of those who have left: what they have called may wait.
        for rank in 0..self.local.ranks().local() {
            busy |= self.take_entries(rank);
        }
        busy
    }

    /// Takes a ring's worth of entries at most: a process that writes faster than it is read must not
    /// keep the others, and the peers, from their turn.
    pub(super) fn take_entries(&mut self, rank: usize) -> bool {
        let mut any = false;
        for _ in 0..ring::CAPACITY {
            match self.local.take(rank) {
                Ok(None) => break,
                Ok(Some(taken)) => {
                    any = true;
                    match taken {
                        Taken::Release(group, op) => self.memory.drop_holder((group, op)),
                        Taken::Open(group, open) => self.open(group, rank, open),
                        Taken::Nothing => {}
                    }
                }
                Err(error) => {
                    self.lose_session(rank, &error);
                    break;
                }
            }
        }
        let mut stalled = None;
        loop {
            let ranks = self.local.ranks();
            let Some((group, op, called)) = ranks.next(self.driver.machine(), rank, stalled) else {
                break;
            };
            if called.call.kind.is_between_two() && self.is_behind() {
                stalled = Some(group);
                continue;
            }
            let size = ranks.lane(group, rank).map_or(0, Lane::size);
            let (call, own_bytes) = (called.call, called.kept.own_bytes);
            let refused = match refusal(called, size) {
                Some(refused) => Ok(Some(refused)),
                // Nobody would give its memory back.
                None if ranks.fails(self.driver.machine(), group, rank) => Ok(None),
                None => self.examine((group, op), rank, (call, size), own_bytes),
            };
            match refused {
                Ok(refused) => {
                    if !self.take_up((group, op), rank, call, refused) {
                        break;
                    }
                    any = true;
                }
                Err(Stalled) => stalled = Some(group),
            }
        }
        any
    }

    /// Whether so much waits to be sent that messages wait to be called for.
    fn is_behind(&self) -> bool {
        self.driver.unsaid() + self.links.most_queued() >= QUESTIONS_LIMIT
    }

    /// Gives the next call its place in the order of operations. One that cannot be carried out takes its place too, and
    /// fails on every rank. False if there is none.
    fn take_up(
        &mut self,
        (group, op): (GroupId, OpId),
        rank: usize,
        call: Call,
        refused: Option<(Reason, String)>,
    ) -> bool {
        if group == WORLD && op < FIRST_SEND_RECV {
            self.came(Who::Rank(rank), op);
        }
        let is_over = self.is_over();
        let reason = refused.as_ref().map(|(reason, _)| *reason);
        let Some((called, input)) = self.local.ranks_mut().accept(group, rank, reason) else {
            return false;
        };
        let brought = std::mem::replace(&mut called.kept.input, Ok(None));
        match input {
            Ok(input) => {
                if let Some((_, detail)) = &refused {
                    warn!(local_rank = rank, operation = op, %call, detail, "refused a call");
                }
                if !is_over {
                    let brought = brought.ok().flatten().filter(|_| refused.is_none());
                    self.memory.call((group, op), rank, brought);
                }
                self.handle(input);
            }
            Err(over) => self.fail(rank, (group, op), over),
        }
        let left = self.local.ranks().left(rank);
        self.hand_in(left);
        true
    }

    /// Delivers to a process that its call has failed.
    fn fail(&mut self, rank: usize, (group, op): (GroupId, OpId), text: String) {
        let called = self.local.ranks_mut().end(group, op, rank, false);
        let (Some(session), Some(Called { call, kept, .. })) = (self.local.session(rank), called)
        else {
            return;
        };
        self.telemetry.metrics().failed(&call);
        if let Err(error) = session.fail(kept.ticket, FailureKind::Broken, text) {
            self.lose_session(rank, &error);
        }
    }

    /// Provides memory for what a call makes. Why it cannot be carried out here, if so; an error: it has to wait until
    /// results in use are let go.
    fn examine(
        &mut self,
        id: (GroupId, OpId),
        rank: usize,
        (call, size): (Call, u32),
        own_bytes: u64,
    ) -> Result<Option<(Reason, String)>, Stalled> {
        let own = (rank, own_bytes);
        let Err(error) = self.memory.provide(id, (&call, size), own) else {
            return Ok(None);
        };
        let reason = match error {
            PoolError::Full { .. } => {
                if self.local.ranks_mut().stall(id.0, rank) {
                    let text = "a call waits until processes of this node drop results";
                    warn!(local_rank = rank, operation = id.1, reason = %error, "{text}");
                }
                return Err(Stalled);
            }
            // The wake descriptor is notified when it is there.
            PoolError::Preparing => return Err(Stalled),
            PoolError::TooLarge { .. } => Reason::Limit,
            PoolError::Segment(_) | PoolError::Unable(_) => Reason::Memory,
        };
        Ok(Some((reason, error.to_string())))
    }
}

/// Why a call cannot be carried out in a group of this size, as it was written.
fn refusal(called: &Called<PendingCall>, size: u32) -> Option<(Reason, String)> {
    match (called.call.check(size), &called.kept.input) {
        (Err(error), _) => Some((reason_of(&error), error.to_string())),
        (Ok(()), Err(wrong)) => Some((wrong_input(&called.call), wrong.clone())),
        (Ok(()), Ok(_)) => None,
    }
}

/// Why an input that does not lie where it says cannot be used.
const fn wrong_input(call: &Call) -> Reason {
    if call.kind.exchanges() && call.kind.root().is_none() {
        Reason::Splits
    } else {
        Reason::Input
    }
}

fn reason_of(error: &CallError) -> Reason {
    match error {
        CallError::Root { .. } => Reason::Root,
        CallError::Size { .. } => Reason::Size,
        CallError::Factor { .. } => Reason::Factor,
        CallError::Bits { .. } => Reason::Bits,
        CallError::Parts { .. } => Reason::Parts,
    }
}
