//! One attempt's pods, read as a whole: is the gang complete, is it done, what ended it. Decides
//! nothing about what follows.

use std::time::Duration;

use topology::NodeName;

use crate::avoid::EndCause;
use crate::ledger::{JobView, Ledger};
use crate::node::{NodeReason, Ready, State};
use crate::shrink::{goes_on, outlook, stuck};
use crate::snapshot::{Absent, Attempt, Exit, Pod, PodState, Preparation, Problem};
use crate::status::JobPhase;
use crate::time::Timestamp;

/// What became of a gang.
#[derive(Debug)]
pub(crate) enum GangState<'a> {
    /// Every rank ended well.
    Done,
    /// Ended, by no fault of the program.
    Lost {
        node: Option<&'a NodeName>,
        cause: EndCause,
        message: String,
    },
    /// The program failed.
    Failed { node: &'a NodeName, exit: &'a Exit },
    /// Somebody else asked a pod to leave: the rest saves and leaves too.
    Leaving { node: &'a NodeName },
    /// Cannot start as long as something that a pod needs is missing.
    Blocked(&'a Problem),
    /// Every rank trains.
    Up,
    /// Not all are up yet.
    Joining,
    /// The same, and for so long that the pod which is waited for is worth a word.
    Preparing(&'a Pod),
    /// Pods of these ranks have to be created.
    Incomplete(Vec<u32>),
}

/// Judges the attempt that holds nodes. `wake` is lowered to when the verdict may change by itself.
pub(crate) fn judge<'a>(
    view: &JobView<'a>,
    attempt: &'a Attempt,
    phase: JobPhase,
    ledger: &Ledger<'a>,
    wake: &mut Wake,
) -> GangState<'a> {
    let pods: Vec<&'a Pod> = view.unfinished(attempt.number).collect();
    let mut places = view.places(attempt);
    let whole = !places.any(|(rank, _)| view.is_missing(attempt.number, rank));
    if view.has_ended_well(attempt.number) {
        return GangState::Done;
    }
    if ledger.is_superseded(&attempt.job) {
        // A pod that is not seen may be there, and the gang train; so may one whose sidecars have
        // yet to dial.
        let unseen = |(rank, _): (u32, &NodeName)| {
            let job = attempt.job.clone();
            let number = attempt.number;
            let absent = Absent::Pod {
                job,
                attempt: number,
                rank,
            };
            view.is_missing(number, rank) && !ledger.is_absent(&absent)
        };
        if ledger.is_starting() || view.places(attempt).next().is_some_and(unseen) {
            return GangState::Joining;
        }
        let message = "another attempt was given the same nodes first".to_owned();
        return GangState::Lost {
            node: None,
            cause: EndCause::Superseded,
            message,
        };
    }
    if goes_on(view, attempt, &pods, ledger) {
        return outlook(view, &pods, whole, attempt, ledger, wake);
    }
    lost(view, attempt, &pods, ledger, wake)
        .or_else(|| failed(&pods, attempt, view, ledger, wake))
        .or_else(|| leaving(&pods))
        .or_else(|| missing(view, attempt, phase, whole, ledger))
        .or_else(|| stuck(view, attempt, ledger, wake))
        .or_else(|| overdue(view, &pods, attempt, ledger, wake))
        .unwrap_or_else(|| {
            let up = |pod: &&Pod| matches!(pod.state, PodState::Running | PodState::Succeeded);
            if pods.iter().all(up) {
                GangState::Up
            } else {
                starting(view, &pods, attempt, ledger, wake)
            }
        })
}

