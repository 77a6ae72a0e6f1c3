//! Whether each core computes what it should, all at once: integers, floating point and vectors from
//! seeds whose answers are in this file, so that every core is checked by all machines that ran it
//! before. Beside it, how fast the slowest core is against the others of its node.

use std::hint::black_box;
use std::time::{Duration, Instant};

use collective::kernels::{Isa, Kernels, Store};
use collective::known_sums::random;
use collective::{DType, Factor, ReduceOp, Scale};
use health::{Check, CheckResult, median};

use super::{BitFlip, CheckContext, measured, wrong};
use crate::{log, machine};

/// Most cores that are named as wrong: one is enough for a verdict.
const MAX_WRONG: usize = 8;
/// Parts of a core's time; the median of their rates is its rate, so that a short interruption is
/// not taken for a slow core.
const WINDOWS: u32 = 20;
/// How often a wrong answer is asked for again, which tells a core that is always wrong from one
/// that was once.
const REPEATS: usize = 3;
/// Steps of the integer part, about as long as the other one.
const STEPS: u64 = 4_000;
/// Rows and columns of the matrices.
const SIDE: usize = 24;
/// What the vector units add up, and how often: about as long as the integer part.
const SOURCES: usize = 8;
const SOURCE_BYTES: usize = 1024;
const TURNS: u8 = 16;

/// For seed 0, 1, and so on: what the integers come to, and the bits of the floating point. They
/// are the same on every architecture: IEEE 754 fixes each operation, and Rust their order. Python
/// came to the same.
const ANSWERS: [(u64, u64); 8] = [
    (0x46eb_910b_c2e5_6b16, 0xd580_577f_0bc5_91b4),
    (0xde8a_5c76_4cf1_eaae, 0x60a1_ae4a_e4b1_e0d3),
    (0x735e_6dfd_aca3_5428, 0x2409_621a_806e_a3e3),
    (0x5fe2_26dd_c775_8494, 0xbd4c_56ea_35be_234c),
    (0x1f49_80e8_8078_28a8, 0x6cb8_bc54_6d3e_53dc),
    (0x22b6_93ca_4605_c4bc, 0x475d_6d80_dd68_8e40),
    (0x8594_8fcd_5e98_b7a2, 0x8197_4b95_7d4b_c288),
    (0xa261_88a0_2925_9224, 0x5b75_43d0_96bf_18e0),
];
/// The same of the vectors.
const VECTORS: [u64; 8] = [
    0xe5f4_c0f0_0c61_4c6e,
    0x8109_48ce_a5cd_65c7,
    0x0549_1e40_8ff0_d999,
    0xe1d0_ef56_e0a7_58fe,
    0x633e_f991_ce99_20e1,
    0xb059_a1ee_0f13_c12d,
    0x4065_fbe0_88db_05fe,
    0x73f6_f050_1741_2d37,
];

/// A core's rounds per second, or what it got wrong.
type Computed = Result<f64, String>;

pub(super) fn run(context: &CheckContext<'_>) -> anyhow::Result<Vec<CheckResult>> {
    let cores = machine::cores()?;
    let computed = machine::on_each(&cores, |core| {
        let flip = context.fault.filter(|fault| fault.at == core as u64);
        compute(context.budget, flip)
    })?;
    let of_cores = || cores.iter().zip(&computed);
    let wrongs: Vec<_> = of_cores()
        .filter_map(|(core, computed)| Some((core, computed.as_ref().err()?)))
        .take(MAX_WRONG)
        .map(|(core, detail)| wrong(Check::CpuStress, format!("core {core}"), detail.clone()))
        .collect();
    if !wrongs.is_empty() {
        return Ok(wrongs);
    }
    let rates: Vec<_> = computed.iter().flatten().copied().collect();
    let middle = median(&rates);
    log(&format!(
        "{middle:.0} rounds per second on the median of {} cores",
        cores.len()
    ));
    let slowest = cores
        .iter()
        .zip(&rates)
        .min_by(|(_, one), (_, two)| one.total_cmp(two));
    let slowest = slowest.map(|(core, rate)| {
        let percent = 100.0 * rate / middle;
        measured(Check::CpuStress, format!("core {core}"), percent)
    });
    Ok(slowest.into_iter().collect())
}

