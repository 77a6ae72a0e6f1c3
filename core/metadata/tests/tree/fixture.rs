//! One caller at a time: each operation is done at once. For tests of single operations.

use std::collections::BTreeMap;

use metadata::{
    AttributeChange, Collected, DEFAULT_CHUNK_BYTES, EntryName, Errno, FileLayout, Given, HandleId,
    InodeAttributes, InodeNumber, MOST_ROUNDS, MetaAnswer, MetaOperation, MetaReply, MetaRequest,
    MountId, NewNode, NextStep, OpenedFile, OperationId, RenameRule, Seen, VolumeSettings,
    VolumeUsage, WantedHandle, collect, collected, garbage, step,
};

use crate::store::{Snapshot, Store};

pub(crate) const LAYOUT: FileLayout = FileLayout {
    table: 1,
    chunk_bytes: DEFAULT_CHUNK_BYTES,
    stripe: 4,
    seed: 0,
};
pub(crate) const SETTINGS: VolumeSettings = VolumeSettings {
    bytes: 1 << 30,
    mode: 0o777,
    uid: 0,
    gid: 0,
};
pub(crate) const MOUNT: MountId = MountId(1);

/// A file system of one volume.
pub(crate) struct Tree {
    pub(crate) store: Store,
    pub(crate) root: InodeNumber,
    pub(crate) now_ns: i64,
    fresh: u64,
    numbers: BTreeMap<MountId, u64>,
}

pub(crate) fn name(name: &str) -> EntryName {
    EntryName::new(name.as_bytes()).unwrap()
}

pub(crate) fn handle(number: u64) -> HandleId {
    let mount = MOUNT;
    HandleId { mount, number }
}

pub(crate) fn reading(number: u64) -> WantedHandle {
    WantedHandle {
        handle: handle(number),
        bound: None,
        is_truncating: false,
        is_exclusive: false,
    }
}

pub(crate) fn writing(number: u64, bound: u64) -> WantedHandle {
    let bound = Some(bound);
    WantedHandle {
        bound,
        ..reading(number)
    }
}

/// Runs steps until there is something to commit, or the answer.
pub(crate) fn run<A>(snapshot: &mut Snapshot, next: impl Fn(&Seen) -> NextStep<A>) -> NextStep<A> {
    for _ in 0..MOST_ROUNDS {
        match next(&snapshot.seen) {
            NextStep::Read(reads) => snapshot.read(reads),
            done @ (NextStep::Commit(..) | NextStep::Answer(_)) => return done,
        }
    }
    panic!("reads for ever");
}

impl Tree {
    pub(crate) fn new() -> Self {
        let mut tree = Self {
            store: Store::default(),
            root: InodeNumber(0),
            now_ns: 1000,
            fresh: 1 << 16,
            numbers: BTreeMap::new(),
        };
        tree.root = tree.volume("one");
        tree
    }

    pub(crate) fn volume(&mut self, name: &str) -> InodeNumber {
        let made = self.call(MetaOperation::MakeVolume {
            name: name.to_owned(),
            settings: SETTINGS,
            layout: LAYOUT,
            most_promised: 1 << 40,
        });
        let Ok(MetaReply::Volume(volume)) = made else {
            panic!("{made:?}");
        };
        volume.root
    }

    /// At a new time each.
    pub(crate) fn given(&mut self) -> Given {
        self.now_ns += 1;
        self.fresh += 1;
        Given {
            now_ns: self.now_ns,
            fresh: InodeNumber(self.fresh),
        }
    }

    pub(crate) fn request(&mut self, mount: MountId, operation: MetaOperation) -> MetaRequest {
        let number = self.numbers.entry(mount).or_default();
        *number += 1;
        let number = *number;
        let id = operation
            .needs_id()
            .then_some(OperationId { mount, number });
        MetaRequest {
            id,
            settled: number,
            is_repeated: false,
            operation,
        }
    }

    pub(crate) fn send(&mut self, request: &MetaRequest) -> MetaAnswer {
        let given = self.given();
        self.commit(|seen| step(request, &given, seen))
    }

    fn commit<A>(&mut self, next: impl Fn(&Seen) -> NextStep<A>) -> A {
        let mut snapshot = self.store.snapshot();
        match run(&mut snapshot, next) {
            NextStep::Commit(changes, answer) => {
                assert!(
                    self.store.commit(&snapshot, &changes),
                    "nobody else is there"
                );
                answer
            }
            NextStep::Answer(answer) => answer,
            NextStep::Read(_) => panic!("still reads"),
        }
    }

