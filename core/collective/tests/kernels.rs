//! The kernels against plain arithmetic. Each instruction set against the scalar reference: `instruction_sets`.

mod combine;

use collective::kernels::{Isa, Kernels};
use collective::{DType, Factor, ReduceOp, Scale};
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
        Scale::Not,
    );
    assert_eq!(sum, bytes_of([bf16::from_f32(264.0).to_bits()]));
}

#[test]
fn nan_wins_and_comes_out_quiet_and_positive() {
    let f32s = |values: [f32; 2]| values.map(f32::to_ne_bytes).concat();
    let negative_nan = f32::from_bits(0xff80_0001);
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::of) {
        for op in ReduceOp::ALL.into_iter().filter(|op| !op.is_bitwise()) {
            for sources in [
                [f32s([1.0, negative_nan]), f32s([2.0, 7.0])],
                [f32s([1.0, 7.0]), f32s([2.0, negative_nan])],
            ] {
                let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
                let got = combined(&kernels, DType::F32, op, &sources, Scale::Not);
                assert_eq!(got[4..], 0x7fc0_0000u32.to_ne_bytes());
            }
            let nan = 0xfff0_0000_0000_0001u64.to_ne_bytes();
            let one = 1f64.to_ne_bytes();
            for sources in [[&nan[..], &one], [&one, &nan]] {
                let got = combined(&kernels, DType::F64, op, &sources, Scale::Not);
                assert_eq!(got, 0x7ff8_0000_0000_0000u64.to_ne_bytes());
            }
        }
    }
}

#[test]
fn sums_overflow_to_infinity_integers_wrap_and_averages_truncate() {
    let kernels = Kernels::best();
    let combined =
        |dtype, op, sources: &[&[u8]], scale| combined(kernels, dtype, op, sources, scale);
    let halve = |first| Scale::Divide { first, by: 2 };
    let (large, small) = (0x7e, 0x58);
    for (addend, sum) in [(small, 0x7e), (small + 1, 0x7f)] {
        let sources: [&[u8]; 2] = [&[large], &[addend]];
        let got = combined(DType::E4m3, ReduceOp::Sum, &sources, Scale::Not);
        assert_eq!(got, [sum], "464 rounds to 448, more is NaN");
    }
    let sources: [&[u8]; 2] = [&[0x7b], &[0x7b]];
    let sum = combined(DType::E5m2, ReduceOp::Sum, &sources, Scale::Not);
    assert_eq!(sum, [0x7c]);
    let big = bytes_of([f16::MAX.to_bits()]);
    let sum = combined(DType::F16, ReduceOp::Sum, &[&big, &big], Scale::Not);
    assert_eq!(sum, bytes_of([f16::INFINITY.to_bits()]));
    let avg = combined(DType::F16, ReduceOp::Avg, &[&big, &big], halve(2));
    assert_eq!(avg, big, "the sum is divided before it is rounded");
    let half = bytes_of([(f16::MAX / f16::from_f32(2.0)).to_bits()]);
    let avg = combined(DType::F16, ReduceOp::Avg, &[&big, &half], halve(1));
    assert_eq!(avg, big, "what was divided before is not divided again");
    assert_eq!(
        combined(DType::U8, ReduceOp::Sum, &[&[200], &[100]], Scale::Not),
        [44]
    );
    let int = |value: i32| value.to_ne_bytes();
    let avg = combined(DType::I32, ReduceOp::Avg, &[&int(-4), &int(-3)], halve(2));
    assert_eq!(avg, int(-3), "-7 / 2 towards zero");
    let byte = |value: i8| value.to_ne_bytes();
    let (large, small) = (byte(100), byte(-100));
    let wrapped = combined(DType::I8, ReduceOp::Sum, &[&large, &large], Scale::Not);
    assert_eq!(wrapped, byte(-56));
    let least = combined(DType::I8, ReduceOp::Min, &[&large, &small], Scale::Not);
    assert_eq!(least, small, "with a sign");
}

