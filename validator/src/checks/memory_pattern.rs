//! Whether memory gives back what was written: patterns over a bounded part of each NUMA node's,
//! by its own cores. A wrong word is read again, so that one that is stuck is known from one
//! that was read wrongly.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use health::{Check, CheckResult};

use super::{BitFlip, CheckContext, measured, wrong};
use crate::machine::{self, NumaNode, SYSTEM};

/// Most memory in all: more passes need no more time than this then.
const MOST_BYTES: u64 = 8 << 30;
/// Most threads of a NUMA node: a few already use all of its bandwidth.
const MAX_THREADS: usize = 16;
/// What a thread writes before it reads: more than a core's part of the caches.
const BLOCK_BYTES: u64 = 64 << 20;
const WORD_BYTES: u64 = 8;
const GIB: f64 = (1 << 30) as f64;

/// What a word is, from its place.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    OwnAddress,
    Zeros,
    Ones,
    Walking,
    Random,
    Complement,
}

const PATTERNS: [Pattern; 6] = [
    Pattern::OwnAddress,
    Pattern::Zeros,
    Pattern::Ones,
    Pattern::Walking,
    Pattern::Random,
    Pattern::Complement,
];

/// What one thread covered: words, or the first wrong one.
type Covered = anyhow::Result<Result<u64, String>>;

pub(super) fn run(context: &CheckContext<'_>) -> anyhow::Result<Vec<CheckResult>> {
    let nodes = machine::numa(Path::new(SYSTEM), &machine::cores()?);
    let count = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let bytes = context.memory_bytes.min(MOST_BYTES) / u64::from(count);
    let mut results = Vec::with_capacity(nodes.len());
    for node in &nodes {
        let device = format!("numa {}", node.index);
        results.push(
            match of_node(node, bytes, context.budget / count, context.fault)? {
                Ok(words) => {
                    let gib = (words * WORD_BYTES) as f64 / GIB;
                    measured(Check::MemoryPattern, device, gib)
                }
                Err(detail) => wrong(Check::MemoryPattern, device, detail),
            },
        );
    }
    Ok(results)
}

fn of_node(node: &NumaNode, bytes: u64, budget: Duration, fault: Option<BitFlip>) -> Covered {
    let deadline = Instant::now() + budget;
    let some = node
        .cores
        .iter()
        .take(MAX_THREADS)
        .copied()
        .collect::<Vec<_>>();
    let words = bytes / WORD_BYTES / some.len() as u64;
    let place = |core: usize| {
        some.iter()
            .position(|&other| other == core)
            .unwrap_or_default()
    };
    let covered = machine::on_each(&some, |core| {
        share(place(core) as u64 * words, words, deadline, fault)
    })?;
    let mut total = 0;
    for words in covered {
        match words? {
            Ok(words) => total += words,
            Err(detail) => return Ok(Err(detail)),
        }
    }
    if total == 0 {
        bail!(
            "failed to test any memory: {bytes} bytes and {} ms",
            budget.as_millis()
        );
    }
    Ok(Ok(total))
}

/// Tests the words from `first` on, block by block, until there is no time for one more.
fn share(first: u64, words: u64, deadline: Instant, fault: Option<BitFlip>) -> Covered {
    // All blocks stay, so that each is other memory than those before.
    let mut blocks: Vec<Vec<u64>> = Vec::new();
    let mut covered = 0;
    let mut longest = Duration::ZERO;
    while covered < words && Instant::now() + longest < deadline {
        let started = Instant::now();
        let length = (words - covered).min(BLOCK_BYTES / WORD_BYTES);
        let mut block = Vec::new();
        block
            .try_reserve_exact(usize::try_from(length)?)
            .context("failed to get memory to test")?;
        block.resize(usize::try_from(length)?, 0);
        for pattern in PATTERNS {
            if let Err(detail) = pattern.test(&mut block, first + covered, fault) {
                return Ok(Err(detail));
            }
        }
        blocks.push(block);
        covered += length;
        longest = longest.max(started.elapsed());
    }
    Ok(Ok(covered))
}

impl Pattern {
    #[inline(always)]
    fn word(self, place: u64) -> u64 {
        match self {
            Self::OwnAddress => place * WORD_BYTES,
            Self::Zeros => 0,
            Self::Ones => u64::MAX,
            Self::Walking => 1 << (place % 64),
            Self::Random => random(place),
            Self::Complement => !random(place),
        }
    }

    fn test(self, block: &mut [u64], first: u64, fault: Option<BitFlip>) -> Result<(), String> {
        for (place, word) in (first..).zip(block.iter_mut()) {
            *word = self.word(place);
        }
        if let Some(BitFlip { at, bit }) = fault
            && let Some(word) = (at / WORD_BYTES)
                .checked_sub(first)
                .and_then(|place| block.get_mut(usize::try_from(place).ok()?))
        {
            *word ^= 1 << bit;
        }
        // The compiler may not know what is in memory.
        let block = black_box(block);
        let differs = |(place, word): &(u64, &u64)| **word != self.word(*place);
        let Some((place, got)) = (first..).zip(block.iter()).find(differs) else {
            return Ok(());
        };
        let (offset, expected, got) = (place * WORD_BYTES, self.word(place), *got);
        let again = black_box(&*block).get(usize::try_from(place - first).unwrap_or_default());
        let again = match again == Some(&got) {
            true => "again the same",
            false => "something else when read again",
        };
        Err(format!(
            "{self:?} at offset {offset:#x}: expected {expected:#018x}, got {got:#018x}, {again}"
        ))
    }
}

/// Bits without order (splitmix64).
pub(super) fn random(place: u64) -> u64 {
    let mut bits = place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{small, values, wrongs};
    use super::*;

    fn patient(scratch: &Path) -> CheckContext<'_> {
        CheckContext {
            budget: Duration::from_secs(20),
            ..small(scratch)
        }
    }

    #[test]
    fn good_memory_is_covered() {
        let values = values(Check::MemoryPattern, &patient(Path::new("/")));
        let gib: f64 = values.iter().map(|(_, gib)| gib).sum();
        // But for what does not divide by the threads.
        assert!((0.0029..0.00294).contains(&gib), "{values:?}");
    }

    #[test]
    fn a_flipped_bit_is_found_with_its_place() {
        let context = CheckContext {
            fault: Some(BitFlip { at: 0x8010, bit: 5 }),
            ..patient(Path::new("/"))
        };
        let wrongs = wrongs(Check::MemoryPattern, &context);
        let (device, detail) = &wrongs[0];
        assert!(device.starts_with("numa "), "{device}");
        assert_eq!(
            detail,
            "OwnAddress at offset 0x8010: expected 0x0000000000008010, got 0x0000000000008030, \
             again the same"
        );
    }
}
