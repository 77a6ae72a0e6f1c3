//! Mounts that are gone: nothing of theirs is done any more, and what they had open is listed, to be closed.

use crate::keys;
use crate::names::MOST_LISTED;
use crate::once::Work;
use crate::records::MountRecord;
use crate::request::{Errno, MetaReply};
use crate::step::{Outcome, RangeRead, damaged};
use crate::types::{HandleId, InodeNumber, MountId};

/// Most answers that are deleted at once.
const MOST_DELETED: usize = 32;

impl Work<'_> {
    /// Settles all operations that the mount can still send, and deletes answers. The record stays: numbers of mounts
    /// are not used again.
    pub(crate) fn end_mount(&mut self, mount: MountId) -> Outcome<MetaReply> {
        let key = keys::mount(mount);
        let results = RangeRead::Plain {
            prefix: keys::results(mount),
            after: None,
            limit: MOST_DELETED,
        };
        self.seen.need([key.clone()], [results.clone()])?;
        if !self.has_ended(mount)? {
            let ended = MountRecord { settled: u64::MAX };
            self.changes.put(key, &ended)?;
            // One that is under way may still leave an answer: look again.
            return Ok(MetaReply::More(true));
        }
        let rows = self.seen.range(results)?;
        for (key, _) in rows {
            self.changes.delete(key.clone());
        }
        Ok(MetaReply::More(!rows.is_empty()))
    }

    /// Whether a mount has ended.
    pub(crate) fn has_ended(&self, mount: MountId) -> Outcome<bool> {
        let record: Option<MountRecord> = self.seen.record(keys::mount(mount))?;
        Ok(record.is_some_and(|record| record.settled == u64::MAX))
    }

    /// Mounts one after the other, each with what it has left in the store.
    pub(crate) fn next_mount(&self, after: MountId) -> Outcome<MetaReply> {
        let ranges = keys::by_mount(after).map(|(prefix, after)| RangeRead::Plain {
            prefix,
            after: Some(after),
            limit: 1,
        });
        self.seen.need([], ranges.clone())?;
        let mut next = None;
        for range in ranges {
            if let Some((key, _)) = self.seen.range(range)?.first() {
                let mount = keys::mount_of(key).ok_or_else(|| damaged(key))?;
                next = Some(next.map_or(mount, |next: MountId| next.min(mount)));
            }
        }
        Ok(MetaReply::Mount(next))
    }

    pub(crate) fn list_handles(
        &self,
        mount: MountId,
        after: Option<(InodeNumber, u64)>,
        limit: usize,
    ) -> Outcome<MetaReply> {
        if !(1..=MOST_LISTED).contains(&limit) {
            return Err(Errno::Invalid.into());
        }
        let after =
            after.map(|(inode, number)| keys::mount_handle(inode, HandleId { mount, number }));
        let rows = self.seen.range(RangeRead::Plain {
            prefix: keys::mount_handles(mount),
            after,
            limit,
        })?;
        let numbers = |key: &Vec<u8>| {
            let [_, inode, number] = keys::numbers(key).ok_or_else(|| damaged(key))?;
            Ok((InodeNumber(inode), number))
        };
        let handles = rows.iter().map(|(key, _)| numbers(key));
        Ok(MetaReply::Handles(handles.collect::<Outcome<_>>()?))
    }
}
