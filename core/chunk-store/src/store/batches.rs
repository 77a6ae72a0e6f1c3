//! Batches: which records go into the next one, and what is durable and free when it is flushed. One batch is on its
//! way at a time; what changes meanwhile goes into the next.

use std::collections::BTreeSet;

use super::ChunkStore;
use crate::journal::{Cleaning, Position};
use crate::record::{self, RECORD_HEAD_BYTES};
use crate::{ChunkKey, Refused, StateVersion, batch};

/// A batch that has to be written, and flushed together with all blocks that were written before it was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalBatch {
    /// Names it to [`ChunkStore::batch_flushed`].
    pub sequence: u64,
    /// Where, in bytes from the disk's start.
    pub at: u64,
    /// Whole sectors.
    pub bytes: Vec<u8>,
}

/// What happened to a version of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is pending. The number is [`crate::PrepareTicket::number`].
    Prepared(u64),
    /// It is committed, or the chunk is removed by it.
    Committed,
    /// It is not pending any more.
    Discarded,
}

/// Who waits for the next batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchDue {
    /// There is none, or one is on its way.
    Never,
    /// Nobody: it may wait for more, so that one flush does for all.
    Later,
    /// Whoever wants a state to be durable, or blocks to be free.
    Now,
}

/// Where fewer blocks than this share are free, those that the next batch frees are waited for.
const FREE_SHARE: usize = 8;

/// A change that outlives a power cut from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable {
    /// Of which chunk.
    pub id: ChunkKey,
    /// Of which version.
    pub version: StateVersion,
    /// Which.
    pub change: Change,
}

/// The batch that is being written.
#[derive(Debug)]
pub(super) struct InFlight {
    sequence: u64,
    segment: u64,
    oldest: u64,
    ids: Vec<ChunkKey>,
    durable: Vec<Durable>,
    retired: Vec<u32>,
}

/// A batch in the making.
struct Draft {
    room: usize,
    records: Vec<u8>,
    ids: BTreeSet<ChunkKey>,
}

impl ChunkStore {
    /// How much the next batch matters.
    #[must_use]
    pub fn batch_due(&self) -> BatchDue {
        let blocks = self.superblock.geometry().blocks as usize;
        if self.is_failed || self.in_flight.is_some() || self.queue.is_empty() {
            BatchDue::Never
        } else if self.undurable > 0 || self.blocks.free() < blocks / FREE_SHARE {
            BatchDue::Now
        } else {
            BatchDue::Later
        }
    }

    /// The next batch. None if there is nothing to write, or if one is on its way: ask again after each flush, since a
    /// batch does not always hold all that has changed.
    pub fn take_batch(&mut self) -> Option<JournalBatch> {
        if self.batch_due() == BatchDue::Never {
            return None;
        }
        let cleaning = self.journal.cleaning();
        let Position {
            header,
            oldest,
            room,
        } = self.journal.begin();
        let mut draft = Draft {
            room,
            records: Vec::new(),
            ids: BTreeSet::new(),
        };
        match cleaning {
            Cleaning::None => {
                self.add_new(&mut draft, room);
                self.credit = 0;
            }
            Cleaning::Beside => {
                self.add_new(&mut draft, room / 2);
                let geometry = self.superblock.geometry();
                let taken = geometry.round(batch::HEADER_BYTES + draft.records.len());
                self.credit = (self.credit + taken).min(batch::LIMIT_BYTES);
                self.add_oldest(&mut draft, header.segment);
            }
            Cleaning::Only => {
                self.credit = room;
                self.add_oldest(&mut draft, header.segment);
            }
        }
        if cleaning != Cleaning::None {
            // Some of the oldest had changed as well.
            self.queue.retain(|id| !draft.ids.contains(id));
        }
        let count = draft.ids.len() as u32;
        let bytes = batch::encode(&self.superblock, &header, count, &draft.records);
        self.journal.advance(bytes.len());
        self.in_flight = Some(self.depart(draft, &header, oldest));
        let segment_at = self.superblock.geometry().segment_at(header.segment);
        Some(JournalBatch {
            sequence: header.sequence,
            at: segment_at + u64::from(header.offset),
            bytes,
        })
    }

