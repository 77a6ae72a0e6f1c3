//! A copy of one kind of objects: what the watch delivered, with our own writes laid over it until
//! the watch has delivered them too. So a plan is never made without what the last one has done. A
//! copy knows how old it is, and what in it nobody has confirmed.
//!
//! Versions are compared as numbers: the API server orders them per kind and documents that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::limits::{MOST_REMEMBERED, REMEMBERED_TIME};

/// How long a created object is believed in before the watch confirms it. The watch lags by
/// milliseconds; one that is not confirmed for so long is asked for.
const UNCONFIRMED: Duration = Duration::from_secs(30);
/// Objects that are asked for at once.
const ASKED: usize = 64;

/// The version of an object of which the API server said none.
pub const NO_VERSION: u64 = 0;

/// Namespace (empty for cluster-wide kinds) and name.
pub type ObjectKey = (String, String);

/// Mirrors under one lock, which watches keep up to date and somebody is woken for.
pub trait MirrorOwner: Send + Sync + 'static {
    /// The mirrors.
    type Mirrors;

    /// The mirrors, locked: look or write, then let go. Never across an await.
    fn mirrors(&self) -> MutexGuard<'_, Self::Mirrors>;

    /// Says that something changed.
    fn notify(&self);

    /// Tells of requests for new listings.
    fn listings(&self) -> watch::Receiver<u64>;
}

/// Follows all objects of a mirror, so that nobody has to walk them for each question.
pub trait Derived<T>: Debug + Default {
    /// The mirror has an object.
    fn added(&mut self, object: &T);

    /// The mirror has an object no more, or another in its place.
    fn removed(&mut self, object: &T);
}

impl<T> Derived<T> for () {
    fn added(&mut self, _: &T) {}

    fn removed(&mut self, _: &T) {}
}

/// What a mirror keeps of an object.
pub trait Mirrored: PartialEq + Sized {
    /// The value that follows all objects of the kind. Most kinds need none.
    type Derived: Derived<Self>;

    /// Notes when states were first seen, by our own clock: durations count from there, because the
    /// API server's clock and the kubelets' are not ours. `before` is what was kept of the name so
    /// far, possibly of another object.
    fn sighted(&mut self, _before: Option<&Self>, _now: Instant) {}

    /// The job (namespace and name) with which alone the object is looked at: it asks for nothing
    /// by itself. None for what is looked at in every pass.
    fn rests_with(&self) -> Option<ObjectKey> {
        None
    }

    /// Returns true if it is remembered for a while after the object is gone.
    fn is_remembered(&self) -> bool {
        false
    }
}

#[derive(Clone, Debug)]
struct Entry<T> {
    value: T,
    version: u64,
    /// When it was created by us, or last asked for, until the watch shows it.
    unconfirmed: Option<Instant>,
    /// True if we have changed the value since this version.
    is_guess: bool,
}

impl<T> Entry<T> {
    /// An object as the API server shows it.
    fn new(value: T, version: u64) -> Self {
        Self {
            value,
            version,
            unconfirmed: None,
            is_guess: false,
        }
    }
}

/// A listing that is under way.
#[derive(Debug)]
struct Listing<T> {
    entries: BTreeMap<ObjectKey, Listed<T>>,
    began: Instant,
    request: u64,
}

/// Entry of a listing.
#[derive(Debug)]
struct Listed<T> {
    /// None if it is known in this version: it is not kept twice until the listing is complete.
    value: Option<T>,
    version: u64,
}

/// The copy.
#[derive(Debug)]
pub struct Mirror<T: Mirrored> {
    /// Looked at in every pass.
    awake: BTreeMap<ObjectKey, Entry<T>>,
    /// Looked at with their jobs alone.
    resting: BTreeMap<ObjectKey, Entry<T>>,
    /// The resting ones by job.
    by_job: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
    /// What nobody has confirmed yet.
    unconfirmed: BTreeSet<ObjectKey>,
    /// The values that are gone or rewritten and remembered, and since when, the oldest first.
    departed: VecDeque<(Instant, T)>,
    derived: T::Derived,
    /// The highest version that the watch has delivered.
    position: u64,
    listing: Option<Listing<T>>,
    /// Which request the last complete listing answered; none before the first.
    listed: Option<u64>,
    /// Up to when the API server has sent everything.
    complete_until: Option<Instant>,
}

impl<T: Mirrored> Default for Mirror<T> {
    fn default() -> Self {
        Self {
            awake: BTreeMap::new(),
            resting: BTreeMap::new(),
            by_job: BTreeMap::new(),
            unconfirmed: BTreeSet::new(),
            departed: VecDeque::new(),
            derived: T::Derived::default(),
            position: 0,
            listing: None,
            listed: None,
            complete_until: None,
        }
    }
}

impl<T: Mirrored> Mirror<T> {
    /// Whether the first listing is complete.
    pub fn is_synced(&self) -> bool {
        self.listed.is_some()
    }

