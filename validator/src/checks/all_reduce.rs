//! Whether the cores of each NUMA node add up the inputs of eight ranks as HFReduce does inside a
//! node, by the same kernels, and how fast. The sums are known, and so are the inputs: a wrong sum
//! tells an input that changed in memory from a core that added wrongly.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use collective::kernels::{self, Store};
use collective::machine::DEFAULT_CHUNK_BYTES;
use collective::{DType, ReduceOp, Scale};
use health::{Check, CheckResult};

use super::{BitFlip, CheckContext, measured, random, wrong};
use crate::log;
use crate::machine::{self, NumaNode, Rounds, SYSTEM, best_round};

/// Inputs: one for each of a node's GPUs.
const RANKS: usize = 8;
/// With the result.
const BUFFERS: usize = RANKS + 1;
/// An input is so many times larger than the caches, so that all comes from memory.
const CACHES: u64 = 2;
/// What is summed in one call, as the sidecar does.
const CHUNK_BYTES: usize = DEFAULT_CHUNK_BYTES as usize;
/// Buffers begin on a line of the caches, and a core's part of one is a number of lines.
const LINE_BYTES: usize = 64;
const ELEMENT_BYTES: usize = 4;
/// The first round also gets memory for the sums, so it is not the only one.
const LEAST_ROUNDS: usize = 2;
const MAX_ROUNDS: usize = 1000;
/// How often a wrong sum is asked for again, which tells a core that is always wrong from one that
/// was once.
const REPEATS: usize = 3;

pub(super) fn run(context: &CheckContext<'_>) -> anyhow::Result<Vec<CheckResult>> {
    let system = Path::new(SYSTEM);
    let nodes = machine::numa(system, &machine::cores()?);
    let each = context.budget / u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let mut results = Vec::with_capacity(nodes.len());
    for node in &nodes {
        let wanted = CACHES * machine::cache_bytes(system, &node.cores);
        let bytes = wanted.min(context.memory_bytes / BUFFERS as u64);
        if bytes < wanted {
            let (mib, wanted) = (bytes >> 20, wanted >> 20);
            log(&format!(
                "inputs of {mib} MiB instead of {wanted}: memory is short"
            ));
        }
        let device = format!("numa {}", node.index);
        results.push(match all_reduce(node, bytes, each, context.fault)? {
            Ok(rate) => measured(Check::AllReduce, device, rate),
            Err(detail) => wrong(Check::AllReduce, device, detail),
        });
    }
    Ok(results)
}

/// GB/s of input in the best round, or the first wrong sum. A round takes as long as its slowest
/// core.
fn all_reduce(
    node: &NumaNode,
    bytes: u64,
    budget: Duration,
    fault: Option<BitFlip>,
) -> anyhow::Result<Result<f64, String>> {
    let started = Instant::now();
    let cores = node.cores.len();
    let bytes = usize::try_from(bytes)?;
    let length = bytes / cores / LINE_BYTES * LINE_BYTES;
    if length == 0 {
        bail!("failed to have memory for the sums: {bytes} bytes for each of {RANKS} inputs");
    }
    let rounds = Rounds::new(cores);
    let is_wrong = AtomicBool::new(false);
    let times = machine::on_each(&node.cores, |core| {
        let place = node.cores.iter().position(|&other| other == core);
        // Whoever touches memory first gets it from its own node.
        let mut share = Share::new(place.unwrap_or_default() * length, length);
        let (mut times, mut wrong) = (Vec::new(), None);
        while rounds.have_another(|| {
            let is_late = times.len() >= LEAST_ROUNDS && started.elapsed() >= budget;
            is_late || times.len() == MAX_ROUNDS || is_wrong.load(Ordering::Relaxed)
        }) {
            let since = Instant::now();
            share.sum();
            times.push(since.elapsed());
            if let Some(fault) = fault.filter(|_| times.len() == 1) {
                share.spoil(fault, bytes);
            }
            wrong = share.compare(core).err();
            is_wrong.fetch_or(wrong.is_some(), Ordering::Relaxed);
        }
        wrong.map_or(Ok(times), Err)
    })?;
    let times: Result<Vec<_>, _> = times.into_iter().collect();
    Ok(times.map(|times| {
        let nanos = best_round(&times).as_nanos();
        (RANKS * length * cores) as f64 / nanos as f64
    }))
}

