//! The result a collective has to give.

use std::ops::Range;

use collective::machine::OpId;
use collective::{Call, OpKind};

use crate::cluster::Cluster;
use crate::fixture::reference::Reference;

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
            let group = &cluster.group;
            let reference = Reference {
                layout: &group.layout,
                trees: &group.trees,
                chunk_bytes: group.chunk_bytes,
                on_peer_loss: group.recovery.on_peer_loss,
            };
            reference.combined(&call, &inputs)
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
