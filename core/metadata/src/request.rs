//! What is asked, and what is answered.

use serde::{Deserialize, Serialize};

use crate::layout::FileLayout;
use crate::records::InodeAttributes;
use crate::types::{EntryName, HandleId, InodeKind, InodeNumber, MountId, OperationId};
use crate::usage::VolumeUsage;

/// An operation, and who asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaRequest {
    /// Of an operation of a mount that changes something.
    pub id: Option<OperationId>,
    /// The mount waits for no answer to an operation with a lower number.
    pub settled: u64,
    /// Whether it was sent before. Then a refusal is kept, too: what was sent before may still be on its way.
    pub is_repeated: bool,
    pub operation: MetaOperation,
}

impl MetaRequest {
    /// One without an id: it changes nothing, or nothing that doing it twice would change.
    #[must_use]
    pub fn reading(operation: MetaOperation) -> Self {
        Self {
            id: None,
            settled: 0,
            is_repeated: false,
            operation,
        }
    }
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaOperation {
    /// What a name stands for.
    Lookup {
        parent: InodeNumber,
        name: EntryName,
    },
    /// stat(2).
    GetAttributes { inode: InodeNumber },
    /// chmod(2), chown(2), truncate(2), utimensat(2).
    SetAttributes {
        inode: InodeNumber,
        change: AttributeChange,
    },
    /// mknod(2), mkdir(2), symlink(2), open(2) with `O_CREAT`.
    Make {
        parent: InodeNumber,
        name: EntryName,
        node: NewNode,
        /// Lower 12 bits, with the umask applied.
        mode: u32,
        uid: u32,
        gid: u32,
        /// Of a file: opens it. If the name exists and is a file, opens that.
        open: Option<WantedHandle>,
    },
    /// readlink(2).
    ReadLink { inode: InodeNumber },
    /// link(2).
    Link {
        inode: InodeNumber,
        parent: InodeNumber,
        name: EntryName,
    },
    /// unlink(2).
    Unlink {
        parent: InodeNumber,
        name: EntryName,
    },
    /// rmdir(2).
    RemoveDirectory {
        parent: InodeNumber,
        name: EntryName,
    },
    /// renameat2(2).
    Rename {
        parent: InodeNumber,
        name: EntryName,
        new_parent: InodeNumber,
        new_name: EntryName,
        rule: RenameRule,
    },
    /// Entries after a name, by their bytes. Fewer than `limit` are all there are.
    ReadDirectory {
        inode: InodeNumber,
        after: Option<EntryName>,
        limit: u32,
        with_attributes: bool,
    },
    /// open(2) of a file that exists.
    Open {
        inode: InodeNumber,
        open: WantedHandle,
    },
    /// The handle wants to write up to another bound. Where bytes were cut off since, it has to sync first.
    Extend {
        inode: InodeNumber,
        handle: HandleId,
        /// As the mount knows it.
        cut: u64,
        bound: u64,
    },
    /// fsync(2).
    Sync {
        inode: InodeNumber,
        handle: HandleId,
        written: Written,
    },
    /// The last close(2). All writes of the handle are over. Of one that is not open, there is nothing to do.
    Close {
        inode: InodeNumber,
        handle: HandleId,
        /// None if nothing was written since the last sync.
        written: Option<Written>,
    },
    /// All chunks are cut off as a trim said.
    Trimmed {
        inode: InodeNumber,
        mount: MountId,
        cut: u64,
    },
    /// A mount takes over what another one, which has ended, still had to cut off.
    TakeTrim {
        inode: InodeNumber,
        from: MountId,
        to: MountId,
    },
    /// A mount is gone: it changes nothing any more. To be called until the answer is that nothing is left; its handles
    /// have to be closed one by one.
    EndMount { mount: MountId },
    /// Handles of a mount after a file and a number.
    ListHandles {
        mount: MountId,
        after: Option<(InodeNumber, u64)>,
        limit: u32,
    },
    /// The first mount after a given number that has handles or answers.
    NextMount { after: MountId },
    /// A volume, if its bytes are still to be had.
    MakeVolume {
        name: String,
        settings: VolumeSettings,
        /// Of files in it; each has a seed of its own.
        layout: FileLayout,
        /// Most bytes that all volumes together may promise.
        most_promised: u64,
    },
    /// Deletes a volume with all that is in it.
    DeleteVolume { name: String },
    /// A volume and what it uses.
    GetVolume { name: String },
    /// Sum of what all volumes promise.
    GetPromised,
}

/// What to change; none stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "fields are named as those of stat(2)")]
pub struct AttributeChange {
    /// Lower 12 bits.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime_ns: Option<i64>,
    pub mtime_ns: Option<i64>,
}

/// What to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the kinds of inodes that Linux has")]
pub enum NewNode {
    File,
    Directory,
    Symlink { target: Vec<u8> },
    Fifo,
    Socket,
    CharacterDevice { device: u32 },
    BlockDevice { device: u32 },
}

/// A handle to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WantedHandle {
    pub handle: HandleId,
    /// Up to where it may write; none if it only reads.
    pub bound: Option<u64>,
    /// `O_TRUNC`.
    pub is_truncating: bool,
    /// `O_EXCL`: nothing of that name may exist.
    pub is_exclusive: bool,
}

