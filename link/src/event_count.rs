//! An event count: a word of shared memory on which one side of a ring waits and by which the other side wakes it. A
//! futex costs half of what a descriptor does (10 against 18 us for a round trip, measured), but cannot be waited for
//! together with sockets: so whoever prepares to wait says on what, and the side that notifies learns when that is the
//! wake descriptor, which it then has to notify.
//!
//! The word belongs to both sides. Whatever the other side writes there, this side wakes too often, or not before
//! its own limit: nobody sleeps without one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Wait, WaitFlags, WaitPtr, WaitvFlags};
use rustix::time::{ClockId, Timespec};

use crate::segment::Segment;

const AWAKE: u32 = 0;
const ON_FUTEX: u32 = 1;
const ON_WAKE_FD: u32 = 2;
/// Beside one of the two: what can wait does not wake.
const ONLY_URGENT: u32 = 4;

/// Most event counts that one thread can sleep on at once, set by the kernel.
pub const WAIT_LIMIT: usize = 128;

/// What a side waits on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOn {
    /// The word itself.
    Futex,
    /// Its wake descriptor, by which the other side has to wake it.
    WakeFd,
}

/// What wakes a sleeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeFor {
    /// Everything.
    Anything,
    /// Only what cannot wait: the sleeper has no use for the rest before it is up anyway.
    Urgent,
}

/// A word to wait on.
#[derive(Clone, Copy, Debug)]
pub struct EventCount<'a>(&'a AtomicU32);

impl<'a> EventCount<'a> {
    pub(crate) fn new(segment: &'a Segment, at: usize) -> Self {
        Self(segment.futex(at))
    }

    /// An event count within one process.
    #[must_use]
    pub const fn of(word: &'a AtomicU32) -> Self {
        Self(word)
    }

    /// From here on the other side notifies. Look once more before waiting.
    pub fn prepare_wait(self, how: WaitOn, depth: WakeFor) {
        let place = match how {
            WaitOn::Futex => ON_FUTEX,
            WaitOn::WakeFd => ON_WAKE_FD,
        };
        let depth = match depth {
            WakeFor::Anything => 0,
            WakeFor::Urgent => ONLY_URGENT,
        };
        self.0.store(place | depth, Ordering::SeqCst);
    }

    /// This side looks by itself again.
    pub fn cancel_wait(self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }

    /// Wakes the other side if it waits. True: it waits on its wake descriptor, which the caller has to notify.
    #[must_use]
    pub fn notify(self) -> bool {
        // Mostly somebody is awake, and a look is enough.
        if self.0.load(Ordering::SeqCst) == AWAKE {
            return false;
        }
        match self.0.swap(AWAKE, Ordering::SeqCst) & !ONLY_URGENT {
            ON_FUTEX => {
                futex::wake(self.0, Flags::empty(), 1).ok();
                false
            }
            ON_WAKE_FD => true,
            _ => false,
        }
    }

    /// Wakes the other side if it waits for anything. True: it waits on its wake descriptor, which the caller has to
    /// notify.
    #[must_use]
    pub fn notify_not_urgent(self) -> bool {
        self.0.load(Ordering::SeqCst) & ONLY_URGENT == 0 && self.notify()
    }

    /// Waits on the word until the other side notifies, at most for `limit`.
    pub fn wait(self, limit: Duration) {
        let limit = Timespec::try_from(limit).ok();
        futex::wait(self.0, Flags::empty(), self.asleep(), limit.as_ref()).ok();
    }

    /// What the word holds while its owner waits on it. After a notification it holds something else.
    fn asleep(self) -> u32 {
        ON_FUTEX | self.0.load(Ordering::SeqCst) & ONLY_URGENT
    }

