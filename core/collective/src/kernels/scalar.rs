//! The reference: one element at a time, in plain code. Every other kernel equals it bit by bit.

use super::{Kernel, PartKernel, Parts, Store, float};
use crate::dtype::DType;
use crate::numerics::Form;
use crate::reduce_op::{ReduceOp, Scale};

/// An element as it lies in memory, and the wider type it is combined in.
pub(super) trait Element: Copy {
    /// What sums are kept in.
    type Wide: Copy + Default;
    /// Its bytes.
    const BYTES: usize;
    /// Reads one element.
    fn load(bytes: &[u8]) -> Self::Wide;
    /// Rounds once and writes one element.
    fn store(wide: Self::Wide, bytes: &mut [u8]);
    /// Combines what was so far with the next source.
    fn combine(op: ReduceOp, so_far: Self::Wide, next: Self::Wide) -> Self::Wide;
    /// Divides a sum.
    fn divide(wide: Self::Wide, divisor: u32) -> Self::Wide;
    /// Multiplies what a source brings; integers are not multiplied.
    fn multiply(wide: Self::Wide, factor: f32) -> Self::Wide;
}

/// The kernel for a type.
pub(super) fn kernel(dtype: DType) -> Kernel {
    match dtype {
        DType::F64 => reduce::<F64>,
        DType::F32 => reduce::<F32>,
        DType::F16 => reduce::<F16>,
        DType::Bf16 => reduce::<Bf16>,
        DType::E4m3 => reduce::<E4m3>,
        DType::E5m2 => reduce::<E5m2>,
        DType::U8 => reduce::<u8>,
        DType::I8 => reduce::<i8>,
        DType::I32 => reduce::<i32>,
        DType::I64 => reduce::<i64>,
    }
}

/// Combines equally long sources into a result of that length.
pub(super) fn reduce<E: Element>(
    op: ReduceOp,
    into: &mut [u8],
    sources: &[&[u8]],
    scale: Scale,
    _store: Store,
) {
    for index in 0..into.len() / E::BYTES {
        let at = index * E::BYTES..(index + 1) * E::BYTES;
        let brought = sources.iter().map(|source| E::load(&source[at.clone()]));
        let Some(wide) = combined::<E>(op, brought, scale) else {
            return;
        };
        E::store(wide, &mut into[at]);
    }
}

/// What sources bring, in their order.
fn combined<E: Element>(
    op: ReduceOp,
    brought: impl Iterator<Item = E::Wide>,
    scale: Scale,
) -> Option<E::Wide> {
    let mut sources = brought.enumerate().map(|(index, brought)| match scale {
        Scale::Multiply { first, by } if index < first => E::multiply(brought, by.value()),
        Scale::Not | Scale::Divide { .. } | Scale::Multiply { .. } => brought,
    });
    let mut wide = sources.next()?;
    let (before, quotient_of) = match scale {
        Scale::Divide { first, by } => (first - 1, by),
        Scale::Not | Scale::Multiply { .. } => (0, 1),
    };
    for next in sources.by_ref().take(before) {
        wide = E::combine(op, wide, next);
    }
    if quotient_of != 1 {
        wide = E::divide(wide, quotient_of);
    }
    for next in sources {
        wide = E::combine(op, wide, next);
    }
    Some(wide)
}

/// The kernel for sums of a narrow float, of which some are partials.
pub(super) fn part_kernel(dtype: DType) -> Option<PartKernel> {
    match dtype {
        DType::F16 => Some(reduce_parts::<F16>),
        DType::Bf16 => Some(reduce_parts::<Bf16>),
        DType::E4m3 => Some(reduce_parts::<E4m3>),
        DType::E5m2 => Some(reduce_parts::<E5m2>),
        DType::F64 | DType::F32 | DType::U8 | DType::I8 | DType::I32 | DType::I64 => None,
    }
}

