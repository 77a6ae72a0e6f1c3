//! The threads of a target's disk: some read and write blocks, one writes batches and flushes. Each job comes back when it is
//! done, over one channel of the service.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use chain_link::{Buffers, ChunkBytes};
use chunk_store::{BadBlock, BlockPlan, JournalBatch, ReadGuard, ReadPiece, ReadPlan, checksum};
use link::wake_fd::WakeFd;

use crate::disk::{DiskMemory, TargetDisk};
use crate::target::WriteJob;

/// Threads that read and write blocks of a target: two for each direction keep an NVMe disk and a slow one busy.
const WORKERS: usize = 4;
/// What a thread has to write from and read into at first: a block, or as much of a batch.
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
        let mut memory = DiskMemory::new(MEMORY_BYTES).map_err(io::Error::other)?;
        threads.push(named.spawn(move || {
            for batch in queue {
                let written = write_batch(&disk, &batch, &mut memory);
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

fn write_batch(disk: &TargetDisk, batch: &JournalBatch, memory: &mut DiskMemory) -> io::Result<()> {
    let bytes = batch.bytes.len();
    if memory.bytes().len() < bytes {
        *memory = DiskMemory::new(bytes).map_err(io::Error::other)?;
    }
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

    /// Blocks that lie beside each other on the disk and in memory go in one call.
    fn write(&mut self, job: &WriteJob<ChunkBytes>) -> Result<Vec<u32>, Failure> {
        let new: &[u8] = job.bytes.as_deref().unwrap_or_default();
        let mut sums = Vec::with_capacity(job.plans.len());
        let mut plans = &job.plans[..];
        while let Some(first) = plans.first() {
            let Some((count, bytes)) = self.row(plans, new) else {
                sums.push(self.write_block(first, new)?);
                plans = &plans[1..];
                continue;
            };
            self.disk.write(bytes, first.at).map_err(Failure::Disk)?;
            let (row, rest) = plans.split_at(count);
            let whole = row.iter().filter_map(|plan| self.whole(plan, new));
            sums.extend(whole.map(checksum));
            plans = rest;
        }
        Ok(sums)
    }

    /// How many of the first blocks can be written in one call, and their bytes; none if not even the first.
    fn row<'a>(&self, plans: &[BlockPlan], new: &'a [u8]) -> Option<(usize, &'a [u8])> {
        let first = plans.first()?;
        self.whole(first, new)?;
        let follows = |pair: &&[BlockPlan]| {
            let [one, next] = pair else {
                return false;
            };
            next.at == one.at + u64::from(one.bytes)
                && next.from == one.from + one.bytes
                && self.whole(next, new).is_some()
        };
        let count = 1 + plans.windows(2).take_while(follows).count();
        let last = plans.get(count - 1)?;
        let end = last.from as usize + last.bytes as usize;
        Some((count, new.get(first.from as usize..end)?))
    }

    fn write_block(&mut self, plan: &BlockPlan, new: &[u8]) -> Result<u32, Failure> {
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
        let mut pieces = &plan.pieces[..];
        while let Some(piece) = pieces.first() {
            let count = self.beside(pieces, &room[filled..]).max(1);
            let (row, rest) = pieces.split_at(count);
            pieces = rest;
            let wanted: usize = row.iter().map(|piece| piece.wanted.len()).sum();
            let into = &mut room[filled..filled + wanted];
            filled += wanted;
            match piece.at {
                None => into.fill(0),
                Some(at) if self.fits(piece, into) => {
                    let read = self.disk.read(into, at);
                    read.map_err(|_| unreadable(at, piece.checksum))?;
                    let mut blocks: &[u8] = into;
                    for piece in row {
                        let (block, behind) = blocks.split_at(piece.wanted.len());
                        piece.take(block).map_err(Failure::Bad)?;
                        blocks = behind;
                    }
                }
                Some(at) => {
                    let block = self.block(at, piece.bytes, piece.checksum)?;
                    into.copy_from_slice(piece.take(block).map_err(Failure::Bad)?);
                }
            }
        }
        ChunkBytes::from(room).map_err(|error| memory(&error))
    }

    /// How many of the first pieces are blocks that lie beside each other on the disk, and can be read into their room.
    fn beside(&self, pieces: &[ReadPiece], mut room: &[u8]) -> usize {
        let mut next = None;
        let mut count = 0;
        for piece in pieces {
            let (into, behind) = room.split_at(piece.wanted.len().min(room.len()));
            let is_next = next.is_none() || piece.at == next;
            let Some(at) = piece.at.filter(|_| is_next && self.fits(piece, into)) else {
                break;
            };
            next = Some(at + u64::from(piece.bytes));
            (count, room) = (count + 1, behind);
        }
        count
    }

    /// Whether all of a block is wanted and the beginning of the room is such that a disk can read it there.
    fn fits(&self, piece: &ReadPiece, room: &[u8]) -> bool {
        let sector = self.sectors(1);
        let bytes = piece.bytes as usize;
        let is_all = piece.wanted.start == 0 && piece.wanted.end == piece.bytes;
        let is_room = bytes <= room.len() && room.as_ptr().addr().is_multiple_of(sector);
        is_all && is_room && bytes.is_multiple_of(sector)
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
