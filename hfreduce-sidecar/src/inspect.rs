//! What a running engine reports about itself on request: what is in flight, who has joined and who is missing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::numa::PlacementReport;

/// How old a snapshot may be.
const REFRESH: Duration = Duration::from_secs(1);
/// Who may wait for the next snapshot; others get the last one.
const WAITING_LIMIT: usize = 4;
/// How long an answer may take. A healthy engine needs milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// What the engine is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ops {
    /// The membership.
    pub epoch: u32,
    /// This node's rank in the attempt.
    pub node: u32,
    /// The ranks of all nodes that are members.
    pub members: Vec<u32>,
    /// Why the epoch is over, if it is.
    pub broken: Option<String>,
    /// Neighbours to which links stand.
    pub links: Vec<LinkState>,
    /// Operations that are not over here.
    pub operations: Vec<Operation>,
    /// Calls of local ranks that wait for their turn or for memory.
    pub waiting: Vec<Waiting>,
    /// Collectives that local ranks made over gloo since this sidecar started.
    pub fallbacks: u64,
    /// Where memory and the engine lie.
    pub placement: PlacementReport,
    /// What happened last, oldest first: the flight recorder.
    pub history: Vec<String>,
}

/// A node next to this one in the trees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkState {
    /// Its rank in the attempt.
    pub node: u32,
    /// Its name.
    pub name: String,
    /// How it is reached.
    pub transport: String,
}

/// An operation in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    /// Its group; 0 is the world.
    pub group: u64,
    /// Which of the group's operations.
    pub operation: u64,
    /// What was called, if a local rank has.
    pub call: Option<String>,
    /// How long this node has known of it, in milliseconds.
    pub age_milliseconds: u64,
    /// Local ranks that have called it.
    pub joined: Vec<usize>,
    /// Local ranks that have not.
    pub missing: Vec<usize>,
    /// Nodes that have to send next: parts of theirs, or the result.
    pub waits_for: Vec<String>,
    /// Chunks whose result is here.
    pub settled: u32,
    /// Chunks whose result will be here; 0 while local ranks are missing.
    pub chunks: u32,
}

/// Calls of one local rank that are not begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waiting {
    /// The rank on this node.
    pub local_rank: usize,
    /// How many.
    pub calls: usize,
    /// Whether the first waits until results are dropped.
    pub for_memory: bool,
}

/// What is shared between those who ask and the engine.
#[derive(Debug, Default)]
struct Board {
    state: Mutex<State>,
    changed: Condvar,
    /// Whether somebody has asked since the last snapshot.
    wanted: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    latest: Option<(Instant, Arc<Ops>)>,
    /// Who waits for the next one.
    waiting: usize,
    has_ended: bool,
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, State> {
        // It is changed by whole values.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine's end: it leaves a snapshot where somebody has asked for one, at most once in `REFRESH`.
#[derive(Debug)]
pub struct Snapshots {
    board: Arc<Board>,
    left: Option<Instant>,
}

impl Snapshots {
    /// Whether somebody has asked, and the last snapshot is old.
    pub(crate) fn are_due(&mut self) -> bool {
        let is_old = self.left.is_none_or(|left| left.elapsed() >= REFRESH);
        is_old && self.board.wanted.swap(false, Ordering::AcqRel)
    }

    /// Leaves one.
    pub(crate) fn leave(&mut self, ops: Ops) {
        let now = Instant::now();
        self.left = Some(now);
        self.board.lock().latest = Some((now, Arc::new(ops)));
        self.board.changed.notify_all();
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        self.board.lock().has_ended = true;
        self.board.changed.notify_all();
    }
}

/// Asks an engine. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Inspector(Arc<Board>);

impl Inspector {
    /// One that asks, and the engine's end. No question wakes the engine: it looks around several times a second.
    #[must_use]
    pub fn new() -> (Self, Snapshots) {
        let board = Arc::<Board>::default();
        let snapshots = Snapshots {
            board: Arc::clone(&board),
            left: None,
        };
        (Self(board), snapshots)
    }

    /// The last snapshot, if it is not old; otherwise the next one, for which it waits [`PATIENCE`] at most.
    pub fn ask(&self) -> Result<Arc<Ops>, String> {
        let asked = Instant::now();
        let mut state = self.0.lock();
        let is_fresh = |left: Instant| left >= asked || left.elapsed() < REFRESH;
        if let Some((_, ops)) = state.latest.as_ref().filter(|(left, _)| is_fresh(*left)) {
            return Ok(Arc::clone(ops));
        }
        self.0.wanted.store(true, Ordering::Release);
        if state.waiting >= WAITING_LIMIT {
            let latest = state.latest.as_ref().map(|(_, ops)| Arc::clone(ops));
            return latest.ok_or_else(|| "others wait for the engine's answer already".to_owned());
        }
        state.waiting += 1;
        let answer = loop {
            if state.has_ended {
                break Err("the engine has ended".to_owned());
            }
            if let Some((_, ops)) = state.latest.as_ref().filter(|(left, _)| *left >= asked) {
                break Ok(Arc::clone(ops));
            }
            let Some(left) = PATIENCE
                .checked_sub(asked.elapsed())
                .filter(|left| !left.is_zero())
            else {
                break Err(format!(
                    "no answer within {PATIENCE:?}: the gang has not joined yet, or the engine is stuck"
                ));
            };
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        };
        state.waiting -= 1;
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::thread;

    use super::*;

    fn ops(epoch: u32) -> Ops {
        Ops {
            epoch,
            ..Ops::default()
        }
    }

    #[test]
    fn any_number_of_questions_costs_the_engine_one_snapshot() {
        let (inspector, mut snapshots) = Inspector::new();
        let made = Cell::new(0);
        let mut leave = || {
            if snapshots.are_due() {
                made.set(made.get() + 1);
                snapshots.leave(ops(made.get()));
            }
        };
        leave();
        assert_eq!(made.get(), 0, "nobody has asked");
        thread::scope(|scope| {
            let ask = || scope.spawn(|| inspector.ask());
            let first = ask();
            let start = Instant::now();
            while !first.is_finished() {
                assert!(start.elapsed() < 10 * PATIENCE);
                leave();
                thread::yield_now();
            }
            assert_eq!(first.join().unwrap().unwrap().epoch, 1);
        });
        for _ in 0..10_000 {
            leave();
            if snapshots_are_fresh(&inspector) {
                assert_eq!(inspector.ask().unwrap().epoch, made.get());
            }
        }
        assert!(made.get() <= 2, "{} snapshots", made.get());
    }

    fn snapshots_are_fresh(inspector: &Inspector) -> bool {
        let state = inspector.0.lock();
        let latest = state.latest.as_ref();
        latest.is_some_and(|(left, _)| left.elapsed() < REFRESH / 2)
    }

    #[test]
    fn a_request_to_an_engine_that_has_ended_gets_an_answer() {
        let (inspector, snapshots) = Inspector::new();
        drop(snapshots);
        assert_eq!(inspector.ask().unwrap_err(), "the engine has ended");
    }
}
