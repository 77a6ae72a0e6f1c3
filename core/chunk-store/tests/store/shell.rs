//! A small shell: carries out the plans of a store on a simulated disk, whose power goes after any step.

use std::collections::BTreeSet;

use chunk_store::{
    BlockPlan, ChunkKey, ChunkStore, Durable, Geometry, ReadPlan, RecoveryError, RecoveryStep,
    RecoverySummary, Refused, StateEdit, StateVersion, StoreRecovery, Superblock, Which, checksum,
};
use sim::{Disk, Rng};

const FILE: u32 = 0;

/// The power has gone.
#[derive(Debug)]
pub(crate) struct Cut;

/// Why a read has no bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoBytes {
    Refused(Refused),
    Bad,
}

pub(crate) struct Shell {
    pub(crate) disk: Disk,
    pub(crate) store: ChunkStore,
    pub(crate) superblock: Superblock,
    /// The power goes after so many steps of the disk.
    pub(crate) steps_left: Option<u64>,
    pub(crate) steps: u64,
    /// The batch that is written and not flushed.
    pub(crate) written: Option<u64>,
    /// How often the journal has begun again at its start.
    pub(crate) rounds: u64,
    last_at: u64,
}

pub(crate) fn geometry(segments: u32, blocks: u32) -> Geometry {
    Geometry {
        sector_bytes: 512,
        block_bytes: 1024,
        blocks,
        segments,
        segment_bytes: 16 << 10,
    }
}

impl Shell {
    /// A store on a disk that has just been formatted.
    pub(crate) fn new(rng: &mut Rng, geometry: Geometry) -> Self {
        let superblock = Superblock::new(geometry, 77).unwrap();
        let total = geometry.total_bytes() as usize;
        let mut disk = Disk::new(rng.fork(), total);
        disk.write(FILE, total - 1, &[0]).unwrap();
        for write in superblock.format() {
            disk.write(FILE, write.at as usize, &write.bytes).unwrap();
        }
        disk.flush(FILE).unwrap();
        disk.flush_names();
        Self {
            disk,
            store: superblock.empty_store(),
            superblock,
            steps_left: None,
            steps: 0,
            written: None,
            rounds: 0,
            last_at: 0,
        }
    }

    fn sector_bytes(&self) -> usize {
        self.superblock.geometry().sector_bytes as usize
    }

    pub(crate) fn block(&self, at: u64, bytes: u32) -> Option<Vec<u8>> {
        let end = (at as usize + bytes as usize).next_multiple_of(self.sector_bytes());
        let read = self.disk.read(FILE, at as usize..end);
        read.ok().map(<[u8]>::to_vec)
    }

    pub(crate) fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Cut> {
        self.disk.write(FILE, at as usize, bytes).unwrap();
        self.stepped()
    }

    fn stepped(&mut self) -> Result<(), Cut> {
        self.steps += 1;
        if let Some(left) = &mut self.steps_left {
            *left -= 1;
            if *left == 0 {
                return Err(Cut);
            }
        }
        Ok(())
    }

    /// Writes the blocks of an edit. None: an old block is bad.
    pub(crate) fn fill(
        &mut self,
        id: ChunkKey,
        plans: &[BlockPlan],
        new: &[u8],
    ) -> Result<Option<Vec<u32>>, Cut> {
        let mut sums = Vec::new();
        for plan in plans {
            let old = plan
                .old
                .map(|old| self.block(old.at, old.bytes).unwrap_or_default());
            let Ok(mut block) = plan.fill(&old.unwrap_or_default(), new) else {
                let at = plan.old.unwrap().at;
                assert!(self.store.mark_damaged(id, at).unwrap());
                return Ok(None);
            };
            sums.push(checksum(&block));
            block.resize(block.len().next_multiple_of(self.sector_bytes()), 0xee);
            self.write(plan.at, &block)?;
        }
        Ok(Some(sums))
    }

    /// Prepares and writes an edit at once. False: an old block is bad.
    pub(crate) fn edit(
        &mut self,
        id: u128,
        version: u128,
        base: Option<u128>,
        edit: StateEdit,
        new: &[u8],
    ) -> Result<bool, Refused> {
        self.edit_noted(id, version, base, edit, new, Vec::new())
    }

