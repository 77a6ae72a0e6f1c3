//! Inodes of the metadata service as the kernel sees them. The root of a volume is the kernel's inode 1.

use std::time::Duration;

use fuse::answer::{Attributes, FileKind, NamedInode};
use fuse::request::{FileTime, Inode, SetTime};
use metadata::{InodeAttributes, InodeKind, InodeNumber};

/// What programs should read and write at once.
const BLOCK_BYTES: u32 = 1 << 20;
/// How long the kernel may keep what it knows of directories. Of files it asks each time, so that who opens one sees what
/// somebody else has closed.
const DIRECTORY_VALID: Duration = Duration::from_secs(1);

/// The numbers of one volume's mount.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) root: InodeNumber,
}

impl Numbers {
    pub(crate) fn number(self, inode: Inode) -> InodeNumber {
        match inode {
            Inode::ROOT => self.root,
            Inode(number) => InodeNumber(number),
        }
    }

    pub(crate) fn inode(self, number: InodeNumber) -> Inode {
        if number == self.root {
            Inode::ROOT
        } else {
            Inode(number.0)
        }
    }

    pub(crate) fn attributes(self, of: &InodeAttributes) -> Attributes {
        Attributes {
            inode: self.inode(of.inode),
            kind: kind(of.kind),
            permissions: of.mode,
            size: of.size,
            blocks: of.size.div_ceil(512),
            block_bytes: BLOCK_BYTES,
            links: of.links,
            uid: of.uid,
            gid: of.gid,
            device: of.device,
            atime: time(of.atime_ns),
            mtime: time(of.mtime_ns),
            ctime: time(of.ctime_ns),
        }
    }

    pub(crate) fn named(self, of: &InodeAttributes) -> NamedInode {
        let valid = valid(of.kind);
        NamedInode {
            attributes: self.attributes(of),
            generation: 0,
            name_valid: valid,
            attributes_valid: valid,
        }
    }
}

/// How long the kernel may keep what it knows of an inode.
pub(crate) fn valid(kind: InodeKind) -> Duration {
    match kind {
        InodeKind::Directory => DIRECTORY_VALID,
        InodeKind::File
        | InodeKind::Symlink
        | InodeKind::Fifo
        | InodeKind::Socket
        | InodeKind::CharacterDevice
        | InodeKind::BlockDevice => Duration::ZERO,
    }
}

pub(crate) fn kind(kind: InodeKind) -> FileKind {
    match kind {
        InodeKind::File => FileKind::Regular,
        InodeKind::Directory => FileKind::Directory,
        InodeKind::Symlink => FileKind::Symlink,
        InodeKind::Fifo => FileKind::Fifo,
        InodeKind::Socket => FileKind::Socket,
        InodeKind::CharacterDevice => FileKind::CharacterDevice,
        InodeKind::BlockDevice => FileKind::BlockDevice,
    }
}

fn time(ns: i64) -> FileTime {
    FileTime {
        seconds: ns.div_euclid(1_000_000_000),
        // Below a thousand million.
        nanoseconds: ns.rem_euclid(1_000_000_000) as u32,
    }
}

/// A time that somebody sets. What is too far from now for the store becomes its last.
pub(crate) fn set_time(time: SetTime, now_ns: i64) -> i64 {
    match time {
        SetTime::Now => now_ns,
        SetTime::At(FileTime {
            seconds,
            nanoseconds,
        }) => seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(nanoseconds.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_nanoseconds_before_and_after_1970() {
        for ns in [0, 1, -1, 1_700_000_000_123_456_789, -1_500_000_000] {
            assert_eq!(set_time(SetTime::At(time(ns)), 0), ns);
        }
        assert_eq!(
            time(-1),
            FileTime {
                seconds: -1,
                nanoseconds: 999_999_999
            }
        );
    }

    #[test]
    fn the_root_is_inode_1_and_no_other_is() {
        let numbers = Numbers {
            root: InodeNumber(65_536),
        };
        assert_eq!(numbers.inode(InodeNumber(65_536)), Inode::ROOT);
        assert_eq!(numbers.number(Inode::ROOT), InodeNumber(65_536));
        assert_eq!(numbers.inode(numbers.number(Inode(65_537))), Inode(65_537));
    }
}
