//! Random numbers that are the same everywhere for the same seed. Not for secrets.

use std::ops::Range;

/// Step of the generator that spreads a seed (splitmix64).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// xoshiro256**, seeded by splitmix64 so that near seeds give unrelated streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut at = seed;
        let state = std::array::from_fn(|_| {
            at = at.wrapping_add(GOLDEN);
            let mixed = (at ^ (at >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ (mixed >> 31)
        });
        Self { state }
    }

    /// A stream of its own for one part of a simulation, so that a change there does not shift the others.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let value = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= shifted;
        *d = d.rotate_left(45);
        value
    }

    /// A number in a range, which must not be empty. The bias (below 2^-32 for ranges below 2^32) is no matter here.
    pub fn range(&mut self, range: Range<u64>) -> u64 {
        assert!(!range.is_empty(), "a range to draw from holds something");
        range.start + self.next_u64() % (range.end - range.start)
    }

    /// An index into something of this length, which must not be 0.
    pub fn below(&mut self, length: usize) -> usize {
        self.range(0..length as u64) as usize
    }

    /// True in `numerator` of `denominator` cases.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.range(0..denominator) < numerator
    }

    /// One element of a slice, which must not be empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Puts a slice in random order.
    pub fn shuffle<T>(&mut self, slice: &mut [T]) {
        for last in (1..slice.len()).rev() {
            slice.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_stream_and_another_seed_another() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [rng.next_u64(), rng.next_u64(), rng.next_u64()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn the_first_numbers_of_seed_0_are_those_of_the_published_algorithm() {
        // splitmix64 from 0 starts 0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f, 0xf88bb8a8724c81ec.
        let mut rng = Rng::new(0);
        assert_eq!(rng.state[0], 0xe220_a839_7b1d_cdaf);
        let second = 0x6e78_9e6a_a1b9_65f4_u64;
        assert_eq!(
            rng.next_u64(),
            second.wrapping_mul(5).rotate_left(7).wrapping_mul(9)
        );
    }

    #[test]
    fn a_shuffle_keeps_every_element() {
        let mut deck: Vec<u32> = (0..52).collect();
        Rng::new(1).shuffle(&mut deck);
        assert_ne!(deck, (0..52).collect::<Vec<_>>());
        deck.sort_unstable();
        assert_eq!(deck, (0..52).collect::<Vec<_>>());
    }
}
