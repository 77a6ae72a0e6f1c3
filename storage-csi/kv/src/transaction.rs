//! What a transaction writes, and the limits on it.

use std::collections::BTreeMap;

use crate::error::KvLimit;
use crate::reads::Reads;
use crate::{MOST_KEY_BYTES, MOST_OPERATIONS, MOST_TRANSACTION_BYTES, MOST_VALUE_BYTES};

/// Puts and deletions that are applied together or not at all. The last write of a key counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvTransaction {
    /// `None` deletes.
    pub(crate) writes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl KvTransaction {
    /// Sets a key.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.writes.insert(key, Some(value));
    }

    /// Deletes a key, if it is there.
    pub fn delete(&mut self, key: Vec<u8>) {
        self.writes.insert(key, None);
    }

    /// Whether it writes nothing.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Whether the store has to grow for it.
    pub(crate) fn puts(&self) -> bool {
        self.writes.values().any(Option::is_some)
    }

    /// Refuses what no engine could commit.
    pub(crate) fn check(&self, reads: &Reads) -> Result<(), KvLimit> {
        let (writes, compared) = (self.writes.len(), reads.compared());
        if writes > MOST_OPERATIONS {
            return Err(KvLimit::Writes(writes));
        }
        if compared > MOST_OPERATIONS {
            return Err(KvLimit::Reads(compared));
        }
        let mut bytes = reads.bytes();
        for (key, value) in &self.writes {
            check_key(key)?;
            let length = value.as_ref().map_or(0, Vec::len);
            if length > MOST_VALUE_BYTES {
                return Err(KvLimit::Value(length));
            }
            bytes += key.len() + length;
        }
        if bytes > MOST_TRANSACTION_BYTES {
            return Err(KvLimit::Bytes(bytes));
        }
        Ok(())
    }
}

pub(crate) fn check_key(key: &[u8]) -> Result<(), KvLimit> {
    match key.len() {
        1..=MOST_KEY_BYTES => Ok(()),
        length => Err(KvLimit::Key(length)),
    }
}
