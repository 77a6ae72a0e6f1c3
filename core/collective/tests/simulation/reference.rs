//! The result a collective has to give, computed by recursion over the trees in one place, without machine.

use std::ops::Range;

use collective::kernels::{self, Store};
use collective::machine::{OnPeerLoss, OpId};
use collective::schedule::{Chunk, Flow, Plan};
use collective::tree::Tree;
use collective::{Call, DType, OpKind, ReduceOp, Scale};

use crate::cluster::Cluster;
use crate::wide;

/// The result bytes of an operation that all ranks called alike.
pub(crate) fn result(cluster: &Cluster, op: OpId) -> Vec<u8> {
    let layout = &cluster.group.layout;
    let call = cluster.programs[0][op as usize];
    let inputs: Vec<Vec<u8>> = (0..layout.world())
        .map(|rank| cluster.input(rank, op as usize))
        .collect();
    match call.kind {
        OpKind::Barrier
        | OpKind::Close
        | OpKind::Gather { .. }
        | OpKind::Scatter { .. }
        | OpKind::AllToAll { .. }
        | OpKind::Send { .. }
        | OpKind::Receive { .. } => Vec::new(),
        OpKind::Broadcast { root } => inputs[root as usize].clone(),
        OpKind::AllGather => inputs.concat(),
        OpKind::AllReduce { .. } | OpKind::Reduce { .. } | OpKind::ReduceScatter { .. } => {
            combined(cluster, &call, &inputs)
        }
    }
}

/// The part of the result that is a rank's.
pub(crate) fn part(call: &Call, rank: u32, world: u32) -> Range<usize> {
    let all = call.result_bytes(world) as usize;
    if let OpKind::ReduceScatter { .. } = call.kind {
        let each = all / world as usize;
        rank as usize * each..(rank as usize + 1) * each
    } else {
        0..all
    }
}

/// Whether a rank may read the result.
pub(crate) fn entitled(call: &Call, rank: u32) -> bool {
    match call.kind {
        OpKind::Reduce { root, .. } => root == rank,
        OpKind::AllReduce { .. }
        | OpKind::Broadcast { .. }
        | OpKind::AllGather
        | OpKind::ReduceScatter { .. }
        | OpKind::Barrier
        | OpKind::Close
        | OpKind::Gather { .. }
        | OpKind::Scatter { .. }
        | OpKind::AllToAll { .. }
        | OpKind::Send { .. }
        | OpKind::Receive { .. } => true,
    }
}

fn combined(cluster: &Cluster, call: &Call, inputs: &[Vec<u8>]) -> Vec<u8> {
    let group = &cluster.group;
    // The cut decides which tree adds up what.
    let cut = match group.recovery.on_peer_loss {
        OnPeerLoss::Fail => Plan::new,
        OnPeerLoss::Hold => Plan::kept,
    };
    let plan = cut(*call, &group.layout, group.chunk_bytes);
    let mut result = Vec::new();
    for index in 0..plan.chunks() {
        let chunk = plan.chunk(index);
        assert!(matches!(chunk.flow, Flow::Combine { .. }));
        let tree = &group.trees.trees[chunk.tree()];
        if call.widening() > 1 {
            result.extend(wide::result(call, &group.layout, inputs, tree, &chunk));
            continue;
        }
        result.extend(subtree(cluster, call, inputs, tree, &chunk, tree.root));
    }
    result
}

/// Local ranks in rank order, then children in node order. Each node divides what its ranks bring in 16 or 8
/// bits of a float; for other types the root divides. A factor is each node's own ranks'.
fn subtree(
    cluster: &Cluster,
    call: &Call,
    inputs: &[Vec<u8>],
    tree: &Tree,
    chunk: &Chunk,
    node: usize,
) -> Vec<u8> {
    let range = chunk.offset as usize..(chunk.offset + chunk.bytes) as usize;
    let local = cluster
        .group
        .layout
        .ranks(node)
        .map(|rank| inputs[rank as usize][range.clone()].to_vec());
    let below = tree.children[node]
        .iter()
        .map(|&child| subtree(cluster, call, inputs, tree, chunk, child));
    let parts: Vec<Vec<u8>> = local.chain(below).collect();
    let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let op = call.reduce_op().unwrap();
    let layout = &cluster.group.layout;
    let by = layout.world();
    let own = layout.local(node);
    let scale = match (op, call.dtype) {
        (ReduceOp::Avg, DType::F16 | DType::Bf16 | DType::E4m3 | DType::E5m2) => {
            Scale::Divide { first: own, by }
        }
        (ReduceOp::Avg, _) if node == tree.root => Scale::Divide {
            first: slices.len(),
            by,
        },
        (ReduceOp::PremulSum(by), _) => Scale::Multiply { first: own, by },
        (ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Max | ReduceOp::Min, _) => Scale::Not,
    };
    let mut combined = vec![0; chunk.bytes as usize];
    kernels::reduce(call.dtype, op, &mut combined, &slices, scale, Store::Cached);
    combined
}
