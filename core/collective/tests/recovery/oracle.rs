//! What has to hold whatever happens: see the rules in docs/protocol/recovery.md.

use std::collections::BTreeMap;

use collective::machine::{Cause, Handover, Reason, Verdict};
use collective::{Call, DoubleTree, OpKind, ReduceOp};

use crate::fixture::reference::Reference;
use crate::world::{Outcome, World};

impl World {
    /// Checks everything that was told to anybody so far.
    pub(crate) fn check(&self) {
        let longest = self.programs.iter().map(Vec::len).max().unwrap_or(0);
        let members = self.members();
        for op in 0..longest {
            let mut told: BTreeMap<u32, &Outcome> = BTreeMap::new();
            let mut results = BTreeMap::new();
            for (rank, client) in (0u32..).zip(&self.clients) {
                let Some(outcome) = client.outcomes.get(op) else {
                    continue;
                };
                if let Ok((bytes, epoch)) = outcome {
                    let made = results.entry(*epoch);
                    let made = made.or_insert_with(|| self.result(op, rank, *epoch));
                    made.check(op, rank, bytes, *epoch);
                }
                let node = self.setup.layout.node_of(rank);
                let survives = members.contains(&node) && !self.gone_for_good.contains(&node);
                // REC-2: what was told where an end waits for everybody holds for everybody, as long as one of those
                // who took part remembers it.
                let remembers = |&node: &usize| self.sidecars[node].life == 1;
                let binds = self.setup.recovery.handover == Handover::Stable
                    && members.iter().any(remembers);
                if survives || binds {
                    told.insert(rank, outcome);
                }
            }
            self.check_alike(op, &told);
        }
        self.check_commits();
    }

    /// REC-1: the same epoch or the same error on all.
    fn check_alike(&self, op: usize, told: &BTreeMap<u32, &Outcome>) {
        let kind = |outcome: &Outcome| match outcome {
            Ok((_, epoch)) => Ok(*epoch),
            Err(cause) => Err(*cause),
        };
        let mut all = told.iter();
        let Some((first, outcome)) = all.next() else {
            return;
        };
        for (rank, other) in all {
            assert_eq!(
                kind(outcome),
                kind(other),
                "operation {op}: rank {first} and rank {rank} were told different ends"
            );
        }
        if let Err(cause) = outcome {
            self.check_error(op, cause);
        }
    }

    /// An error has a reason.
    fn check_error(&self, op: usize, cause: &Cause) {
        let calls = || self.programs.iter().filter_map(|program| program.get(op));
        let lost = |rank: u32| !self.members().contains(&self.setup.layout.node_of(rank));
        match cause {
            Cause::Verdict(Verdict::Mismatch(mismatch)) => {
                assert!(mismatch.one.call != mismatch.other.call);
                assert!(calls().any(|call| *call == mismatch.one.call));
                assert!(calls().any(|call| *call == mismatch.other.call));
            }
            Cause::Verdict(Verdict::Refusal(refusal)) => {
                let kind = refusal.claim.call.kind;
                let right = match (refusal.reason, kind) {
                    (
                        Reason::RootLost,
                        OpKind::Reduce { root, .. } | OpKind::Broadcast { root },
                    ) => lost(root),
                    (Reason::RanksLost, OpKind::AllGather | OpKind::ReduceScatter { .. }) => {
                        self.members().len() < self.nodes()
                    }
                    (Reason::NotReplicated, _) => {
                        !self.setup.recovery.replicated && self.members().len() < self.nodes()
                    }
                    _ => false,
                };
                assert!(right, "operation {op}: {refusal}");
            }
            Cause::Broken(broken) => panic!("operation {op} was told {broken}"),
        }
    }

