//! What the engine is doing: answered on request, and written into a file when something has failed.

use collective::machine::{Frame, GroupId, OpId, WORLD};

use super::Engine;
use super::waits::Who;
use crate::inspect::{LinkState, Operation, Ops, Waiting};

/// The tree in which every part of an operation meets the others.
const STRAGGLER_TREE: u8 = 0;

impl Engine {
    /// Leaves a snapshot, if somebody has asked for one.
    pub(super) fn answer(&mut self) {
        if self.telemetry.takes_snapshot() {
            let ops = self.ops();
            self.telemetry.leave_snapshot(ops);
        }
    }

    pub(super) fn ops(&self) -> Ops {
        let node = |peer: &usize| self.members.described(*peer);
        let operation = |status: collective::machine::OperationStatus| Operation {
            group: status.group,
            operation: status.op,
            call: status.call.map(|call| call.to_string()),
            age_milliseconds: u64::try_from(status.age.as_millis()).unwrap_or(u64::MAX),
            joined: status.joined,
            missing: status.missing,
            waits_for: status.waits_for.iter().map(node).collect(),
            settled: status.settled,
            chunks: status.chunks,
        };
        let links = self.links.transports().map(|(peer, name)| LinkState {
            node: self.members.rank_of(peer) as u32,
            name: self.members.name(peer).to_owned(),
            transport: name.to_owned(),
        });
        let waiting = self
            .local
            .waiting()
            .map(|(local_rank, calls, for_memory)| Waiting {
                local_rank,
                calls,
                for_memory,
            });
        let broken = self.driver.machine().broken();
        let broken = broken.map(|broken| {
            broken
                .renumbered(|node| self.members.rank_of(node))
                .to_string()
        });
        Ops {
            epoch: self.driver.config().fence.epoch,
            node: self.members.rank_of(self.driver.config().node) as u32,
            members: self.members.ranks().to_vec(),
            broken: self.local.ranks().over().map(str::to_owned).or(broken),
            links: links.collect(),
            operations: self
                .driver
                .machine()
                .in_flight()
                .into_iter()
                .map(operation)
                .collect(),
            waiting: waiting.filter(|one| one.calls > 0).collect(),
            fallbacks: self.telemetry.metrics().fallbacks.get(),
            placement: self.places.report.clone(),
            history: self.telemetry.flight_recorder().lines(self.now()),
        }
    }

    /// Whom the oldest operation of a group waits for, of those that a local rank has called, in words.
    pub(super) fn waits_for(&self, group: GroupId, rank: usize) -> String {
        let operations = self.driver.machine().in_flight().into_iter();
        let called = operations.filter(|one| one.group == group && one.joined.contains(&rank));
        let Some(oldest) = called.min_by_key(|one| one.op) else {
            return String::new();
        };
        let own = self.members.rank_of(self.driver.config().node);
        if !oldest.missing.is_empty() {
            let missing = oldest
                .missing
                .iter()
                .map(|rank| self.local.global(*rank).to_string());
            let missing: Vec<_> = missing.collect();
            return format!(
                "on node {own} rank {} has not called it",
                missing.join(", ")
            );
        }
        let nodes = oldest.waits_for.iter();
        let nodes: Vec<_> = nodes.map(|peer| self.members.described(*peer)).collect();
        match nodes.is_empty() {
            true => String::new(),
            false => format!(
                "{} has not sent its part, so a rank there or behind it has not called it, or is slow",
                nodes.join(", ")
            ),
        }
    }

    /// Somebody has brought its part of an operation: perhaps the last one, who kept the others waiting.
    pub(super) fn came(&mut self, who: Who, op: OpId) {
        let trees = &self.driver.config().trees.trees;
        let below = trees[usize::from(STRAGGLER_TREE)].children[self.driver.config().node].len();
        let expected = self.local.ranks().local() + below;
        let now = self.now();
        self.telemetry.came(who, (op, expected), now, &self.members);
    }

    /// A frame has come: a neighbour's first part of an operation of the world counts.
    pub(super) fn note_arrival(&mut self, peer: usize, frame: &Frame) {
        if let Frame::ReduceChunk {
            group: WORLD,
            tree: STRAGGLER_TREE,
            op,
            chunk: 0,
            ..
        } = *frame
        {
            self.came(Who::Node(peer), op);
        }
    }
}
