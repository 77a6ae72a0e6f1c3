//! The judge: a tree in memory that nobody shares, where everything is done at once. Links, usage and what is gone are
//! counted anew each time instead of being kept.

mod files;

use std::collections::BTreeMap;

use metadata::{
    EntryName, Errno, FileLayout, Given, HandleId, InodeAttributes, InodeKind, InodeNumber,
    ListedName, MetaAnswer, MetaOperation, MetaReply, MountId, NewNode, OpenedFile, RenameRule,
    VolumeSettings, VolumeUsage, VolumeView, WantedHandle,
};

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) kind: InodeKind,
    mode: u32,
    uid: u32,
    gid: u32,
    device: u32,
    pub(crate) size: u64,
    target: Vec<u8>,
    atime_ns: i64,
    mtime_ns: i64,
    modified_ns: i64,
    ctime_ns: i64,
    /// Of a directory's entries.
    entries_ctime_ns: i64,
    pub(crate) volume: InodeNumber,
    parent: Option<InodeNumber>,
    pub(crate) children: BTreeMap<EntryName, InodeNumber>,
    layout: Option<FileLayout>,
    pub(crate) reach: u64,
    cut: u64,
    trimmer: Option<MountId>,
    pub(crate) handles: BTreeMap<HandleId, Option<u64>>,
    /// The size that was set last, where writes are counted from.
    pub(crate) set_size: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Oracle {
    pub(crate) nodes: BTreeMap<InodeNumber, Node>,
    pub(crate) volumes: BTreeMap<String, (InodeNumber, VolumeSettings, FileLayout)>,
    ended: Vec<MountId>,
}

impl Oracle {
    /// Does an operation of a mount. Answers to those that have ids are the caller's business.
    pub(crate) fn apply(
        &mut self,
        mount: MountId,
        operation: &MetaOperation,
        given: &Given,
    ) -> MetaAnswer {
        let answer = self.run(mount, operation, given);
        self.forget();
        answer
    }

    pub(crate) fn has_ended(&self, mount: MountId) -> bool {
        self.ended.contains(&mount)
    }

    fn run(&mut self, mount: MountId, operation: &MetaOperation, given: &Given) -> MetaAnswer {
        match operation {
            MetaOperation::Lookup { parent, name } => {
                let found = self.child(*parent, name).ok_or(Errno::NotFound)?;
                self.attributes(found).map(MetaReply::Attributes)
            }
            MetaOperation::GetAttributes { inode } => {
                self.attributes(*inode).map(MetaReply::Attributes)
            }
            MetaOperation::SetAttributes { inode, change } => {
                self.set(mount, *inode, change, given.now_ns)
            }
            MetaOperation::Make {
                parent,
                name,
                node,
                mode,
                uid,
                gid,
                open,
            } => self.make(
                mount,
                (*parent, name),
                node,
                [*mode, *uid, *gid],
                open.as_ref(),
                given,
            ),
            MetaOperation::ReadLink { inode } => match self.node(*inode)? {
                node if node.kind == InodeKind::Symlink => {
                    Ok(MetaReply::Target(node.target.clone()))
                }
                _ => Err(Errno::Invalid),
            },
            MetaOperation::Link {
                inode,
                parent,
                name,
            } => self.link(*inode, *parent, name, given.now_ns),
            MetaOperation::Unlink { parent, name } => self.unlink(*parent, name, given.now_ns),
            MetaOperation::RemoveDirectory { parent, name } => {
                let found = self.child(*parent, name).ok_or(Errno::NotFound)?;
                self.is_empty_directory(found)?;
                self.take(*parent, name, given.now_ns);
                self.nodes.remove(&found);
                Ok(MetaReply::Done)
            }
            MetaOperation::Rename {
                parent,
                name,
                new_parent,
                new_name,
                rule,
            } => self.rename(
                (*parent, name),
                (*new_parent, new_name),
                *rule,
                given.now_ns,
            ),
            MetaOperation::ReadDirectory {
                inode,
                after,
                limit,
                with_attributes,
            } => self.list(*inode, after.as_ref(), *limit as usize, *with_attributes),
            MetaOperation::Open { inode, open } => self.open(mount, *inode, open, given.now_ns),
            MetaOperation::Extend {
                inode,
                handle,
                cut,
                bound,
            } => {
                let old = self.bound(*inode, *handle)?.ok_or(Errno::BadHandle)?;
                let node = self.nodes.get_mut(inode).ok_or(Errno::Stale)?;
                node.is_writable(*cut, old)?;
                node.handles.insert(*handle, Some(old.max(*bound)));
                node.reach = node.reach.max(*bound);
                Ok(MetaReply::Extent {
                    size: node.size,
                    cut: node.cut,
                    bound: Some(old.max(*bound)),
                })
            }
            MetaOperation::Sync {
                inode,
                handle,
                written,
            } => {
                let bound = self.bound(*inode, *handle)?;
                let node = self.take_in(*inode, bound, written)?;
                Ok(MetaReply::Extent {
                    size: node.size,
                    cut: node.cut,
                    bound,
                })
            }
            MetaOperation::Close {
                inode,
                handle,
                written,
            } => {
                let Ok(bound) = self.bound(*inode, *handle) else {
                    return Ok(MetaReply::Done);
                };
                if let Some(written) = written {
                    self.take_in(*inode, bound, written)?;
                }
                let node = self.nodes.get_mut(inode).ok_or(Errno::Stale)?;
                node.handles.remove(handle);
                Ok(MetaReply::Done)
            }
            MetaOperation::Trimmed { inode, mount, cut } => {
                if let Some(node) = self.nodes.get_mut(inode)
                    && (node.trimmer, node.cut) == (Some(*mount), *cut)
                {
                    node.trimmer = None;
                }
                Ok(MetaReply::Done)
            }
            MetaOperation::TakeTrim { inode, from, to } => {
                if self.has_ended(*to) {
                    return Err(Errno::Ended);
                }
                let is_left = self.has_ended(*from);
                let Some(node) = self.nodes.get_mut(inode) else {
                    return Ok(MetaReply::Trim(None));
                };
                if node.trimmer == Some(*from) && is_left {
                    node.trimmer = Some(*to);
                }
                let trim = node.trim().filter(|_| node.trimmer == Some(*to));
                Ok(MetaReply::Trim(trim))
            }
            MetaOperation::EndMount { mount } => {
                self.ended.push(*mount);
                Ok(MetaReply::More(true))
            }
            MetaOperation::MakeVolume {
                name,
                settings,
                layout,
                ..
            } => {
                self.make_volume(name, settings, layout, given);
                self.volume(name)
            }
            MetaOperation::DeleteVolume { name } => {
                let Some((root, ..)) = self.volumes.remove(name) else {
                    return Ok(MetaReply::Done);
                };
                let mut of = self
                    .nodes
                    .iter_mut()
                    .filter(|(_, node)| node.volume == root);
                of.by_ref().for_each(|(_, node)| node.children.clear());
                self.nodes.remove(&root);
                Ok(MetaReply::Done)
            }
            MetaOperation::GetVolume { name } => self.volume(name),
            MetaOperation::ListHandles { .. }
            | MetaOperation::NextMount { .. }
            | MetaOperation::GetPromised => {
                panic!("{operation:?} is not judged")
            }
        }
    }

