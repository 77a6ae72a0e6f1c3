//! Every vector instruction set against the scalar reference, bit by bit. Its own runner: what this processor lacks
//! counts as ignored, with the reason, and not as passed.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

mod combine;

use std::process::ExitCode;

use collective::kernels::{Isa, Kernels};
use collective::{DType, Divide, ReduceOp};
use combine::{bytes_of, combined};
use sim::{Rng, for_each_seed, run_tests};

struct Test {
    name: &'static str,
    run: fn(&Kernels),
    /// Runs with `--ignored` only.
    slow: bool,
}

const TESTS: [Test; 5] = [
    Test {
        name: "random_bits_at_any_alignment_and_length_give_the_bits_of_the_reference",
        run: random_bits_at_any_alignment_and_length_give_the_bits_of_the_reference,
        slow: false,
    },
    Test {
        name: "every_16_bit_value_alone_gives_the_bits_of_the_reference",
        run: every_16_bit_value_alone_gives_the_bits_of_the_reference,
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
        name: "subnormals_survive_a_sum",
        run: subnormals_survive_a_sum,
        slow: false,
    },
];

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

fn check(kernels: &Kernels, dtype: DType, op: ReduceOp, sources: &[&[u8]], divide: Divide) {
    let reference = Kernels::of(Isa::Scalar).unwrap();
    let expected = combined(&reference, dtype, op, sources, divide);
    let got = combined(kernels, dtype, op, sources, divide);
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

fn random_bits_at_any_alignment_and_length_give_the_bits_of_the_reference(kernels: &Kernels) {
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
                check(kernels, dtype, op, &shifted, divide);
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

fn every_16_bit_value_alone_gives_the_bits_of_the_reference(kernels: &Kernels) {
    let all = bytes_of(0..=u16::MAX);
    for dtype in [DType::F16, DType::Bf16] {
        for op in ReduceOp::ALL {
            check(kernels, dtype, op, &[&all], Divide::NOT);
            check(kernels, dtype, op, &[&all], Divide { first: 1, by: 3 });
        }
    }
}

fn check_pairs(kernels: &Kernels, step: usize) {
    let all = bytes_of(0..=u16::MAX);
    for dtype in [DType::F16, DType::Bf16] {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
            for other in (0..=u16::MAX).step_by(step) {
                let others = bytes_of(std::iter::repeat_n(other, 1 << 16));
                check(kernels, dtype, op, &[&all, &others], Divide::NOT);
            }
        }
    }
}

fn subnormals_survive_a_sum(kernels: &Kernels) {
    for bits in [1u16, 0x0040, 0x007f, 0x8001, 0x03ff] {
        let value = bytes_of([bits]);
        let zero = bytes_of([0u16]);
        for dtype in [DType::F16, DType::Bf16] {
            let sum = combined(kernels, dtype, ReduceOp::Sum, &[&value, &zero], Divide::NOT);
            assert_eq!(sum, value);
        }
    }
}