/// A core's part of every input, and of the result.
struct Share {
    /// Where the part begins in an input, in bytes.
    first: usize,
    length: usize,
    /// The parts of the inputs one behind the other, then that of the result.
    memory: Vec<u8>,
    /// Where they begin.
    start: usize,
}

impl Share {
    fn new(first: usize, length: usize) -> Self {
        let mut memory = vec![0; BUFFERS * length + LINE_BYTES];
        let start = memory.as_ptr().align_offset(LINE_BYTES).min(LINE_BYTES);
        let parts = memory[start..].chunks_exact_mut(length);
        for (rank, part) in parts.take(RANKS).enumerate() {
            let places = (first..).step_by(ELEMENT_BYTES);
            for (place, element) in places.zip(part.as_chunks_mut().0) {
                *element = input(place, rank).to_ne_bytes();
            }
        }
        Self {
            first,
            length,
            memory,
            start,
        }
    }

    /// The part of a rank's input, or behind the last rank that of the result.
    fn part(&self, buffer: usize) -> &[[u8; ELEMENT_BYTES]] {
        let part = &self.memory[self.start + buffer * self.length..][..self.length];
        part.as_chunks().0
    }

    fn bits(&self, buffer: usize, index: usize) -> u32 {
        u32::from_ne_bytes(self.part(buffer)[index])
    }

    /// Adds up everything, chunk by chunk.
    fn sum(&mut self) {
        let (inputs, result) = self.memory[self.start..].split_at_mut(RANKS * self.length);
        let chunks = result[..self.length].chunks_mut(CHUNK_BYTES);
        for (at, chunk) in (0..).step_by(CHUNK_BYTES).zip(chunks) {
            let of_rank = |rank| &inputs[rank * self.length + at..][..chunk.len()];
            let sources: [&[u8]; RANKS] = std::array::from_fn(of_rank);
            let (dtype, op) = (DType::F32, ReduceOp::Sum);
            kernels::reduce(dtype, op, chunk, &sources, Scale::Not, Store::Cached);
        }
    }

    /// Finds the first wrong sum. Right ones are overwritten: each round has to store its own.
    fn compare(&mut self, core: usize) -> Result<(), String> {
        let places = (self.first..).step_by(ELEMENT_BYTES);
        let differs =
            |(place, got): (usize, &[u8; ELEMENT_BYTES])| *got != sum(place).to_ne_bytes();
        if let Some(index) = places.zip(self.part(RANKS)).position(differs) {
            return Err(self.explain(index, core));
        }
        let result = self.start + RANKS * self.length;
        self.memory[result..][..self.length].fill(u8::MAX);
        Ok(())
    }

    /// Whose fault the wrong sum of an element is.
    fn explain(&mut self, index: usize, core: usize) -> String {
        let place = self.first + index * ELEMENT_BYTES;
        for rank in 0..RANKS {
            let (expected, got) = (input(place, rank).to_bits(), self.bits(rank, index));
            if got != expected {
                return format!(
                    "input of rank {rank} at offset {place:#x}: expected {expected:#010x}, got \
                     {got:#010x}"
                );
            }
        }
        let (expected, got) = (sum(place).to_bits(), self.bits(RANKS, index));
        let mut is_wrong_again = || {
            self.sum();
            self.bits(RANKS, index) != expected
        };
        let again = (0..REPEATS).filter(|_| is_wrong_again()).count();
        format!(
            "sum of core {core} at offset {place:#x}: expected {expected:#010x}, got \
             {got:#010x}, then wrong {again} of {REPEATS} times"
        )
    }

    /// Flips a bit, if it lies here. For tests; all inputs of `bytes` and the result lie one behind
    /// the other there.
    fn spoil(&mut self, fault: BitFlip, bytes: usize) {
        let place = fault.at as usize + fault.bit as usize / 8;
        let (buffer, at) = (place / bytes, (place % bytes).wrapping_sub(self.first));
        if buffer < BUFFERS && at < self.length {
            self.memory[self.start + buffer * self.length + at] ^= 1 << (fault.bit % 8);
        }
    }
}

