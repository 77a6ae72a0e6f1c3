//! How an operation runs: it is called with all that was read so far, and says what else to read, what to commit, or the
//! answer. It starts from its beginning each time, so it keeps nothing between the calls.

use std::collections::{BTreeMap, BTreeSet};

use serde::de::DeserializeOwned;

use crate::request::Errno;
use crate::types::InodeNumber;

/// Most times that an operation is called: once for each directory above another one, and some.
pub const MOST_ROUNDS: usize = 128;
/// Most keys that an operation writes.
pub const MOST_WRITES: usize = 64;

/// What an operation does next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum NextStep<A> {
    /// Read these, all at one revision, add them to what was seen, and call again.
    Read(Reads),
    /// Commit these if nothing has changed that was read, but for plain ranges. The answer holds once it is committed.
    Commit(Changes, A),
    /// The answer, at the revision of the reads.
    Answer(A),
}

/// What to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Keys. A commit compares them.
    pub keys: BTreeSet<Vec<u8>>,
    /// Ranges.
    pub ranges: BTreeSet<RangeRead>,
}

/// The first keys that begin with a prefix. Fewer than `limit` are all there are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RangeRead {
    /// A commit compares them: none among these, or up to the prefix's end if these are all, may have changed, come or
    /// gone.
    Compared { prefix: Vec<u8>, limit: usize },
    /// A commit does not depend on them. Only those after a key, if there is one.
    Plain {
        prefix: Vec<u8>,
        after: Option<Vec<u8>>,
        limit: usize,
    },
}

/// What a commit writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// `None` deletes.
    pub writes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

/// Keys with their values, by key.
pub(crate) type Rows = Vec<(Vec<u8>, Vec<u8>)>;

/// What was read, all at one revision.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    keys: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    ranges: BTreeMap<RangeRead, Rows>,
}

impl Seen {
    /// A key with its value, or that it is absent.
    pub fn add_key(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.keys.insert(key, value);
    }

    /// A range with what is in it, by key.
    pub fn add_range(&mut self, range: RangeRead, rows: Vec<(Vec<u8>, Vec<u8>)>) {
        self.ranges.insert(range, rows);
    }

    /// Stops if one of the keys or ranges was not read yet, with all that were not.
    pub(crate) fn need(
        &self,
        keys: impl IntoIterator<Item = Vec<u8>>,
        ranges: impl IntoIterator<Item = RangeRead>,
    ) -> Outcome<()> {
        let reads = Reads {
            keys: keys
                .into_iter()
                .filter(|key| !self.keys.contains_key(key))
                .collect(),
            ranges: ranges
                .into_iter()
                .filter(|range| !self.ranges.contains_key(range))
                .collect(),
        };
        match reads == Reads::default() {
            true => Ok(()),
            false => Err(Stop::Read(reads)),
        }
    }

    pub(crate) fn get(&self, key: Vec<u8>) -> Outcome<Option<&[u8]>> {
        match self.keys.get(&key) {
            Some(value) => Ok(value.as_deref()),
            None => {
                self.need([key], [])?;
                Ok(None)
            }
        }
    }

    pub(crate) fn range(&self, range: RangeRead) -> Outcome<&Rows> {
        self.need([], [range.clone()])?;
        self.ranges.get(&range).ok_or(Stop::Refuse(Errno::Invalid))
    }

    /// The record of a key.
    pub(crate) fn record<T: DeserializeOwned>(&self, key: Vec<u8>) -> Outcome<Option<T>> {
        match self.get(key.clone())? {
            Some(value) => Ok(Some(parse(&key, value)?)),
            None => Ok(None),
        }
    }
}

pub(crate) fn parse<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Outcome<T> {
    serde_json::from_slice(value).map_err(|_| damaged(key))
}

pub(crate) fn damaged(key: &[u8]) -> Stop {
    let key = key.escape_ascii().to_string();
    Stop::Refuse(Errno::Damaged { key })
}

/// What comes from outside, beside the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// Nanoseconds since 1970.
    pub now_ns: i64,
    /// For an operation that may make an inode: a number that none ever had, another one for each attempt.
    pub fresh: InodeNumber,
}

/// Why an operation cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Read(Reads),
    Refuse(Errno),
}

pub(crate) type Outcome<T> = Result<T, Stop>;

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Refuse(errno)
    }
}
