//! The proof over every split of 2 to 200 nodes and samples beyond, and what it has to catch.

use std::collections::BTreeSet;

use super::*;
use crate::dtype::DType;
use crate::layout::Layout;
use crate::numerics::Numerics;
use crate::op::{Call, OpKind};
use crate::reduce_op::ReduceOp;

const ALL_REDUCE: OpKind = OpKind::AllReduce { op: ReduceOp::Sum };

const SHARED: OpKind = OpKind::ReduceScatter { op: ReduceOp::Sum };

fn two_zones(nodes: usize, first: usize) -> Vec<bool> {
    (0..nodes).map(|node| node >= first).collect()
}

/// Checks a call of `chunks` chunks over `zones`, and that one pair crosses each border: the gateways.
fn prove(trees: &DoubleTree, zones: &[bool], kind: OpKind, chunks: u64) -> Vec<CheckMessage> {
    let layout = Layout::uniform(zones.len(), 2).unwrap();
    let count = if kind == OpKind::AllGather {
        16
    } else {
        128 * chunks
    };
    let call = Call {
        kind,
        dtype: DType::F32,
        count,
        tag: 0,
        numerics: Numerics::Fast,
    };
    let messages = match check(trees, &ChunkPlan::new(call, &layout, 512)) {
        Ok(messages) => messages,
        Err(fault) => panic!("{} nodes, {kind:?}: {fault}", zones.len()),
    };
    let crossing = |least_bytes: u64| -> BTreeSet<(usize, usize)> {
        messages
            .iter()
            .filter(|message| zones[message.from] != zones[message.to])
            .filter(|message| message.bytes >= least_bytes)
            .map(|message| (message.from.min(message.to), message.from.max(message.to)))
            .collect()
    };
    let pairs = crossing(0);
    // Counted from the zones themselves: trees with one pair too many would list it as a gateway.
    let borders = zones.iter().collect::<BTreeSet<_>>().len() - 1;
    assert_eq!(pairs.len(), borders, "{pairs:?} cross in {kind:?}");
    if kind != OpKind::Barrier {
        assert_eq!(
            crossing(1),
            pairs,
            "{kind:?}: the pair that crosses carries the data"
        );
    }
    let gateways = trees
        .gateways
        .iter()
        .map(|&(near, far)| (near.min(far), near.max(far)));
    assert_eq!(
        pairs,
        gateways.collect(),
        "exactly the gateway pair crosses"
    );
    messages
}

// ZONE-2: exactly one node pair exchanges data across.
#[test]
fn every_split_of_2_to_200_nodes_sums_each_contribution_once_and_crosses_on_one_pair() {
    for nodes in 2..=200 {
        // The last of them is one zone, in which nothing may cross.
        for first in 1..=nodes {
            let zones = two_zones(nodes, first);
            prove(&DoubleTree::build(&zones), &zones, ALL_REDUCE, 2);
        }
    }
}

#[test]
fn sampled_splits_up_to_1250_nodes_hold_for_every_collective() {
    sim::for_each_seed(24, |rng| {
        let nodes = rng.range(201..1251) as usize;
        let zones = two_zones(nodes, 1 + rng.below(nodes - 1));
        let trees = DoubleTree::build(&zones);
        let root = rng.range(0..2 * nodes as u64) as u32;
        prove(&trees, &zones, ALL_REDUCE, 6);
        prove(
            &trees,
            &zones,
            OpKind::Reduce {
                op: ReduceOp::Sum,
                root,
            },
            6,
        );
        prove(&trees, &zones, OpKind::Broadcast { root }, 6);
        prove(&trees, &zones, OpKind::Barrier, 0);
    });
}

