//! Kernels of every vector instruction set for what has no vector code of its own: f64, i8, bits of integers, averages of
//! integers. Source after source is combined into a block on the stack, in loops that the compiler makes vectors of.
//! The arithmetic is that of `scalar`, in its order.

use super::Store;
use super::scalar::Element;
use crate::reduce_op::{ReduceOp, Scale};

/// Elements of a block: 4 KiB of the widest, which stay in the smallest cache with as much of a source.
const BLOCK: usize = 512;

/// Combines equally long sources, at least one, into a result of that length.
pub(super) fn reduce<E: Element>(
    op: ReduceOp,
    into: &mut [u8],
    sources: &[&[u8]],
    scale: Scale,
    _store: Store,
) {
    let mut block = [E::Wide::default(); BLOCK];
    for (index, into) in into.chunks_mut(BLOCK * E::BYTES).enumerate() {
        let start = index * BLOCK * E::BYTES;
        let block = &mut block[..into.len() / E::BYTES];
        for (source, bytes) in sources.iter().enumerate() {
            let bytes = &bytes[start..start + into.len()];
            match scale {
                Scale::Multiply { first, by } if source < first => {
                    let by = by.value();
                    let factor = |next| E::multiply(next, by);
                    combine::<E>(op, source, block, bytes, factor);
                }
                Scale::Not | Scale::Divide { .. } | Scale::Multiply { .. } => {
                    combine::<E>(op, source, block, bytes, |next| next);
                }
            }
            if let Scale::Divide { first, by } = scale
                && source + 1 == first
                && by != 1
            {
                let quotient = |wide: &mut E::Wide| *wide = E::divide(*wide, by);
                block.iter_mut().for_each(quotient);
            }
        }
        for (wide, bytes) in block.iter().zip(into.chunks_exact_mut(E::BYTES)) {
            E::store(*wide, bytes);
        }
    }
}

/// Combines a block with the next source; the first takes its place. The operator is picked outside of the loop.
fn combine<E: Element>(
    op: ReduceOp,
    source: usize,
    block: &mut [E::Wide],
    bytes: &[u8],
    enter: impl Fn(E::Wide) -> E::Wide,
) {
    macro_rules! each {
        ($op:expr) => {
            each::<E>(block, bytes, |so_far, next| {
                E::combine($op, so_far, enter(next))
            })
        };
    }
    match op {
        _ if source == 0 => each::<E>(block, bytes, |_, next| enter(next)),
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum(_) => each!(ReduceOp::Sum),
        ReduceOp::Max => each!(ReduceOp::Max),
        ReduceOp::Min => each!(ReduceOp::Min),
        ReduceOp::And => each!(ReduceOp::And),
        ReduceOp::Or => each!(ReduceOp::Or),
        ReduceOp::Xor => each!(ReduceOp::Xor),
    }
}

/// Not inlined: of its arguments the compiler knows that they lie apart, without which it makes no vectors.
#[inline(never)]
fn each<E: Element>(
    block: &mut [E::Wide],
    bytes: &[u8],
    combine: impl Fn(E::Wide, E::Wide) -> E::Wide,
) {
    for (wide, bytes) in block.iter_mut().zip(bytes.chunks_exact(E::BYTES)) {
        *wide = combine(*wide, E::load(bytes));
    }
}