    /// Whether a new listing has begun and is not complete.
    pub fn is_listing(&self) -> bool {
        self.listing.is_some()
    }

    /// Whether a listing is complete that began after this request for one.
    pub fn is_listed(&self, request: u64) -> bool {
        self.listed.is_some_and(|listed| listed >= request)
    }

    /// Up to when the API server has sent everything; none before the first listing.
    pub fn complete_until(&self) -> Option<Instant> {
        self.complete_until
    }

    /// The API server shows that it had nothing more to send at this moment.
    pub fn note_current(&mut self, now: Instant) {
        self.complete_until = self.complete_until.max(Some(now));
    }

    /// An object by its key.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&T> {
        let key = (namespace.to_owned(), name.to_owned());
        self.entry(&key).map(|entry| &entry.value)
    }

    /// All objects that are looked at in every pass, in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.awake.values().map(|entry| &entry.value)
    }

    /// All objects that rest.
    pub fn resting(&self) -> impl Iterator<Item = &T> {
        self.resting.values().map(|entry| &entry.value)
    }

    /// How many rest.
    pub fn resting_len(&self) -> usize {
        self.resting.len()
    }

    /// The resting objects of a job, by its namespace and name.
    pub fn resting_with(&self, job: &ObjectKey) -> impl Iterator<Item = &T> {
        let keys = self.by_job.get(job).into_iter().flatten();
        keys.filter_map(|key| self.resting.get(key))
            .map(|entry| &entry.value)
    }

    /// Returns the value that follows all objects.
    pub fn derived(&self) -> &T::Derived {
        &self.derived
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.awake.len() + self.resting.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The watch shows an object, or that it no longer matters. True when that is news.
    pub fn applied(&mut self, key: ObjectKey, version: u64, value: Option<T>) -> bool {
        self.position = self.position.max(version);
        match value {
            Some(value) => self.set(key, version, value, None),
            None => self.lose(&key),
        }
    }

    /// The watch shows that an object is gone. True when that is news.
    pub fn deleted(&mut self, key: &ObjectKey, version: u64) -> bool {
        self.position = self.position.max(version);
        // A new object of the same name may have been created by us already.
        match self.entry(key) {
            Some(entry) if entry.version <= version => self.lose(key),
            Some(_) | None => false,
        }
    }

    /// A new listing begins, to answer a request.
    pub fn listing(&mut self, request: u64, began: Instant) {
        self.listing = Some(Listing {
            entries: BTreeMap::new(),
            began,
            request,
        });
    }

    /// The listing shows an object.
    pub fn listed(&mut self, key: ObjectKey, version: u64, value: T) {
        let is_this = |entry: &Entry<T>| entry.version == version && !entry.is_guess;
        let is_known = version != NO_VERSION && self.entry(&key).is_some_and(is_this);
        if let Some(listing) = &mut self.listing {
            let value = (!is_known).then_some(value);
            listing.entries.insert(key, Listed { value, version });
        }
    }

    /// The listing is complete: what it did not contain is gone, unless we wrote it since it began.
    pub fn listing_done(&mut self) {
        let Some(listing) = self.listing.take() else {
            return;
        };
        let Listing {
            entries: mut listed,
            began,
            request,
        } = listing;
        let now = Instant::now();
        for (key, news) in &mut listed {
            let old = self.entry(key).map(|entry| &entry.value);
            if let Some(value) = &mut news.value {
                value.sighted(old, now);
            }
        }
        let awake = std::mem::take(&mut self.awake);
        let resting = std::mem::take(&mut self.resting);
        self.by_job.clear();
        self.unconfirmed.clear();
        for (key, mut entry) in awake.into_iter().chain(resting) {
            let stays = match listed.get(&key) {
                Some(listed) if listed.version < entry.version => true,
                Some(listed) => {
                    self.position = self.position.max(listed.version);
                    entry.unconfirmed = None;
                    listed.value.is_none()
                }
                None => entry.unconfirmed.is_some_and(|at| at >= began),
            };
            if stays {
                listed.remove(&key);
                self.store(key, entry);
                continue;
            }
            self.derived.removed(&entry.value);
            let news = listed.get(&key).and_then(|listed| listed.value.as_ref());
            if !news.is_some_and(Mirrored::is_remembered) {
                self.remember(entry.value, now);
            }
        }
        for (key, Listed { value, version }) in listed {
            // What was known when it was listed and is not any more was found to be gone.
            if let Some(value) = value {
                self.put(key, Entry::new(value, version));
            }
        }
        self.listed = Some(request);
        self.note_current(began);
    }

    /// We created an object, or found that it exists.
    pub fn created(&mut self, key: ObjectKey, version: u64, value: T, now: Instant) -> bool {
        // Had the watch come so far already, it would have delivered the object, or its end.
        (version > self.position || self.listing.is_some())
            && self.set(key, version, value, Some(now))
    }

    /// We read an object that the watch does not show.
    pub fn found(&mut self, key: ObjectKey, version: u64, value: T) -> bool {
        self.set(key, version, value, None)
    }

    /// We changed an object. One that has gone in the meantime does not come back.
    pub fn changed(&mut self, key: ObjectKey, version: u64, value: T) -> bool {
        self.entry(&key).is_some() && self.set(key, version, value, None)
    }

    /// We changed an object and know how, but not its new version: the watch will deliver it.
    pub fn touched(&mut self, namespace: &str, name: &str, change: impl FnOnce(&mut T)) {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some(mut entry) = self.take(&key) {
            change(&mut entry.value);
            entry.is_guess = true;
            entry.value.sighted(None, Instant::now());
            self.put(key, entry);
        }
    }

    /// We found that an object does not exist.
    pub fn missing(&mut self, namespace: &str, name: &str) -> bool {
        self.lose(&(namespace.to_owned(), name.to_owned()))
    }

    /// Returns the values that are gone or rewritten and still remembered, and since when.
    pub fn departed(&self, now: Instant) -> impl Iterator<Item = (Instant, &T)> {
        let lately = move |at: Instant| now.saturating_duration_since(at) < REMEMBERED_TIME;
        let departed = self.departed.iter().map(|(at, value)| (*at, value));
        departed.filter(move |(at, _)| lately(*at))
    }

    /// What we created and the watch has not delivered for too long: it is to be asked for. It
    /// stays until the answer is known, and is named again after a while.
    pub fn overdue(&mut self, now: Instant) -> Vec<ObjectKey> {
        let mut due = Vec::new();
        for key in &self.unconfirmed {
            let entry = match self.awake.get_mut(key) {
                Some(entry) => Some(entry),
                None => self.resting.get_mut(key),
            };
            let Some(at) = entry.and_then(|entry| entry.unconfirmed.as_mut()) else {
                continue;
            };
            if now.saturating_duration_since(*at) >= UNCONFIRMED && due.len() < ASKED {
                *at = now;
                due.push(key.clone());
            }
        }
        due
    }

    fn entry(&self, key: &ObjectKey) -> Option<&Entry<T>> {
        self.awake.get(key).or_else(|| self.resting.get(key))
    }

    /// An object is gone. True when that is news.
    fn lose(&mut self, key: &ObjectKey) -> bool {
        let lost = self.take(key);
        let is_news = lost.is_some();
        if let Some(entry) = lost {
            self.remember(entry.value, Instant::now());
        }
        is_news
    }

    fn remember(&mut self, value: T, now: Instant) {
        let over = |at: &Instant| now.saturating_duration_since(*at) >= REMEMBERED_TIME;
        while self.departed.front().is_some_and(|(at, _)| over(at)) {
            self.departed.pop_front();
        }
        if !value.is_remembered() {
            return;
        }
        if self.departed.len() == MOST_REMEMBERED {
            self.departed.pop_front();
        }
        self.departed.push_back((now, value));
    }

    fn take(&mut self, key: &ObjectKey) -> Option<Entry<T>> {
        self.unconfirmed.remove(key);
        if let Some(entry) = self.awake.remove(key) {
            self.derived.removed(&entry.value);
            return Some(entry);
        }
        let entry = self.resting.remove(key)?;
        self.derived.removed(&entry.value);
        if let Some(job) = entry.value.rests_with()
            && let Some(keys) = self.by_job.get_mut(&job)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.by_job.remove(&job);
            }
        }
        Some(entry)
    }

    fn put(&mut self, key: ObjectKey, entry: Entry<T>) {
        self.derived.added(&entry.value);
        self.store(key, entry);
    }

    /// Keeps an entry that `derived` counts already.
    fn store(&mut self, key: ObjectKey, entry: Entry<T>) {
        if entry.unconfirmed.is_some() {
            self.unconfirmed.insert(key.clone());
        }
        match entry.value.rests_with() {
            Some(job) => {
                self.by_job.entry(job).or_default().insert(key.clone());
                self.resting.insert(key, entry);
            }
            None => {
                self.awake.insert(key, entry);
            }
        }
    }

    fn set(
        &mut self,
        key: ObjectKey,
        version: u64,
        mut value: T,
        unconfirmed: Option<Instant>,
    ) -> bool {
        let old = self.entry(&key);
        if old.is_some_and(|entry| entry.version > version) {
            return false;
        }
        value.sighted(old.map(|entry| &entry.value), Instant::now());
        let old = self.take(&key);
        let news = old.as_ref().is_none_or(|old| old.value != value);
        let unconfirmed = match &old {
            Some(old) => old.unconfirmed.and(unconfirmed),
            None => unconfirmed,
        };
        // What somebody has rewritten is gone as well.
        if let Some(old) = old.filter(|_| !value.is_remembered()) {
            self.remember(old.value, Instant::now());
        }
        let entry = Entry {
            unconfirmed,
            ..Entry::new(value, version)
        };
        self.put(key, entry);
        news
    }
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;
