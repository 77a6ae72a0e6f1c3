//! Memory of a file in this process: mapped, touched, advised and unmapped. Owns the range; whether the file may be trusted
//! to keep its size is checked by `segment`.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::Error;
use crate::memory_policy::MemoryPolicy;

/// From this size on huge pages are asked for.
pub(super) const HUGE_BYTES: usize = 2 << 20;

/// A mapping that ends with the value.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is memory like any other: it belongs to the process and not to a thread.
#[expect(unsafe_code, reason = "mappings may move between threads")]
unsafe impl Send for Mapping {}

// SAFETY: shared references only read, or go through atomics.
#[expect(unsafe_code, reason = "mappings may be shared between threads")]
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn new(
        fd: BorrowedFd<'_>,
        bytes: usize,
        protection: ProtFlags,
    ) -> Result<Self, Error> {
        Self::map(fd, bytes, protection, MapFlags::SHARED)?.touched(protection)
    }

    /// The first mapping of a new file, whose pages come to lie where they belong.
    pub(super) fn first(
        fd: BorrowedFd<'_>,
        bytes: usize,
        home: &MemoryPolicy,
    ) -> Result<Self, Error> {
        let mapping = Self::untouched(fd, bytes)?;
        home.settle(mapping.start, bytes);
        mapping.touched(ProtFlags::READ | ProtFlags::WRITE)
    }

    /// The same without a page, where the home is not made of touches.
    pub(super) fn first_untouched(
        fd: BorrowedFd<'_>,
        bytes: usize,
        home: &MemoryPolicy,
    ) -> Result<Self, Error> {
        let mapping = Self::untouched(fd, bytes)?;
        home.promise(mapping.start, bytes);
        Ok(mapping)
    }

    /// For reading and writing, without a page of it.
    pub(crate) fn untouched(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, Error> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        Self::map(fd, bytes, protection, MapFlags::SHARED)
    }

    /// Maps for reading and writing, where what is written stays in this process.
    pub(crate) fn private(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, Error> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // To touch private pages for writing would copy them.
        Self::map(fd, bytes, protection, MapFlags::PRIVATE)?.touched(ProtFlags::READ)
    }

    #[expect(unsafe_code, reason = "mmap")]
    fn map(
        fd: BorrowedFd<'_>,
        bytes: usize,
        protection: ProtFlags,
        sharing: MapFlags,
    ) -> Result<Self, Error> {
        let failed = |doing, source: rustix::io::Errno| Error::System {
            doing,
            bytes,
            source: source.into(),
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, sharing, fd, 0) }
                .map_err(|source| failed("map", source))?;
        let start = NonNull::new(start.cast::<u8>())
            .ok_or_else(|| failed("map", rustix::io::Errno::NOMEM))?;
        let mapping = Self { start, bytes };
        if bytes >= HUGE_BYTES {
            // Depends on the kernel's shmem_enabled; a refusal costs speed, not function.
            mapping.advise(Advice::LinuxHugepage).ok();
        }
        Ok(mapping)
    }

    /// Touches now what the first operation would otherwise fault in, which triples its time. Kernels
    /// before 5.14 do not know the advice and fault later.
    fn touched(self, protection: ProtFlags) -> Result<Self, Error> {
        let touch = if protection.contains(ProtFlags::WRITE) {
            Advice::LinuxPopulateWrite
        } else {
            Advice::LinuxPopulateRead
        };
        match self.advise(touch) {
            Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(self),
            Err(source) => Err(Error::System {
                doing: "touch",
                bytes: self.bytes,
                source: source.into(),
            }),
        }
    }

    #[expect(unsafe_code, reason = "madvise")]
    fn advise(&self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the range is this mapping, and no advice used here discards content, but for `discard`.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, advice) }
    }

    /// Drops what was written to a private mapping: it shows the file again. Others lose nothing by it, their content
    /// is the file's.
    pub(crate) fn discard(&self) -> rustix::io::Result<()> {
        self.advise(Advice::LinuxDontNeed)?;
        // Speed, not function.
        self.advise(Advice::LinuxPopulateRead).ok();
        Ok(())
    }

    /// Where it begins, and its length.
    pub(crate) fn place(&self) -> (NonNull<u8>, usize) {
        (self.start, self.bytes)
    }

    #[expect(unsafe_code, reason = "a mapping as a slice")]
    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is mapped for `bytes` until drop, and the file cannot shrink under it: the
        // seals are set by `Segment::create` and checked by `open`. Every bit pattern is a valid u8.
        // Another process may write at the same time; each byte is used as a number only, never to
        // decide about memory, so a torn read spoils that process's own sum and nothing else.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    #[expect(unsafe_code, reason = "a mapping as atomics")]
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: mappings are page-aligned, so aligned for u64; the length is rounded down; an atomic
        // may be shared with other processes. Only `Segment` calls this, whose mapping is writable.
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr().cast::<AtomicU64>(), self.bytes / 8)
        }
    }
}

impl Drop for Mapping {
    #[expect(unsafe_code, reason = "munmap")]
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and every borrow of it ended with the value.
        unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.bytes) }.ok();
    }
}