    /// Waits until one of several is notified, at most for `limit`. False where the kernel cannot: it is older than
    /// 5.16, or a filter forbids it.
    #[must_use]
    pub fn wait_any(event_counts: &[Self], limit: Duration) -> bool {
        let wait = |event_count: &Self| {
            let mut wait = Wait::new();
            wait.val = u64::from(event_count.asleep());
            wait.uaddr = WaitPtr::new(event_count.0.as_ptr().cast());
            wait.flags = WaitFlags::SIZE_U32;
            wait
        };
        let waits: Vec<Wait> = event_counts.iter().take(WAIT_LIMIT).map(wait).collect();
        // The kernel wants the time of the end, not how long.
        let now = rustix::time::clock_gettime(ClockId::Monotonic);
        let end = Timespec::try_from(limit)
            .ok()
            .and_then(|limit| now.checked_add(limit));
        let slept = futex::waitv(
            &waits,
            WaitvFlags::empty(),
            end.as_ref(),
            ClockId::Monotonic,
        );
        !matches!(slept, Err(Errno::NOSYS | Errno::PERM | Errno::INVAL))
    }
}

/// An event count together with the memory that it lies in.
#[derive(Clone, Debug)]
pub struct WaitSlot {
    segment: Arc<Segment>,
    at: usize,
}

impl WaitSlot {
    pub(crate) fn new(segment: &Arc<Segment>, at: usize) -> Self {
        let segment = Arc::clone(segment);
        Self { segment, at }
    }

    /// The word to wait on.
    #[must_use]
    pub fn event_count(&self) -> EventCount<'_> {
        EventCount::new(&self.segment, self.at)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn a_wait_on_the_futex_is_ended_and_one_on_the_wake_descriptor_is_named() {
        let word = AtomicU32::new(AWAKE);
        let event_count = EventCount::of(&word);
        assert!(!event_count.notify(), "nobody sleeps");
        event_count.prepare_wait(WaitOn::WakeFd, WakeFor::Anything);
        assert!(event_count.notify());
        assert!(!event_count.notify(), "it was woken");
        event_count.prepare_wait(WaitOn::Futex, WakeFor::Anything);
        let since = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| event_count.wait(LIMIT));
            assert!(!event_count.notify());
        });
        assert!(since.elapsed() < LIMIT);
    }

    #[test]
    fn who_sleeps_deeply_is_woken_by_what_cannot_wait_only() {
        let word = AtomicU32::new(AWAKE);
        let event_count = EventCount::of(&word);
        event_count.prepare_wait(WaitOn::WakeFd, WakeFor::Urgent);
        assert!(!event_count.notify_not_urgent());
        assert!(event_count.notify(), "it still sleeps");
        event_count.prepare_wait(WaitOn::WakeFd, WakeFor::Anything);
        assert!(event_count.notify_not_urgent());
        event_count.prepare_wait(WaitOn::Futex, WakeFor::Urgent);
        let since = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| event_count.wait(LIMIT));
            assert!(!event_count.notify_not_urgent() && !event_count.notify());
        });
        assert!(since.elapsed() < LIMIT);
    }

    #[test]
    fn any_of_several_wakes_and_the_limit_holds() {
        let words: Vec<AtomicU32> = (0..WAIT_LIMIT + 3).map(|_| AtomicU32::new(AWAKE)).collect();
        let event_counts: Vec<EventCount<'_>> = words.iter().map(EventCount::of).collect();
        let depths = [WakeFor::Anything, WakeFor::Urgent].into_iter().cycle();
        for (event_count, depth) in event_counts.iter().zip(depths) {
            event_count.prepare_wait(WaitOn::Futex, depth);
        }
        let since = Instant::now();
        if !EventCount::wait_any(&event_counts, Duration::from_millis(1)) {
            return; // A kernel that cannot: the sidecar then sleeps on descriptors.
        }
        thread::scope(|scope| {
            scope.spawn(|| assert!(EventCount::wait_any(&event_counts, LIMIT)));
            assert!(!event_counts[77].notify());
        });
        assert!(since.elapsed() < LIMIT);
    }
}
