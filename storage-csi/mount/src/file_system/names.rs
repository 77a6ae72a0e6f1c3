//! Requests about names and attributes.

use std::sync::Arc;

use fuse::Errno;
use fuse::answer::{Answer, FileKind, Opened};
use fuse::directory::{DirectoryEntry, DirectoryList, Fit};
use fuse::request::{FileHandle, FileName, FileOperation, RenameMode, Request, SetAttributes};
use fuse::serve::Replier;
use metadata::{
    AttributeChange, EntryName, InodeAttributes, InodeNumber, ListedName,
    MOST_LISTED_WITH_ATTRIBUTES, NewNode, RenameRule,
};
use storage_rpc::NodeOwner;

use super::{Failed, FileSystem, Late, Outcome, answer, now_ns};
use crate::attributes::{kind, set_time, valid};
use crate::open_files::Listing;

/// Bits of a mode that say what an inode is, and their values.
const KIND_BITS: u32 = 0o170_000;
const FIFO: u32 = 0o010_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const BLOCK_DEVICE: u32 = 0o060_000;
const REGULAR: u32 = 0o100_000;
const SOCKET: u32 = 0o140_000;
/// The others of a mode.
const MODE_BITS: u32 = 0o7777;
/// Places in a list of a directory: `.` and `..`, then its entries.
const CURRENT: u64 = 1;
const PARENT: u64 = 2;

impl FileSystem {
    /// A request whose answer is a name, attributes, or nothing.
    pub(super) fn handle_name(self: &Arc<Self>, request: &Request<'_>, replier: Replier) {
        match self.asked(request) {
            Ok(asked) => self.spawn(replier, move |fs, replier| async move {
                fs.answer_name(asked, replier).await
            }),
            Err(errno) => answer(replier, &Answer::Error(errno)),
        }
    }

