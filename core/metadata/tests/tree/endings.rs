//! What ends mounts that are gone, and what collects garbage, as services do.

use metadata::{
    Collected, Errno, HandleId, InodeNumber, MetaOperation, MetaReply, MetaRequest, MountId, Trim,
    Written,
};

use crate::world::{Attempt, Fault, Phase, World};

/// Ends a mount that is gone.
pub(crate) struct Ending {
    mount: MountId,
    /// The mount of the service that does it.
    service: MountId,
    attempt: Attempt,
    /// Files and numbers of handles that are left, the first one last.
    left: Vec<(InodeNumber, u64)>,
    /// The file that is cut off, and the next chunk.
    trim: Option<(InodeNumber, Trim, u64)>,
}

/// What became of an ending.
pub(crate) enum Ended {
    NotYet,
    Yes,
    /// Its service is gone, too, and has to be ended.
    Lost(MountId),
}

impl Ending {
    pub(crate) fn new(world: &mut World, mount: MountId) -> Self {
        let operation = MetaOperation::EndMount { mount };
        Self {
            mount,
            service: world.new_service(),
            attempt: Attempt::new(mount, MetaRequest::reading(operation)),
            left: Vec::new(),
            trim: None,
        }
    }

    pub(crate) fn act(&mut self, world: &mut World) -> Ended {
        if !world.is_calm && world.rng.chance(1, 60) {
            world.meet(Fault::Death, Phase::End);
            let service = self.service;
            *self = Self::new(world, self.mount);
            return Ended::Lost(service);
        }
        if let Some((inode, trim, chunk)) = &mut self.trim {
            if *chunk < trim.layout.chunks(trim.reach) {
                world.physical.trim(*inode, trim, *chunk);
                *chunk += 1;
                return Ended::NotYet;
            }
            let (inode, cut, mount) = (*inode, trim.cut, self.service);
            self.trim = None;
            self.ask(MetaOperation::Trimmed { inode, mount, cut });
        }
        match self.go_on(world) {
            true => Ended::Yes,
            false => Ended::NotYet,
        }
    }

    /// Whether it is over.
    fn go_on(&mut self, world: &mut World) -> bool {
        let Some(answer) = world.advance(&mut self.attempt) else {
            return false;
        };
        let operation = self.attempt.request.operation.clone();
        match (operation, answer) {
            (MetaOperation::EndMount { .. }, Ok(MetaReply::More(true))) => {
                self.ask(MetaOperation::EndMount { mount: self.mount });
            }
            (MetaOperation::EndMount { .. }, Ok(_)) => self.ask(MetaOperation::ListHandles {
                mount: self.mount,
                after: None,
                limit: 3,
            }),
            (_, Ok(MetaReply::Handles(handles))) => {
                if handles.is_empty() {
                    return true;
                }
                // A trim has to end before the mount's other handles of the file can be closed.
                self.left = handles.into_iter().rev().collect();
                self.next();
            }
            (MetaOperation::TakeTrim { inode, .. }, Ok(MetaReply::Trim(Some(trim)))) => {
                let first = trim.from / u64::from(trim.layout.chunk_bytes);
                self.trim = Some((inode, trim, first));
            }
            (
                MetaOperation::Close { inode, handle, .. },
                Err(Errno::Cut {
                    cut,
                    size,
                    bound,
                    layout,
                }),
            ) => {
                let length = world.physical.length(inode, layout, size, bound).min(bound);
                let written = Some(Written {
                    length,
                    cut,
                    mtime_ns: world.now_ns(),
                });
                self.ask(MetaOperation::Close {
                    inode,
                    handle,
                    written,
                });
            }
            (MetaOperation::Close { inode, handle, .. }, Err(Errno::BadHandle)) => {
                let written = None;
                self.ask(MetaOperation::Close {
                    inode,
                    handle,
                    written,
                });
            }
            (operation, Err(Errno::Trimming)) => self.ask(operation),
            (_, Ok(_)) => self.next(),
            (operation, errno) => panic!("{operation:?}: {errno:?}"),
        }
        false
    }

    fn ask(&mut self, operation: MetaOperation) {
        self.attempt = Attempt::new(self.mount, MetaRequest::reading(operation));
    }

    fn next(&mut self) {
        let mount = self.mount;
        let operation = match self.left.pop() {
            None => MetaOperation::ListHandles {
                mount,
                after: None,
                limit: 3,
            },
            Some((inode, 0)) => MetaOperation::TakeTrim {
                inode,
                from: mount,
                to: self.service,
            },
            // A cut that nobody knows: the answer says what to look for in the chunks.
            Some((inode, number)) => MetaOperation::Close {
                inode,
                handle: HandleId { mount, number },
                written: Some(Written {
                    length: 0,
                    cut: u64::MAX,
                    mtime_ns: 0,
                }),
            },
        };
        self.ask(operation);
    }
}

/// Collects what is garbage, one inode at a time.
#[derive(Default)]
pub(crate) struct Collector {
    /// The file whose chunks are removed, how many it has, and how many are gone.
    file: Option<(InodeNumber, u64, u64)>,
}

impl Collector {
    /// Whether there was nothing to do.
    pub(crate) fn act(&mut self, world: &mut World) -> bool {
        if !world.is_calm && world.rng.chance(1, 60) {
            world.meet(Fault::Death, Phase::Collect);
            self.file = None;
        }
        match &mut self.file {
            Some((inode, chunks, gone)) if *gone < *chunks => {
                let is_there = world.oracle.nodes.contains_key(inode);
                assert!(!is_there, "META-6: chunks of {inode:?} are removed");
                world.physical.remove(*inode, *gone);
                *gone += 1;
            }
            Some((inode, ..)) => {
                if world.collect(*inode, true).is_some() {
                    self.file = None;
                }
            }
            None => {
                let garbage = world.garbage();
                if garbage.is_empty() {
                    return true;
                }
                let inode = garbage[world.rng.below(garbage.len())];
                if let Some(Collected::Chunks { chunks, .. }) = world.collect(inode, false) {
                    self.file = Some((inode, chunks, 0));
                }
            }
        }
        false
    }
}
