//! One job's life: what follows from its phase, its spec and the state of its gang. Leaves the
//! words of each transition to `planner`, choosing nodes to `assign`, and removing what an ended
//! attempt left behind to `release`.
//!
//! Two rules make every step safe to repeat and safe against a deposed leader. A transition is
//! recorded before anything follows from it. And an attempt number that stopped holding nodes never
//! holds them again, so whatever belongs to it can be removed whenever it is seen.

use topology::NodeName;

use crate::assign::Placement;
use crate::avoid::EndCause;
use crate::gang::{GangState, Wake, judge};
use crate::job_planner::JobPlanner;
use crate::ledger::Ledger;
use crate::node::{State, Wish};
use crate::plan::Action;
use crate::snapshot::{Absent, Attempt, Pod};
use crate::status::JobPhase;
use crate::time::Timestamp;

/// How many nodes a message names.
const NAMED: usize = 3;

/// The nodes that a gang should leave.
#[derive(Debug)]
pub(crate) struct Departure<'a> {
    /// Nodes, and the wish of each that people read; at least one.
    nodes: Vec<(&'a NodeName, &'a Wish)>,
    /// True if it leaves even when there is no place for it elsewhere.
    pub(crate) is_must: bool,
}

impl<'a> JobPlanner<'a> {
    /// Moves the job on as far as what is seen allows.
    pub(crate) fn advance(&mut self, ledger: &Ledger<'a>, wake: &mut Wake) {
        self.learn_late();
        match self.status.phase {
            JobPhase::Queued | JobPhase::Restarting | JobPhase::Suspended => {
                self.idle(ledger, wake);
            }
            JobPhase::Assigned | JobPhase::Starting | JobPhase::Running => self.hold(ledger, wake),
            JobPhase::Interrupting => self.leave(ledger, wake),
            JobPhase::Succeeded | JobPhase::Failed => {}
        }
        self.learn_completed(wake);
    }

