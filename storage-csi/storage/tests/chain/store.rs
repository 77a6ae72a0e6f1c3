//! A target on a simulated disk: carries out its jobs and batches, and loses its power.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use chunk_store::{BadBlock, Geometry, RecoveryStep, StoreRecovery, Superblock, checksum};
use craq::{ChainRefusal, ChunkId, ChunkState, Chunks, Records, Update, Version};
use sim::{Disk, Rng};
use storage::target::{ContentRead, EditOutcome, Target, WriteJob};

const FILE: u32 = 0;
const SECTOR: usize = 512;
/// Not the first.
const CHAIN: u32 = 5;

/// What is durable.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Durable {
    Prepared(ChunkId, Version),
    Discarded(ChunkId, Version),
    Lost(ChunkId, Version),
}

#[derive(Debug)]
pub(crate) struct Store {
    target: RefCell<Target<Vec<u8>>>,
    disk: Disk,
    superblock: Superblock,
    pub(crate) is_full: bool,
    /// Changes since everything was written and flushed.
    changes: Cell<usize>,
}

impl Default for Store {
    fn default() -> Self {
        let geometry = Geometry {
            sector_bytes: 512,
            block_bytes: 512,
            blocks: 1_200,
            segments: 8,
            segment_bytes: 16 << 10,
        };
        let superblock = Superblock::new(geometry, 77).unwrap();
        let total = geometry.total_bytes() as usize;
        let mut disk = Disk::new(Rng::new(77), total);
        disk.write(FILE, total - 1, &[0]).unwrap();
        for write in superblock.format() {
            disk.write(FILE, write.at as usize, &write.bytes).unwrap();
        }
        disk.flush(FILE).unwrap();
        disk.flush_names();
        Self {
            target: RefCell::new(Target::new(superblock.empty_store())),
            disk,
            superblock,
            is_full: false,
            changes: Cell::new(0),
        }
    }
}

impl Store {
    fn block(&self, at: u64, bytes: u32) -> Vec<u8> {
        let end = (at as usize + bytes as usize).next_multiple_of(SECTOR);
        let read = self.disk.read(FILE, at as usize..end);
        read.map(<[u8]>::to_vec).unwrap_or_default()
    }

    fn changed(&self) {
        self.changes.set(self.changes.get() + 1);
    }

    pub(crate) fn unflushed(&self) -> usize {
        self.changes.get()
    }

    /// Does so many jobs, then flushes what there is.
    pub(crate) fn flush(&mut self, count: usize) -> Vec<Durable> {
        let mut did_something = false;
        for _ in 0..count {
            let Some(job) = self.target.get_mut().take_job() else {
                break;
            };
            did_something = true;
            let written = self.write(&job);
            let written = written.as_deref().map_err(|bad| *bad);
            self.target.get_mut().done(job, written).unwrap();
        }
        if let Some(batch) = self.target.get_mut().take_batch() {
            did_something = true;
            self.disk
                .write(FILE, batch.at as usize, &batch.bytes)
                .unwrap();
            self.disk.flush(FILE).unwrap();
            self.target.get_mut().flushed(batch.sequence).unwrap();
        }
        let mut durable = Vec::new();
        while let Some(event) = self.target.get_mut().take_event() {
            did_something = true;
            assert_eq!(event.chain, CHAIN);
            let (chunk, version) = (event.chunk, event.version);
            durable.push(match event.outcome {
                EditOutcome::Durable => Durable::Prepared(chunk, version),
                EditOutcome::Discarded => Durable::Discarded(chunk, version),
                EditOutcome::Lost => Durable::Lost(chunk, version),
            });
        }
        self.changes.set(did_something.into());
        durable
    }

    fn write(&mut self, job: &WriteJob<Vec<u8>>) -> Result<Vec<u32>, BadBlock> {
        let new = job.bytes.as_deref().unwrap_or_default();
        let mut sums = Vec::new();
        for plan in &job.plans {
            let old = plan.old.map(|old| self.block(old.at, old.bytes));
            let mut block = plan.fill(&old.unwrap_or_default(), new)?;
            sums.push(checksum(&block));
            block.resize(block.len().next_multiple_of(SECTOR), 0xee);
            let written = self.disk.write(FILE, plan.at as usize, &block);
            assert_eq!(written, Ok(()));
        }
        Ok(sums)
    }

    /// The power fails and comes back.
    pub(crate) fn crash(&mut self, _rng: &mut Rng) {
        self.disk.cut_power();
        let mut recovery = StoreRecovery::new(self.superblock, false);
        let store = loop {
            match recovery.step() {
                RecoveryStep::Read { at, bytes } => {
                    let read = self.disk.read(FILE, at as usize..at as usize + bytes);
                    recovery.read(read.ok()).unwrap();
                }
                RecoveryStep::Write { at, bytes } => {
                    let bytes = bytes.to_vec();
                    self.disk.write(FILE, at as usize, &bytes).unwrap();
                    recovery.done().unwrap();
                }
                RecoveryStep::Flush => {
                    self.disk.flush(FILE).unwrap();
                    recovery.done().unwrap();
                }
                RecoveryStep::Finish => break recovery.finish().unwrap().0,
            }
        };
        self.target = RefCell::new(Target::new(store));
        self.changes.set(1);
    }

    /// Committed contents that a lost sector could damage, and whose commits are on the disk: see craq.md.
    pub(crate) fn bytes_that_can_rot(&self) -> Vec<(ChunkId, Version)> {
        if self.unflushed() > 0 {
            return Vec::new();
        }
        let all = self.target.borrow().versions(CHAIN, None, usize::MAX);
        let chunks = all.into_iter().map(|(chunk, _)| (chunk, self.state(chunk)));
        let with_bytes = chunks.filter(|(chunk, state)| {
            let is_there = state.committed != Version::NONE && !state.is_removed;
            is_there && !state.is_damaged && self.has_bytes(*chunk)
        });
        with_bytes
            .map(|(chunk, state)| (chunk, state.committed))
            .collect()
    }

