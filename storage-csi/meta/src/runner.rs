//! Runs steps over snapshots of the store: reads what they want, commits what they say, and begins anew after a conflict
//! or a commit whose outcome is unknown.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kv::{CommitError, KvError, KvSnapshot, KvStore, KvTransaction};
use metadata::{Changes, Errno, Given, InodeNumber, MOST_ROUNDS, NextStep, RangeRead, Reads, Seen};
use tokio::time::sleep;
use tonic::Status;
use tracing::{debug, warn};

use crate::numbers::Numbers;

/// How often an operation begins. With so many conflicts somebody else makes progress each time.
const MOST_ATTEMPTS: u32 = 64;
/// How long it waits after some conflicts, at first; twice as long each time.
const FIRST_DELAY: Duration = Duration::from_millis(1);
/// And at most, 32 ms.
const MOST_DOUBLINGS: u32 = 5;
/// Conflicts after which it does not wait.
const PATIENT_AFTER: u32 = 2;

/// Why an operation has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The store cannot be read.
    #[error(transparent)]
    Read(#[from] KvError),
    /// The store does not take it.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// It reads for ever: a bug.
    #[error("failed to find out what to do within {MOST_ROUNDS} rounds of reads")]
    Endless,
    /// There is no number for an inode.
    #[error("failed to take numbers of inodes: {0}")]
    Numbers(Errno),
}

impl RunError {
    /// Whether another attempt may succeed at once.
    fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Read(KvError::TooOld)
                | Self::Commit(CommitError::Conflict | CommitError::Unknown(_))
        )
    }
}

impl From<RunError> for Status {
    fn from(error: RunError) -> Self {
        let text = daemon::chain(&error);
        match error {
            RunError::Read(KvError::TooOld | KvError::Unavailable(_))
            | RunError::Commit(CommitError::Conflict | CommitError::Unknown(_)) => {
                Self::unavailable(text)
            }
            RunError::Commit(CommitError::Full) => Self::resource_exhausted(text),
            RunError::Read(KvError::Failed(_) | KvError::Limit(_))
            | RunError::Commit(CommitError::Failed(_) | CommitError::Limit(_))
            | RunError::Endless
            | RunError::Numbers(_) => {
                warn!(error = text, "failed to run an operation");
                Self::internal(text)
            }
        }
    }
}

/// Whether an operation may make an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fresh {
    /// It may, and needs a number for that.
    Needed,
    /// It does not.
    NotNeeded,
}

/// Cheap to clone; all clones share their numbers of inodes.
#[derive(Clone, Debug)]
pub(crate) struct StepRunner {
    store: KvStore,
    numbers: Arc<Numbers>,
}

impl StepRunner {
    pub(crate) fn new(store: KvStore) -> Self {
        let numbers = Arc::default();
        Self { store, numbers }
    }

    /// Until there is an answer that holds.
    pub(crate) async fn run<A>(
        &self,
        fresh: Fresh,
        step: impl Fn(&Given, &Seen) -> NextStep<A>,
    ) -> Result<A, RunError> {
        let mut attempt = 0;
        loop {
            let given = Given {
                now_ns: now_ns(),
                fresh: match fresh {
                    Fresh::Needed => self.numbers.next(self).await?,
                    Fresh::NotNeeded => InodeNumber(0),
                },
            };
            let error = match self.attempt(|seen| step(&given, seen)).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            attempt += 1;
            if !error.is_passing() || attempt == MOST_ATTEMPTS {
                return Err(error);
            }
            debug!(%error, attempt, "beginning an operation anew");
            if let Some(doublings) = attempt.checked_sub(PATIENT_AFTER) {
                let delay = FIRST_DELAY * (1 << doublings.min(MOST_DOUBLINGS));
                // From a half of it to all, by the clock, so that those who have met do not meet again.
                let eighths = 4 + given.now_ns.unsigned_abs() % 5;
                sleep(delay * eighths as u32 / 8).await;
            }
        }
    }

    async fn attempt<A>(&self, step: impl Fn(&Seen) -> NextStep<A>) -> Result<A, RunError> {
        let mut snapshot = self.store.snapshot();
        let mut seen = Seen::default();
        for _ in 0..MOST_ROUNDS {
            match step(&seen) {
                NextStep::Read(reads) => read(&mut snapshot, reads, &mut seen).await?,
                NextStep::Answer(answer) => return Ok(answer),
                NextStep::Commit(changes, answer) => {
                    snapshot.commit(transaction(changes)).await?;
                    return Ok(answer);
                }
            }
        }
        Err(RunError::Endless)
    }
}

async fn read(snapshot: &mut KvSnapshot, reads: Reads, seen: &mut Seen) -> Result<(), KvError> {
    if !reads.keys.is_empty() {
        let keys: Vec<_> = reads.keys.into_iter().collect();
        let values = snapshot.get(&keys).await?;
        for (key, value) in keys.into_iter().zip(values) {
            seen.add_key(key, value);
        }
    }
    for range in reads.ranges {
        let rows = match &range {
            RangeRead::Compared { prefix, limit } => snapshot.scan(prefix, *limit).await?,
            RangeRead::Plain {
                prefix,
                after,
                limit,
            } => snapshot.list(prefix, after.as_deref(), *limit).await?,
        };
        seen.add_range(range, rows);
    }
    Ok(())
}

fn transaction(changes: Changes) -> KvTransaction {
    let mut transaction = KvTransaction::default();
    for (key, value) in changes.writes {
        match value {
            Some(value) => transaction.put(key, value),
            None => transaction.delete(key),
        }
    }
    transaction
}

/// Nanoseconds since 1970.
fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.map_or(0, |since| since.as_nanos());
    i64::try_from(since).unwrap_or(i64::MAX)
}
