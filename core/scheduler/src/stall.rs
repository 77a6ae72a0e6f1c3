//! Gangs that train and make no progress: how long each is waited for, when its ranks are asked
//! where they are, and when its attempt ends. All times are those of the planner's clock: a new
//! leader is patient anew.

use std::time::Duration;

use topology::SignKind;

use crate::gang::Wake;
use crate::job_planner::JobPlanner;
use crate::ledger::Ledger;
use crate::plan::Stalled;
use crate::snapshot::Attempt;
use crate::status::ConditionKind::ProgressUnknown;
use crate::status::JobPhase;
use crate::time::Timestamp;

/// The progress of a gang, as far as the rendezvous service knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GangProgress {
    /// The newest sign of progress; none before the first.
    pub newest: Option<ProgressSign>,
    /// The last step that was reported, if one was.
    pub step: Option<u64>,
    /// True if its members train together and the sidecar of each is heard: only then does silence
    /// about progress mean something.
    pub is_heard: bool,
    /// Set once the ranks were asked for their stacks, because that sign is so old.
    pub asked: Option<StacksAsked>,
}

/// A sign of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgressSign {
    /// When it was heard.
    pub at: Timestamp,
    /// Its kind.
    pub kind: SignKind,
}

/// The ranks of a gang were asked for their stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StacksAsked {
    /// When.
    pub at: Timestamp,
    /// Number of nodes on which they were: sidecars of older releases do not pass it on.
    pub nodes: u32,
    /// Number of nodes that take part.
    pub of: u32,
}

impl<'a> JobPlanner<'a> {
    /// Looks whether a gang that trains makes progress, if its job wants that. Ends the attempt
    /// when it has made none for too long and its ranks had time to say where they are.
    pub(crate) fn watch_progress(
        &mut self,
        attempt: &Attempt,
        ledger: &Ledger<'a>,
        wake: &mut Wake,
    ) {
        let Some(limit) = self.job.stall else {
            self.progress_is_known("NotWatched", "failurePolicy.stallSeconds is not set");
            return;
        };
        // What has just begun to train is looked at in the next pass, which knows since when.
        if self.job.status.phase != JobPhase::Running {
            return;
        }
        let Some(progress) = ledger.progress(attempt) else {
            return;
        };
        let Some(newest) = progress.newest else {
            self.miss_signs(limit, progress, wake);
            return;
        };
        self.progress_is_known("Reported", "The attempt has given a sign of progress");
        let due = newest.at.max(self.job.seen) + limit;
        if self.now < due {
            wake.at(due);
            return;
        }
        if !progress.is_heard {
            return;
        }
        let silence = silence(progress, newest, self.now);
        let Some(asked) = progress.asked else {
            self.stalled = Some(Stalled {
                job: attempt.job.clone(),
                attempt: attempt.number,
                since: newest.at,
                message: silence,
            });
            return;
        };
        if ledger.is_over_for_pods(asked.at + ledger.policy().stack_patience, wake) {
            let stacks = stacks(asked);
            self.stall(format!("{silence}; {stacks}"), ledger);
        }
    }

    /// No sign yet: such an attempt is never ended, and somebody should know.
    fn miss_signs(&mut self, limit: Duration, progress: &GangProgress, wake: &mut Wake) {
        let due = self.job.seen + limit;
        if self.now < due {
            wake.at(due);
            return;
        }
        if !progress.is_heard || self.status.is(ProgressUnknown) {
            return;
        }
        let message = format!(
            "The attempt has trained for {} s, finished no collective of HFReduce and reported no \
             step, so failurePolicy.stallSeconds ends nothing: report steps with \
             fireflyer.Checkpoint, or write them to progress.json in the run directory",
            limit.as_secs()
        );
        self.set(ProgressUnknown, true, "NoSign", &message);
        self.warn("ProgressUnknown", message);
    }

    fn progress_is_known(&mut self, reason: &str, message: &str) {
        if self.status.is(ProgressUnknown) {
            self.set(ProgressUnknown, false, reason, message);
        }
    }
}

/// Says how long nothing has moved, and what moved last.
fn silence(progress: &GangProgress, newest: ProgressSign, now: Timestamp) -> String {
    let millis = now.as_millis().saturating_sub(newest.at.as_millis());
    let last = match (newest.kind, progress.step) {
        (SignKind::Step, Some(step)) => format!("step {step}"),
        (SignKind::Step, None) => "a step".to_owned(),
        (SignKind::Operation, Some(step)) => {
            format!("a collective that was finished; the last step reported is {step}")
        }
        (SignKind::Operation, None) => "a collective that was finished".to_owned(),
    };
    format!(
        "no progress for {} s: the last sign of it was {last}",
        millis / 1000
    )
}

/// Says where the ranks' stacks are.
fn stacks(asked: StacksAsked) -> String {
    let StacksAsked { at: _, nodes, of } = asked;
    match nodes {
        0 => "its sidecars are of an older release and pass no request for stacks on".to_owned(),
        some if some < of => {
            format!("the ranks of {some} of {of} nodes were asked to print their stacks")
        }
        _ => "its ranks were asked to print their stacks: see the logs of its pods".to_owned(),
    }
}
