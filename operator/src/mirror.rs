//! A copy of one kind of objects: what the watch told, with our own writes laid over it until the
//! watch has told them too. So a plan is never made without what the last one has done.
//!
//! Versions are compared as numbers: the API server orders them per kind and documents that.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a created object is believed in before the watch confirms it. The watch lags by
/// milliseconds; an object that is not confirmed for so long was deleted during a new listing.
const UNCONFIRMED: Duration = Duration::from_secs(30);

/// Namespace (empty for cluster-wide kinds) and name.
pub type Key = (String, String);

/// What a mirror keeps of an object.
pub trait Kept: PartialEq {
    /// Notes when states were first seen, by our own clock: durations count from there, because the
    /// API server's clock and the kubelets' are not ours. `before` is what was kept of the name so
    /// far, possibly of another object.
    fn sighted(&mut self, _before: Option<&Self>, _now: Instant) {}
}

#[derive(Clone, Debug)]
struct Entry<T> {
    value: T,
    version: u64,
    /// When it was created by us, until the watch tells of it.
    unconfirmed: Option<Instant>,
}

/// The copy.
#[derive(Debug)]
pub struct Mirror<T> {
    entries: BTreeMap<Key, Entry<T>>,
    /// The highest version that the watch has told.
    position: u64,
    /// What a new listing has told so far, and when it began.
    listing: Option<(BTreeMap<Key, Entry<T>>, Instant)>,
    synced: bool,
}

impl<T> Default for Mirror<T> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            position: 0,
            listing: None,
            synced: false,
        }
    }
}

