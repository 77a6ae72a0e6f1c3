//! Memory shared between a sidecar and its trainer: sealed memfds and their mappings. Owns who may
//! map and write them; what lies in a segment is the business of `ring` and of the engine.
//! Safe code will not do: a pipe or socket would copy each byte twice more, and copying is what an
//! allreduce spends its time on (a copy out of shared memory costs 164 ms where reading in place
//! costs 116, measured at 2 x 4 ranks of 186 MiB).

mod mapping;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::ProtFlags;

use crate::cow_result::CowResult;
pub use crate::limits::SEGMENT_LIMIT_BYTES;
use crate::memory_policy::MemoryPolicy;
pub(crate) use mapping::Mapping;

/// Smallest segment, and the unit of their sizes: one step above the pages of every architecture.
pub const UNIT_BYTES: usize = 64 << 10;
/// What the kernel calls the file system of ordinary memfds.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Why a segment could not be made or mapped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The size asked for makes no segment.
    #[error("failed to create a segment of {0} bytes: at most {SEGMENT_LIMIT_BYTES} are allowed")]
    Size(usize),
    /// The kernel refused.
    #[error("failed to {doing} a segment of {bytes} bytes")]
    System {
        /// What it refused.
        doing: &'static str,
        /// The size.
        bytes: usize,
        /// What it said.
        source: io::Error,
    },
    /// The descriptor is no segment of the size and kind that was announced.
    #[error("failed to map a segment of {announced} bytes: {wrong}")]
    Foreign {
        /// The size that was announced.
        announced: usize,
        /// What is wrong with it.
        wrong: &'static str,
    },
}

/// The size a segment for `bytes` is given, so that segments can be used again for similar sizes:
/// in steps of an eighth, hence at most an eighth is lost.
pub fn size_class(bytes: usize) -> usize {
    let step = (bytes.checked_next_power_of_two().unwrap_or(bytes) / 16).max(UNIT_BYTES);
    bytes.max(1).checked_next_multiple_of(step).unwrap_or(bytes)
}

/// A segment mapped for reading and writing: by its creator, or by the client it was handed to.
#[derive(Debug)]
pub struct Segment {
    fd: Arc<OwnedFd>,
    /// Shared with devices that it is registered with, which keep it mapped and look at its place only.
    mapping: Arc<Mapping>,
}

/// A segment mapped for reading.
#[derive(Debug)]
pub struct SegmentView {
    fd: OwnedFd,
    mapping: Mapping,
    draft: OnceLock<CowResult>,
}

/// Who may map a segment for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Everybody who holds the descriptor.
    Everybody,
    /// The creator only; later mappings are for reading.
    Creator,
}

/// What keeps a mapping valid: nobody cuts off what is mapped.
const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// What keeps later mappings from writing.
const READ_ONLY: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::SEAL);

impl Segment {
    /// A new segment of `bytes`, rounded up to its size class, zeroed and touched.
    pub fn create(name: &str, bytes: usize, writers: Writers) -> Result<Self, Error> {
        Self::create_at(name, bytes, writers, &MemoryPolicy::Anywhere)
    }

    /// The same, with its pages where they belong.
    pub fn create_at(
        name: &str,
        bytes: usize,
        writers: Writers,
        home: &MemoryPolicy,
    ) -> Result<Self, Error> {
        Self::make(name, bytes, writers, |fd, bytes| {
            Mapping::first(fd, bytes, home)
        })
    }

    /// The same without a page: each comes when it is first used. Takes no time, where the other takes a second a gigabyte.
    pub fn create_untouched(
        name: &str,
        bytes: usize,
        writers: Writers,
        home: &MemoryPolicy,
    ) -> Result<Self, Error> {
        Self::make(name, bytes, writers, |fd, bytes| {
            Mapping::first_untouched(fd, bytes, home)
        })
    }