    /// The disk was flushed after the batch and all blocks before it were written: what is durable since.
    pub fn batch_flushed(&mut self, sequence: u64) -> Result<Vec<Durable>, Refused> {
        self.check_alive()?;
        let batch = self.in_flight.take_if(|batch| batch.sequence == sequence);
        let batch = batch.ok_or(Refused::Unknown)?;
        self.journal.flushed(sequence, batch.oldest);
        for place in batch.retired {
            self.blocks.release(place);
        }
        for change in &batch.durable {
            let Change::Prepared(ticket) = change.change else {
                continue;
            };
            self.undurable -= 1;
            let chunk = self.chunks.get_mut(&change.id);
            if let Some(pending) = chunk.and_then(|chunk| chunk.pending.as_mut()) {
                // It may have been discarded meanwhile, and prepared again.
                pending.ticket = pending.ticket.filter(|one| *one != ticket);
            }
        }
        for id in batch.ids {
            if let Some(chunk) = self.chunks.get_mut(&id) {
                chunk.flushed_bytes = chunk.in_flight_bytes.take().unwrap_or(0);
                let from = chunk.at.replace(batch.segment);
                self.journal.moved(id, from, Some(batch.segment));
                self.settle(id);
            }
        }
        Ok(batch.durable)
    }

    /// Adds the records of chunks that have changed.
    fn add_new(&mut self, draft: &mut Draft, room: usize) {
        while let Some(&id) = self.queue.front() {
            let is_added = self.add(draft, id, room);
            if !is_added {
                return;
            }
            self.queue.pop_front();
        }
    }

    /// Adds the oldest records, so that their segments can be written over, as many as there is credit for.
    fn add_oldest(&mut self, draft: &mut Draft, head: u64) {
        let looks = self.credit / RECORD_HEAD_BYTES + 1;
        for (segment, id) in self.journal.records().take(looks) {
            if segment == head || self.credit == 0 {
                return;
            }
            let before = draft.records.len();
            if !self.add(draft, id, draft.room) {
                return;
            }
            let bytes = draft.records.len() - before;
            self.credit = self.credit.saturating_sub(bytes);
        }
    }

    /// Adds the record of a chunk if it fits.
    fn add(&self, draft: &mut Draft, id: ChunkKey, room: usize) -> bool {
        let Some(chunk) = self.chunks.get(&id) else {
            return true;
        };
        let bytes = record::record_bytes(chunk.states());
        // The first fits always: a segment is left when its rest is shorter than the longest record.
        let fits = draft.records.is_empty() || draft.records.len() + bytes <= room;
        if fits && draft.ids.insert(id) {
            let pending = chunk.pending.as_ref().map(|pending| &pending.state);
            record::encode(id, chunk.committed.as_ref(), pending, &mut draft.records);
        }
        fits
    }

    /// Notes what the batch makes durable and lets go.
    fn depart(&mut self, draft: Draft, header: &batch::Header, oldest: u64) -> InFlight {
        let (mut durable, mut retired) = (Vec::new(), Vec::new());
        for &id in &draft.ids {
            let Some(chunk) = self.chunks.get_mut(&id) else {
                continue;
            };
            let changes = std::mem::take(&mut chunk.changes).into_iter();
            durable.extend(changes.map(|(version, change)| Durable {
                id,
                version,
                change,
            }));
            retired.append(&mut chunk.retired);
            chunk.is_queued = false;
            chunk.in_flight_bytes = Some(record::record_bytes(chunk.states()));
        }
        InFlight {
            sequence: header.sequence,
            segment: header.segment,
            oldest,
            ids: draft.ids.into_iter().collect(),
            durable,
            retired,
        }
    }
}
