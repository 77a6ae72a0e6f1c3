//! Collects garbage: removes chunks of files that nobody can reach, and takes deleted volumes apart. Several services may
//! do the same at once.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::iter;
use metadata::{Collected, InodeNumber, collect, collected, garbage};
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::chunks::FileChunks;
use crate::runner::{Fresh, RunError, StepRunner};

/// How long nothing is done when there was nothing to do, or nothing could be done.
const INTERVAL: Duration = Duration::from_secs(2);
/// Inodes that are listed at once.
const LISTED: usize = 256;
/// Inodes that are collected at once.
const AT_ONCE: usize = 16;
/// Chunks that are removed before others get their turn.
const CHUNKS: u64 = 4096;

/// Collects, for ever.
pub(crate) async fn run(runner: &StepRunner, chunks: &impl FileChunks) {
    let mut after = None;
    loop {
        let listed = runner
            .run(Fresh::NotNeeded, |_, seen| garbage(after, LISTED, seen))
            .await;
        let found = match listed {
            Ok(Ok(found)) => found,
            Ok(Err(errno)) => {
                warn!(%errno, "failed to list garbage");
                Vec::new()
            }
            Err(error) => {
                debug!(error = daemon::chain(&error), "failed to list garbage");
                Vec::new()
            }
        };
        let is_last = found.len() < LISTED;
        after = found.last().copied().filter(|_| !is_last);
        let done = iter(found)
            .map(|inode| collect_inode(runner, chunks, inode))
            .buffer_unordered(AT_ONCE)
            .filter(|done| std::future::ready(*done))
            .count()
            .await;
        if is_last && done == 0 {
            sleep(INTERVAL).await;
        }
    }
}

/// Whether something was done.
async fn collect_inode(runner: &StepRunner, chunks: &impl FileChunks, inode: InodeNumber) -> bool {
    match try_collect(runner, chunks, inode).await {
        Ok(Ok(())) => true,
        Ok(Err(why)) => {
            debug!(inode = inode.0, why, "failed to collect a file");
            false
        }
        Err(error) => {
            debug!(
                inode = inode.0,
                error = daemon::chain(&error),
                "failed to collect an inode"
            );
            false
        }
    }
}

async fn try_collect(
    runner: &StepRunner,
    chunks: &impl FileChunks,
    inode: InodeNumber,
) -> Result<Result<(), String>, RunError> {
    loop {
        let step = runner
            .run(Fresh::NotNeeded, |given, seen| collect(inode, given, seen))
            .await?;
        match step {
            Ok(Collected::Some) => {}
            Ok(Collected::All) => return Ok(Ok(())),
            Ok(Collected::Chunks {
                layout,
                chunks: count,
            }) => {
                let mut first = 0;
                while first < count {
                    let last = count.min(first + CHUNKS);
                    if let Err(error) = chunks.remove(inode, layout, first..last).await {
                        return Ok(Err(error.to_string()));
                    }
                    first = last;
                }
                let done = runner
                    .run(Fresh::NotNeeded, |given, seen| {
                        collected(inode, given, seen)
                    })
                    .await?;
                return Ok(done.map_err(|errno| errno.to_string()));
            }
            Err(errno) => return Ok(Err(errno.to_string())),
        }
    }
}