    /// Which of its nodes it should leave now, if it trains or is about to. Somebody who empties
    /// several nodes takes a while, and a gang that has just moved is not asked again at once: so
    /// it leaves them together. A wish that it must follow has to be as old as any other.
    pub(crate) fn should_leave(
        &self,
        ledger: &Ledger<'a>,
        wake: &mut Wake,
    ) -> Option<Departure<'a>> {
        let settled = matches!(self.status.phase, JobPhase::Starting | JobPhase::Running);
        let attempt = self.view.holding()?;
        let is_pinned = self.job.pin.is_some();
        if !settled || is_pinned || !self.actions.is_empty() {
            return None;
        }
        let mut nodes = Vec::new();
        let (mut wished, mut must): (Option<Timestamp>, Option<Timestamp>) = (None, None);
        let earlier = |old: Option<Timestamp>, new| Some(old.map_or(new, |old| old.min(new)));
        // A rank that ended well has nothing left to save, and nobody waits for its node.
        let places = self.view.places(attempt);
        let ends = |rank| self.view.rank_ended_well(attempt.number, rank);
        for (_, node) in places.filter(|(rank, _)| !ends(*rank)) {
            let State::Leaving { wishes } = ledger.states().of(node) else {
                continue;
            };
            nodes.extend(wishes.keys().next_back().map(|why| (node, why)));
            for (wish, since) in wishes {
                wished = earlier(wished, *since);
                if wish.is_must() {
                    must = earlier(must, *since);
                }
            }
        }
        let policy = ledger.policy();
        let rested = match attempt.number {
            0 | 1 => attempt.seen,
            _ => attempt.seen + policy.move_pause,
        };
        let mut is_due = |since: Timestamp| {
            let due = rested.max(since + policy.leave_after);
            if due > self.now {
                wake.at(due);
            }
            due <= self.now
        };
        let is_must = must.is_some_and(&mut is_due);
        (is_must || is_due(wished?)).then_some(Departure { nodes, is_must })
    }

    /// Leaves nodes that somebody wants emptied.
    pub(crate) fn move_away(
        &mut self,
        departure: &Departure<'_>,
        placement: Option<&Placement>,
        ledger: &Ledger<'a>,
        wake: &mut Wake,
    ) {
        let nodes = &departure.nodes;
        let reason = match nodes.iter().map(|(_, why)| *why).max() {
            None | Some(Wish::Cordoned | Wish::Tainted(_)) => "NodeCordoned",
            Some(Wish::Validated(_)) => "NodeValidation",
            Some(Wish::Deleted) => "NodeDeleted",
        };
        let named = nodes.iter().take(NAMED);
        let named: Vec<String> = named
            .map(|(node, why)| format!("node {node} is {why}"))
            .collect();
        let more = match nodes.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(", and {more} more"),
        };
        self.interrupt(reason, &format!("{}{more}", named.join(", ")));
        match placement {
            Some(placement) => self.keep_other_place(placement, ledger),
            None => self.keep_place_while_it_leaves(ledger),
        }
        self.leave(ledger, wake);
    }

    /// Holds no nodes.
    fn idle(&mut self, ledger: &Ledger<'a>, wake: &mut Wake) {
        self.learn_acknowledged();
        let mut left = true;
        for pod in self
            .view
            .pods
            .values()
            .filter(|pod| !ledger.delays_nothing(pod))
        {
            left = false;
            if let Some(when) = ledger.gives_up_at(pod) {
                ledger.is_over_for_pods(when, wake);
            }
        }
        if self.job.suspend {
            if left && self.status.phase != JobPhase::Suspended {
                self.suspended();
            }
            return;
        }
        if self.status.phase == JobPhase::Suspended {
            self.resumed();
        }
        self.review_promise(ledger);
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
            let fresh = self.status.phase == JobPhase::Assigned
                && self.view.gang(self.status.attempt).next().is_none();
            let gone = Absent::Attempt {
                job: self.job.key.clone(),
                number: self.status.attempt,
            };
            if !fresh && !ledger.is_absent(&gone) {
                return;
            }
            if !fresh {
                let message = "the attempt's ConfigMap was deleted".to_owned();
                self.lost(None, EndCause::Other, message, ledger);
            } else if self.job.suspend {
                self.suspended();
            } else {
                // Recorded, but its nodes were not: they are chosen now.
                self.want = Some(self.status.attempt);
            }
            return;
        };
        if attempt.nodes.len() != self.job.nodes as usize {
            let message = "the attempt's ConfigMap has the wrong number of nodes".to_owned();
            self.lost(None, EndCause::Superseded, message, ledger);
            return;
        }
        match judge(self.view, attempt, self.status.phase, ledger, wake) {
            GangState::Done => self.succeed(),
            GangState::Lost {
                node,
                cause,
                message,
            } => self.lost(node.cloned(), cause, message, ledger),
            GangState::Failed { node, exit } => self.fail(node.clone(), exit, ledger),
            _ if self.job.suspend => {
                self.interrupt("Suspended", "spec.suspend is true");
                self.leave(ledger, wake);
            }
            GangState::Leaving { node } if self.job.pin.is_some() => {
                let message = format!("its pod on node {node} was deleted");
                self.lost(Some(node.clone()), EndCause::PodEnded, message, ledger);
            }
            GangState::Leaving { node } => {
                self.back_off(EndCause::PodEnded);
                self.interrupt(
                    "PodDeleted",
                    &format!("the pod on node {node} was asked to leave"),
                );
                self.keep_place_while_it_leaves(ledger);
                self.leave(ledger, wake);
            }
            GangState::Blocked(problem) => self.joining(problem.reason, &problem.message),
            GangState::Joining | GangState::Preparing(_)
                if self.status.phase == JobPhase::Running => {}
            GangState::Joining => self.joining("Joining", "Waiting for the gang to join"),
            GangState::Preparing(pod) => self.preparing(pod),
            GangState::Incomplete(_) if self.is_held(wake) => self.held(),
            GangState::Incomplete(ranks) => self.complete(attempt, ranks, ledger),
            GangState::Up => {
                self.up();
                self.watch_progress(attempt, ledger, wake);
            }
        }
    }

    /// Whether its pods are not to be created yet.
    fn is_held(&self, wake: &mut Wake) -> bool {
        let since = self.status.newest.as_ref().map(|newest| newest.since);
        let until = since.zip(self.job.hold).map(|(since, hold)| since + hold);
        let until = until.filter(|until| self.now < *until);
        if let Some(until) = until {
            wake.at(until);
        }
        until.is_some()
    }

    /// Creates the pods that are missing, if their nodes can still take them.
    fn complete(&mut self, attempt: &Attempt, ranks: Vec<u32>, ledger: &Ledger<'a>) {
        // A pod that is not seen may be there, and with it the whole gang.
        let is_gone = |rank: u32| {
            ledger.is_absent(&Absent::Pod {
                job: attempt.job.clone(),
                attempt: attempt.number,
                rank,
            })
        };
        if let Some(problem) = &self.job.problem {
            if !ranks.first().is_some_and(|rank| is_gone(*rank)) {
                return;
            }
            // Its pods are refused everywhere, so it must not keep nodes from others.
            self.lost(None, EndCause::Other, problem.message.clone(), ledger);
            return;
        }
        if self.view.doubts.contains_key(&attempt.number) {
            self.report_unreadable();
            return;
        }
        let mut writes: Vec<_> = self.create_key(attempt.number).into_iter().collect();
        for (rank, name) in (0..)
            .zip(&attempt.nodes)
            .filter(|(rank, _)| ranks.contains(rank))
        {
            if !ledger.can_take_pod(self.job, name) {
                if !is_gone(rank) {
                    return;
                }
                let message = format!("node {name} can take no pod any more");
                self.lost(Some(name.clone()), EndCause::NotBound, message, ledger);
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
        if gang.iter().all(|pod| ledger.has_said_all(pod)) {
            if !self.view.may_speak_unseen(ledger) {
                self.left();
            }
            return;
        }
        self.record();
        // A gang that is not seen to train may train by now. One that does not ends at once when it
        // is asked to.
        let grace = self.job.grace;
        for pod in gang.into_iter().filter(|pod| !ledger.has_said_all(pod)) {
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
