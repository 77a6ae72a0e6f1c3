//! The key-value store in memory: snapshots, and commits that compare what was read.

use std::collections::BTreeMap;
use std::rc::Rc;

use metadata::{Changes, MOST_WRITES, RangeRead, Reads, Seen};

/// Most keys that a commit may compare, as real stores have it.
const MOST_COMPARED: usize = 128;
/// Well below what real stores take.
const MOST_BYTES: usize = 64 << 10;

/// Each key with the revision of its last change.
type Keys = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

#[derive(Default)]
pub(crate) struct Store {
    revision: u64,
    keys: Rc<Keys>,
}

/// Reads at one revision, and what a commit compares.
#[derive(Clone)]
pub(crate) struct Snapshot {
    revision: u64,
    keys: Rc<Keys>,
    compared: BTreeMap<Vec<u8>, u64>,
    ranges: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    pub(crate) seen: Seen,
}

impl Store {
    pub(crate) fn from_rows(rows: BTreeMap<Vec<u8>, Vec<u8>>) -> Self {
        let rows = rows.into_iter().map(|(key, value)| (key, (1, value)));
        Self {
            revision: 1,
            keys: Rc::new(rows.collect()),
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            revision: self.revision,
            keys: Rc::clone(&self.keys),
            compared: BTreeMap::new(),
            ranges: Vec::new(),
            seen: Seen::default(),
        }
    }

    /// Whether it was done: nothing that was read has changed.
    pub(crate) fn commit(&mut self, snapshot: &Snapshot, changes: &Changes) -> bool {
        check(snapshot, changes);
        let revision = |key: &Vec<u8>| self.keys.get(key).map_or(0, |(revision, _)| *revision);
        let is_same = snapshot
            .compared
            .iter()
            .all(|(key, seen)| revision(key) == *seen);
        let is_old = |(prefix, end): &(Vec<u8>, Option<Vec<u8>>)| {
            rows(&self.keys, prefix, None)
                .take_while(|(key, _)| end.as_ref().is_none_or(|end| *key <= end))
                .all(|(_, (revision, _))| *revision <= snapshot.revision)
        };
        if !is_same || !snapshot.ranges.iter().all(is_old) {
            return false;
        }
        self.revision += 1;
        let keys = Rc::make_mut(&mut self.keys);
        for (key, value) in &changes.writes {
            match value {
                Some(value) => keys.insert(key.clone(), (self.revision, value.clone())),
                None => keys.remove(key),
            };
        }
        true
    }

    /// Keys that begin so.
    pub(crate) fn count(&self, prefix: &[u8]) -> usize {
        rows(&self.keys, prefix, None).count()
    }

    /// Writes other text into all values of keys that begin so.
    pub(crate) fn replace(&mut self, prefix: &[u8], old: &str, new: &str) {
        let keys = Rc::make_mut(&mut self.keys);
        let rows = keys.iter_mut().filter(|(key, _)| key.starts_with(prefix));
        for (_, (_, value)) in rows {
            let text = String::from_utf8(value.clone()).unwrap();
            *value = text.replace(old, new).into_bytes();
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.keys
            .iter()
            .map(|(key, (_, value))| (key.as_slice(), value.as_slice()))
    }
}

impl Snapshot {
    pub(crate) fn read(&mut self, reads: Reads) {
        assert!(reads != Reads::default(), "reads something");
        for key in reads.keys {
            let found = self.keys.get(&key);
            let (revision, value) =
                found.map_or((0, None), |(at, value)| (*at, Some(value.clone())));
            self.compared.insert(key.clone(), revision);
            self.seen.add_key(key, value);
        }
        for range in reads.ranges {
            let (prefix, after, limit) = match &range {
                RangeRead::Compared { prefix, limit } => (prefix, None, *limit),
                RangeRead::Plain {
                    prefix,
                    after,
                    limit,
                } => (prefix, after.as_ref(), *limit),
            };
            let found: Vec<_> = rows(&self.keys, prefix, after)
                .take(limit)
                .map(|(key, (at, value))| (key.clone(), *at, value.clone()))
                .collect();
            if let RangeRead::Compared { prefix, limit } = &range {
                let last = found.last().filter(|_| found.len() == *limit);
                let end = last.map(|(key, ..)| key.clone());
                self.ranges.push((prefix.clone(), end));
                let compared = found.iter().map(|(key, at, _)| (key.clone(), *at));
                self.compared.extend(compared);
            }
            let found = found.into_iter().map(|(key, _, value)| (key, value));
            self.seen.add_range(range, found.collect());
        }
    }
}

fn rows<'a>(
    keys: &'a Keys,
    prefix: &'a [u8],
    after: Option<&Vec<u8>>,
) -> impl Iterator<Item = (&'a Vec<u8>, &'a (u64, Vec<u8>))> {
    let after = after.cloned();
    keys.range(prefix.to_vec()..)
        .take_while(move |(key, _)| key.starts_with(prefix))
        .filter(move |(key, _)| after.as_ref().is_none_or(|after| *key > after))
}

/// Every transaction is one that a real store takes.
fn check(snapshot: &Snapshot, changes: &Changes) {
    let compared = snapshot.compared.len() + snapshot.ranges.len();
    assert!(compared <= MOST_COMPARED, "compares {compared}");
    let writes = &changes.writes;
    assert!(
        (1..=MOST_WRITES).contains(&writes.len()),
        "{}",
        writes.len()
    );
    let bytes = writes
        .iter()
        .map(|(key, value)| key.len() + value.as_ref().map_or(0, Vec::len));
    assert!(bytes.sum::<usize>() <= MOST_BYTES);
}