/// A gang of which not all are up: whom it waits for, once that takes long. Of those who are the
/// least far it names the highest rank, which was created and bound last: so it names few in turn
/// though many get there one after the other, and the status is written as often.
pub(crate) fn starting<'a>(
    view: &JobView<'a>,
    pods: &[&'a Pod],
    attempt: &Attempt,
    ledger: &Ledger<'a>,
    wake: &mut Wake,
) -> GangState<'a> {
    let prepares = pods.iter().filter_map(|pod| Some((*pod, prepares(pod)?)));
    let last = prepares.min_by_key(|(pod, at)| (at.steps, std::cmp::Reverse(pod.rank)));
    let Some((pod, _)) = last else {
        return GangState::Joining;
    };
    // As it was recorded, so that another leader does not take back what the last one said.
    let newest = view.job.and_then(|job| job.status.newest.as_ref());
    let since = newest.map_or(attempt.seen, |newest| newest.since);
    let reported = since + ledger.policy().start_reported_after;
    if reported > ledger.now() {
        wake.at(reported);
        return GangState::Joining;
    }
    GangState::Preparing(pod)
}

/// Returns what a pod is at that prepares its start by itself, and does not wait for other pods.
fn prepares(pod: &Pod) -> Option<&Preparation> {
    match pod.state {
        PodState::Starting => pod.preparation.as_deref().filter(|at| !at.joins),
        PodState::Unbound
        | PodState::Blocked(_)
        | PodState::Running
        | PodState::Succeeded
        | PodState::Interrupted { .. }
        | PodState::Failed(_)
        | PodState::Refused(_) => None,
    }
}

/// A dead node, or a kubelet that refused.
fn lost<'a>(
    view: &JobView<'a>,
    attempt: &'a Attempt,
    pods: &[&'a Pod],
    ledger: &Ledger<'a>,
    wake: &mut Wake,
) -> Option<GangState<'a>> {
    let ended_well = |rank: u32| view.rank_ended_well(attempt.number, rank);
    // Peers give up a sidecar that ends with its pod: then the pod says how it ended.
    let speaks = |rank: u32| {
        let pod = view.pods.get(&(attempt.number, rank));
        ended_well(rank) || pod.is_some_and(|pod| pod.has_ended())
    };
    let dead = view.places(attempt).find_map(|(rank, node)| {
        let State::Lost { why } = ledger.states().of(node) else {
            return None;
        };
        let known = match why {
            NodeReason::GivenUp => speaks(rank),
            // Its sidecar may have left in good order, and its pod have ended since.
            NodeReason::LeaseOut | NodeReason::Gone => {
                ended_well(rank)
                    || !ledger.is_quiet(attempt, node) && !ledger.has_news_of_pods(node, wake)
            }
            NodeReason::NotReady
            | NodeReason::Tainted(_)
            | NodeReason::Quarantined(_)
            | NodeReason::Awaited(_) => ended_well(rank),
        };
        (!known).then_some((node, why))
    });
    if let Some((node, why)) = dead {
        return Some(GangState::Lost {
            node: Some(node),
            cause: match why {
                // Users can silence their own sidecars and have their peers say so.
                NodeReason::GivenUp => EndCause::Silent,
                NodeReason::NotReady
                | NodeReason::LeaseOut
                | NodeReason::Gone
                | NodeReason::Tainted(_)
                | NodeReason::Quarantined(_)
                | NodeReason::Awaited(_) => EndCause::NodeLost,
            },
            message: format!("node {node} was lost: {why}"),
        });
    }
    pods.iter().find_map(|pod| match &pod.state {
        PodState::Refused(why) => {
            let cause = EndCause::of_refusal(why);
            let node = &pod.node;
            let message = if cause == EndCause::NodeLost {
                format!("node {node} was lost: its pod was marked Failed: {why}")
            } else if cause == EndCause::NodeRefused {
                format!("node {node} refused its pod: {why}")
            } else {
                format!("the pod on node {node} was ended: {why}")
            };
            Some(GangState::Lost {
                node: Some(node),
                cause,
                message,
            })
        }
        PodState::Unbound
        | PodState::Starting
        | PodState::Blocked(_)
        | PodState::Running
        | PodState::Succeeded
        | PodState::Interrupted { .. }
        | PodState::Failed(_) => None,
    })
}

