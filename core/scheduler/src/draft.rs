//! A job's plan in the making, and what each transition writes into its status: here getting nodes,
//! waiting for them and starting. Leaves deciding when a transition happens to `lifecycle` and `assign`.

mod checkpoint;
mod ending;
mod interruption;

use crate::assign::Placement;
use crate::capacity::noun;
use crate::filter::Waiting;
use crate::ledger::JobView;
use crate::plan::{Action, Event, NewAttempt, Place};
use crate::policy::Policy;
use crate::snapshot::Job;
use crate::status::{ConditionKind, Phase, Status};
use crate::time::Timestamp;

use ConditionKind::{Assigned, CheckpointDurable, Running};

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
        let zones = zones(&places);
        if !self.job.finalizer {
            self.actions.push(Action::AddFinalizer);
        }
        let count = places.len();
        let place = zones
            .as_deref()
            .map_or_else(String::new, |zones| format!(" in {zones}"));
        let text = format!("{count} {}{place}", noun(count));
        self.status.phase = Phase::Assigned;
        self.status.attempt = number;
        self.status.retry_at = None;
        self.status.membership = None;
        self.status.zone = zones;
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
                finalizer: self.job.may_acknowledge(rank),
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
            // It was recorded that the attempt gets nodes, and it got none: back to where it was.
            self.status.phase = match self.status.attempt {
                1 => Phase::Queued,
                _ => Phase::Restarting,
            };
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
        self.tell_lost();
        // The first one is a transition; later ones wait for the next transition.
        if !self.status.is(CheckpointDurable) {
            self.learn_report();
        }
    }

    pub(crate) fn set(&mut self, kind: ConditionKind, holds: bool, reason: &str, message: &str) {
        self.status.set(kind, holds, reason, message, self.now);
    }

    fn tell(&mut self, reason: &'static str, message: String) {
        self.event = Some(Event {
            warning: false,
            reason,
            message,
        });
    }

    pub(crate) fn warn(&mut self, reason: &'static str, message: String) {
        self.event = Some(Event {
            warning: true,
            reason,
            message,
        });
    }
}

/// `a`, or `a+b`: what the status and people see. None where nodes have no zone.
fn zones(places: &[Place]) -> Option<String> {
    let mut names: Vec<&str> = places.iter().map(|place| place.zone.as_str()).collect();
    names.dedup();
    let text = names.join("+");
    (!text.is_empty()).then_some(text)
}
