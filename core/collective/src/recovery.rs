//! What survives the end of an epoch: what each node reports when it has stopped, and from all reports together what
//! the next epoch begins with. An operation that a survivor has completed is served to those who lack it, so that the
//! contribution of those who are gone is in it for everybody; every other one is run again by the survivors.

mod delivered;

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub(crate) use delivered::{OpenedGroup, delivered_each, is_over};

use crate::machine::{Dispute, GroupId, MAX_IN_FLIGHT, OpId, Verdict};
use crate::op::Call;

/// Operations that one report may name: what may be in flight, and as many that are over and still kept for others.
pub const MAX_RETAINED: u64 = 2 * MAX_IN_FLIGHT;

/// An operation whose outcome is final on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retained {
    /// Which.
    pub op: OpId,
    /// The epoch whose members took part in it.
    pub epoch: u32,
    /// What was called.
    pub call: Call,
    /// Bytes of its result: a gathering's depend on the epoch it was run in.
    pub bytes: u64,
    /// Whether the node has them. One that has lost its memory, and had delivered it before, need not.
    pub complete: bool,
    /// Why it failed for all, if so.
    pub verdict: Option<Verdict>,
}

/// How far one node is with one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupReport {
    /// Which group.
    pub group: GroupId,
    /// The first operation that was not delivered to every local rank.
    #[serde(rename = "told_all")]
    pub delivered_to_all: OpId,
    /// The first operation that was delivered to no local rank.
    #[serde(rename = "told_any")]
    pub delivered_to_any: OpId,
    /// What is final here and kept, ascending; at most [`MAX_RETAINED`].
    #[serde(rename = "held")]
    pub retained: Vec<Retained>,
    /// Why it is not open and never will be, where ranks have that answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Dispute>,
}

/// How far one node is, when it has stopped. From then on it completes and delivers nothing in this epoch.
pub type EpochReport = Vec<GroupReport>;

impl GroupReport {
    /// Ranks have the answer that a group cannot be opened.
    pub(crate) const fn of_refused(group: GroupId, dispute: Dispute) -> Self {
        Self {
            group,
            delivered_to_all: 0,
            delivered_to_any: 0,
            retained: Vec::new(),
            refused: Some(dispute),
        }
    }

    fn holds(&self, op: OpId) -> Option<&Retained> {
        let at = self
            .retained
            .binary_search_by_key(&op, |held| held.op)
            .ok()?;
        self.retained.get(at)
    }

    /// Whether a report can be true: whoever relies on it has not written it.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let ascends = self.retained.windows(2).all(|pair| pair[0].op < pair[1].op);
        let bounded = self.retained.len() as u64 <= MAX_RETAINED;
        ascends && bounded && self.delivered_to_all <= self.delivered_to_any
    }
}

/// An operation that is not run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// The operation as its holder has it.
    #[serde(rename = "held")]
    pub retained: Retained,
    /// The lowest node that has all of the result.
    pub holder: usize,
    /// Whether the bytes have to be sent: somebody lacks them.
    pub spread: bool,
}

/// What one group begins an epoch with; the same on all members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupResume {
    /// Which group.
    pub group: GroupId,
    /// The first operation that was not delivered to all. All before are over.
    pub base: OpId,
    /// The operations from `base` on that are not run again, ascending.
    pub served: Vec<Served>,
    /// Why it is not opened any more: some have that answer, and the others must not wait for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Dispute>,
}

/// What an epoch begins with.
pub type Resume = Vec<GroupResume>;

/// Somebody still needs an operation that was delivered to others, and nobody has its result any more. Running it
/// again would contradict what was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the result of operation {op} is needed and was lost with those who had it")]
pub struct Forgotten {
    /// Which.
    pub op: OpId,
}

/// What the epoch of these nodes begins with.
pub fn resume(reports: &BTreeMap<usize, &EpochReport>) -> Result<Resume, Forgotten> {
    let mut groups: BTreeMap<GroupId, BTreeMap<usize, &GroupReport>> = BTreeMap::new();
    for (&node, report) in reports {
        for group in *report {
            groups.entry(group.group).or_default().insert(node, group);
        }
    }
    let groups = groups.into_iter();
    groups
        .map(|(group, reports)| resume_group(group, &reports))
        .collect()
}

fn resume_group(
    group: GroupId,
    reports: &BTreeMap<usize, &GroupReport>,
) -> Result<GroupResume, Forgotten> {
    let all = || reports.values();
    let base = all()
        .map(|report| report.delivered_to_all)
        .min()
        .unwrap_or(0);
    let refused = all().find_map(|report| report.refused);
    if refused.is_some() {
        return Ok(GroupResume {
            group,
            base,
            served: Vec::new(),
            refused,
        });
    }
    let delivered = all()
        .map(|report| report.delivered_to_any)
        .max()
        .unwrap_or(0);
    let last = all().filter_map(|report| Some(report.retained.last()?.op + 1));
    let end = last.max().unwrap_or(0).max(delivered);
    let mut served = Vec::new();
    for op in base..end {
        match serve(op, reports) {
            Some(one) => served.push(one),
            None if op < delivered => return Err(Forgotten { op }),
            None => {}
        }
    }
    Ok(GroupResume {
        group,
        base,
        served,
        refused,
    })
}