#[test]
fn sampled_gatherings_of_up_to_1250_nodes_hold() {
    // A chunk for each node: costs as much as hundreds of sums.
    sim::for_each_seed(2, |rng| {
        for nodes in [rng.range(201..1250) as usize, 1250] {
            let zones = two_zones(nodes, 1 + rng.below(nodes));
            prove(&DoubleTree::build(&zones), &zones, OpKind::AllGather, 1);
            prove(&DoubleTree::build(&zones), &zones, SHARED, nodes as u64);
        }
    });
}

/// Nothing goes down an edge but what is for somebody below it, and what announces to all that it is over.
#[test]
fn what_is_shared_out_goes_down_to_those_it_is_for_and_nobody_else() {
    for nodes in [2, 5, 16] {
        let zones = two_zones(nodes, nodes);
        let trees = DoubleTree::build(&zones);
        let layout = Layout::uniform(nodes, 1).unwrap();
        let count = 256 * nodes as u64;
        let call = Call {
            kind: SHARED,
            dtype: DType::F32,
            count,
            tag: 0,
            numerics: Numerics::Fast,
        };
        let messages = check(&trees, &ChunkPlan::new(call, &layout, 512)).unwrap();
        let bytes: u64 = messages.iter().map(|message| message.bytes).sum();
        let up = call.input_bytes() * (nodes as u64 - 1);
        let depths = trees.trees.iter().map(|tree| {
            let depth = |node| tree.path(node).count() as u64 - 1;
            (0..nodes).map(depth).sum::<u64>()
        });
        // A node's kilobyte is two chunks, one in each tree.
        assert_eq!(bytes, up + 512 * depths.sum::<u64>());
    }
}

#[test]
fn every_root_and_every_gathering_of_small_groups_holds() {
    for nodes in 1..=33 {
        for first in 1..=nodes {
            let zones = two_zones(nodes, first);
            let trees = DoubleTree::build(&zones);
            prove(&trees, &zones, OpKind::AllGather, 1);
            prove(&trees, &zones, SHARED, nodes as u64);
            for root in 0..nodes as u32 {
                prove(&trees, &zones, OpKind::Broadcast { root: 2 * root }, 3);
                prove(
                    &trees,
                    &zones,
                    OpKind::Reduce {
                        op: ReduceOp::Max,
                        root: 2 * root + 1,
                    },
                    5,
                );
            }
        }
    }
}

#[test]
fn the_border_carries_the_payload_once_each_way() {
    for (nodes, first) in [(2, 1), (9, 4), (64, 32), (128, 37)] {
        let zones = two_zones(nodes, first);
        let messages = prove(&DoubleTree::build(&zones), &zones, ALL_REDUCE, 8);
        let across = |there| {
            let crossing = messages.iter().filter(|m| zones[m.from] != zones[m.to]);
            crossing
                .filter(|m| zones[m.to] == there)
                .map(|m| m.bytes)
                .sum::<u64>()
        };
        assert_eq!((across(true), across(false)), (8 * 512, 8 * 512));
    }
}

#[test]
fn a_tree_that_forgets_a_node_or_counts_one_twice_is_caught() {
    let zones = vec![false; 7];
    let layout = Layout::uniform(7, 1).unwrap();
    let call = Call {
        kind: ALL_REDUCE,
        dtype: DType::F32,
        count: 1,
        tag: 0,
        numerics: Numerics::Fast,
    };
    let plan = ChunkPlan::new(call, &layout, 512);
    let trees = DoubleTree::build(&zones);
    assert!(check(&trees, &plan).is_ok());

    let leaf = (0..7)
        .find(|&node| trees.trees[0].children[node].is_empty())
        .unwrap();
    let parent = trees.trees[0].parent[leaf].unwrap();
    let mut forgetful = trees.clone();
    forgetful.trees[0].children[parent].retain(|&child| child != leaf);
    assert!(check(&forgetful, &plan).is_err());

    let mut twice = trees;
    twice.trees[0].children[parent].push(leaf);
    assert_eq!(
        check(&twice, &plan),
        Err(Fault::Twice {
            chunk: 0,
            node: parent
        })
    );
}
