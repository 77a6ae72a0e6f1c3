//! How attempts and jobs end: well, by the program's fault, by nobody's.

use topology::NodeName;

use super::JobPlanner;
use crate::avoid::{EndCause, remember};
use crate::ledger::Ledger;
use crate::snapshot::{Exit, ProgramCause};
use crate::status::ConditionKind::{Assigned, Complete, Failed, Running, Stuck};
use crate::status::{Failure, JobPhase};

/// Times of failures that are kept: as many as may be forgiven.
const MOST_RESTARTS: usize = 1000;

/// The reason that a job gives when its checkpoints cannot be read now.
const CHECKPOINT_UNAVAILABLE: &str = "CheckpointUnavailable";

impl<'a> JobPlanner<'a> {
    pub(crate) fn succeed(&mut self) {
        self.end(JobPhase::Succeeded, "Succeeded", "Every rank ended well");
        self.set(Complete, true, "Succeeded", "Every rank ended well");
        self.emit("Succeeded", "Every rank ended well".to_owned());
    }

    /// The attempt ended by no fault of the program: plan again, charge nothing.
    pub(crate) fn lost(
        &mut self,
        node: Option<NodeName>,
        cause: EndCause,
        message: String,
        ledger: &Ledger<'a>,
    ) {
        // What kept it from ending is an answer about its node. Only one that never had the node is
        // tried again.
        if self.job.pin.is_some() && cause != EndCause::Superseded {
            self.give_up(node, cause.as_str(), message);
            return;
        }
        self.back_off(cause);
        self.void("Replanned", &message);
        if cause.keeps_place() && self.job.problem.is_none() {
            self.keep_place(ledger);
        }
        if let Some(node) = node.clone() {
            remember(&mut self.status, node, cause, self.policy, self.now);
        }
        self.warn("Replanning", message.clone());
        self.say_stuck(cause, &message);
        let attempt = self.status.attempt;
        self.status.failure = Some(Failure {
            attempt,
            node,
            rank: None,
            message,
            log: None,
        });
    }

    /// The program failed: charge it, and give up when that happened too often.
    pub(crate) fn fail(&mut self, node: NodeName, exit: &Exit, ledger: &Ledger<'a>) {
        let message = describe(&node, exit);
        if self.job.pin.is_some() {
            self.give_up(Some(node), EndCause::ProgramFailed.as_str(), message);
            return;
        }
        self.forget_old_restarts();
        if let Some(cause) = &exit.cause {
            self.could_not_resume(&message, cause, ledger);
        } else if self.charge("Failed", &message, ledger) {
            let cause = EndCause::ProgramFailed;
            remember(&mut self.status, node.clone(), cause, self.policy, self.now);
        }
        self.status.failure = Some(Failure {
            attempt: self.status.attempt,
            node: Some(node),
            rank: exit.rank,
            message,
            log: exit.log.clone(),
        });
    }

    /// The program makes no progress: that is charged like a failure, and no node is known to be at
    /// fault.
    pub(crate) fn stall(&mut self, message: String, ledger: &Ledger<'a>) {
        self.forget_old_restarts();
        self.charge("Stalled", &message, ledger);
        self.status.failure = Some(Failure {
            attempt: self.status.attempt,
            node: None,
            rank: None,
            message,
            log: None,
        });
    }

    /// Charges the end of the attempt to the program, and gives up when that happened too often.
    /// Returns whether there is another attempt.
    fn charge(&mut self, reason: &'static str, message: &str, ledger: &Ledger<'a>) -> bool {
        let allowed = self.job.max_restarts;
        if self.status.restarts >= allowed {
            let text = format!("{message}; all {allowed} restarts are used up");
            self.end(JobPhase::Failed, reason, message);
            self.set(Failed, true, "TooManyRestarts", &text);
            self.warn("Failed", text);
            return false;
        }
        self.status.restarts += 1;
        self.status.restart_times.push(self.now);
        let backoff = self.policy.failure_backoff;
        self.status.retry_at = Some(backoff.after(self.now, self.status.restarts));
        self.void(reason, message);
        self.keep_place(ledger);
        let nth = self.status.restarts;
        self.warn(
            "Restarting",
            format!("{message}; restart {nth} of {allowed}"),
        );
        true
    }

    /// It is tried once.
    fn give_up(&mut self, node: Option<NodeName>, reason: &'static str, message: String) {
        self.end(JobPhase::Failed, reason, &message);
        self.set(Failed, true, reason, &message);
        self.warn(reason, message.clone());
        self.status.failure = Some(Failure {
            attempt: self.status.attempt,
            node,
            rank: None,
            message,
            log: None,
        });
    }

    /// Checkpoints exist, and the program could load none: it tries again for as long as they
    /// cannot be read, or nothing will help. Without them it would train what it has trained
    /// already.
    fn could_not_resume(&mut self, message: &str, cause: &ProgramCause, ledger: &Ledger<'a>) {
        match cause {
            ProgramCause::CheckpointUnavailable(why) => {
                let tried = self.status.unreadable.saturating_add(1);
                self.void(CHECKPOINT_UNAVAILABLE, message);
                self.status.unreadable = tried;
                let backoff = self.policy.storage_backoff;
                self.status.retry_at = Some(backoff.after(self.now, tried));
                self.keep_place(ledger);
                self.set(Running, false, CHECKPOINT_UNAVAILABLE, why);
                self.warn(CHECKPOINT_UNAVAILABLE, why.clone());
                self.say_unreadable(why);
            }
            ProgramCause::NoUsableCheckpoint(why) => {
                self.end(JobPhase::Failed, "NoUsableCheckpoint", message);
                self.set(Failed, true, "NoUsableCheckpoint", why);
                self.warn("Failed", why.clone());
            }
        }
    }

