//! What a file system wants, and what kernels have.

use std::fmt;
use std::ops::BitOr;

use super::WRITE_LIMIT_BYTES;

/// What kernel and file system can do beyond the basics.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InitFlags(pub(super) u64);

impl InitFlags {
    /// Several reads of one file at a time.
    pub const ASYNC_READ: Self = Self(1 << 0);
    /// An open truncates by itself.
    pub const ATOMIC_O_TRUNC: Self = Self(1 << 3);
    /// Writes of more than a page.
    pub const BIG_WRITES: Self = Self(1 << 5);
    /// The kernel drops cached content when size or time of change are not what they were.
    pub const AUTO_INVAL_DATA: Self = Self(1 << 12);
    /// Lists of directories come with lookups.
    pub const DO_READDIRPLUS: Self = Self(1 << 13);
    /// Only where lookups follow.
    pub const READDIRPLUS_AUTO: Self = Self(1 << 14);
    /// Lookups and lists of one directory at the same time.
    pub const PARALLEL_DIROPS: Self = Self(1 << 18);
    /// Requests of more than 32 pages.
    pub const MAX_PAGES: Self = Self(1 << 22);
    /// Writes, truncations and changes of the owner say whether they take set-user-id bits away.
    pub const HANDLE_KILLPRIV_V2: Self = Self(1 << 28);
    /// The flags from 32 on count.
    pub(super) const INIT_EXT: Self = Self(1 << 30);
    /// A file whose content is not cached can be mapped shared all the same (since Linux 6.6).
    pub const DIRECT_IO_ALLOW_MMAP: Self = Self(1 << 36);
    /// Requests that are not answered can be asked for again (since Linux 6.9).
    pub const HAS_RESEND: Self = Self(1 << 39);

    /// Whether all of these are among them.
    pub fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }

    pub(super) fn from_halves(low: u32, high: u32) -> Self {
        Self(u64::from(high) << 32 | u64::from(low))
    }

    pub(super) fn halves(self) -> (u32, u32) {
        (self.0 as u32, (self.0 >> 32) as u32)
    }
}

impl BitOr for InitFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for InitFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InitFlags({:#x})", self.0)
    }
}

/// What a file system wants. The kernel's write-back cache is not offered: data that a program was
/// told is written would be in the memory of one host, and under memory pressure a storage service
/// on that host would wait for itself. Nor are io_uring queues: requests in them do not come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionOptions {
    /// The most bytes of a write and of a read: whole pages, at most [`WRITE_LIMIT_BYTES`].
    pub max_write_bytes: u32,
    /// Reads ahead and direct reads and writes that the kernel sends without waiting for answers.
    pub max_background: u16,
    /// The file system truncates when it is told so in the flags of an open.
    pub truncates_on_open: bool,
    /// The kernel drops what it has cached of a file whose size or time of change is not what it
    /// was, as after a write of another host. Not for files that programs of one host read while
    /// others write them: pages are dropped whose write is on its way, and what a program reads
    /// then can be older than a write that has returned (5 of 25 runs of
    /// `readers_see_what_writers_have_written`, Linux 6.18).
    pub drops_changed_content: bool,
    /// The file system takes set-user-id and set-group-id bits away where a request says so.
    pub kills_privileges: bool,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            max_write_bytes: WRITE_LIMIT_BYTES,
            // 64 x 1 MiB is what a storage chain keeps busy; the kernel's own 12 is not.
            max_background: 64,
            truncates_on_open: false,
            drops_changed_content: false,
            kills_privileges: false,
        }
    }
}

impl ConnectionOptions {
    pub(super) fn wanted(&self) -> InitFlags {
        let mut wanted = InitFlags::ASYNC_READ
            | InitFlags::BIG_WRITES
            | InitFlags::DO_READDIRPLUS
            | InitFlags::READDIRPLUS_AUTO
            | InitFlags::PARALLEL_DIROPS
            | InitFlags::MAX_PAGES
            | InitFlags::INIT_EXT
            | InitFlags::DIRECT_IO_ALLOW_MMAP
            | InitFlags::HAS_RESEND;
        for (is_wanted, flag) in [
            (self.truncates_on_open, InitFlags::ATOMIC_O_TRUNC),
            (self.drops_changed_content, InitFlags::AUTO_INVAL_DATA),
            (self.kills_privileges, InitFlags::HANDLE_KILLPRIV_V2),
        ] {
            if is_wanted {
                wanted = wanted | flag;
            }
        }
        wanted
    }
}
