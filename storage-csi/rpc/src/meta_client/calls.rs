//! The operations as calls, each with the reply that it has. What they mean is described at [`MetaOperation`].

use metadata::{
    AttributeChange, EntryName, FileLayout, HandleId, InodeAttributes, InodeNumber, ListedName,
    MetaOperation, MetaReply, NewNode, OpenedFile, RenameRule, Trim, VolumeSettings, VolumeView,
    WantedHandle, Written,
};

use super::{MetaClient, MetaError};

/// Mode, with the umask applied, and owner of what is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are named as those of stat(2)")]
pub struct NodeOwner {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// How long a file is, and how far its handle may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// Bytes.
    pub size: u64,
    /// From now on to be said with what is written.
    pub cut: u64,
    /// None if the handle only reads.
    pub bound: Option<u64>,
}

type MetaResult<T> = Result<T, MetaError>;

fn other() -> MetaError {
    MetaError::Protocol("an operation has the reply of another one".to_owned())
}

#[expect(missing_docs, reason = "each is described at its operation")]
impl MetaClient {
    pub async fn lookup(
        &self,
        parent: InodeNumber,
        name: EntryName,
    ) -> MetaResult<InodeAttributes> {
        let operation = MetaOperation::Lookup { parent, name };
        let MetaReply::Attributes(attributes) = self.call(operation).await? else {
            return Err(other());
        };
        Ok(attributes)
    }

    pub async fn get_attributes(&self, inode: InodeNumber) -> MetaResult<InodeAttributes> {
        let operation = MetaOperation::GetAttributes { inode };
        let MetaReply::Attributes(attributes) = self.call(operation).await? else {
            return Err(other());
        };
        Ok(attributes)
    }

    pub async fn set_attributes(
        &self,
        inode: InodeNumber,
        change: AttributeChange,
    ) -> MetaResult<(InodeAttributes, Option<Trim>)> {
        let operation = MetaOperation::SetAttributes { inode, change };
        let MetaReply::Changed { attributes, trim } = self.call(operation).await? else {
            return Err(other());
        };
        Ok((attributes, trim))
    }

    pub async fn make(
        &self,
        parent: InodeNumber,
        name: EntryName,
        node: NewNode,
        owner: NodeOwner,
    ) -> MetaResult<InodeAttributes> {
        let operation = MetaOperation::Make {
            parent,
            name,
            node,
            mode: owner.mode,
            uid: owner.uid,
            gid: owner.gid,
            open: None,
        };
        let MetaReply::Attributes(attributes) = self.call(operation).await? else {
            return Err(other());
        };
        Ok(attributes)
    }

    pub async fn create(
        &self,
        parent: InodeNumber,
        name: EntryName,
        owner: NodeOwner,
        open: WantedHandle,
    ) -> MetaResult<OpenedFile> {
        let operation = MetaOperation::Make {
            parent,
            name,
            node: NewNode::File,
            mode: owner.mode,
            uid: owner.uid,
            gid: owner.gid,
            open: Some(open),
        };
        let MetaReply::Opened(opened) = self.call(operation).await? else {
            return Err(other());
        };
        Ok(opened)
    }

    pub async fn read_link(&self, inode: InodeNumber) -> MetaResult<Vec<u8>> {
        let operation = MetaOperation::ReadLink { inode };
        let MetaReply::Target(target) = self.call(operation).await? else {
            return Err(other());
        };
        Ok(target)
    }

    pub async fn link(
        &self,
        inode: InodeNumber,
        parent: InodeNumber,
        name: EntryName,
    ) -> MetaResult<InodeAttributes> {
        let operation = MetaOperation::Link {
            inode,
            parent,
            name,
        };
        let MetaReply::Attributes(attributes) = self.call(operation).await? else {
            return Err(other());
        };
        Ok(attributes)
    }

    pub async fn unlink(&self, parent: InodeNumber, name: EntryName) -> MetaResult<()> {
        let operation = MetaOperation::Unlink { parent, name };
        let MetaReply::Done = self.call(operation).await? else {
            return Err(other());
        };
        Ok(())
    }