    /// Failures outside the window count no more.
    fn forget_old_restarts(&mut self) {
        let (now, window) = (self.now, self.policy.restart_window);
        let times = &mut self.status.restart_times;
        let known = times.len();
        times.retain(|when| *when + window > now);
        let forgotten = u32::try_from(known - times.len()).unwrap_or(u32::MAX);
        self.status.restarts = self.status.restarts.saturating_sub(forgotten);
        if times.len() >= MOST_RESTARTS {
            times.remove(0);
        }
    }

    /// Lengthens the back-off that charges nothing.
    pub(crate) fn back_off(&mut self, cause: EndCause) {
        let status = &mut self.status;
        status.replans = status.replans.saturating_add(1);
        let (backoff, count) = match cause {
            EndCause::Blocked => {
                status.refusals = status.refusals.saturating_add(1);
                (self.policy.blocked_backoff, status.refusals)
            }
            EndCause::NodeLost
            | EndCause::NodeRefused
            | EndCause::PodEnded
            | EndCause::NotBound
            | EndCause::NotStarted
            | EndCause::Silent
            | EndCause::ProgramFailed
            | EndCause::Superseded
            | EndCause::Other => (self.policy.replan_backoff, status.replans),
        };
        status.retry_at = Some(backoff.after(self.now, count));
    }

    /// It is tried again and again and never runs.
    fn say_stuck(&mut self, cause: EndCause, message: &str) {
        let times = self.status.replans;
        if times < self.policy.stuck_after {
            return;
        }
        let advice = cause.advice();
        let text = format!(
            "{times} attempts in a row ended before the job ran, the last one because: {message}; \
             {advice}. It is tried again with longer and longer pauses"
        );
        self.stuck(cause.as_str(), &text);
    }

    /// Its checkpoints cannot be read again and again: storage is away, and may be for hours.
    fn say_unreadable(&mut self, why: &str) {
        let times = self.status.unreadable;
        if times < self.policy.stuck_after {
            return;
        }
        let text = format!(
            "{times} attempts in a row could not read checkpoints, the last one because: {why}; \
             look at the storage behind the job's claim. It is tried again with longer and longer \
             pauses, and goes on by itself once they can be read"
        );
        self.stuck(CHECKPOINT_UNAVAILABLE, &text);
    }

    fn stuck(&mut self, reason: &str, text: &str) {
        if !self.status.is(Stuck) {
            self.warn("Stuck", text.to_owned());
        }
        self.set(Stuck, true, reason, text);
    }

    /// Returns true if nothing keeps the job from training any more, now that every rank runs.
    /// Programs that cannot read a checkpoint run for a moment, too: they say so, or save the next
    /// one.
    pub(super) fn is_past_stuck(&self) -> bool {
        let stuck = self.status.conditions.get(&Stuck);
        let waits = self.status.unreadable > 0
            && stuck.is_some_and(|stuck| stuck.reason == CHECKPOINT_UNAVAILABLE);
        let saved = || {
            let report = self.view.report;
            report.is_some_and(|report| report.attempt == self.status.attempt)
        };
        !waits || saved()
    }

    /// The attempt is void; the next one starts at `retry_at`.
    fn void(&mut self, reason: &str, message: &str) {
        self.learn_saved();
        self.status.phase = JobPhase::Restarting;
        self.status.unreadable = 0;
        self.status.promise = None;
        self.status.ready = 0;
        self.status.zones = Vec::new();
        self.close(reason);
        self.set(Running, false, "Restarting", message);
        self.set(Assigned, false, "Restarting", message);
    }

    fn end(&mut self, phase: JobPhase, reason: &str, message: &str) {
        self.learn_saved();
        self.status.phase = phase;
        self.status.ready = 0;
        self.status.finished_at = Some(self.now);
        self.status.retry_at = None;
        self.status.promise = None;
        self.close(reason);
        if self.status.is(Stuck) {
            self.set(Stuck, false, reason, "The job ended");
        }
        self.set(Running, false, reason, message);
        self.set(
            Assigned,
            false,
            reason,
            "The job ended and released its nodes",
        );
    }
}

/// What happened, in one sentence.
fn describe(node: &NodeName, exit: &Exit) -> String {
    let who = exit
        .rank
        .map_or_else(|| "the trainer".to_owned(), |rank| format!("rank {rank}"));
    let how = match (exit.signal, exit.code) {
        (Some(signal), _) => format!("was killed by signal {signal}"),
        (None, Some(code)) => format!("failed with exit code {code}"),
        (None, None) => "failed".to_owned(),
    };
    let why = exit
        .reason
        .as_ref()
        .map_or_else(String::new, |reason| format!(" ({reason})"));
    let cause = match &exit.cause {
        Some(
            ProgramCause::CheckpointUnavailable(text) | ProgramCause::NoUsableCheckpoint(text),
        ) => {
            format!(": {text}")
        }
        None => String::new(),
    };
    format!("{who} on node {node} {how}{why}{cause}")
}
