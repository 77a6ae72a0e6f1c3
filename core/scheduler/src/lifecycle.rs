//! One job's life: what follows from its phase, its spec and the state of its gang. Leaves the words
//! of each transition to `draft`, choosing nodes to `assign`, and removing what an ended attempt left
//! behind to `release`.
//!
//! Two rules make every step safe to repeat and safe against a deposed leader. A transition is
//! recorded before anything follows from it. And an attempt number that stopped holding nodes never
//! holds them again, so whatever belongs to it can be removed whenever it is seen.

use crate::draft::Draft;
use crate::gang::{Verdict, Wake, judge};
use crate::ledger::Ledger;
use crate::plan::Action;
use crate::snapshot::{Absent, Attempt, Pod, PodState};
use crate::status::Phase;

impl<'a> Draft<'a> {
    /// Moves the job on as far as what is seen allows.
    pub(crate) fn advance(&mut self, ledger: &Ledger<'a>, wake: &mut Wake) {
        match self.status.phase {
            Phase::Queued | Phase::Restarting | Phase::Suspended => self.idle(ledger, wake),
            Phase::Assigned | Phase::Starting | Phase::Running => self.hold(ledger, wake),
            Phase::Interrupting => self.leave(ledger, wake),
            Phase::Succeeded | Phase::Failed => {}
        }
    }

    /// Whether it trains, or is about to, on a node that somebody cordoned.
    pub(crate) fn is_on_cordoned_node(&self, ledger: &Ledger<'a>) -> bool {
        let settled = matches!(self.status.phase, Phase::Starting | Phase::Running);
        // Kubernetes taints a node that is not ready: that is a loss, and nobody's wish.
        let cordoned = |name| {
            let node = ledger.node(name);
            node.is_some_and(|node| node.cordoned && node.ready)
        };
        settled
            && self.actions.is_empty()
            && self.view.holding().is_some_and(|attempt| {
                let mut places = self.view.places(attempt);
                places.any(|(_, node)| cordoned(node))
            })
    }

    /// Whether it is leaving its nodes to go elsewhere.
    pub(crate) fn is_moving(&self) -> bool {
        self.status.phase == Phase::Interrupting && !self.job.suspend
    }

    /// Leaves a cordoned node, because there is a place elsewhere.
    pub(crate) fn move_away(&mut self, ledger: &Ledger<'a>, wake: &mut Wake) {
        self.interrupt(
            "NodeCordoned",
            "a node of it is cordoned, and there is room elsewhere",
        );
        self.leave(ledger, wake);
    }

    /// Holds no nodes.
    fn idle(&mut self, ledger: &Ledger<'a>, wake: &mut Wake) {
        let mut left = true;
        for pod in self.view.pods.values().filter(|pod| !ledger.is_out(pod)) {
            left = false;
            if let Some(when) = ledger.gives_up_at(pod) {
                ledger.is_over_for_pods(when, wake);
            }
        }
        if self.job.suspend {
            if left && self.status.phase != Phase::Suspended {
                self.suspended();
            }
            return;
        }
        if self.status.phase == Phase::Suspended {
            self.resumed();
        }
        if let Some(when) = self.status.retry_at.filter(|when| *when > self.now) {
            wake.at(when);
        } else if left {
            self.want = Some(self.status.attempt + 1);
        }
    }

    /// Holds nodes.
    fn hold(&mut self, ledger: &Ledger<'a>, wake: &mut Wake) {
        let Some(attempt) = self.view.holding() else {
            if self.view.doubts.contains_key(&self.status.attempt) {
                self.hold_in_doubt(ledger, wake);
                return;
            }
            let fresh = self.status.phase == Phase::Assigned
                && self.view.gang(self.status.attempt).next().is_none();
            let gone = Absent::Attempt {
                job: self.job.key.clone(),
                number: self.status.attempt,
            };
            if !fresh && !ledger.is_absent(&gone) {
                return;
            }
            if !fresh {
                self.lost(None, "the attempt's ConfigMap was deleted".to_owned());
            } else if self.job.suspend {
                self.suspended();
            } else {
                // Recorded, but its nodes were not: they are chosen now.
                self.want = Some(self.status.attempt);
            }
            return;
        };
        if attempt.nodes.len() != self.job.nodes as usize {
            self.lost(
                None,
                "the attempt's ConfigMap has the wrong number of nodes".to_owned(),
            );
            return;
        }
        match judge(self.view, attempt, self.status.phase, ledger, wake) {
            Verdict::Done => self.succeed(),
            Verdict::Lost { node, message } => self.lost(node.cloned(), message),
            Verdict::Failed { node, exit } => self.fail(node.clone(), exit),
            _ if self.job.suspend => {
                self.interrupt("Suspended", "spec.suspend is true");
                self.leave(ledger, wake);
            }
            Verdict::Leaving { node } => {
                self.back_off();
                self.interrupt(
                    "PodDeleted",
                    &format!("the pod on node {node} was asked to leave"),
                );
                self.leave(ledger, wake);
            }
            Verdict::Blocked(problem) => self.joining(problem.reason, &problem.message),
            Verdict::Joining if self.status.phase == Phase::Running => {}
            Verdict::Joining => self.joining("Joining", "Waiting for the gang to join"),
            Verdict::Incomplete(ranks) => self.complete(attempt, ranks, ledger),
            Verdict::Up => self.up(),
        }
    }

    /// Creates the pods that are missing, if their nodes can still take them.
    fn complete(&mut self, attempt: &Attempt, ranks: Vec<u32>, ledger: &Ledger<'a>) {
        if let Some(problem) = &self.job.problem {
            // Its pods are refused everywhere, so it must not keep nodes from others.
            self.lost(None, problem.message.clone());
            return;
        }
        if self.view.doubts.contains_key(&attempt.number) {
            self.tell_unreadable();
            return;
        }
        let mut writes = vec![Action::CreateKey {
            attempt: attempt.number,
        }];
        for (rank, name) in (0..)
            .zip(&attempt.nodes)
            .filter(|(rank, _)| ranks.contains(rank))
        {
            if !ledger.can_take_pod(name) {
                self.lost(
                    Some(name.clone()),
                    format!("node {name} can take no pod any more"),
                );
                return;
            }
            writes.push(Action::CreatePod {
                attempt: attempt.number,
                rank,
                node: name.clone(),
                finalizer: self.job.may_acknowledge(rank),
            });
        }
        self.actions.extend(writes);
        self.joining("Joining", "Waiting for the gang to join");
    }

    /// Saves and releases.
    pub(crate) fn leave(&mut self, ledger: &Ledger<'a>, wake: &mut Wake) {
        let gang: Vec<&Pod> = self.view.gang(self.status.attempt).collect();
        if self.view.has_ended_well(self.status.attempt) {
            self.succeed();
            return;
        }
        if gang.iter().all(|pod| ledger.is_out(pod)) {
            if !self.view.may_speak_unseen(ledger) {
                self.left();
            }
            return;
        }
        self.record();
        // Before the whole gang trains there is nothing to save.
        let trains = gang.iter().any(|pod| pod.state == PodState::Running);
        let grace = if trains {
            self.job.grace
        } else {
            ledger.policy().survivor_grace
        };
        for pod in gang.into_iter().filter(|pod| !ledger.is_out(pod)) {
            match ledger.gives_up_at(pod) {
                Some(when) => drop(ledger.is_over_for_pods(when, wake)),
                None => {
                    let Pod { attempt, rank, .. } = *pod;
                    self.actions.push(Action::DeletePod {
                        attempt,
                        rank,
                        grace,
                    });
                }
            }
        }
    }
}
