//! Each operation of a mount once: its answer is kept under its id in the transaction that does it, and looked up first.
//! So is that of an operation that is sent again, whatever it is: the one that was sent before may come later.
//! A mount says up to which number it has all answers; those are deleted by and by, and their operations are refused.

use crate::keys;
use crate::records::MountRecord;
use crate::request::{Errno, MetaAnswer, MetaOperation, MetaReply, MetaRequest};
use crate::step::{Changes, Given, NextStep, Outcome, RangeRead, Reads, Seen, Stop};
use crate::types::{MountId, OperationId};
use crate::usage::shard;

/// By how much the settled number has to rise before it is written: whoever writes it conflicts with the other
/// operations of the mount.
const SETTLED_STEP: u64 = 64;
/// Most answers that an operation deletes. It adds one, so they become fewer.
const MOST_DELETED: usize = 8;

/// What an operation has to do next, after all that was seen.
pub fn step(request: &MetaRequest, given: &Given, seen: &Seen) -> NextStep<MetaAnswer> {
    let once = match (request.operation.runs(), request.id) {
        (Runs::Once, None) => return NextStep::Answer(Err(Errno::Invalid)),
        (Runs::Once, Some(id)) => Some(Once {
            id,
            settled: request.settled,
        }),
        (Runs::Reading | Runs::Repeatable, _) => None,
    };
    let found = once.as_ref().map(|once| once.look(seen));
    let mut missing = Reads::default();
    let mut mount = MountRecord::default();
    match found {
        None => {}
        Some(Ok(Found::Answered(answer))) => return NextStep::Answer(answer),
        Some(Ok(Found::Mount(record))) => mount = record,
        Some(Err(Stop::Refuse(errno))) => return NextStep::Answer(Err(errno)),
        Some(Err(Stop::Read(reads))) => missing = reads,
    }
    let mut work = Work {
        seen,
        given,
        id: once.as_ref().map(|once| once.id),
        shard: request.shard(),
        changes: Changes::default(),
    };
    let outcome = work.run(&request.operation);
    let mut changes = work.changes;
    if let Err(Stop::Read(more)) = &outcome {
        missing.keys.extend(more.keys.iter().cloned());
        missing.ranges.extend(more.ranges.iter().cloned());
    }
    if missing != Reads::default() {
        return NextStep::Read(missing);
    }
    let answer = match outcome {
        Ok(reply) => Ok(reply),
        Err(Stop::Refuse(errno)) => {
            changes = Changes::default();
            Err(errno)
        }
        Err(Stop::Read(reads)) => return NextStep::Read(reads),
    };
    if let Some(once) = once
        && (request.is_repeated || !changes.writes.is_empty())
        && let Err(stop) = once.keep(seen, mount, &answer, &mut changes)
    {
        return match stop {
            Stop::Read(reads) => NextStep::Read(reads),
            Stop::Refuse(errno) => NextStep::Answer(Err(errno)),
        };
    }
    match changes.writes.is_empty() {
        true => NextStep::Answer(answer),
        false => NextStep::Commit(changes, answer),
    }
}

impl MetaRequest {
    fn shard(&self) -> u64 {
        match (&self.operation, self.id) {
            (MetaOperation::Sync { handle, .. } | MetaOperation::Close { handle, .. }, _) => {
                shard(handle.mount, handle.number)
            }
            (_, Some(id)) => shard(id.mount, id.number),
            (_, None) => 0,
        }
    }
}

/// How an operation may be repeated.
enum Runs {
    /// It changes nothing.
    Reading,
    /// Done twice it is as if done once.
    Repeatable,
    /// By its id.
    Once,
}

impl MetaOperation {
    /// Whether it may make an inode, and needs a fresh number for that.
    #[must_use]
    pub fn makes_inode(&self) -> bool {
        matches!(self, Self::Make { .. } | Self::MakeVolume { .. })
    }

    /// Whether it may add a name, which stays until somebody removes it.
    #[must_use]
    pub fn adds_name(&self) -> bool {
        self.makes_inode() || matches!(self, Self::Link { .. })
    }

    /// Whether it changes something and needs an id.
    #[must_use]
    pub fn needs_id(&self) -> bool {
        matches!(self.runs(), Runs::Once)
    }

    fn runs(&self) -> Runs {
        match self {
            Self::Lookup { .. }
            | Self::GetAttributes { .. }
            | Self::ReadLink { .. }
            | Self::ReadDirectory { .. }
            | Self::ListHandles { .. }
            | Self::NextMount { .. }
            | Self::GetVolume { .. }
            | Self::GetPromised => Runs::Reading,
            Self::Extend { .. }
            | Self::TakeTrim { .. }
            | Self::Sync { .. }
            | Self::Close { .. }
            | Self::Trimmed { .. }
            | Self::EndMount { .. }
            | Self::MakeVolume { .. }
            | Self::DeleteVolume { .. } => Runs::Repeatable,
            Self::SetAttributes { .. }
            | Self::Make { .. }
            | Self::Link { .. }
            | Self::Unlink { .. }
            | Self::RemoveDirectory { .. }
            | Self::Rename { .. }
            | Self::Open { .. } => Runs::Once,
        }
    }
}

