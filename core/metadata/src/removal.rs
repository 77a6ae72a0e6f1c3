//! An inode loses a name. Without names and handles it is garbage, or gone at once if it has no chunks.

use crate::keys;
use crate::once::Work;
use crate::records::InodeRecord;
use crate::step::{Outcome, RangeRead};
use crate::types::{HandleId, InodeKind, InodeNumber};

impl Work<'_> {
    /// One name less, of an inode that is no directory.
    pub(crate) fn remove_name(
        &mut self,
        inode: InodeNumber,
        mut record: InodeRecord,
    ) -> Outcome<()> {
        record.links = record.links.saturating_sub(1);
        record.ctime_ns = record.ctime_ns.max(self.given.now_ns);
        if record.links == 0 && self.is_closed(inode, None)? {
            return self.discard(inode, &record);
        }
        self.changes.put(keys::inode(inode), &record)
    }

    /// Whether a file has no handle but this one.
    pub(crate) fn is_closed(&self, inode: InodeNumber, but: Option<HandleId>) -> Outcome<bool> {
        let rows = self.seen.range(RangeRead::Compared {
            prefix: keys::handles(inode),
            limit: 2,
        })?;
        let but = but.map(|handle| keys::handle(inode, handle));
        Ok(rows.iter().all(|(key, _)| Some(key) == but.as_ref()))
    }

    /// Nobody can reach it any more.
    pub(crate) fn discard(&mut self, inode: InodeNumber, record: &InodeRecord) -> Outcome<()> {
        let bytes = i64::try_from(record.used_bytes()).unwrap_or(i64::MAX);
        self.count(record.volume, -1, -bytes)?;
        if record.kind == InodeKind::File && record.reach > 0 {
            return self.collect_later(inode, record);
        }
        self.changes.delete(keys::inode(inode));
        if record.kind == InodeKind::Symlink {
            self.changes.delete(keys::target(inode));
        }
        Ok(())
    }

    /// Hands an inode with what belongs to it to the collection. From then on it is no inode.
    pub(crate) fn collect_later(
        &mut self,
        inode: InodeNumber,
        record: &InodeRecord,
    ) -> Outcome<()> {
        self.changes.delete(keys::inode(inode));
        self.changes.put(keys::garbage(inode), record)
    }

    /// An empty directory is gone.
    pub(crate) fn discard_directory(
        &mut self,
        inode: InodeNumber,
        volume: InodeNumber,
    ) -> Outcome<()> {
        self.changes.delete(keys::inode(inode));
        self.changes.delete(keys::entries_time(inode));
        self.changes.delete(keys::subdirectories(inode));
        self.count(volume, -1, 0)
    }
}
