//! The targets of a service, and the members of chains over them. A target whose disk does not take bytes any more is out of
//! service: what it would say of its chunks is not to be relied on.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use chain_link::{Buffers, ChunkBytes, MappedChain};
use chunk_store::{BatchDue, ReadGuard, ReadPlan, RecoverySummary};
use craq::{ChainMember, ChainRefusal, ChunkId, Effect, Input, Place, TargetId, Version};
use link::wake_fd::WakeFd;
use tracing::{error, info};

use super::ReadOf;
use crate::io::{DiskDone, DiskRead, DiskThreads, Done, Failure};
use crate::service::{ServiceError, ServiceTarget, TargetStatus};
use crate::target::{ContentRead, Target, TargetEvent, WriteJob};

/// How long after the last batch one is taken that nobody waits for. That a content is committed is the most frequent reason
/// for one, and goes with the next content that is written.
const LATER: Duration = Duration::from_millis(20);

/// A target, its threads, and its members of chains.
#[derive(Debug)]
struct Open {
    place: Place,
    target: Target<ChunkBytes>,
    threads: DiskThreads<ReadOf>,
    block_bytes: u64,
    /// When its last batch was taken.
    batched: Instant,
    members: BTreeMap<u32, ChainMember<ChunkBytes>>,
    failed: Option<String>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Targets {
    open: Vec<Open>,
    /// On which a chain has its member.
    of_chain: BTreeMap<u32, usize>,
}

impl Targets {
    /// Reads their journals.
    pub(super) fn open(
        targets: Vec<ServiceTarget>,
        buffers: &Arc<Buffers>,
        (sender, wakes): (&Sender<(usize, DiskDone<ReadOf>)>, &Arc<WakeFd>),
    ) -> Result<Self, ServiceError> {
        let mut open = Vec::new();
        for (number, ServiceTarget { disk, life }) in targets.into_iter().enumerate() {
            let (store, summary) = disk.recover()?;
            let RecoverySummary {
                chunks,
                damaged,
                torn,
                lost,
            } = summary;
            let path = disk.path().display().to_string();
            info!(path, chunks, damaged, torn, lost, "opened a target");
            let place = Place {
                target: TargetId(disk.uuid()),
                life,
            };
            let block_bytes = disk.geometry().block_bytes.into();
            let done = Done {
                target: number,
                sender: sender.clone(),
                wakes: Arc::clone(wakes),
            };
            let threads = DiskThreads::start(&Arc::new(disk), buffers, &done)?;
            open.push(Open {
                place,
                target: Target::new(store),
                threads,
                block_bytes,
                batched: Instant::now(),
                members: BTreeMap::new(),
                failed: None,
            });
        }
        Ok(Self {
            open,
            of_chain: BTreeMap::new(),
        })
    }

    pub(super) fn status(&self) -> Vec<TargetStatus> {
        let status = |open: &Open| {
            let usage = open.target.usage();
            let used = usage.blocks - usage.free_blocks;
            TargetStatus {
                target: open.place.target,
                capacity_bytes: usage.blocks as u64 * open.block_bytes,
                used_bytes: used as u64 * open.block_bytes,
                failed: open.failed.clone(),
                damaged_chunks: usage.damaged,
                dirty_chunks: open.members.values().map(ChainMember::dirty_chunks).sum(),
                complete_chains: open.members.values().filter(|m| m.is_complete()).count(),
                chains: open.members.len(),
            }
        };
        self.open.iter().map(status).collect()
    }

    /// A chain is in the map: if a target here is a member, it takes part.
    pub(super) fn join(&mut self, chain: u32, of: &MappedChain) {
        if self.of_chain.contains_key(&chain) {
            return;
        }
        let members = &of.table.members;
        let is_member = |open: &Open| members.iter().any(|m| m.target == open.place.target);
        let Some(number) = self.open.iter().position(is_member) else {
            return;
        };
        let open = &mut self.open[number];
        if open.failed.is_none() {
            let member = ChainMember::new(open.place, &open.target.chain(chain));
            open.members.insert(chain, member);
            self.of_chain.insert(chain, number);
        }
    }

    /// A chain is not in the map any more.
    pub(super) fn leave(&mut self, chain: u32) {
        if let Some(number) = self.of_chain.remove(&chain) {
            self.open[number].members.remove(&chain);
        }
    }

    /// Chains that have a member here.
    pub(super) fn chains(&self) -> impl Iterator<Item = u32> {
        self.of_chain.keys().copied()
    }