    fn has_bytes(&self, chunk: ChunkId) -> bool {
        let length = self.target.borrow().length(CHAIN, chunk);
        length.is_some_and(|length| length > 0)
    }

    /// Whether this content outlives a loss of power.
    pub(crate) fn keeps(&self, chunk: ChunkId, version: Version) -> bool {
        let state = self.state(chunk);
        state.committed == version && self.read(chunk, version).is_some()
    }

    /// A sector of a committed content cannot be read any more.
    pub(crate) fn rot(&mut self, chunk: ChunkId) {
        let places = self.places(chunk);
        if let Some(at) = places.first() {
            self.disk.lose_sector(FILE, *at as usize);
        }
    }

    fn places(&self, chunk: ChunkId) -> Vec<u64> {
        let version = self.state(chunk).committed;
        let mut target = self.target.borrow_mut();
        let Ok(ContentRead::Plan(guard, plan)) = target.read(CHAIN, chunk, version, 0..u32::MAX)
        else {
            return Vec::new();
        };
        target.end_read(guard, &plan, None);
        plan.pieces.iter().filter_map(|piece| piece.at).collect()
    }

    /// Whether committed bytes cannot be read, noticed or not.
    pub(crate) fn is_rotten(&self, chunk: ChunkId) -> bool {
        let state = self.state(chunk);
        let is_there = state.committed != Version::NONE && !state.is_removed;
        let read = || self.read_noticing(chunk, state.committed, false);
        is_there && (state.is_damaged || read().is_none_or(|read| read.is_err()))
    }

    /// Somebody has read bytes that are gone.
    pub(crate) fn notice(&mut self, chunk: ChunkId) {
        let version = self.state(chunk).committed;
        self.read(chunk, version);
        self.changed();
    }

    /// The bytes of a content, or the block that is bad; nothing if there are none to read. Who notices that has damaged
    /// the chunk.
    fn read_noticing(
        &self,
        chunk: ChunkId,
        version: Version,
        notices: bool,
    ) -> Option<Result<Vec<u8>, BadBlock>> {
        let mut target = self.target.borrow_mut();
        let (guard, plan) = match target.read(CHAIN, chunk, version, 0..u32::MAX).ok()? {
            ContentRead::Nothing => return Some(Ok(Vec::new())),
            ContentRead::Plan(guard, plan) => (guard, plan),
        };
        let mut bytes = Vec::new();
        let mut bad = None;
        for piece in &plan.pieces {
            match piece.at {
                None => bytes.resize(bytes.len() + piece.wanted.len(), 0),
                Some(at) => match piece.take(&self.block(at, piece.bytes)) {
                    Ok(taken) => bytes.extend(taken),
                    Err(found) => bad = bad.or(Some(found)),
                },
            }
        }
        if notices && bad.is_some() {
            self.changed();
        }
        target.end_read(guard, &plan, bad.filter(|_| notices));
        Some(bad.map_or(Ok(bytes), Err))
    }

    /// The bytes of a content; nothing if they are gone.
    pub(crate) fn read(&self, chunk: ChunkId, version: Version) -> Option<Vec<u8>> {
        self.read_noticing(chunk, version, true)?.ok()
    }

    /// All that is committed, removed chunks left out.
    pub(crate) fn committed(&self) -> BTreeMap<ChunkId, (Version, Vec<u8>)> {
        let mut all = BTreeMap::new();
        let versions = self.target.borrow().versions(CHAIN, None, usize::MAX);
        for (chunk, _) in versions {
            let state = self.state(chunk);
            assert_eq!(state.pending, None, "{chunk:?} is dirty at the end");
            if !state.is_removed {
                let bytes = self.read(chunk, state.committed).unwrap();
                all.insert(chunk, (state.committed, bytes));
            }
        }
        all
    }
}

impl Chunks<Vec<u8>> for Store {
    fn state(&self, chunk: ChunkId) -> ChunkState {
        self.target.borrow().state(CHAIN, chunk)
    }

    fn records(&self, chunk: ChunkId, version: Version) -> Records {
        self.target.borrow().records(CHAIN, chunk, version)
    }

    fn prepare(&mut self, update: &Update<Vec<u8>>) -> Result<(), ChainRefusal> {
        if self.is_full && update.edit.builds_on_base() {
            return Err(ChainRefusal::Full);
        }
        self.changed();
        self.target.get_mut().chain(CHAIN).prepare(update)
    }

    fn commit(&mut self, chunk: ChunkId, version: Version) {
        self.changed();
        self.target.get_mut().chain(CHAIN).commit(chunk, version);
        assert_eq!(
            self.state(chunk).committed,
            version,
            "what is pending is committed"
        );
    }

    fn discard(&mut self, chunk: ChunkId, version: Version) {
        self.changed();
        self.target.get_mut().chain(CHAIN).discard(chunk, version);
    }

    fn forget(&mut self, chunk: ChunkId) {
        self.changed();
        self.target.get_mut().chain(CHAIN).forget(chunk);
    }

    fn repair(&mut self, chunk: ChunkId, version: Version, content: Option<Vec<u8>>) {
        self.changed();
        self.target
            .get_mut()
            .chain(CHAIN)
            .repair(chunk, version, content);
    }

    fn versions(&self, after: Option<ChunkId>, limit: usize) -> Vec<(ChunkId, Version)> {
        self.target.borrow().versions(CHAIN, after, limit)
    }
}
