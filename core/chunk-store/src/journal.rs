//! The journal's ring: where the next batch goes, which segments may be written over, how much of the ring has to be
//! written again before that, and how much room the chunks may take for that to go well. Knows the places of records,
//! not what is in them.

use std::collections::{BTreeMap, BTreeSet};

use crate::ChunkKey;
use crate::batch::{self, HEADER_BYTES, Header};
use crate::record::RECORD_LIMIT_BYTES;
use crate::superblock::Geometry;

/// Removals that may be pending at once when the journal is full: 64 x 2 KiB.
const REMOVALS: usize = 64;
/// One with the most notes.
const REMOVAL_BYTES: usize = crate::record::STATE_HEAD_BYTES + crate::NOTES_LIMIT_BYTES;

/// How much of the oldest records the next batch has to write again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cleaning {
    None,
    /// About as many bytes as new records take.
    Beside,
    /// As many as fit, and nothing else: the free segments are a reserve for that.
    Only,
}

/// The ring.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    geometry: Geometry,
    /// The sequence of the next batch.
    next: u64,
    /// That of the last one that was flushed.
    flushed: u64,
    /// Where the next batch goes.
    head: u64,
    used: usize,
    /// The first segment that a recovery would read, as the last flushed batch says.
    oldest_flushed: u64,
    /// The first batch of each segment.
    firsts: BTreeMap<u64, u64>,
    /// The segments of the newest flushed record of each chunk.
    places: BTreeSet<(u64, ChunkKey)>,
    /// What the next batch has to find of room in its segment.
    needs: usize,
}

/// Where a batch goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) header: Header,
    /// The first segment that is still needed once the batch is flushed.
    pub(crate) oldest: u64,
    /// Bytes for records.
    pub(crate) room: usize,
}

impl Journal {
    /// The journal behind its last flushed batch, which ends after `used` bytes of its segment.
    pub(crate) fn behind(geometry: Geometry, last: &Header, used: usize) -> Self {
        Self {
            geometry,
            next: last.sequence + 1,
            flushed: last.sequence,
            head: last.segment,
            used,
            oldest_flushed: last.segment,
            firsts: BTreeMap::from([(last.segment, last.sequence)]),
            places: BTreeSet::new(),
            needs: 0,
        }
    }

    /// What a recovery found besides: all batches with their segments, a number above every one that was ever used, and
    /// what room the next batch needs.
    pub(crate) fn recovered(&mut self, batches: &[(u64, u64)], next: u64, needs: usize) {
        for &(sequence, segment) in batches {
            let first = self.firsts.entry(segment).or_insert(sequence);
            *first = sequence.min(*first);
        }
        let oldest = self.firsts.keys().next();
        self.oldest_flushed = *oldest.unwrap_or(&self.head);
        (self.next, self.needs) = (next, needs);
    }

    /// Bytes that the newest records of all chunks may take, removals included. Then the journal is at most half full,
    /// and writing all of it again loses less at the ends of segments than the reserve holds.
    pub(crate) fn limit(geometry: &Geometry) -> usize {
        let (room, segment) = (geometry.room_bytes(), geometry.segment_bytes as usize);
        let (segments, reserve) = (geometry.segments as usize, reserve(geometry) as usize);
        let half = (segments - reserve - 2) * room / 2;
        half.min((reserve - 3) * segment * room / (segment - room))
    }

    /// The same for new writes, so that removals find room.
    pub(crate) fn write_limit(geometry: &Geometry) -> usize {
        let limit = Self::limit(geometry);
        limit - (REMOVALS * REMOVAL_BYTES).min(limit / 4)
    }

    /// The first segment that holds the newest record of a chunk.
    fn oldest(&self) -> u64 {
        self.places
            .first()
            .map_or(self.head, |(segment, _)| *segment)
    }

    /// Segments that may be written over.
    fn free(&self) -> u64 {
        u64::from(self.geometry.segments) - (self.head - self.oldest_flushed + 1)
    }

    /// How much the next batch cleans.
    pub(crate) fn cleaning(&self) -> Cleaning {
        // Behind a recovery the marks of damaged chunks come first, all in one batch.
        if self.needs > 0 {
            return Cleaning::None;
        }
        if self.free() < reserve(&self.geometry) {
            return Cleaning::Only;
        }
        match self.free() < u64::from(self.geometry.segments) / 2 {
            true => Cleaning::Beside,
            false => Cleaning::None,
        }
    }

    /// The newest record of each chunk with its segment, the oldest segments first.
    pub(crate) fn records(&self) -> impl Iterator<Item = (u64, ChunkKey)> {
        self.places.iter().copied()
    }

