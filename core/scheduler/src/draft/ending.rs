//! How attempts and jobs end: well, by the program's fault, by nobody's.

use topology::NodeName;

use super::Draft;
use crate::snapshot::{Cause, Exit};
use crate::status::ConditionKind::{Assigned, Complete, Failed, Running};
use crate::status::{Failure, Phase};

impl Draft<'_> {
    pub(crate) fn succeed(&mut self) {
        self.end(Phase::Succeeded, "Succeeded", "Every rank ended well");
        self.set(Complete, true, "Succeeded", "Every rank ended well");
        self.tell("Succeeded", "Every rank ended well".to_owned());
    }

    /// The attempt ended by no fault of the program: plan again, charge nothing.
    pub(crate) fn lost(&mut self, node: Option<NodeName>, message: String) {
        self.back_off();
        self.void("Replanned", &message);
        self.warn("Replanning", message.clone());
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
    pub(crate) fn fail(&mut self, node: NodeName, exit: &Exit) {
        let message = describe(&node, exit);
        let allowed = self.job.max_restarts;
        if let Some(cause) = &exit.cause {
            self.could_not_resume(&message, cause);
        } else if self.status.restarts < allowed {
            self.status.restarts += 1;
            let backoff = self.policy.failure_backoff;
            self.status.retry_at = Some(backoff.after(self.now, self.status.restarts));
            self.void("Failed", &message);
            let nth = self.status.restarts;
            self.warn(
                "Restarting",
                format!("{message}; restart {nth} of {allowed}"),
            );
        } else {
            let text = format!("{message}; all {allowed} restarts are used up");
            self.end(Phase::Failed, "Failed", &message);
            self.set(Failed, true, "TooManyRestarts", &text);
            self.warn("Failed", text);
        }
        self.status.failure = Some(Failure {
            attempt: self.status.attempt,
            node: Some(node),
            rank: exit.rank,
            message,
            log: exit.log.clone(),
        });
    }

    /// Checkpoints exist, and the program could load none: it may try again later, or nothing will help. Without
    /// them it would train what it has trained already.
    fn could_not_resume(&mut self, message: &str, cause: &Cause) {
        let tried = self.status.unreadable;
        let (reason, text) = match cause {
            Cause::CheckpointUnavailable(why) if tried < self.policy.storage_attempts => {
                self.void("CheckpointUnavailable", message);
                self.status.unreadable = tried + 1;
                let backoff = self.policy.storage_backoff;
                self.status.retry_at = Some(backoff.after(self.now, self.status.unreadable));
                self.set(Running, false, "CheckpointUnavailable", why);
                self.warn("CheckpointUnavailable", why.clone());
                return;
            }
            Cause::CheckpointUnavailable(why) => (
                "CheckpointUnavailable",
                format!("{why}; tried {} times", tried + 1),
            ),
            Cause::NoUsableCheckpoint(why) => ("NoUsableCheckpoint", why.clone()),
        };
        self.end(Phase::Failed, reason, message);
        self.set(Failed, true, reason, &text);
        self.warn("Failed", text);
    }

    /// Lengthens the back-off that charges nothing.
    pub(crate) fn back_off(&mut self) {
        self.status.replans = self.status.replans.saturating_add(1);
        let backoff = self.policy.replan_backoff;
        self.status.retry_at = Some(backoff.after(self.now, self.status.replans));
    }

    /// The attempt is void; the next one starts at `retry_at`.
    fn void(&mut self, reason: &str, message: &str) {
        self.learn_saved();
        self.status.phase = Phase::Restarting;
        self.status.unreadable = 0;
        self.status.ready = 0;
        self.status.zones = Vec::new();
        self.close(reason);
        self.set(Running, false, "Restarting", message);
        self.set(Assigned, false, "Restarting", message);
    }

    fn end(&mut self, phase: Phase, reason: &str, message: &str) {
        self.learn_saved();
        self.status.phase = phase;
        self.status.ready = 0;
        self.status.finished_at = Some(self.now);
        self.status.retry_at = None;
        self.close(reason);
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
        Some(Cause::CheckpointUnavailable(text) | Cause::NoUsableCheckpoint(text)) => {
            format!(": {text}")
        }
        None => String::new(),
    };
    format!("{who} on node {node} {how}{why}{cause}")
}
