//! Values of the store, as JSON that `etcdctl` shows and whose unknown fields are ignored; what an inode looks like from
//! outside.

use serde::{Deserialize, Serialize};

use crate::layout::FileLayout;
use crate::types::{InodeKind, InodeNumber, MountId};

/// An inode as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InodeRecord {
    pub(crate) kind: InodeKind,
    /// Lower 12 bits.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Names; of a directory 1.
    pub(crate) links: u32,
    #[serde(default)]
    pub(crate) device: u32,
    #[serde(default)]
    pub(crate) size: u64,
    pub(crate) atime_ns: i64,
    /// Of a directory neither this nor the next: see `mt`.
    pub(crate) mtime_ns: i64,
    /// When the mtime became what it is. It is another one only when somebody chose it.
    pub(crate) modified_ns: i64,
    pub(crate) ctime_ns: i64,
    /// The volume's root.
    pub(crate) volume: InodeNumber,
    /// Of a directory. The root's is itself.
    #[serde(default)]
    pub(crate) parent: Option<InodeNumber>,
    /// Of a file; of a directory that of files in it.
    #[serde(default)]
    pub(crate) layout: Option<FileLayout>,
    /// No chunk has bytes behind this.
    #[serde(default)]
    pub(crate) reach: u64,
    /// How often bytes were cut off.
    #[serde(default)]
    pub(crate) cut: u64,
    /// Who still cuts chunks off behind the size.
    #[serde(default)]
    pub(crate) trimmer: Option<MountId>,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntryRecord {
    pub(crate) inode: InodeNumber,
    pub(crate) kind: InodeKind,
}

/// When a directory's entries changed last. A key of its own, written without being read: who makes entries in one
/// directory does not conflict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntriesTime {
    pub(crate) mtime_ns: i64,
    pub(crate) ctime_ns: i64,
}

impl EntriesTime {
    pub(crate) fn at(now_ns: i64) -> Self {
        Self {
            mtime_ns: now_ns,
            ctime_ns: now_ns,
        }
    }
}

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandleRecord {
    /// Up to where it may write; none if it only reads.
    pub(crate) bound: Option<u64>,
}

/// What is known of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MountRecord {
    /// Operations with lower numbers are over: nobody waits for their answers.
    pub(crate) settled: u64,
}

/// An inode as others see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "fields are named as those of stat(2)")]
pub struct InodeAttributes {
    pub inode: InodeNumber,
    pub kind: InodeKind,
    /// Lower 12 bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Names; of a directory 2 and one for each directory in it.
    pub links: u32,
    pub device: u32,
    pub size: u64,
    pub atime_ns: i64,
    pub mtime_ns: i64,
    pub ctime_ns: i64,
    /// Of a directory: what `..` is. The root's is itself.
    pub parent: Option<InodeNumber>,
    /// Of a file; of a directory that of files in it.
    pub layout: Option<FileLayout>,
    /// How often bytes of it were cut off.
    pub cut: u64,
}

impl InodeRecord {
    /// As others see an inode that is no directory.
    pub(crate) fn attributes(&self, inode: InodeNumber) -> InodeAttributes {
        InodeAttributes {
            inode,
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            links: self.links,
            device: self.device,
            size: self.size,
            atime_ns: self.atime_ns,
            mtime_ns: self.mtime_ns,
            ctime_ns: self.ctime_ns,
            parent: self.parent,
            layout: self.layout,
            cut: self.cut,
        }
    }

    /// As others see a directory.
    pub(crate) fn directory_attributes(
        &self,
        inode: InodeNumber,
        time: EntriesTime,
        subdirectories: u32,
    ) -> InodeAttributes {
        InodeAttributes {
            links: subdirectories.saturating_add(2),
            mtime_ns: time.mtime_ns,
            ctime_ns: time.ctime_ns.max(self.ctime_ns),
            ..self.attributes(inode)
        }
    }

    /// Bytes that count as used.
    pub(crate) fn used_bytes(&self) -> u64 {
        match self.kind == InodeKind::File {
            true => self.size,
            false => 0,
        }
    }
}
