//! A job's plan in the making, and what each transition writes into its status: here getting nodes,
//! waiting for them and starting. Leaves deciding when a transition happens to `lifecycle` and
//! `assign`.

mod checkpoint;
mod ending;
mod interruption;
mod place;

use crate::assign::Placement;
use crate::capacity::noun;
use crate::filter::Waiting;
use crate::ledger::JobView;
use crate::plan::{Action, JobEvent, NewAttempt, PlacedNode, Stalled};
use crate::policy::Policy;
use crate::snapshot::{Job, Pod};
use crate::status::{AttemptRecord, ConditionKind, JobPhase, JobStatus};
use crate::time::Timestamp;

use topology::Zone;

use ConditionKind::{Assigned, CheckpointDurable, Running, Stuck};

/// A job's plan in the making.
#[derive(Debug)]
pub(crate) struct JobPlanner<'a> {
    pub(crate) job: &'a Job,
    pub(crate) view: &'a JobView<'a>,
    /// The status as it will be.
    pub(crate) status: JobStatus,
    /// The status as the actions so far record it.
    recorded: JobStatus,
    event: Option<JobEvent>,
    pub(crate) actions: Vec<Action>,
    /// Number of the attempt for which it wants nodes.
    pub(crate) want: Option<u32>,
    /// Set while its gang makes no progress and its ranks are to say where they are.
    pub(crate) stalled: Option<Stalled>,
    policy: &'a Policy,
    pub(crate) now: Timestamp,
}

