//! Who uses the tree: mounts with several operations at once and open files.

use std::collections::BTreeMap;

use metadata::{
    Errno, FileLayout, HandleId, InodeNumber, MetaAnswer, MetaOperation, MetaReply, MetaRequest,
    MountId, NewNode, OperationId, RenameRule, Trim, WantedHandle, Written,
};

use crate::drawn::{change, directory, inode, name, name_of};
use crate::world::{Attempt, Fault, Phase, World};

/// Most operations of a mount at once.
const JOBS: usize = 3;
/// Sizes of files, in bytes.
pub(crate) const MOST_BYTES: u64 = 300_000;

/// A file that a mount has open.
struct OpenFile {
    inode: InodeNumber,
    layout: FileLayout,
    bound: Option<u64>,
    cut: u64,
    written: Option<Written>,
    /// An operation on it is on its way.
    is_busy: bool,
}

/// What a mount does with an answer.
#[derive(Clone, Copy)]
enum Then {
    Nothing,
    /// Has the file open.
    Opened(u64),
    /// What was written before is in the file.
    Written(u64),
    Closed(u64),
}

struct Job {
    attempt: Attempt,
    then: Then,
    /// Chunks to cut off before it is over.
    trim: Option<(InodeNumber, Trim, u64)>,
}

pub(crate) struct Mount {
    pub(crate) id: MountId,
    number: u64,
    handle: u64,
    jobs: Vec<Job>,
    files: BTreeMap<u64, OpenFile>,
    /// Requests that were done, to be sent again.
    old: Vec<MetaRequest>,
}

