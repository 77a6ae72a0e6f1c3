//! Inputs of a node's eight ranks and their sums, both known, for checks of a node: a wrong sum tells an input that
//! changed in memory from a core that added wrongly. Leaves threads, cores and clocks to who checks.

use crate::kernels::{Store, reduce};
use crate::machine::DEFAULT_CHUNK_BYTES;
use crate::{DType, ReduceOp, Scale};

/// Inputs: one for each of a node's GPUs.
pub const RANKS: usize = 8;
/// With the result.
pub const BUFFERS: usize = RANKS + 1;
/// Buffers begin on a line of the caches, and a part of one is a number of lines.
pub const LINE_BYTES: usize = 64;
/// What is summed in one call, as the sidecar does.
const CHUNK_BYTES: usize = DEFAULT_CHUNK_BYTES as usize;
const ELEMENT_BYTES: usize = 4;
/// How often a wrong sum is asked for again, which tells a core that is always wrong from one that was once.
const REPEATS: usize = 3;

/// Whose fault a wrong sum is. Offsets are in bytes from the start of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongSum {
    /// The input is not what was written: memory, or the way to it.
    #[error(
        "input of rank {rank} at offset {offset:#x}: expected {expected:#010x}, got {got:#010x}"
    )]
    Input {
        rank: usize,
        offset: usize,
        expected: u32,
        got: u32,
    },
    /// The inputs are right: the core, or the result's memory.
    #[error(
        "sum of core {core} at offset {offset:#x}: expected {expected:#010x}, got {got:#010x}, then wrong {again} of \
         {REPEATS} times"
    )]
    Sum {
        core: usize,
        offset: usize,
        expected: u32,
        got: u32,
        again: usize,
    },
}

/// One core's part of every input, and of the result.
#[derive(Debug)]
pub struct KnownSums {
    /// Where the part begins in an input, in bytes.
    first: usize,
    length: usize,
    /// The parts of the inputs one behind the other, then that of the result.
    memory: Vec<u8>,
    /// Where they begin.
    start: usize,
}

impl KnownSums {
    /// The part of `length` bytes that begins at `first`, both whole lines. The memory is touched here, by who calls.
    pub fn new(first: usize, length: usize) -> Self {
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
    pub fn sum(&mut self) {
        let (inputs, result) = self.memory[self.start..].split_at_mut(RANKS * self.length);
        let chunks = result[..self.length].chunks_mut(CHUNK_BYTES);
        for (at, chunk) in (0..).step_by(CHUNK_BYTES).zip(chunks) {
            let of_rank = |rank| &inputs[rank * self.length + at..][..chunk.len()];
            let sources: [&[u8]; RANKS] = std::array::from_fn(of_rank);
            let (dtype, op) = (DType::F32, ReduceOp::Sum);
            reduce(dtype, op, chunk, &sources, Scale::Not, Store::Cached);
        }
    }

    /// Finds the first wrong sum; `core` added it up. Right ones are overwritten: each round has to store its own.
    pub fn compare(&mut self, core: usize) -> Result<(), WrongSum> {
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
    fn explain(&mut self, index: usize, core: usize) -> WrongSum {
        let offset = self.first + index * ELEMENT_BYTES;
        for rank in 0..RANKS {
            let (expected, got) = (input(offset, rank).to_bits(), self.bits(rank, index));
            if got != expected {
                return WrongSum::Input {
                    rank,
                    offset,
                    expected,
                    got,
                };
            }
        }
        let (expected, got) = (sum(offset).to_bits(), self.bits(RANKS, index));
        let mut is_wrong_again = || {
            self.sum();
            self.bits(RANKS, index) != expected
        };
        let again = (0..REPEATS).filter(|_| is_wrong_again()).count();
        WrongSum::Sum {
            core,
            offset,
            expected,
            got,
            again,
        }
    }

    /// Flips a bit of a byte, if it lies in this part, so that tests of a check have something to find. The buffer behind
    /// the last rank's is the result.
    pub fn flip_bit(&mut self, buffer: usize, offset: usize, bit: u32) {
        let at = offset.wrapping_sub(self.first);
        if buffer < BUFFERS && at < self.length {
            self.memory[self.start + buffer * self.length + at] ^= 1 << (bit % 8);
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

/// Bits without order, of a number (splitmix64).
#[must_use]
pub const fn random(place: u64) -> u64 {
    let mut bits = place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_round_has_to_store_all_of_its_chunks() {
        let mut part = KnownSums::new(LINE_BYTES, CHUNK_BYTES + LINE_BYTES);
        part.sum();
        assert_eq!(part.compare(3), Ok(()));
        assert!(matches!(
            part.compare(3),
            Err(WrongSum::Sum {
                core: 3,
                offset: 0x40,
                ..
            })
        ));
        part.sum();
        let offset = LINE_BYTES + CHUNK_BYTES + 12;
        part.flip_bit(RANKS, offset, 1);
        let expected = sum(offset).to_bits();
        let wrong = WrongSum::Sum {
            core: 3,
            offset,
            expected,
            got: expected ^ 2,
            again: 0,
        };
        assert_eq!(part.compare(3), Err(wrong));
        let got = expected ^ 2;
        let detail = format!(
            "sum of core 3 at offset {offset:#x}: expected {expected:#010x}, got {got:#010x}, then wrong 0 of 3 times"
        );
        assert_eq!(wrong.to_string(), detail);
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
}
