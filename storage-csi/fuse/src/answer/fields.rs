//! What answers are made of: inodes, opened files, file systems.

use std::time::Duration;

use crate::abi::{PutFields, open};
use crate::request::{FileHandle, FileTime, Inode, NAME_LIMIT_BYTES};

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kinds of inodes that Linux has")]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    CharacterDevice,
    BlockDevice,
    Fifo,
    Socket,
}

impl FileKind {
    /// As the kernel writes it, in a directory entry; shifted by 12 it is part of a mode.
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Fifo => 1,
            Self::CharacterDevice => 2,
            Self::Directory => 4,
            Self::BlockDevice => 6,
            Self::Regular => 8,
            Self::Symlink => 10,
            Self::Socket => 12,
        }
    }
}

/// What stat(2) tells of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its number.
    pub inode: Inode,
    /// What it is.
    pub kind: FileKind,
    /// The lower 12 bits of its mode.
    pub permissions: u32,
    /// Bytes of its content.
    pub size: u64,
    /// Units of 512 bytes that it takes.
    pub blocks: u64,
    /// Bytes that programs should read and write at once.
    pub block_bytes: u32,
    /// Names that it has.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Of a device, its number.
    pub device: u32,
    /// Last access.
    pub atime: FileTime,
    /// Last change of the content.
    pub mtime: FileTime,
    /// Last change of the inode.
    pub ctime: FileTime,
}

impl Attributes {
    pub(super) fn put(&self, into: &mut impl PutFields) {
        into.put_u64(self.inode.0);
        into.put_u64(self.size);
        into.put_u64(self.blocks);
        let times = [self.atime, self.mtime, self.ctime];
        for time in times {
            into.put_u64(time.seconds.cast_unsigned());
        }
        for time in times {
            into.put_u32(time.nanoseconds);
        }
        into.put_u32(self.kind.number() << 12 | self.permissions & 0o7777);
        into.put_u32(self.links);
        into.put_u32(self.uid);
        into.put_u32(self.gid);
        into.put_u32(self.device);
        into.put_u32(self.block_bytes);
        into.put_u32(0); // Flags: no submount.
    }
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedInode {
    /// The inode.
    pub attributes: Attributes,
    /// Differs when the number was another inode's before.
    pub generation: u64,
    /// How long the kernel need not ask again what the name stands for.
    pub name_valid: Duration,
    /// How long the kernel need not ask again for the attributes.
    pub attributes_valid: Duration,
}

impl NamedInode {
    pub(crate) fn put(&self, into: &mut impl PutFields) {
        into.put_u64(self.attributes.inode.0);
        into.put_u64(self.generation);
        into.put_u64(self.name_valid.as_secs());
        into.put_u64(self.attributes_valid.as_secs());
        into.put_u32(self.name_valid.subsec_nanos());
        into.put_u32(self.attributes_valid.subsec_nanos());
        self.attributes.put(into);
    }
}

/// An opened file. By default the kernel drops what it has cached of it, and caches anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Comes with each request on it.
    pub handle: FileHandle,
    /// Nothing is cached: reads and writes come as the program made them.
    pub direct_io: bool,
    /// What was cached before is still right.
    pub keep_cache: bool,
    /// Of a directory: its entries may be cached.
    pub cache_directory: bool,
    /// Closing needs no flush.
    pub no_flush: bool,
    /// With `direct_io`: writes may come at the same time.
    pub parallel_direct_writes: bool,
}

impl Opened {
    /// An opened file with the defaults.
    pub fn new(handle: FileHandle) -> Self {
        Self {
            handle,
            direct_io: false,
            keep_cache: false,
            cache_directory: false,
            no_flush: false,
            parallel_direct_writes: false,
        }
    }

    pub(super) fn put(&self, into: &mut impl PutFields) {
        let flags = [
            (self.direct_io, open::DIRECT_IO),
            (self.keep_cache, open::KEEP_CACHE),
            (self.cache_directory, open::CACHE_DIRECTORY),
            (self.no_flush, open::NO_FLUSH),
            (self.parallel_direct_writes, open::PARALLEL_DIRECT_WRITES),
        ];
        let set = flags.iter().filter(|(is_set, _)| *is_set);
        into.put_u64(self.handle.0);
        into.put_u32(set.fold(0, |all, (_, flag)| all | flag));
        into.put_u32(0); // No backing file.
    }
}

/// What statfs(2) tells of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemStatus {
    /// Bytes of the blocks that are counted.
    pub block_bytes: u32,
    /// All blocks.
    pub blocks: u64,
    /// Blocks without data.
    pub free_blocks: u64,
    /// Blocks without data that anybody may fill.
    pub available_blocks: u64,
    /// All inodes.
    pub inodes: u64,
    /// Inodes that could still be made.
    pub free_inodes: u64,
}

impl FileSystemStatus {
    pub(super) fn put(&self, into: &mut impl PutFields) {
        into.put_u64(self.blocks);
        into.put_u64(self.free_blocks);
        into.put_u64(self.available_blocks);
        into.put_u64(self.inodes);
        into.put_u64(self.free_inodes);
        into.put_u32(self.block_bytes);
        into.put_u32(NAME_LIMIT_BYTES as u32);
        into.put_u32(self.block_bytes); // Of fragments.
        into.put(&[0; 4 + 6 * 4]);
    }
}
