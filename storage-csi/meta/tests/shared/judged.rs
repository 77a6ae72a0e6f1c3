//! A mount that does what it draws, one operation at a time, and the judge of every answer: the tree in memory of
//! core/metadata.

use std::collections::BTreeMap;

use metadata::{
    AttributeChange, EntryName, Errno, Given, HandleId, InodeAttributes, InodeKind, InodeNumber,
    MetaAnswer, MetaOperation, MetaReply, NewNode, OpenedFile, RenameRule, Trim, WantedHandle,
    Written,
};
use sim::Rng;
use storage_rpc::{MetaClient, MetaError};

use crate::oracle::Oracle;
use crate::shared::{Backend, LAYOUT, SETTINGS};

/// Sizes of files, in bytes.
pub(crate) const MOST_BYTES: u64 = 300_000;

pub(crate) fn name(text: &str) -> EntryName {
    EntryName::new(text.as_bytes()).unwrap()
}

/// The only one there is.
pub(crate) fn volume() -> MetaOperation {
    MetaOperation::MakeVolume {
        name: "one".to_owned(),
        settings: SETTINGS,
        layout: LAYOUT,
        most_promised: u64::MAX,
    }
}

/// One mount whose every answer is judged.
pub(crate) struct Judged {
    client: MetaClient,
    backend: Backend,
    oracle: Oracle,
    rng: Rng,
    handle: u64,
    files: BTreeMap<u64, (InodeNumber, u64, Option<Written>)>,
}

impl Judged {
    pub(crate) fn new(client: MetaClient, backend: Backend, rng: Rng) -> Self {
        Self {
            client,
            backend,
            oracle: Oracle::default(),
            rng,
            handle: 0,
            files: BTreeMap::new(),
        }
    }

    /// Asks, and compares the answer.
    pub(crate) async fn ask(&mut self, operation: MetaOperation) -> MetaAnswer {
        let answer = match self.client.call(operation.clone()).await {
            Ok(reply) => Ok(reply),
            Err(MetaError::Refused(errno)) => Err(errno),
            Err(error) => panic!("{operation:?}: {error}"),
        };
        let fresh = match &answer {
            Ok(MetaReply::Attributes(attributes)) => attributes.inode,
            Ok(MetaReply::Opened(opened)) => opened.attributes.inode,
            Ok(MetaReply::Volume(volume)) => volume.root,
            _ => InodeNumber(0),
        };
        let given = Given { now_ns: 0, fresh };
        let expected = self.expected(&operation, &given);
        assert_eq!(
            timeless(answer.clone()),
            timeless(expected),
            "{operation:?}"
        );
        answer
    }

    /// As the service: a length from before a truncation is looked up in the chunks.
    fn expected(&mut self, operation: &MetaOperation, given: &Given) -> MetaAnswer {
        let mount = self.client.mount();
        let mut operation = operation.clone();
        loop {
            let answer = self.oracle.apply(mount, &operation, given);
            let (
                Err(Errno::Cut {
                    cut,
                    size,
                    bound,
                    layout,
                }),
                MetaOperation::Sync { inode, written, .. }
                | MetaOperation::Close {
                    inode,
                    written: Some(written),
                    ..
                },
            ) = (&answer, &mut operation)
            else {
                return answer;
            };
            let length = self
                .backend
                .physical()
                .length(*inode, *layout, *size, *bound);
            (written.length, written.cut) = (length.min(*bound), *cut);
        }
    }

    async fn trim(&mut self, inode: InodeNumber, trim: Option<Trim>) {
        if let Some(trim) = trim {
            self.backend.cut_off(inode, &trim);
            let mount = self.client.mount();
            let cut = trim.cut;
            self.ask(MetaOperation::Trimmed { inode, mount, cut })
                .await
                .unwrap();
        }
    }

    fn name(&mut self) -> EntryName {
        name(["a", "b", "c", "d", "e", "f"][self.rng.below(6)])
    }

    fn any(&mut self, is_directory: bool) -> InodeNumber {
        let nodes = self.oracle.nodes.iter();
        let of = nodes.filter(|(_, node)| !is_directory || node.kind == InodeKind::Directory);
        let inodes: Vec<_> = of.map(|(inode, _)| *inode).collect();
        inodes[self.rng.below(inodes.len())]
    }