    /// Whether a chain has a member here.
    pub(super) fn has(&self, chain: u32) -> bool {
        self.of_chain.contains_key(&chain)
    }

    /// Something happens to the member of a chain; nothing does if there is none.
    pub(super) fn handle(
        &mut self,
        chain: u32,
        input: Input<ChunkBytes>,
    ) -> Vec<Effect<ChunkBytes>> {
        let mut effects = Vec::new();
        if let Some(open) = self.of(chain)
            && let Some(member) = open.members.get_mut(&chain)
        {
            member.handle(input, &mut open.target.chain(chain), &mut effects);
        }
        effects
    }

    fn of(&mut self, chain: u32) -> Option<&mut Open> {
        let number = self.of_chain.get(&chain)?;
        self.open.get_mut(*number)
    }

    /// How a content is read.
    pub(super) fn read(
        &mut self,
        chain: u32,
        chunk: ChunkId,
        version: Version,
        range: Range<u32>,
    ) -> Result<ContentRead, ChainRefusal> {
        let open = self.of(chain).ok_or(ChainRefusal::NotReady)?;
        open.target.read(chain, chunk, version, range)
    }

    /// Its blocks are read.
    pub(super) fn start_read(&mut self, chain: u32, read: DiskRead<ReadOf>) {
        if let Some(open) = self.of(chain) {
            open.threads.read(read);
        }
    }

    /// And were read.
    pub(super) fn end_read(
        &mut self,
        target: usize,
        guard: ReadGuard,
        plan: &ReadPlan,
        read: &Result<ChunkBytes, Failure>,
    ) {
        let bad = match read {
            Err(Failure::Bad(bad)) => Some(*bad),
            Ok(_) | Err(Failure::Disk(_) | Failure::Memory(_)) => None,
        };
        self.open[target].target.end_read(guard, plan, bad);
    }

    /// The blocks of an edit are written.
    pub(super) fn written(
        &mut self,
        target: usize,
        job: WriteJob<ChunkBytes>,
        written: Result<Vec<u32>, Failure>,
    ) {
        let done = match &written {
            Ok(sums) => Ok(&sums[..]),
            Err(Failure::Bad(bad)) => Err(*bad),
            Err(Failure::Disk(error)) => return self.fail(target, &error.to_string()),
            Err(Failure::Memory(error)) => return self.fail(target, error),
        };
        if let Err(error) = self.open[target].target.done(job, done) {
            self.fail(target, &error.to_string());
        }
    }

    /// A batch is written and flushed.
    pub(super) fn flushed(&mut self, target: usize, sequence: u64, flushed: io::Result<()>) {
        let target_of = &mut self.open[target].target;
        let flushed = match flushed {
            Ok(()) => target_of
                .flushed(sequence)
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = flushed {
            self.fail(target, &error);
        }
    }

    /// It is out of service until the service starts again.
    fn fail(&mut self, target: usize, why: &str) {
        let open = &mut self.open[target];
        if open.failed.is_none() {
            error!(target = %format!("{:032x}", open.place.target.0), why, "a target fails: its chains wait");
            open.failed = Some(why.to_owned());
            open.target.fail();
            open.members.clear();
            self.of_chain.retain(|_, of| *of != target);
        }
    }

    /// What became of an edit.
    pub(super) fn next_event(&mut self) -> Option<TargetEvent> {
        self.open
            .iter_mut()
            .find_map(|open| open.target.take_event())
    }

    /// Gives the disks what there is to write.
    pub(super) fn start_writes(&mut self) {
        for open in self.open.iter_mut().filter(|open| open.failed.is_none()) {
            while let Some(job) = open.target.take_job() {
                open.threads.write(job);
            }
            if open.batch_in() == Some(Duration::ZERO)
                && let Some(batch) = open.target.take_batch()
            {
                open.batched = Instant::now();
                open.threads.flush(batch);
            }
        }
    }

    /// How long it is until there is something to write, if nothing happens.
    pub(super) fn next_write(&self) -> Option<Duration> {
        self.open.iter().filter_map(Open::batch_in).min()
    }
}

impl Open {
    /// How long the next batch waits; nothing if there is none.
    fn batch_in(&self) -> Option<Duration> {
        match self.target.batch_due() {
            BatchDue::Never => None,
            BatchDue::Later => Some(LATER.saturating_sub(self.batched.elapsed())),
            BatchDue::Now => Some(Duration::ZERO),
        }
    }
}
