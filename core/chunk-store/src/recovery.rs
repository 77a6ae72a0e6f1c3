//! Opening a disk: reads the journal once, finds the newest record of each chunk, and reads the blocks that the last
//! batch alone refers to, since nobody knows whether it was flushed. What was read of that batch and its blocks is written
//! once more in its place, what is torn is erased, and both are flushed: what the store says when it opens outlives a
//! power cut even if an earlier flush had failed. Everything that was read is untrusted.

mod scan;

use std::collections::BTreeSet;

use crate::ChunkStore;
use crate::edit::verify;
use crate::journal::Journal;
use crate::superblock::Superblock;
use scan::{Journaled, Scan, Unproven};

/// What the shell does next.
#[derive(Debug, PartialEq, Eq)]
pub enum RecoveryStep<'a> {
    /// Reads, and answers with [`StoreRecovery::read`].
    Read {
        /// In bytes from the disk's start.
        at: u64,
        /// How many, whole sectors.
        bytes: usize,
    },
    /// Writes, and answers with [`StoreRecovery::done`].
    Write {
        /// In bytes from the disk's start.
        at: u64,
        /// What.
        bytes: &'a [u8],
    },
    /// Flushes the disk, and answers with [`StoreRecovery::done`].
    Flush,
    /// Calls [`StoreRecovery::finish`].
    Finish,
}

/// What a recovery has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoverySummary {
    /// Chunks with a state.
    pub chunks: usize,
    /// Those of them some of whose bytes are lost.
    pub damaged: usize,
    /// Batches that were begun and are not whole. No flush after them was reported.
    pub torn: usize,
    /// Batches that were flushed and cannot be read any more: what they said is lost. Not 0 only where loss is accepted.
    pub lost: usize,
}

/// Why a store cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// The journal holds no batch of this store.
    #[error(
        "failed to open the store: its journal, {segments} segments from byte {at}, holds no batch. Format the disk and \
         fill it from its chain"
    )]
    Empty {
        /// Where the journal begins.
        at: u64,
        /// How many segments it has.
        segments: u32,
    },
    /// Records that were flushed are gone, so that nobody knows which chunks are older than they should be.
    #[error(
        "failed to open the store: {batches} flushed batches of its journal cannot be read, near sequence {near}. Format \
         the disk and fill it from its chain; if this is the last copy, accept the loss"
    )]
    Lost {
        /// How many at least.
        batches: usize,
        /// One of them.
        near: u64,
    },
    /// No store has written this.
    #[error("failed to open the store: {0}. Format the disk and fill it from its chain")]
    Impossible(&'static str),
    /// The shell has answered another step than it was asked for.
    #[error("failed to open the store: a step was answered that was not asked for")]
    OutOfTurn,
}

/// The opening of a disk, step by step. Whoever cannot carry out a write or a flush drops it, and begins again.
#[derive(Debug)]
pub struct StoreRecovery {
    superblock: Superblock,
    accepts_loss: bool,
    phase: Phase,
    scan: Scan,
    journaled: Journaled,
    unproven: Vec<Unproven>,
    bad: BTreeSet<u32>,
    /// A sector.
    zeros: Vec<u8>,
}

#[derive(Debug)]
enum Phase {
    Segment(u32),
    /// The segment cannot be read at once. These are its sectors so far.
    Sectors(u32, Vec<u8>),
    /// The last of the unproven blocks is read.
    Block,
    /// It is as it should be, and is written again.
    Again(Vec<u8>),
    Batch,
    /// So many torn batches still have their headers.
    Erase(usize),
    Flush,
    Finish,
    /// There is no store, and nothing was written.
    Failed(RecoveryError),
}

