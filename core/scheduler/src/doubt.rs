//! Attempts whose ConfigMap decides nothing by itself: it is not proved to be the operator's, or
//! this version cannot read it. Neither ends a gang that trains: its pods say where it is.

use crate::avoid::EndCause;
use crate::gang::Wake;
use crate::job_planner::JobPlanner;
use crate::ledger::Ledger;
use crate::snapshot::{Doubt, PodState};
use crate::status::ConditionKind::{AssignmentUnproved, Running};

/// What a job says whose attempt this version cannot read.
const UNREADABLE: &str = "Another release of the operator wrote the attempt's assignment, in a version that this one \
     does not read: its pods are left alone until that release runs again, or the job is suspended";
/// What a job says whose attempt is not proved.
const UNPROVED: &str = "No valid proof says that the operator wrote the attempt's ConfigMap: its pods are left alone, and the \
     next attempt is proved. Nothing has to be done after an upgrade from a release without proofs; after a loss of the Secret \
     fireflyer-master restore it, or suspend and resume the job to start from its last checkpoint";

impl<'a> JobPlanner<'a> {
    /// Holds nodes that only its pods name. What they do ends the attempt; what they lack does not.
    pub(crate) fn hold_in_doubt(&mut self, ledger: &Ledger<'a>, wake: &mut Wake) {
        let number = self.status.attempt;
        let doubt = self.view.doubts.get(&number).copied();
        if self.job.suspend {
            self.interrupt("Suspended", "spec.suspend is true");
            self.leave(ledger, wake);
            return;
        }
        let trains = |state: &PodState| *state == PodState::Running;
        let trains = self.view.gang(number).any(|pod| trains(&pod.state));
        if doubt == Some(Doubt::Unreadable) || trains {
            return;
        }
        let message = "the attempt's ConfigMap has no valid proof, and nobody trains in it";
        self.lost(None, EndCause::Other, message.to_owned(), ledger);
    }

    /// Its missing pods are for an operator to create that can read what they are to do. Until then
    /// the phase stays: in a later one a missing pod is one that vanished.
    pub(crate) fn report_unreadable(&mut self) {
        self.set(Running, false, "AssignmentUnreadable", UNREADABLE);
    }

    /// Says in a condition that the attempt which holds nodes is not proved.
    pub(crate) fn report_doubt(&mut self) {
        let doubt = self.view.doubts.get(&self.status.attempt);
        let unproved = doubt == Some(&Doubt::Unproved) && self.status.phase.holds_nodes();
        if unproved {
            self.set(AssignmentUnproved, true, "NoValidProof", UNPROVED);
        } else if self.status.is(AssignmentUnproved) {
            let text = "No attempt without a valid proof holds nodes";
            self.set(AssignmentUnproved, false, "Proved", text);
        }
    }
}
