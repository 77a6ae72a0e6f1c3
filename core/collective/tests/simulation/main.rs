//! Seeded simulation of whole groups: results, agreement, crashes at every step, silence, lateness and departure.
//! `SEED=n` replays one seed; with `SIM_SECONDS=n` the test in `misfortune` goes on with new ones.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

mod cluster;
mod failure;
#[path = "../fixture/mod.rs"]
#[expect(dead_code, reason = "nobody closes a group here")]
mod fixture;
mod group;
mod misfortune;
mod numerics;
mod ranks;
mod reference;
mod results;
mod shell;

use std::time::Duration;

use collective::{Call, CallError, DType, Numerics, OpKind, ReduceOp};
use sim::Rng;

use crate::fixture::draw;

/// Long enough for everything that is not hung.
const LIMIT: Duration = Duration::from_secs(60);

/// Any call on a group of `world` ranks, of at most some chunks.
fn any_call(rng: &mut Rng, world: u32) -> Call {
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
        OpKind::Barrier
        | OpKind::Close
        | OpKind::Gather { .. }
        | OpKind::Scatter { .. }
        | OpKind::AllToAll { .. }
        | OpKind::Send { .. }
        | OpKind::Receive { .. } => 0,
        OpKind::AllGather => *rng.pick(&[0, 1, 3, rng.clone().range(0..200)]),
        OpKind::ReduceScatter { .. } => {
            draw::elements(rng, dtype.size()).next_multiple_of(u64::from(world))
        }
        OpKind::AllReduce { .. } | OpKind::Reduce { .. } | OpKind::Broadcast { .. } => {
            draw::elements(rng, dtype.size())
        }
    };
    let call = Call {
        kind,
        dtype,
        count,
        tag: rng.range(0..2),
        numerics: *rng.pick(&Numerics::ALL),
    };
    match call.check(world) {
        Err(CallError::Factor { .. }) => any_call(rng, world),
        Ok(()) | Err(CallError::Root { .. } | CallError::Size { .. } | CallError::Parts { .. }) => {
            call
        }
    }
}

fn sum(count: u64) -> Call {
    Call {
        kind: OpKind::AllReduce { op: ReduceOp::Sum },
        dtype: DType::F32,
        count,
        tag: 0,
        numerics: Numerics::Fast,
    }
}
