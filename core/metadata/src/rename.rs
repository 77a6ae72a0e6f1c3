//! Names that move. A directory never comes to be below itself, also when others move at the same time: the row of
//! directories above its new place is part of what a commit compares.

use crate::keys;
use crate::once::Work;
use crate::records::{EntryRecord, InodeRecord};
use crate::request::{Errno, MetaReply, RenameRule};
use crate::step::Outcome;
use crate::types::{EntryName, InodeKind, InodeNumber};

/// Most directories above one into which another is moved. Where there are more, it has to be copied.
pub const MOST_ANCESTORS: usize = 100;

/// A name and its directory.
type Named<'a> = (InodeNumber, &'a EntryName);

impl Work<'_> {
    pub(crate) fn rename(
        &mut self,
        from: Named<'_>,
        to: Named<'_>,
        rule: RenameRule,
    ) -> Outcome<MetaReply> {
        let keys =
            [from, to].map(|(parent, name)| [keys::inode(parent), keys::entry(parent, name)]);
        self.seen.need(keys.into_iter().flatten(), [])?;
        let (parent, new_parent) = (self.directory(from.0)?, self.directory(to.0)?);
        if parent.volume != new_parent.volume {
            return Err(Errno::CrossesVolumes.into());
        }
        let moved = self.entry(from.0, from.1)?.ok_or(Errno::NotFound)?;
        let other = self.entry(to.0, to.1)?;
        match (rule, other) {
            (RenameRule::NoReplace, Some(_)) => return Err(Errno::Exists.into()),
            (RenameRule::Exchange, None) => return Err(Errno::NotFound.into()),
            (_, Some(other)) if other.inode == moved.inode => return Ok(MetaReply::Done),
            (RenameRule::Replace | RenameRule::NoReplace | RenameRule::Exchange, _) => {}
        }
        let inodes = [Some(moved), other].into_iter().flatten();
        self.seen
            .need(inodes.map(|entry| keys::inode(entry.inode)), [])?;
        self.refuse_loop(moved, from.0, to.0, &new_parent)?;
        match (rule, other) {
            (RenameRule::Exchange, Some(other)) => {
                self.refuse_loop(other, to.0, from.0, &parent)?;
                self.move_entry(other, to.0, from)?;
            }
            (RenameRule::Replace | RenameRule::NoReplace, Some(other)) => {
                self.replace(moved, other)?;
                self.changes.delete(keys::entry(from.0, from.1));
            }
            (_, None) => self.changes.delete(keys::entry(from.0, from.1)),
        }
        self.move_entry(moved, from.0, to)?;
        self.touch(from.0)?;
        self.touch(to.0)?;
        let count = |entry: Option<EntryRecord>| {
            i32::from(entry.is_some_and(|entry| entry.kind == InodeKind::Directory))
        };
        let (moved, other) = (count(Some(moved)), count(other));
        match rule {
            _ if from.0 == to.0 && rule != RenameRule::Exchange => {
                self.count_subdirectories(from.0, -other)?;
            }
            _ if from.0 == to.0 => {}
            RenameRule::Exchange => {
                self.count_subdirectories(from.0, other - moved)?;
                self.count_subdirectories(to.0, moved - other)?;
            }
            RenameRule::Replace | RenameRule::NoReplace => {
                self.count_subdirectories(from.0, -moved)?;
                self.count_subdirectories(to.0, moved - other)?;
            }
        }
        Ok(MetaReply::Done)
    }

    /// Removes what the new name stood for.
    fn replace(&mut self, moved: EntryRecord, other: EntryRecord) -> Outcome<()> {
        let is_directory = |entry: EntryRecord| entry.kind == InodeKind::Directory;
        match (is_directory(moved), is_directory(other)) {
            (true, false) => Err(Errno::NotDirectory.into()),
            (false, true) => Err(Errno::IsDirectory.into()),
            (true, true) => {
                let record = self.empty_directory(other)?;
                self.discard_directory(other.inode, record.volume)
            }
            (false, false) => {
                let record = self.inode(other.inode)?;
                self.remove_name(other.inode, record)
            }
        }
    }

    fn move_entry(&mut self, entry: EntryRecord, from: InodeNumber, to: Named<'_>) -> Outcome<()> {
        let mut record = self.inode(entry.inode)?;
        record.ctime_ns = record.ctime_ns.max(self.given.now_ns);
        if entry.kind == InodeKind::Directory && from != to.0 {
            record.parent = Some(to.0);
        }
        self.changes.put(keys::inode(entry.inode), &record)?;
        self.put_entry(to.0, to.1, entry)
    }

    /// Refuses to move a directory into itself or below.
    fn refuse_loop(
        &self,
        moved: EntryRecord,
        from: InodeNumber,
        to: InodeNumber,
        new_parent: &InodeRecord,
    ) -> Outcome<()> {
        if moved.kind != InodeKind::Directory || from == to {
            return Ok(());
        }
        let mut at = to;
        let mut above = new_parent.parent;
        for _ in 0..MOST_ANCESTORS {
            if at == moved.inode {
                return Err(Errno::Invalid.into());
            }
            match above {
                Some(next) if next != at => {
                    at = next;
                    above = self.inode(next)?.parent;
                }
                Some(_) | None => return Ok(()),
            }
        }
        Err(Errno::CrossesVolumes.into())
    }
}