impl<'a> JobPlanner<'a> {
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
            stalled: None,
            policy,
            now,
        }
    }

    /// Records the status if it changed since it was last recorded.
    pub(crate) fn record(&mut self) {
        if self.status == self.recorded {
            return;
        }
        if let (None, Some(procs)) = (&self.status.class, self.job.procs_per_node) {
            self.status.class = Some((self.job.class.clone(), procs));
        }
        self.recorded = self.status.clone();
        let status = Box::new(self.status.clone());
        self.actions.push(Action::Record {
            status,
            event: self.event.take(),
        });
    }

    /// Says that the spec as it is now was taken note of, when nothing else is to be recorded.
    pub(crate) fn take_note(&mut self) {
        let is_recorded = |action: &Action| matches!(action, Action::Record { .. });
        if !self.job.observed && !self.actions.iter().any(is_recorded) {
            let status = Box::new(self.status.clone());
            self.actions.push(Action::Record {
                status,
                event: None,
            });
        }
    }

    /// Gets nodes: records the attempt, then creates what decides it, then its pods.
    pub(crate) fn start(&mut self, placement: Placement) {
        let Some(number) = self.want.take() else {
            return;
        };
        let Placement { places, crossing } = placement;
        let resume = self.resume_point(number);
        let zones = zones(&places);
        if !crossing {
            self.status.no_zone_since = None;
        }
        if !self.job.finalizer {
            self.actions.push(Action::AddFinalizer);
        }
        let count = places.len();
        let names: Vec<&str> = zones.iter().map(Zone::as_str).collect();
        let place = match names.is_empty() {
            true => String::new(),
            false => format!(" in {}", names.join("+")),
        };
        let text = format!("{count} {}{place}", noun(count));
        // An earlier leader may have recorded the attempt without deciding it.
        let begun = self.status.newest.take();
        let begun = begun.filter(|record| record.attempt == number && record.ended.is_none());
        let is_news = begun.is_none() || self.status.zones != zones;
        self.status.phase = JobPhase::Assigned;
        self.status.attempt = number;
        self.status.retry_at = None;
        self.status.membership = None;
        self.status.completed = None;
        self.status.zones = zones;
        self.status.started_at.get_or_insert(self.now);
        self.status.newest = Some(AttemptRecord {
            attempt: number,
            nodes: u32::try_from(count).unwrap_or(u32::MAX),
            names: places
                .iter()
                .take(AttemptRecord::NAMES)
                .map(|place| place.node.clone())
                .collect(),
            since: begun.map_or(self.now, |record| record.since),
            ended: None,
        });
        self.forget_passed_over();
        self.set(Assigned, true, "Placed", &text);
        self.set(Running, false, "Joining", "Waiting for the gang to join");
        if is_news {
            self.emit("Assigned", format!("Attempt {number} got {text}"));
        }
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
        self.actions.extend(self.create_key(number));
        if self.job.hold.is_some() {
            return;
        }
        for (rank, node) in pods {
            self.actions.push(Action::CreatePod {
                attempt: number,
                rank,
                node,
                finalizer: self.job.may_acknowledge(rank),
            });
        }
        self.starts();
    }

    /// Creates the key by which the sidecars of an attempt know each other, where there are any.
    pub(crate) fn create_key(&self, attempt: u32) -> Option<Action> {
        let has_sidecars = self.job.pin.is_none();
        has_sidecars.then_some(Action::CreateKey { attempt })
    }

    /// Its pods exist: the promise is fulfilled, or not needed any more.
    fn starts(&mut self) {
        self.status.phase = JobPhase::Starting;
        self.status.promise = None;
    }

    /// Gets no nodes now.
    pub(crate) fn wait(&mut self, waiting: Waiting) {
        let Waiting {
            reason,
            message,
            warning,
            no_zone,
            ..
        } = waiting;
        let since = self.status.no_zone_since.unwrap_or(self.now);
        self.status.no_zone_since = no_zone.then_some(since);
        if self.status.phase == JobPhase::Assigned {
            // It was recorded that the attempt gets nodes, and it got none: back to where it was.
            self.status.phase = match self.status.attempt {
                1 => JobPhase::Queued,
                _ => JobPhase::Restarting,
            };
            self.status.zones = Vec::new();
            self.close(reason);
        }
        let old = self.status.conditions.get(&Assigned);
        if old.is_none_or(|old| old.reason != reason) {
            self.event = Some(JobEvent {
                warning,
                reason,
                message: message.clone(),
            });
        }
        self.set(Assigned, false, reason, &message);
    }

    /// Notes that the attempt has no nodes any more, and why in one word.
    fn close(&mut self, reason: &str) {
        let now = self.now;
        self.status.completed = None;
        if let Some(newest) = self
            .status
            .newest
            .as_mut()
            .filter(|newest| newest.ended.is_none())
        {
            newest.ended = Some((now, reason.to_owned()));
        }
    }

    pub(crate) fn joining(&mut self, reason: &'static str, message: &str) {
        if self.status.phase == JobPhase::Assigned {
            self.starts();
        }
        let old = self.status.conditions.get(&Running);
        if reason != "Joining" && old.is_none_or(|old| old.reason != reason) {
            self.warn(reason, message.to_owned());
        }
        self.set(Running, false, reason, message);
    }

    /// Waits for this pod to start. No Event: it is nothing that somebody has to look at.
    pub(crate) fn preparing(&mut self, pod: &Pod) {
        if self.status.phase == JobPhase::Assigned {
            self.starts();
        }
        let Pod { rank, node, .. } = pod;
        let at = pod.preparation.as_ref().map_or("", |at| at.at.as_str());
        let message = format!("Waiting for node rank {rank} on node {node}: {at}");
        self.set(Running, false, "Preparing", &message);
    }

    /// Has its nodes, and its pods are not to be created yet.
    pub(crate) fn held(&mut self) {
        let message = "Waiting for what its pods need to know";
        self.set(Running, false, "Held", message);
    }

    pub(crate) fn up(&mut self) {
        if self.status.phase != JobPhase::Running {
            self.status.phase = JobPhase::Running;
            self.status.ready = self.job.nodes;
            self.status.promise = None;
            self.status.replans = 0;
            self.status.refusals = 0;
            self.set(Running, true, "AllRanksRun", "Every rank trains");
            self.emit("Running", "Every rank trains".to_owned());
        }
        if self.status.is(Stuck) && self.is_past_stuck() {
            self.set(Stuck, false, "Runs", "The job runs");
        }
        self.report_lost();
        self.emit_passed_over();
        // The first one is a transition; later ones wait for the next transition.
        if !self.status.is(CheckpointDurable) {
            self.learn_report();
        }
    }

    pub(crate) fn set(&mut self, kind: ConditionKind, holds: bool, reason: &str, message: &str) {
        self.status.set(kind, holds, reason, message, self.now);
    }

    fn emit(&mut self, reason: &'static str, message: String) {
        self.event = Some(JobEvent {
            warning: false,
            reason,
            message,
        });
    }

    pub(crate) fn warn(&mut self, reason: &'static str, message: String) {
        self.event = Some(JobEvent {
            warning: true,
            reason,
            message,
        });
    }
}

/// The zones of an attempt. None where nodes have no zone.
fn zones(places: &[PlacedNode]) -> Vec<Zone> {
    let mut zones: Vec<Zone> = places.iter().map(|place| place.zone.clone()).collect();
    zones.dedup();
    zones.retain(|zone| !zone.as_str().is_empty());
    zones
}
