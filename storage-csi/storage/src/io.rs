//! The threads of a target's disk: some read and write blocks, one writes batches and flushes. Each job comes back when it is
//! done, over one channel of the service.

use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use chain_link::{Buffers, ChunkBytes};
use chunk_store::{BadBlock, BlockPlan, JournalBatch, ReadGuard, ReadPlan, checksum};
use link::wake_fd::WakeFd;

use crate::disk::{DiskMemory, TargetDisk};
use crate::target::WriteJob;

/// Threads that read and write blocks of a target: two for each direction keep an NVMe disk and a slow one busy.
const WORKERS: usize = 4;
/// What a thread writes or reads at a time: a block.
const MEMORY_BYTES: usize = 64 << 10;

/// What somebody reads for.
#[derive(Debug)]
pub(crate) struct DiskRead<W> {
    pub(crate) guard: ReadGuard,
    pub(crate) plan: ReadPlan,
    /// For whom.
    pub(crate) who: W,
}

/// A job that is done.
#[derive(Debug)]
pub(crate) enum DiskDone<W> {
    Written(WriteJob<ChunkBytes>, Result<Vec<u32>, Failure>),
    Read(DiskRead<W>, Result<ChunkBytes, Failure>),
    Flushed(u64, io::Result<()>),
}

/// Why blocks were not read or written.
#[derive(Debug)]
pub(crate) enum Failure {
    /// These bytes are not what was written, or cannot be read.
    Bad(BadBlock),
    /// The disk does not take bytes.
    Disk(io::Error),
    /// There is no memory.
    Memory(String),
}

#[derive(Debug)]
enum Job<W> {
    Write(WriteJob<ChunkBytes>),
    Read(DiskRead<W>),
}

/// Where the jobs of a target go. Its threads end with it, when they have done what they have: nobody uses the disk then.
#[derive(Debug)]
pub(crate) struct DiskThreads<W> {
    queues: Option<Queues<W>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Queues<W> {
    jobs: Sender<Job<W>>,
    batches: Sender<JournalBatch>,
}

impl<W> Drop for DiskThreads<W> {
    fn drop(&mut self) {
        self.queues = None;
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            thread.join().ok();
        }
    }
}

/// Where what is done goes, with the number of its target.
#[derive(Debug)]
pub(crate) struct Done<W> {
    pub(crate) target: usize,
    pub(crate) sender: Sender<(usize, DiskDone<W>)>,
    pub(crate) wakes: Arc<WakeFd>,
}

impl<W> Clone for Done<W> {
    fn clone(&self) -> Self {
        Self {
            target: self.target,
            sender: self.sender.clone(),
            wakes: Arc::clone(&self.wakes),
        }
    }
}

impl<W> Done<W> {
    fn say(&self, done: DiskDone<W>) {
        // A service that has ended needs nothing any more.
        self.sender.send((self.target, done)).ok();
        self.wakes.notify();
    }
}

impl<W: Send + 'static> DiskThreads<W> {
    pub(crate) fn start(
        disk: &Arc<TargetDisk>,
        buffers: &Arc<Buffers>,
        done: &Done<W>,
    ) -> io::Result<Self> {
        let (jobs, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let mut threads = Vec::new();
        for _ in 0..WORKERS {
            let (disk, buffers) = (Arc::clone(disk), Arc::clone(buffers));
            let (queue, done) = (Arc::clone(&queue), done.clone());
            let memory = DiskMemory::new(MEMORY_BYTES).map_err(io::Error::other)?;
            let mut worker = Worker {
                disk,
                buffers,
                memory,
            };
            let named = thread::Builder::new().name("blocks".to_owned());
            threads.push(named.spawn(move || {
                while let Some(job) = next(&queue) {
                    done.say(worker.carry_out(job));
                }
            })?);
        }
        let (batches, queue) = channel::<JournalBatch>();
        let (disk, done) = (Arc::clone(disk), done.clone());
        let named = thread::Builder::new().name("journal".to_owned());
        threads.push(named.spawn(move || {
            for batch in queue {
                let written = write_batch(&disk, &batch);
                done.say(DiskDone::Flushed(batch.sequence, written));
            }
        })?);
        Ok(Self {
            queues: Some(Queues { jobs, batches }),
            threads,
        })
    }

    pub(crate) fn write(&self, job: WriteJob<ChunkBytes>) {
        self.job(Job::Write(job));
    }

    pub(crate) fn read(&self, read: DiskRead<W>) {
        self.job(Job::Read(read));
    }

    pub(crate) fn flush(&self, batch: JournalBatch) {
        if let Some(queues) = &self.queues {
            queues.batches.send(batch).ok();
        }
    }

    fn job(&self, job: Job<W>) {
        // Its threads end after the queues.
        if let Some(queues) = &self.queues {
            queues.jobs.send(job).ok();
        }
    }
}