    pub(crate) async fn act(&mut self) {
        if !self.files.is_empty() && self.rng.chance(1, 2) {
            return self.use_file().await;
        }
        let (parent, new_parent) = (self.any(true), self.any(true));
        let (name, new_name) = (self.name(), self.name());
        let inode = self.any(false);
        let operation = match self.rng.below(12) {
            0..3 => MetaOperation::Make {
                parent,
                name,
                node: [NewNode::Directory, NewNode::File, NewNode::Fifo][self.rng.below(3)].clone(),
                mode: 0o700,
                uid: 3,
                gid: 4,
                open: None,
            },
            3..6 => {
                self.handle += 1;
                let (mount, number) = (self.client.mount(), self.handle);
                let writes = self.rng.chance(3, 4);
                let open = WantedHandle {
                    handle: HandleId { mount, number },
                    bound: writes.then(|| self.rng.range(1..MOST_BYTES)),
                    is_truncating: writes && self.rng.chance(1, 2),
                    is_exclusive: false,
                };
                match self.rng.chance(1, 2) {
                    true => MetaOperation::Open { inode, open },
                    false => MetaOperation::Make {
                        parent,
                        name,
                        node: NewNode::File,
                        mode: 0o600,
                        uid: 3,
                        gid: 4,
                        open: Some(open),
                    },
                }
            }
            6 => MetaOperation::Unlink { parent, name },
            7 => MetaOperation::RemoveDirectory { parent, name },
            8 => MetaOperation::Rename {
                parent,
                name,
                new_parent,
                new_name,
                rule: [RenameRule::Replace, RenameRule::Exchange][self.rng.below(2)],
            },
            9 => MetaOperation::Link {
                inode,
                parent,
                name,
            },
            10 => MetaOperation::ReadDirectory {
                inode: parent,
                after: None,
                limit: 100,
                with_attributes: true,
            },
            _ => MetaOperation::SetAttributes {
                inode,
                change: AttributeChange {
                    size: Some(self.rng.range(0..MOST_BYTES)),
                    ..AttributeChange::default()
                },
            },
        };
        match self.ask(operation).await {
            Ok(MetaReply::Opened(OpenedFile {
                attributes,
                bound,
                trim,
                ..
            })) => {
                let file = (attributes.inode, attributes.cut, None);
                if bound.is_some() {
                    self.files.insert(self.handle, file);
                }
                self.trim(attributes.inode, trim).await;
            }
            Ok(MetaReply::Changed { attributes, trim }) => self.trim(attributes.inode, trim).await,
            _ => {}
        }
    }

    async fn use_file(&mut self) {
        let at = self.rng.below(self.files.len());
        let number = *self.files.keys().nth(at).unwrap();
        let (inode, cut, written) = self.files[&number];
        let handle = HandleId {
            mount: self.client.mount(),
            number,
        };
        match self.rng.below(4) {
            0 | 1 => {
                let node = &self.oracle.nodes[&inode];
                let to = self.rng.range(0..node.handles[&handle].unwrap()) + 1;
                self.backend.physical().write(inode, LAYOUT, 0, to);
                let mut written = written.unwrap_or(Written {
                    length: 0,
                    cut,
                    mtime_ns: 0,
                });
                written.length = written.length.max(to);
                self.files.insert(number, (inode, cut, Some(written)));
            }
            2 => {
                let written = written.unwrap_or(Written {
                    length: 0,
                    cut,
                    mtime_ns: 0,
                });
                let synced = self
                    .ask(MetaOperation::Sync {
                        inode,
                        handle,
                        written,
                    })
                    .await;
                let Ok(MetaReply::Extent { cut, .. }) = synced else {
                    panic!("{synced:?}");
                };
                self.files.insert(number, (inode, cut, None));
            }
            _ => {
                self.files.remove(&number);
                let operation = MetaOperation::Close {
                    inode,
                    handle,
                    written,
                };
                self.ask(operation).await.unwrap();
            }
        }
    }
}

/// The same without times, which are the services'.
fn timeless(answer: MetaAnswer) -> MetaAnswer {
    let strip = |attributes: InodeAttributes| InodeAttributes {
        atime_ns: 0,
        mtime_ns: 0,
        ctime_ns: 0,
        ..attributes
    };
    Ok(match answer? {
        MetaReply::Attributes(attributes) => MetaReply::Attributes(strip(attributes)),
        MetaReply::Changed { attributes, trim } => MetaReply::Changed {
            attributes: strip(attributes),
            trim,
        },
        MetaReply::Opened(opened) => MetaReply::Opened(OpenedFile {
            attributes: strip(opened.attributes),
            ..opened
        }),
        MetaReply::Names(mut names) => {
            for one in &mut names {
                one.attributes = one.attributes.take().map(strip);
            }
            MetaReply::Names(names)
        }
        other => other,
    })
}
