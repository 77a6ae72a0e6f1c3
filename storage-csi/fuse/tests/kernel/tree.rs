//! The inodes of the file system in memory, and their names.

use std::collections::BTreeMap;

use fuse::Errno;
use fuse::answer::{Attributes, FileKind};
use fuse::request::{FileName, FileTime, Inode, RenameMode, SetAttributes, SetTime};

pub(super) type Result<T> = std::result::Result<T, Errno>;

/// Bytes that statfs(2) and stat(2) count in.
pub(super) const BLOCK_BYTES: u32 = 4096;

#[derive(Debug)]
pub(super) enum Content {
    File(Vec<u8>),
    Directory(BTreeMap<Vec<u8>, u64>),
    Symlink(Vec<u8>),
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) content: Content,
    pub(super) permissions: u32,
    pub(super) links: u32,
    /// Lookups that the kernel has not given up.
    pub(super) lookups: u64,
    pub(super) mtime: FileTime,
}

#[derive(Debug)]
pub(super) struct Tree {
    pub(super) nodes: BTreeMap<u64, Node>,
    next: u64,
    clock: i64,
}

impl Tree {
    pub(super) fn new() -> Self {
        let mut tree = Self {
            nodes: BTreeMap::new(),
            next: Inode::ROOT.0,
            clock: 0,
        };
        tree.make(Content::Directory(BTreeMap::new()), 0o755);
        tree
    }

    pub(super) fn now(&mut self) -> FileTime {
        self.clock += 1;
        FileTime {
            seconds: self.clock,
            nanoseconds: 0,
        }
    }

    /// Has one link already, for the name that it is going to get.
    pub(super) fn make(&mut self, content: Content, permissions: u32) -> u64 {
        let inode = self.next;
        self.next += 1;
        let node = Node {
            content,
            permissions,
            links: 1,
            lookups: 0,
            mtime: self.now(),
        };
        self.nodes.insert(inode, node);
        inode
    }

    pub(super) fn node(&mut self, inode: u64) -> Result<&mut Node> {
        self.nodes.get_mut(&inode).ok_or(Errno::STALE)
    }

    pub(super) fn directory(&mut self, inode: Inode) -> Result<&mut BTreeMap<Vec<u8>, u64>> {
        match &mut self.node(inode.0)?.content {
            Content::Directory(names) => Ok(names),
            Content::File(_) | Content::Symlink(_) => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn file(&mut self, inode: Inode) -> Result<&mut Vec<u8>> {
        match &mut self.node(inode.0)?.content {
            Content::File(content) => Ok(content),
            Content::Directory(_) | Content::Symlink(_) => Err(Errno::ISDIR),
        }
    }

    pub(super) fn read(&self, inode: Inode, offset: u64, size: u32) -> Result<&[u8]> {
        let node = self.nodes.get(&inode.0).ok_or(Errno::STALE)?;
        let Content::File(file) = &node.content else {
            return Err(Errno::ISDIR);
        };
        let start = file.len().min(offset as usize);
        let end = file.len().min(start + size as usize);
        Ok(&file[start..end])
    }

    pub(super) fn target(&self, inode: Inode) -> Result<&[u8]> {
        match self.nodes.get(&inode.0).map(|node| &node.content) {
            Some(Content::Symlink(target)) => Ok(target),
            Some(Content::File(_) | Content::Directory(_)) | None => Err(Errno::INVAL),
        }
    }

    pub(super) fn attributes(&self, inode: u64) -> Result<Attributes> {
        let node = self.nodes.get(&inode).ok_or(Errno::STALE)?;
        let (kind, size) = match &node.content {
            Content::File(content) => (FileKind::Regular, content.len()),
            Content::Directory(names) => (FileKind::Directory, names.len()),
            Content::Symlink(target) => (FileKind::Symlink, target.len()),
        };
        Ok(Attributes {
            inode: Inode(inode),
            kind,
            permissions: node.permissions,
            size: size as u64,
            blocks: size.div_ceil(512) as u64,
            block_bytes: BLOCK_BYTES,
            links: node.links,
            uid: 0,
            gid: 0,
            device: 0,
            atime: node.mtime,
            mtime: node.mtime,
            ctime: node.mtime,
        })
    }

    pub(super) fn set(&mut self, inode: Inode, set: &SetAttributes) -> Result<()> {
        if let Some(size) = set.size {
            self.file(inode)?.resize(size as usize, 0);
        }
        let now = self.now();
        let node = self.node(inode.0)?;
        node.permissions = set.mode.map_or(node.permissions, |mode| mode & 0o7777);
        node.mtime = match set.mtime {
            Some(SetTime::At(time)) => time,
            Some(SetTime::Now) | None => now,
        };
        Ok(())
    }

    pub(super) fn add(&mut self, parent: Inode, name: &[u8], inode: u64) -> Result<()> {
        let names = self.directory(parent)?;
        if names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        names.insert(name.to_vec(), inode);
        Ok(())
    }

    pub(super) fn remove(&mut self, parent: Inode, name: FileName<'_>) -> Result<()> {
        let inode = self.directory(parent)?.remove(name.as_bytes());
        let inode = inode.ok_or(Errno::NOENT)?;
        self.node(inode)?.links -= 1;
        self.forget(Inode(inode), 0);
        Ok(())
    }

    pub(super) fn forget(&mut self, inode: Inode, lookups: u64) {
        let Some(node) = self.nodes.get_mut(&inode.0) else {
            return;
        };
        // A successor has not counted those before it.
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 && node.links == 0 {
            self.nodes.remove(&inode.0);
        }
    }

    pub(super) fn rename(
        &mut self,
        parent: Inode,
        name: FileName<'_>,
        new_parent: Inode,
        new_name: FileName<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        let inode = self.directory(parent)?.get(name.as_bytes()).copied();
        let inode = inode.ok_or(Errno::NOENT)?;
        let there = self
            .directory(new_parent)?
            .get(new_name.as_bytes())
            .copied();
        match (mode, there) {
            (RenameMode::Exchange, None) => return Err(Errno::NOENT),
            (RenameMode::Exchange, Some(there)) => {
                self.directory(parent)?
                    .insert(name.as_bytes().to_vec(), there);
            }
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameMode::Replace, Some(there)) if there == inode => return Ok(()),
            (RenameMode::Replace, Some(_)) => {
                self.remove(new_parent, new_name)?;
                self.directory(parent)?.remove(name.as_bytes());
            }
            (RenameMode::Replace | RenameMode::NoReplace, None) => {
                self.directory(parent)?.remove(name.as_bytes());
            }
        }
        let names = self.directory(new_parent)?;
        names.insert(new_name.as_bytes().to_vec(), inode);
        Ok(())
    }
}