/// How an operation is served, if it can be.
fn serve(op: OpId, reports: &BTreeMap<usize, &GroupReport>) -> Option<Served> {
    let holders = reports
        .iter()
        .filter_map(|(&node, report)| Some((node, *report.holds(op)?)));
    let lacks = |report: &&GroupReport| report.delivered_to_all <= op && report.holds(op).is_none();
    let wanted = reports.values().any(lacks);
    // Of what each rank gets for itself no node has more than its own.
    let spreads = |held: &Retained| held.complete && !held.call.kind.exchanges();
    let whole = |held: &Retained| spreads(held) || held.verdict.is_some() || !wanted;
    let (holder, held) = holders.into_iter().find(|(_, held)| whole(held))?;
    Some(Served {
        retained: held,
        holder,
        spread: wanted && held.verdict.is_none() && held.bytes > 0,
    })
}

impl GroupResume {
    /// The first operation whose end somebody waits for; none where it can be delivered to nobody any more.
    #[must_use]
    pub fn needed_from(&self) -> Option<OpId> {
        self.refused.is_none().then_some(self.base)
    }

    /// The same with the places among the members in place of the nodes' ranks in the attempt.
    #[must_use]
    pub fn within(&self, members: &[usize]) -> Self {
        let place = |holder: usize| members.binary_search(&holder).unwrap_or(0);
        let served = self.served.iter().map(|served| Served {
            holder: place(served.holder),
            ..*served
        });
        Self {
            served: served.collect(),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::machine::{OpenReason, Opener};
    use crate::numerics::Numerics;
    use crate::op::OpKind;
    use crate::reduce_op::ReduceOp;

    fn call(kind: OpKind) -> Call {
        Call {
            kind,
            dtype: DType::F32,
            count: 2,
            tag: 0,
            numerics: Numerics::Fast,
        }
    }

    fn held(op: OpId) -> Retained {
        Retained {
            op,
            epoch: 1,
            call: call(OpKind::AllReduce { op: ReduceOp::Sum }),
            bytes: 8,
            complete: true,
            verdict: None,
        }
    }

    fn report(delivered: OpId, ops: &[OpId]) -> EpochReport {
        vec![GroupReport {
            group: 0,
            delivered_to_all: delivered,
            delivered_to_any: delivered,
            retained: ops.iter().map(|&op| held(op)).collect(),
            refused: None,
        }]
    }

    fn plan(reports: &[EpochReport]) -> Result<GroupResume, Forgotten> {
        let reports = reports.iter().enumerate().collect();
        resume(&reports).map(|mut groups| groups.remove(0))
    }

    #[test]
    fn what_a_survivor_completed_is_served_by_the_lowest_and_the_rest_is_run_again() {
        let resume = plan(&[report(3, &[]), report(3, &[3, 5]), report(4, &[3, 5])]).unwrap();
        assert_eq!(resume.base, 3);
        let served: Vec<_> = resume
            .served
            .iter()
            .map(|one| (one.retained.op, one.holder, one.spread))
            .collect();
        assert_eq!(served, [(3, 1, true), (5, 1, true)], "4 is run again");
    }

    #[test]
    fn nothing_is_sent_when_nobody_lacks_it() {
        // The first has lost its memory, but its ranks have the outcome.
        let resume = plan(&[report(4, &[]), report(3, &[3]), report(4, &[3])]).unwrap();
        assert_eq!(resume.base, 3);
        assert!(!resume.served[0].spread && resume.served[0].holder == 1);
    }

    #[test]
    fn what_was_delivered_and_is_held_by_nobody_is_not_run_again() {
        let lost = plan(&[report(4, &[]), report(3, &[])]);
        assert_eq!(lost, Err(Forgotten { op: 3 }));
    }

    #[test]
    fn who_has_forgotten_what_was_delivered_to_it_serves_nobody() {
        let mut delivered = report(4, &[3]);
        delivered[0].retained[0].complete = false;
        let resume = plan(&[delivered.clone(), report(3, &[3]), report(3, &[])]).unwrap();
        assert_eq!(resume.served[0].holder, 1);
        let lost = plan(&[delivered.clone(), report(3, &[])]);
        assert_eq!(lost, Err(Forgotten { op: 3 }));
        let resume = plan(&[delivered, report(4, &[])]).unwrap();
        assert_eq!((resume.base, resume.served), (4, Vec::new()));
    }

    #[test]
    fn a_group_that_was_refused_to_some_is_refused_to_all() {
        let opener = Opener {
            rank: 1,
            size: 2,
            checksum: 7,
        };
        let reason = OpenReason::Gateway;
        let dispute = Dispute::Refused { opener, reason };
        let refused = vec![GroupReport::of_refused(0, dispute)];
        let resume = plan(&[report(3, &[3]), refused, report(4, &[])]).unwrap();
        assert_eq!((resume.refused, resume.served), (Some(dispute), Vec::new()));
    }
}
