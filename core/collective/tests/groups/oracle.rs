//! What has to hold whatever happens.

use std::collections::BTreeMap;

use collective::machine::{Broken, Cause, GroupId, Verdict};
use collective::{Call, OpKind};
use topology::OnPeerLoss;

use crate::integers::{combine, words};
use crate::refusal;
use crate::trainer::{Lane, Outcome};
use crate::world::World;

impl World {
    pub(crate) fn progress(&self) -> String {
        let lanes = self.lanes.iter().map(|(group, lane)| {
            let members = lane.ranks.iter().zip(&lane.members);
            let ends: Vec<_> = members
                .map(|(rank, one)| {
                    (
                        rank,
                        one.opened.is_some(),
                        one.stands,
                        one.called,
                        one.outcomes.len(),
                    )
                })
                .collect();
            format!("\n{group}: {ends:?}")
        });
        lanes.collect()
    }

    /// All ranks of members know the end of everything they were to do.
    pub(crate) fn all_ended(&self) -> bool {
        if self.forgotten {
            return true;
        }
        let here = |rank: &u32| self.nodes[self.node_of(*rank)].machine.is_some();
        self.lanes.values().all(|lane| {
            let mut members = lane.ranks.iter().zip(&lane.members);
            members.all(|(rank, member)| !here(rank) || member.has_ended())
        }) && self.messages_ended()
    }

    /// REC-1 and COLL-1: the same end for all members, of one committed epoch.
    pub(crate) fn check(&self) {
        for (&group, lane) in &self.lanes {
            let longest = lane.members.iter().map(|member| member.program.len()).max();
            for op in 0..longest.unwrap_or(0) {
                self.check_alike(group, lane, op);
            }
        }
    }

    fn check_alike(&self, group: GroupId, lane: &Lane, op: usize) {
        let kind = |outcome: &Outcome| {
            outcome
                .as_ref()
                .map(|(_, epoch)| *epoch)
                .map_err(|why| *why)
        };
        let (mut first, mut expected) = (None, BTreeMap::new());
        for (&rank, member) in lane.ranks.iter().zip(&lane.members) {
            let Some(outcome) = member.outcomes.get(&op) else {
                continue;
            };
            if let Ok((bytes, epoch)) = outcome {
                let combined = expected
                    .entry(*epoch)
                    .or_insert_with(|| self.combined(group, lane, op, rank, *epoch));
                self.check_result(group, lane, op, rank, bytes, combined);
            }
            if let Err(Cause::Broken(broken)) = outcome {
                // Whoever was told before the loss was told something else.
                assert!(
                    self.recovery.on_peer_loss == OnPeerLoss::Restart && self.ends_of(*broken),
                    "group {group}, operation {op}, rank {rank}: {broken}"
                );
            } else if self.present().contains(&self.node_of(rank)) {
                let kind = kind(outcome);
                let first = *first.get_or_insert(kind);
                assert_eq!(first, kind, "group {group}, operation {op}, rank {rank}");
            }
        }
        if let Some(Err(Cause::Verdict(verdict))) = first {
            self.check_error(lane, verdict);
        }
    }

    /// Whether an epoch may have ended of this: a node was lost, or others said so first.
    pub(crate) fn ends_of(&self, broken: Broken) -> bool {
        let was_lost = |node: usize| self.nodes[node].life > 0;
        match broken {
            // In a later epoch the numbers are those of its members.
            Broken::NodeLost { node, .. } if self.members.len() == 1 => was_lost(node),
            Broken::NodeLost { .. } | Broken::Revoked => (0..self.nodes.len()).any(was_lost),
            Broken::NodeSilent { .. }
            | Broken::NodeLeft { .. }
            | Broken::RankLost { .. }
            | Broken::RankLeft { .. }
            | Broken::Protocol { .. } => false,
        }
    }

    fn check_error(&self, lane: &Lane, verdict: Verdict) {
        let is_lost = |rank: u32| !self.present().contains(&self.node_of(rank));
        match verdict {
            Verdict::Mismatch(mismatch) => {
                assert!(mismatch.one.call != mismatch.other.call);
                assert!(lane.ranks.contains(&mismatch.one.rank));
                assert!(lane.ranks.contains(&mismatch.other.rank));
            }
            Verdict::Refusal(refusal) => {
                refusal::check(refusal, &lane.ranks, lane.replicated, is_lost);
            }
        }
    }

    /// What the ranks of a group that are members of an epoch make together, in an operation of which a rank was told that
    /// it has succeeded.
    fn combined(&self, group: GroupId, lane: &Lane, op: usize, rank: u32, epoch: u32) -> Vec<u8> {
        let members = &self.members[epoch as usize - 1];
        let ranks: Vec<u32> = lane
            .ranks
            .iter()
            .copied()
            .filter(|&rank| members.contains(&self.node_of(rank)))
            .collect();
        let of = |rank: u32| {
            let at = lane.ranks.binary_search(&rank).unwrap();
            lane.members[at].program.get(op)
        };
        let call = *of(rank).unwrap();
        assert!(ranks.iter().all(|&other| of(other) == Some(&call)));
        assert!(call.kind == OpKind::Close || lane.replicated || ranks.len() == lane.ranks.len());
        self.reference(group, lane, &call, op, &ranks)
    }

    fn check_result(
        &self,
        group: GroupId,
        lane: &Lane,
        op: usize,
        rank: u32,
        bytes: &[u8],
        combined: &[u8],
    ) {
        let at = lane.ranks.binary_search(&rank).unwrap();
        let call = lane.members[at].program[op];
        if matches!(call.kind, OpKind::Reduce { root, .. } if lane.ranks[root as usize] != rank) {
            return;
        }
        if call.kind.exchanges() {
            let expected = self.exchanged(group, rank, op);
            assert!(
                bytes == expected,
                "rank {rank} has other bytes of {call} of group {group}"
            );
            return;
        }
        let part = if let OpKind::ReduceScatter { .. } = call.kind {
            let each = combined.len() / lane.ranks.len();
            at * each..(at + 1) * each
        } else {
            0..combined.len()
        };
        assert!(
            bytes.len() == combined.len() && bytes[part.clone()] == combined[part],
            "rank {rank} has other bytes for operation {op} of group {group}"
        );
    }

    fn reference(
        &self,
        group: GroupId,
        lane: &Lane,
        call: &Call,
        op: usize,
        ranks: &[u32],
    ) -> Vec<u8> {
        let input = |rank: u32| self.input(group, rank, op);
        match call.kind {
            OpKind::Barrier
            | OpKind::Close
            | OpKind::Gather { .. }
            | OpKind::Scatter { .. }
            | OpKind::AllToAll { .. }
            | OpKind::Send { .. }
            | OpKind::Receive { .. } => Vec::new(),
            OpKind::Broadcast { root } => input(lane.ranks[root as usize]),
            OpKind::AllGather => ranks.iter().flat_map(|&rank| input(rank)).collect(),
            OpKind::AllReduce { op } | OpKind::Reduce { op, .. } | OpKind::ReduceScatter { op } => {
                let inputs: Vec<Vec<i64>> = ranks.iter().map(|&rank| words(&input(rank))).collect();
                let combined = (0..call.count as usize).flat_map(|at| {
                    let column = inputs.iter().map(|input| input[at]);
                    combine(op, column, ranks.len() as i64).to_ne_bytes()
                });
                combined.collect()
            }
        }
    }
}
