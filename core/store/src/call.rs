//! What a client may ask of the store, what it is answered, and how much of each there may be.

use std::sync::Arc;

/// The content of a key.
pub type Value = Arc<[u8]>;

/// Keys and contents of one command: as much as PyTorch's own store takes.
pub const COMMAND_LIMIT_BYTES: usize = 8 << 20;
/// Contents in one answer.
pub const ANSWER_LIMIT_BYTES: usize = 8 << 20;
/// Everything that the store keeps: a node sends it whole to one that has forgotten it.
pub const BYTES_LIMIT: usize = 256 << 20;
/// Sessions of all nodes: 8 threads of each of 8 processes on a thousand nodes.
pub const SESSION_LIMIT: usize = 1 << 16;

/// A session of a process: one call at a time. Processes have one for each thread that calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClientId {
    /// The node that it runs on.
    pub node: u32,
    /// Its number there, which it draws itself.
    pub number: u64,
}

/// A call of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Whose.
    pub client: ClientId,
    /// Which: a later one has a greater number, and the same one said again has the same.
    pub sequence: u64,
    /// What.
    pub command: Command,
}

/// What a client may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Gives keys their contents.
    Set(Vec<(String, Value)>),
    /// The contents of keys, when all are there.
    Get(Vec<String>),
    /// Nothing, when all keys are there.
    Wait(Vec<String>),
    /// Whether all keys are there.
    Check(Vec<String>),
    /// Adds to a number in decimal digits; what is not there is 0. Answers the sum.
    Add(String, i64),
    /// Gives a key a content if it has the expected one, or is not there and nothing is expected. Answers what it has
    /// then, and the expected content for a key that is not there.
    CompareSet {
        /// Which.
        key: String,
        /// What it has to be.
        expected: Value,
        /// What it becomes.
        desired: Value,
    },
    /// Adds to the end of a key's content; what is not there is empty.
    Append(String, Value),
    /// Removes a key. Answers whether it was there.
    Delete(String),
    /// How many keys there are.
    Count,
    /// Adds to the end of a queue.
    Push(String, Value),
    /// Takes the first of a queue, when one is there.
    Pop(String),
    /// Takes the first of a queue if one is there.
    TryPop(String),
    /// How long a queue is.
    Length(String),
    /// The session does not wait for its call before this one any more. Answers as that one was answered, if it was.
    Cancel,
    /// The session is over.
    Leave,
}

/// What a client is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// Contents.
    Values(Vec<Value>),
    /// A number.
    Number(i64),
    /// Yes or no.
    Is(bool),
    /// There is nothing to take, or the call was cancelled before it was answered.
    Nothing,
    /// It cannot be done, and nothing has changed.
    Failed(Failure),
}

/// Why something cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The store is full.
    #[error(
        "the store would hold {wanted} bytes, and {BYTES_LIMIT} are the limit; delete keys that nobody needs"
    )]
    Full {
        /// How much it would be.
        wanted: u64,
    },
    /// Too much at once.
    #[error(
        "{wanted} bytes are asked for at once, and {ANSWER_LIMIT_BYTES} are the limit; ask for fewer keys"
    )]
    TooLarge {
        /// How much it would be.
        wanted: u64,
    },
    /// Somebody adds to what is no number.
    #[error(
        "failed to add to key {key:?}: it holds no whole number of 64 bits, or the sum is none"
    )]
    NoNumber {
        /// Which.
        key: String,
    },
    /// There are too many sessions.
    #[error("{SESSION_LIMIT} threads use the store already")]
    Sessions,
    /// No member is left that remembers anything.
    #[error(
        "the store was lost: all sidecars that held it were replaced before one could tell another"
    )]
    Lost,
}

impl Command {
    /// Bytes of its keys and contents.
    pub fn bytes(&self) -> usize {
        let names = |keys: &[String]| keys.iter().map(String::len).sum();
        match self {
            Self::Set(pairs) => pairs
                .iter()
                .map(|(key, value)| key.len() + value.len())
                .sum(),
            Self::Get(keys) | Self::Wait(keys) | Self::Check(keys) => names(keys),
            Self::CompareSet {
                key,
                expected,
                desired,
            } => key.len() + expected.len() + desired.len(),
            Self::Append(key, value) | Self::Push(key, value) => key.len() + value.len(),
            Self::Add(key, _)
            | Self::Delete(key)
            | Self::Pop(key)
            | Self::TryPop(key)
            | Self::Length(key) => key.len(),
            Self::Count | Self::Cancel | Self::Leave => 0,
        }
    }

    /// Whether it may be done twice without anybody noticing but by the answer.
    pub fn is_read(&self) -> bool {
        match self {
            Self::Get(_) | Self::Wait(_) | Self::Check(_) | Self::Count | Self::Length(_) => true,
            Self::Set(_)
            | Self::Add(..)
            | Self::CompareSet { .. }
            | Self::Append(..)
            | Self::Delete(_)
            | Self::Push(..)
            | Self::Pop(_)
            | Self::TryPop(_)
            | Self::Cancel
            | Self::Leave => false,
        }
    }
}

impl Answer {
    /// Bytes of its contents.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Values(values) => values.iter().map(|value| value.len()).sum(),
            Self::Done | Self::Number(_) | Self::Is(_) | Self::Nothing | Self::Failed(_) => 0,
        }
    }
}
