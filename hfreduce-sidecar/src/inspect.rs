//! What a running engine tells about itself when it is asked: what is in flight, who has joined and who is missing.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use serde::Serialize;

use crate::numa::Report;
use crate::stop::Stop;

/// Questions that may wait: whoever asks polls, so one more is nobody's loss.
const QUESTION_LIMIT: usize = 4;
/// How long an answer may take. A healthy engine needs milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// Where an answer goes.
pub(crate) type Question = SyncSender<Ops>;

/// What the engine is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
    pub links: Vec<Neighbour>,
    /// Operations that are not over here.
    pub operations: Vec<Operation>,
    /// Calls of local ranks that wait for their turn or for memory.
    pub waiting: Vec<Waiting>,
    /// Where memory and the engine lie.
    pub placement: Report,
    /// What happened last, oldest first: the flight recorder.
    pub history: Vec<String>,
}

/// A node next to this one in the trees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Neighbour {
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

/// Asks an engine. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Inspector {
    questions: SyncSender<Question>,
    wake: Stop,
}

impl Inspector {
    /// One that asks, and where its questions arrive. `wake`'s bell wakes the engine.
    pub(crate) fn new(wake: Stop) -> (Self, Receiver<Question>) {
        let (questions, asked) = sync_channel(QUESTION_LIMIT);
        (Self { questions, wake }, asked)
    }

    /// Asks and waits for the answer, at most for [`PATIENCE`].
    pub fn ask(&self) -> Result<Ops, String> {
        let (answer, answered) = sync_channel(1);
        match self.questions.try_send(answer) {
            Ok(()) => self.wake.bell().ring(),
            Err(TrySendError::Full(_)) => {
                return Err("the engine has not answered earlier questions".to_owned());
            }
            Err(TrySendError::Disconnected(_)) => return Err("the engine has ended".to_owned()),
        }
        answered.recv_timeout(PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => format!(
                "no answer within {PATIENCE:?}: the gang has not joined yet, or the engine is stuck"
            ),
            RecvTimeoutError::Disconnected => "the engine has ended".to_owned(),
        })
    }
}
