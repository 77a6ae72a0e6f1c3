//! What a request asks for, one variant for each kind that a file system of ours answers. Parsing
//! is the business of `parse`.

use super::{FileHandle, FileName, Inode, Unique, XattrName};
use crate::abi::Fields;

/// What is asked of the request's inode. `flags` are those of `open(2)`, `mode` is that of the
/// system call with the file's type in it; numbers of Linux both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "fields are named as the arguments of the system calls"
)]
pub enum FileOperation<'a> {
    /// Find a name in a directory; each answer with an entry counts one lookup of its inode.
    Lookup { name: FileName<'a> },
    /// The kernel gives lookups of the inode up. Has no answer.
    Forget { lookups: u64 },
    /// The same for many inodes; the request's own means nothing. Has no answer.
    BatchForget(Forgets<'a>),
    /// stat(2).
    GetAttributes { handle: Option<FileHandle> },
    /// chmod(2), chown(2), truncate(2), utimensat(2).
    SetAttributes(SetAttributes),
    /// readlink(2).
    ReadLink,
    /// symlink(2).
    MakeSymlink {
        name: FileName<'a>,
        target: &'a [u8],
    },
    /// mknod(2). The kernel has applied the umask to the mode.
    MakeNode {
        name: FileName<'a>,
        mode: u32,
        device: u32,
    },
    /// mkdir(2). The kernel has applied the umask to the mode.
    MakeDirectory { name: FileName<'a>, mode: u32 },
    /// unlink(2).
    Unlink { name: FileName<'a> },
    /// rmdir(2).
    RemoveDirectory { name: FileName<'a> },
    /// renameat2(2).
    Rename {
        name: FileName<'a>,
        new_parent: Inode,
        new_name: FileName<'a>,
        mode: RenameMode,
    },
    /// link(2): a new name, in the request's inode, for another inode.
    Link {
        existing: Inode,
        new_name: FileName<'a>,
    },
    /// open(2) of what exists.
    Open { flags: u32, kill_privileges: bool },
    /// pread(2).
    Read {
        handle: FileHandle,
        offset: u64,
        size: u32,
    },
    /// pwrite(2). What comes from the page cache has no owner: the caller means nothing.
    Write {
        handle: FileHandle,
        offset: u64,
        data: &'a [u8],
        from_cache: bool,
        kill_privileges: bool,
    },
    /// statfs(2).
    FileSystemStatus,
    /// The last descriptor of an opened file is gone. Nobody sees the answer.
    Release { handle: FileHandle, flags: u32 },
    /// fsync(2) or fdatasync(2).
    Sync { handle: FileHandle, data_only: bool },
    /// The same of a directory.
    SyncDirectory { handle: FileHandle, data_only: bool },
    /// close(2) of one descriptor; the answer is its result.
    Flush { handle: FileHandle },
    /// open(2) of a directory.
    OpenDirectory { flags: u32 },
    /// Entries from `offset` on, which is zero or the `next` of an entry before.
    ReadDirectory {
        handle: FileHandle,
        offset: u64,
        size: u32,
    },
    /// The same, with what a lookup of each entry would answer.
    ReadDirectoryPlus {
        handle: FileHandle,
        offset: u64,
        size: u32,
    },
    /// As [`FileOperation::Release`], of a directory.
    ReleaseDirectory { handle: FileHandle, flags: u32 },
    /// access(2). Not sent where the kernel checks permissions.
    Access { mask: u32 },
    /// open(2) that makes the file. The kernel has applied the umask to the mode.
    Create {
        name: FileName<'a>,
        flags: u32,
        mode: u32,
        kill_privileges: bool,
    },
    /// A signal came for whoever waits for that request. It still wants its answer, of which
    /// `EINTR` is one. Has no answer itself.
    Interrupt { unique: Unique },
    /// The file system is unmounted.
    Destroy,
    /// fallocate(2).
    Allocate {
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: u32,
    },
    /// lseek(2) for data or a hole.
    Seek {
        handle: FileHandle,
        offset: u64,
        to: SeekTo,
    },
    /// copy_file_range(2).
    CopyRange(CopyRange),
    /// setxattr(2); flags are its own.
    SetXattr {
        name: XattrName<'a>,
        value: &'a [u8],
        flags: u32,
    },
    /// getxattr(2). With size 0 the answer is the value's size.
    GetXattr { name: XattrName<'a>, size: u32 },
    /// listxattr(2). With size 0 the answer is the list's size.
    ListXattr { size: u32 },
    /// removexattr(2).
    RemoveXattr { name: XattrName<'a> },
}

/// What a rename does where the new name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Fails with `EEXIST`.
    NoReplace,
    /// Exchanges the two.
    Exchange,
}

/// What a seek looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// The next data.
    Data,
    /// The next hole; there is one at the end.
    Hole,
}

/// A time of a file, since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileTime {
    /// Whole seconds, negative before.
    pub seconds: i64,
    /// The rest, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The file system's own clock.
    Now,
    /// This one.
    At(FileTime),
}

/// What to change of an inode; none stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// The opened file that was named in the place of a path.
    pub handle: Option<FileHandle>,
    /// Type and permissions, of which the type stays.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes: cut off, or filled up with zeroes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
    /// Last change of the inode.
    pub ctime: Option<FileTime>,
    /// Take set-user-id and set-group-id bits away.
    pub kill_privileges: bool,
}

/// Bytes to copy from the request's inode to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyRange {
    /// Of the request's inode.
    pub from_handle: FileHandle,
    /// Where the bytes are.
    pub from_offset: u64,
    /// Where they go.
    pub to: Inode,
    /// Of that inode.
    pub to_handle: FileHandle,
    /// Where in it.
    pub to_offset: u64,
    /// How many.
    pub length: u64,
    /// Of the system call, which has none yet.
    pub flags: u64,
}

/// Inodes whose lookups the kernel gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgets<'a>(&'a [u8]);

impl<'a> Forgets<'a> {
    /// Bytes of one: the inode and its lookups.
    pub(super) const BYTES: usize = 16;

    /// Whole ones only.
    pub(super) fn new(bytes: &'a [u8]) -> Option<Self> {
        bytes
            .len()
            .is_multiple_of(Self::BYTES)
            .then_some(Self(bytes))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len() / Self::BYTES
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each inode with the lookups that are given up.
    pub fn iter(&self) -> impl Iterator<Item = (Inode, u64)> + 'a {
        self.0.chunks_exact(Self::BYTES).filter_map(|one| {
            let mut fields = Fields::new(one);
            Some((Inode(fields.u64().ok()?), fields.u64().ok()?))
        })
    }
}
