//! Leaving on request: saving, releasing, staying suspended, coming back.

use super::JobPlanner;
use crate::status::ConditionKind::{Assigned, Running, Suspended};
use crate::status::JobPhase;

impl JobPlanner<'_> {
    /// Asks the gang to save and release.
    pub(crate) fn interrupt(&mut self, reason: &'static str, why: &str) {
        self.status.phase = JobPhase::Interrupting;
        self.status.ready = 0;
        // Before its pods existed it may still have had one for the attempt before.
        self.status.promise = None;
        let message = format!("Saving and releasing: {why}");
        self.set(Running, false, reason, &message);
        self.emit("Interrupting", message);
    }

    /// The gang has left after an interruption.
    pub(crate) fn left(&mut self) {
        self.learn_saved();
        self.status.unreadable = 0;
        if self.job.suspend {
            self.suspended();
        } else {
            self.status.phase = JobPhase::Restarting;
            self.place_is_due();
            // It says why the gang was asked to leave.
            let asked = self.status.conditions.get(&Running);
            let why = asked.map_or_else(String::new, |asked| asked.reason.clone());
            self.status.zones = Vec::new();
            self.close(&why);
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
            self.emit(
                "Released",
                "The gang released its nodes, to go on elsewhere".to_owned(),
            );
        }
    }

    /// Holds nothing because its spec says so.
    pub(crate) fn suspended(&mut self) {
        self.status.phase = JobPhase::Suspended;
        self.status.ready = 0;
        self.status.zones = Vec::new();
        self.close("Suspended");
        self.status.retry_at = None;
        self.status.promise = None;
        for kind in [Assigned, Running] {
            self.set(kind, false, "Suspended", "spec.suspend is true");
        }
        self.set(
            Suspended,
            true,
            "Suspended",
            "spec.suspend is true; the job holds no nodes",
        );
        self.emit("Suspended", "The job holds no nodes".to_owned());
    }

    /// Wants nodes again after it was suspended.
    pub(crate) fn resumed(&mut self) {
        self.status.phase = JobPhase::Queued;
        self.set(Suspended, false, "Resumed", "spec.suspend is false");
        self.emit("Resumed", "The job waits for nodes again".to_owned());
        // A record carries one Event, and what follows in the same plan has its own.
        self.record();
    }
}
