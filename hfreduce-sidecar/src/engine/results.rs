//! Results while somebody may read them: memory from the first call on, and its end when the last process has let go.

use collective::Call;
use collective::machine::{GroupId, OpId};

use super::{Engine, Use};
use crate::pool::PoolError;

impl Engine {
    /// Memory for the result of an operation, from the first local rank that calls it. One that calls it later
    /// needs it too, or has called something else, and then it has no result: it must not wait for memory
    /// that is given back only when it has called.
    pub(super) fn provide(
        &mut self,
        (group, op): (GroupId, OpId),
        call: &Call,
        size: u32,
    ) -> Result<(), PoolError> {
        if self.is_over() || self.uses.contains_key(&(group, op)) {
            return Ok(());
        }
        let bytes = call.result_bytes(size);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let background = (!self.hurries).then_some(&mut self.results);
        self.memory.prepare((group, op), bytes, background)
    }

    /// Memory for what a local rank gets from an operation for itself alone.
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

    /// A process does not read a result any more.
    pub(super) fn let_go(&mut self, op: (GroupId, OpId)) {
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