    /// What has neither names nor handles is gone.
    fn forget(&mut self) {
        loop {
            let names = self.names();
            let is_there = |inode: &InodeNumber, node: &Node| {
                let is_open = !node.handles.is_empty() || node.trimmer.is_some();
                names.contains_key(inode) || is_open
            };
            let before = self.nodes.len();
            self.nodes.retain(|inode, node| is_there(inode, node));
            if self.nodes.len() == before {
                return;
            }
        }
    }

    /// How many names each inode has.
    fn names(&self) -> BTreeMap<InodeNumber, u32> {
        let mut names = BTreeMap::new();
        let roots = self.volumes.values().map(|(root, ..)| *root);
        let children = self.nodes.values().flat_map(|node| node.children.values());
        for inode in roots.chain(children.copied()) {
            *names.entry(inode).or_default() += 1;
        }
        names
    }

    pub(crate) fn node(&self, inode: InodeNumber) -> Result<&Node, Errno> {
        self.nodes.get(&inode).ok_or(Errno::Stale)
    }

    fn child(&self, parent: InodeNumber, name: &EntryName) -> Option<InodeNumber> {
        self.nodes.get(&parent)?.children.get(name).copied()
    }

    fn directory(&self, inode: InodeNumber) -> Result<&Node, Errno> {
        match self.node(inode)? {
            node if node.kind == InodeKind::Directory => Ok(node),
            _ => Err(Errno::NotDirectory),
        }
    }

    fn is_empty_directory(&self, inode: InodeNumber) -> Result<(), Errno> {
        match self.directory(inode)?.children.is_empty() {
            true => Ok(()),
            false => Err(Errno::NotEmpty),
        }
    }