    fn make(
        name: &str,
        bytes: usize,
        writers: Writers,
        map: impl FnOnce(BorrowedFd<'_>, usize) -> Result<Mapping, Error>,
    ) -> Result<Self, Error> {
        let bytes = size_class(bytes);
        if bytes > SEGMENT_LIMIT_BYTES {
            return Err(Error::Size(bytes));
        }
        let failed = |doing| {
            move |source: rustix::io::Errno| Error::System {
                doing,
                bytes,
                source: source.into(),
            }
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create(name, flags).map_err(failed("create"))?;
        rustix::fs::ftruncate(&fd, bytes as u64).map_err(failed("size"))?;
        let mapping = map(fd.as_fd(), bytes)?;
        let seals = match writers {
            Writers::Everybody => SealFlags::SEAL,
            Writers::Creator => READ_ONLY,
        };
        rustix::fs::fcntl_add_seals(&fd, seals | FIXED_SIZE).map_err(failed("seal"))?;
        Ok(Self {
            fd: Arc::new(fd),
            mapping: Arc::new(mapping),
        })
    }

    /// Maps a segment that another process created.
    pub fn open(fd: OwnedFd, bytes: usize) -> Result<Self, Error> {
        check(fd.as_fd(), bytes)?;
        let mapping = Mapping::new(fd.as_fd(), bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(Self {
            fd: Arc::new(fd),
            mapping: Arc::new(mapping),
        })
    }

    /// Whether its seals are what they are for good.
    pub fn keeps_its_seals(&self) -> bool {
        rustix::fs::fcntl_get_seals(&self.fd).is_ok_and(|seals| seals.contains(SealFlags::SEAL))
    }

    /// Gives its pages back to the kernel, whoever else keeps the descriptor: who writes to it from here on is charged for
    /// that. Refused for what is sealed against writing.
    pub fn release(&self) -> rustix::io::Result<()> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.fd, hole, 0, self.len() as u64)
    }

    /// The descriptor, to be handed to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The descriptor, for whoever may have to hand it on while others use the segment.
    pub fn handle(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }

    /// Its size.
    #[expect(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub fn len(&self) -> usize {
        self.mapping.place().1
    }

    /// Its content. Whether another process writes at the same time is agreed by protocol.
    pub fn bytes(&self) -> &[u8] {
        self.mapping.bytes()
    }

    /// Its content, for writing.
    #[expect(unsafe_code, reason = "a mapping as a slice")]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let (start, bytes) = self.mapping.place();
        // SAFETY: as in `Mapping::bytes`; the exclusive borrow keeps this process's other users out, since whoever
        // else holds the mapping only keeps it mapped, and a segment is mapped with PROT_WRITE.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), bytes) }
    }

    /// Its mapping, to be kept for as long as a device may touch it.
    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        Arc::clone(&self.mapping)
    }

    /// A word that several processes may wait for; `at` counts in words of 8 bytes.
    #[expect(unsafe_code, reason = "half a word as an atomic")]
    pub(crate) fn futex(&self, at: usize) -> &AtomicU32 {
        let word = &self.words()[at];
        // SAFETY: the first half of a word that is mapped and aligned for more. Words that are waited for are
        // used through this method only.
        unsafe { &*std::ptr::from_ref(word).cast::<AtomicU32>() }
    }

    /// Where it begins, for whoever hands it out by address and keeps it mapped meanwhile.
    pub fn place(&self) -> NonNull<u8> {
        self.mapping.place().0
    }

    /// Where it begins, for `block`, which hands out ranges of it.
    pub(crate) fn start(&self) -> *mut u8 {
        self.mapping.place().0.as_ptr()
    }

    /// Its content as words that several processes may read and write at once.
    pub fn words(&self) -> &[AtomicU64] {
        self.mapping.words()
    }
}

impl SegmentView {
    /// Maps a segment that another process created.
    pub fn open(fd: &OwnedFd, bytes: usize) -> Result<Self, Error> {
        check(fd.as_fd(), bytes)?;
        let mapping = Mapping::new(fd.as_fd(), bytes, ProtFlags::READ)?;
        let fd = fd.try_clone().map_err(|source| Error::System {
            doing: "keep",
            bytes,
            source,
        })?;
        Ok(Self {
            fd,
            mapping,
            draft: OnceLock::new(),
        })
    }

    /// Where it begins, for whoever hands it out by address and keeps it mapped meanwhile.
    pub fn start(&self) -> NonNull<u8> {
        self.mapping.place().0
    }

    /// The same content to write to, without anybody else's noticing. Mapped when it is first asked for.
    pub fn draft(&self) -> Result<&CowResult, Error> {
        if self.draft.get().is_none() {
            let draft = CowResult::open(self.fd.as_fd(), self.len())?;
            // Two threads may have mapped it; the second one's goes.
            self.draft.set(draft).ok();
        }
        self.draft.get().ok_or(Error::Foreign {
            announced: self.len(),
            wrong: "it was mapped and is gone",
        })
    }

    /// Its size.
    #[expect(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub fn len(&self) -> usize {
        self.mapping.place().1
    }

    /// Its content. Whether another process writes at the same time is agreed by protocol.
    pub fn bytes(&self) -> &[u8] {
        self.mapping.bytes()
    }
}

