//! Calls that tests draw.

use collective::{Call, CallError, DType, Numerics, OpKind, ReduceOp};
use sim::Rng;

use crate::fixture::draw;

pub(crate) const FLOATS: [DType; 6] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::Bf16,
    DType::E4m3,
    DType::E5m2,
];

/// More ranks exchange nothing: 5,000 messages.
const MOST_EXCHANGE: u32 = 70;

/// Any call on a group of `world` ranks, of at most some chunks, that is legal.
pub(crate) fn any_reduction(rng: &mut Rng, world: u32) -> Call {
    let op = *rng.pick(&ReduceOp::ALL);
    let root = rng.range(0..u64::from(world)) as u32;
    let kind = *rng.pick(&[
        OpKind::AllReduce { op },
        OpKind::AllReduce { op },
        OpKind::Reduce { op, root },
        OpKind::Broadcast { root },
        OpKind::AllGather,
        OpKind::ReduceScatter { op },
        OpKind::Barrier,
    ]);
    let dtype = *rng.pick(&DType::ALL);
    let count = match kind {
        OpKind::AllGather => *rng.pick(&[0, 1, 3, rng.clone().range(0..200)]),
        OpKind::ReduceScatter { .. } => {
            draw::elements(rng, dtype.size()).next_multiple_of(u64::from(world))
        }
        OpKind::AllReduce { .. } | OpKind::Reduce { .. } | OpKind::Broadcast { .. } => {
            draw::elements(rng, dtype.size())
        }
        OpKind::Barrier
        | OpKind::Close
        | OpKind::Gather { .. }
        | OpKind::Scatter { .. }
        | OpKind::AllToAll { .. }
        | OpKind::Send { .. }
        | OpKind::Receive { .. } => 0,
    };
    let call = Call {
        kind,
        dtype,
        count,
        tag: rng.range(0..2),
        numerics: *rng.pick(&Numerics::ALL),
    };
    match call.check(world) {
        Err(CallError::Factor { .. } | CallError::Bits { .. }) => any_reduction(rng, world),
        Ok(()) | Err(CallError::Root { .. } | CallError::Size { .. } | CallError::Parts { .. }) => {
            call
        }
    }
}

/// Any call on a group of so many ranks, of which so many of 16 are sums and so many give each rank something of its own.
pub(crate) fn any_call(rng: &mut Rng, ranks: u32, sums: usize, own: usize) -> Call {
    // Integers show what was combined, floats in which order.
    let dtype = if rng.chance(1, 2) {
        DType::I64
    } else {
        *rng.pick(&FLOATS)
    };
    let is_legal = |op: &ReduceOp| {
        let call = Call::all_reduce(dtype, *op, 0);
        call.check(ranks).is_ok()
    };
    let legal: Vec<ReduceOp> = ReduceOp::ALL.into_iter().filter(is_legal).collect();
    let op = *rng.pick(&legal);
    let root = rng.range(0..u64::from(ranks)) as u32;
    let sum = OpKind::AllReduce { op };
    let others = [
        OpKind::Reduce { op, root },
        OpKind::Broadcast { root },
        OpKind::AllGather,
        OpKind::ReduceScatter { op },
        OpKind::Barrier,
    ];
    let exchanges = [
        OpKind::Gather { root },
        OpKind::Scatter { root },
        OpKind::AllToAll { with: None },
    ];
    // Each pair of ranks has a message in one.
    let kind = match rng.below(16) {
        drawn if drawn < sums => sum,
        drawn if drawn < sums + own && ranks <= MOST_EXCHANGE => *rng.pick(&exchanges),
        _ => *rng.pick(&others),
    };
    let count = match kind {
        OpKind::Barrier
        | OpKind::Close
        | OpKind::AllToAll { .. }
        | OpKind::Send { .. }
        | OpKind::Receive { .. } => 0,
        OpKind::AllGather => rng.range(0..30),
        OpKind::Gather { .. } | OpKind::Scatter { .. } => rng.range(0..100),
        OpKind::ReduceScatter { .. } => rng.range(0..60) * u64::from(ranks),
        OpKind::AllReduce { .. } | OpKind::Reduce { .. } | OpKind::Broadcast { .. } => {
            draw::elements(rng, dtype.size())
        }
    };
    Call {
        kind,
        dtype,
        count,
        tag: 0,
        numerics: *rng.pick(&Numerics::ALL),
    }
}

/// Some of the ranks: every so many, neighbours, or any.
pub(crate) fn any_ranks(rng: &mut Rng, world: u32) -> Vec<u32> {
    let from = rng.range(0..u64::from(world)) as u32;
    let ranks: Vec<u32> = match rng.below(5) {
        0 => (from % 2..world).step_by(1 + rng.below(4)).collect(),
        1 => (from..world.min(from + 1 + rng.below(7) as u32)).collect(),
        2 => (0..world).collect(),
        3 => (0..world).filter(|_| rng.chance(1, 2)).collect(),
        _ => (0..world).filter(|_| rng.chance(2, 3)).collect(),
    };
    if ranks.is_empty() { vec![from] } else { ranks }
}

/// A sum of floats, of which each chunk is a message on each edge.
pub(crate) fn sum(count: u64) -> Call {
    Call::all_reduce(DType::F32, ReduceOp::Sum, count)
}