#[test]
fn f64_is_added_divided_and_multiplied_in_f64() {
    let f64s = |value: f64| value.to_ne_bytes();
    // Far apart, so that in f32 the smaller is lost.
    let (large, small) = (f64s(1e9), f64s(1.0 / 3.0));
    let sources: [&[u8]; 2] = [&large, &small];
    let factor = Factor::new(0.1);
    let (divide, multiply) = (
        Scale::Divide { first: 2, by: 7 },
        Scale::Multiply {
            first: 1,
            by: factor,
        },
    );
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::of) {
        let combined = |op, scale| combined(&kernels, DType::F64, op, &sources, scale);
        assert_eq!(combined(ReduceOp::Sum, Scale::Not), f64s(1e9 + 1.0 / 3.0));
        assert_eq!(
            combined(ReduceOp::Avg, divide),
            f64s((1e9 + 1.0 / 3.0) / 7.0)
        );
        let multiplied = 1e9 * f64::from(0.1f32) + 1.0 / 3.0;
        assert_eq!(
            combined(ReduceOp::PremulSum(factor), multiply),
            f64s(multiplied)
        );
        assert_eq!(combined(ReduceOp::Max, Scale::Not), large);
        assert_eq!(combined(ReduceOp::Min, Scale::Not), small);
    }
}

#[test]
fn bits_of_every_integer_are_combined() {
    let sources: [[u8; 8]; 3] = [
        *b"\x0f\xff\x00\x81\x55\x01\xf0\x7f",
        *b"\x33\x0f\xff\x80\xaa\x02\xf1\xff",
        *b"\x55\xf0\x0f\x01\x0f\x04\xf3\x80",
    ];
    let combine = |op, a: u8, b: u8| {
        if op == ReduceOp::And {
            a & b
        } else if op == ReduceOp::Or {
            a | b
        } else {
            a ^ b
        }
    };
    let slices = sources.each_ref().map(|source| &source[..]);
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::of) {
        for dtype in [DType::U8, DType::I8, DType::I32, DType::I64] {
            for op in [ReduceOp::And, ReduceOp::Or, ReduceOp::Xor] {
                let [one, two, three] = sources;
                let bits: [u8; 8] = std::array::from_fn(|at| {
                    let so_far = combine(op, one[at], two[at]);
                    combine(op, so_far, three[at])
                });
                let got = combined(&kernels, dtype, op, &slices, Scale::Not);
                assert_eq!(got, bits, "{op} {dtype}");
            }
        }
    }
}

#[test]
fn a_factor_multiplies_the_first_sources_before_they_are_added_and_the_others_not() {
    let f32s = |value: f32| value.to_ne_bytes();
    let scale = Scale::Multiply {
        first: 2,
        by: Factor::new(0.1),
    };
    for kernels in Isa::ALL.into_iter().filter_map(Kernels::of) {
        let combined = |dtype, sources: &[&[u8]]| {
            let op = ReduceOp::PremulSum(Factor::new(0.1));
            combined(&kernels, dtype, op, sources, scale)
        };
        let sources: [&[u8]; 3] = [&f32s(3.0), &f32s(7.0), &f32s(100.0)];
        let expected = 3.0 * 0.1 + 7.0 * 0.1 + 100.0f32;
        assert_eq!(combined(DType::F32, &sources), f32s(expected));
        // A tenth of 448 twice on top of 448 is too much, once up and once down is nothing.
        let sources: [&[u8]; 3] = [&[0x7e], &[0x7e], &[0x7e]];
        assert_eq!(combined(DType::E4m3, &sources), [0x7f]);
        let sources: [&[u8]; 3] = [&[0x7e], &[0xfe], &[0x7e]];
        assert_eq!(combined(DType::E4m3, &sources), [0x7e]);
    }
}