/// A file that could shrink would end a reader with SIGBUS, so size and seals are checked first.
fn check(fd: BorrowedFd<'_>, announced: usize) -> Result<(), Error> {
    let foreign = |wrong| Err(Error::Foreign { announced, wrong });
    if announced == 0 || announced > SEGMENT_LIMIT_BYTES {
        return foreign("no segment has this size");
    }
    let Ok(seals) = rustix::fs::fcntl_get_seals(fd) else {
        return foreign("the descriptor is not a memfd");
    };
    if !seals.contains(FIXED_SIZE) {
        return foreign("the memfd is not sealed against shrinking and growing");
    }
    // Of huge pages there may be none left for one that was given back in between.
    match rustix::fs::fstatfs(fd) {
        Ok(system) if system.f_type == TMPFS => {}
        Ok(_) | Err(_) => return foreign("the memfd is not of ordinary memory"),
    }
    match rustix::fs::fstat(fd) {
        Ok(stat) if usize::try_from(stat.st_size) == Ok(announced) => Ok(()),
        Ok(_) | Err(_) => foreign("the memfd has another size"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::mapping::HUGE_BYTES;
    use super::*;

    /// A field of the mapping of a memfd in this process, in KiB.
    fn kib(name: &str, field: &str) -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (_, mapping) = maps.split_once(&format!("/memfd:{name}")).unwrap();
        let mut lines = mapping.lines();
        let line = lines.find_map(|line| line.strip_prefix(&format!("{field}:")));
        let number = line.unwrap().trim().trim_end_matches(" kB");
        number.parse().unwrap()
    }

    // Trap T8: the first operation must not wait for page faults.
    #[test]
    fn a_segment_is_in_memory_before_anybody_uses_it() {
        const BYTES: usize = 4 * HUGE_BYTES;
        let (one, other) = ("touched-by-its-creator", "touched-by-its-user");
        let segment = Segment::create(one, BYTES, Writers::Creator).unwrap();
        assert!(kib(one, "Rss") as usize * 1024 >= BYTES);
        let theirs = Segment::create(other, BYTES, Writers::Creator).unwrap();
        let fd = theirs.fd().try_clone_to_owned().unwrap();
        let bytes = theirs.len();
        drop(theirs);
        let view = SegmentView::open(&fd, bytes).unwrap();
        assert!(kib(other, "Rss") as usize * 1024 >= BYTES);
        drop((segment, view));
    }

    #[test]
    fn a_new_segment_that_is_not_touched_has_no_page() {
        let name = "untouched-by-its-creator";
        let home = &MemoryPolicy::Anywhere;
        let mut segment = Segment::create_untouched(name, 1 << 20, Writers::Creator, home).unwrap();
        assert_eq!(kib(name, "Rss"), 0);
        segment.bytes_mut()[0] = 1;
        assert!(kib(name, "Rss") > 0);
    }

    #[test]
    fn both_sides_see_the_same_bytes() {
        let mut ours = Segment::create("test", 100_000, Writers::Everybody).unwrap();
        let fd = ours.fd().try_clone_to_owned().unwrap();
        let mut theirs = Segment::open(fd, ours.len()).unwrap();
        ours.bytes_mut()[99_999] = 7;
        assert_eq!(theirs.bytes()[99_999], 7);
        theirs.bytes_mut()[0] = 8;
        assert_eq!(ours.bytes()[0], 8);
    }

    #[test]
    fn a_result_can_be_read_and_not_written_by_others() {
        let mut ours = Segment::create("test", 1, Writers::Creator).unwrap();
        let fd = ours.fd().try_clone_to_owned().unwrap();
        ours.bytes_mut()[5] = 7;
        assert_eq!(SegmentView::open(&fd, ours.len()).unwrap().bytes()[5], 7);
        let refused = Segment::open(fd, ours.len()).unwrap_err();
        assert!(
            matches!(refused, Error::System { doing: "map", .. }),
            "{refused}"
        );
    }

    #[test]
    fn a_segment_that_is_larger_than_any_is_refused_before_it_is_made() {
        let refused = Segment::create("test", SEGMENT_LIMIT_BYTES + 1, Writers::Creator);
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("at most 68719476736 are allowed"),
            "{refused}"
        );
    }

    #[test]
    fn a_descriptor_that_could_shrink_or_lies_about_its_size_is_refused() {
        let open = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&open, 65_536).unwrap();
        let refused = SegmentView::open(&open, 65_536).unwrap_err().to_string();
        assert!(refused.contains("not sealed"), "{refused}");
        let ours = Segment::create("test", 1, Writers::Creator).unwrap();
        let fd = ours.fd().try_clone_to_owned().unwrap();
        let refused = SegmentView::open(&fd, ours.len() * 2)
            .unwrap_err()
            .to_string();
        assert!(refused.contains("another size"), "{refused}");
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        let refused = SegmentView::open(&file, 4096).unwrap_err().to_string();
        assert!(refused.contains("not"), "{refused}");
    }

    proptest! {
        #[test]
        fn a_class_fits_and_loses_little(bytes in 0usize..1 << 40) {
            let class = size_class(bytes);
            prop_assert!(class >= bytes && class.is_multiple_of(UNIT_BYTES));
            prop_assert!(class - bytes <= UNIT_BYTES.max(bytes / 8 + 1));
            prop_assert_eq!(size_class(class), class);
        }
    }
}