    pub(crate) fn call(&mut self, operation: MetaOperation) -> MetaAnswer {
        self.call_as(MOUNT, operation)
    }

    pub(crate) fn call_as(&mut self, mount: MountId, operation: MetaOperation) -> MetaAnswer {
        let request = self.request(mount, operation);
        self.send(&request)
    }

    pub(crate) fn make(&mut self, parent: InodeNumber, called: &str, node: NewNode) -> MetaAnswer {
        self.call(MetaOperation::Make {
            parent,
            name: name(called),
            node,
            mode: 0o644,
            uid: 7,
            gid: 8,
            open: None,
        })
    }

    pub(crate) fn file(&mut self, parent: InodeNumber, name: &str) -> InodeNumber {
        attributes(self.make(parent, name, NewNode::File)).inode
    }

    pub(crate) fn directory(&mut self, parent: InodeNumber, name: &str) -> InodeNumber {
        attributes(self.make(parent, name, NewNode::Directory)).inode
    }

    pub(crate) fn lookup(&mut self, parent: InodeNumber, called: &str) -> MetaAnswer {
        let name = name(called);
        self.call(MetaOperation::Lookup { parent, name })
    }

    pub(crate) fn get(&mut self, inode: InodeNumber) -> InodeAttributes {
        attributes(self.call(MetaOperation::GetAttributes { inode }))
    }

    pub(crate) fn set(&mut self, inode: InodeNumber, change: AttributeChange) -> MetaAnswer {
        self.call(MetaOperation::SetAttributes { inode, change })
    }

    pub(crate) fn open(&mut self, inode: InodeNumber, open: WantedHandle) -> OpenedFile {
        let mount = open.handle.mount;
        match self.call_as(mount, MetaOperation::Open { inode, open }) {
            Ok(MetaReply::Opened(opened)) => opened,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn link(
        &mut self,
        inode: InodeNumber,
        parent: InodeNumber,
        called: &str,
    ) -> MetaAnswer {
        let name = name(called);
        self.call(MetaOperation::Link {
            inode,
            parent,
            name,
        })
    }

    pub(crate) fn unlink(&mut self, parent: InodeNumber, called: &str) -> MetaAnswer {
        let name = name(called);
        self.call(MetaOperation::Unlink { parent, name })
    }

    pub(crate) fn rmdir(&mut self, parent: InodeNumber, called: &str) -> MetaAnswer {
        let name = name(called);
        self.call(MetaOperation::RemoveDirectory { parent, name })
    }

    pub(crate) fn rename(
        &mut self,
        from: (InodeNumber, &str),
        to: (InodeNumber, &str),
        rule: RenameRule,
    ) -> MetaAnswer {
        self.call(MetaOperation::Rename {
            parent: from.0,
            name: name(from.1),
            new_parent: to.0,
            new_name: name(to.1),
            rule,
        })
    }

    pub(crate) fn usage(&mut self) -> VolumeUsage {
        let name = "one".to_owned();
        match self.call(MetaOperation::GetVolume { name }) {
            Ok(MetaReply::Volume(volume)) => volume.usage,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn garbage(&mut self) -> Vec<InodeNumber> {
        self.commit(|seen| garbage(None, 100, seen)).unwrap()
    }

    /// Collects everything; the chunks that had to be removed, by file.
    pub(crate) fn collect_all(&mut self) -> BTreeMap<InodeNumber, u64> {
        let mut removed = BTreeMap::new();
        loop {
            let found = self.garbage();
            let Some(inode) = found.first().copied() else {
                return removed;
            };
            let given = self.given();
            match self.commit(|seen| collect(inode, &given, seen)).unwrap() {
                Collected::All | Collected::Some => {}
                Collected::Chunks { chunks, .. } => {
                    removed.insert(inode, chunks);
                    self.commit(|seen| collected(inode, &given, seen)).unwrap();
                }
            }
        }
    }
}

pub(crate) fn attributes(answer: MetaAnswer) -> InodeAttributes {
    match answer {
        Ok(MetaReply::Attributes(attributes) | MetaReply::Changed { attributes, .. }) => attributes,
        other => panic!("{other:?}"),
    }
}

pub(crate) const DONE: Result<MetaReply, Errno> = Ok(MetaReply::Done);
