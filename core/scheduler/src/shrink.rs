//! Gangs that go on without lost nodes: who takes part, who is known to be gone, and whether the
//! others can do without. Who goes on is decided by the rendezvous service and read from the
//! status.

use std::time::Duration;

use topology::NodeName;

use crate::avoid::EndCause;
use crate::gang::{GangState, Wake, leaving, overdue, starting};
use crate::job_planner::JobPlanner;
use crate::ledger::{JobView, Ledger};
use crate::plan::Gone;
use crate::snapshot::{Absent, Attempt, Pod, PodState};
use crate::status::ConditionKind::Running;
use crate::status::{CommittedMembers, JobPhase};

impl<'a> JobView<'a> {
    /// The members of an attempt that was started and may go on without some of them.
    pub(crate) fn membership(&self, attempt: u32) -> Option<&'a CommittedMembers> {
        let job = self.job.filter(|job| job.shrinks)?;
        let members = job.status.membership.as_ref()?;
        (members.attempt == attempt).then_some(members)
    }

    /// Whether the others go on without a rank.
    pub(crate) fn is_lost_member(&self, attempt: u32, rank: u32) -> bool {
        let members = self.membership(attempt);
        members.is_some_and(|members| members.lost.contains(&rank))
    }

    /// Ranks and nodes of those who take part.
    pub(crate) fn places<'v>(
        &'v self,
        attempt: &'a Attempt,
    ) -> impl Iterator<Item = (u32, &'a NodeName)> + 'v {
        let places = (0_u32..).zip(&attempt.nodes);
        places.filter(|(rank, _)| !self.is_lost_member(attempt.number, *rank))
    }

    /// The pods of those who take part, by rank.
    pub(crate) fn members(&self, attempt: u32) -> impl Iterator<Item = &'a Pod> {
        self.gang(attempt)
            .filter(move |pod| !self.is_lost_member(attempt, pod.rank))
    }

    fn is_stuck(&self, attempt: u32) -> bool {
        self.stuck.is_some_and(|stuck| stuck.attempt == attempt)
    }
}

/// Whether a member can be done without: its node is dead, or its pod has gone.
fn is_gone(pod: Option<&Pod>, node: &NodeName, ledger: &Ledger<'_>) -> bool {
    let Some(pod) = pod else {
        return true;
    };
    match pod.state {
        PodState::Failed(_) | PodState::Refused(_) => true,
        // It has done its part, whatever happens to its node.
        PodState::Succeeded | PodState::Interrupted { .. } => false,
        PodState::Unbound | PodState::Starting | PodState::Blocked(_) | PodState::Running => {
            ledger.is_lost(node)
        }
    }
}

/// Whether losses are the gang's own business: it has started, somebody is left, and it is not
/// known to be at its end.
pub(crate) fn goes_on(
    view: &JobView<'_>,
    attempt: &Attempt,
    pods: &[&Pod],
    ledger: &Ledger<'_>,
) -> bool {
    let lives = |pod: &&Pod| !pod.has_ended() && !ledger.is_lost(&pod.node);
    view.membership(attempt.number).is_some()
        && !view.is_stuck(attempt.number)
        && pods.iter().any(lives)
}

/// How a gang is whose losses are its own business: those who are gone count for nothing until it
/// has gone on without.
pub(crate) fn outlook<'a>(
    view: &JobView<'a>,
    pods: &[&'a Pod],
    whole: bool,
    attempt: &'a Attempt,
    ledger: &Ledger<'a>,
    wake: &mut Wake,
) -> GangState<'a> {
    let mut left = pods.to_vec();
    left.retain(|pod| !is_gone(Some(pod), &pod.node, ledger));
    let up = |pod: &&Pod| matches!(pod.state, PodState::Running | PodState::Succeeded);
    leaving(&left)
        .or_else(|| overdue(view, &left, attempt, ledger, wake))
        .unwrap_or_else(|| {
            if whole && left.len() == pods.len() && left.iter().all(up) {
                GangState::Up
            } else {
                starting(view, &left, attempt, ledger, wake)
            }
        })
}

