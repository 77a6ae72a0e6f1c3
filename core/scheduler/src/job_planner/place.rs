//! The place that is kept for a job while it has none: promised when it loses or leaves its nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::assign::Placement;
use crate::job_planner::JobPlanner;
use crate::ledger::Ledger;
use crate::promise::Promise;
use crate::time::Timestamp;

impl<'a> JobPlanner<'a> {
    /// Its attempt is over: its nodes stay promised until it can take them again, and a little
    /// longer. Also after a failure of the program, because nobody else should lose hours of
    /// queueing to a restart of seconds; but not over a long back-off, in which they would only be
    /// idle.
    pub(super) fn keep_place(&mut self, ledger: &Ledger<'a>) {
        let policy = ledger.policy();
        let again = self.status.retry_at.unwrap_or(self.now);
        let out = self.now + self.job.exit + policy.exit_margin + policy.leave_patience;
        let attempt = self.view.holding();
        self.status.promise = attempt
            .filter(|_| again <= self.now + policy.promise_pause)
            .and_then(|attempt| Promise::of_attempt(attempt, ledger, self.until(again.max(out))));
    }

    /// It is asked to leave, and comes back to where it was, as far as its nodes are good.
    pub(crate) fn keep_place_while_it_leaves(&mut self, ledger: &Ledger<'a>) {
        let until = self.leaves_until(ledger);
        let attempt = self.view.holding();
        self.status.promise =
            attempt.and_then(|attempt| Promise::of_attempt(attempt, ledger, until));
    }

    /// It is asked to leave, and goes there.
    pub(crate) fn keep_other_place(&mut self, placement: &Placement, ledger: &Ledger<'a>) {
        let mut zones = BTreeMap::new();
        for place in &placement.places {
            *zones.entry(place.zone.clone()).or_default() += 1;
        }
        self.status.promise = Some(Promise {
            attempt: self.status.attempt,
            zones,
            until: self.leaves_until(ledger),
        });
    }

    /// It has left: from now on it can take the place.
    pub(super) fn place_is_due(&mut self) {
        let until = self.until(self.status.retry_at.unwrap_or(self.now));
        if let Some(promise) = &mut self.status.promise {
            promise.until = until;
        }
    }

    fn leaves_until(&self, ledger: &Ledger<'a>) -> Timestamp {
        let longest: Duration = self.job.grace + ledger.policy().leave_patience;
        self.until(self.now + longest)
    }

    fn until(&self, due: Timestamp) -> Timestamp {
        due.max(self.now) + self.policy.promise
    }
}