    pub(crate) fn attributes(&self, inode: InodeNumber) -> Result<InodeAttributes, Errno> {
        let node = self.node(inode)?;
        let is_directory = |child: &&InodeNumber| {
            self.nodes.get(child).map(|node| node.kind) == Some(InodeKind::Directory)
        };
        let links = match node.kind {
            InodeKind::Directory => 2 + node.children.values().filter(is_directory).count() as u32,
            _ => self.names().get(&inode).copied().unwrap_or(0),
        };
        Ok(InodeAttributes {
            inode,
            kind: node.kind,
            mode: node.mode,
            uid: node.uid,
            gid: node.gid,
            links,
            device: node.device,
            size: node.size,
            atime_ns: node.atime_ns,
            mtime_ns: node.mtime_ns,
            ctime_ns: node.ctime_ns.max(node.entries_ctime_ns),
            parent: node.parent,
            layout: node.layout,
            cut: node.cut,
        })
    }

    fn touch(&mut self, directory: InodeNumber, now_ns: i64) {
        let node = self.nodes.get_mut(&directory).unwrap();
        node.mtime_ns = now_ns;
        node.entries_ctime_ns = now_ns;
    }

    fn changed(&mut self, inode: InodeNumber, now_ns: i64) {
        let node = self.nodes.get_mut(&inode).unwrap();
        node.ctime_ns = node.ctime_ns.max(now_ns);
    }

    fn take(&mut self, parent: InodeNumber, name: &EntryName, now_ns: i64) {
        self.nodes.get_mut(&parent).unwrap().children.remove(name);
        self.touch(parent, now_ns);
    }

    fn put(&mut self, parent: InodeNumber, name: &EntryName, inode: InodeNumber, now_ns: i64) {
        let directory = self.nodes.get_mut(&parent).unwrap();
        directory.children.insert(name.clone(), inode);
        self.touch(parent, now_ns);
    }

    fn make(
        &mut self,
        mount: MountId,
        (parent, name): (InodeNumber, &EntryName),
        new: &NewNode,
        [mode, uid, gid]: [u32; 3],
        open: Option<&WantedHandle>,
        given: &Given,
    ) -> MetaAnswer {
        let directory = self.directory(parent)?.clone();
        if let Some(found) = self.child(parent, name) {
            let Some(open) = open.filter(|open| !open.is_exclusive) else {
                return Err(Errno::Exists);
            };
            return match self.node(found)?.kind {
                InodeKind::File | InodeKind::Directory => {
                    self.open(mount, found, open, given.now_ns)
                }
                _ => Err(Errno::Stale),
            };
        }
        let mut node = Node::new(given.now_ns, directory.volume);
        (node.mode, node.uid, node.gid) = (mode, uid, gid);
        match new {
            NewNode::File => {}
            NewNode::Directory => node.kind = InodeKind::Directory,
            NewNode::Symlink { target } => {
                node.kind = InodeKind::Symlink;
                node.size = target.len() as u64;
                node.target = target.clone();
            }
            NewNode::Fifo => node.kind = InodeKind::Fifo,
            NewNode::Socket => node.kind = InodeKind::Socket,
            NewNode::CharacterDevice { device } => {
                (node.kind, node.device) = (InodeKind::CharacterDevice, *device);
            }
            NewNode::BlockDevice { device } => {
                (node.kind, node.device) = (InodeKind::BlockDevice, *device);
            }
        }
        if directory.mode & 0o2000 != 0 {
            node.gid = directory.gid;
            node.mode |= match node.kind {
                InodeKind::Directory => 0o2000,
                _ => 0,
            };
        }
        let inode = given.fresh;
        match node.kind {
            InodeKind::Directory => {
                node.parent = Some(parent);
                node.layout = directory.layout;
            }
            InodeKind::File => {
                let seed = inode.0;
                node.layout = directory.layout.map(|layout| FileLayout { seed, ..layout });
            }
            _ => {}
        }
        if let Some(open) = open {
            node.handles.insert(open.handle, open.bound);
            node.reach = open.bound.unwrap_or(0);
        }
        self.nodes.insert(inode, node);
        self.put(parent, name, inode, given.now_ns);
        let attributes = self.attributes(inode)?;
        Ok(match open {
            None => MetaReply::Attributes(attributes),
            Some(open) => MetaReply::Opened(OpenedFile {
                attributes,
                bound: open.bound,
                trim: None,
                is_new: true,
            }),
        })
    }

    fn link(
        &mut self,
        inode: InodeNumber,
        parent: InodeNumber,
        name: &EntryName,
        now_ns: i64,
    ) -> MetaAnswer {
        self.directory(parent)?;
        if self.node(inode)?.kind == InodeKind::Directory {
            return Err(Errno::NotPermitted);
        }
        if !self.names().contains_key(&inode) {
            return Err(Errno::NotFound);
        }
        if self.child(parent, name).is_some() {
            return Err(Errno::Exists);
        }
        self.put(parent, name, inode, now_ns);
        self.changed(inode, now_ns);
        self.attributes(inode).map(MetaReply::Attributes)
    }

