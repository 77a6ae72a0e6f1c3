//! A small file system in memory, in which a file lives as long as the kernel knows it. Its clock
//! is a counter, so that two of one history are the same.

use std::collections::BTreeMap;
use std::sync::RwLock;
use std::time::Duration;

use fuse::Errno;
use fuse::answer::{Answer, FileSystemStatus, NamedInode, Opened};
use fuse::directory::{DirectoryEntry, DirectoryList, Fit};
use fuse::request::{FileHandle, FileName, FileOperation, Inode, RenameMode, Request};
use fuse::serve::Replier;

use super::tree::{BLOCK_BYTES, Content, Result, Tree};

/// The file system, and how long the kernel may keep what it is told.
#[derive(Debug)]
pub(crate) struct Memory {
    tree: RwLock<Tree>,
    valid: Duration,
}

/// What statfs(2) tells.
pub(crate) const BLOCKS: u64 = 1 << 20;

impl Memory {
    pub(crate) fn new(valid: Duration) -> Self {
        Self {
            tree: RwLock::new(Tree::new()),
            valid,
        }
    }

    /// As another host would: the kernel learns nothing of it. An inode that is there keeps its
    /// number.
    pub(crate) fn put(&self, name: &str, content: &[u8]) -> Inode {
        let mut tree = self.tree.write().unwrap();
        let found = tree
            .directory(Inode::ROOT)
            .unwrap()
            .get(name.as_bytes())
            .copied();
        let inode = found.unwrap_or_else(|| {
            let inode = tree.make(Content::File(Vec::new()), 0o644);
            tree.add(Inode::ROOT, name.as_bytes(), inode).unwrap();
            inode
        });
        let now = tree.now();
        let node = tree.nodes.get_mut(&inode).unwrap();
        node.content = Content::File(content.to_vec());
        node.mtime = now;
        Inode(inode)
    }

    /// Exchanges two names, as another host would.
    pub(crate) fn exchange(&self, one: &str, other: &str) {
        let mut tree = self.tree.write().unwrap();
        let [one, other] = [one, other].map(|name| FileName::new(name.as_bytes()).unwrap());
        tree.rename(Inode::ROOT, one, Inode::ROOT, other, RenameMode::Exchange)
            .unwrap();
    }

    /// Inodes that have no name any more, and are there still.
    pub(crate) fn unlinked(&self) -> usize {
        let tree = self.tree.read().unwrap();
        tree.nodes.values().filter(|node| node.links == 0).count()
    }

    pub(crate) fn handle(&self, request: &Request<'_>, replier: Replier) {
        let inode = request.inode;
        let answered = if let FileOperation::Read { offset, size, .. } = request.operation {
            let tree = self.tree.read().unwrap();
            match tree.read(inode, offset, size) {
                Ok(part) => {
                    let (one, other) = part.split_at(part.len() / 2);
                    replier.answer(&Answer::Pieces(&[one, other]))
                }
                Err(errno) => replier.answer(&Answer::Error(errno)),
            }
        } else if let FileOperation::ReadLink = request.operation {
            let tree = self.tree.read().unwrap();
            let target = tree.target(inode);
            replier.answer(&target.map_or_else(Answer::Error, Answer::Data))
        } else if let FileOperation::ReadDirectory { offset, size, .. }
        | FileOperation::ReadDirectoryPlus { offset, size, .. } = request.operation
        {
            let is_plus = matches!(request.operation, FileOperation::ReadDirectoryPlus { .. });
            let mut tree = self.tree.write().unwrap();
            let list = self.list(&mut tree, inode, offset, size, is_plus);
            let answer = list.as_ref().map(DirectoryList::answer);
            replier.answer(&answer.unwrap_or_else(|errno| Answer::Error(*errno)))
        } else {
            let mut tree = self.tree.write().unwrap();
            let answer = self.change(&mut tree, request);
            replier.answer(&answer.unwrap_or_else(Answer::Error))
        };
        answered.unwrap();
    }