impl StoreRecovery {
    /// Begins to open a disk. Fails at its end if flushed batches are lost, unless `accepts_loss`: then chunks may be
    /// there in older states than were acknowledged, or again although they were removed.
    #[must_use]
    pub fn new(superblock: Superblock, accepts_loss: bool) -> Self {
        Self {
            superblock,
            accepts_loss,
            phase: Phase::Segment(0),
            scan: Scan::default(),
            journaled: Journaled::default(),
            unproven: Vec::new(),
            bad: BTreeSet::new(),
            zeros: vec![0; superblock.geometry().sector_bytes as usize],
        }
    }

    /// What has to be done next.
    #[must_use]
    pub fn step(&self) -> RecoveryStep<'_> {
        let geometry = self.superblock.geometry();
        match &self.phase {
            Phase::Segment(segment) => RecoveryStep::Read {
                at: geometry.segment_at(u64::from(*segment)),
                bytes: geometry.segment_bytes as usize,
            },
            Phase::Sectors(segment, before) => RecoveryStep::Read {
                at: geometry.segment_at(u64::from(*segment)) + before.len() as u64,
                bytes: geometry.sector_bytes as usize,
            },
            Phase::Block => {
                let (at, bytes) = self.block();
                RecoveryStep::Read { at, bytes }
            }
            Phase::Again(bytes) => {
                let (at, _) = self.block();
                RecoveryStep::Write { at, bytes }
            }
            Phase::Batch => {
                let header = &self.journaled.last;
                RecoveryStep::Write {
                    at: geometry.segment_at(header.segment) + u64::from(header.offset),
                    bytes: &self.journaled.last_bytes,
                }
            }
            Phase::Erase(left) => RecoveryStep::Write {
                at: self.torn_at(*left),
                bytes: &self.zeros,
            },
            Phase::Flush => RecoveryStep::Flush,
            Phase::Finish | Phase::Failed(_) => RecoveryStep::Finish,
        }
    }

    /// These bytes were read. None: they cannot be.
    pub fn read(&mut self, bytes: Option<&[u8]>) -> Result<(), RecoveryError> {
        let RecoveryStep::Read { bytes: asked, .. } = self.step() else {
            return Err(RecoveryError::OutOfTurn);
        };
        let bytes = bytes.filter(|bytes| bytes.len() == asked);
        let phase = std::mem::replace(&mut self.phase, Phase::Failed(RecoveryError::OutOfTurn));
        self.phase = match phase {
            Phase::Segment(segment) => match bytes {
                Some(bytes) => self.scanned(segment, bytes),
                None => Phase::Sectors(segment, Vec::new()),
            },
            Phase::Sectors(segment, mut before) => {
                match bytes {
                    Some(bytes) => before.extend(bytes),
                    None => before.resize(before.len() + asked, 0),
                }
                match before.len() < self.superblock.geometry().segment_bytes as usize {
                    true => Phase::Sectors(segment, before),
                    false => self.scanned(segment, &before),
                }
            }
            Phase::Block => self.checked(bytes),
            // None of these asks for bytes.
            Phase::Again(_)
            | Phase::Batch
            | Phase::Erase(_)
            | Phase::Flush
            | Phase::Finish
            | Phase::Failed(_) => return Err(RecoveryError::OutOfTurn),
        };
        Ok(())
    }

    /// What had to be written or flushed is.
    pub fn done(&mut self) -> Result<(), RecoveryError> {
        self.phase = match &self.phase {
            Phase::Again(_) => {
                self.unproven.pop();
                self.next_block()
            }
            Phase::Batch => self.next_torn(self.journaled.torn.len()),
            Phase::Erase(left) => self.next_torn(*left - 1),
            Phase::Flush => Phase::Finish,
            Phase::Segment(_)
            | Phase::Sectors(..)
            | Phase::Block
            | Phase::Finish
            | Phase::Failed(_) => return Err(RecoveryError::OutOfTurn),
        };
        Ok(())
    }

    /// The store, once every step is done, or why there is none.
    pub fn finish(mut self) -> Result<(ChunkStore, RecoverySummary), RecoveryError> {
        match self.phase {
            Phase::Finish => {}
            Phase::Failed(error) => return Err(error),
            Phase::Segment(_)
            | Phase::Sectors(..)
            | Phase::Block
            | Phase::Again(_)
            | Phase::Batch
            | Phase::Erase(_)
            | Phase::Flush => return Err(RecoveryError::OutOfTurn),
        }
        let geometry = *self.superblock.geometry();
        let end = self.journaled.last.offset as usize + self.journaled.last_bytes.len();
        let mut journal = Journal::behind(geometry, &self.journaled.last, end);
        let needs = match self.bad.is_empty() {
            true => 0,
            false => self.journaled.last_bytes.len(),
        };
        journal.recovered(&self.journaled.batches, self.journaled.next, needs);
        let mut store = ChunkStore::with(self.superblock, journal);
        // After a loss an old record may claim a block that was used again since: the newest one has it.
        let records = std::mem::take(&mut self.journaled.records);
        let mut records: Vec<_> = records.into_values().collect();
        records.sort_by_key(|(record, header)| (std::cmp::Reverse(header.sequence), record.id));
        for (mut record, header) in records {
            let mut is_changed = false;
            for state in record.states_mut() {
                let places: BTreeSet<u32> = state.places().collect();
                let is_alone = places.len() == state.places().count()
                    && places.iter().all(|place| store.is_free(*place));
                if !is_alone {
                    state.blocks.fill(None);
                }
                let is_bad = !is_alone || !places.is_disjoint(&self.bad);
                is_changed |= is_bad && !state.is_damaged;
                state.is_damaged |= is_bad;
            }
            store.restore(record, header.segment, is_changed);
        }
        let usage = store.usage();
        let summary = RecoverySummary {
            chunks: usage.chunks,
            damaged: usage.damaged,
            torn: self.journaled.torn.len(),
            lost: self.journaled.lost,
        };
        Ok((store, summary))
    }

    /// A segment is read.
    fn scanned(&mut self, segment: u32, bytes: &[u8]) -> Phase {
        self.scan.add(&self.superblock, u64::from(segment), bytes);
        if segment + 1 < self.superblock.geometry().segments {
            return Phase::Segment(segment + 1);
        }
        let scan = std::mem::take(&mut self.scan);
        match scan.end(&self.superblock, self.accepts_loss) {
            Ok(journaled) => self.journaled = journaled,
            Err(error) => return Phase::Failed(error),
        }
        self.unproven = std::mem::take(&mut self.journaled.unproven);
        self.next_block()
    }

    /// The last of the unproven blocks is read.
    fn checked(&mut self, bytes: Option<&[u8]>) -> Phase {
        let Some(Unproven {
            block,
            bytes: valid,
        }) = self.unproven.last()
        else {
            return Phase::Batch;
        };
        let read = bytes.filter(|read| verify(read, 0, *valid, block.checksum).is_ok());
        if let Some(read) = read {
            return Phase::Again(read.to_vec());
        }
        self.bad.insert(block.place);
        self.unproven.pop();
        self.next_block()
    }

    fn next_block(&self) -> Phase {
        match self.unproven.is_empty() {
            true => Phase::Batch,
            false => Phase::Block,
        }
    }

    /// A torn batch loses its header. Otherwise the next batch, which is written over it, could be torn in such a way that
    /// the two together make the first one whole.
    fn next_torn(&self, left: usize) -> Phase {
        match left {
            0 => Phase::Flush,
            1.. => Phase::Erase(left),
        }
    }

    fn torn_at(&self, left: usize) -> u64 {
        let header = &self.journaled.torn[left - 1];
        let segment_at = self.superblock.geometry().segment_at(header.segment);
        segment_at + u64::from(header.offset)
    }

    /// Where the unproven block is, and how much is read of it.
    fn block(&self) -> (u64, usize) {
        let geometry = self.superblock.geometry();
        let last = self.unproven.last();
        let (place, bytes) = last.map_or((0, 0), |one| (one.block.place, one.bytes));
        (geometry.block_at(place), geometry.round(bytes as usize))
    }
}
