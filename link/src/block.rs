//! A segment whose ranges are borrowed at run time: read by many, or written by one, as `RefCell` does it for a
//! value. The lanes of a node and what waits to be sent hold ranges of one result at the same time, which no
//! compiler can distinguish. Owns that check; what lies in a range is its holder's business.
//!
//! Other processes write where the segment lets them, whatever is borrowed here: see `segment`.

use std::ops::{Deref, DerefMut, Range};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::segment::{Mapping, Segment};

/// A segment that is borrowed in ranges.
#[derive(Debug)]
pub struct Block {
    segment: Segment,
    number: u64,
    /// Whether its pages are given back at its end.
    releases: AtomicBool,
    /// A range in use each: as many as there are chunks in work, some dozens.
    borrows: Mutex<Vec<Borrow>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Borrow {
    start: usize,
    end: usize,
    writes: bool,
}

/// Why a range is not to be had: it is in use, or lies outside. A bug of whoever asks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to borrow bytes {} to {} of {length}: they are {why}", range.start, range.end)]
pub struct Denied {
    range: Range<usize>,
    length: usize,
    why: &'static str,
}

impl Block {
    /// Nothing is borrowed yet.
    #[must_use]
    pub fn new(segment: Segment) -> Arc<Self> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            segment,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            releases: AtomicBool::new(false),
            borrows: Mutex::default(),
        })
    }

    /// Its size.
    #[expect(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub fn len(&self) -> usize {
        self.segment.len()
    }

    /// The descriptor of its segment, to be handed to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.segment.fd()
    }

    /// Its mapping, to be kept for as long as a device may touch it.
    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        self.segment.mapping()
    }

    /// When nobody in this process uses it any more its pages go back to the kernel, whoever else keeps the descriptor.
    pub fn release_at_end(&self) {
        self.releases.store(true, Ordering::Relaxed);
    }

    /// Its number: no other block of this process has it, or had it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Borrows a range for reading.
    pub fn read(self: &Arc<Self>, range: Range<usize>) -> Result<Reading, Denied> {
        let borrow = self.borrow(range, false)?;
        let block = Arc::clone(self);
        Ok(Reading { block, borrow })
    }

    /// Borrows a range for writing.
    pub fn write(self: &Arc<Self>, range: Range<usize>) -> Result<Writing, Denied> {
        let borrow = self.borrow(range, true)?;
        let block = Arc::clone(self);
        Ok(Writing { block, borrow })
    }

    fn borrow(&self, range: Range<usize>, writes: bool) -> Result<Borrow, Denied> {
        let Range { start, end } = range;
        let denied = |why| Denied {
            range: start..end,
            length: self.segment.len(),
            why,
        };
        if start > end || end > self.segment.len() {
            return Err(denied("not in it"));
        }
        let borrow = Borrow { start, end, writes };
        if start == end {
            return Ok(borrow);
        }
        let mut borrows = self.borrows.lock().unwrap_or_else(PoisonError::into_inner);
        let conflicts =
            |other: &Borrow| start < other.end && other.start < end && (writes || other.writes);
        if borrows.iter().any(conflicts) {
            return Err(denied("in use"));
        }
        borrows.push(borrow);
        Ok(borrow)
    }

    fn give_back(&self, borrow: &Borrow) {
        if borrow.start == borrow.end {
            return;
        }
        let mut borrows = self.borrows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = borrows.iter().position(|other| other == borrow) {
            borrows.swap_remove(at);
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.releases.load(Ordering::Relaxed) {
            // Refused only for what nobody else can write to.
            self.segment.release().ok();
        }
    }
}

/// Bytes that are read.
#[derive(Debug)]
pub struct Reading {
    block: Arc<Block>,
    borrow: Borrow,
}

impl Reading {
    /// Some of these bytes, borrowed once more; none if there are not as many.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Option<Self> {
        let Borrow { start, end, .. } = self.borrow;
        let fits = range.start <= range.end && range.end <= end - start;
        let range = fits.then(|| start + range.start..start + range.end)?;
        self.block.read(range).ok()
    }

    /// The block they lie in, and their place there.
    #[must_use]
    pub fn place(&self) -> (&Arc<Block>, usize) {
        (&self.block, self.borrow.start)
    }
}

impl Deref for Reading {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        bytes(&self.block, &self.borrow)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.block.give_back(&self.borrow);
    }
}

/// Bytes that are written.
#[derive(Debug)]
pub struct Writing {
    block: Arc<Block>,
    borrow: Borrow,
}

impl Deref for Writing {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        bytes(&self.block, &self.borrow)
    }
}

impl DerefMut for Writing {
    #[expect(unsafe_code, reason = "a borrowed range as a slice")]
    fn deref_mut(&mut self) -> &mut [u8] {
        let Borrow { start, end, .. } = self.borrow;
        // SAFETY: the range lies in the mapping, which the block keeps alive; no other borrow of this block
        // overlaps it while this one is in the list, which is until `self` is dropped; and the block gives its
        // bytes out in no other way.
        unsafe {
            std::slice::from_raw_parts_mut(self.block.segment.start().add(start), end - start)
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.block.give_back(&self.borrow);
    }
}

#[expect(unsafe_code, reason = "a borrowed range as a slice")]
fn bytes<'a>(block: &'a Block, borrow: &Borrow) -> &'a [u8] {
    let Borrow { start, end, .. } = *borrow;
    // SAFETY: the range lies in the mapping, which the block keeps alive; while the borrow is in the list no range
    // that overlaps it is borrowed for writing, unless this is that very borrow, seen through `&self`.
    unsafe { std::slice::from_raw_parts(block.segment.start().add(start), end - start) }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::segment::Writers;

    fn block() -> Arc<Block> {
        Block::new(Segment::create("test", 1 << 16, Writers::Creator).unwrap())
    }

    #[test]
    fn a_range_is_read_by_many_or_written_by_one() {
        let block = block();
        let one = block.read(0..100).unwrap();
        let other = block.read(50..150).unwrap();
        let denied = block.write(149..200).unwrap_err();
        assert!(
            denied.to_string().contains("149 to 200 of 65536"),
            "{denied}"
        );
        let beside = block.write(150..200).unwrap();
        assert!(block.read(199..201).is_err() && block.write(160..170).is_err());
        drop(beside);
        drop((one, other));
        block.write(0..200).unwrap();
    }

    #[test]
    fn what_lies_outside_is_refused_and_nothing_is_nobodys() {
        let block = block();
        assert!(block.read(0..65537).is_err() && block.write(65536..65537).is_err());
        let _all = block.write(0..65536).unwrap();
        assert!(block.read(7..7).unwrap().is_empty());
    }

    #[test]
    fn threads_write_ranges_of_their_own() {
        let block = block();
        thread::scope(|scope| {
            for lane in 0..8usize {
                let block = &block;
                scope.spawn(move || {
                    for _ in 0..100 {
                        let range = lane * 1000..(lane + 1) * 1000;
                        block.write(range).unwrap().fill(lane as u8);
                    }
                });
            }
        });
        let all = block.read(0..8000).unwrap();
        assert!((0..8000).all(|at| all[at] == (at / 1000) as u8));
    }
}
