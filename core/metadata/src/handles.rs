//! Open files, and what of their bytes the names know: sizes, how far may be written, what was cut off.
//!
//! No chunk has bytes behind the inode's reach. Whoever makes a file shorter than that counts a cut, and becomes its trimmer:
//! it cuts the chunks off and says so before its caller is answered. Until then nobody may open the file for writing,
//! reach further, or say what was written. A length that was written before the last cut says nothing: the chunks do.

use crate::keys;
use crate::layout::FileLayout;
use crate::once::Work;
use crate::records::{HandleRecord, InodeRecord};
use crate::request::{Errno, MetaReply, OpenedFile, Trim, WantedHandle, Written};
use crate::step::Outcome;
use crate::types::{HandleId, InodeKind, InodeNumber, MountId};

/// The number of a mount's handle that stands for its trim of a file.
const TRIM: u64 = 0;

impl InodeRecord {
    pub(crate) fn file_layout(&self) -> Outcome<FileLayout> {
        Ok(self.layout.ok_or(Errno::Invalid)?)
    }

    fn trim(&self) -> Outcome<Trim> {
        Ok(Trim {
            cut: self.cut,
            from: self.size,
            reach: self.reach,
            layout: self.file_layout()?,
        })
    }

    fn refuse_while_trimmed(&self) -> Outcome<()> {
        match self.trimmer {
            Some(_) => Err(Errno::Trimming.into()),
            None => Ok(()),
        }
    }

    fn refuse_cut(&self, cut: u64, bound: u64) -> Outcome<()> {
        if cut == self.cut {
            return Ok(());
        }
        let layout = self.file_layout()?;
        let (cut, size) = (self.cut, self.size);
        Err(Errno::Cut {
            cut,
            size,
            bound,
            layout,
        }
        .into())
    }
}

/// Only files have bytes.
fn refuse_other_kinds(kind: InodeKind) -> Outcome<()> {
    match kind {
        InodeKind::File => Ok(()),
        InodeKind::Directory => Err(Errno::IsDirectory.into()),
        InodeKind::Symlink
        | InodeKind::Fifo
        | InodeKind::Socket
        | InodeKind::CharacterDevice
        | InodeKind::BlockDevice => Err(Errno::Invalid.into()),
    }
}

