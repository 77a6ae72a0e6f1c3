//! Ends mounts that are gone: nothing of theirs is done any more, what they had begun to cut off is cut off, and their
//! handles are closed with the lengths that the chunks have.

use std::time::Duration;

use metadata::{
    Errno, HandleId, InodeNumber, MetaAnswer, MetaOperation, MetaReply, MetaRequest, MountId,
    Written,
};
use tokio::time::sleep;
use tonic::Status;
use tracing::{debug, info, warn};

use crate::chunks::{FileChunks, LiveMounts};
use crate::runner::StepRunner;
use crate::service::answer;

/// How often it is looked who is gone.
const INTERVAL: Duration = Duration::from_secs(5);
/// Handles that are listed at once.
const LISTED: u32 = 256;
/// A cut that no file has: the answer says what to look up in the chunks.
const UNKNOWN_CUT: u64 = u64::MAX;

/// Ends those that are gone, for ever.
pub(crate) async fn run(runner: &StepRunner, chunks: &impl FileChunks, mounts: &impl LiveMounts) {
    loop {
        sleep(INTERVAL).await;
        if let Err(status) = look(runner, chunks, mounts).await {
            debug!(%status, "failed to look which mounts are gone");
        }
    }
}

async fn look(
    runner: &StepRunner,
    chunks: &impl FileChunks,
    mounts: &impl LiveMounts,
) -> Result<(), Status> {
    // First who left something, then who lives: one that begins meanwhile is not taken for gone.
    let mut found = Vec::new();
    let mut after = MountId(0);
    while let MetaReply::Mount(Some(mount)) =
        ask(runner, chunks, MetaOperation::NextMount { after }).await??
    {
        found.push(mount);
        after = mount;
    }
    if found.is_empty() {
        return Ok(());
    }
    let live = mounts.live().await;
    let live = live.map_err(|error| Status::unavailable(error.to_string()))?;
    for mount in found.into_iter().filter(|mount| !live.contains(mount)) {
        info!(mount = mount.0, "a mount is gone");
        let left = end_mount(runner, chunks, mount).await?;
        if left > 0 {
            warn!(
                mount = mount.0,
                left, "failed to close all its handles; trying again"
            );
        }
    }
    Ok(())
}

async fn ask(
    runner: &StepRunner,
    chunks: &impl FileChunks,
    operation: MetaOperation,
) -> Result<Result<MetaReply, Status>, Status> {
    let answer: MetaAnswer = answer(runner, chunks, MetaRequest::reading(operation)).await?;
    Ok(answer.map_err(|errno| Status::internal(errno.to_string())))
}

/// Ends a mount; how many of its handles could not be closed.
pub(crate) async fn end_mount(
    runner: &StepRunner,
    chunks: &impl FileChunks,
    mount: MountId,
) -> Result<u64, Status> {
    while ask(runner, chunks, MetaOperation::EndMount { mount }).await?? == MetaReply::More(true) {}
    let (mut left, mut after) = (0, None);
    loop {
        let operation = MetaOperation::ListHandles {
            mount,
            after,
            limit: LISTED,
        };
        let MetaReply::Handles(handles) = ask(runner, chunks, operation).await?? else {
            return Err(Status::internal("a list of handles is something else"));
        };
        let Some(last) = handles.last() else {
            return Ok(left);
        };
        after = Some(*last);
        for (inode, number) in handles {
            let closed = match number {
                0 => trim(runner, chunks, inode, mount).await,
                number => close(runner, chunks, inode, HandleId { mount, number }).await,
            };
            if let Err(status) = closed {
                debug!(%status, inode = inode.0, "failed to close a handle");
                left += 1;
            }
        }
    }
}

/// Cuts off what the mount had begun to cut off.
async fn trim(
    runner: &StepRunner,
    chunks: &impl FileChunks,
    inode: InodeNumber,
    mount: MountId,
) -> Result<(), Status> {
    let operation = MetaOperation::GetTrim { inode, mount };
    if let MetaReply::Trim(Some(trim)) = ask(runner, chunks, operation).await?? {
        let trimmed = chunks.trim(inode, trim).await;
        trimmed.map_err(|error| Status::unavailable(error.to_string()))?;
        let cut = trim.cut;
        ask(runner, chunks, MetaOperation::Trimmed { inode, mount, cut }).await??;
    }
    Ok(())
}

async fn close(
    runner: &StepRunner,
    chunks: &impl FileChunks,
    inode: InodeNumber,
    handle: HandleId,
) -> Result<(), Status> {
    let close = |written| {
        MetaRequest::reading(MetaOperation::Close {
            inode,
            handle,
            written,
        })
    };
    let written = Written {
        length: 0,
        cut: UNKNOWN_CUT,
        // When it wrote last is not known: that stays as it was.
        mtime_ns: i64::MIN,
    };
    match answer(runner, chunks, close(Some(written))).await? {
        // It only read.
        Err(Errno::BadHandle) => {
            let closed = answer(runner, chunks, close(None)).await?;
            closed
                .map(drop)
                .map_err(|errno| Status::internal(errno.to_string()))
        }
        Ok(_) => Ok(()),
        // Whoever cuts the file off has to be done before.
        Err(errno) => Err(Status::unavailable(errno.to_string())),
    }
}
