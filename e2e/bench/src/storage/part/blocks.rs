//! A whole file in blocks, by several threads that take the next block each.

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::{Value, json};

use super::{AlignedBuffer, fill, open_direct};

/// Bytes of a block: one request of the kernel.
pub(in crate::storage) const BLOCK_BYTES: usize = 1 << 20;
const SEED: u64 = 17;

#[derive(Debug, clap::Args)]
pub(crate) struct WholeFile {
    file: PathBuf,
    /// Blocks of the file.
    #[arg(long)]
    blocks: u64,
    /// Threads, so blocks on their way at a time.
    #[arg(long)]
    depth: usize,
    /// Compares what is read with what was written.
    #[arg(long)]
    check: bool,
}

/// What block `number` holds: the same noise behind its number in each page, so that no block is as another.
fn stamp(bytes: &mut [u8], number: u64) {
    for (page, bytes) in bytes.chunks_mut(AlignedBuffer::PAGE_BYTES).enumerate() {
        let word = number << 16 | page as u64;
        bytes[..size_of::<u64>()].copy_from_slice(&word.to_le_bytes());
    }
}

/// Runs `block` for each block, with a buffer of noise for each thread, and says how long all took, opening and closing
/// included.
fn run(
    whole: &WholeFile,
    block: impl Fn(&std::fs::File, &mut [u8], u64) -> Result<()> + Sync,
) -> Result<Duration> {
    ensure!(whole.depth > 0, "--depth has to be at least 1");
    let buffers = (0..whole.depth).map(|_| {
        let mut buffer = AlignedBuffer::new(BLOCK_BYTES);
        fill(buffer.bytes(), SEED);
        buffer
    });
    let buffers: Vec<_> = buffers.collect();
    let started = Instant::now();
    let file = open_direct(&whole.file)?;
    let next = AtomicU64::new(0);
    let work = |mut buffer: AlignedBuffer| {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= whole.blocks {
                return anyhow::Ok(());
            }
            let done = block(&file, buffer.bytes(), number);
            done.with_context(|| format!("block {number} of {}", whole.file.display()))?;
        }
    };
    let work = &work;
    thread::scope(|scope| {
        let threads = buffers.into_iter();
        let threads: Vec<_> = threads
            .map(|buffer| scope.spawn(move || work(buffer)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            let ended = thread.join();
            ended.map_err(|_| anyhow!("a thread panicked"))?
        })
    })?;
    drop(file);
    Ok(started.elapsed())
}

pub(super) fn write(whole: &WholeFile) -> Result<Value> {
    let took = run(whole, |file, bytes, number| {
        stamp(bytes, number);
        file.write_all_at(bytes, number * BLOCK_BYTES as u64)
            .context("failed to write")
    })?;
    Ok(json!({"seconds": took.as_secs_f64()}))
}

pub(super) fn read(whole: &WholeFile) -> Result<Value> {
    let mut noise = vec![0; BLOCK_BYTES];
    fill(&mut noise, SEED);
    let took = run(whole, |file, bytes, number| {
        file.read_exact_at(bytes, number * BLOCK_BYTES as u64)
            .context("failed to read")?;
        if whole.check {
            let mut wanted = noise.clone();
            stamp(&mut wanted, number);
            ensure!(*bytes == wanted[..], "other bytes than were written");
        }
        Ok(())
    })?;
    Ok(json!({"seconds": took.as_secs_f64()}))
}
