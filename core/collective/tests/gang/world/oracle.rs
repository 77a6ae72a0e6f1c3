//! What has to hold whatever happens: see the rules in docs/protocol/recovery.md.

use std::collections::BTreeMap;

use collective::machine::{Cause, GroupId, Handover, OpId, Verdict, WORLD};
use collective::{Call, OpKind};
use topology::OnPeerLoss;

use super::World;
use super::groups::{Group, Outcome};
use crate::fixture::integers::{bytes_of, combine, words};
use crate::fixture::reference::Reference;
use crate::fixture::refusal;

impl World {
    /// Checks everything that anybody knows so far.
    pub(crate) fn check(&self) {
        for (&group, of) in &self.groups {
            self.check_group(group, of);
        }
        self.check_commits();
    }

    fn check_group(&self, group: GroupId, of: &Group) {
        let members = self.members();
        // REC-2: what was delivered where an end waits for everybody holds for everybody, as long as one of those who
        // took part remembers it.
        let nodes = self.nodes_of(group);
        let remembers = |node: &usize| nodes.contains(node) && !self.hosts.has_died(*node);
        let stable = self.setup.recovery.handover == Handover::Stable;
        let binds = stable && members.iter().any(remembers);
        // Of what each rank gets for itself the others know nothing.
        let each = stable
            && members
                .iter()
                .all(|node| remembers(node) || !nodes.contains(node));
        let restarts = self.setup.recovery.on_peer_loss == OnPeerLoss::Restart;
        let longest = of.members.iter().map(|one| one.program.len()).max();
        for op in 0..longest.unwrap_or(0) {
            let mut delivered: BTreeMap<u32, &Outcome> = BTreeMap::new();
            let mut results = BTreeMap::new();
            let mut calls = of.members.iter().filter_map(|one| one.program.get(op));
            let exchanges = calls.any(|call| call.kind.exchanges());
            for (&rank, member) in of.ranks.iter().zip(&of.members) {
                let Some(outcome) = member.outcomes.get(&(op as OpId)) else {
                    continue;
                };
                if let Ok((bytes, epoch)) = outcome {
                    let made = results.entry(*epoch);
                    let made = made.or_insert_with(|| self.result(group, op, rank, *epoch));
                    if made.call.kind.exchanges() {
                        made.bytes = self.exchanged(group, rank, op, &made.call);
                    }
                    self.check_bytes(made, (group, op), rank, bytes, *epoch);
                }
                let node = self.setup.layout.node_of(rank);
                if let Err(Cause::Broken(broken)) = outcome {
                    // Whoever knew an end before the loss knows another one.
                    assert!(restarts, "operation {op} of group {group}: {broken}");
                    let own = self.sidecars[node].broken.map(|(_, own)| own);
                    let knows = own == Some(*broken) || !self.hosts.runs(node);
                    assert!(knows, "rank {rank} of node {node}: {broken}, not {own:?}");
                    continue;
                }
                let survives = members.contains(&node) && !self.gone_for_good.contains(&node);
                if survives || restarts || binds && (each || !exchanges) {
                    delivered.insert(rank, outcome);
                }
            }
            self.check_alike(of, (group, op), &delivered);
        }
    }

    /// REC-1 and COLL-1: the same epoch or the same error on all.
    fn check_alike(
        &self,
        of: &Group,
        (group, op): (GroupId, usize),
        delivered: &BTreeMap<u32, &Outcome>,
    ) {
        let kind = |outcome: &Outcome| match outcome {
            Ok((_, epoch)) => Ok(*epoch),
            Err(cause) => Err(*cause),
        };
        let mut all = delivered.iter();
        let Some((first, outcome)) = all.next() else {
            return;
        };
        for (rank, other) in all {
            assert_eq!(
                kind(outcome),
                kind(other),
                "operation {op} of group {group}: ranks {first} and {rank} know different ends"
            );
        }
        if let Err(cause) = outcome {
            self.check_error(of, (group, op), cause);
        }
    }

    /// An error has a reason.
    fn check_error(&self, of: &Group, (group, op): (GroupId, usize), cause: &Cause) {
        let calls = || of.members.iter().filter_map(|one| one.program.get(op));
        let members = self.members();
        let is_lost = |rank| !members.contains(&self.setup.layout.node_of(rank));
        match *cause {
            Cause::Verdict(Verdict::Mismatch(mismatch)) => {
                assert!(mismatch.one.call != mismatch.other.call);
                assert!(of.ranks.contains(&mismatch.one.rank));
                assert!(of.ranks.contains(&mismatch.other.rank));
                assert!(calls().any(|call| *call == without_pair(mismatch.one.call)));
                assert!(calls().any(|call| *call == without_pair(mismatch.other.call)));
            }
            Cause::Verdict(Verdict::Refusal(refusal))
                if group == WORLD
                    && self.refused.get(&(refusal.claim.rank, op as OpId))
                        == Some(&refusal.reason) => {}
            Cause::Verdict(Verdict::Refusal(refusal)) => {
                refusal::check(refusal, &of.ranks, of.replicated, is_lost);
            }
            Cause::Broken(broken) => unreachable!("{broken}"),
        }
    }