/// Adds up elements and partials of as many.
fn reduce_parts<E: Element<Wide = f32>>(
    into: &mut [u8],
    parts: &Parts<'_>,
    scale: Scale,
    _store: Store,
) {
    let width = match parts.form {
        Form::Elements => E::BYTES,
        Form::Partial => F32::BYTES,
    };
    for index in 0..into.len() / width {
        let narrow = index * E::BYTES..(index + 1) * E::BYTES;
        let wide = index * F32::BYTES..(index + 1) * F32::BYTES;
        let elements = parts
            .sources
            .iter()
            .map(|from| E::load(&from[narrow.clone()]));
        let partials = parts
            .partials
            .iter()
            .map(|from| F32::load(&from[wide.clone()]));
        let Some(sum) = combined::<E>(ReduceOp::Sum, elements.chain(partials), scale) else {
            return;
        };
        match parts.form {
            Form::Elements => E::store(sum, &mut into[narrow]),
            Form::Partial => F32::store(sum, &mut into[wide]),
        }
    }
}

/// f64 in memory and in sums.
#[derive(Clone, Copy)]
pub(super) struct F64;
/// f32 in memory.
#[derive(Clone, Copy)]
pub(super) struct F32;
/// f16 in memory, f32 in sums.
#[derive(Clone, Copy)]
pub(super) struct F16;
/// bf16 in memory, f32 in sums.
#[derive(Clone, Copy)]
pub(super) struct Bf16;

/// e4m3 in memory, f32 in sums.
#[derive(Clone, Copy)]
pub(super) struct E4m3;
/// e5m2 in memory, f32 in sums.
#[derive(Clone, Copy)]
pub(super) struct E5m2;

macro_rules! float_element {
    ($element:ty, $wide:ty, $bits:ty, $load:expr, $store:expr) => {
        impl Element for $element {
            type Wide = $wide;
            const BYTES: usize = size_of::<$bits>();
            fn load(bytes: &[u8]) -> $wide {
                let mut raw = [0; Self::BYTES];
                raw.copy_from_slice(bytes);
                $load(<$bits>::from_ne_bytes(raw))
            }
            fn store(wide: $wide, bytes: &mut [u8]) {
                let bits: $bits = $store(wide);
                bytes.copy_from_slice(&bits.to_ne_bytes());
            }
            /// NaN wins. Of two equal values (zeros of either sign) the later one is taken.
            fn combine(op: ReduceOp, so_far: $wide, next: $wide) -> $wide {
                let keeps = match op {
                    ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum(_) => return so_far + next,
                    ReduceOp::Max => so_far > next,
                    ReduceOp::Min => so_far < next,
                    ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => {
                        unreachable!("bits of floats are not combined")
                    }
                };
                if keeps || so_far.is_nan() {
                    so_far
                } else {
                    next
                }
            }
            fn divide(wide: $wide, divisor: u32) -> $wide {
                wide / divisor as $wide
            }
            fn multiply(wide: $wide, factor: f32) -> $wide {
                wide * <$wide>::from(factor)
            }
        }
    };
}

float_element!(F64, f64, u64, f64::from_bits, |wide: f64| {
    float::canonical_f64(wide).to_bits()
});
float_element!(F32, f32, u32, f32::from_bits, |wide: f32| {
    float::canonical(wide).to_bits()
});
float_element!(F16, f32, u16, float::from_f16, float::to_f16);
float_element!(Bf16, f32, u16, float::from_bf16, float::to_bf16);
float_element!(E4m3, f32, u8, float::from_e4m3, float::to_e4m3);
float_element!(E5m2, f32, u8, float::from_e5m2, float::to_e5m2);

macro_rules! integer_element {
    ($integer:ty) => {
        impl Element for $integer {
            type Wide = $integer;
            const BYTES: usize = size_of::<$integer>();
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
                    ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum(_) => {
                        so_far.wrapping_add(next)
                    }
                    ReduceOp::Max => so_far.max(next),
                    ReduceOp::Min => so_far.min(next),
                    ReduceOp::And => so_far & next,
                    ReduceOp::Or => so_far | next,
                    ReduceOp::Xor => so_far ^ next,
                }
            }
            fn divide(wide: Self, divisor: u32) -> Self {
                // In i64, which holds every operand: the divisor may not fit the element's type.
                (wide as i64 / i64::from(divisor)) as Self
            }
            fn multiply(wide: Self, _factor: f32) -> Self {
                wide
            }
        }
    };
}

integer_element!(u8);
integer_element!(i8);
integer_element!(i32);
integer_element!(i64);
