//! What is in flight, for whoever asks why nothing moves: who has joined an operation and who is missing.

use std::time::Duration;

use super::group::Group;
use super::operation::Stage;
use super::{GroupId, Machine, OpId};
use crate::op::Call;

/// An operation in flight on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its group.
    pub group: GroupId,
    /// Which of the group's operations.
    pub op: OpId,
    /// What was called; none where only others have begun it.
    pub call: Option<Call>,
    /// How long this node has known of it.
    pub age: Duration,
    /// Local ranks that have called it.
    pub joined: Vec<usize>,
    /// Local ranks that have not.
    pub missing: Vec<usize>,
    /// Neighbours whose part or whose result has to come next, ascending.
    pub waits_for: Vec<usize>,
    /// Chunks whose result is here.
    pub settled: u32,
    /// Chunks whose result will be here; 0 while not all local ranks have called it.
    pub chunks: u32,
}

impl Machine {
    /// The operations that are not over here, by group and in their order.
    #[must_use]
    pub fn in_flight(&self) -> Vec<Status> {
        let groups = self.groups.values();
        groups
            .flat_map(|group| group.in_flight_since(self.node.now))
            .collect()
    }
}

impl Group {
    fn in_flight_since(&self, now: Duration) -> impl Iterator<Item = Status> {
        let open = self.ops.iter().filter(|(_, one)| !one.stage.is_over());
        open.map(move |(&op, one)| {
            let (missing, sum) = (one.missing(), |count: [u32; 2]| count.iter().sum());
            Status {
                group: self.id,
                op,
                call: one.call(),
                age: now.saturating_sub(one.began),
                joined: (0..one.brought.len())
                    .filter(|rank| !missing.contains(rank))
                    .collect(),
                missing,
                waits_for: self.waits_for(op),
                settled: sum(one.halves.map(|half| half.settled)),
                chunks: sum(one.halves.map(|half| half.expected)),
            }
        })
    }

    /// The neighbours that hold an operation up.
    fn waits_for(&self, op: OpId) -> Vec<usize> {
        let mut peers = Vec::new();
        let Some(operation) = self.ops.get(&op).filter(|one| one.stage == Stage::Open) else {
            return peers;
        };
        for (tree, half) in operation.halves.iter().enumerate() {
            let plan = operation.plan.as_ref();
            if let Some(plan) = plan.filter(|_| operation.has_to_start(tree)) {
                let next = self.step(op, plan.nth_of(tree, half.started));
                let parts = next.iter().flat_map(|(chunk, step)| {
                    let parts = step.from_children.iter().map(|(peer, _)| *peer);
                    parts.map(|peer| (peer, chunk.index))
                });
                peers.extend(parts.filter_map(|(peer, chunk)| {
                    let child = self.child(peer, tree)?;
                    (!child.arrived.contains_key(&(op, chunk))).then_some(peer)
                }));
            } else if half.settled < half.expected {
                peers.extend(self.parents[tree].as_ref().map(|(peer, _)| *peer));
            }
        }
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}
