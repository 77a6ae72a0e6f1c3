//! Attributes, open files and sizes.

use std::collections::BTreeMap;

use metadata::{
    AttributeChange, Errno, HandleId, InodeKind, InodeNumber, MetaAnswer, MetaReply, MountId,
    OpenedFile, Trim, WantedHandle, Written,
};

use super::{Node, Oracle};

impl Oracle {
    pub(super) fn set(
        &mut self,
        mount: MountId,
        inode: InodeNumber,
        change: &AttributeChange,
        now_ns: i64,
    ) -> MetaAnswer {
        let mut trim = None;
        self.node(inode)?;
        if let Some(size) = change.size {
            trim = self.truncate(mount, inode, size, now_ns)?;
        }
        let node = self.nodes.get_mut(&inode).unwrap();
        node.mode = change.mode.unwrap_or(node.mode);
        node.uid = change.uid.unwrap_or(node.uid);
        node.gid = change.gid.unwrap_or(node.gid);
        node.atime_ns = change.atime_ns.unwrap_or(node.atime_ns);
        node.ctime_ns = node.ctime_ns.max(now_ns);
        if let Some(mtime_ns) = change.mtime_ns {
            node.mtime_ns = mtime_ns;
            node.modified_ns = now_ns;
            node.entries_ctime_ns = now_ns;
        }
        let attributes = self.attributes(inode)?;
        Ok(MetaReply::Changed { attributes, trim })
    }

    pub(super) fn truncate(
        &mut self,
        mount: MountId,
        inode: InodeNumber,
        size: u64,
        now_ns: i64,
    ) -> Result<Option<Trim>, Errno> {
        let node = self.nodes.get_mut(&inode).ok_or(Errno::Stale)?;
        match node.kind {
            InodeKind::File => {}
            InodeKind::Directory => return Err(Errno::IsDirectory),
            _ => return Err(Errno::Invalid),
        }
        if node.trimmer.is_some() {
            return Err(Errno::Trimming);
        }
        (node.size, node.set_size) = (size, size);
        (node.mtime_ns, node.modified_ns) = (now_ns, now_ns);
        node.ctime_ns = node.ctime_ns.max(now_ns);
        if node.reach <= size {
            return Ok(None);
        }
        node.cut += 1;
        node.trimmer = Some(mount);
        Ok(node.trim())
    }

    pub(super) fn open(
        &mut self,
        mount: MountId,
        inode: InodeNumber,
        open: &WantedHandle,
        now_ns: i64,
    ) -> MetaAnswer {
        let node = self.node(inode)?;
        match node.kind {
            InodeKind::File => {}
            InodeKind::Directory => return Err(Errno::IsDirectory),
            _ => return Err(Errno::Invalid),
        }
        if node.trimmer.is_some() && open.bound.is_some() {
            return Err(Errno::Trimming);
        }
        let trim = match open.is_truncating {
            true => self.truncate(mount, inode, 0, now_ns)?,
            false => None,
        };
        let node = self.nodes.get_mut(&inode).unwrap();
        node.handles.insert(open.handle, open.bound);
        node.reach = node.reach.max(open.bound.unwrap_or(0));
        let attributes = self.attributes(inode)?;
        Ok(MetaReply::Opened(OpenedFile {
            attributes,
            bound: open.bound,
            trim,
            is_new: false,
        }))
    }

    pub(super) fn bound(&self, inode: InodeNumber, handle: HandleId) -> Result<Option<u64>, Errno> {
        let node = self.nodes.get(&inode).ok_or(Errno::BadHandle)?;
        node.handles.get(&handle).copied().ok_or(Errno::BadHandle)
    }

    pub(super) fn take_in(
        &mut self,
        inode: InodeNumber,
        bound: Option<u64>,
        written: &Written,
    ) -> Result<&Node, Errno> {
        let node = self.nodes.get_mut(&inode).ok_or(Errno::BadHandle)?;
        node.is_writable(written.cut, bound.ok_or(Errno::BadHandle)?)?;
        node.size = node.size.max(written.length);
        if written.mtime_ns >= node.modified_ns {
            (node.mtime_ns, node.modified_ns) = (written.mtime_ns, written.mtime_ns);
            node.ctime_ns = node.ctime_ns.max(written.mtime_ns);
        }
        Ok(node)
    }
}

impl Node {
    pub(super) fn new(now_ns: i64, volume: InodeNumber) -> Self {
        Self {
            kind: InodeKind::File,
            mode: 0,
            uid: 0,
            gid: 0,
            device: 0,
            size: 0,
            target: Vec::new(),
            atime_ns: now_ns,
            mtime_ns: now_ns,
            modified_ns: now_ns,
            ctime_ns: now_ns,
            entries_ctime_ns: now_ns,
            volume,
            parent: None,
            children: BTreeMap::new(),
            layout: None,
            reach: 0,
            cut: 0,
            trimmer: None,
            handles: BTreeMap::new(),
            set_size: 0,
        }
    }

    pub(super) fn trim(&self) -> Option<Trim> {
        Some(Trim {
            cut: self.cut,
            from: self.size,
            reach: self.reach,
            layout: self.layout?,
        })
    }

    pub(super) fn is_writable(&self, cut: u64, bound: u64) -> Result<(), Errno> {
        if self.trimmer.is_some() {
            return Err(Errno::Trimming);
        }
        if cut == self.cut {
            return Ok(());
        }
        Err(Errno::Cut {
            cut: self.cut,
            size: self.size,
            bound,
            layout: self.layout.ok_or(Errno::Invalid)?,
        })
    }
}
