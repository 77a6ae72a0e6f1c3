//! Why a read or a commit failed, and what the caller can do about it.

use crate::{
    MOST_KEY_BYTES, MOST_LISTED, MOST_OPERATIONS, MOST_TRANSACTION_BYTES, MOST_VALUE_BYTES,
};

/// What a caller may not ask for. Nothing was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvLimit {
    /// More keys than a transaction can compare.
    #[error(
        "it has read {0} keys and ranges, and at most {MOST_OPERATIONS} can be compared: read less"
    )]
    Reads(usize),
    /// More keys than a transaction can write.
    #[error("it writes {0} keys, and at most {MOST_OPERATIONS} are possible: divide it")]
    Writes(usize),
    /// Too large as a whole.
    #[error("it has {0} bytes, and at most {MOST_TRANSACTION_BYTES} are possible: divide it")]
    Bytes(usize),
    /// No key, or a long one.
    #[error("a key has {0} bytes: it needs 1 to {MOST_KEY_BYTES}")]
    Key(usize),
    /// A value that is too long.
    #[error("a value has {0} bytes, and at most {MOST_VALUE_BYTES} are possible: use several keys")]
    Value(usize),
    /// A list without a limit that can be kept.
    #[error("a list of {0} keys was asked for: ask for 1 to {MOST_LISTED} at a time")]
    Listed(usize),
}

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KvError {
    /// Its revision is gone.
    #[error("failed to read: the snapshot is too old: start again with a new one")]
    TooOld,
    /// Nobody answers, or not in time.
    #[error("failed to read from the key-value store: {0}: try again")]
    Unavailable(String),
    /// The store refuses, and will refuse again.
    #[error("failed to use the key-value store: {0}")]
    Failed(String),
    /// The caller asked for too much.
    #[error("failed to read: {0}")]
    Limit(#[from] KvLimit),
}

/// Why a commit did not succeed. Only after `Unknown` it may have been applied, now or soon.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// What was read has changed.
    #[error("failed to commit: what was read has changed: start again with a new snapshot")]
    Conflict,
    /// Nobody knows whether it was applied.
    #[error("the outcome of a commit is unknown: {0}: read again what it would have changed")]
    Unknown(String),
    /// The store is at its quota.
    #[error(
        "failed to commit: the key-value store is full: delete something; transactions that only delete work"
    )]
    Full,
    /// The store refuses, and will refuse again.
    #[error("failed to commit: {0}")]
    Failed(String),
    /// The caller asked for too much.
    #[error("failed to commit a transaction: {0}")]
    Limit(#[from] KvLimit),
}
