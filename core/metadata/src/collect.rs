//! What nobody can reach is taken apart in small steps: directories of deleted volumes child by child, files when somebody
//! has removed their chunks.

use crate::keys;
use crate::layout::FileLayout;
use crate::names::MOST_LISTED;
use crate::once::Work;
use crate::records::{EntryRecord, InodeRecord};
use crate::request::Errno;
use crate::step::{Changes, Given, NextStep, Outcome, RangeRead, Seen, Stop, damaged, parse};
use crate::types::{InodeKind, InodeNumber};

/// Most children that a step takes out of a directory.
const CHILDREN: usize = 8;
/// Most parts of a volume's usage that a step deletes.
const USAGES: usize = 32;

/// What a step of the collection has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collected {
    /// Nothing is left of it.
    All,
    /// Some: call again.
    Some,
    /// Its chunks have to be removed, those below `chunks`, and then [`collected`] be called.
    Chunks { layout: FileLayout, chunks: u64 },
}

/// Inodes to be collected, after a given one.
pub fn garbage(
    after: Option<InodeNumber>,
    limit: usize,
    seen: &Seen,
) -> NextStep<Result<Vec<InodeNumber>, Errno>> {
    let list = || {
        let rows = seen.range(RangeRead::Plain {
            prefix: keys::all_garbage(),
            after: after.map(keys::garbage),
            limit: limit.clamp(1, MOST_LISTED),
        })?;
        let number = |key: &Vec<u8>| {
            let [inode] = keys::numbers(key).ok_or_else(|| damaged(key))?;
            Ok(InodeNumber(inode))
        };
        rows.iter().map(|(key, _)| number(key)).collect()
    };
    next(list(), Changes::default())
}

/// A step of the collection of an inode.
pub fn collect(
    inode: InodeNumber,
    given: &Given,
    seen: &Seen,
) -> NextStep<Result<Collected, Errno>> {
    let mut work = work(given, seen);
    let outcome = work.collect(inode);
    next(outcome, work.changes)
}

/// All chunks of a file are removed. Only deletes, so that a full store takes it.
pub fn collected(inode: InodeNumber, given: &Given, seen: &Seen) -> NextStep<Result<(), Errno>> {
    let mut work = work(given, seen);
    let outcome = work.collected(inode);
    next(outcome, work.changes)
}

fn work<'a>(given: &'a Given, seen: &'a Seen) -> Work<'a> {
    Work {
        seen,
        given,
        id: None,
        shard: 0,
        changes: Changes::default(),
    }
}

fn next<T>(outcome: Outcome<T>, changes: Changes) -> NextStep<Result<T, Errno>> {
    match outcome {
        Err(Stop::Read(reads)) => NextStep::Read(reads),
        Err(Stop::Refuse(errno)) => NextStep::Answer(Err(errno)),
        Ok(answer) if changes.writes.is_empty() => NextStep::Answer(Ok(answer)),
        Ok(answer) => NextStep::Commit(changes, Ok(answer)),
    }
}

impl Work<'_> {
    fn collect(&mut self, inode: InodeNumber) -> Outcome<Collected> {
        let record: Option<InodeRecord> = self.seen.record(keys::garbage(inode))?;
        let Some(record) = record else {
            return Ok(Collected::All);
        };
        if record.kind == InodeKind::Directory {
            return self.take_apart(inode, &record);
        }
        let layout = record.file_layout()?;
        let chunks = layout.chunks(record.reach);
        Ok(Collected::Chunks { layout, chunks })
    }

    fn collected(&mut self, inode: InodeNumber) -> Outcome<()> {
        if self.seen.get(keys::garbage(inode))?.is_some() {
            self.changes.delete(keys::garbage(inode));
        }
        Ok(())
    }

    fn take_apart(&mut self, inode: InodeNumber, record: &InodeRecord) -> Outcome<Collected> {
        let children = self.seen.range(RangeRead::Compared {
            prefix: keys::entries(inode),
            limit: CHILDREN,
        })?;
        if !children.is_empty() {
            return self.take_out(children);
        }
        if inode == record.volume {
            let parts = self.seen.range(RangeRead::Plain {
                prefix: keys::usages(inode),
                after: None,
                limit: USAGES,
            })?;
            if !parts.is_empty() {
                for (key, _) in parts {
                    self.changes.delete(key.clone());
                }
                return Ok(Collected::Some);
            }
        }
        self.changes.delete(keys::garbage(inode));
        self.discard_directory(inode, record.volume)?;
        Ok(Collected::All)
    }

    fn take_out(&mut self, children: &[(Vec<u8>, Vec<u8>)]) -> Outcome<Collected> {
        let mut entries = Vec::new();
        for (key, value) in children {
            entries.push((key, parse::<EntryRecord>(key, value)?));
        }
        // Names of one inode are taken out one at a time.
        let mut inodes: Vec<_> = entries.iter().map(|(_, entry)| entry.inode).collect();
        inodes.sort_unstable();
        let is_single = |inode| inodes.iter().filter(|other| **other == inode).count() == 1;
        let first = entries.first().map(|(key, _)| *key);
        entries.retain(|(key, entry)| is_single(entry.inode) || Some(*key) == first);
        let handles = entries.iter().map(|(_, entry)| RangeRead::Compared {
            prefix: keys::handles(entry.inode),
            limit: 2,
        });
        let records = entries.iter().map(|(_, entry)| keys::inode(entry.inode));
        self.seen.need(records, handles)?;
        for (key, entry) in entries {
            let record = self.inode(entry.inode)?;
            match record.kind == InodeKind::Directory {
                true => self.collect_later(entry.inode, &record)?,
                false => self.remove_name(entry.inode, record)?,
            }
            self.changes.delete(key.clone());
        }
        Ok(Collected::Some)
    }
}
