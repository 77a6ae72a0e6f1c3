//! What ranks get for themselves alone: memory for it, and messages between two ranks, which have no place in the order
//! of a group's operations.

use collective::Call;
use collective::machine::{GroupId, Input, OpId, Reason};
use tracing::warn;

use super::Engine;
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
        let background = (!self.hurries).then_some(&mut self.results);
        self.memory
            .prepare_own((group, op, rank), bytes, background)
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
        let op = self.next_post;
        let call = codec::call_from_wire(&waiting.called.call);
        let Ok(refused) = self.examine((group, op), rank, &call) else {
            return false;
        };
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