    /// What is answered without lending anything.
    fn change(&self, tree: &mut Tree, request: &Request<'_>) -> Result<Answer<'static>> {
        let inode = request.inode;
        match request.operation {
            FileOperation::Lookup { name } => {
                let found = tree.directory(inode)?.get(name.as_bytes()).copied();
                match found {
                    Some(found) => Ok(Answer::Name(self.look_up(tree, found)?)),
                    None => Ok(Answer::NoName(self.valid)),
                }
            }
            FileOperation::Forget { lookups } => {
                tree.forget(inode, lookups);
                Ok(Answer::Done)
            }
            FileOperation::BatchForget(forgets) => {
                for (inode, lookups) in forgets.iter() {
                    tree.forget(inode, lookups);
                }
                Ok(Answer::Done)
            }
            FileOperation::GetAttributes { .. } => self.attributes(tree, inode),
            FileOperation::SetAttributes(set) => {
                tree.set(inode, &set)?;
                self.attributes(tree, inode)
            }
            FileOperation::MakeSymlink { name, target } => {
                let content = Content::Symlink(target.to_vec());
                Ok(Answer::Name(self.make(tree, inode, name, content, 0o777)?))
            }
            FileOperation::MakeDirectory { name, mode } => {
                let content = Content::Directory(BTreeMap::new());
                Ok(Answer::Name(self.make(tree, inode, name, content, mode)?))
            }
            FileOperation::Create { name, mode, .. } => {
                let content = Content::File(Vec::new());
                let named = self.make(tree, inode, name, content, mode)?;
                let opened = Opened::new(FileHandle(named.attributes.inode.0));
                Ok(Answer::Created(named, opened))
            }
            FileOperation::Unlink { name } => {
                let gone = tree.directory(inode)?.get(name.as_bytes()).copied();
                if matches!(
                    tree.node(gone.ok_or(Errno::NOENT)?)?.content,
                    Content::Directory(_)
                ) {
                    return Err(Errno::ISDIR);
                }
                tree.remove(inode, name)?;
                Ok(Answer::Done)
            }
            FileOperation::RemoveDirectory { name } => {
                let gone = tree.directory(inode)?.get(name.as_bytes()).copied();
                if !tree.directory(Inode(gone.ok_or(Errno::NOENT)?))?.is_empty() {
                    return Err(Errno::NOTEMPTY);
                }
                tree.remove(inode, name)?;
                Ok(Answer::Done)
            }
            FileOperation::Rename {
                name,
                new_parent,
                new_name,
                mode,
            } => {
                tree.rename(inode, name, new_parent, new_name, mode)?;
                Ok(Answer::Done)
            }
            FileOperation::Link { existing, new_name } => {
                tree.add(inode, new_name.as_bytes(), existing.0)?;
                tree.node(existing.0)?.links += 1;
                Ok(Answer::Name(self.look_up(tree, existing.0)?))
            }
            // Closing must not wait: this process also serves, and starts those that do.
            FileOperation::Open { .. } => Ok(Answer::Opened(Opened {
                keep_cache: true,
                no_flush: true,
                ..Opened::new(FileHandle(inode.0))
            })),
            FileOperation::OpenDirectory { .. } => {
                Ok(Answer::Opened(Opened::new(FileHandle(inode.0))))
            }
            FileOperation::Write { offset, data, .. } => {
                let now = tree.now();
                let file = tree.file(inode)?;
                let offset = usize::try_from(offset).map_err(|_| Errno::FBIG)?;
                let end = offset + data.len();
                file.resize(file.len().max(end), 0);
                file[offset..end].copy_from_slice(data);
                tree.node(inode.0)?.mtime = now;
                Ok(Answer::Written(data.len() as u32))
            }
            FileOperation::FileSystemStatus => Ok(Answer::FileSystemStatus(FileSystemStatus {
                block_bytes: BLOCK_BYTES,
                blocks: BLOCKS,
                free_blocks: BLOCKS / 2,
                available_blocks: BLOCKS / 4,
                inodes: 1 << 20,
                free_inodes: (1 << 20) - tree.nodes.len() as u64,
            })),
            FileOperation::Release { .. }
            | FileOperation::ReleaseDirectory { .. }
            | FileOperation::Sync { .. }
            | FileOperation::SyncDirectory { .. }
            | FileOperation::Flush { .. }
            | FileOperation::Interrupt { .. }
            | FileOperation::Destroy => Ok(Answer::Done),
            FileOperation::Read { .. }
            | FileOperation::ReadLink
            | FileOperation::ReadDirectory { .. }
            | FileOperation::ReadDirectoryPlus { .. }
            | FileOperation::MakeNode { .. }
            | FileOperation::Access { .. }
            | FileOperation::Allocate { .. }
            | FileOperation::Seek { .. }
            | FileOperation::CopyRange(_)
            | FileOperation::SetXattr { .. }
            | FileOperation::GetXattr { .. }
            | FileOperation::ListXattr { .. }
            | FileOperation::RemoveXattr { .. } => Err(Errno::NOSYS),
        }
    }

    fn make(
        &self,
        tree: &mut Tree,
        parent: Inode,
        name: FileName<'_>,
        content: Content,
        mode: u32,
    ) -> Result<NamedInode> {
        if tree.directory(parent)?.contains_key(name.as_bytes()) {
            return Err(Errno::EXIST);
        }
        let inode = tree.make(content, mode & 0o7777);
        tree.add(parent, name.as_bytes(), inode)?;
        self.look_up(tree, inode)
    }

    fn attributes(&self, tree: &Tree, inode: Inode) -> Result<Answer<'static>> {
        Ok(Answer::Attributes(tree.attributes(inode.0)?, self.valid))
    }

    fn named(&self, tree: &Tree, inode: u64) -> Result<NamedInode> {
        Ok(NamedInode {
            attributes: tree.attributes(inode)?,
            generation: 0,
            name_valid: self.valid,
            attributes_valid: self.valid,
        })
    }

    fn look_up(&self, tree: &mut Tree, inode: u64) -> Result<NamedInode> {
        tree.node(inode)?.lookups += 1;
        self.named(tree, inode)
    }

    fn list(
        &self,
        tree: &mut Tree,
        inode: Inode,
        offset: u64,
        size: u32,
        is_plus: bool,
    ) -> Result<DirectoryList> {
        let entries: Vec<_> = tree.directory(inode)?.clone().into_iter().collect();
        let dots = [FileName::CURRENT, FileName::PARENT].map(|dot| (dot, inode.0));
        let named = entries
            .iter()
            .map(|(name, inode)| (FileName::new(name).unwrap(), *inode));
        let mut list = DirectoryList::new(size);
        for (next, (name, inode)) in (1..)
            .zip(dots.into_iter().chain(named))
            .skip(offset as usize)
        {
            let looked_up = self.named(tree, inode)?;
            let entry = DirectoryEntry {
                inode: Inode(inode),
                kind: looked_up.attributes.kind,
                next,
                name,
            };
            let is_dot = next <= 2;
            let fit = if is_plus {
                list.add_plus(&entry, (!is_dot).then_some(&looked_up))
            } else {
                list.add(&entry)
            };
            match fit {
                Fit::Full => break,
                Fit::Added if is_plus && !is_dot => tree.node(inode)?.lookups += 1,
                Fit::Added => {}
            }
        }
        Ok(list)
    }
}