/// A failed rank. The earliest is the cause; if a node of the gang is suspect and says nothing,
/// the node is.
fn failed<'a>(
    pods: &[&'a Pod],
    attempt: &'a Attempt,
    view: &JobView<'a>,
    ledger: &Ledger<'a>,
    wake: &mut Wake,
) -> Option<GangState<'a>> {
    let (pod, exit) = pods
        .iter()
        .filter_map(|pod| exit_of(pod).map(|exit| (*pod, exit)))
        .min_by_key(|(pod, exit)| (exit.finished.is_none(), exit.finished, pod.rank))?;
    let silent = view.places(attempt).find(|(rank, name)| {
        // A kubelet that is cut off reports no failure.
        let suspect = ledger
            .node(name)
            .is_none_or(|node| ledger.is_suspect(node) || node.ready == Ready::Unknown);
        let report = view.pods.get(&(attempt.number, *rank));
        let has_said = report.is_some_and(|pod| pod.terminal || exit_of(pod).is_some());
        suspect && !has_said && !view.rank_ended_well(attempt.number, *rank)
    });
    let Some((_, node)) = silent else {
        return Some(GangState::Failed {
            node: &pod.node,
            exit,
        });
    };
    let settled = pod.since + ledger.policy().settle;
    if settled > ledger.now() {
        wake.at(settled);
        return Some(GangState::Joining);
    }
    let message = format!("node {node} stopped answering its peers");
    Some(GangState::Lost {
        node: Some(node),
        cause: EndCause::Silent,
        message,
    })
}

fn exit_of(pod: &Pod) -> Option<&Exit> {
    match &pod.state {
        PodState::Failed(exit) => Some(exit),
        PodState::Unbound
        | PodState::Starting
        | PodState::Blocked(_)
        | PodState::Running
        | PodState::Succeeded
        | PodState::Interrupted { .. }
        | PodState::Refused(_) => None,
    }
}

/// A pod that somebody else deletes or has stopped, such as a drain.
pub(crate) fn leaving<'a>(pods: &[&'a Pod]) -> Option<GangState<'a>> {
    pods.iter()
        .find(|pod| {
            let stopped = matches!(pod.state, PodState::Interrupted { .. });
            stopped || pod.delete_by.is_some() && pod.state != PodState::Succeeded
        })
        .map(|pod| GangState::Leaving { node: &pod.node })
}

/// Pods that do not exist: not created yet, or vanished.
fn missing<'a>(
    view: &JobView<'a>,
    attempt: &'a Attempt,
    phase: JobPhase,
    whole: bool,
    ledger: &Ledger<'a>,
) -> Option<GangState<'a>> {
    if whole {
        return None;
    }
    // A trainer starts when its whole gang has joined: then no pod was still to be created.
    let started = |pod: &Pod| match pod.state {
        PodState::Unbound | PodState::Starting | PodState::Blocked(_) => false,
        PodState::Running
        | PodState::Succeeded
        | PodState::Interrupted { .. }
        | PodState::Failed(_)
        | PodState::Refused(_) => true,
    };
    let absent = |(rank, _): &(u32, &NodeName)| view.is_missing(attempt.number, *rank);
    let mut ranks = view.places(attempt).filter(absent);
    if phase == JobPhase::Assigned && !view.gang(attempt.number).any(started) {
        return Some(GangState::Incomplete(ranks.map(|(rank, _)| rank).collect()));
    }
    let (rank, node) = ranks.next()?;
    let gone = Absent::Pod {
        job: attempt.job.clone(),
        attempt: attempt.number,
        rank,
    };
    if !ledger.is_absent(&gone) {
        return Some(GangState::Joining);
    }
    let message = format!("the pod of node rank {rank} on node {node} vanished");
    Some(GangState::Lost {
        node: None,
        cause: EndCause::Other,
        message,
    })
}

