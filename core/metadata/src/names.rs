//! Names in directories: looked up, made, removed, listed.

use crate::inodes::MODE_BITS;
use crate::keys;
use crate::layout::FileLayout;
use crate::once::Work;
use crate::records::{EntriesTime, EntryRecord, InodeRecord};
use crate::request::{Errno, ListedName, MetaReply, NewNode, OpenedFile, WantedHandle};
use crate::step::{Outcome, RangeRead, damaged, parse};
use crate::types::{EntryName, InodeKind, InodeNumber, MOST_TARGET_BYTES};

/// Most entries of one list.
pub const MOST_LISTED: usize = 1024;
/// Most entries of one list with attributes: each needs up to three keys.
pub const MOST_LISTED_WITH_ATTRIBUTES: usize = 256;
/// Most names of an inode.
const MOST_LINKS: u32 = 65_000;
/// New inodes get the directory's group.
const SET_GROUP_ID: u32 = 0o2000;

impl Work<'_> {
    pub(crate) fn entry(
        &self,
        parent: InodeNumber,
        name: &EntryName,
    ) -> Outcome<Option<EntryRecord>> {
        self.seen.record(keys::entry(parent, name))
    }

    pub(crate) fn put_entry(
        &mut self,
        parent: InodeNumber,
        name: &EntryName,
        entry: EntryRecord,
    ) -> Outcome<()> {
        self.changes.put(keys::entry(parent, name), &entry)
    }

    /// Says that entries of a directory have changed.
    pub(crate) fn touch(&mut self, directory: InodeNumber) -> Outcome<()> {
        let time = EntriesTime::at(self.given.now_ns);
        self.changes.put(keys::entries_time(directory), &time)
    }

    /// So many more directories are in a directory.
    pub(crate) fn count_subdirectories(
        &mut self,
        directory: InodeNumber,
        more: i32,
    ) -> Outcome<()> {
        if more == 0 {
            return Ok(());
        }
        let key = keys::subdirectories(directory);
        let count: u32 = self.seen.record(key.clone())?.unwrap_or(0);
        self.changes.put(key, &count.saturating_add_signed(more))
    }

    pub(crate) fn lookup(&self, parent: InodeNumber, name: &EntryName) -> Outcome<MetaReply> {
        let entry = self.entry(parent, name)?.ok_or(Errno::NotFound)?;
        let inode = entry.inode;
        if entry.kind == InodeKind::Directory {
            let (time, count) = (keys::entries_time(inode), keys::subdirectories(inode));
            self.seen.need([keys::inode(inode), time, count], [])?;
        }
        let record = self.inode(inode)?;
        Ok(MetaReply::Attributes(self.attributes(inode, &record)?))
    }

    /// Makes an inode; `owner` is mode, user and group.
    pub(crate) fn make(
        &mut self,
        parent: InodeNumber,
        name: &EntryName,
        node: &NewNode,
        owner: [u32; 3],
        open: Option<&WantedHandle>,
    ) -> Outcome<MetaReply> {
        let keys = [keys::inode(parent), keys::entry(parent, name)];
        self.seen.need(keys, [])?;
        let directory = self.directory(parent)?;
        match (self.entry(parent, name)?, open) {
            (None, _) => {}
            (Some(entry), Some(open)) if !open.is_exclusive => {
                return match entry.kind {
                    InodeKind::File | InodeKind::Directory => self.open(entry.inode, open),
                    // Whoever asked did not know of it: what it means for an open, only a lookup says.
                    InodeKind::Symlink
                    | InodeKind::Fifo
                    | InodeKind::Socket
                    | InodeKind::CharacterDevice
                    | InodeKind::BlockDevice => Err(Errno::Stale.into()),
                };
            }
            (Some(_), _) => return Err(Errno::Exists.into()),
        }
        let inode = self.given.fresh;
        let mut record = self.new_inode(&directory, parent, node, owner)?;
        let bound = match (record.kind, open) {
            (InodeKind::File, Some(open)) => self.register(inode, &mut record, open)?,
            (_, Some(_)) => return Err(Errno::Invalid.into()),
            (_, None) => None,
        };
        let kind = record.kind;
        self.changes.put(keys::inode(inode), &record)?;
        self.put_entry(parent, name, EntryRecord { inode, kind })?;
        self.touch(parent)?;
        self.count(directory.volume, 1, 0)?;
        let now_ns = self.given.now_ns;
        let attributes = match kind == InodeKind::Directory {
            true => {
                self.touch(inode)?;
                self.count_subdirectories(parent, 1)?;
                record.directory_attributes(inode, EntriesTime::at(now_ns), 0)
            }
            false => record.attributes(inode),
        };
        if let NewNode::Symlink { target } = node {
            self.changes.put_bytes(keys::target(inode), target.clone());
        }
        Ok(match open {
            None => MetaReply::Attributes(attributes),
            Some(_) => MetaReply::Opened(OpenedFile {
                attributes,
                bound,
                trim: None,
                is_new: true,
            }),
        })
    }

    fn new_inode(
        &self,
        directory: &InodeRecord,
        parent: InodeNumber,
        node: &NewNode,
        [mode, uid, gid]: [u32; 3],
    ) -> Outcome<InodeRecord> {
        let (kind, device, size) = match node {
            NewNode::File => (InodeKind::File, 0, 0),
            NewNode::Directory => (InodeKind::Directory, 0, 0),
            NewNode::Symlink { target } => (InodeKind::Symlink, 0, target.len()),
            NewNode::Fifo => (InodeKind::Fifo, 0, 0),
            NewNode::Socket => (InodeKind::Socket, 0, 0),
            NewNode::CharacterDevice { device } => (InodeKind::CharacterDevice, *device, 0),
            NewNode::BlockDevice { device } => (InodeKind::BlockDevice, *device, 0),
        };
        if kind == InodeKind::Symlink && !(1..=MOST_TARGET_BYTES).contains(&size) {
            return Err(Errno::Invalid.into());
        }
        let is_directory = kind == InodeKind::Directory;
        let is_set_group = directory.mode & SET_GROUP_ID != 0;
        let inherited = match is_set_group && is_directory {
            true => SET_GROUP_ID,
            false => 0,
        };
        let layout = match kind {
            InodeKind::File => directory.layout.map(|layout| FileLayout {
                seed: self.given.fresh.0,
                ..layout
            }),
            InodeKind::Directory => directory.layout,
            InodeKind::Symlink
            | InodeKind::Fifo
            | InodeKind::Socket
            | InodeKind::CharacterDevice
            | InodeKind::BlockDevice => None,
        };
        let now_ns = self.given.now_ns;
        Ok(InodeRecord {
            kind,
            mode: mode & MODE_BITS | inherited,
            uid,
            gid: if is_set_group { directory.gid } else { gid },
            links: 1,
            device,
            size: size as u64,
            atime_ns: now_ns,
            mtime_ns: now_ns,
            modified_ns: now_ns,
            ctime_ns: now_ns,
            volume: directory.volume,
            parent: is_directory.then_some(parent),
            layout,
            reach: 0,
            cut: 0,
            trimmer: None,
        })
    }

    pub(crate) fn link(
        &mut self,
        inode: InodeNumber,
        parent: InodeNumber,
        name: &EntryName,
    ) -> Outcome<MetaReply> {
        let keys = [
            keys::inode(inode),
            keys::inode(parent),
            keys::entry(parent, name),
        ];
        self.seen.need(keys, [])?;
        let directory = self.directory(parent)?;
        let mut record = self.inode(inode)?;
        if record.kind == InodeKind::Directory {
            return Err(Errno::NotPermitted.into());
        }
        if record.links == 0 {
            return Err(Errno::NotFound.into());
        }
        if record.links >= MOST_LINKS {
            return Err(Errno::TooManyLinks.into());
        }
        if record.volume != directory.volume {
            return Err(Errno::CrossesVolumes.into());
        }
        if self.entry(parent, name)?.is_some() {
            return Err(Errno::Exists.into());
        }
        record.links += 1;
        record.ctime_ns = record.ctime_ns.max(self.given.now_ns);
        let kind = record.kind;
        self.changes.put(keys::inode(inode), &record)?;
        self.put_entry(parent, name, EntryRecord { inode, kind })?;
        self.touch(parent)?;
        Ok(MetaReply::Attributes(record.attributes(inode)))
    }

    pub(crate) fn unlink(&mut self, parent: InodeNumber, name: &EntryName) -> Outcome<MetaReply> {
        let entry = self.entry(parent, name)?.ok_or(Errno::NotFound)?;
        if entry.kind == InodeKind::Directory {
            return Err(Errno::IsDirectory.into());
        }
        let record = self.inode(entry.inode)?;
        self.remove_name(entry.inode, record)?;
        self.changes.delete(keys::entry(parent, name));
        self.touch(parent)?;
        Ok(MetaReply::Done)
    }

    pub(crate) fn remove_directory(
        &mut self,
        parent: InodeNumber,
        name: &EntryName,
    ) -> Outcome<MetaReply> {
        let entry = self.entry(parent, name)?.ok_or(Errno::NotFound)?;
        let record = self.empty_directory(entry)?;
        self.discard_directory(entry.inode, record.volume)?;
        self.changes.delete(keys::entry(parent, name));
        self.touch(parent)?;
        self.count_subdirectories(parent, -1)?;
        Ok(MetaReply::Done)
    }

    /// What an entry stands for, if that is a directory without entries. Whoever makes one there conflicts.
    pub(crate) fn empty_directory(&self, entry: EntryRecord) -> Outcome<InodeRecord> {
        if entry.kind != InodeKind::Directory {
            return Err(Errno::NotDirectory.into());
        }
        let first = RangeRead::Compared {
            prefix: keys::entries(entry.inode),
            limit: 1,
        };
        self.seen
            .need([keys::inode(entry.inode)], [first.clone()])?;
        let record = self.inode(entry.inode)?;
        match self.seen.range(first)?.is_empty() {
            true => Ok(record),
            false => Err(Errno::NotEmpty.into()),
        }
    }

    pub(crate) fn read_directory(
        &self,
        inode: InodeNumber,
        after: Option<&EntryName>,
        limit: usize,
        with_attributes: bool,
    ) -> Outcome<MetaReply> {
        let most = match with_attributes {
            true => MOST_LISTED_WITH_ATTRIBUTES,
            false => MOST_LISTED,
        };
        if !(1..=most).contains(&limit) {
            return Err(Errno::Invalid.into());
        }
        let list = RangeRead::Plain {
            prefix: keys::entries(inode),
            after: after.map(|name| keys::entry(inode, name)),
            limit,
        };
        self.seen.need([keys::inode(inode)], [list.clone()])?;
        if self.inode(inode)?.kind != InodeKind::Directory {
            return Err(Errno::NotDirectory.into());
        }
        let mut listed = Vec::new();
        for (key, value) in self.seen.range(list)? {
            let entry: EntryRecord = parse(key, value)?;
            listed.push(ListedName {
                name: keys::entry_name(key).ok_or_else(|| damaged(key))?,
                inode: entry.inode,
                kind: entry.kind,
                attributes: None,
            });
        }
        if with_attributes {
            self.add_attributes(&mut listed)?;
        }
        Ok(MetaReply::Names(listed))
    }

    fn add_attributes(&self, listed: &mut [ListedName]) -> Outcome<()> {
        let inodes = listed.iter().map(|one| keys::inode(one.inode));
        let directories = || {
            let is_directory = |one: &&ListedName| one.kind == InodeKind::Directory;
            listed.iter().filter(is_directory).map(|one| one.inode)
        };
        let times = directories().map(keys::entries_time);
        let counts = directories().map(keys::subdirectories);
        self.seen.need(inodes.chain(times).chain(counts), [])?;
        for one in listed {
            let record = self.inode(one.inode)?;
            one.attributes = Some(self.attributes(one.inode, &record)?);
        }
        Ok(())
    }
}