    pub async fn remove_directory(&self, parent: InodeNumber, name: EntryName) -> MetaResult<()> {
        let operation = MetaOperation::RemoveDirectory { parent, name };
        let MetaReply::Done = self.call(operation).await? else {
            return Err(other());
        };
        Ok(())
    }

    pub async fn rename(
        &self,
        from: (InodeNumber, EntryName),
        to: (InodeNumber, EntryName),
        rule: RenameRule,
    ) -> MetaResult<()> {
        let operation = MetaOperation::Rename {
            parent: from.0,
            name: from.1,
            new_parent: to.0,
            new_name: to.1,
            rule,
        };
        let MetaReply::Done = self.call(operation).await? else {
            return Err(other());
        };
        Ok(())
    }

    pub async fn read_directory(
        &self,
        inode: InodeNumber,
        after: Option<EntryName>,
        limit: u32,
        with_attributes: bool,
    ) -> MetaResult<Vec<ListedName>> {
        let operation = MetaOperation::ReadDirectory {
            inode,
            after,
            limit,
            with_attributes,
        };
        let MetaReply::Names(names) = self.call(operation).await? else {
            return Err(other());
        };
        Ok(names)
    }

    pub async fn open(&self, inode: InodeNumber, open: WantedHandle) -> MetaResult<OpenedFile> {
        let operation = MetaOperation::Open { inode, open };
        let MetaReply::Opened(opened) = self.call(operation).await? else {
            return Err(other());
        };
        Ok(opened)
    }

    pub async fn extend(
        &self,
        inode: InodeNumber,
        handle: HandleId,
        cut: u64,
        bound: u64,
    ) -> MetaResult<FileExtent> {
        let operation = MetaOperation::Extend {
            inode,
            handle,
            cut,
            bound,
        };
        let MetaReply::Extent { size, cut, bound } = self.call(operation).await? else {
            return Err(other());
        };
        Ok(FileExtent { size, cut, bound })
    }

    pub async fn sync(
        &self,
        inode: InodeNumber,
        handle: HandleId,
        written: Written,
    ) -> MetaResult<FileExtent> {
        let operation = MetaOperation::Sync {
            inode,
            handle,
            written,
        };
        let MetaReply::Extent { size, cut, bound } = self.call(operation).await? else {
            return Err(other());
        };
        Ok(FileExtent { size, cut, bound })
    }

    pub async fn close(
        &self,
        inode: InodeNumber,
        handle: HandleId,
        written: Option<Written>,
    ) -> MetaResult<()> {
        let operation = MetaOperation::Close {
            inode,
            handle,
            written,
        };
        let MetaReply::Done = self.call(operation).await? else {
            return Err(other());
        };
        Ok(())
    }

    pub async fn trimmed(&self, inode: InodeNumber, cut: u64) -> MetaResult<()> {
        let operation = MetaOperation::Trimmed {
            inode,
            mount: self.mount(),
            cut,
        };
        let MetaReply::Done = self.call(operation).await? else {
            return Err(other());
        };
        Ok(())
    }

    pub async fn make_volume(
        &self,
        name: String,
        settings: VolumeSettings,
        layout: FileLayout,
        most_promised: u64,
    ) -> MetaResult<VolumeView> {
        let operation = MetaOperation::MakeVolume {
            name,
            settings,
            layout,
            most_promised,
        };
        let MetaReply::Volume(volume) = self.call(operation).await? else {
            return Err(other());
        };
        Ok(volume)
    }

    pub async fn delete_volume(&self, name: String) -> MetaResult<()> {
        let operation = MetaOperation::DeleteVolume { name };
        let MetaReply::Done = self.call(operation).await? else {
            return Err(other());
        };
        Ok(())
    }

    pub async fn get_volume(&self, name: String) -> MetaResult<VolumeView> {
        let operation = MetaOperation::GetVolume { name };
        let MetaReply::Volume(volume) = self.call(operation).await? else {
            return Err(other());
        };
        Ok(volume)
    }

    pub async fn get_promised(&self) -> MetaResult<u64> {
        let operation = MetaOperation::GetPromised;
        let MetaReply::Promised { bytes } = self.call(operation).await? else {
            return Err(other());
        };
        Ok(bytes)
    }
}
