//! Narrow floats by their definitions, and their sums in f32 along a tree, rounded once: plain arithmetic that shares
//! nothing with the kernels.

use collective::schedule::Chunk;
use collective::tree::Tree;
use collective::{Call, DType, Layout, ReduceOp};

/// A number of 8 bits with so many of fraction and this bias; none for NaN and infinity.
fn eight(bits: u8, fraction: u32, bias: i32, largest: u8) -> Option<f32> {
    let magnitude = bits & 0x7f;
    let exponent = i32::from(magnitude >> fraction);
    let share = f32::from(magnitude & ((1 << fraction) - 1)) / 2f32.powi(fraction as i32);
    let value = match exponent {
        0 => share * 2f32.powi(1 - bias),
        _ => (1.0 + share) * 2f32.powi(exponent - bias),
    };
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    (magnitude <= largest).then_some(sign * value)
}

/// Bits of fraction, bias, largest magnitude, and the smallest number that is too large, with what becomes of it.
fn format(dtype: DType) -> (u32, i32, u8, f32, u8) {
    match dtype {
        DType::E4m3 => (3, 7, 0x7e, 464.0, 0x7f),
        DType::E5m2 => (2, 15, 0x7b, 61_440.0, 0x7c),
        DType::F32 | DType::F16 | DType::Bf16 | DType::U8 | DType::I32 | DType::I64 => {
            unreachable!("{dtype} has no 8-bit format")
        }
    }
}

/// A finite element as an f32.
pub(crate) fn widen(dtype: DType, bytes: &[u8]) -> f32 {
    match dtype {
        DType::F16 => half::f16::from_ne_bytes([bytes[0], bytes[1]]).to_f32(),
        DType::Bf16 => half::bf16::from_ne_bytes([bytes[0], bytes[1]]).to_f32(),
        DType::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()),
        DType::E4m3 | DType::E5m2 => {
            let (fraction, bias, largest, ..) = format(dtype);
            eight(bytes[0], fraction, bias, largest).unwrap()
        }
        DType::U8 | DType::I32 | DType::I64 => unreachable!("{dtype} is no float"),
    }
}

/// The element next to a number; of two as near the even one.
pub(crate) fn round(dtype: DType, value: f32) -> Vec<u8> {
    match dtype {
        DType::F16 => half::f16::from_f32(value).to_ne_bytes().to_vec(),
        DType::Bf16 => half::bf16::from_f32(value).to_ne_bytes().to_vec(),
        DType::F32 => value.to_ne_bytes().to_vec(),
        DType::E4m3 | DType::E5m2 => {
            let (fraction, bias, largest, limit, beyond) = format(dtype);
            let is_tie_up = dtype == DType::E5m2 && value.abs() == limit;
            let sign = if value.is_sign_negative() { 0x80 } else { 0 };
            if value.abs() > limit || is_tie_up {
                return vec![if beyond == 0x7f {
                    beyond
                } else {
                    beyond | sign
                }];
            }
            let distance = |bits: u8| {
                let near = eight(bits, fraction, bias, largest).unwrap();
                ((f64::from(value.abs()) - f64::from(near)).abs(), bits % 2)
            };
            let nearest =
                (0..=largest).min_by(|a, b| distance(*a).partial_cmp(&distance(*b)).unwrap());
            vec![nearest.unwrap() | sign]
        }
        DType::U8 | DType::I32 | DType::I64 => unreachable!("{dtype} is no float"),
    }
}

/// The sums of a chunk over a node and what is below it: local ranks in rank order, then children in node order.
pub(crate) fn subtree(
    call: &Call,
    layout: &Layout,
    inputs: &[Vec<u8>],
    tree: &Tree,
    chunk: &Chunk,
    node: usize,
) -> Vec<f32> {
    let range = chunk.offset as usize..(chunk.offset + chunk.bytes) as usize;
    let factor = match call.reduce_op() {
        Some(ReduceOp::PremulSum(factor)) => factor.value(),
        Some(ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Max | ReduceOp::Min) | None => 1.0,
    };
    let own = layout.ranks(node).map(|rank| {
        let elements = inputs[rank as usize][range.clone()].chunks_exact(call.dtype.size());
        elements
            .map(|bytes| widen(call.dtype, bytes) * factor)
            .collect()
    });
    let below = tree.children[node]
        .iter()
        .map(|&child| subtree(call, layout, inputs, tree, chunk, child));
    let parts: Vec<Vec<f32>> = own.chain(below).collect();
    let count = parts[0].len();
    (0..count)
        .map(|at| {
            parts
                .iter()
                .map(|part| part[at])
                .reduce(|a, b| a + b)
                .unwrap()
        })
        .collect()
}

/// A chunk's result: the sums of the whole tree, divided if that is asked for, and rounded.
pub(crate) fn result(
    call: &Call,
    layout: &Layout,
    inputs: &[Vec<u8>],
    tree: &Tree,
    chunk: &Chunk,
) -> Vec<u8> {
    let sums = subtree(call, layout, inputs, tree, chunk, tree.root).into_iter();
    let sums = sums.map(|sum| match call.reduce_op() {
        Some(ReduceOp::Avg) => sum / layout.world() as f32,
        Some(ReduceOp::Sum | ReduceOp::Max | ReduceOp::Min | ReduceOp::PremulSum(_)) | None => sum,
    });
    sums.flat_map(|sum| round(call.dtype, sum)).collect()
}
