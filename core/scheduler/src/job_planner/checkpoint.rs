//! What is known of a job's checkpoints, and where its next attempt starts from.

use super::JobPlanner;
use crate::status::ConditionKind::{CheckpointDurable, CheckpointPassedOver};
use topology::CheckpointRef;

/// Reason of CheckpointDurable when the job acknowledged the checkpoint at the end of an attempt:
/// nothing newer can exist, so the next attempt is pinned to it.
const ACKNOWLEDGED: &str = "Acknowledged";

impl JobPlanner<'_> {
    /// Takes over what the attempt that ends is known to have saved: what it acknowledged when it
    /// was asked to stop, else what it reported last.
    pub(super) fn learn_saved(&mut self) {
        if !self.learn_acknowledged() {
            self.learn_report();
        }
    }

    /// Takes over what its newest attempt acknowledged, if it did. Pods that a deposed leader
    /// created may do so only when the attempt is long over.
    pub(crate) fn learn_acknowledged(&mut self) -> bool {
        let Some(ack) = self.acknowledged() else {
            return false;
        };
        let text = format!("Step {} was acknowledged at the interruption", ack.step);
        self.learn(ack, ACKNOWLEDGED, &text);
        true
    }

    /// Takes over what pods acknowledged of attempts that are long over, or of a job that is: its
    /// nodes were cut off and are back. Of a job that holds nothing no more than its end is known,
    /// and nothing is recorded.
    pub(crate) fn learn_late(&mut self) {
        if self.status.phase.is_terminal() {
            if self.job.finalizer {
                self.learn_acknowledged();
            }
            return;
        }
        let current = self.status.attempt;
        let pods = self.view.pods.values().filter(|pod| pod.attempt < current);
        let acks =
            pods.filter_map(|pod| pod.acknowledged().filter(|ack| ack.attempt == pod.attempt));
        if let Some(ack) = acks.max().cloned() {
            let text = format!("Step {} of attempt {} is durable", ack.step, ack.attempt);
            self.learn(ack, "AcknowledgedLate", &text);
        }
    }

    /// The checkpoint that the gang acknowledged when it was asked to stop.
    fn acknowledged(&self) -> Option<CheckpointRef> {
        let attempt = self.status.attempt;
        let acks = self
            .view
            .gang(attempt)
            .filter_map(|pod| pod.acknowledged().cloned());
        acks.filter(|ack| ack.attempt <= attempt).max()
    }

    /// Takes over what the gang reported, if it is news.
    pub(super) fn learn_report(&mut self) {
        let attempt = self.status.attempt;
        if let Some(report) = self.view.report.filter(|report| report.attempt <= attempt) {
            let text = format!(
                "Step {} of attempt {} is durable",
                report.step, report.attempt
            );
            self.learn(report.clone(), "Reported", &text);
        }
    }

    /// Says that the attempt has not resumed from the checkpoint that it should have.
    pub(super) fn emit_passed_over(&mut self) {
        let attempt = self.status.attempt;
        let Some((_, text)) = self.view.passed_over.filter(|(by, _)| *by == attempt) else {
            return;
        };
        if !self.status.is(CheckpointPassedOver) {
            let message = format!("Attempt {attempt} {text}");
            self.set(CheckpointPassedOver, true, "CheckpointDamaged", &message);
            self.warn("CheckpointPassedOver", message);
        }
    }

    /// A new attempt has passed over nothing yet.
    pub(super) fn forget_passed_over(&mut self) {
        if self.status.is(CheckpointPassedOver) {
            let text = "A later attempt has begun";
            self.set(CheckpointPassedOver, false, "NextAttempt", text);
        }
    }

    fn learn(&mut self, checkpoint: CheckpointRef, reason: &str, message: &str) {
        let order = |checkpoint: &CheckpointRef| (checkpoint.attempt, checkpoint.step);
        let known = self.status.last_checkpoint.as_ref().map(order);
        if known.is_some_and(|known| order(&checkpoint) < known) {
            return;
        }
        if self.status.last_checkpoint.as_ref() != Some(&checkpoint) {
            self.status.last_checkpoint = Some(checkpoint);
            self.status.checkpoint_at = Some(self.now);
        } else if reason != ACKNOWLEDGED {
            return;
        }
        self.set(CheckpointDurable, true, reason, message);
    }

    /// Where the attempt starts from, if that is certain: the attempt before it acknowledged its
    /// last checkpoint, or only attempts that could not read it have been between. Otherwise a
    /// newer one may exist than was reported.
    pub(super) fn resume_point(&self, number: u32) -> Option<CheckpointRef> {
        let condition = self.status.conditions.get(&CheckpointDurable)?;
        let last = self.status.last_checkpoint.as_ref()?;
        let next = last.attempt.saturating_add(1);
        let next = next.saturating_add(self.status.unreadable);
        let certain = condition.reason == ACKNOWLEDGED && next == number;
        certain.then(|| last.clone())
    }
}