/// An operation that has an id.
struct Once {
    id: OperationId,
    settled: u64,
}

enum Found {
    Answered(MetaAnswer),
    Mount(MountRecord),
}

impl Once {
    fn old_results(&self) -> RangeRead {
        RangeRead::Plain {
            prefix: keys::results(self.id.mount),
            after: None,
            limit: MOST_DELETED,
        }
    }

    fn look(&self, seen: &Seen) -> Outcome<Found> {
        let (result, mount) = (keys::result(self.id), keys::mount(self.id.mount));
        seen.need([result.clone(), mount.clone()], [self.old_results()])?;
        if let Some(answer) = seen.record(result)? {
            return Ok(Found::Answered(answer));
        }
        let mount: MountRecord = seen.record(mount)?.unwrap_or_default();
        match self.id.number < mount.settled {
            true => Err(Errno::Ended.into()),
            false => Ok(Found::Mount(mount)),
        }
    }

    fn keep(
        &self,
        seen: &Seen,
        mount: MountRecord,
        answer: &MetaAnswer,
        changes: &mut Changes,
    ) -> Outcome<()> {
        let mut settled = mount.settled;
        if self.settled >= settled.saturating_add(SETTLED_STEP) && self.settled <= self.id.number {
            settled = self.settled;
            changes.put(keys::mount(self.id.mount), &MountRecord { settled })?;
        }
        for (key, _) in seen.range(self.old_results())? {
            if keys::numbers(key).is_some_and(|[_, number]| number < settled) {
                changes.delete(key.clone());
            }
        }
        changes.put(keys::result(self.id), answer)
    }
}

impl Changes {
    pub(crate) fn put(&mut self, key: Vec<u8>, record: &impl serde::Serialize) -> Outcome<()> {
        let value = serde_json::to_vec(record).map_err(|_| Errno::Invalid)?;
        self.put_bytes(key, value);
        Ok(())
    }

    pub(crate) fn put_bytes(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.writes.insert(key, Some(value));
    }

    pub(crate) fn delete(&mut self, key: Vec<u8>) {
        self.writes.insert(key, None);
    }
}

/// An operation as it runs: what it sees, and what it will change.
pub(crate) struct Work<'a> {
    pub(crate) seen: &'a Seen,
    pub(crate) given: &'a Given,
    pub(crate) id: Option<OperationId>,
    /// Where it counts what its volume uses.
    pub(crate) shard: u64,
    pub(crate) changes: Changes,
}

impl Work<'_> {
    pub(crate) fn mount(&self) -> Outcome<MountId> {
        Ok(self.id.ok_or(Errno::Invalid)?.mount)
    }

    fn run(&mut self, operation: &MetaOperation) -> Outcome<MetaReply> {
        match operation {
            MetaOperation::Lookup { parent, name } => self.lookup(*parent, name),
            MetaOperation::GetAttributes { inode } => self.get_attributes(*inode),
            MetaOperation::SetAttributes { inode, change } => self.set_attributes(*inode, change),
            MetaOperation::Make {
                parent,
                name,
                node,
                mode,
                uid,
                gid,
                open,
            } => self.make(*parent, name, node, [*mode, *uid, *gid], open.as_ref()),
            MetaOperation::ReadLink { inode } => self.read_link(*inode),
            MetaOperation::Link {
                inode,
                parent,
                name,
            } => self.link(*inode, *parent, name),
            MetaOperation::Unlink { parent, name } => self.unlink(*parent, name),
            MetaOperation::RemoveDirectory { parent, name } => self.remove_directory(*parent, name),
            MetaOperation::Rename {
                parent,
                name,
                new_parent,
                new_name,
                rule,
            } => self.rename((*parent, name), (*new_parent, new_name), *rule),
            MetaOperation::ReadDirectory {
                inode,
                after,
                limit,
                with_attributes,
            } => self.read_directory(*inode, after.as_ref(), *limit as usize, *with_attributes),
            MetaOperation::Open { inode, open } => self.open(*inode, open),
            MetaOperation::Extend {
                inode,
                handle,
                cut,
                bound,
            } => self.extend(*inode, *handle, *cut, *bound),
            MetaOperation::Sync {
                inode,
                handle,
                written,
            } => self.sync(*inode, *handle, written),
            MetaOperation::Close {
                inode,
                handle,
                written,
            } => self.close(*inode, *handle, written.as_ref()),
            MetaOperation::Trimmed { inode, mount, cut } => self.trimmed(*inode, *mount, *cut),
            MetaOperation::TakeTrim { inode, from, to } => self.take_trim(*inode, *from, *to),
            MetaOperation::EndMount { mount } => self.end_mount(*mount),
            MetaOperation::ListHandles {
                mount,
                after,
                limit,
            } => self.list_handles(*mount, *after, *limit as usize),
            MetaOperation::NextMount { after } => self.next_mount(*after),
            MetaOperation::MakeVolume {
                name,
                settings,
                layout,
                most_promised,
            } => self.make_volume(name, settings, layout, *most_promised),
            MetaOperation::DeleteVolume { name } => self.delete_volume(name),
            MetaOperation::GetVolume { name } => self.get_volume(name),
            MetaOperation::GetPromised => self.get_promised(),
        }
    }
}
