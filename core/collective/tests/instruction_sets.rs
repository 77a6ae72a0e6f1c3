//! Every vector instruction set against the scalar reference, bit by bit. Its own runner: what this processor lacks
//! counts as ignored, with the reason, and not as passed.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

mod combine;

use std::process::ExitCode;

use collective::kernels::{Isa, Kernels, Parts, Store};
use collective::{DType, Factor, Form, ReduceOp, Scale};
use combine::{bytes_of, combined};
use sim::{Rng, for_each_seed, run_tests};

struct Test {
    name: &'static str,
    run: fn(&Kernels),
    /// Runs with `--ignored` only.
    slow: bool,
}

const TESTS: [Test; 11] = [
    Test {
        name: "random_bits_at_any_alignment_and_length_give_the_bits_of_the_reference",
        run: random_bits_at_any_alignment_and_length_give_the_bits_of_the_reference,
        slow: false,
    },
    Test {
        name: "sums_that_cancel_give_the_bits_of_the_reference",
        run: sums_that_cancel_give_the_bits_of_the_reference,
        slow: false,
    },
    Test {
        name: "sums_next_to_where_rounding_turns_give_the_bits_of_the_reference",
        run: sums_next_to_where_rounding_turns_give_the_bits_of_the_reference,
        slow: false,
    },
    Test {
        name: "every_value_of_16_and_8_bits_alone_gives_the_bits_of_the_reference",
        run: every_value_of_16_and_8_bits_alone_gives_the_bits_of_the_reference,
        slow: false,
    },
    Test {
        name: "every_pair_of_8_bit_values_gives_the_bits_of_the_reference",
        run: every_pair_of_8_bit_values_gives_the_bits_of_the_reference,
        slow: false,
    },
    Test {
        name: "pairs_of_16_bit_values_give_the_bits_of_the_reference",
        // Every value with every 251st other: all exponents and both signs meet.
        run: |kernels| check_pairs(kernels, 251),
        slow: false,
    },
    Test {
        name: "every_pair_of_16_bit_values_gives_the_bits_of_the_reference",
        run: |kernels| check_pairs(kernels, 1),
        slow: true,
    },
    Test {
        name: "random_parts_at_any_alignment_and_length_give_the_bits_of_the_reference",
        run: random_parts_at_any_alignment_and_length_give_the_bits_of_the_reference,
        slow: false,
    },
    Test {
        name: "every_value_of_16_and_8_bits_goes_into_a_part_and_comes_back",
        run: every_value_of_16_and_8_bits_goes_into_a_part_and_comes_back,
        slow: false,
    },
    Test {
        name: "subnormals_survive_a_sum",
        run: subnormals_survive_a_sum,
        slow: false,
    },
    Test {
        name: "nothing_is_written_beside_any_destination",
        run: nothing_is_written_beside_any_destination,
        slow: false,
    },
];

const FLOATS: [DType; 6] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::Bf16,
    DType::E4m3,
    DType::E5m2,
];
const BYTES: [DType; 2] = [DType::E4m3, DType::E5m2];

#[expect(
    clippy::disallowed_methods,
    reason = "as with cargo's own runner, a flag picks the slow ones"
)]
fn main() -> ExitCode {
    let slow = std::env::args().any(|argument| argument == "--ignored");
    let sets = Isa::ALL.into_iter().filter(|&isa| isa != Isa::Scalar);
    let tests = sets.flat_map(|isa| TESTS.map(|test| (isa, test)));
    let wanted = tests.filter(|(_, test)| test.slow || !slow);
    run_tests(wanted.map(|(isa, test)| {
        let run = match Kernels::of(isa) {
            None => Err(format!("this processor has no {isa:?}")),
            Some(_) if test.slow && !slow => Err("takes minutes".to_owned()),
            Some(kernels) => Ok(move || (test.run)(&kernels)),
        };
        (format!("{isa:?}::{}", test.name), run)
    }))
}