/// Those who are left cannot go on. If a program's failure is why, its pod will say so in a moment.
pub(crate) fn stuck<'a>(
    view: &JobView<'a>,
    attempt: &Attempt,
    ledger: &Ledger<'a>,
    wake: &mut Wake,
) -> Option<GangState<'a>> {
    let stuck = view.stuck.filter(|_| view.is_stuck(attempt.number))?;
    let exit = view.job.map_or(Duration::ZERO, |job| job.exit);
    let due = stuck.since + exit + ledger.policy().stuck_patience;
    if due <= ledger.now() {
        let message = stuck.message.clone();
        return Some(GangState::Lost {
            node: None,
            cause: EndCause::Other,
            message,
        });
    }
    wake.at(due);
    None
}

/// Members of gangs that are known to be gone, or to have ended well.
pub(crate) fn gone(ledger: &Ledger<'_>) -> Vec<Gone> {
    let of_job = |view: &JobView<'_>| {
        let attempt = view.holding()?;
        let may_shrink = view.membership(attempt.number).is_some();
        let status = &view.job?.status;
        let leaves = status.phase == JobPhase::Interrupting;
        let is_gone = |(rank, node): &(u32, &NodeName)| {
            let pod = view.pods.get(&(attempt.number, *rank)).copied();
            // One that is not seen may be there all the same.
            let absent = Absent::Pod {
                job: attempt.job.clone(),
                attempt: attempt.number,
                rank: *rank,
            };
            if pod.is_none() && !ledger.is_absent(&absent) {
                return false;
            }
            // Who has saved and left is gone as well, and missed by nobody; so is who ended well.
            let is_missed = !(leaves && pod.is_none() || view.is_completed(attempt.number, *rank));
            is_gone(pod, node, ledger) && is_missed
        };
        let gone = view
            .places(attempt)
            .filter(|place| may_shrink && is_gone(place));
        let ranks: Vec<u32> = gone.map(|(rank, _)| rank).collect();
        let completed = status.completed.iter();
        let completed = completed.filter(|completed| completed.attempt == attempt.number);
        let completed: Vec<u32> = completed
            .flat_map(|completed| completed.ranks.iter().copied())
            .collect();
        let is_empty = ranks.is_empty() && completed.is_empty();
        (!is_empty).then(|| Gone {
            job: attempt.job.clone(),
            attempt: attempt.number,
            ranks,
            completed,
        })
    };
    ledger
        .views()
        .filter_map(|(_, view)| of_job(view))
        .collect()
}

impl JobPlanner<'_> {
    /// Says who trains, where not everybody does any more.
    pub(crate) fn report_lost(&mut self) {
        let Some(members) = self.view.membership(self.status.attempt) else {
            return;
        };
        let (all, attempt) = (self.job.nodes, self.status.attempt);
        // Who ended well takes no part in the next epoch either, and is not lost.
        let is_lost = |rank: &&u32| !self.view.rank_ended_well(attempt, **rank);
        let lost: Vec<u32> = members.lost.iter().filter(is_lost).copied().collect();
        if lost.is_empty() || self.status.ready == members.participants {
            return;
        }
        let nodes = self
            .view
            .attempts
            .get(&attempt)
            .map(|attempt| &attempt.nodes);
        let name = |rank: &u32| Some(nodes?.get(*rank as usize)?.to_string());
        let named: Vec<String> = lost
            .iter()
            .take(members.lost_nodes.len())
            .filter_map(name)
            .collect();
        let others = lost.len().saturating_sub(named.len());
        let named = named.join(", ");
        let more = match others {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let participants = members.participants;
        let message = format!("Goes on with {participants} of {all} nodes: lost {named}{more}");
        self.status.ready = participants;
        self.set(Running, true, "NodesLost", &message);
        self.warn("NodesLost", message);
    }
}
