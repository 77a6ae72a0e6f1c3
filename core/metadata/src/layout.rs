//! Where the chunks of a file lie: a written-down shuffle of the chains, so that every build of every version agrees.
//! Which chains a table lists is the chain manager's business.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Bytes of a chunk where nobody asks for others.
pub const DEFAULT_CHUNK_BYTES: u32 = 1 << 20;
/// Most chunks of a file: as many as the frames between storage services can name.
pub const MOST_CHUNKS: u64 = 1 << 40;

/// Step and factors of splitmix64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX: [u64; 2] = [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];

/// How a file is divided into chunks, and which chains they are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileLayout {
    /// Version of the list of chains.
    pub table: u32,
    /// Bytes of each chunk: a power of two from 64 KiB to 4 MiB.
    pub chunk_bytes: u32,
    /// How many chains the chunks take in turn; all, where there are fewer.
    pub stripe: u16,
    /// What the shuffle starts from.
    pub seed: u64,
}

impl FileLayout {
    /// Whether chunks can have this size.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let is_size = (1 << 16..=1 << 22).contains(&self.chunk_bytes);
        is_size && self.chunk_bytes.is_power_of_two() && self.stripe > 0
    }

    /// Largest size of a file. The system calls of Linux end at 2^63 - 1.
    #[must_use]
    pub fn most_bytes(&self) -> u64 {
        let bytes = u128::from(self.chunk_bytes) * u128::from(MOST_CHUNKS);
        bytes.min(i64::MAX as u128) as u64
    }

    /// How many chunks so many bytes are.
    #[must_use]
    pub fn chunks(&self, bytes: u64) -> u64 {
        bytes.div_ceil(u64::from(self.chunk_bytes))
    }

    /// The chains of the stripe, in order, each by its place in the table's list of so many. Chunk `i` is on the one at
    /// `i` modulo the length of this.
    #[must_use]
    pub fn order(&self, chains: u32) -> Vec<u32> {
        let mut state = self.seed;
        // A shuffle of Fisher and Yates, of which only the moved places are kept.
        let mut moved: BTreeMap<u32, u32> = BTreeMap::new();
        let stripe = u32::from(self.stripe).min(chains);
        let draw = |at: u32| {
            let from = at + below(next(&mut state), chains - at);
            let drawn = moved.get(&from).copied().unwrap_or(from);
            let other = moved.get(&at).copied().unwrap_or(at);
            moved.insert(from, other);
            drawn
        };
        (0..stripe).map(draw).collect()
    }
}

/// The next number of splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(GOLDEN);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(MIX[0]);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(MIX[1]);
    mixed ^ (mixed >> 31)
}

/// A number below `limit`: the upper half of the product.
fn below(random: u64, limit: u32) -> u32 {
    ((u128::from(random) * u128::from(limit)) >> 64) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(seed: u64, stripe: u16) -> FileLayout {
        FileLayout {
            table: 1,
            chunk_bytes: DEFAULT_CHUNK_BYTES,
            stripe,
            seed,
        }
    }

    #[test]
    fn the_generator_is_splitmix64() {
        let mut state = 1_234_567;
        let drawn: Vec<u64> = (0..3).map(|_| next(&mut state)).collect();
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    /// META-9.
    #[test]
    fn chunks_lie_where_they_lay_in_every_version() {
        assert_eq!(layout(0, 8).order(8), [7, 4, 2, 0, 1, 5, 6, 3]);
        assert_eq!(layout(65_537, 4).order(12), [4, 7, 5, 2]);
        assert_eq!(layout(u64::MAX, 5).order(1000), [893, 912, 221, 427, 706]);
    }

    #[test]
    fn a_stripe_is_on_different_chains_and_all_are_used_alike() {
        let mut uses = [0_u32; 12];
        for seed in 0..6000 {
            let order = layout(seed, 4).order(12);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), 4);
            order.iter().for_each(|chain| uses[*chain as usize] += 1);
        }
        // 2,000 each; the deviation is about 37.
        assert!(
            uses.iter().all(|uses| uses.abs_diff(2000) < 200),
            "{uses:?}"
        );
        assert_eq!(layout(3, 200).order(5).len(), 5);
        assert_eq!(layout(3, 200).order(0), Vec::<u32>::new());
    }

    #[test]
    fn sizes_of_chunks_are_powers_of_two_that_a_store_can_hold() {
        let of = |chunk_bytes| FileLayout {
            chunk_bytes,
            ..layout(0, 1)
        };
        assert!(of(1 << 16).is_valid() && of(1 << 22).is_valid());
        assert!(!of(1 << 15).is_valid() && !of(1 << 23).is_valid() && !of(3 << 16).is_valid());
        assert!(!layout(0, 0).is_valid());
        assert_eq!(layout(0, 1).most_bytes(), 1 << 60);
        let chunks = [0, 1, 1 << 20, (1 << 20) + 1].map(|bytes| layout(0, 1).chunks(bytes));
        assert_eq!(chunks, [0, 1, 1, 2]);
    }
}
