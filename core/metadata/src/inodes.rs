//! Inodes by their numbers: what they are, and changes of their attributes. Size and bytes belong to `handles`.

use crate::keys;
use crate::once::Work;
use crate::records::{EntriesTime, InodeAttributes, InodeRecord};
use crate::request::{AttributeChange, Errno, MetaReply};
use crate::step::Outcome;
use crate::types::{InodeKind, InodeNumber};

/// Lower bits of a mode, which can be changed.
pub(crate) const MODE_BITS: u32 = 0o7777;

impl Work<'_> {
    /// The record of an inode that exists.
    pub(crate) fn inode(&self, inode: InodeNumber) -> Outcome<InodeRecord> {
        let record = self.seen.record(keys::inode(inode))?;
        record.ok_or_else(|| Errno::Stale.into())
    }

    /// The record of a directory in which entries can be made.
    pub(crate) fn directory(&self, inode: InodeNumber) -> Outcome<InodeRecord> {
        let record = self.inode(inode)?;
        match record.kind == InodeKind::Directory {
            true => Ok(record),
            false => Err(Errno::NotDirectory.into()),
        }
    }

    /// What an inode looks like from outside.
    pub(crate) fn attributes(
        &self,
        inode: InodeNumber,
        record: &InodeRecord,
    ) -> Outcome<InodeAttributes> {
        if record.kind != InodeKind::Directory {
            return Ok(record.attributes(inode));
        }
        let (time, subdirectories) = (keys::entries_time(inode), keys::subdirectories(inode));
        self.seen.need([time.clone(), subdirectories.clone()], [])?;
        let time = self.seen.record(time)?.unwrap_or(EntriesTime {
            mtime_ns: record.mtime_ns,
            ctime_ns: record.ctime_ns,
        });
        let subdirectories = self.seen.record(subdirectories)?.unwrap_or(0);
        Ok(record.directory_attributes(inode, time, subdirectories))
    }

    pub(crate) fn get_attributes(&self, inode: InodeNumber) -> Outcome<MetaReply> {
        // Those of a directory too: what the inode is, is not known yet.
        let (time, count) = (keys::entries_time(inode), keys::subdirectories(inode));
        self.seen.need([keys::inode(inode), time, count], [])?;
        let record = self.inode(inode)?;
        Ok(MetaReply::Attributes(self.attributes(inode, &record)?))
    }

    pub(crate) fn set_attributes(
        &mut self,
        inode: InodeNumber,
        change: &AttributeChange,
    ) -> Outcome<MetaReply> {
        let mut record = self.inode(inode)?;
        let now_ns = self.given.now_ns;
        let trim = match change.size {
            Some(size) => self.truncate(inode, &mut record, size)?,
            None => None,
        };
        record.mode = change.mode.map_or(record.mode, |mode| mode & MODE_BITS);
        record.uid = change.uid.unwrap_or(record.uid);
        record.gid = change.gid.unwrap_or(record.gid);
        record.atime_ns = change.atime_ns.unwrap_or(record.atime_ns);
        record.ctime_ns = record.ctime_ns.max(now_ns);
        if let Some(mtime_ns) = change.mtime_ns {
            record.mtime_ns = mtime_ns;
            record.modified_ns = now_ns;
        }
        let mut attributes = self.attributes(inode, &record)?;
        if let (InodeKind::Directory, Some(mtime_ns)) = (record.kind, change.mtime_ns) {
            let time = EntriesTime {
                mtime_ns,
                ctime_ns: now_ns,
            };
            self.changes.put(keys::entries_time(inode), &time)?;
            attributes.mtime_ns = mtime_ns;
        }
        self.changes.put(keys::inode(inode), &record)?;
        Ok(MetaReply::Changed { attributes, trim })
    }

    pub(crate) fn read_link(&self, inode: InodeNumber) -> Outcome<MetaReply> {
        self.seen
            .need([keys::inode(inode), keys::target(inode)], [])?;
        self.inode(inode)?;
        match self.seen.get(keys::target(inode))? {
            Some(target) => Ok(MetaReply::Target(target.to_vec())),
            None => Err(Errno::Invalid.into()),
        }
    }
}
