//! What ranks get for themselves alone: memory for it, and messages between two ranks, which have no place in the order
//! of a group's operations.

use collective::Call;
use collective::machine::{GroupId, Input, OpId, Reason};
use tracing::warn;

use super::Engine;
use super::local::reason_of;
use crate::codec;
use crate::pool::PoolError;

impl Engine {
    /// Memory for what a local rank gets from an operation.
    pub(super) fn provide_own(
        &mut self,
        (group, op): (GroupId, OpId),
        rank: usize,
        bytes: u64,
    ) -> Result<(), PoolError> {
        if self.is_over() {
            return Ok(());
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.memory.provide_own((group, op, rank), bytes)
    }

    /// Hands the first call that waits to the machine: a message that is sent or received. False when results in use
    /// leave no memory for it.
    pub(super) fn post(&mut self, group: GroupId, rank: usize) -> bool {
        let Some(lane) = self.sessions.get(&rank).and_then(|one| one.lane(group)) else {
            return false;
        };
        let Some(waiting) = lane.first_waiting() else {
            return false;
        };
        let over = self.over.clone().or_else(|| lane.dead.clone());
        let (op, own_bytes) = (self.next_post, waiting.called.own_bytes);
        let call = codec::call_from_wire(&waiting.called.call);
        let mut refused = match (call.check(lane.size), &waiting.input) {
            (Err(error), _) => Some((reason_of(&error), error.to_string())),
            (Ok(()), Err(wrong)) => Some((Reason::Input, wrong.clone())),
            (Ok(()), Ok(_)) => None,
        };
        if refused.is_none()
            && let Err(error) = self.provide_own((group, op), rank, own_bytes)
        {
            let reason = match error {
                PoolError::Full { .. } => {
                    self.stall(rank, (group, op), &error);
                    return false;
                }
                PoolError::TooLarge { .. } => Reason::Limit,
                PoolError::Segment(_) => Reason::Memory,
            };
            refused = Some((reason, error.to_string()));
        }
        let reason = refused.as_ref().map(|(reason, _)| *reason);
        let session = self.sessions.get_mut(&rank);
        let Some(waiting) = session.and_then(|one| one.accept_as(group, op, reason)) else {
            return false;
        };
        self.next_post += 1;
        if let Some(over) = over {
            self.fail(rank, (group, op), over);
            return true;
        }
        if !self.is_over() {
            self.uses.entry((group, op)).or_default();
        }
        if let Some((_, detail)) = refused {
            warn!(local_rank = rank, %call, detail, "refused a call");
        }
        if let Ok(Some(input)) = waiting.input
            && reason.is_none()
            && !self.is_over()
        {
            self.memory.bring(group, op, rank, input);
        }
        self.handle(Input::Post {
            group,
            rank,
            op,
            call,
            refused: reason,
        });
        true
    }
}

/// Why an input that does not lie where it says cannot be used.
pub(super) const fn wrong_input(call: &Call) -> Reason {
    if call.kind.exchanges() && call.kind.root().is_none() {
        Reason::Splits
    } else {
        Reason::Input
    }
}
