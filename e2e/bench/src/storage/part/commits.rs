//! Commits of three journals at once, each on a file of its own: what a write costs on the disks of a chain at least.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use serde_json::{Value, json};

use super::small::SMALL_BYTES;
use super::{AlignedBuffer, fill, open_direct};

/// Commits of a journal before it begins again at the file's start.
const JOURNAL_COMMITS: usize = 1024;

#[derive(Debug, clap::Args)]
pub(crate) struct Commits {
    /// A journal; given once for each.
    #[arg(long = "file", required = true)]
    files: Vec<PathBuf>,
    #[arg(long)]
    count: usize,
}

/// Of each time, the slowest.
pub(super) fn run(commits: &Commits) -> Result<Value> {
    let opened = commits.files.iter().map(|path| {
        let file = open_direct(path)?;
        // Blocks that were written before: a commit changes nothing but content.
        for number in 0..JOURNAL_COMMITS {
            commit(&file, number).with_context(|| format!("failed to fill {}", path.display()))?;
        }
        file.sync_all().context("failed to sync a journal")?;
        Ok(file)
    });
    let files = opened.collect::<Result<Vec<File>>>()?;
    let together = Barrier::new(files.len());
    let each = thread::scope(|scope| {
        let threads = files.iter().map(|file| {
            scope.spawn(|| {
                let mut micros = Vec::with_capacity(commits.count);
                for number in 0..commits.count {
                    together.wait();
                    let started = Instant::now();
                    // Whoever fails still waits for the others: else they wait for ever.
                    let done = commit(file, number)
                        .and_then(|()| file.sync_data().context("failed to sync a journal"));
                    micros.push(done.map(|()| started.elapsed().as_secs_f64() * 1e6));
                }
                micros.into_iter().collect::<Result<Vec<f64>>>()
            })
        });
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(|thread| {
            let ended = thread.join();
            ended.map_err(|_| anyhow!("a thread panicked"))?
        });
        joined.collect::<Result<Vec<_>>>()
    })?;
    let slowest = |number: usize| {
        let of_each = each.iter().filter_map(|micros| micros.get(number).copied());
        of_each.fold(0.0, f64::max)
    };
    let micros: Vec<f64> = (0..commits.count).map(slowest).collect();
    Ok(json!({ "micros": micros }))
}

fn commit(file: &File, number: usize) -> Result<()> {
    let mut buffer = AlignedBuffer::new(SMALL_BYTES);
    fill(buffer.bytes(), number as u64);
    let at = number % JOURNAL_COMMITS * SMALL_BYTES;
    file.write_all_at(buffer.bytes(), at as u64)
        .context("failed to write to a journal")
}