/// What a rank brings at a place: integers from 2^23 to 2^23 + 2^21, of odd ranks negative. So each
/// sum on the way is an integer below 2^24 and exact, and a wrong bit of any input shows.
fn number(random: u64, rank: usize) -> i32 {
    let size = (1 << 23) + (random >> (6 * rank) & 0x1f_ffff) as i32;
    if rank.is_multiple_of(2) { size } else { -size }
}

fn input(place: usize, rank: usize) -> f32 {
    number(random(place as u64), rank) as f32
}

fn sum(place: usize) -> f32 {
    let random = random(place as u64);
    let numbers = (0..RANKS).map(|rank| number(random, rank));
    numbers.sum::<i32>() as f32
}

#[cfg(test)]
mod tests {
    use super::super::tests::{small, values, wrongs};
    use super::*;

    /// Of an input and of the result, in the contexts below.
    const BYTES: u64 = 256 << 10;

    /// What a flipped bit of a buffer is reported as, without the numbers behind the colon.
    fn found(buffer: u64, offset: u64) -> (String, String) {
        let context = CheckContext {
            memory_bytes: BYTES * BUFFERS as u64,
            fault: Some(BitFlip {
                at: buffer * BYTES + offset,
                bit: 0,
            }),
            ..small(Path::new("/"))
        };
        let (device, detail) = wrongs(Check::AllReduce, &context).swap_remove(0);
        (device, detail.split(':').next().unwrap().to_owned())
    }

    #[test]
    fn a_flipped_bit_of_an_input_is_found_and_its_rank_named() {
        let (device, detail) = found(5, 0x44);
        assert!(device.starts_with("numa "), "{device}");
        assert_eq!(detail, "input of rank 5 at offset 0x44");
    }

    #[test]
    fn a_flipped_bit_of_the_result_is_found_and_its_core_named() {
        let nodes = machine::numa(Path::new(SYSTEM), &machine::cores().unwrap());
        let core = nodes[0].cores[0];
        let (_, detail) = found(RANKS as u64, 0x44);
        assert_eq!(detail, format!("sum of core {core} at offset 0x44"));
    }

    #[test]
    fn each_round_has_to_store_all_of_its_chunks() {
        let mut share = Share::new(LINE_BYTES, CHUNK_BYTES + LINE_BYTES);
        share.sum();
        assert_eq!(share.compare(3), Ok(()));
        let detail = share.compare(3).unwrap_err();
        assert!(
            detail.starts_with("sum of core 3 at offset 0x40: "),
            "{detail}"
        );
        share.sum();
        let bytes = 2 * CHUNK_BYTES;
        let at = (RANKS * bytes + LINE_BYTES + CHUNK_BYTES + 8) as u64;
        share.spoil(BitFlip { at, bit: 33 }, bytes);
        let place = LINE_BYTES + CHUNK_BYTES + 12;
        let (expected, got) = (sum(place).to_bits(), sum(place).to_bits() ^ 2);
        let detail = format!(
            "sum of core 3 at offset {place:#x}: expected {expected:#010x}, got {got:#010x}, then \
             wrong 0 of 3 times"
        );
        assert_eq!(share.compare(3), Err(detail));
    }

    #[test]
    fn every_bit_of_every_input_shows_in_the_sum() {
        for place in (0..1000).map(|place| place * ELEMENT_BYTES) {
            let inputs: [f32; RANKS] = std::array::from_fn(|rank| input(place, rank));
            assert_eq!(inputs.iter().sum::<f32>().to_bits(), sum(place).to_bits());
            for (rank, bit) in (0..RANKS).flat_map(|rank| (0..32).map(move |bit| (rank, bit))) {
                let mut inputs = inputs;
                inputs[rank] = f32::from_bits(inputs[rank].to_bits() ^ 1 << bit);
                assert_ne!(inputs.iter().sum::<f32>(), sum(place), "{rank} {bit}");
            }
        }
    }

    #[test]
    fn good_nodes_have_a_rate() {
        let values = values(Check::AllReduce, &small(Path::new("/")));
        assert!(values[0].0.starts_with("numa "), "{values:?}");
        assert!(values.iter().all(|(_, rate)| *rate > 0.01), "{values:?}");
    }

    #[test]
    fn too_little_memory_is_an_error_and_no_number() {
        let context = CheckContext {
            memory_bytes: 1000,
            ..small(Path::new("/"))
        };
        let error = run(&context).unwrap_err().to_string();
        assert!(error.contains("to have memory"), "{error}");
    }
}
