//! Combining k buffers into one in a single pass: the only place where payload bytes are computed on. Owns the
//! arithmetic of every type and operator, and the choice of instruction set, made once.
//!
//! - f16 and bf16 are summed in f32 and rounded once, to nearest even. Sources are taken in their order.
//! - NaN wins over every number in all operators and comes out as the quiet NaN with sign 0 of its type.
//! - Integers wrap. Averages of integers truncate towards zero.
//! - All instruction sets give the bits of the scalar reference.

mod float;
mod scalar;

use crate::dtype::DType;
use crate::op::ReduceOp;

/// A kernel for one type: operator, destination, sources, divisor.
type Kernel = fn(ReduceOp, &mut [u8], &[&[u8]], u32);

/// Combines `sources`, at least one and all as long as `destination`, and divides by `divisor` (1: not at all).
pub fn reduce(dtype: DType, op: ReduceOp, destination: &mut [u8], sources: &[&[u8]], divisor: u32) {
    let kernel: Kernel = match dtype {
        DType::F32 => scalar::reduce::<scalar::F32>,
        DType::F16 => scalar::reduce::<scalar::F16>,
        DType::Bf16 => scalar::reduce::<scalar::Bf16>,
        DType::U8 => scalar::reduce::<u8>,
        DType::I32 => scalar::reduce::<i32>,
        DType::I64 => scalar::reduce::<i64>,
    };
    kernel(op, destination, sources, divisor);
}