fn check(kernels: &Kernels, dtype: DType, op: ReduceOp, sources: &[&[u8]], scale: Scale) {
    let reference = Kernels::of(Isa::Scalar).unwrap();
    let expected = combined(&reference, dtype, op, sources, scale);
    let got = combined(kernels, dtype, op, sources, scale);
    if let Some(at) = (0..got.len()).find(|&at| got[at] != expected[at]) {
        let element = at / dtype.size() * dtype.size()..(at / dtype.size() + 1) * dtype.size();
        let inputs: Vec<&[u8]> = sources
            .iter()
            .map(|source| &source[element.clone()])
            .collect();
        panic!(
            "{:?} {dtype} {op:?} {scale:?}: {inputs:02x?} -> {:02x?}, reference {:02x?}",
            kernels.isa(),
            &got[element.clone()],
            &expected[element]
        );
    }
}

/// Every way to scale `sources` sources of a type with an operator, with numbers that follow from `rng`.
fn scales(rng: &mut Rng, dtype: DType, op: ReduceOp, sources: usize) -> Vec<Scale> {
    let first = 1 + rng.below(sources);
    let scale = match op {
        ReduceOp::Avg => Scale::Divide {
            first,
            by: *rng.pick(&[1, 2, 3, 7, 64, 1250, u32::MAX]),
        },
        ReduceOp::PremulSum(_) if dtype.is_float() => {
            let any = rng.next_u64() as u32;
            let by = *rng.pick(&[0, 0x3f80_0000, 0x3dcc_cccd, 0xff7f_ffff, 0x7fc1_2345, any]);
            Scale::Multiply {
                first,
                by: Factor::from_bits(by),
            }
        }
        ReduceOp::PremulSum(_)
        | ReduceOp::Sum
        | ReduceOp::Max
        | ReduceOp::Min
        | ReduceOp::And
        | ReduceOp::Or
        | ReduceOp::Xor => return vec![Scale::Not],
    };
    vec![Scale::Not, scale]
}

/// The operators that there are for a type; a sum with a factor of integers is a sum.
fn operators(dtype: DType) -> impl Iterator<Item = ReduceOp> {
    let all = ReduceOp::ALL.into_iter();
    all.filter(move |op| !(op.is_bitwise() && dtype.is_float()))
}

