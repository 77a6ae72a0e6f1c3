//! Releasing: nobody who may still save is killed, nothing is released before it is recorded.

use std::time::Duration;

use super::{
    FINALIZER_WHILE_HELD, Facts, NO_LOST_SAVE, Outcome, RECORD_FIRST, Replay, ensure,
    is_lost_member,
};
use crate::status::JobPhase;

impl<'a> Facts<'a> {
    /// Who may still save is asked, not killed.
    pub(super) fn delete_pod(
        &self,
        replay: &Replay<'a>,
        attempt: u32,
        rank: u32,
        grace: Duration,
    ) -> Outcome {
        let trains = replay.status.attempt == attempt
            && replay.status.phase.holds_nodes()
            && !replay.job.deleting;
        let asked = replay.status.phase == JobPhase::Interrupting
            || is_lost_member(replay.status, attempt, rank);
        ensure(!trains || asked, RECORD_FIRST, || {
            format!(
                "pod of rank {rank} deleted in phase {:?}",
                replay.status.phase
            )
        })?;
        let may_save = (trains || replay.job.deleting)
            && self.runs(replay.job, attempt)
            && !is_lost_member(replay.status, attempt, rank);
        ensure(!may_save || grace >= replay.job.grace, NO_LOST_SAVE, || {
            format!("rank {rank} gets {grace:?} to save")
        })
    }

    pub(super) fn strip(&self, replay: &Replay<'a>, attempt: u32, rank: u32) -> Outcome {
        if replay.job.deleting {
            return Ok(());
        }
        let status = replay.status;
        let over = attempt < status.attempt
            || !status.phase.holds_nodes()
            || is_lost_member(status, attempt, rank);
        ensure(over, RECORD_FIRST, || {
            format!("attempt {attempt} is stripped while it holds")
        })?;
        let ack = self
            .gang(replay.job, attempt)
            .find(|pod| pod.rank == rank)
            .and_then(|pod| pod.acknowledged());
        // Of a job that has ended and holds nothing, nothing is recorded any more.
        let forgotten = status.phase.is_terminal() && !replay.job.finalizer;
        // An acknowledgement that claims to come from the future is not believed.
        let recorded = ack.filter(|ack| ack.attempt == attempt).is_none_or(|ack| {
            let last = status.last_checkpoint.as_ref();
            last.is_some_and(|last| (last.attempt, last.step) >= (ack.attempt, ack.step))
        });
        ensure(recorded || forgotten, NO_LOST_SAVE, || {
            format!("acknowledgement of attempt {attempt} dropped")
        })
    }

    pub(super) fn holds_nothing(&self, replay: &Replay<'a>) -> Outcome {
        let released = replay.job.deleting || !replay.status.phase.holds_nodes();
        let mut pods = self.pods.get(&replay.job.key).into_iter().flatten();
        let free = pods.all(|pod| pod.terminal || self.states.is_lost(&pod.node));
        ensure(released && free, FINALIZER_WHILE_HELD, || {
            "it still holds nodes".to_owned()
        })
    }
}