/// Computes for a time, and compares each answer. `flip` is for tests.
fn compute(budget: Duration, flip: Option<BitFlip>) -> Computed {
    let mut seeds = (0..ANSWERS.len()).cycle();
    let parts = Part::all();
    let mut rates = Vec::new();
    for _ in 0..WINDOWS {
        let started = Instant::now();
        let mut rounds = 0.0;
        while started.elapsed() < budget / WINDOWS || rounds == 0.0 {
            let seed = seeds.next().unwrap_or_default();
            // The last seed shows that each is compared.
            let flip = flip.filter(|_| seed == ANSWERS.len() - 1);
            parts.iter().try_for_each(|part| part.compare(seed, flip))?;
            rounds += 1.0;
        }
        rates.push(rounds / started.elapsed().as_secs_f64());
    }
    Ok(median(&rates))
}

/// What a core computes for each seed.
#[derive(Clone, Copy, Debug)]
enum Part {
    Integers,
    Reals,
    /// With the vector units of an instruction set.
    Vectors(Kernels),
}

impl Part {
    /// All that this processor can.
    fn all() -> Vec<Self> {
        let vectors = Isa::ALL.into_iter().filter(|isa| *isa != Isa::Scalar);
        let vectors = vectors.filter_map(Kernels::of).map(Self::Vectors);
        [Self::Integers, Self::Reals]
            .into_iter()
            .chain(vectors)
            .collect()
    }

    /// Its name, and what a seed comes to.
    fn known(&self, seed: usize) -> (&'static str, u64) {
        match self {
            Self::Integers => ("integers", ANSWERS[seed].0),
            Self::Reals => ("floating point", ANSWERS[seed].1),
            Self::Vectors(kernels) => (kernels.isa().name(), VECTORS[seed]),
        }
    }

    fn compute(&self, seed: u64) -> u64 {
        match self {
            Self::Integers => integers(seed),
            Self::Reals => reals(seed),
            Self::Vectors(kernels) => vectors(kernels, seed),
        }
    }

    fn compare(&self, seed: usize, flip: Option<BitFlip>) -> Result<(), String> {
        let (name, expected) = self.known(seed);
        let flip = flip.map_or(0, |flip| 1 << flip.bit);
        let answer = || self.compute(black_box(seed as u64)) ^ flip;
        let got = answer();
        if got == expected {
            return Ok(());
        }
        let again = (0..REPEATS).filter(|_| answer() != expected).count();
        Err(format!(
            "{name} of seed {seed}: expected {expected:#018x}, got {got:#018x}, then wrong {again} \
             of {REPEATS} times"
        ))
    }
}

/// All that the integer units do: shifts, multiplications, divisions, counts.
fn integers(seed: u64) -> u64 {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    for step in 1..=STEPS {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let wide = u128::from(state) * u128::from(state.rotate_left(29) | 1);
        let (high, low) = ((wide >> 64) as u64, wide as u64);
        state = (high ^ low).wrapping_add(state / (step | 1));
        state = state.wrapping_add(u64::from(state.count_ones()) << (step % 32));
    }
    state
}

