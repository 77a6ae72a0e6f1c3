//! A result that its reader may write to, as optimizers and clipping do with gradients: a page that is written becomes
//! this process's own, so neither the sidecar nor another rank sees it. Owns finding such pages: they have to go before
//! the segment holds the next result, which they would hide.
//!
//! Handing results out as they lie saves the copy, the dearest pass of an allreduce over host memory. A mapping for
//! reading alone would end a script that clips its gradients with a segmentation fault.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use crate::segment::{Error, Mapping};

/// What the kernel knows about each page of this process, a word each.
const PAGEMAP: &str = "/proc/self/pagemap";
const WORD_BYTES: usize = 8;
/// Words that are read at once: of 32 MiB.
const WORDS: usize = 8 << 10;
/// The page is in memory; it is in swap; it belongs to a file.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const OF_FILE: u64 = 1 << 61;

/// A segment mapped to be written to in private.
#[derive(Debug)]
pub struct CowResult {
    mapping: Mapping,
    /// None where /proc is not to be had: then every page counts as written.
    pages: Option<File>,
}

impl CowResult {
    pub fn open(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, Error> {
        Ok(Self {
            mapping: Mapping::private(fd, bytes)?,
            pages: File::open(PAGEMAP).ok(),
        })
    }

    /// Where it begins.
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.place().0
    }

    /// Shows the segment again where this process has written. Says whether it is known to have.
    pub fn revert(&self) -> Result<bool, Error> {
        let written = self.is_written();
        if written != Some(false) {
            let (_, bytes) = self.mapping.place();
            self.mapping.discard().map_err(|source| Error::System {
                doing: "clean",
                bytes,
                source: source.into(),
            })?;
        }
        Ok(written == Some(true))
    }

    fn is_written(&self) -> Option<bool> {
        let pages = self.pages.as_ref()?;
        let (start, bytes) = self.mapping.place();
        let page_bytes = rustix::param::page_size();
        let mut words = vec![0; WORDS.min(bytes.div_ceil(page_bytes)) * WORD_BYTES];
        let mut at = start.as_ptr() as usize / page_bytes * WORD_BYTES;
        let mut left = bytes.div_ceil(page_bytes) * WORD_BYTES;
        while left > 0 {
            let part = left.min(words.len());
            pages.read_exact_at(&mut words[..part], at as u64).ok()?;
            let (chunks, _) = words[..part].as_chunks::<WORD_BYTES>();
            if chunks.iter().any(|word| is_own(u64::from_ne_bytes(*word))) {
                return Some(true);
            }
            at += part;
            left -= part;
        }
        Some(false)
    }
}

/// Whether a page is this process's own and no longer the file's.
fn is_own(word: u64) -> bool {
    word & SWAPPED != 0 || word & PRESENT != 0 && word & OF_FILE == 0
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::segment::{Segment, Writers};

    const BYTES: usize = 4 << 20;

    /// Acts as whoever a draft is handed out to.
    #[expect(unsafe_code, reason = "memory that is handed out by its address")]
    fn set(draft: &CowResult, place: usize, value: u8) {
        assert!(place < BYTES);
        // SAFETY: inside the mapping, and nobody else looks meanwhile.
        unsafe { draft.start().as_ptr().add(place).write_volatile(value) };
    }

    #[expect(unsafe_code, reason = "memory that is handed out by its address")]
    fn at(draft: &CowResult, place: usize) -> u8 {
        assert!(place < BYTES);
        // SAFETY: as above.
        unsafe { draft.start().as_ptr().add(place).read_volatile() }
    }

    #[test]
    fn what_is_written_is_seen_by_nobody_else_and_gone_when_it_is_reverted() {
        let mut segment = Segment::create("test", BYTES, Writers::Creator).unwrap();
        let draft = CowResult::open(segment.fd().as_fd(), segment.len()).unwrap();
        segment.bytes_mut().fill(1);
        assert!(!draft.revert().unwrap(), "nobody wrote to it");
        set(&draft, BYTES - 1, 9);
        set(&draft, 5000, 9);
        assert_eq!((segment.bytes()[BYTES - 1], segment.bytes()[5000]), (1, 1));
        // The next result: hidden where the draft was written to.
        segment.bytes_mut().fill(2);
        assert_eq!((at(&draft, 0), at(&draft, 5000)), (2, 9));
        assert!(draft.revert().unwrap());
        assert_eq!((at(&draft, 5000), at(&draft, BYTES - 1)), (2, 2));
        segment.bytes_mut().fill(3);
        assert_eq!((at(&draft, 5000), at(&draft, BYTES - 1)), (3, 3));
        assert!(!draft.revert().unwrap());
    }

    #[test]
    fn without_proc_what_was_written_is_gone_too() {
        let segment = Segment::create("test", BYTES, Writers::Creator).unwrap();
        let mut draft = CowResult::open(segment.fd().as_fd(), segment.len()).unwrap();
        draft.pages = None;
        set(&draft, 7, 9);
        assert!(!draft.revert().unwrap(), "it is not known");
        assert_eq!(at(&draft, 7), 0);
    }
}
