//! Ends mounts that are gone: nothing of theirs is done any more, what they had begun to cut off is cut off, and their
//! handles are closed with the lengths that the chunks have.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metadata::{
    Errno, HandleId, InodeNumber, MetaOperation, MetaReply, MetaRequest, MountId, Written,
};
use tokio::sync::Mutex;
use tokio::time::sleep;
use tonic::Status;
use tracing::{debug, info, warn};

use crate::chunks::{ChunksError, FileChunks, LiveMounts};
use crate::runner::StepRunner;
use crate::service::answer;

/// How often it is looked who is gone.
const INTERVAL: Duration = Duration::from_secs(5);
/// Handles that are listed at once.
const LISTED: u32 = 256;
/// A cut that no file has: the answer says what to look up in the chunks.
const UNKNOWN_CUT: u64 = u64::MAX;

/// Cheap to clone; all clones take turns.
pub(crate) struct Ender<C> {
    runner: StepRunner,
    chunks: Arc<C>,
    /// This service's own.
    mount: MountId,
    /// One file is cut off at a time: the same one is never cut off twice at once.
    turn: Arc<Mutex<()>>,
}

impl<C> Clone for Ender<C> {
    fn clone(&self) -> Self {
        Self {
            runner: self.runner.clone(),
            chunks: Arc::clone(&self.chunks),
            mount: self.mount,
            turn: Arc::clone(&self.turn),
        }
    }
}

impl<C: FileChunks> Ender<C> {
    pub(crate) fn new(runner: StepRunner, chunks: Arc<C>, mount: MountId) -> Self {
        Self {
            runner,
            chunks,
            mount,
            turn: Arc::default(),
        }
    }

    /// Ends those that are gone, for ever.
    pub(crate) async fn run(&self, mounts: &impl LiveMounts, grace: Duration) {
        let mut absent = BTreeMap::new();
        loop {
            sleep(INTERVAL).await;
            if let Err(status) = self.look(mounts, grace, &mut absent).await {
                debug!(%status, "failed to end mounts that are gone");
            }
        }
    }

    /// `absent` says since when mounts that left something are known to be gone.
    async fn look(
        &self,
        mounts: &impl LiveMounts,
        grace: Duration,
        absent: &mut BTreeMap<MountId, Instant>,
    ) -> Result<(), Status> {
        // What this service took over and could not finish.
        self.close_all(self.mount).await?;
        // First who left something, then who lives: one that begins meanwhile is not taken for gone.
        let mut found = Vec::new();
        let mut after = MountId(0);
        while let MetaReply::Mount(Some(mount)) =
            self.ask(MetaOperation::NextMount { after }).await?
        {
            found.push(mount);
            after = mount;
        }
        if found.is_empty() {
            absent.clear();
            return Ok(());
        }
        let live = mounts.live().await.map_err(unreachable)?;
        found.retain(|mount| !live.contains(mount) && *mount != self.mount);
        absent.retain(|mount, _| found.contains(mount));
        for mount in found {
            if absent.entry(mount).or_insert_with(Instant::now).elapsed() < grace {
                continue;
            }
            info!(mount = mount.0, "a mount is gone");
            let left = self.end(mount).await?;
            if left > 0 {
                warn!(
                    mount = mount.0,
                    left, "failed to close all its handles; trying again"
                );
            }
        }
        Ok(())
    }

    /// Ends a mount; how many of its handles could not be closed.
    pub(crate) async fn end(&self, mount: MountId) -> Result<u64, Status> {
        while self.ask(MetaOperation::EndMount { mount }).await? == MetaReply::More(true) {}
        self.close_all(mount).await
    }

    async fn close_all(&self, mount: MountId) -> Result<u64, Status> {
        let (mut left, mut after) = (0, None);
        loop {
            let operation = MetaOperation::ListHandles {
                mount,
                after,
                limit: LISTED,
            };
            let MetaReply::Handles(handles) = self.ask(operation).await? else {
                return Err(Status::internal("a list of handles is something else"));
            };
            let Some(last) = handles.last() else {
                return Ok(left);
            };
            after = Some(*last);
            for (inode, number) in handles {
                let closed = match number {
                    0 => self.trim(inode, mount).await,
                    number => self.close(inode, HandleId { mount, number }).await,
                };
                if let Err(status) = closed {
                    debug!(%status, inode = inode.0, "failed to close a handle");
                    left += 1;
                }
            }
        }
    }

    async fn ask(&self, operation: MetaOperation) -> Result<MetaReply, Status> {
        let request = MetaRequest::reading(operation);
        let answer = answer(&self.runner, self.chunks.as_ref(), request).await?;
        answer.map_err(|errno| Status::internal(errno.to_string()))
    }

    /// Cuts off what the mount had begun to cut off.
    async fn trim(&self, inode: InodeNumber, from: MountId) -> Result<(), Status> {
        let _turn = self.turn.lock().await;
        let (to, mount) = (self.mount, self.mount);
        let taken = self
            .ask(MetaOperation::TakeTrim { inode, from, to })
            .await?;
        if let MetaReply::Trim(Some(trim)) = taken {
            self.chunks.trim(inode, trim).await.map_err(unreachable)?;
            let cut = trim.cut;
            self.ask(MetaOperation::Trimmed { inode, mount, cut })
                .await?;
        }
        Ok(())
    }

    async fn close(&self, inode: InodeNumber, handle: HandleId) -> Result<(), Status> {
        let close = |written| {
            let operation = MetaOperation::Close {
                inode,
                handle,
                written,
            };
            answer(
                &self.runner,
                self.chunks.as_ref(),
                MetaRequest::reading(operation),
            )
        };
        let written = Written {
            length: 0,
            cut: UNKNOWN_CUT,
            // When it wrote last is not known: that stays as it was.
            mtime_ns: i64::MIN,
        };
        let closed = match close(Some(written)).await? {
            // It only read.
            Err(Errno::BadHandle) => close(None).await?,
            closed => closed,
        };
        // One whose file is still cut off by another mount waits for that.
        let waits = |errno: Errno| Status::unavailable(errno.to_string());
        closed.map(drop).map_err(waits)
    }
}

fn unreachable(error: ChunksError) -> Status {
    Status::unavailable(error.to_string())
}