fn next<W>(queue: &Mutex<Receiver<Job<W>>>) -> Option<Job<W>> {
    let queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    queue.recv().ok()
}

fn write_batch(disk: &TargetDisk, batch: &JournalBatch) -> io::Result<()> {
    let bytes = batch.bytes.len();
    let mut memory = DiskMemory::new(bytes).map_err(io::Error::other)?;
    let room = &mut memory.bytes()[..bytes];
    room.copy_from_slice(&batch.bytes);
    disk.write(room, batch.at)?;
    disk.flush()
}

struct Worker {
    disk: Arc<TargetDisk>,
    buffers: Arc<Buffers>,
    memory: DiskMemory,
}

impl Worker {
    fn carry_out<W>(&mut self, job: Job<W>) -> DiskDone<W> {
        match job {
            Job::Write(job) => {
                let written = self.write(&job);
                DiskDone::Written(job, written)
            }
            Job::Read(read) => {
                let bytes = self.read(&read.plan);
                DiskDone::Read(read, bytes)
            }
        }
    }

    fn write(&mut self, job: &WriteJob<ChunkBytes>) -> Result<Vec<u32>, Failure> {
        let new: &[u8] = job.bytes.as_deref().unwrap_or_default();
        let plans = job.plans.iter();
        plans.map(|plan| self.write_block(plan, new)).collect()
    }

    fn write_block(&mut self, plan: &BlockPlan, new: &[u8]) -> Result<u32, Failure> {
        if let Some(whole) = self.whole(plan, new) {
            self.disk.write(whole, plan.at).map_err(Failure::Disk)?;
            return Ok(checksum(whole));
        }
        let old: &[u8] = match plan.old {
            Some(old) => self.block(old.at, old.bytes, old.checksum)?,
            None => &[],
        };
        let block = plan.fill(old, new).map_err(Failure::Bad)?;
        let whole = self.sectors(block.len());
        let room = &mut self.memory.bytes()[..whole];
        room[..block.len()].copy_from_slice(&block);
        room[block.len()..].fill(0);
        self.disk.write(room, plan.at).map_err(Failure::Disk)?;
        Ok(checksum(&block))
    }

    /// The bytes of a block that lie in memory as they go to the disk.
    fn whole<'a>(&self, plan: &BlockPlan, new: &'a [u8]) -> Option<&'a [u8]> {
        let bytes = plan.bytes as usize;
        let is_all = plan.new.start == 0 && plan.new.end == plan.bytes;
        let whole = new.get(plan.from as usize..)?.get(..bytes)?;
        let sector = self.sectors(1);
        let is_aligned =
            bytes.is_multiple_of(sector) && whole.as_ptr().addr().is_multiple_of(sector);
        (is_all && is_aligned).then_some(whole)
    }

    fn read(&mut self, plan: &ReadPlan) -> Result<ChunkBytes, Failure> {
        let memory = |error: &dyn std::fmt::Display| Failure::Memory(error.to_string());
        let bytes = plan.pieces.iter().map(|piece| piece.wanted.len()).sum();
        let mut room = self.buffers.room(bytes).map_err(|error| memory(&error))?;
        let mut filled = 0;
        for piece in &plan.pieces {
            let into = filled..filled + piece.wanted.len();
            filled = into.end;
            match piece.at {
                None => room[into].fill(0),
                Some(at) if self.fits(piece.bytes, &piece.wanted, &room[into.clone()]) => {
                    let into = &mut room[into];
                    self.disk
                        .read(into, at)
                        .map_err(|_| unreadable(at, piece.checksum))?;
                    piece.take(into).map_err(Failure::Bad)?;
                }
                Some(at) => {
                    let block = self.block(at, piece.bytes, piece.checksum)?;
                    room[into].copy_from_slice(piece.take(block).map_err(Failure::Bad)?);
                }
            }
        }
        ChunkBytes::from(room).map_err(|error| memory(&error))
    }

    /// Whether a whole block is wanted and its room is such that a disk can read into it.
    fn fits(&self, bytes: u32, wanted: &Range<u32>, room: &[u8]) -> bool {
        let sector = self.sectors(1);
        let is_all = wanted.start == 0 && wanted.end == bytes;
        is_all && room.len().is_multiple_of(sector) && room.as_ptr().addr().is_multiple_of(sector)
    }

    /// A block as it is on the disk.
    fn block(&mut self, at: u64, bytes: u32, sum: u32) -> Result<&[u8], Failure> {
        let whole = self.sectors(bytes as usize);
        let room = &mut self.memory.bytes()[..whole];
        self.disk.read(room, at).map_err(|_| unreadable(at, sum))?;
        Ok(room)
    }

    fn sectors(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.disk.geometry().sector_bytes as usize)
    }
}

/// What cannot be read is damaged, and the chain repairs it.
fn unreadable(at: u64, expected: u32) -> Failure {
    Failure::Bad(BadBlock {
        at,
        expected,
        found: 0,
    })
}
