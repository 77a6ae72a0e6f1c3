//! Which blocks of the disk are in use, and by how many: states, plans that are carried out, and reads. What may be
//! let go when is decided by whoever holds it.

/// All blocks of the disk.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    /// Holders of each.
    holders: Vec<u16>,
    /// A bit for each that has holders, so that the search for a free one looks at 64 at once.
    used: Vec<u64>,
    free: usize,
    /// Where the search goes on, so that what is written together lies together.
    cursor: usize,
}

impl Blocks {
    pub(crate) fn new(count: u32) -> Self {
        let count = count as usize;
        let mut used = vec![0; count.div_ceil(64)];
        if let Some(last) = used.last_mut().filter(|_| !count.is_multiple_of(64)) {
            *last = u64::MAX << (count % 64);
        }
        Self {
            holders: vec![0; count],
            used,
            free: count,
            cursor: 0,
        }
    }

    pub(crate) fn free(&self) -> usize {
        self.free
    }

    pub(crate) fn is_free(&self, place: u32) -> bool {
        self.holders[place as usize] == 0
    }

    /// A free block, which has one holder then.
    pub(crate) fn allocate(&mut self) -> Option<u32> {
        let words = self.used.len();
        let mut word = (self.cursor..words)
            .chain(0..self.cursor)
            .filter(|&word| self.used[word] != u64::MAX);
        let word = word.next()?;
        self.cursor = word;
        let place = (word * 64) as u32 + self.used[word].trailing_ones();
        self.hold(place);
        Some(place)
    }

    pub(crate) fn hold(&mut self, place: u32) {
        let holders = &mut self.holders[place as usize];
        if *holders == 0 {
            self.used[place as usize / 64] |= 1 << (place % 64);
            self.free -= 1;
        }
        // Two states, a plan, and what may be read at once: far below 65,535.
        *holders += 1;
    }

    pub(crate) fn release(&mut self, place: u32) {
        let holders = &mut self.holders[place as usize];
        assert!(
            *holders > 0,
            "STORE-3: a block is let go by its holders only"
        );
        *holders -= 1;
        if *holders == 0 {
            self.used[place as usize / 64] &= !(1 << (place % 64));
            self.free += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_given_once_and_again_when_nobody_holds_it() {
        let mut blocks = Blocks::new(130);
        let given: Vec<u32> = std::iter::from_fn(|| blocks.allocate()).collect();
        assert!(given.iter().copied().eq(0..130));
        blocks.hold(77);
        blocks.release(77);
        assert_eq!((blocks.allocate(), blocks.free()), (None, 0));
        blocks.release(77);
        assert!(blocks.is_free(77) && blocks.free() == 1);
        assert_eq!(blocks.allocate(), Some(77));
    }
}