/// What a rename does where the new name exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameRule {
    /// Replaces it.
    Replace,
    /// Is refused.
    NoReplace,
    /// Exchanges the two, which both have to exist.
    Exchange,
}

/// What a handle has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// Behind the last byte that it has written since it knows the cut.
    pub length: u64,
    /// As the mount knew it when the first of these writes began.
    pub cut: u64,
    /// When it wrote last.
    pub mtime_ns: i64,
}

/// A volume to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSettings {
    /// What it promises.
    pub bytes: u64,
    /// Of its root.
    pub mode: u32,
    /// Of its root.
    pub uid: u32,
    /// Of its root.
    pub gid: u32,
}

/// What is answered.
pub type MetaAnswer = Result<MetaReply, Errno>;

/// The answer to an operation that is not refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MetaReply {
    /// There is nothing to say.
    Done,
    /// An inode.
    Attributes(InodeAttributes),
    /// An inode some of whose chunks have to be cut off before the caller answers.
    Changed {
        attributes: InodeAttributes,
        trim: Option<Trim>,
    },
    /// An opened file.
    Opened(OpenedFile),
    /// Where a symbolic link points to.
    Target(Vec<u8>),
    /// Entries of a directory.
    Names(Vec<ListedName>),
    /// What a sync or an extension has come to.
    Extent {
        size: u64,
        cut: u64,
        bound: Option<u64>,
    },
    /// What to cut off; none if it is done.
    Trim(Option<Trim>),
    /// Files and numbers of handles.
    Handles(Vec<(InodeNumber, u64)>),
    /// A mount, if there is one.
    Mount(Option<MountId>),
    /// Whether to call again.
    More(bool),
    /// A volume.
    Volume(VolumeView),
    /// Sum of what all volumes promise.
    Promised { bytes: u64 },
}

/// An opened file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedFile {
    pub attributes: InodeAttributes,
    /// Up to where it may be written.
    pub bound: Option<u64>,
    /// What has to be cut off before the caller answers.
    pub trim: Option<Trim>,
    /// Whether it did not exist.
    pub is_new: bool,
}

/// Chunks of a file to be cut off by a mount, which says [`MetaOperation::Trimmed`] when all of that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trim {
    pub cut: u64,
    /// Where the file ends.
    pub from: u64,
    /// No chunk has bytes behind this.
    pub reach: u64,
    pub layout: FileLayout,
}

/// A directory's entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedName {
    pub name: EntryName,
    pub inode: InodeNumber,
    pub kind: InodeKind,
    pub attributes: Option<InodeAttributes>,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeView {
    /// Also the volume's own number.
    pub root: InodeNumber,
    pub settings: VolumeSettings,
    pub layout: FileLayout,
    pub usage: VolumeUsage,
}

/// Why an operation is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Errno {
    #[error("there is nothing of that name")]
    NotFound,
    #[error("the name exists")]
    Exists,
    #[error("it is no directory")]
    NotDirectory,
    #[error("it is a directory")]
    IsDirectory,
    #[error("the directory is not empty")]
    NotEmpty,
    #[error("that cannot be done with a directory")]
    NotPermitted,
    #[error("the request makes no sense")]
    Invalid,
    #[error("it has as many names as it can have")]
    TooManyLinks,
    #[error("it is in another volume, or too deep below its root: copy it")]
    CrossesVolumes,
    #[error("the file would be too large")]
    TooLarge,
    #[error("the volumes would promise more bytes than there are")]
    NoSpace,
    #[error("the inode is gone")]
    Stale,
    #[error("the handle is not open")]
    BadHandle,
    #[error("a truncation of the file is not over: try again")]
    Trimming,
    #[error("bytes were cut off since: say what is left of those written")]
    Cut {
        /// As it is now.
        cut: u64,
        /// Where the file ends now.
        size: u64,
        /// No byte that the handle wrote is behind this.
        bound: u64,
        layout: FileLayout,
    },
    #[error("the mount has ended, or has said that it has this answer")]
    Ended,
    #[error("the record of key {key} is damaged")]
    Damaged { key: String },
}