    /// A place for the next batch.
    pub(crate) fn begin(&mut self) -> Position {
        let segment_bytes = self.geometry.segment_bytes as usize;
        let least = self.geometry.round(HEADER_BYTES + RECORD_LIMIT_BYTES);
        if segment_bytes - self.used < least.max(self.needs) {
            assert!(self.free() > 0, "STORE-6: cleaning never lacks a segment");
            self.head += 1;
            self.used = 0;
        }
        self.firsts.entry(self.head).or_insert(self.next);
        let oldest = self.oldest();
        // Each segment from the oldest on has its first batch there; that of the head may be this one.
        let start = self.firsts.get(&oldest).copied().unwrap_or(self.next);
        let header = Header {
            sequence: self.next,
            flushed: self.flushed,
            start,
            segment: self.head,
            offset: self.used as u32,
        };
        let room = (segment_bytes - self.used).min(batch::LIMIT_BYTES) - HEADER_BYTES;
        Position {
            header,
            oldest,
            room,
        }
    }

    /// A batch of so many bytes is written there.
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.used += bytes;
        self.next += 1;
        self.needs = 0;
    }

    /// A batch is flushed.
    pub(crate) fn flushed(&mut self, sequence: u64, oldest: u64) {
        self.flushed = sequence;
        self.oldest_flushed = oldest;
        self.firsts = self.firsts.split_off(&oldest);
    }

    /// The newest record of a chunk is in another segment now, or nowhere.
    pub(crate) fn moved(&mut self, id: ChunkKey, from: Option<u64>, to: Option<u64>) {
        if let Some(segment) = from {
            self.places.remove(&(segment, id));
        }
        if let Some(segment) = to {
            self.places.insert((segment, id));
        }
    }
}

/// Segments that only cleaning may enter: one that a batch of new records has just entered, one that such a batch enters
/// after a recovery, one for the rest of a segment, and what is lost where segments are written again with gaps.
fn reserve(geometry: &Geometry) -> u64 {
    3 + u64::from(geometry.segments).div_ceil(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_journal_has_room_for_the_largest_record() {
        for (sector_bytes, segment_bytes) in [(512, 16 << 10), (4096, 32 << 10)] {
            let geometry = Geometry {
                sector_bytes,
                block_bytes: 4096,
                blocks: 1,
                segments: 8,
                segment_bytes,
            };
            let limit = Journal::write_limit(&geometry);
            assert!(limit > RECORD_LIMIT_BYTES, "{sector_bytes}: {limit}");
        }
    }

    /// A journal whose batches each fill a segment.
    fn fill(journal: &mut Journal, segments: u64) {
        for _ in 0..segments {
            let Position { header, oldest, .. } = journal.begin();
            journal.advance(16_384 - header.offset as usize);
            journal.flushed(header.sequence, oldest);
        }
    }

    #[test]
    fn a_segment_is_written_over_when_a_flushed_batch_says_that_it_is_not_needed() {
        let geometry = Geometry {
            sector_bytes: 512,
            block_bytes: 512,
            blocks: 1,
            segments: 8,
            segment_bytes: 16_384,
        };
        let mut journal = Journal::behind(geometry, &batch::FIRST, 512);
        let (one, other) = (ChunkKey(1), ChunkKey(2));
        journal.moved(one, None, Some(0));
        fill(&mut journal, 3);
        journal.moved(other, None, Some(2));
        assert_eq!((journal.free(), journal.cleaning()), (5, Cleaning::None));
        fill(&mut journal, 2);
        assert_eq!((journal.free(), journal.cleaning()), (3, Cleaning::Only));
        journal.moved(one, Some(0), Some(4));
        let Position { header, oldest, .. } = journal.begin();
        journal.advance(512);
        // STORE-6: a power cut now may leave a journal whose last batch begins with segment 0.
        assert_eq!((header.start, oldest, journal.free()), (4, 2, 2));
        journal.flushed(header.sequence, oldest);
        assert_eq!((journal.free(), journal.cleaning()), (4, Cleaning::None));
    }

    #[test]
    fn a_large_journal_holds_the_records_of_its_disk() {
        // 1 TiB in chunks of 4 MiB with 200 bytes of notes, and one in ten pending: a journal of 0.06 %.
        let geometry = Geometry {
            sector_bytes: 4096,
            block_bytes: 64 << 10,
            blocks: 16 << 20,
            segments: 640,
            segment_bytes: 1 << 20,
        };
        let record = 20 + 24 + 512 + 200;
        let needed = (256 << 10) * record * 11 / 10;
        let limit = Journal::write_limit(&geometry);
        assert!(limit > needed, "{limit} {needed}");
    }
}