    pub(crate) fn edit_noted(
        &mut self,
        id: u128,
        version: u128,
        base: Option<u128>,
        edit: StateEdit,
        new: &[u8],
        notes: Vec<u8>,
    ) -> Result<bool, Refused> {
        let id = ChunkKey(id);
        let prepared = self.store.prepare(
            id,
            StateVersion(version),
            base.map(StateVersion),
            edit,
            notes,
        );
        let (ticket, plans) = prepared?;
        match self.fill(id, &plans, new).unwrap() {
            Some(sums) => self.store.written(ticket, &sums)?,
            None => {
                self.store.abandon(ticket)?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the next batch, if there is one.
    pub(crate) fn write_batch(&mut self) -> Result<bool, Cut> {
        let Some(batch) = self.store.take_batch() else {
            return Ok(false);
        };
        self.written = Some(batch.sequence);
        self.rounds += u64::from(batch.at < self.last_at);
        self.last_at = batch.at;
        self.write(batch.at, &batch.bytes)?;
        Ok(true)
    }

    pub(crate) fn flush(&mut self) -> Result<Vec<Durable>, Cut> {
        self.disk.flush(FILE).unwrap();
        let durable = self.written.take();
        let durable = durable.map(|sequence| self.store.batch_flushed(sequence).unwrap());
        self.stepped()?;
        Ok(durable.unwrap_or_default())
    }

    /// Writes and flushes until there is nothing left.
    pub(crate) fn sync(&mut self) {
        self.flush().unwrap();
        let mut batches = 0;
        while self.write_batch().unwrap() {
            self.flush().unwrap();
            batches += 1;
            assert!(batches < 1000, "batches without end");
        }
    }

    /// Edits, and commits what was edited.
    pub(crate) fn put(
        &mut self,
        id: u128,
        version: u128,
        base: Option<u128>,
        edit: StateEdit,
        new: &[u8],
    ) -> Result<(), Refused> {
        self.edit(id, version, base, edit, new)?;
        self.sync();
        self.store.commit(ChunkKey(id), StateVersion(version))?;
        self.sync();
        Ok(())
    }

    /// Reads what a plan says. A bad block is reported.
    pub(crate) fn read_plan(&mut self, plan: &ReadPlan) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for piece in &plan.pieces {
            let Some(at) = piece.at else {
                bytes.resize(bytes.len() + piece.wanted.len(), 0);
                continue;
            };
            let block = self.block(at, piece.bytes).unwrap_or_default();
            match piece.take(&block) {
                Ok(wanted) => bytes.extend(wanted),
                Err(bad) => {
                    self.store.mark_damaged(plan.id, bad.at).unwrap();
                    return None;
                }
            }
        }
        Some(bytes)
    }

    pub(crate) fn read(&mut self, id: u128, which: Which) -> Result<Vec<u8>, NoBytes> {
        let read = self.store.read(ChunkKey(id), which, 0..u32::MAX);
        let (guard, plan) = read.map_err(NoBytes::Refused)?;
        let bytes = self.read_plan(&plan).ok_or(NoBytes::Bad);
        self.store.end_read(guard).unwrap();
        bytes
    }

    /// The power goes and comes back.
    pub(crate) fn cut_power(&mut self) {
        self.disk.cut_power();
        self.written = None;
        self.steps_left = None;
    }

    /// Opens the store again.
    pub(crate) fn open(&mut self) -> Result<Result<RecoverySummary, RecoveryError>, Cut> {
        self.open_accepting(false)
    }

    pub(crate) fn open_accepting(
        &mut self,
        accepts_loss: bool,
    ) -> Result<Result<RecoverySummary, RecoveryError>, Cut> {
        self.written = None;
        let mut recovery = StoreRecovery::new(self.superblock, accepts_loss);
        loop {
            match recovery.step() {
                RecoveryStep::Read { at, bytes } => {
                    let read = self.block(at, bytes as u32);
                    recovery.read(read.as_deref()).unwrap();
                }
                RecoveryStep::Write { at, bytes } => {
                    let bytes = bytes.to_vec();
                    self.write(at, &bytes)?;
                    recovery.done().unwrap();
                }
                RecoveryStep::Flush => {
                    self.disk.flush(FILE).unwrap();
                    self.stepped()?;
                    recovery.done().unwrap();
                }
                RecoveryStep::Finish => {
                    let finished = recovery.finish();
                    return Ok(finished.map(|(store, summary)| {
                        self.store = store;
                        summary
                    }));
                }
            }
        }
    }

    /// No block belongs to two chunks, and every block that belongs to none is free. Holds when nothing is under way and
    /// no chunk is damaged. STORE-3.
    pub(crate) fn check_blocks(&mut self) {
        let ids: Vec<_> = self
            .store
            .versions(None, usize::MAX)
            .map(|chunk| {
                let pending = chunk.pending.filter(|state| !state.is_removal);
                (
                    chunk.id,
                    chunk.committed.is_some(),
                    pending.map(|state| state.version),
                )
            })
            .collect();
        let mut all = BTreeSet::new();
        for (id, has_committed, pending) in ids {
            let committed = has_committed.then_some(Which::Committed);
            let mut own = BTreeSet::new();
            for which in committed.into_iter().chain(pending.map(Which::Pending)) {
                let (guard, plan) = self.store.read(id, which, 0..u32::MAX).unwrap();
                self.store.end_read(guard).unwrap();
                own.extend(plan.pieces.iter().filter_map(|piece| piece.at));
            }
            for at in own {
                assert!(
                    all.insert(at),
                    "STORE-3: the block at {at} belongs to two chunks"
                );
            }
        }
        let usage = self.store.usage();
        assert_eq!(all.len() + usage.free_blocks, usage.blocks, "STORE-3");
    }
}
