//! Numbers for new inodes: a block at a time out of the store.

use metadata::{INODE_BLOCK, InodeNumber, allocate};
use tokio::sync::Mutex;

use crate::runner::{Fresh, RunError, StepRunner};

/// What is left of the block.
#[derive(Debug, Default)]
pub(crate) struct Numbers(Mutex<(u64, u64)>);

impl Numbers {
    pub(crate) async fn next(&self, runner: &StepRunner) -> Result<InodeNumber, RunError> {
        let mut left = self.0.lock().await;
        if left.0 == left.1 {
            let first = Box::pin(runner.run(Fresh::NotNeeded, |_, seen| allocate(seen))).await?;
            let InodeNumber(first) = first.map_err(RunError::Numbers)?;
            *left = (first, first + INODE_BLOCK);
        }
        left.0 += 1;
        Ok(InodeNumber(left.0 - 1))
    }
}
