//! The reference: one element at a time, in plain code. Every other kernel equals it bit by bit, and uses it for
//! the elements that do not fill a vector.

use super::float;
use crate::op::{Divide, ReduceOp};

/// An element as it lies in memory, and the wider type it is combined in.
pub(super) trait Element: Copy {
    /// What sums are kept in.
    type Wide: Copy;
    /// Its bytes.
    const BYTES: usize;
    /// Whether vectors divide as this does.
    const FLOAT: bool;
    /// Reads one element.
    fn load(bytes: &[u8]) -> Self::Wide;
    /// Rounds once and writes one element.
    fn store(wide: Self::Wide, bytes: &mut [u8]);
    /// Combines what was so far with the next source.
    fn combine(op: ReduceOp, so_far: Self::Wide, next: Self::Wide) -> Self::Wide;
    /// Divides a sum.
    fn divide(wide: Self::Wide, divisor: u32) -> Self::Wide;
}

/// Combines equally long sources into the destination.
pub(super) fn reduce<E: Element>(
    op: ReduceOp,
    destination: &mut [u8],
    sources: &[&[u8]],
    divide: Divide,
) {
    reduce_from::<E>(0, op, destination, sources, divide);
}

/// The same from a byte offset on.
pub(super) fn reduce_from<E: Element>(
    start: usize,
    op: ReduceOp,
    destination: &mut [u8],
    sources: &[&[u8]],
    divide: Divide,
) {
    let (before, after) = sources.split_at(divide.first);
    let Some((first, before)) = before.split_first() else {
        return;
    };
    for (index, target) in destination[start..].chunks_exact_mut(E::BYTES).enumerate() {
        let at = start + index * E::BYTES;
        let at = at..at + E::BYTES;
        let mut wide = E::load(&first[at.clone()]);
        for source in before {
            wide = E::combine(op, wide, E::load(&source[at.clone()]));
        }
        if divide.by != 1 {
            wide = E::divide(wide, divide.by);
        }
        for source in after {
            wide = E::combine(op, wide, E::load(&source[at.clone()]));
        }
        E::store(wide, target);
    }
}

/// f32 in memory.
#[derive(Clone, Copy)]
pub(super) struct F32;
/// f16 in memory, f32 in sums.
#[derive(Clone, Copy)]
pub(super) struct F16;
/// bf16 in memory, f32 in sums.
#[derive(Clone, Copy)]
pub(super) struct Bf16;

/// NaN wins. Of two equal values (zeros of either sign) the later one is taken.
fn combine_f32(op: ReduceOp, so_far: f32, next: f32) -> f32 {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => so_far + next,
        ReduceOp::Max | ReduceOp::Min if so_far.is_nan() => so_far,
        ReduceOp::Max => {
            if so_far > next {
                so_far
            } else {
                next
            }
        }
        ReduceOp::Min => {
            if so_far < next {
                so_far
            } else {
                next
            }
        }
    }
}

macro_rules! float_element {
    ($element:ty, $bits:ty, $load:expr, $store:expr) => {
        impl Element for $element {
            type Wide = f32;
            const BYTES: usize = size_of::<$bits>();
            const FLOAT: bool = true;
            fn load(bytes: &[u8]) -> f32 {
                let mut raw = [0; Self::BYTES];
                raw.copy_from_slice(bytes);
                $load(<$bits>::from_ne_bytes(raw))
            }
            fn store(wide: f32, bytes: &mut [u8]) {
                let bits: $bits = $store(wide);
                bytes.copy_from_slice(&bits.to_ne_bytes());
            }
            fn combine(op: ReduceOp, so_far: f32, next: f32) -> f32 {
                combine_f32(op, so_far, next)
            }
            fn divide(wide: f32, divisor: u32) -> f32 {
                wide / divisor as f32
            }
        }
    };
}

float_element!(F32, u32, f32::from_bits, |wide: f32| float::canonical(wide)
    .to_bits());
float_element!(F16, u16, float::from_f16, float::to_f16);
float_element!(Bf16, u16, float::from_bf16, float::to_bf16);

macro_rules! integer_element {
    ($integer:ty) => {
        impl Element for $integer {
            type Wide = $integer;
            const BYTES: usize = size_of::<$integer>();
            const FLOAT: bool = false;
            fn load(bytes: &[u8]) -> Self {
                let mut raw = [0; Self::BYTES];
                raw.copy_from_slice(bytes);
                Self::from_ne_bytes(raw)
            }
            fn store(wide: Self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&wide.to_ne_bytes());
            }
            fn combine(op: ReduceOp, so_far: Self, next: Self) -> Self {
                match op {
                    ReduceOp::Sum | ReduceOp::Avg => so_far.wrapping_add(next),
                    ReduceOp::Max => so_far.max(next),
                    ReduceOp::Min => so_far.min(next),
                }
            }
            fn divide(wide: Self, divisor: u32) -> Self {
                // In i64, which holds every operand: the divisor may not fit the element's type.
                (wide as i64 / i64::from(divisor)) as Self
            }
        }
    };
}

integer_element!(u8);
integer_element!(i32);
integer_element!(i64);