impl<T: Kept> Mirror<T> {
    /// Whether the first listing is complete.
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// An object by its key.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&T> {
        self.entries
            .get(&(namespace.to_owned(), name.to_owned()))
            .map(|entry| &entry.value)
    }

    /// All objects, in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.values().map(|entry| &entry.value)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The watch tells of an object, or that it no longer matters. True when that is news.
    pub fn applied(&mut self, key: Key, version: u64, value: Option<T>) -> bool {
        self.position = self.position.max(version);
        match value {
            Some(value) => self.set(key, version, value, None),
            None => self.entries.remove(&key).is_some(),
        }
    }

    /// The watch tells that an object is gone. True when that is news.
    pub fn deleted(&mut self, key: &Key, version: u64) -> bool {
        self.position = self.position.max(version);
        // A new object of the same name may have been created by us already.
        match self.entries.get(key) {
            Some(entry) if entry.version <= version => self.entries.remove(key).is_some(),
            Some(_) | None => false,
        }
    }

    /// A new listing begins.
    pub fn listing(&mut self, now: Instant) {
        self.listing = Some((BTreeMap::new(), now));
    }

    /// The listing tells of an object.
    pub fn listed(&mut self, key: Key, version: u64, value: T) {
        if let Some((listed, _)) = &mut self.listing {
            listed.insert(
                key,
                Entry {
                    value,
                    version,
                    unconfirmed: None,
                },
            );
        }
    }

    /// The listing is complete: what it did not tell is gone, unless we wrote it since it began.
    pub fn listing_done(&mut self) {
        let Some((mut listed, began)) = self.listing.take() else {
            return;
        };
        let now = Instant::now();
        let mut before = std::mem::take(&mut self.entries);
        for (key, known) in &mut listed {
            let old = before.get(key).map(|entry| &entry.value);
            known.value.sighted(old, now);
        }
        while let Some((key, entry)) = before.pop_first() {
            let newer = match listed.get(&key) {
                Some(known) => known.version < entry.version,
                None => entry.unconfirmed.is_some_and(|at| at >= began),
            };
            if newer {
                listed.insert(key, entry);
            } else if let Some(known) = listed.get(&key) {
                self.position = self.position.max(known.version);
            }
        }
        self.entries = listed;
        self.synced = true;
    }

    /// We created an object, or found that it exists.
    pub fn created(&mut self, key: Key, version: u64, value: T, now: Instant) -> bool {
        // Had the watch come so far already, it would have told of the object, or of its end.
        (version > self.position || self.listing.is_some())
            && self.set(key, version, value, Some(now))
    }

    /// We changed an object. One that has gone in the meantime does not come back.
    pub fn changed(&mut self, key: Key, version: u64, value: T) -> bool {
        self.entries.contains_key(&key) && self.set(key, version, value, None)
    }

    /// We changed an object and know how, but not its new version: the watch will tell.
    pub fn touched(&mut self, namespace: &str, name: &str, change: impl FnOnce(&mut T)) {
        if let Some(entry) = self
            .entries
            .get_mut(&(namespace.to_owned(), name.to_owned()))
        {
            change(&mut entry.value);
            entry.value.sighted(None, Instant::now());
        }
    }

    /// We found that an object does not exist.
    pub fn missing(&mut self, namespace: &str, name: &str) -> bool {
        self.entries
            .remove(&(namespace.to_owned(), name.to_owned()))
            .is_some()
    }

    /// Drops what we created and the watch never told of.
    pub fn expire(&mut self, now: Instant) {
        self.entries.retain(|_, entry| {
            entry
                .unconfirmed
                .is_none_or(|at| now.duration_since(at) < UNCONFIRMED)
        });
    }

    fn set(&mut self, key: Key, version: u64, mut value: T, unconfirmed: Option<Instant>) -> bool {
        let now = Instant::now();
        match self.entries.get_mut(&key) {
            Some(entry) if entry.version > version => false,
            Some(entry) => {
                value.sighted(Some(&entry.value), now);
                let news = entry.value != value;
                let unconfirmed = entry.unconfirmed.and(unconfirmed);
                *entry = Entry {
                    value,
                    version,
                    unconfirmed,
                };
                news
            }
            None => {
                value.sighted(None, now);
                self.entries.insert(
                    key,
                    Entry {
                        value,
                        version,
                        unconfirmed,
                    },
                );
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Kept for u64 {}

    fn key(name: &str) -> Key {
        ("team".to_owned(), name.to_owned())
    }

    fn synced(listed: &[(&str, u64)]) -> Mirror<u64> {
        let mut mirror = Mirror::default();
        mirror.listing(Instant::now());
        for &(name, version) in listed {
            mirror.listed(key(name), version, version);
        }
        mirror.listing_done();
        mirror
    }

    fn get(mirror: &Mirror<u64>, name: &str) -> Option<u64> {
        mirror.get("team", name).copied()
    }

    #[test]
    fn own_writes_are_seen_at_once_and_an_older_watch_event_does_not_undo_them() {
        let mut mirror = synced(&[("a", 5)]);
        assert!(mirror.changed(key("a"), 9, 9));
        assert!(mirror.created(key("b"), 10, 10, Instant::now()));
        assert!(!mirror.applied(key("a"), 7, Some(7)));
        assert_eq!((get(&mirror, "a"), get(&mirror, "b")), (Some(9), Some(10)));
    }

    #[test]
    fn an_answer_that_comes_after_the_object_has_gone_does_not_bring_it_back() {
        let mut mirror = synced(&[("a", 5)]);
        mirror.applied(key("b"), 6, Some(6));
        mirror.deleted(&key("b"), 7);
        assert!(!mirror.created(key("b"), 6, 6, Instant::now()));
        mirror.deleted(&key("a"), 8);
        assert!(!mirror.changed(key("a"), 9, 9));
        assert!(mirror.is_empty());
    }

    #[test]
    fn the_end_of_an_older_object_does_not_remove_the_new_one_of_its_name() {
        let mut mirror = synced(&[("a", 5)]);
        mirror.missing("team", "a");
        mirror.created(key("a"), 9, 9, Instant::now());
        mirror.deleted(&key("a"), 8);
        assert_eq!(get(&mirror, "a"), Some(9));
    }

    #[test]
    fn a_new_listing_replaces_everything_but_what_was_created_during_it() {
        let mut mirror = synced(&[("a", 5), ("b", 6)]);
        mirror.created(key("early"), 7, 7, Instant::now());
        mirror.listing(Instant::now() + Duration::from_millis(1));
        mirror.created(
            key("late"),
            20,
            20,
            Instant::now() + Duration::from_millis(2),
        );
        mirror.listed(key("a"), 12, 12);
        mirror.listing_done();
        assert_eq!(get(&mirror, "a"), Some(12));
        assert_eq!(get(&mirror, "b"), None);
        assert_eq!(get(&mirror, "early"), None);
        assert_eq!(get(&mirror, "late"), Some(20));
    }

    #[test]
    fn what_the_watch_never_confirms_expires() {
        let now = Instant::now();
        let mut mirror = synced(&[]);
        mirror.created(key("ghost"), 7, 7, now);
        mirror.created(key("real"), 8, 8, now);
        mirror.applied(key("real"), 8, Some(8));
        mirror.expire(now + UNCONFIRMED);
        assert_eq!(
            (get(&mirror, "ghost"), get(&mirror, "real")),
            (None, Some(8))
        );
    }

    #[test]
    fn a_change_of_unknown_version_holds_until_the_watch_tells() {
        let mut mirror = synced(&[("a", 5)]);
        mirror.touched("team", "a", |value| *value = 50);
        assert_eq!(get(&mirror, "a"), Some(50));
        mirror.applied(key("a"), 6, Some(6));
        assert_eq!(get(&mirror, "a"), Some(6));
        mirror.touched("team", "gone", |value| *value = 1);
        assert_eq!(get(&mirror, "gone"), None);
    }

    #[test]
    fn a_watch_event_without_change_is_no_news() {
        let mut mirror = synced(&[("a", 5)]);
        assert!(!mirror.applied(key("a"), 6, Some(5)));
        assert!(mirror.applied(key("a"), 7, Some(6)));
    }
}