    /// REC-3: a result is what a group's ranks of the members of a committed epoch make together. `rank` knows of one.
    fn result(&self, group: GroupId, op: usize, rank: u32, epoch: u32) -> Made {
        let of = &self.groups[&group];
        let commit = self
            .store
            .iter()
            .find(|commit| commit.epoch == u64::from(epoch));
        let commit = commit.unwrap_or_else(|| panic!("epoch {epoch} was never committed"));
        let is_member = |rank: &u32| {
            let node = self.setup.layout.node_of(*rank) as u32;
            commit.members.binary_search(&node).is_ok()
        };
        let ranks: Vec<u32> = of.ranks.iter().copied().filter(is_member).collect();
        let whole = ranks.len() == of.ranks.len();
        let calls = |rank: u32| of.member(rank).and_then(|one| one.program.get(op)).copied();
        let call = calls(rank).unwrap();
        let goes_on = of.replicated && !call.kind.exchanges();
        assert!(
            whole || goes_on || call.kind == OpKind::Close,
            "operation {op} of group {group} in epoch {epoch}"
        );
        for &other in &ranks {
            let other = calls(other);
            assert_eq!(other, Some(call), "who took part has called the same");
        }
        let bytes = self.reference(group, op, &call, &commit.members);
        let root = call.kind.root().map(|root| of.ranks[root as usize]);
        Made {
            call,
            root,
            ranks,
            bytes,
        }
    }

    fn check_bytes(
        &self,
        made: &Made,
        (group, op): (GroupId, usize),
        rank: u32,
        bytes: &[u8],
        epoch: u32,
    ) {
        let took_part = made.ranks.binary_search(&rank);
        assert!(took_part.is_ok(), "rank {rank} took no part in {epoch}");
        let reduces = matches!(made.call.kind, OpKind::Reduce { .. });
        if reduces && made.root != Some(rank) {
            return;
        }
        let all = made.bytes.len();
        let part = match (made.call.kind, took_part) {
            // Nodes that keep results for others have all of them.
            (OpKind::ReduceScatter { .. }, Ok(at))
                if self.setup.recovery.on_peer_loss == OnPeerLoss::Restart =>
            {
                let each = all / made.ranks.len();
                at * each..(at + 1) * each
            }
            _ => 0..all,
        };
        assert!(
            bytes.len() == all && bytes[part.clone()] == made.bytes[part],
            "rank {rank} has other bytes for operation {op} of group {group} of epoch {epoch}"
        );
    }

    /// REC-4: one line of epochs, each with members of the one before.
    fn check_commits(&self) {
        for pair in self.store.windows(2) {
            assert!(pair[0].epoch < pair[1].epoch);
        }
    }

    fn reference(&self, group: GroupId, op: usize, call: &Call, members: &[u32]) -> Vec<u8> {
        let of = &self.groups[&group];
        let members: Vec<usize> = members.iter().map(|&member| member as usize).collect();
        let whole = self.setup.layout.of_members(&members).unwrap();
        let (nodes, layout) = &whole.of_ranks(&of.ranks);
        // Under their numbers in the group.
        let ranks = || (0..nodes.len()).flat_map(|node| layout.ranks(node));
        let input = |rank: u32| self.brought(group, of.ranks[rank as usize], op, call);
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
                    let trees = self.trees(&members).of_nodes(nodes);
                    let reference = Reference {
                        layout,
                        trees: &trees.unwrap(),
                        chunk_bytes: self.setup.chunk_bytes,
                        on_peer_loss: self.setup.recovery.on_peer_loss,
                    };
                    let mut inputs = vec![Vec::new(); layout.whole() as usize];
                    ranks().for_each(|rank| inputs[rank as usize] = input(rank));
                    return reference.combined(call, &inputs);
                }
                let dtype = call.dtype;
                let words = |rank| words(dtype, &input(rank));
                let inputs: Vec<Vec<i64>> = ranks().map(words).collect();
                let combined = (0..call.count as usize).flat_map(|at| {
                    let column = inputs.iter().map(|input| input[at]);
                    bytes_of(dtype, combine((dtype, op), column, inputs.len() as i64))
                });
                combined.collect()
            }
        }
    }
}

/// What an epoch made of an operation.
struct Made {
    call: Call,
    /// Who alone gets it, where one does.
    root: Option<u32>,
    /// Who took part, ascending.
    ranks: Vec<u32>,
    bytes: Vec<u8>,
}

/// Two ranks that disagree about what one has for the other name that alone.
fn without_pair(call: Call) -> Call {
    match call.kind {
        OpKind::AllToAll { with: Some(_) } => Call {
            kind: OpKind::AllToAll { with: None },
            count: 0,
            ..call
        },
        OpKind::AllToAll { with: None }
        | OpKind::Gather { .. }
        | OpKind::Scatter { .. }
        | OpKind::Send { .. }
        | OpKind::Receive { .. }
        | OpKind::AllReduce { .. }
        | OpKind::Reduce { .. }
        | OpKind::Broadcast { .. }
        | OpKind::AllGather
        | OpKind::ReduceScatter { .. }
        | OpKind::Barrier
        | OpKind::Close => call,
    }
}