impl Mount {
    pub(crate) fn new(id: u64) -> Self {
        Self {
            id: MountId(id),
            number: 0,
            handle: 0,
            jobs: Vec::new(),
            files: BTreeMap::new(),
            old: Vec::new(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// It is gone, whatever it was doing.
    pub(crate) fn die(&mut self, world: &mut World) {
        for job in &self.jobs {
            let phase = match job.trim {
                Some(_) => Phase::Trim,
                None => job.attempt.phase(),
            };
            world.meet(Fault::Death, phase);
        }
    }

    pub(crate) fn act(&mut self, world: &mut World, begins: bool) {
        let has_room = self.jobs.len() < JOBS;
        if begins && has_room && (self.jobs.is_empty() || world.rng.chance(1, 4)) {
            return self.begin(world);
        }
        if self.jobs.is_empty() {
            return;
        }
        let at = world.rng.below(self.jobs.len());
        if let Some((inode, trim, chunk)) = &mut self.jobs[at].trim {
            if *chunk < trim.layout.chunks(trim.reach) {
                world.physical.trim(*inode, trim, *chunk);
                *chunk += 1;
                return;
            }
            let operation = MetaOperation::Trimmed {
                inode: *inode,
                mount: self.id,
                cut: trim.cut,
            };
            let request = MetaRequest::reading(operation);
            self.jobs[at].attempt = Attempt::new(self.id, request);
            self.jobs[at].trim = None;
            return;
        }
        let Some(answer) = world.advance(&mut self.jobs[at].attempt) else {
            // Its service is another one now, perhaps.
            self.jobs[at].attempt.request.is_repeated |= world.rng.chance(1, 4);
            return;
        };
        self.take(world, at, answer);
    }

    fn take(&mut self, world: &mut World, at: usize, answer: MetaAnswer) {
        let job = &self.jobs[at];
        let then = job.then;
        let request = job.attempt.request.clone();
        let trim = match &answer {
            Ok(MetaReply::Changed { attributes, trim }) => {
                trim.map(|trim| (attributes.inode, trim))
            }
            Ok(MetaReply::Opened(opened)) => {
                opened.trim.map(|trim| (opened.attributes.inode, trim))
            }
            _ => None,
        };
        match (then, &answer) {
            (Then::Opened(number), Ok(MetaReply::Opened(opened))) => {
                let file = OpenFile {
                    inode: opened.attributes.inode,
                    layout: opened.attributes.layout.unwrap(),
                    bound: opened.bound,
                    cut: opened.attributes.cut,
                    written: None,
                    is_busy: trim.is_some(),
                };
                self.files.insert(number, file);
            }
            (Then::Written(number), Ok(MetaReply::Extent { cut, bound, .. })) => {
                let file = self.files.get_mut(&number).unwrap();
                (file.cut, file.bound, file.is_busy) = (*cut, *bound, false);
            }
            (Then::Closed(number), Ok(_)) => {
                self.files.remove(&number);
            }
            (Then::Written(_) | Then::Closed(_), Err(errno)) => {
                return self.write_again(world, at, errno);
            }
            _ => {}
        }
        if world.is_kept(&request) && world.rng.chance(1, 4) {
            self.old.push(request);
        }
        match trim {
            Some((inode, trim)) => {
                let first = trim.from / u64::from(trim.layout.chunk_bytes);
                self.jobs[at].trim = Some((inode, trim, first));
            }
            None => {
                if let Then::Opened(number) = then
                    && let Some(file) = self.files.get_mut(&number)
                {
                    file.is_busy = false;
                }
                self.jobs.swap_remove(at);
            }
        }
    }

    /// As a service does: what was cut off meanwhile is looked up in the chunks.
    fn write_again(&mut self, world: &mut World, at: usize, errno: &Errno) {
        let request = &mut self.jobs[at].attempt.request;
        match (&mut request.operation, errno) {
            (_, Errno::Trimming) => {}
            (
                MetaOperation::Sync { inode, written, .. }
                | MetaOperation::Close {
                    inode,
                    written: Some(written),
                    ..
                },
                Errno::Cut {
                    cut,
                    size,
                    bound,
                    layout,
                },
            ) => {
                written.length = world
                    .physical
                    .length(*inode, *layout, *size, *bound)
                    .min(*bound);
                written.cut = *cut;
            }
            (MetaOperation::Extend { .. }, Errno::Cut { .. }) => {
                let (Then::Written(number) | Then::Closed(number)) = self.jobs[at].then else {
                    return;
                };
                self.files.get_mut(&number).unwrap().is_busy = false;
                self.jobs.swap_remove(at);
                return self.sync(world, number, false);
            }
            (operation, errno) => panic!("{operation:?}: {errno:?}"),
        }
        let request = request.clone();
        self.jobs[at].attempt = Attempt::new(self.id, request);
    }

    fn send(&mut self, operation: MetaOperation, then: Then) {
        let mut id = None;
        if operation.needs_id() {
            self.number += 1;
            let (mount, number) = (self.id, self.number);
            id = Some(OperationId { mount, number });
        }
        let open = self.jobs.iter().filter_map(|job| job.attempt.request.id);
        let lowest = open.map(|id| id.number).min();
        let request = MetaRequest {
            id,
            settled: lowest.unwrap_or(self.number),
            is_repeated: false,
            operation,
        };
        self.jobs.push(Job {
            attempt: Attempt::new(self.id, request),
            then,
            trim: None,
        });
    }

    fn begin(&mut self, world: &mut World) {
        match world.rng.below(12) {
            0..4 => {
                let (operation, then) = self.operation(world);
                self.send(operation, then);
            }
            4 if !self.old.is_empty() => {
                let at = world.rng.below(self.old.len());
                let request = self.old.swap_remove(at);
                let mut attempt = Attempt::old(self.id, request);
                while world.advance(&mut attempt).is_none() {}
            }
            _ if self.files.is_empty() => {
                let (operation, then) = self.operation(world);
                self.send(operation, then);
            }
            _ => self.use_file(world),
        }
    }

    fn use_file(&mut self, world: &mut World) {
        let at = world.rng.below(self.files.len());
        let number = *self.files.keys().nth(at).unwrap();
        let file = self.files.get_mut(&number).unwrap();
        if file.is_busy {
            return;
        }
        match (world.rng.below(8), file.bound) {
            (0..4, Some(bound)) if bound > 0 => {
                let from = world.rng.range(0..bound);
                let to = world.rng.range(from..bound) + 1;
                world.physical.write(file.inode, file.layout, from, to);
                let cut = file.cut;
                let written = file.written.get_or_insert(Written {
                    length: 0,
                    cut,
                    mtime_ns: 0,
                });
                written.length = written.length.max(to);
                written.mtime_ns = world.now_ns();
            }
            (4, Some(_)) => {
                file.is_busy = true;
                let operation = MetaOperation::Extend {
                    inode: file.inode,
                    handle: self.handle(number),
                    cut: self.files[&number].cut,
                    bound: world.rng.range(0..MOST_BYTES),
                };
                self.send(operation, Then::Written(number));
            }
            (5, Some(_)) => self.sync(world, number, false),
            _ => self.sync(world, number, true),
        }
    }

    fn handle(&self, number: u64) -> HandleId {
        let mount = self.id;
        HandleId { mount, number }
    }

    fn sync(&mut self, world: &mut World, number: u64, closes: bool) {
        let handle = self.handle(number);
        let file = self.files.get_mut(&number).unwrap();
        let inode = file.inode;
        let written = file.written.take();
        file.is_busy = true;
        if closes {
            let operation = MetaOperation::Close {
                inode,
                handle,
                written,
            };
            return self.send(operation, Then::Closed(number));
        }
        let nothing = Written {
            length: 0,
            cut: file.cut,
            mtime_ns: world.now_ns(),
        };
        let operation = MetaOperation::Sync {
            inode,
            handle,
            written: written.unwrap_or(nothing),
        };
        self.send(operation, Then::Written(number));
    }

    /// A new operation on names.
    fn operation(&mut self, world: &mut World) -> (MetaOperation, Then) {
        let (parent, new_parent) = (directory(world), directory(world));
        let (name, new_name) = (name(world), name_of(world, new_parent));
        let inode = inode(world);
        let mut then = Then::Nothing;
        let operation = match world.rng.below(20) {
            0..5 => {
                let node = match world.rng.below(8) {
                    0..4 => NewNode::File,
                    4..6 => NewNode::Directory,
                    6 => NewNode::Symlink {
                        target: name.as_bytes().to_vec(),
                    },
                    _ => NewNode::Fifo,
                };
                let opens = node == NewNode::File && world.rng.chance(2, 3);
                let open = opens.then(|| self.wanted(world, &mut then));
                MetaOperation::Make {
                    parent,
                    name,
                    node,
                    mode: [0o644, 0o2755][world.rng.below(2)],
                    uid: 1,
                    gid: world.rng.range(0..3) as u32,
                    open,
                }
            }
            5..7 => MetaOperation::Unlink {
                parent: new_parent,
                name: new_name,
            },
            7 => MetaOperation::RemoveDirectory {
                parent: new_parent,
                name: new_name,
            },
            8..11 => MetaOperation::Rename {
                parent,
                name: name_of(world, parent),
                new_parent,
                new_name,
                rule: [
                    RenameRule::Replace,
                    RenameRule::Replace,
                    RenameRule::NoReplace,
                    RenameRule::Exchange,
                ][world.rng.below(4)],
            },
            11 => MetaOperation::Link {
                inode,
                parent,
                name,
            },
            12..14 => MetaOperation::SetAttributes {
                inode,
                change: change(world),
            },
            14..17 => MetaOperation::Open {
                inode,
                open: self.wanted(world, &mut then),
            },
            17 => MetaOperation::Lookup { parent, name },
            18 => MetaOperation::ReadDirectory {
                inode: parent,
                after: world.rng.chance(1, 2).then_some(name),
                limit: 4,
                with_attributes: world.rng.chance(1, 2),
            },
            _ => match world.rng.below(3) {
                0 => MetaOperation::GetAttributes { inode },
                1 => MetaOperation::ReadLink { inode },
                _ => MetaOperation::GetVolume {
                    name: "one".to_owned(),
                },
            },
        };
        (operation, then)
    }

    fn wanted(&mut self, world: &mut World, then: &mut Then) -> WantedHandle {
        self.handle += 1;
        *then = Then::Opened(self.handle);
        let writes = world.rng.chance(3, 4);
        WantedHandle {
            handle: self.handle(self.handle),
            bound: writes.then(|| world.rng.range(0..MOST_BYTES)),
            is_truncating: writes && world.rng.chance(1, 4),
            is_exclusive: world.rng.chance(1, 4),
        }
    }
}
