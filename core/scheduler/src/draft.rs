//! A job's plan in the making, and what each transition writes into its status. Leaves deciding when
//! a transition happens to `lifecycle` and `assign`.

use topology::NodeName;

use crate::assign::Placement;
use crate::capacity::noun;
use crate::filter::Waiting;
use crate::ledger::JobView;
use crate::plan::{Action, Event, NewAttempt, Place};
use crate::policy::Policy;
use crate::snapshot::{Exit, Job};
use crate::status::{Checkpoint, ConditionKind, Failure, Phase, Status};
use crate::time::Timestamp;

use ConditionKind::{Assigned, CheckpointDurable, Complete, Failed, Running, Suspended};

/// Reason of CheckpointDurable when the job acknowledged the checkpoint at the end of an attempt:
/// nothing newer can exist, so the next attempt is pinned to it.
const ACKNOWLEDGED: &str = "Acknowledged";

/// A job's plan in the making.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) job: &'a Job,
    pub(crate) view: &'a JobView<'a>,
    /// The status as it will be.
    pub(crate) status: Status,
    /// The status as the actions so far record it.
    recorded: Status,
    event: Option<Event>,
    pub(crate) actions: Vec<Action>,
    /// Number of the attempt for which it wants nodes.
    pub(crate) want: Option<u32>,
    policy: &'a Policy,
    pub(crate) now: Timestamp,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(
        job: &'a Job,
        view: &'a JobView<'a>,
        policy: &'a Policy,
        now: Timestamp,
    ) -> Self {
        Self {
            job,
            view,
            status: job.status.clone(),
            recorded: job.status.clone(),
            event: None,
            actions: Vec::new(),
            want: None,
            policy,
            now,
        }
    }

    /// Records the status if it changed since it was last recorded.
    pub(crate) fn record(&mut self) {
        if self.status == self.recorded {
            return;
        }
        self.recorded = self.status.clone();
        let status = Box::new(self.status.clone());
        self.actions.push(Action::Record {
            status,
            event: self.event.take(),
        });
    }

    /// Gets nodes: records the attempt, then creates what decides it, then its pods.
    pub(crate) fn start(&mut self, placement: Placement) {
        let Some(number) = self.want.take() else {
            return;
        };
        let Placement { places, crossing } = placement;
        let resume = self.resume_point(number);
        let zone = zones(&places);
        if !self.job.finalizer {
            self.actions.push(Action::AddFinalizer);
        }
        let count = places.len();
        let text = format!("{count} {} in {zone}", noun(count));
        self.status.phase = Phase::Assigned;
        self.status.attempt = number;
        self.status.retry_at = None;
        self.status.zone = Some(zone);
        self.set(Assigned, true, "Placed", &text);
        self.set(Running, false, "Joining", "Waiting for the gang to join");
        self.tell("Assigned", format!("Attempt {number} got {text}"));
        self.record();
        let pods: Vec<_> = (0..)
            .zip(&places)
            .map(|(rank, place)| (rank, place.node.clone()))
            .collect();
        let attempt = NewAttempt {
            number,
            nodes: places,
            crossing,
            resume,
        };
        self.actions.push(Action::CreateAttempt(attempt));
        self.actions.push(Action::CreateKey { attempt: number });
        for (rank, node) in pods {
            self.actions.push(Action::CreatePod {
                attempt: number,
                rank,
                node,
            });
        }
        self.status.phase = Phase::Starting;
    }

    /// Gets no nodes now.
    pub(crate) fn wait(&mut self, waiting: Waiting) {
        let Waiting {
            reason,
            message,
            warning,
            ..
        } = waiting;
        if self.status.phase == Phase::Assigned {
            self.status.phase = Phase::Queued;
            self.status.zone = None;
        }
        let old = self.status.conditions.get(&Assigned);
        if old.is_none_or(|old| old.reason != reason) {
            self.event = Some(Event {
                warning,
                reason,
                message: message.clone(),
            });
        }
        self.set(Assigned, false, reason, &message);
    }

    pub(crate) fn joining(&mut self, reason: &'static str, message: &str) {
        if self.status.phase == Phase::Assigned {
            self.status.phase = Phase::Starting;
        }
        let old = self.status.conditions.get(&Running);
        if reason != "Joining" && old.is_none_or(|old| old.reason != reason) {
            self.warn(reason, message.to_owned());
        }
        self.set(Running, false, reason, message);
    }

    pub(crate) fn up(&mut self) {
        if self.status.phase != Phase::Running {
            self.status.phase = Phase::Running;
            self.status.ready = self.job.nodes;
            self.status.replans = 0;
            self.set(Running, true, "AllRanksRun", "Every rank trains");
            self.tell("Running", "Every rank trains".to_owned());
        }
        // The first one is a transition; later ones wait for the next transition.
        if !self.status.is(CheckpointDurable) {
            self.learn_report();
        }
    }

    pub(crate) fn succeed(&mut self) {
        self.learn_report();
        self.end(Phase::Succeeded, "Succeeded", "Every rank ended well");
        self.set(Complete, true, "Succeeded", "Every rank ended well");
        self.tell("Succeeded", "Every rank ended well".to_owned());
    }

    /// The attempt ended by no fault of the program: plan again, charge nothing.
    pub(crate) fn lost(&mut self, node: Option<NodeName>, message: String) {
        self.back_off();
        self.void(&message);
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
        if self.status.restarts < allowed {
            self.status.restarts += 1;
            let backoff = self.policy.failure_backoff;
            self.status.retry_at = Some(backoff.after(self.now, self.status.restarts));
            self.void(&message);
            let nth = self.status.restarts;
            self.warn(
                "Restarting",
                format!("{message}; restart {nth} of {allowed}"),
            );
        } else {
            let text = format!("{message}; all {allowed} restarts are used up");
            self.learn_report();
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

    /// Asks the gang to save and release.
    pub(crate) fn interrupt(&mut self, reason: &'static str, why: &str) {
        self.status.phase = Phase::Interrupting;
        self.status.ready = 0;
        let message = format!("Saving and releasing: {why}");
        self.set(Running, false, reason, &message);
        self.tell("Interrupting", message);
    }

    /// The gang has left after an interruption.
    pub(crate) fn left(&mut self, ack: Option<Checkpoint>) {
        match ack.filter(|ack| ack.attempt <= self.status.attempt) {
            Some(ack) => {
                let text = format!("Step {} was acknowledged at the interruption", ack.step);
                self.learn(ack, ACKNOWLEDGED, &text);
            }
            None => self.learn_report(),
        }
        if self.job.suspend {
            self.suspended();
        } else {
            self.status.phase = Phase::Restarting;
            self.status.zone = None;
            self.set(
                Running,
                false,
                "Interrupted",
                "The gang saved and released its nodes",
            );
            self.set(
                Assigned,
                false,
                "Interrupted",
                "Waiting for nodes elsewhere",
            );
            self.tell(
                "Released",
                "The gang released its nodes, to go on elsewhere".to_owned(),
            );
        }
    }

    /// Holds nothing because its spec says so.
    pub(crate) fn suspended(&mut self) {
        self.status.phase = Phase::Suspended;
        self.status.ready = 0;
        self.status.zone = None;
        self.status.retry_at = None;
        for kind in [Assigned, Running] {
            self.set(kind, false, "Suspended", "spec.suspend is true");
        }
        self.set(
            Suspended,
            true,
            "Suspended",
            "spec.suspend is true; the job holds no nodes",
        );
        self.tell("Suspended", "The job holds no nodes".to_owned());
    }

    /// Wants nodes again after it was suspended.
    pub(crate) fn resumed(&mut self) {
        self.status.phase = Phase::Queued;
        self.set(Suspended, false, "Resumed", "spec.suspend is false");
        self.tell("Resumed", "The job waits for nodes again".to_owned());
    }

    /// Lengthens the back-off that charges nothing.
    pub(crate) fn back_off(&mut self) {
        self.status.replans = self.status.replans.saturating_add(1);
        let backoff = self.policy.replan_backoff;
        self.status.retry_at = Some(backoff.after(self.now, self.status.replans));
    }

    /// The attempt is void; the next one starts at `retry_at`.
    fn void(&mut self, message: &str) {
        self.learn_report();
        self.status.phase = Phase::Restarting;
        self.status.ready = 0;
        self.status.zone = None;
        self.set(Running, false, "Restarting", message);
        self.set(Assigned, false, "Restarting", message);
    }

    fn end(&mut self, phase: Phase, reason: &str, message: &str) {
        self.status.phase = phase;
        self.status.ready = 0;
        self.status.finished_at = Some(self.now);
        self.status.retry_at = None;
        self.set(Running, false, reason, message);
        self.set(
            Assigned,
            false,
            reason,
            "The job ended and released its nodes",
        );
    }

    /// Takes over what the gang reported, if it is news.
    fn learn_report(&mut self) {
        let attempt = self.status.attempt;
        if let Some(report) = self.view.report.filter(|report| report.attempt <= attempt) {
            let text = format!(
                "Step {} of attempt {} is durable",
                report.step, report.attempt
            );
            self.learn(report.clone(), "Reported", &text);
        }
    }

    fn learn(&mut self, checkpoint: Checkpoint, reason: &str, message: &str) {
        let order = |checkpoint: &Checkpoint| (checkpoint.attempt, checkpoint.step);
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
    /// last checkpoint. Otherwise a newer one may exist than was reported.
    fn resume_point(&self, number: u32) -> Option<Checkpoint> {
        let condition = self.status.conditions.get(&CheckpointDurable)?;
        let last = self.status.last_checkpoint.as_ref()?;
        let certain = condition.reason == ACKNOWLEDGED && last.attempt + 1 == number;
        certain.then(|| last.clone())
    }

    fn set(&mut self, kind: ConditionKind, holds: bool, reason: &str, message: &str) {
        self.status.set(kind, holds, reason, message, self.now);
    }

    fn tell(&mut self, reason: &'static str, message: String) {
        self.event = Some(Event {
            warning: false,
            reason,
            message,
        });
    }

    fn warn(&mut self, reason: &'static str, message: String) {
        self.event = Some(Event {
            warning: true,
            reason,
            message,
        });
    }
}

/// `zone a`, or `zones a+b`: what the status and people see.
fn zones(places: &[Place]) -> String {
    let mut names: Vec<&str> = places.iter().map(|place| place.zone.as_str()).collect();
    names.dedup();
    names.join("+")
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
    format!("{who} on node {node} {how}{why}")
}
