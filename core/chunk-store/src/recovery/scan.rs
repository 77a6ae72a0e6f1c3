//! What the journal's bytes say: finds the batches, follows them back from the last one, and keeps the newest record of
//! each chunk. What is not in that row of batches was begun and never flushed, or belongs to an earlier round.

use std::collections::{BTreeMap, BTreeSet};

use super::RecoveryError;
use crate::ChunkKey;
use crate::batch::{Found, Header, find};
use crate::journal::Journal;
use crate::record::{Placed, Record, State, record_bytes};
use crate::superblock::Superblock;

/// The batches of all segments.
#[derive(Debug, Default)]
pub(super) struct Scan {
    whole: BTreeMap<u64, (Header, Vec<Record>)>,
    torn: Vec<Header>,
    /// The last whole batch as it lies there.
    last_bytes: Vec<u8>,
}

/// A block that only the last batch refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unproven {
    pub(super) block: Placed,
    /// How many are valid.
    pub(super) bytes: u32,
}

/// What the journal says.
#[derive(Debug, Default)]
pub(super) struct Journaled {
    /// The newest record of each chunk, with its batch.
    pub(super) records: BTreeMap<ChunkKey, (Record, Header)>,
    /// Sequence and segment of each batch that counts.
    pub(super) batches: Vec<(u64, u64)>,
    /// The last batch. Nobody knows whether it was flushed.
    pub(super) last: Header,
    pub(super) last_bytes: Vec<u8>,
    /// Blocks that only the last batch refers to.
    pub(super) unproven: Vec<Unproven>,
    /// Above the sequence of each batch that was ever begun.
    pub(super) next: u64,
    /// The headers of batches behind the last one of which not all is there.
    pub(super) torn: Vec<Header>,
    pub(super) lost: usize,
}

impl Scan {
    /// Looks for batches in a segment at this place of the ring. Each begins on a sector: behind one that is torn another
    /// may follow.
    pub(super) fn add(&mut self, superblock: &Superblock, place: u64, bytes: &[u8]) {
        let mut offset = 0;
        while offset < bytes.len() {
            let mut step = superblock.geometry().sector_bytes as usize;
            match find(superblock, bytes, offset, place) {
                Found::Nothing => {}
                Found::Torn(header) => self.torn.push(header),
                Found::Whole(header, records, length) => {
                    step = length;
                    let last = self.whole.last_key_value().map(|(sequence, _)| *sequence);
                    if last < Some(header.sequence) {
                        let end = bytes.len().min(offset + length);
                        self.last_bytes = bytes[offset..end].to_vec();
                    }
                    self.whole
                        .entry(header.sequence)
                        .or_insert((header, records));
                }
            }
            offset += step;
        }
    }

    /// All segments are read.
    pub(super) fn end(
        mut self,
        superblock: &Superblock,
        accepts_loss: bool,
    ) -> Result<Journaled, RecoveryError> {
        let geometry = superblock.geometry();
        let Some((&newest, &(last, _))) = self.whole.last_key_value() else {
            return Err(RecoveryError::Empty {
                at: geometry.segment_at(0),
                segments: geometry.segments,
            });
        };
        let (row, mut lost) = self.row(newest, last.start);
        // A batch that is torn still says which one before it was flushed.
        let flushed = self.torn.iter().map(|header| header.flushed).max();
        let flushed = flushed.filter(|flushed| *flushed > newest);
        lost.extend(flushed);
        if let (Some(&near), false) = (lost.first(), accepts_loss) {
            let batches = lost.len();
            return Err(RecoveryError::Lost { batches, near });
        }
        let sequences = self.torn.iter().map(|header| header.sequence);
        // Two further: one that was begun behind it may have left nothing at all.
        let next = sequences.max().unwrap_or(0).max(newest + 1) + 1;
        self.torn.retain(|header| header.sequence > newest);
        let mut found = Journaled {
            last,
            last_bytes: self.last_bytes,
            next,
            torn: self.torn,
            lost: lost.len(),
            ..Journaled::default()
        };
        for sequence in row {
            let Some((header, records)) = self.whole.remove(&sequence) else {
                continue;
            };
            let before = found
                .batches
                .last()
                .map_or(header.segment, |(_, segment)| *segment);
            let reach = last.segment.checked_sub(header.segment);
            let is_in_order = header.segment >= before
                && reach.is_some_and(|reach| reach < u64::from(geometry.segments));
            if !is_in_order {
                return Err(RecoveryError::Impossible(
                    "batches of its journal are out of order",
                ));
            }
            found.batches.push((sequence, header.segment));
            for record in records {
                if sequence == newest {
                    let before = found.records.get(&record.id).map(|(record, _)| record);
                    let states = record.states();
                    let unproven = states.flat_map(|state| unproven(superblock, state, before));
                    found.unproven.extend(unproven);
                }
                found.records.insert(record.id, (record, header));
            }
        }
        // A chunk that is no more takes nothing.
        let records = found.records.values().map(|(record, _)| record);
        let held = records.filter(|record| record.states().next().is_some());
        let taken = held.map(|record| record_bytes(record.states()));
        if taken.sum::<usize>() > Journal::limit(geometry) {
            return Err(RecoveryError::Impossible(
                "its records take more room than the journal has",
            ));
        }
        Ok(found)
    }

    /// The batches that count, the oldest first: from the last one each names the one before it. And those that are
    /// missing.
    fn row(&self, newest: u64, start: u64) -> (Vec<u64>, Vec<u64>) {
        let (mut row, mut lost) = (vec![newest], Vec::new());
        let mut at = newest;
        while let Some((header, _)) = self.whole.get(&at) {
            let before = header.flushed;
            if before < start {
                break;
            }
            at = before;
            if !self.whole.contains_key(&before) {
                lost.push(before);
                // Where it led is not known; what is left from before it counts.
                match self.whole.range(start..before).next_back() {
                    Some((&earlier, _)) => at = earlier,
                    None => break,
                }
            }
            row.push(at);
        }
        row.reverse();
        (row, lost)
    }
}

/// The blocks of a state that an older record of the chunk has not.
fn unproven(superblock: &Superblock, state: &State, before: Option<&Record>) -> Vec<Unproven> {
    let states = before.into_iter().flat_map(Record::states);
    let proven = states.flat_map(|state| state.blocks.iter().flatten());
    let proven: BTreeSet<_> = proven.map(|block| (block.place, block.checksum)).collect();
    let blocks = state.blocks.iter().enumerate();
    let blocks = blocks.filter_map(|(index, block)| {
        let bytes = superblock.geometry().valid_bytes(state.length, index);
        block.map(|block| Unproven { block, bytes })
    });
    blocks
        .filter(|Unproven { block, .. }| !proven.contains(&(block.place, block.checksum)))
        .collect()
}
