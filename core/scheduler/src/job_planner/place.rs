//! The place that is kept for a job while it has none: promised when it loses or leaves its nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
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
        let promise = attempt.and_then(|attempt| Promise::of_attempt(attempt, ledger, until));
        self.status.promise = promise.map(|promise| Promise {
            delayed_by: self.next_run(ledger),
            ..promise
        });
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
            delayed_by: self.next_run(ledger),
        });
    }

    /// The validation that is to have one of its nodes when it has left them.
    fn next_run(&self, ledger: &Ledger<'a>) -> Option<Arc<str>> {
        let nodes = &self.view.holding()?.nodes;
        let next = ledger.states().next_runs();
        nodes.iter().find_map(|node| next.expects(node)).cloned()
    }

    /// It waits for its place, which stays promised as long as a validation has one of its nodes:
    /// nothing else would be left of it by then. Each of them ends by itself, has a deadline, or
    /// loses its node.
    pub(crate) fn review_promise(&mut self, ledger: &Ledger<'a>) {
        let Some(promise) = self.status.promised(self.now) else {
            self.status.promise = None;
            return;
        };
        let attempt = self.view.attempts.get(&promise.attempt);
        let nodes = attempt.map_or(&[][..], |attempt| attempt.nodes.as_slice());
        let runs = nodes.iter().filter_map(|node| ledger.run_at(node));
        // The one that is recorded, as long as it lasts.
        let is_other = |run: &&Arc<str>| Some(*run) != promise.delayed_by.as_ref();
        let run = runs.min_by_key(|run| (is_other(run), *run)).cloned();
        if run == promise.delayed_by {
            return;
        }
        if run.is_none() {
            self.place_is_due();
        }
        if let Some(promise) = &mut self.status.promise {
            promise.delayed_by = run;
        }
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
