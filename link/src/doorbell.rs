//! A word of shared memory on which one side of a ring sleeps and which the other side rings. A futex costs half of
//! what a descriptor does (10 against 18 us for a round trip, measured), but cannot be waited for together with
//! sockets: so whoever lies down says where it sleeps, and for a sleeper on its bell the ringer is told to ring that.
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
const ON_WORD: u32 = 1;
const ON_BELL: u32 = 2;
/// Beside one of the two: what can wait does not wake.
const DEEP: u32 = 4;

/// Most doorbells that one thread can sleep on at once, set by the kernel.
pub const WAIT_LIMIT: usize = 128;

/// Where a side sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// On the word itself.
    Word,
    /// On a descriptor, which the ringer has to ring.
    Bell,
}

/// What wakes a sleeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Everything.
    Light,
    /// Only what cannot wait: the sleeper has no use for the rest before it is up anyway.
    Deep,
}

/// A place to sleep.
#[derive(Clone, Copy, Debug)]
pub struct Doorbell<'a>(&'a AtomicU32);

impl<'a> Doorbell<'a> {
    pub(crate) fn new(segment: &'a Segment, at: usize) -> Self {
        Self(segment.futex(at))
    }

    /// A doorbell within one process.
    #[must_use]
    pub const fn of(word: &'a AtomicU32) -> Self {
        Self(word)
    }

    /// From here on the other side rings. Look once more before sleeping.
    pub fn lie_down(self, how: Sleep, depth: Depth) {
        let place = match how {
            Sleep::Word => ON_WORD,
            Sleep::Bell => ON_BELL,
        };
        let depth = match depth {
            Depth::Light => 0,
            Depth::Deep => DEEP,
        };
        self.0.store(place | depth, Ordering::SeqCst);
    }

    /// This side looks by itself again.
    pub fn get_up(self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }

    /// Wakes the other side if it sleeps. True: it sleeps on its bell, which is the caller's to ring.
    #[must_use]
    pub fn ring(self) -> bool {
        // Most rings find somebody awake and need no more than to look.
        if self.0.load(Ordering::SeqCst) == AWAKE {
            return false;
        }
        match self.0.swap(AWAKE, Ordering::SeqCst) & !DEEP {
            ON_WORD => {
                futex::wake(self.0, Flags::empty(), 1).ok();
                false
            }
            ON_BELL => true,
            _ => false,
        }
    }

    /// Wakes the other side if it sleeps lightly. True: it sleeps on its bell, which is the caller's to ring.
    #[must_use]
    pub fn ring_softly(self) -> bool {
        self.0.load(Ordering::SeqCst) & DEEP == 0 && self.ring()
    }

    /// Sleeps on the word until it is rung, at most for `limit`.
    pub fn sleep(self, limit: Duration) {
        let limit = Timespec::try_from(limit).ok();
        futex::wait(self.0, Flags::empty(), self.asleep(), limit.as_ref()).ok();
    }

    /// What the word holds while its owner sleeps on it. One that was rung meanwhile holds something else.
    fn asleep(self) -> u32 {
        ON_WORD | self.0.load(Ordering::SeqCst) & DEEP
    }

    /// Sleeps until one of several is rung, at most for `limit`. False where the kernel cannot: it is older than
    /// 5.16, or a filter forbids it.
    #[must_use]
    pub fn sleep_on_any(doorbells: &[Self], limit: Duration) -> bool {
        let wait = |doorbell: &Self| {
            let mut wait = Wait::new();
            wait.val = u64::from(doorbell.asleep());
            wait.uaddr = WaitPtr::new(doorbell.0.as_ptr().cast());
            wait.flags = WaitFlags::SIZE_U32;
            wait
        };
        let waits: Vec<Wait> = doorbells.iter().take(WAIT_LIMIT).map(wait).collect();
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

/// A doorbell together with the memory that it lies in.
#[derive(Clone, Debug)]
pub struct Bed {
    segment: Arc<Segment>,
    at: usize,
}

impl Bed {
    pub(crate) fn new(segment: &Arc<Segment>, at: usize) -> Self {
        let segment = Arc::clone(segment);
        Self { segment, at }
    }

    /// The doorbell.
    #[must_use]
    pub fn doorbell(&self) -> Doorbell<'_> {
        Doorbell::new(&self.segment, self.at)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn who_sleeps_on_the_word_is_woken_and_who_sleeps_on_its_bell_is_named() {
        let word = AtomicU32::new(AWAKE);
        let doorbell = Doorbell::of(&word);
        assert!(!doorbell.ring(), "nobody sleeps");
        doorbell.lie_down(Sleep::Bell, Depth::Light);
        assert!(doorbell.ring());
        assert!(!doorbell.ring(), "it was told");
        doorbell.lie_down(Sleep::Word, Depth::Light);
        let since = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| doorbell.sleep(LIMIT));
            assert!(!doorbell.ring());
        });
        assert!(since.elapsed() < LIMIT);
    }

    #[test]
    fn who_sleeps_deeply_is_woken_by_what_cannot_wait_only() {
        let word = AtomicU32::new(AWAKE);
        let doorbell = Doorbell::of(&word);
        doorbell.lie_down(Sleep::Bell, Depth::Deep);
        assert!(!doorbell.ring_softly());
        assert!(doorbell.ring(), "it still sleeps");
        doorbell.lie_down(Sleep::Bell, Depth::Light);
        assert!(doorbell.ring_softly());
        doorbell.lie_down(Sleep::Word, Depth::Deep);
        let since = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| doorbell.sleep(LIMIT));
            assert!(!doorbell.ring_softly() && !doorbell.ring());
        });
        assert!(since.elapsed() < LIMIT);
    }

    #[test]
    fn any_of_several_wakes_and_the_limit_holds() {
        let words: Vec<AtomicU32> = (0..WAIT_LIMIT + 3).map(|_| AtomicU32::new(AWAKE)).collect();
        let doorbells: Vec<Doorbell<'_>> = words.iter().map(Doorbell::of).collect();
        let depths = [Depth::Light, Depth::Deep].into_iter().cycle();
        for (doorbell, depth) in doorbells.iter().zip(depths) {
            doorbell.lie_down(Sleep::Word, depth);
        }
        let since = Instant::now();
        if !Doorbell::sleep_on_any(&doorbells, Duration::from_millis(1)) {
            return; // A kernel that cannot: the sidecar then sleeps on descriptors.
        }
        thread::scope(|scope| {
            scope.spawn(|| assert!(Doorbell::sleep_on_any(&doorbells, LIMIT)));
            assert!(!doorbells[77].ring());
        });
        assert!(since.elapsed() < LIMIT);
    }
}