impl Work<'_> {
    pub(crate) fn open(&mut self, inode: InodeNumber, open: &WantedHandle) -> Outcome<MetaReply> {
        let mut record = self.inode(inode)?;
        refuse_other_kinds(record.kind)?;
        if open.bound.is_some() {
            record.refuse_while_trimmed()?;
        }
        let before = record.clone();
        let trim = match open.is_truncating {
            true => self.truncate(inode, &mut record, 0)?,
            false => None,
        };
        let bound = self.register(inode, &mut record, open)?;
        if record != before {
            self.changes.put(keys::inode(inode), &record)?;
        }
        Ok(MetaReply::Opened(OpenedFile {
            attributes: record.attributes(inode),
            bound,
            trim,
            is_new: false,
        }))
    }

    /// Keeps a handle, so that the file stays while it is open.
    pub(crate) fn register(
        &mut self,
        inode: InodeNumber,
        record: &mut InodeRecord,
        open: &WantedHandle,
    ) -> Outcome<Option<u64>> {
        let WantedHandle { handle, bound, .. } = *open;
        if handle.mount != self.mount()? || handle.number == TRIM {
            return Err(Errno::Invalid.into());
        }
        if bound.unwrap_or(0) > record.file_layout()?.most_bytes() {
            return Err(Errno::TooLarge.into());
        }
        record.reach = record.reach.max(bound.unwrap_or(0));
        self.put_handle(inode, handle, HandleRecord { bound })?;
        Ok(bound)
    }

    fn put_handle(
        &mut self,
        inode: InodeNumber,
        handle: HandleId,
        record: HandleRecord,
    ) -> Outcome<()> {
        let by_mount = keys::mount_handle(inode, handle);
        self.changes.put_bytes(by_mount, Vec::new());
        self.changes.put(keys::handle(inode, handle), &record)
    }

    /// Gives a file another size, and says what has to be cut off.
    pub(crate) fn truncate(
        &mut self,
        inode: InodeNumber,
        record: &mut InodeRecord,
        size: u64,
    ) -> Outcome<Option<Trim>> {
        refuse_other_kinds(record.kind)?;
        record.refuse_while_trimmed()?;
        if size > record.file_layout()?.most_bytes() {
            return Err(Errno::TooLarge.into());
        }
        self.count_bytes(record, size)?;
        let now_ns = self.given.now_ns;
        record.size = size;
        record.mtime_ns = now_ns;
        record.modified_ns = now_ns;
        record.ctime_ns = record.ctime_ns.max(now_ns);
        if record.reach <= size {
            return Ok(None);
        }
        let mount = self.mount()?;
        record.cut += 1;
        record.trimmer = Some(mount);
        let number = TRIM;
        self.put_handle(
            inode,
            HandleId { mount, number },
            HandleRecord { bound: None },
        )?;
        Ok(Some(record.trim()?))
    }

    /// Counts a new size of a file.
    fn count_bytes(&mut self, record: &InodeRecord, size: u64) -> Outcome<()> {
        let bytes = size.cast_signed() - record.size.cast_signed();
        self.count(record.volume, 0, bytes)
    }

    pub(crate) fn extend(
        &mut self,
        inode: InodeNumber,
        handle: HandleId,
        cut: u64,
        bound: u64,
    ) -> Outcome<MetaReply> {
        let (mut record, open) = self.open_file(inode, handle)?.ok_or(Errno::BadHandle)?;
        let old = open.bound.ok_or(Errno::BadHandle)?;
        record.refuse_while_trimmed()?;
        record.refuse_cut(cut, old)?;
        if bound > record.file_layout()?.most_bytes() {
            return Err(Errno::TooLarge.into());
        }
        let extended = HandleRecord {
            bound: Some(bound.max(old)),
        };
        if extended != open {
            self.changes.put(keys::handle(inode, handle), &extended)?;
        }
        if bound > record.reach {
            record.reach = bound;
            self.changes.put(keys::inode(inode), &record)?;
        }
        Ok(MetaReply::Extent {
            size: record.size,
            cut: record.cut,
            bound: extended.bound,
        })
    }

    pub(crate) fn sync(
        &mut self,
        inode: InodeNumber,
        handle: HandleId,
        written: &Written,
    ) -> Outcome<MetaReply> {
        let (mut record, open) = self.open_file(inode, handle)?.ok_or(Errno::BadHandle)?;
        let before = record.clone();
        self.take_in(&mut record, open, written)?;
        if record != before {
            self.changes.put(keys::inode(inode), &record)?;
        }
        Ok(MetaReply::Extent {
            size: record.size,
            cut: record.cut,
            bound: open.bound,
        })
    }

    pub(crate) fn close(
        &mut self,
        inode: InodeNumber,
        handle: HandleId,
        written: Option<&Written>,
    ) -> Outcome<MetaReply> {
        if handle.number == TRIM {
            return Err(Errno::Invalid.into());
        }
        let Some((mut record, open)) = self.open_file(inode, handle)? else {
            return Ok(MetaReply::Done);
        };
        let before = record.clone();
        if let Some(written) = written {
            self.take_in(&mut record, open, written)?;
        }
        if record != before {
            self.changes.put(keys::inode(inode), &record)?;
        }
        self.remove_handle(inode, handle, &record)?;
        Ok(MetaReply::Done)
    }

    /// A file and its handle, if that is open.
    fn open_file(
        &self,
        inode: InodeNumber,
        handle: HandleId,
    ) -> Outcome<Option<(InodeRecord, HandleRecord)>> {
        let key = keys::handle(inode, handle);
        self.seen.need([keys::inode(inode), key.clone()], [])?;
        match self.seen.record(key)? {
            Some(open) => Ok(Some((self.inode(inode)?, open))),
            None => Ok(None),
        }
    }

    /// Lets a file have what a handle has written.
    fn take_in(
        &mut self,
        record: &mut InodeRecord,
        open: HandleRecord,
        written: &Written,
    ) -> Outcome<()> {
        let bound = open.bound.ok_or(Errno::BadHandle)?;
        record.refuse_while_trimmed()?;
        record.refuse_cut(written.cut, bound)?;
        if written.length > bound {
            return Err(Errno::Invalid.into());
        }
        let size = record.size.max(written.length);
        self.count_bytes(record, size)?;
        record.size = size;
        if written.mtime_ns >= record.modified_ns {
            record.mtime_ns = written.mtime_ns;
            record.modified_ns = written.mtime_ns;
            record.ctime_ns = record.ctime_ns.max(written.mtime_ns);
        }
        Ok(())
    }

    fn remove_handle(
        &mut self,
        inode: InodeNumber,
        handle: HandleId,
        record: &InodeRecord,
    ) -> Outcome<()> {
        self.changes.delete(keys::handle(inode, handle));
        self.changes.delete(keys::mount_handle(inode, handle));
        if record.links == 0 && self.is_closed(inode, Some(handle))? {
            self.discard(inode, record)?;
        }
        Ok(())
    }

    pub(crate) fn trimmed(
        &mut self,
        inode: InodeNumber,
        mount: MountId,
        cut: u64,
    ) -> Outcome<MetaReply> {
        let number = TRIM;
        let handle = HandleId { mount, number };
        let Some((mut record, _)) = self.open_file(inode, handle)? else {
            return Ok(MetaReply::Done);
        };
        if cut < record.cut {
            // It comes once more, and the mount cuts off again.
            return Ok(MetaReply::Done);
        }
        if record.trimmer != Some(mount) || record.cut != cut {
            return Err(Errno::Invalid.into());
        }
        record.trimmer = None;
        self.changes.put(keys::inode(inode), &record)?;
        self.remove_handle(inode, handle, &record)?;
        Ok(MetaReply::Done)
    }

    pub(crate) fn take_trim(
        &mut self,
        inode: InodeNumber,
        from: MountId,
        to: MountId,
    ) -> Outcome<MetaReply> {
        let mounts = [from, to].map(keys::mount);
        self.seen
            .need([keys::inode(inode)].into_iter().chain(mounts), [])?;
        if self.has_ended(to)? {
            return Err(Errno::Ended.into());
        }
        let record: Option<InodeRecord> = self.seen.record(keys::inode(inode))?;
        let Some(mut record) = record else {
            return Ok(MetaReply::Trim(None));
        };
        let trim = record.trim()?;
        if record.trimmer == Some(to) {
            return Ok(MetaReply::Trim(Some(trim)));
        }
        if record.trimmer != Some(from) || !self.has_ended(from)? {
            return Ok(MetaReply::Trim(None));
        }
        record.trimmer = Some(to);
        self.changes.put(keys::inode(inode), &record)?;
        let [old, new] = [from, to].map(|mount| HandleId {
            mount,
            number: TRIM,
        });
        self.changes.delete(keys::handle(inode, old));
        self.changes.delete(keys::mount_handle(inode, old));
        self.put_handle(inode, new, HandleRecord { bound: None })?;
        Ok(MetaReply::Trim(Some(trim)))
    }
}
