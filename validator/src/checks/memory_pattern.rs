//! Whether memory gives back what was written: patterns over a bounded part of each NUMA node's,
//! by its own cores. A wrong word is read again, so that one that is stuck is known from one
//! that was read wrongly.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
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
/// Words that are compared without a branch for each, so that vector instructions can do it: a page.
const GROUP: usize = 512;
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
        // Zeros that nobody writes: the first pattern gets the memory.
        let mut block = vec![0; usize::try_from(length)?];
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
    fn test(self, block: &mut [u64], first: u64, fault: Option<BitFlip>) -> Result<(), String> {
        // Loops of its own for each: one that asks each time which pattern it writes is half as fast.
        match self {
            Self::OwnAddress => self.pass(|place| place * WORD_BYTES, block, first, fault),
            Self::Zeros => self.pass(|_| 0, block, first, fault),
            Self::Ones => self.pass(|_| u64::MAX, block, first, fault),
            Self::Walking => self.pass(|place| 1 << (place % 64), block, first, fault),
            Self::Random => self.pass(scattered, block, first, fault),
            Self::Complement => self.pass(|place| !scattered(place), block, first, fault),
        }
    }

    #[inline(always)]
    fn pass(
        self,
        pattern: impl Fn(u64) -> u64,
        block: &mut [u64],
        first: u64,
        fault: Option<BitFlip>,
    ) -> Result<(), String> {
        for (place, word) in (first..).zip(block.iter_mut()) {
            *word = pattern(place);
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
        for (first, words) in (first..).step_by(GROUP).zip(block.chunks(GROUP)) {
            let differing = |all: u64, (place, word): (u64, &u64)| all | (word ^ pattern(place));
            if (first..).zip(words).fold(0, differing) != 0 {
                return Err(self.explain(pattern, words, first));
            }
        }
        Ok(())
    }

    /// Which word of a group was wrong, and whether it is so again.
    #[cold]
    fn explain(self, pattern: impl Fn(u64) -> u64, words: &[u64], first: u64) -> String {
        let differs = |(place, word): &(u64, &u64)| **word != pattern(*place);
        let wrong = (first..).zip(black_box(words)).find(differs);
        let Some((place, &got)) = wrong else {
            let offset = first * WORD_BYTES;
            return format!("{self:?} from offset {offset:#x}: wrong, and right when read again");
        };
        let (offset, expected) = (place * WORD_BYTES, pattern(place));
        let again = black_box(words).get(usize::try_from(place - first).unwrap_or_default());
        let again = match again == Some(&got) {
            true => "again the same",
            false => "something else when read again",
        };
        format!(
            "{self:?} at offset {offset:#x}: expected {expected:#018x}, got {got:#018x}, {again}"
        )
    }
}

/// Bits without order, others for each place.
#[inline(always)]
fn scattered(place: u64) -> u64 {
    place.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_right(23)
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
