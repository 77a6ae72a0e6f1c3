//! Where committed epochs are kept: the one thing of an attempt's rendezvous that a new leader cannot learn from the
//! sidecars. Of two leaders, or of a leader and what it does not know of itself, one commit wins.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use collective::membership::Commit;
use futures::future::BoxFuture;
use scheduler::JobKey;

use crate::rendezvous::directory::Gang;

/// Keeps the last commit of each attempt.
pub trait Store: Send + Sync + 'static {
    /// The last commit, as far as it is known without asking.
    fn last(&self, gang: &Gang) -> Option<Commit>;
    /// Keeps a commit, if the last one is that of epoch `after`. Else what the store holds, if that is known.
    fn commit(
        &self,
        gang: Gang,
        commit: Commit,
        after: Option<u64>,
    ) -> BoxFuture<'static, Result<(), Option<Commit>>>;
}

/// A store that lasts as long as its process: for benches and tests without a cluster.
#[derive(Debug, Default)]
pub struct InMemory(Mutex<BTreeMap<(JobKey, u32), Commit>>);

impl Store for InMemory {
    fn last(&self, gang: &Gang) -> Option<Commit> {
        let commits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        commits.get(&(gang.job.clone(), gang.attempt)).cloned()
    }

    fn commit(
        &self,
        gang: Gang,
        commit: Commit,
        after: Option<u64>,
    ) -> BoxFuture<'static, Result<(), Option<Commit>>> {
        let mut commits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (gang.job, gang.attempt);
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

    fn gang() -> Gang {
        Gang {
            job: JobKey {
                namespace: "team".into(),
                name: "digits".into(),
                uid: "u-1".into(),
            },
            attempt: 1,
            nodes: Vec::new(),
            policy: Default::default(),
        }
    }

    fn commit(epoch: u64) -> Commit {
        Commit {
            epoch,
            members: vec![0, 1],
            resume: Vec::new(),
        }
    }

    #[tokio::test]
    async fn of_two_commits_after_the_same_one_is_taken_and_the_other_told_which() {
        let store = InMemory::default();
        assert_eq!(store.commit(gang(), commit(1), None).await, Ok(()));
        assert_eq!(store.commit(gang(), commit(3), Some(1)).await, Ok(()));
        let refused = store.commit(gang(), commit(2), Some(1)).await;
        assert_eq!(refused, Err(Some(commit(3))));
        assert_eq!(store.last(&gang()), Some(commit(3)));
        let other = Gang {
            attempt: 2,
            ..gang()
        };
        assert_eq!(store.last(&other), None);
    }
}