fn random_bits_at_any_alignment_and_length_give_the_bits_of_the_reference(kernels: &Kernels) {
    for_each_seed(60, |rng| {
        for dtype in DType::ALL {
            for op in operators(dtype) {
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
                for scale in scales(rng, dtype, op, shifted.len()) {
                    check(kernels, dtype, op, &shifted, scale);
                }
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

/// Large numbers of both signs with small ones between them: what is left depends on every rounding on the way.
fn sums_that_cancel_give_the_bits_of_the_reference(kernels: &Kernels) {
    for_each_seed(40, |rng| {
        for dtype in FLOATS {
            let length = 500 * dtype.size();
            let upper = dtype.size() - 1;
            let mut sources: Vec<Vec<u8>> = (0..3).map(|_| noise(rng, length)).collect();
            for source in sources.clone() {
                let mut negated = source;
                let signs = negated.iter_mut().skip(upper).step_by(dtype.size());
                signs.for_each(|byte| *byte ^= 0x80);
                sources.push(negated);
            }
            let small = |byte: &mut u8| *byte &= 0x9f;
            let mut last: Vec<Vec<u8>> = (0..3).map(|_| noise(rng, length)).collect();
            for source in &mut last {
                source
                    .iter_mut()
                    .skip(upper)
                    .step_by(dtype.size())
                    .for_each(small);
            }
            sources.append(&mut last);
            rng.shuffle(&mut sources);
            let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
            for op in [ReduceOp::Sum, ReduceOp::Avg, ReduceOp::ALL[4]] {
                for scale in scales(rng, dtype, op, sources.len()) {
                    check(kernels, dtype, op, &sources, scale);
                }
            }
        }
    });
}

/// A number, half of its last bit, and what is hardly anything: the sum in f32 lies on the tie or next to it. By way
/// of a wider format than the result's it would be rounded to the tie first.
fn sums_next_to_where_rounding_turns_give_the_bits_of_the_reference(kernels: &Kernels) {
    for_each_seed(40, |rng| {
        for dtype in FLOATS {
            let bits_of_fraction = match dtype {
                DType::F16 => 10,
                DType::Bf16 => 7,
                DType::E4m3 => 3,
                DType::E5m2 => 2,
                DType::F64 | DType::F32 | DType::U8 | DType::I8 | DType::I32 | DType::I64 => {
                    continue;
                }
            };
            let size = dtype.size();
            let element = |bits: u64| bits.to_le_bytes()[..size].to_vec();
            let mut sources = vec![Vec::new(); 4];
            for _ in 0..300 {
                let any = rng.next_u64() & ((1 << (8 * size - 1)) - 1);
                // The exponent of the last bit's half, with a fraction of 0.
                let exponent = (any >> bits_of_fraction).saturating_sub(bits_of_fraction + 1);
                let half = exponent << bits_of_fraction;
                let sign = |rng: &mut Rng| (rng.next_u64() & 1) << (8 * size - 1);
                sources[0].extend(element(any));
                sources[1].extend(element(half | sign(rng)));
                sources[2].extend(element(rng.range(0..3) | sign(rng)));
                sources[3].extend(element(half.saturating_sub(rng.range(0..9)) | sign(rng)));
            }
            let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
            for count in 1..=sources.len() {
                check(kernels, dtype, ReduceOp::Sum, &sources[..count], Scale::Not);
            }
        }
    });
}

fn every_value_of_16_and_8_bits_alone_gives_the_bits_of_the_reference(kernels: &Kernels) {
    let all = bytes_of(0..=u16::MAX);
    let factor = |by| Scale::Multiply {
        first: 1,
        by: Factor::new(by),
    };
    let scales = [
        Scale::Not,
        Scale::Divide { first: 1, by: 3 },
        factor(1.0 / 3.0),
        factor(-1e38),
        factor(1e-44),
    ];
    for dtype in [DType::F16, DType::Bf16, DType::E4m3, DType::E5m2] {
        for op in operators(dtype) {
            check(kernels, dtype, op, &[&all], Scale::Not);
        }
        for scale in scales {
            check(kernels, dtype, ReduceOp::Sum, &[&all], scale);
        }
    }
}

fn every_pair_of_8_bit_values_gives_the_bits_of_the_reference(kernels: &Kernels) {
    let one: Vec<u8> = (0..=u16::MAX).map(|pair| pair as u8).collect();
    let other: Vec<u8> = (0..=u16::MAX).map(|pair| (pair >> 8) as u8).collect();
    let by = Factor::new(0.3);
    let scales = [
        Scale::Divide { first: 1, by: 3 },
        Scale::Divide { first: 2, by: 1250 },
        Scale::Multiply { first: 1, by },
        Scale::Multiply { first: 2, by },
    ];
    for dtype in BYTES {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
            check(kernels, dtype, op, &[&one, &other], Scale::Not);
        }
        for scale in scales {
            check(kernels, dtype, ReduceOp::Sum, &[&one, &other], scale);
        }
    }
}

const NARROW: [DType; 4] = [DType::F16, DType::Bf16, DType::E4m3, DType::E5m2];

/// Sums of what is there, in memory that is watched on both sides.
fn added(
    kernels: &Kernels,
    dtype: DType,
    parts: &Parts<'_>,
    scale: Scale,
    store: Store,
) -> Vec<u8> {
    let width = match parts.form {
        Form::Elements => dtype.size(),
        Form::Partial => 4,
    };
    let length = parts.sources[0].len() / dtype.size() * width;
    let mut memory = vec![0xa5; length + 128];
    let place = 64 + width..64 + width + length;
    let into = &mut memory[place.clone()];
    kernels.reduce_parts(dtype, into, parts, scale, store);
    let beside = memory[..place.start].iter().chain(&memory[place.end..]);
    assert!(beside.copied().all(|byte| byte == 0xa5));
    memory[place].to_vec()
}

fn random_parts_at_any_alignment_and_length_give_the_bits_of_the_reference(kernels: &Kernels) {
    let reference = Kernels::of(Isa::Scalar).unwrap();
    for_each_seed(60, |rng| {
        for dtype in NARROW {
            let count = *rng.pick(&[0, 1, 3, 31, 33, 63, 64, 65, 127, 300, 1027]);
            let mut some = |most: usize, least: usize, size: usize| -> Vec<Vec<u8>> {
                let all = least + rng.below(most);
                (0..all).map(|_| noise(rng, count * size)).collect()
            };
            let (sources, partials) = (some(8, 1, dtype.size()), some(4, 0, 4));
            let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
            let partials: Vec<&[u8]> = partials.iter().map(Vec::as_slice).collect();
            let all = sources.len() + partials.len();
            for form in [Form::Elements, Form::Partial] {
                let parts = Parts {
                    sources: &sources,
                    partials: &partials,
                    form,
                };
                for op in [ReduceOp::Avg, ReduceOp::ALL[4]] {
                    for scale in scales(rng, dtype, op, all) {
                        let store = *rng.pick(&[Store::Cached, Store::Streaming]);
                        let expected = added(&reference, dtype, &parts, scale, Store::Cached);
                        let got = added(kernels, dtype, &parts, scale, store);
                        assert!(
                            got == expected,
                            "{dtype} {scale:?} {parts:02x?}: {got:02x?}"
                        );
                    }
                }
            }
        }
    });
}

fn every_value_of_16_and_8_bits_goes_into_a_part_and_comes_back(kernels: &Kernels) {
    let all = bytes_of(0..=u16::MAX);
    for dtype in NARROW {
        let zeros = vec![0; all.len()];
        let parts = |sources, partials, form| Parts {
            sources,
            partials,
            form,
        };
        let reference = Kernels::of(Isa::Scalar).unwrap();
        let alone = combined(
            &reference,
            dtype,
            ReduceOp::Sum,
            &[&all, &zeros],
            Scale::Not,
        );
        let whole: &[&[u8]] = &[&all];
        let up = parts(whole, &[], Form::Partial);
        let up = added(kernels, dtype, &up, Scale::Not, Store::Cached);
        let nothing: &[&[u8]] = &[&zeros];
        let partials: &[&[u8]] = &[&up];
        let down = parts(nothing, partials, Form::Elements);
        assert!(
            added(kernels, dtype, &down, Scale::Not, Store::Streaming) == alone,
            "{dtype}"
        );
    }
}

fn check_pairs(kernels: &Kernels, step: usize) {
    let all = bytes_of(0..=u16::MAX);
    for dtype in [DType::F16, DType::Bf16] {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
            for other in (0..=u16::MAX).step_by(step) {
                let others = bytes_of(std::iter::repeat_n(other, 1 << 16));
                check(kernels, dtype, op, &[&all, &others], Scale::Not);
            }
        }
    }
}

fn subnormals_survive_a_sum(kernels: &Kernels) {
    let sum = |dtype, value: &[u8], zero: &[u8]| {
        combined(kernels, dtype, ReduceOp::Sum, &[value, zero], Scale::Not)
    };
    for bits in [1u16, 0x0040, 0x007f, 0x8001, 0x03ff] {
        let value = bytes_of([bits]);
        for dtype in [DType::F16, DType::Bf16] {
            assert_eq!(sum(dtype, &value, &[0; 2]), value);
        }
    }
    for bits in [1u8, 2, 3, 0x81, 0x83] {
        for dtype in BYTES {
            assert_eq!(sum(dtype, &[bits], &[0]), [bits]);
        }
    }
}

/// At every place of a destination in its line, in memory that is watched on both sides.
fn nothing_is_written_beside_any_destination(kernels: &Kernels) {
    for_each_seed(4, |rng| {
        for dtype in DType::ALL {
            for start in 0..64 {
                let length = rng.below(400) / dtype.size() * dtype.size();
                let source = noise(rng, length);
                let sources = [source.as_slice(), &source];
                let expected = combined(kernels, dtype, ReduceOp::Max, &sources, Scale::Not);
                for store in [Store::Cached, Store::Streaming] {
                    let mut memory = vec![0xa5; length + 128];
                    let first = (memory.as_ptr().align_offset(64) + start) % 64;
                    let place = first..first + length;
                    let into = &mut memory[place.clone()];
                    kernels.reduce(dtype, ReduceOp::Max, into, &sources, Scale::Not, store);
                    assert_eq!(memory[place.clone()], expected, "{dtype} {store:?}");
                    assert!(memory[..place.start].iter().all(|&byte| byte == 0xa5));
                    assert!(memory[place.end..].iter().all(|&byte| byte == 0xa5));
                }
            }
        }
    });
}