    /// REC-3: a result is what the members of a committed epoch make together. `rank` was told of one.
    fn result(&self, op: usize, rank: u32, epoch: u32) -> Made {
        let commit = self
            .store
            .iter()
            .find(|commit| commit.epoch == u64::from(epoch));
        let commit = commit.unwrap_or_else(|| panic!("epoch {epoch} was never committed"));
        let ranks: Vec<u32> = commit
            .members
            .iter()
            .flat_map(|&member| self.setup.layout.ranks(member as usize))
            .collect();
        let whole = commit.members.len() == self.nodes();
        assert!(whole || self.setup.recovery.replicated, "operation {op}");
        let call = self.programs[rank as usize][op];
        for &other in &ranks {
            let other = self.programs[other as usize].get(op);
            assert_eq!(other, Some(&call), "who took part has called the same");
        }
        let bytes = self.reference(op, &call, &commit.members);
        Made { call, ranks, bytes }
    }

    /// REC-4: one line of epochs, each with members of the one before.
    fn check_commits(&self) {
        for pair in self.store.windows(2) {
            assert!(pair[0].epoch < pair[1].epoch);
        }
    }

    fn reference(&self, op: usize, call: &Call, members: &[u32]) -> Vec<u8> {
        let members: Vec<usize> = members.iter().map(|&member| member as usize).collect();
        let layout = &self.setup.layout.of_members(&members).unwrap();
        let ranks = || (0..members.len()).flat_map(|node| layout.ranks(node));
        let input = |rank| self.input(rank, op);
        match call.kind {
            OpKind::Barrier
            | OpKind::Close
            | OpKind::Gather { .. }
            | OpKind::Scatter { .. }
            | OpKind::AllToAll { .. }
            | OpKind::Send { .. }
            | OpKind::Receive { .. } => Vec::new(),
            OpKind::Broadcast { root } => input(root),
            OpKind::AllGather => ranks().flat_map(input).collect(),
            OpKind::AllReduce { op } | OpKind::Reduce { op, .. } | OpKind::ReduceScatter { op } => {
                if call.dtype.is_float() {
                    let zones = members.iter().map(|&node| self.setup.zones[node]);
                    let reference = Reference {
                        layout,
                        trees: &DoubleTree::build(&zones.collect::<Vec<_>>()),
                        chunk_bytes: self.setup.chunk_bytes,
                        on_peer_loss: self.setup.recovery.on_peer_loss,
                    };
                    let mut inputs = vec![Vec::new(); layout.whole() as usize];
                    ranks().for_each(|rank| inputs[rank as usize] = input(rank));
                    return reference.combined(call, &inputs);
                }
                let inputs: Vec<Vec<i64>> = ranks().map(|rank| words(&input(rank))).collect();
                let combined = (0..call.count as usize).flat_map(|at| {
                    let column = inputs.iter().map(|input| input[at]);
                    combine(op, column, inputs.len() as i64).to_ne_bytes()
                });
                combined.collect()
            }
        }
    }
}

/// What an epoch made of an operation.
struct Made {
    call: Call,
    /// Who took part, ascending.
    ranks: Vec<u32>,
    bytes: Vec<u8>,
}

impl Made {
    fn check(&self, op: usize, rank: u32, bytes: &[u8], epoch: u32) {
        let took_part = self.ranks.binary_search(&rank).is_ok();
        assert!(took_part, "rank {rank} took no part in {epoch}");
        if matches!(self.call.kind, OpKind::Reduce { root, .. } if root != rank) {
            return;
        }
        assert!(
            bytes == self.bytes,
            "rank {rank} has other bytes for operation {op} of epoch {epoch}"
        );
    }
}

fn words(bytes: &[u8]) -> Vec<i64> {
    let words = bytes.as_chunks().0.iter();
    words.map(|word| i64::from_ne_bytes(*word)).collect()
}

fn combine(op: ReduceOp, column: impl Iterator<Item = i64>, ranks: i64) -> i64 {
    let combined = match op {
        ReduceOp::Sum | ReduceOp::Avg => column.reduce(i64::wrapping_add),
        ReduceOp::Max => column.max(),
        ReduceOp::Min => column.min(),
        ReduceOp::PremulSum(_) => unreachable!("integers have no factor"),
    };
    match (op, combined.unwrap_or(0)) {
        (ReduceOp::Avg, sum) => sum / ranks,
        (_, whole) => whole,
    }
}
