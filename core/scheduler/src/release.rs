//! Removes what attempts left behind: pods, finalizers, ConfigMaps, finished jobs. Everything here
//! follows from the status alone, so it is the same after a crash.

use std::collections::BTreeSet;

use crate::gang::Wake;
use crate::job_planner::JobPlanner;
use crate::ledger::{JobView, Ledger};
use crate::plan::Action;
use crate::policy::Policy;
use crate::snapshot::{DryRun, Pod};
use crate::time::Timestamp;

impl<'a> JobPlanner<'a> {
    /// Removes what void attempts left. Objects of a newer attempt than the status knows are left
    /// alone: then the status is what is out of date.
    pub(crate) fn sweep(&mut self, ledger: &Ledger<'a>, wake: &mut Wake) {
        // Nodes just chosen belong to the attempt that is about to be recorded.
        let current = self.status.attempt;
        let phase = self.status.phase;
        let known = self.job.status.attempt;
        // Adjacent actions of a kind are written together, so all deletions come first.
        let mut strips = Vec::new();
        for pod in self.view.pods.values().filter(|pod| pod.attempt <= known) {
            let is_current = pod.attempt == current;
            let Pod { attempt, rank, .. } = **pod;
            let holds = is_current && phase.holds_nodes();
            if holds && !self.has_no_more_to_say(pod) {
                continue;
            }
            let kept_for_its_log = is_current && self.is_kept(pod, ledger, wake);
            if pod.delete_by.is_none() && !kept_for_its_log {
                let grace = self.job.exit + ledger.policy().exit_margin;
                self.actions.push(Action::DeletePod {
                    attempt,
                    rank,
                    grace,
                });
            }
            if pod.finalizer {
                strips.push(Action::StripPod { attempt, rank });
            }
        }
        self.actions.extend(strips);
        // It names the nodes that are promised.
        let promised = self.status.promised(self.now);
        let promised = promised.map(|promise| promise.attempt);
        let void = |number: u32| match number == current {
            _ if Some(number) == promised => false,
            true => !phase.holds_nodes() && !phase.is_terminal(),
            false => number <= known,
        };
        let doubtful = self.view.doubts.keys();
        let mut attempts: BTreeSet<u32> =
            doubtful.chain(self.view.attempts.keys()).copied().collect();
        attempts.retain(|number| void(*number));
        let delete = |attempt| Action::DeleteAttempt { attempt };
        self.actions.extend(attempts.into_iter().map(delete));
    }

    /// Whether a pod of the attempt that holds nodes can go before it ends. Who is out may still
    /// run, on a node that was only unheard. One that has ended stays for people to read its log,
    /// unless they want it gone, and in any case if it acknowledged something: that is recorded
    /// when the attempt ends.
    fn has_no_more_to_say(&self, pod: &Pod) -> bool {
        let unwanted = pod.delete_by.is_some() && pod.acknowledged().is_none();
        self.view.is_lost_member(pod.attempt, pod.rank) && (!pod.has_ended() || unwanted)
    }

    /// Whether a pod of a job's last attempt stays for people to read its log. One that does not
    /// end with its trainer, because another container of the template runs on, holds its node and
    /// is waited for only so long.
    fn is_kept(&self, pod: &Pod, ledger: &Ledger<'a>, wake: &mut Wake) -> bool {
        if !self.status.phase.is_terminal() || !pod.has_ended() {
            return false;
        }
        let until = self.ended_since() + ledger.policy().leave_patience;
        let leaves = !pod.terminal && self.now < until;
        if leaves {
            wake.at(until);
        }
        pod.terminal || leaves
    }

    /// Takes the finalizer off a job that holds nothing, and ends its time to live.
    pub(crate) fn release_pods(&mut self, ledger: &Ledger<'a>, wake: &mut Wake) {
        if self.status.phase.holds_nodes() || !has_left(self.view, ledger) {
            return;
        }
        // It gets nodes as soon as the dry run of its first pod is answered.
        let is_next = self.want.is_some() && self.job.dry_run == DryRun::Unknown;
        if self.job.finalizer && !is_next {
            self.actions.push(Action::RemoveFinalizer);
        }
        let Some((finished, ttl)) = self.status.finished_at.zip(self.job.ttl) else {
            return;
        };
        if !self.status.phase.is_terminal() {
            return;
        }
        // The end was recorded by the clock of whoever led then, so ours must agree that time has
        // passed.
        let slack = ttl.min(ledger.policy().clock_slack);
        let due = (finished + ttl).max(self.ended_since() + slack);
        if due <= self.now {
            self.actions.push(Action::DeleteJob);
        } else {
            wake.at(due);
        }
    }

    /// Since when the planner knows that the job has ended.
    fn ended_since(&self) -> Timestamp {
        match self.job.status.phase.is_terminal() {
            true => self.job.seen,
            false => self.now,
        }
    }

    /// The job is being deleted: its pods may still save, then everything goes.
    pub(crate) fn tear_down(&mut self, ledger: &Ledger<'a>) {
        // A gang that is not seen to train may train by now. One that does not ends at once when it
        // is asked to.
        let grace = self.job.grace;
        for pod in self.view.pods.values() {
            let Pod { attempt, rank, .. } = **pod;
            if pod.delete_by.is_none() && !pod.terminal {
                self.actions.push(Action::DeletePod {
                    attempt,
                    rank,
                    grace,
                });
            }
        }
        self.actions.extend(strips(self.view));
        if self.job.finalizer && has_left(self.view, ledger) {
            self.actions.push(Action::RemoveFinalizer);
        }
    }
}

/// Pods whose job is gone: the garbage collector deletes them once our finalizer is off. Not those
/// that point to no owner any more, because the job was deleted with `--cascade=orphan`.
pub(crate) fn orphans(view: &JobView<'_>, policy: &Policy) -> Vec<Action> {
    let left = view.pods.values();
    let left = left.filter(|pod| pod.unowned && pod.delete_by.is_none());
    let deletions = left.map(|pod| Action::DeletePod {
        attempt: pod.attempt,
        rank: pod.rank,
        grace: policy.orphan_grace,
    });
    deletions.chain(strips(view)).collect()
}

/// Lets all pods of a job go.
fn strips(view: &JobView<'_>) -> impl Iterator<Item = Action> {
    let kept = view.pods.values().filter(|pod| pod.finalizer);
    kept.map(|pod| Action::StripPod {
        attempt: pod.attempt,
        rank: pod.rank,
    })
}

/// Whether nothing of the job runs on a node that could be given to others.
fn has_left(view: &JobView<'_>, ledger: &Ledger<'_>) -> bool {
    view.pods
        .values()
        .all(|pod| pod.terminal || ledger.is_lost(&pod.node))
}