    fn unlink(&mut self, parent: InodeNumber, name: &EntryName, now_ns: i64) -> MetaAnswer {
        let found = self.child(parent, name).ok_or(Errno::NotFound)?;
        if self.node(found)?.kind == InodeKind::Directory {
            return Err(Errno::IsDirectory);
        }
        self.take(parent, name, now_ns);
        self.changed(found, now_ns);
        Ok(MetaReply::Done)
    }

    fn rename(
        &mut self,
        from: (InodeNumber, &EntryName),
        to: (InodeNumber, &EntryName),
        rule: RenameRule,
        now_ns: i64,
    ) -> MetaAnswer {
        self.directory(from.0)?;
        self.directory(to.0)?;
        let moved = self.child(from.0, from.1).ok_or(Errno::NotFound)?;
        let other = self.child(to.0, to.1);
        match (rule, other) {
            (RenameRule::NoReplace, Some(_)) => return Err(Errno::Exists),
            (RenameRule::Exchange, None) => return Err(Errno::NotFound),
            (_, Some(other)) if other == moved => return Ok(MetaReply::Done),
            _ => {}
        }
        if self.is_above(moved, to.0) {
            return Err(Errno::Invalid);
        }
        let is_directory = |inode| self.nodes[&inode].kind == InodeKind::Directory;
        match (rule, other) {
            (RenameRule::Exchange, Some(other)) if self.is_above(other, from.0) => {
                return Err(Errno::Invalid);
            }
            (RenameRule::Exchange, _) | (_, None) => {}
            (_, Some(other)) => match (is_directory(moved), is_directory(other)) {
                (true, false) => return Err(Errno::NotDirectory),
                (false, true) => return Err(Errno::IsDirectory),
                (true, true) => self.is_empty_directory(other)?,
                (false, false) => {}
            },
        }
        self.take(from.0, from.1, now_ns);
        self.put(to.0, to.1, moved, now_ns);
        self.moved(moved, to.0, now_ns);
        if let Some(other) = other {
            self.changed(other, now_ns);
            if rule == RenameRule::Exchange {
                self.put(from.0, from.1, other, now_ns);
                self.moved(other, from.0, now_ns);
            }
        }
        Ok(MetaReply::Done)
    }

    fn moved(&mut self, inode: InodeNumber, to: InodeNumber, now_ns: i64) {
        self.changed(inode, now_ns);
        let node = self.nodes.get_mut(&inode).unwrap();
        node.parent = node.parent.map(|_| to);
    }

    /// Whether a directory is another one, or above it.
    pub(crate) fn is_above(&self, directory: InodeNumber, mut other: InodeNumber) -> bool {
        loop {
            if other == directory {
                return true;
            }
            match self.nodes[&other].parent {
                Some(parent) if parent != other => other = parent,
                _ => return false,
            }
        }
    }

    fn list(
        &self,
        inode: InodeNumber,
        after: Option<&EntryName>,
        limit: usize,
        with_attributes: bool,
    ) -> MetaAnswer {
        let children = &self.directory(inode)?.children;
        let behind = children
            .iter()
            .filter(|(name, _)| after.is_none_or(|after| *name > after));
        let listed = |(name, inode): (&EntryName, &InodeNumber)| {
            let attributes = self.attributes(*inode)?;
            Ok(ListedName {
                name: name.clone(),
                inode: *inode,
                kind: attributes.kind,
                attributes: Some(attributes).filter(|_| with_attributes),
            })
        };
        let names: Result<_, _> = behind.take(limit).map(listed).collect();
        Ok(MetaReply::Names(names?))
    }

    fn make_volume(
        &mut self,
        name: &str,
        settings: &VolumeSettings,
        layout: &FileLayout,
        given: &Given,
    ) {
        if self.volumes.contains_key(name) {
            return;
        }
        let mut root = Node::new(given.now_ns, given.fresh);
        root.kind = InodeKind::Directory;
        (root.mode, root.uid, root.gid) = (settings.mode, settings.uid, settings.gid);
        root.parent = Some(given.fresh);
        root.layout = Some(*layout);
        self.nodes.insert(given.fresh, root);
        let volume = (given.fresh, *settings, *layout);
        self.volumes.insert(name.to_owned(), volume);
    }

    fn volume(&self, name: &str) -> MetaAnswer {
        let (root, settings, layout) = self.volumes.get(name).ok_or(Errno::NotFound)?;
        let of = self.nodes.values().filter(|node| node.volume == *root);
        let bytes = of.clone().filter(|node| node.kind == InodeKind::File);
        Ok(MetaReply::Volume(VolumeView {
            root: *root,
            settings: *settings,
            layout: *layout,
            usage: VolumeUsage {
                bytes: bytes.map(|node| node.size.cast_signed()).sum(),
                inodes: of.count() as i64 - 1,
            },
        }))
    }
}