/// Patience with a pod, and the cause of the attempt's end when it is over.
struct PodWait {
    patience: Duration,
    cause: EndCause,
}

/// Pods that wait for something for too long.
pub(crate) fn overdue<'a>(
    view: &JobView<'a>,
    pods: &[&'a Pod],
    attempt: &'a Attempt,
    ledger: &Ledger<'a>,
    wake: &mut Wake,
) -> Option<GangState<'a>> {
    let mut blocked = None;
    let mut is_joining = false;
    let mut waits_for_one = false;
    for pod in pods {
        if let PodState::Blocked(problem) = &pod.state {
            blocked = blocked.or(Some(problem));
        }
        let Some(wait) = waits(view, pod, ledger) else {
            is_joining |= pod.state == PodState::Starting;
            continue;
        };
        waits_for_one = true;
        let due = pod.since.max(attempt.seen) + wait.patience;
        if ledger.is_over_for_pods(due, wake) {
            return Some(GangState::Lost {
                node: Some(&pod.node),
                cause: wait.cause,
                message: overdue_message(pod, wait.patience),
            });
        }
    }
    // Who has joined waits for the others, as long as these have patience left. Whom all wait for
    // cannot be seen here.
    if is_joining && !waits_for_one {
        let last = pods.iter().map(|pod| pod.since).max().unwrap_or_default();
        let due = last.max(attempt.seen) + start_patience(view, ledger);
        if ledger.is_over_for_pods(due, wake) {
            return Some(GangState::Lost {
                node: None,
                cause: EndCause::Other,
                message: "the gang did not join in time".to_owned(),
            });
        }
    }
    blocked.map(GangState::Blocked)
}

/// Returns the patience with a pod that waits for no other pod.
fn waits(view: &JobView<'_>, pod: &Pod, ledger: &Ledger<'_>) -> Option<PodWait> {
    let policy = ledger.policy();
    let (patience, cause) = match &pod.state {
        PodState::Unbound => (policy.bind_patience, EndCause::NotBound),
        PodState::Starting => {
            prepares(pod)?;
            (start_patience(view, ledger), EndCause::NotStarted)
        }
        PodState::Blocked(_) => {
            let refused_before = view.job.is_some_and(|job| job.status.refusals > 0);
            let patience = if refused_before {
                policy.blocked_again
            } else {
                policy.blocked_patience
            };
            (patience, EndCause::Blocked)
        }
        PodState::Running
        | PodState::Succeeded
        | PodState::Interrupted { .. }
        | PodState::Failed(_)
        | PodState::Refused(_) => return None,
    };
    Some(PodWait { patience, cause })
}

/// Says what a pod was waited for in vain.
fn overdue_message(pod: &Pod, patience: Duration) -> String {
    let Pod { node, rank, .. } = pod;
    if let PodState::Blocked(problem) = &pod.state {
        return format!("node {node}: {}", problem.message);
    }
    match prepares(pod) {
        Some(Preparation { at, .. }) => format!(
            "node rank {rank} on node {node} made no progress for {} s: {at}. If it only needs \
             longer, raise startProgressDeadlineSeconds of its class in the Fabric",
            patience.as_secs()
        ),
        None => format!("node {node}: its pod could not be bound"),
    }
}

fn start_patience(view: &JobView<'_>, ledger: &Ledger<'_>) -> Duration {
    let policy = ledger.policy();
    let class = view.job.map(|job| &job.class);
    class.map_or(policy.start_patience, |class| policy.start_patience(class))
}

/// The earliest moment at which time alone changes something.
#[derive(Debug, Default)]
pub(crate) struct Wake(Option<Timestamp>);

impl Wake {
    pub(crate) fn at(&mut self, when: Timestamp) {
        self.0 = Some(self.0.map_or(when, |old| old.min(when)));
    }

    pub(crate) fn get(&self) -> Option<Timestamp> {
        self.0
    }
}
