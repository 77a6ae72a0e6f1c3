//! The kernel's FUSE protocol in numbers, and the fields of its structures, which lie in the byte
//! order of the machine. What they mean belongs to the modules that use them.

/// The protocol's major version, the same since 2006.
pub(crate) const MAJOR: u32 = 7;
/// The oldest minor version whose structures are those below (Linux 5.4 has it).
pub(crate) const OLDEST_MINOR: u32 = 31;
/// The newest minor version that was read through for this (Linux 6.18 has it).
pub(crate) const NEWEST_MINOR: u32 = 45;

/// Bytes before each request.
pub(crate) const REQUEST_HEADER_BYTES: usize = 40;
/// Bytes before each answer and notification.
pub(crate) const ANSWER_HEADER_BYTES: usize = 16;
/// The kernel refuses to fill a smaller buffer.
pub(crate) const LEAST_BUFFER_BYTES: usize = 8192;
/// Bytes of the attributes in an answer.
pub(crate) const ATTRIBUTES_BYTES: usize = 88;
/// Bytes of an entry in an answer.
pub(crate) const ENTRY_BYTES: usize = 40 + ATTRIBUTES_BYTES;
/// Bytes of a directory entry before its name.
pub(crate) const DIRECTORY_ENTRY_BYTES: usize = 24;
/// Directory entries begin at multiples of this.
pub(crate) const DIRECTORY_ALIGNMENT: usize = 8;
/// Set in the number of a request that the kernel sends again.
pub(crate) const RESENT: u64 = 1 << 63;
/// The kernel takes error numbers below this one.
pub(crate) const ERROR_LIMIT: i32 = 512;

/// What a request asks for.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const ACCESS: u32 = 34;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
}

/// Which fields of a SETATTR count.
pub(crate) mod set {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const HANDLE: u32 = 1 << 6;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_PRIVILEGES: u32 = 1 << 11;
}

/// A GETATTR has a file handle.
pub(crate) const GETATTR_HANDLE: u32 = 1 << 0;
/// An OPEN or CREATE takes set-user-id and set-group-id bits away.
pub(crate) const OPEN_KILL_PRIVILEGES: u32 = 1 << 0;
/// A WRITE comes from the page cache, so that nobody knows whose it is.
pub(crate) const WRITE_FROM_CACHE: u32 = 1 << 0;
/// A WRITE takes set-user-id and set-group-id bits away.
pub(crate) const WRITE_KILL_PRIVILEGES: u32 = 1 << 2;
/// An FSYNC is for data alone.
pub(crate) const FSYNC_DATA: u32 = 1 << 0;

/// What a RENAME2 does with a name that exists.
pub(crate) mod rename {
    pub(crate) const NO_REPLACE: u32 = 1 << 0;
    pub(crate) const EXCHANGE: u32 = 1 << 1;
}

/// What an LSEEK looks for.
pub(crate) mod whence {
    pub(crate) const DATA: u32 = 3;
    pub(crate) const HOLE: u32 = 4;
}

/// How the kernel treats a file that was opened.
pub(crate) mod open {
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    pub(crate) const CACHE_DIRECTORY: u32 = 1 << 3;
    pub(crate) const NO_FLUSH: u32 = 1 << 5;
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// What a notification says.
pub(crate) mod notify {
    pub(crate) const INVALIDATE_INODE: i32 = 2;
    pub(crate) const INVALIDATE_ENTRY: i32 = 3;
    pub(crate) const RESEND: i32 = 7;
}

/// Bytes ended before a field did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooShort;

/// Takes fields from the front of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], TooShort> {
        let (field, rest) = self.0.split_first_chunk::<N>().ok_or(TooShort)?;
        self.0 = rest;
        Ok(*field)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, TooShort> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, TooShort> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, TooShort> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Bytes up to the next NUL, which goes with them.
    pub(crate) fn text(&mut self) -> Result<&'a [u8], TooShort> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(TooShort)?;
        let (text, rest) = self.0.split_at(end);
        self.0 = &rest[1..];
        Ok(text)
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Adds fields at the end of bytes.
pub(crate) trait PutFields {
    fn put(&mut self, bytes: &[u8]);

    fn put_u16(&mut self, field: u16) {
        self.put(&field.to_ne_bytes());
    }

    fn put_u32(&mut self, field: u32) {
        self.put(&field.to_ne_bytes());
    }

    fn put_u64(&mut self, field: u64) {
        self.put(&field.to_ne_bytes());
    }
}

impl PutFields for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
