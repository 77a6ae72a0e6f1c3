//! Where committed epochs are kept: the one thing of an attempt's rendezvous that a new leader
//! cannot learn from the sidecars. Of two leaders, or of a leader and what it does not know of
//! itself, one commit wins. In a cluster that is the job's status. Gangs that restart after a loss
//! commit nothing, and nothing is read for them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use collective::membership::Commit;
use futures::future::BoxFuture;
use scheduler::JobKey;

use crate::rendezvous::directory::Gang;
use crate::training_job::apply::{Applier, commit};

/// Keeps the last commit of each attempt.
pub trait CommitStore: Send + Sync + 'static {
    /// The last commit. An error when that cannot be known now.
    fn last(&self, gang: Arc<Gang>) -> BoxFuture<'static, Result<Option<Commit>, StoreError>>;
    /// Keeps a commit, if the last one is that of epoch `after`. Else what the store holds, if that
    /// is known.
    fn commit(
        &self,
        gang: Arc<Gang>,
        commit: Commit,
        after: Option<u64>,
    ) -> BoxFuture<'static, Result<(), Option<Commit>>>;
}

/// What the store holds is not known.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct StoreError(#[from] commit::CommitUnknown);

impl StoreError {
    /// Whether what was kept is not what it was: asking again may not help.
    pub fn is_damage(&self) -> bool {
        matches!(self.0, commit::CommitUnknown::Damaged { .. })
    }
}

/// The statuses of jobs.
#[derive(Clone, Debug)]
pub struct InStatus(pub Arc<Applier>);

impl CommitStore for InStatus {
    fn last(&self, gang: Arc<Gang>) -> BoxFuture<'static, Result<Option<Commit>, StoreError>> {
        let applier = Arc::clone(&self.0);
        Box::pin(async move {
            let nodes = gang.nodes.len();
            let read = applier.committed(&gang.job, gang.attempt, nodes);
            Ok(read.await?)
        })
    }

    fn commit(
        &self,
        gang: Arc<Gang>,
        commit: Commit,
        after: Option<u64>,
    ) -> BoxFuture<'static, Result<(), Option<Commit>>> {
        let applier = Arc::clone(&self.0);
        Box::pin(async move {
            let Gang {
                job,
                attempt,
                nodes,
                policy: _,
            } = &*gang;
            applier.commit(job, *attempt, nodes, &commit, after).await
        })
    }
}

/// A store that lasts as long as its process: for benches and tests without a cluster.
#[derive(Debug, Default)]
pub struct InMemory(Mutex<BTreeMap<(JobKey, u32), Commit>>);

impl CommitStore for InMemory {
    fn last(&self, gang: Arc<Gang>) -> BoxFuture<'static, Result<Option<Commit>, StoreError>> {
        let commits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = commits.get(&(gang.job.clone(), gang.attempt)).cloned();
        Box::pin(std::future::ready(Ok(last)))
    }

    fn commit(
        &self,
        gang: Arc<Gang>,
        commit: Commit,
        after: Option<u64>,
    ) -> BoxFuture<'static, Result<(), Option<Commit>>> {
        let mut commits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (gang.job.clone(), gang.attempt);
        let last = commits.get(&key);
        let taken = if last.map(|last| last.epoch) == after {
            commits.insert(key, commit);
            Ok(())
        } else {
            Err(last.cloned())
        };
        Box::pin(std::future::ready(taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gang(attempt: u32) -> Arc<Gang> {
        Arc::new(Gang {
            job: JobKey {
                kind: scheduler::JobKind::TrainingJob,
                namespace: "team".into(),
                name: "digits".into(),
                uid: "u-1".into(),
            },
            attempt,
            nodes: Vec::new(),
            policy: Default::default(),
        })
    }

    fn commit(epoch: u64) -> Commit {
        Commit {
            epoch,
            members: vec![0, 1],
            resume: Vec::new(),
        }
    }

    #[tokio::test]
    async fn of_two_commits_after_the_same_one_is_taken_and_the_other_learns_which() {
        let store = InMemory::default();
        assert_eq!(store.commit(gang(1), commit(1), None).await, Ok(()));
        assert_eq!(store.commit(gang(1), commit(3), Some(1)).await, Ok(()));
        let refused = store.commit(gang(1), commit(2), Some(1)).await;
        assert_eq!(refused, Err(Some(commit(3))));
        assert_eq!(store.last(gang(1)).await.unwrap(), Some(commit(3)));
        assert_eq!(store.last(gang(2)).await.unwrap(), None);
    }
}
