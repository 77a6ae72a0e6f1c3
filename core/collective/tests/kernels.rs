//! The kernels against plain arithmetic. Each instruction set against the scalar reference: `instruction_sets`.

mod combine;

use collective::kernels::{Isa, Kernels};
use collective::{DType, Divide, ReduceOp};
use combine::{bytes_of, combined};
use half::{bf16, f16};

#[test]
fn small_addends_are_not_lost_within_a_node() {
    // In bf16 arithmetic 256 + 1 stays 256; in f32 eight ones count.
    let big = bytes_of([bf16::from_f32(256.0).to_bits()]);
    let one = bytes_of([bf16::from_f32(1.0).to_bits()]);
    let sources: Vec<&[u8]> = std::iter::once(&big)
        .chain([&one; 8])
        .map(Vec::as_slice)
        .collect();
    let sum = combined(
        Kernels::best(),
        DType::Bf16,
        ReduceOp::Sum,
        &sources,
        Divide::NOT,
    );
    assert_eq!(sum, bytes_of([bf16::from_f32(264.0).to_bits()]));
}

#[test]
fn nan_wins_and_comes_out_quiet_and_positive() {
    let f32s = |values: [f32; 2]| values.map(f32::to_ne_bytes).concat();
    let negative_nan = f32::from_bits(0xff80_0001);
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::of) {
        for op in ReduceOp::ALL {
            for sources in [
                [f32s([1.0, negative_nan]), f32s([2.0, 7.0])],
                [f32s([1.0, 7.0]), f32s([2.0, negative_nan])],
            ] {
                let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
                let got = combined(&kernels, DType::F32, op, &sources, Divide::NOT);
                assert_eq!(got[4..], 0x7fc0_0000u32.to_ne_bytes());
            }
        }
    }
}

#[test]
fn sums_overflow_to_infinity_integers_wrap_and_averages_truncate() {
    let kernels = Kernels::best();
    let combined =
        |dtype, op, sources: &[&[u8]], divide| combined(kernels, dtype, op, sources, divide);
    let halve = |first| Divide { first, by: 2 };
    let big = bytes_of([f16::MAX.to_bits()]);
    let sum = combined(DType::F16, ReduceOp::Sum, &[&big, &big], Divide::NOT);
    assert_eq!(sum, bytes_of([f16::INFINITY.to_bits()]));
    let avg = combined(DType::F16, ReduceOp::Avg, &[&big, &big], halve(2));
    assert_eq!(avg, big, "the sum is divided before it is rounded");
    let half = bytes_of([(f16::MAX / f16::from_f32(2.0)).to_bits()]);
    let avg = combined(DType::F16, ReduceOp::Avg, &[&big, &half], halve(1));
    assert_eq!(avg, big, "what was divided before is not divided again");
    assert_eq!(
        combined(DType::U8, ReduceOp::Sum, &[&[200], &[100]], Divide::NOT),
        [44]
    );
    let int = |value: i32| value.to_ne_bytes();
    let avg = combined(DType::I32, ReduceOp::Avg, &[&int(-4), &int(-3)], halve(2));
    assert_eq!(avg, int(-3), "-7 / 2 towards zero");
}