    /// What is asked, with names of its own: those of the request are the kernel's only until it is left.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the others are not about names"
    )]
    fn asked(&self, request: &Request<'_>) -> Result<Asked, Errno> {
        let inode = self.numbers.number(request.inode);
        let owner = |mode: u32| NodeOwner {
            mode: mode & MODE_BITS,
            uid: request.caller.uid,
            gid: request.caller.gid,
        };
        let place = |name| Ok::<_, Errno>((inode, entry_name(name)?));
        Ok(match request.operation {
            FileOperation::Lookup { name } => Asked::Lookup(place(name)?),
            FileOperation::GetAttributes { .. } => Asked::Attributes(inode),
            FileOperation::SetAttributes(change) => Asked::Change(inode, change),
            FileOperation::ReadLink => Asked::Target(inode),
            FileOperation::MakeSymlink { name, target } => {
                let target = target.to_vec();
                Asked::Make(place(name)?, NewNode::Symlink { target }, owner(0o777))
            }
            FileOperation::MakeNode { name, mode, device } => {
                Asked::Make(place(name)?, new_node(mode, device)?, owner(mode))
            }
            FileOperation::MakeDirectory { name, mode } => {
                Asked::Make(place(name)?, NewNode::Directory, owner(mode))
            }
            FileOperation::Create {
                name, flags, mode, ..
            } => Asked::Create(place(name)?, owner(mode), flags),
            FileOperation::Unlink { name } => Asked::Unlink(place(name)?),
            FileOperation::RemoveDirectory { name } => Asked::RemoveDirectory(place(name)?),
            FileOperation::Rename {
                name,
                new_parent,
                new_name,
                mode,
            } => {
                let to = (self.numbers.number(new_parent), entry_name(new_name)?);
                let rule = match mode {
                    RenameMode::Replace => RenameRule::Replace,
                    RenameMode::NoReplace => RenameRule::NoReplace,
                    RenameMode::Exchange => RenameRule::Exchange,
                };
                Asked::Rename(place(name)?, to, rule)
            }
            FileOperation::Link { existing, new_name } => {
                Asked::Link(self.numbers.number(existing), place(new_name)?)
            }
            _ => return Err(Errno::NOSYS),
        })
    }

    async fn answer_name(&self, asked: Asked, replier: Late) -> Outcome<()> {
        let names = &self.names;
        match asked {
            Asked::Attributes(inode) => return self.get_attributes(inode, replier).await,
            Asked::Change(inode, change) => {
                return self.set_attributes(inode, change, replier).await;
            }
            Asked::Create(place, owner, flags) => {
                return self.create(place, owner, flags, replier).await;
            }
            Asked::Lookup((parent, name)) => {
                let found = names.lookup(parent, name).await?;
                self.answer_named(found, replier);
            }
            Asked::Make((parent, name), node, owner) => {
                let made = names.make(parent, name, node, owner).await?;
                self.answer_named(made, replier);
            }
            Asked::Link(inode, (parent, name)) => {
                let linked = names.link(inode, parent, name).await?;
                self.answer_named(linked, replier);
            }
            Asked::Target(inode) => {
                let target = names.read_link(inode).await?;
                answer(replier, &Answer::Data(&target));
            }
            Asked::Unlink((parent, name)) => {
                names.unlink(parent, name).await?;
                answer(replier, &Answer::Done);
            }
            Asked::RemoveDirectory((parent, name)) => {
                names.remove_directory(parent, name).await?;
                answer(replier, &Answer::Done);
            }
            Asked::Rename(from, to, rule) => {
                names.rename(from, to, rule).await?;
                answer(replier, &Answer::Done);
            }
        }
        Ok(())
    }

    fn answer_named(&self, attributes: InodeAttributes, replier: Late) {
        let named = self.numbers.named(&self.seen_here(attributes));
        answer(replier, &Answer::Name(named));
    }

    /// With what programs of this mount have written and not yet closed.
    fn seen_here(&self, mut attributes: InodeAttributes) -> InodeAttributes {
        attributes.size = self.with_written(attributes.size, attributes.inode, attributes.cut);
        attributes
    }

    pub(super) async fn get_attributes(&self, inode: InodeNumber, replier: Late) -> Outcome<()> {
        let attributes = self.names.get_attributes(inode).await?;
        self.answer_attributes(attributes, replier);
        Ok(())
    }

    fn answer_attributes(&self, attributes: InodeAttributes, replier: Late) {
        if attributes.inode == self.numbers.root {
            self.remembered().root = Some(attributes.clone());
        }
        let valid = valid(attributes.kind);
        let attributes = self.numbers.attributes(&self.seen_here(attributes));
        answer(replier, &Answer::Attributes(attributes, valid));
    }

    async fn set_attributes(
        &self,
        inode: InodeNumber,
        change: SetAttributes,
        replier: Late,
    ) -> Outcome<()> {
        let now_ns = now_ns();
        if change.size.is_some() {
            self.say_all(inode).await?;
        }
        let change = AttributeChange {
            mode: change.mode.map(|mode| mode & MODE_BITS),
            uid: change.uid,
            gid: change.gid,
            size: change.size,
            atime_ns: change.atime.map(|time| set_time(time, now_ns)),
            mtime_ns: change.mtime.map(|time| set_time(time, now_ns)),
        };
        let (attributes, trim) = self.names.set_attributes(inode, change).await?;
        if let Some(trim) = trim {
            self.trim(inode, &trim).await?;
        }
        if change.size.is_some() {
            for file in self.open.of(inode) {
                file.progress().size = attributes.size;
            }
        }
        self.answer_attributes(attributes, replier);
        Ok(())
    }

    async fn create(
        &self,
        (parent, name): Place,
        owner: NodeOwner,
        flags: u32,
        replier: Late,
    ) -> Outcome<()> {
        let open = self.wanted_handle(flags);
        let created = self.names.create(parent, name, owner, open).await?;
        let opened = self.opened(flags, &open, &created).await?;
        let named = self.numbers.named(&self.seen_here(created.attributes));
        answer(replier, &Answer::Created(named, opened));
        Ok(())
    }

    pub(super) fn open_directory(&self, replier: Replier) {
        let handle = self.open.open_directory();
        answer(replier, &Answer::Opened(Opened::new(handle)));
    }

    pub(super) async fn read_directory(
        &self,
        (inode, handle): (InodeNumber, FileHandle),
        offset: u64,
        size: u32,
        with_attributes: bool,
        replier: Late,
    ) -> Outcome<()> {
        let directory = self
            .open
            .directory(handle)
            .ok_or(Failed::Errno(Errno::BADF))?;
        let mut listing = directory.listing.lock().await;
        if offset == 0 {
            *listing = Listing::default();
        }
        let mut list = DirectoryList::new(size);
        let mut at = offset;
        while at < PARENT {
            let entry = DirectoryEntry {
                inode: self.numbers.inode(inode),
                kind: FileKind::Directory,
                next: at + 1,
                name: match at + 1 {
                    CURRENT => FileName::CURRENT,
                    _ => FileName::PARENT,
                },
            };
            if self.add(&mut list, &entry, None, with_attributes) == Fit::Full {
                answer(replier, &list.answer());
                return Ok(());
            }
            at += 1;
        }
        loop {
            let place = (at - PARENT) as usize;
            while place >= listing.names.len() && !listing.is_whole {
                self.list_more(inode, &mut listing).await?;
            }
            let Some(listed) = listing.names.get(place) else {
                break;
            };
            let Ok(name) = FileName::new(listed.name.as_bytes()) else {
                at += 1;
                continue;
            };
            let entry = DirectoryEntry {
                inode: self.numbers.inode(listed.inode),
                kind: kind(listed.kind),
                next: at + 1,
                name,
            };
            if self.add(&mut list, &entry, Some(listed), with_attributes) == Fit::Full {
                break;
            }
            at += 1;
        }
        answer(replier, &list.answer());
        Ok(())
    }

    fn add(
        &self,
        list: &mut DirectoryList,
        entry: &DirectoryEntry<'_>,
        listed: Option<&ListedName>,
        with_attributes: bool,
    ) -> Fit {
        if !with_attributes {
            return list.add(entry);
        }
        let attributes = listed.and_then(|listed| listed.attributes.clone());
        let named = attributes.map(|of| self.numbers.named(&self.seen_here(of)));
        list.add_plus(entry, named.as_ref())
    }

    async fn list_more(&self, inode: InodeNumber, listing: &mut Listing) -> Outcome<()> {
        let limit = MOST_LISTED_WITH_ATTRIBUTES;
        let after = listing.names.last().map(|listed| listed.name.clone());
        // Some hundreds.
        let names = self
            .names
            .read_directory(inode, after, limit as u32, true)
            .await?;
        listing.is_whole = names.len() < limit;
        listing.names.extend(names);
        Ok(())
    }
}

/// A name in a directory.
type Place = (InodeNumber, EntryName);

/// What a request about names asks.
enum Asked {
    Lookup(Place),
    Attributes(InodeNumber),
    Change(InodeNumber, SetAttributes),
    Target(InodeNumber),
    Make(Place, NewNode, NodeOwner),
    Create(Place, NodeOwner, u32),
    Unlink(Place),
    RemoveDirectory(Place),
    Rename(Place, Place, RenameRule),
    Link(InodeNumber, Place),
}

fn new_node(mode: u32, device: u32) -> Result<NewNode, Errno> {
    Ok(match mode & KIND_BITS {
        0 | REGULAR => NewNode::File,
        FIFO => NewNode::Fifo,
        SOCKET => NewNode::Socket,
        CHARACTER_DEVICE => NewNode::CharacterDevice { device },
        BLOCK_DEVICE => NewNode::BlockDevice { device },
        _ => return Err(Errno::INVAL),
    })
}

fn entry_name(name: FileName<'_>) -> Result<EntryName, Errno> {
    EntryName::new(name.as_bytes()).ok_or(Errno::INVAL)
}
