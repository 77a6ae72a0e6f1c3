//! What a snapshot has read: all that its commit depends on.

use std::collections::{BTreeMap, BTreeSet};

/// Keys from `start` on, before `end` if there is one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyRange {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Option<Vec<u8>>,
}

impl KeyRange {
    /// The keys that begin with a prefix.
    pub(crate) fn of(prefix: &[u8]) -> Self {
        let last = prefix.iter().rposition(|byte| *byte != u8::MAX);
        let end = last.and_then(|last| {
            let (byte, before) = prefix.get(..=last)?.split_last()?;
            Some([before, &[byte + 1]].concat())
        });
        // No key is empty.
        let start = if prefix.is_empty() { &[0] } else { prefix };
        Self {
            start: start.to_vec(),
            end,
        }
    }

    /// Only those after a key.
    pub(crate) fn after(self, key: &[u8]) -> Self {
        Self {
            start: self.start.max(successor(key)),
            end: self.end,
        }
    }

    /// Only those up to a key of the range, with it.
    pub(crate) fn up_to(self, key: &[u8]) -> Self {
        Self {
            start: self.start,
            end: Some(successor(key)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }
}

/// The next key there can be.
fn successor(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Revision of the last change of a key that is absent.
pub(crate) const ABSENT: i64 = 0;

/// A key as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    /// Revision of its last change.
    pub(crate) changed: i64,
}

/// Keys and ranges that were read, all at one revision.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reads {
    /// Where the snapshot reads; none before its first read.
    pub(crate) revision: Option<i64>,
    /// Each with the revision of its last change, or [`ABSENT`].
    pub(crate) keys: BTreeMap<Vec<u8>, i64>,
    /// Ranges in which no key may be newer than the snapshot.
    pub(crate) ranges: BTreeSet<KeyRange>,
}

impl Reads {
    /// How many compares it takes.
    pub(crate) fn compared(&self) -> usize {
        self.keys.len() + self.ranges.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        let keys = self.keys.keys().map(Vec::len);
        let ranges = self.ranges.iter().map(|range| {
            let end = range.end.as_ref().map_or(0, Vec::len);
            range.start.len() + end
        });
        keys.chain(ranges).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_the_next_begins() {
        let end = |prefix: &[u8]| KeyRange::of(prefix).end;
        assert_eq!(end(b"a/"), Some(b"a0".to_vec()));
        assert_eq!(end(&[1, 0xff]), Some(vec![2]));
        assert_eq!(end(&[0xff, 0xff]), None);
        assert_eq!((KeyRange::of(b"").start, end(b"")), (vec![0], None));
    }

    #[test]
    fn nothing_comes_after_the_last_key_of_a_range() {
        let range = KeyRange::of(b"a").up_to(b"ab");
        assert!(range.clone().after(b"ab").is_empty());
        assert!(!range.after(b"aa").is_empty());
    }
}
