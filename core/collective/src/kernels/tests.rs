//! Every instruction set this machine has against the scalar reference, bit by bit, and the reference against
//! plain arithmetic.

use half::{bf16, f16};
use sim::{Rng, for_each_seed};

use super::*;

/// The kernels to compare with the reference. An instruction set the machine lacks is not tested: said on stderr.
fn vectors() -> Vec<Kernels> {
    let vectors = Isa::ALL.into_iter().filter(|&isa| isa != Isa::Scalar);
    vectors
        .filter_map(|isa| {
            let kernels = Kernels::of(isa);
            if kernels.is_none() {
                eprintln!("not run: this machine has no {isa:?}");
            }
            kernels
        })
        .collect()
}

fn combined(
    kernels: &Kernels,
    dtype: DType,
    op: ReduceOp,
    sources: &[&[u8]],
    divide: Divide,
) -> Vec<u8> {
    let mut destination = vec![0xa5; sources[0].len()];
    kernels.reduce(dtype, op, &mut destination, sources, divide);
    destination
}

fn check(dtype: DType, op: ReduceOp, sources: &[&[u8]], divide: Divide) {
    let expected = combined(&Kernels::scalar(), dtype, op, sources, divide);
    for kernels in vectors() {
        let got = combined(&kernels, dtype, op, sources, divide);
        if let Some(at) = (0..got.len()).find(|&at| got[at] != expected[at]) {
            let element = at / dtype.size() * dtype.size()..(at / dtype.size() + 1) * dtype.size();
            let inputs: Vec<&[u8]> = sources
                .iter()
                .map(|source| &source[element.clone()])
                .collect();
            panic!(
                "{:?} {dtype} {op:?} {divide:?}: {inputs:02x?} -> {:02x?}, reference {:02x?}",
                kernels.isa(),
                &got[element.clone()],
                &expected[element]
            );
        }
    }
}

fn bytes_of(values: impl IntoIterator<Item = u16>) -> Vec<u8> {
    values.into_iter().flat_map(u16::to_ne_bytes).collect()
}

#[test]
fn random_bits_at_any_alignment_and_length_give_the_bits_of_the_reference() {
    for_each_seed(60, |rng| {
        for dtype in DType::ALL {
            for op in ReduceOp::ALL {
                let elements = *rng.pick(&[0, 1, 3, 31, 33, 63, 64, 65, 127, 300, 1027]);
                let length = elements * dtype.size();
                let sources: Vec<Vec<u8>> = (0..1 + rng.below(10))
                    .map(|_| noise(rng, length + 64))
                    .collect();
                let shifted: Vec<&[u8]> = sources
                    .iter()
                    .map(|source| {
                        let skip = rng.below(64);
                        &source[skip..skip + length]
                    })
                    .collect();
                let divide = if op == ReduceOp::Avg {
                    Divide {
                        first: 1 + rng.below(shifted.len()),
                        by: rng.range(1..20) as u32,
                    }
                } else {
                    Divide::NOT
                };
                check(dtype, op, &shifted, divide);
            }
        }
    });
}

/// Bytes of all kinds: any bits, and runs of zeros and ones that make infinities, NaNs and subnormals likely.
fn noise(rng: &mut Rng, length: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..length).map(|_| rng.next_u64() as u8).collect();
    for byte in &mut bytes {
        match rng.below(8) {
            0 => *byte = 0,
            1 => *byte = 0xff,
            2 => *byte = 0x7f,
            3 => *byte = 0x80,
            _ => {}
        }
    }
    bytes
}

#[test]
fn every_16_bit_value_alone_gives_the_bits_of_the_reference() {
    let all = bytes_of(0..=u16::MAX);
    for dtype in [DType::F16, DType::Bf16] {
        for op in ReduceOp::ALL {
            check(dtype, op, &[&all], Divide::NOT);
            check(dtype, op, &[&all], Divide { first: 1, by: 3 });
        }
    }
}

#[test]
fn pairs_of_16_bit_values_give_the_bits_of_the_reference() {
    // Every value with every 251st other: all exponents and both signs meet.
    check_pairs(251);
}

#[test]
#[ignore = "all 2^32 pairs take minutes"]
fn every_pair_of_16_bit_values_gives_the_bits_of_the_reference() {
    check_pairs(1);
}

fn check_pairs(step: usize) {
    let all = bytes_of(0..=u16::MAX);
    for dtype in [DType::F16, DType::Bf16] {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
            for other in (0..=u16::MAX).step_by(step) {
                let others = bytes_of(std::iter::repeat_n(other, 1 << 16));
                check(dtype, op, &[&all, &others], Divide::NOT);
            }
        }
    }
}

#[test]
fn subnormals_survive_a_sum() {
    for bits in [1u16, 0x0040, 0x007f, 0x8001, 0x03ff] {
        let value = bytes_of([bits]);
        let zero = bytes_of([0u16]);
        for kernels in vectors() {
            for dtype in [DType::F16, DType::Bf16] {
                let sum = combined(
                    &kernels,
                    dtype,
                    ReduceOp::Sum,
                    &[&value, &zero],
                    Divide::NOT,
                );
                assert_eq!(sum, value);
            }
        }
    }
}

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