/// A product of matrices, roots and quotients, to their last bits.
fn reals(seed: u64) -> u64 {
    let mut state = seed + 1;
    // From 0.5 to 1.5, so that nothing overflows or vanishes.
    let mut next = || {
        state = state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        0.5 + (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let one: [[f64; SIDE]; SIDE] = std::array::from_fn(|_| std::array::from_fn(|_| next()));
    let two: [[f64; SIDE]; SIDE] = std::array::from_fn(|_| std::array::from_fn(|_| next()));
    let mut bits = 0_u64;
    for row in &one {
        let mut product = [0.0; SIDE];
        for (factor, other) in row.iter().zip(&two) {
            for (sum, value) in product.iter_mut().zip(other) {
                *sum += factor * value;
            }
        }
        for (sum, value) in product.iter().zip(row) {
            let mixed: f64 = (sum / value).sqrt() - value / sum;
            bits = bits.rotate_left(7) ^ mixed.to_bits() ^ sum.to_bits();
        }
    }
    bits
}

/// Sums of scaled numbers in f32 and f16, to their last bits. All instruction sets have the same.
fn vectors(kernels: &Kernels, seed: u64) -> u64 {
    let mut state = seed + 1;
    let mut bits = 0_u64;
    // The bits of a number that are drawn, and its exponent: from 0.5 to 1, of either sign.
    for (dtype, drawn, exponent) in [
        (DType::F32, 0x807f_ffff_807f_ffff, 0x3f00_0000_3f00_0000),
        (DType::F16, 0x83ff_83ff_83ff_83ff, 0x3800_3800_3800_3800),
    ] {
        let mut next = || {
            state = random(state);
            state & drawn | exponent
        };
        let sources: [[u8; SOURCE_BYTES]; SOURCES] = std::array::from_fn(|_| {
            let mut source = [0; SOURCE_BYTES];
            source.as_chunks_mut().0.fill_with(|| next().to_le_bytes());
            source
        });
        let mut sources = sources.each_ref().map(<[u8; SOURCE_BYTES]>::as_slice);
        for turn in 0..TURNS {
            // Another order and another factor, so that each turn rounds differently.
            sources.rotate_left(1);
            let by = Factor::new(0.7 + f32::from(turn) / 64.0);
            let (op, first) = (ReduceOp::PremulSum(by), SOURCES);
            let (mut sums, scale) = ([0; SOURCE_BYTES], Scale::Multiply { first, by });
            kernels.reduce(dtype, op, &mut sums, &sources, scale, Store::Cached);
            for word in sums.as_chunks().0 {
                bits = bits.rotate_left(7) ^ u64::from_le_bytes(*word);
            }
        }
    }
    bits
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tests::{small, values, wrongs};
    use super::*;

    #[test]
    fn the_answers_are_those_of_the_seeds() {
        let answers: Vec<_> = (0..8).map(|seed| (integers(seed), reals(seed))).collect();
        assert_eq!(answers, ANSWERS, "{answers:#018x?}");
        // Also by the reference, which is no part.
        for kernels in Isa::ALL.into_iter().filter_map(Kernels::of) {
            let vectors: Vec<_> = (0..8).map(|seed| vectors(&kernels, seed)).collect();
            assert_eq!(vectors, VECTORS, "{kernels:?}: {vectors:#018x?}");
        }
    }

    #[test]
    fn every_part_is_compared_and_each_vector_unit_is_one() {
        let flip = BitFlip { at: 0, bit: 0 };
        for part in Part::all() {
            assert_eq!(part.compare(7, None), Ok(()));
            let detail = part.compare(7, Some(flip)).unwrap_err();
            assert!(detail.starts_with(part.known(7).0), "{detail}");
        }
        let vectors = Isa::ALL.into_iter().filter(|isa| isa.is_available());
        // All but the reference.
        assert_eq!(Part::all().len(), 2 + vectors.count() - 1);
    }

    #[test]
    fn good_cores_have_a_slowest_one() {
        let values = values(Check::CpuStress, &small(Path::new("/")));
        let [(device, percent)] = values.as_slice() else {
            panic!("{values:?}");
        };
        assert!(
            device.starts_with("core ") && (0.0..=100.0).contains(percent),
            "{values:?}"
        );
    }

    #[test]
    fn a_flipped_bit_is_found_and_its_core_named() {
        let core = *machine::cores().unwrap().last().unwrap();
        let context = CheckContext {
            fault: Some(BitFlip {
                at: core as u64,
                bit: 51,
            }),
            ..small(Path::new("/"))
        };
        let wrongs = wrongs(Check::CpuStress, &context);
        let (expected, got) = (ANSWERS[7].0, ANSWERS[7].0 ^ (1 << 51));
        let detail = format!(
            "integers of seed 7: expected {expected:#018x}, got {got:#018x}, \
             then wrong 3 of 3 times"
        );
        assert_eq!(wrongs, [(format!("core {core}"), detail)]);
    }
}
