//! What is in flight, for whoever asks why nothing moves: who has joined an operation and who is missing.

use std::time::Duration;

use super::Operation;
use crate::machine::io::{GroupId, OpId};
use crate::machine::traffic::Traffic;
use crate::machine::view::GroupView;
use crate::op::Call;

/// An operation in flight on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationStatus {
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

impl Operation {
    pub(in crate::machine) fn status(
        &self,
        view: &GroupView,
        traffic: &Traffic,
        now: Duration,
    ) -> OperationStatus {
        let (missing, sum) = (self.missing(), |count: [u32; 2]| count.iter().sum());
        OperationStatus {
            group: view.id,
            op: self.id,
            call: self.call(),
            age: now.saturating_sub(self.began),
            joined: (0..self.brought.len())
                .filter(|rank| !missing.contains(rank))
                .collect(),
            missing,
            waits_for: self.waits_for(view, traffic),
            settled: sum(self.halves.map(|half| half.settled)),
            chunks: sum(self.halves.map(|half| half.expected)),
        }
    }

    /// The neighbours that hold it up.
    fn waits_for(&self, view: &GroupView, traffic: &Traffic) -> Vec<usize> {
        let mut peers = Vec::new();
        if !self.is_open() {
            return peers;
        }
        for (tree, half) in self.halves.iter().enumerate() {
            let plan = self.plan.as_ref();
            if let Some(plan) = plan.filter(|_| self.has_to_start(tree)) {
                let next = self.step(view, plan.nth_of(tree, half.started));
                let parts = next.iter().flat_map(|(chunk, step)| {
                    let parts = step.from_children.iter().map(|(peer, _)| *peer);
                    parts.map(|peer| (peer, chunk.index))
                });
                let is_missing = |&(peer, chunk): &(usize, u32)| {
                    traffic.arrival(peer, tree, self.id, chunk).is_none()
                };
                peers.extend(parts.filter(is_missing).map(|(peer, _)| peer));
            } else if half.settled < half.expected {
                peers.extend(view.parent(tree));
            }
        }
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}
