//! The two queues of a control segment: calls from a trainer's process to its sidecar, and outcomes
//! back. One producer and one consumer each, bounded, without locks. An entry is copied whole before
//! anything in it is looked at, and an index from the other side is checked before it is used: whatever
//! the other side writes, this side reads inside the ring and gets an error at worst.
//!
//! A side that has nothing to do waits on a word of the ring, a futex, or on its wake descriptor, where it
//! has to wait for sockets in the same call. It says which; nobody is woken who does not sleep. See [`EventCount`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::event_count::EventCount;
pub use crate::event_count::{WaitOn, WaitSlot, WakeFor};
use crate::segment::{self, Segment, Writers};

/// Entries of the ring of submissions.
pub const CAPACITY: usize = 64;
/// Entries of the ring of completions: as many as calls may be in flight, so that each outcome finds room. About 1 MiB.
pub const COMPLETION_CAPACITY: usize = 2048 + CAPACITY;
/// Words of a call: 128 bytes, two cache lines.
pub const SUBMISSION_WORDS: usize = 16;
/// Words of an outcome: 512 bytes, most of them for the text of an error.
pub const COMPLETION_WORDS: usize = 64;

/// Words of a cache line: the two sides' indices lie on lines of their own.
const LINE_WORDS: usize = 8;
/// Three lines are in use: both indices, and where the consumer sleeps.
const HEADER_WORDS: usize = 4 * LINE_WORDS;
const SUBMISSIONS: usize = 0;
const COMPLETIONS: usize = SUBMISSIONS + HEADER_WORDS + CAPACITY * SUBMISSION_WORDS;
const CONTROL_BYTES: usize =
    (COMPLETIONS + HEADER_WORDS + COMPLETION_CAPACITY * COMPLETION_WORDS) * 8;

const PRODUCED: usize = 0;
const CONSUMED: usize = LINE_WORDS;
/// Where the consumer sleeps until something is produced.
const CONSUMER: usize = 2 * LINE_WORDS;

/// The other side wrote an index that cannot be: it is broken or hostile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to read the ring: its indices are {produced} produced and {consumed} consumed")]
pub struct Corrupt {
    produced: u64,
    consumed: u64,
}

/// Why an entry could not be put into a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The consumer is behind by the whole ring.
    #[error("failed to write to the ring: it is full")]
    Full,
    /// The other side broke it.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

/// A new control segment.
pub fn control() -> Result<Segment, segment::Error> {
    Segment::create("fireflyer-control", CONTROL_BYTES, Writers::Everybody)
}

/// The sidecar's ends.
pub fn server_ends(
    control: &Arc<Segment>,
) -> (Consumer<SUBMISSION_WORDS>, Producer<COMPLETION_WORDS>) {
    (
        Consumer::new(Arc::clone(control), SUBMISSIONS, CAPACITY),
        Producer::new(Arc::clone(control), COMPLETIONS, COMPLETION_CAPACITY),
    )
}

/// The client's ends, if the segment is large enough to hold them.
pub fn client_ends(
    control: &Arc<Segment>,
) -> Option<(Producer<SUBMISSION_WORDS>, Consumer<COMPLETION_WORDS>)> {
    (control.len() >= CONTROL_BYTES).then(|| {
        (
            Producer::new(Arc::clone(control), SUBMISSIONS, CAPACITY),
            Consumer::new(Arc::clone(control), COMPLETIONS, COMPLETION_CAPACITY),
        )
    })
}

/// The end that writes entries of `WORDS` words.
#[derive(Debug)]
pub struct Producer<const WORDS: usize> {
    control: Arc<Segment>,
    base: usize,
    capacity: u64,
    produced: u64,
}

impl<const WORDS: usize> Producer<WORDS> {
    fn new(control: Arc<Segment>, base: usize, capacity: usize) -> Self {
        Self {
            control,
            base,
            capacity: capacity as u64,
            produced: 0,
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.control.words()[self.base + at]
    }

    /// Entries that still fit.
    pub fn room(&self) -> Result<usize, Corrupt> {
        let consumed = self.word(CONSUMED).load(Ordering::SeqCst);
        // Not more wait than there were: 64 bits never go round.
        let waiting = self.produced.wrapping_sub(consumed);
        if waiting > self.produced.min(self.capacity) {
            return Err(Corrupt {
                produced: self.produced,
                consumed,
            });
        }
        Ok((self.capacity - waiting) as usize)
    }

    /// Writes an entry. Says whether the consumer waits on its wake descriptor, so that the caller has to notify it.
    pub fn push(&mut self, entry: &[u64; WORDS]) -> Result<bool, PushError> {
        self.write(entry)?;
        Ok(self.event_count().notify())
    }

    /// Writes an entry that can wait: a consumer that sleeps deeply finds it when something else wakes it, or when
    /// half the ring is full. Says whether the caller has to notify its wake descriptor.
    pub fn push_not_urgent(&mut self, entry: &[u64; WORDS]) -> Result<bool, PushError> {
        self.write(entry)?;
        if (self.room()? as u64) < self.capacity / 2 {
            return Ok(self.event_count().notify());
        }
        Ok(self.event_count().notify_not_urgent())
    }

    fn write(&mut self, entry: &[u64; WORDS]) -> Result<(), PushError> {
        if self.room()? == 0 {
            return Err(PushError::Full);
        }
        let slot = HEADER_WORDS + (self.produced % self.capacity) as usize * WORDS;
        for (at, value) in entry.iter().enumerate() {
            self.word(slot + at).store(*value, Ordering::Relaxed);
        }
        self.produced = self.produced.wrapping_add(1);
        // Sequentially consistent with `Consumer::sleep`: either this side sees that the other sleeps,
        // or the other side sees this entry before it sleeps.
        self.word(PRODUCED).store(self.produced, Ordering::SeqCst);
        Ok(())
    }

    /// Where the consumer sleeps.
    fn event_count(&self) -> EventCount<'_> {
        EventCount::new(&self.control, self.base + CONSUMER)
    }
}

/// The end that reads entries of `WORDS` words.
#[derive(Debug)]
pub struct Consumer<const WORDS: usize> {
    control: Arc<Segment>,
    base: usize,
    capacity: u64,
    consumed: u64,
}

impl<const WORDS: usize> Consumer<WORDS> {
    fn new(control: Arc<Segment>, base: usize, capacity: usize) -> Self {
        Self {
            control,
            base,
            capacity: capacity as u64,
            consumed: 0,
        }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.control.words()[self.base + at]
    }

    fn waiting(&self) -> Result<u64, Corrupt> {
        let produced = self.word(PRODUCED).load(Ordering::SeqCst);
        let waiting = produced.wrapping_sub(self.consumed);
        if waiting > self.capacity {
            return Err(Corrupt {
                produced,
                consumed: self.consumed,
            });
        }
        Ok(waiting)
    }

    /// Whether there is an entry.
    pub fn has_entry(&self) -> Result<bool, Corrupt> {
        Ok(self.waiting()? > 0)
    }

    /// Takes the next entry, if there is one.
    pub fn pop(&mut self) -> Result<Option<[u64; WORDS]>, Corrupt> {
        if self.waiting()? == 0 {
            return Ok(None);
        }
        let slot = HEADER_WORDS + (self.consumed % self.capacity) as usize * WORDS;
        let entry = std::array::from_fn(|at| self.word(slot + at).load(Ordering::Relaxed));
        self.consumed = self.consumed.wrapping_add(1);
        self.word(CONSUMED).store(self.consumed, Ordering::SeqCst);
        Ok(Some(entry))
    }

    /// Announces that this side is about to sleep. False: an entry has come, do not.
    pub fn sleep(&self, how: WaitOn, depth: WakeFor) -> Result<bool, Corrupt> {
        let event_count = self.event_count();
        event_count.prepare_wait(how, depth);
        let may_sleep = self.waiting()? == 0;
        if !may_sleep {
            event_count.cancel_wait();
        }
        Ok(may_sleep)
    }

    /// Announces that this side looks by itself again.
    pub fn awake(&self) {
        self.event_count().cancel_wait();
    }

    /// Where this side sleeps, for a thread that does not hold the ring meanwhile.
    pub fn wait_slot(&self) -> WaitSlot {
        WaitSlot::new(&self.control, self.base + CONSUMER)
    }

    fn event_count(&self) -> EventCount<'_> {
        EventCount::new(&self.control, self.base + CONSUMER)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;
    use rustix::event::{PollFd, PollFlags};

    use super::*;
    use crate::wake_fd::WakeFd;

    type Ends = (Producer<SUBMISSION_WORDS>, Consumer<SUBMISSION_WORDS>);

    fn ends() -> (Arc<Segment>, Ends) {
        let control = Arc::new(control().unwrap());
        let (producer, _) = client_ends(&control).unwrap();
        let (consumer, _) = server_ends(&control);
        (control, (producer, consumer))
    }

    #[test]
    fn entries_come_in_order_and_a_full_ring_says_so() {
        let (_, (mut producer, mut consumer)) = ends();
        for round in 0..3u64 {
            for entry in 0..CAPACITY as u64 {
                producer
                    .push(&[round * 1000 + entry; SUBMISSION_WORDS])
                    .unwrap();
            }
            assert_eq!(producer.push(&[0; SUBMISSION_WORDS]), Err(PushError::Full));
            for entry in 0..CAPACITY as u64 {
                let expected = [round * 1000 + entry; SUBMISSION_WORDS];
                assert_eq!(consumer.pop().unwrap(), Some(expected));
            }
            assert_eq!(consumer.pop().unwrap(), None);
        }
    }

    #[test]
    fn outcomes_of_all_calls_in_flight_fit_beside_each_other() {
        let control = Arc::new(control().unwrap());
        let (_, mut producer) = server_ends(&control);
        let (_, mut consumer) = client_ends(&control).unwrap();
        for entry in 0..COMPLETION_CAPACITY as u64 {
            producer.push(&[entry; COMPLETION_WORDS]).unwrap();
        }
        let full = producer.push(&[0; COMPLETION_WORDS]);
        assert_eq!(full, Err(PushError::Full));
        for entry in 0..COMPLETION_CAPACITY as u64 {
            assert_eq!(consumer.pop().unwrap(), Some([entry; COMPLETION_WORDS]));
        }
        assert_eq!(consumer.pop().unwrap(), None);
    }

    #[test]
    fn nobody_consumes_what_was_not_produced() {
        let (control, (mut producer, _)) = ends();
        producer.push(&[1; SUBMISSION_WORDS]).unwrap();
        // Behind by a few if indices went round, which they never do.
        control.words()[CONSUMED].store(u64::MAX, Ordering::SeqCst);
        let corrupt = Corrupt {
            produced: 1,
            consumed: u64::MAX,
        };
        assert_eq!(producer.room(), Err(corrupt));
    }

    #[test]
    fn what_can_wait_wakes_a_deep_sleeper_when_half_the_ring_is_full() {
        let (_, (mut producer, mut consumer)) = ends();
        assert!(consumer.sleep(WaitOn::WakeFd, WakeFor::Urgent).unwrap());
        for entry in 0..CAPACITY / 2 {
            assert!(
                !producer
                    .push_not_urgent(&[entry as u64; SUBMISSION_WORDS])
                    .unwrap()
            );
        }
        assert!(producer.push_not_urgent(&[0; SUBMISSION_WORDS]).unwrap());
        while consumer.pop().unwrap().is_some() {}
        for (depth, wakes) in [(WakeFor::Anything, true), (WakeFor::Urgent, false)] {
            assert!(consumer.sleep(WaitOn::WakeFd, depth).unwrap());
            assert_eq!(
                producer.push_not_urgent(&[0; SUBMISSION_WORDS]).unwrap(),
                wakes
            );
            assert!(
                !consumer.sleep(WaitOn::WakeFd, depth).unwrap(),
                "it is there"
            );
            consumer.pop().unwrap();
        }
    }

    #[test]
    fn nobody_sleeps_through_an_entry() {
        const ENTRIES: u64 = 100_000;
        let (_, (mut producer, mut consumer)) = ends();
        let wake_fd = Arc::new(WakeFd::new().unwrap());
        let notifier = Arc::clone(&wake_fd);
        let sender = thread::spawn(move || {
            let mut next = 0;
            while next < ENTRIES {
                match producer.push(&[next; SUBMISSION_WORDS]) {
                    Ok(sleeps) => {
                        if sleeps {
                            notifier.notify();
                        }
                        next += 1;
                    }
                    Err(PushError::Full) => thread::yield_now(),
                    Err(PushError::Corrupt(corrupt)) => panic!("{corrupt}"),
                }
            }
        });
        let mut expected = 0;
        while expected < ENTRIES {
            while let Some(entry) = consumer.pop().unwrap() {
                assert_eq!(entry, [expected; SUBMISSION_WORDS]);
                expected += 1;
            }
            if expected < ENTRIES && consumer.sleep(WaitOn::WakeFd, WakeFor::Anything).unwrap() {
                let mut fds = [PollFd::new(&wake_fd, PollFlags::IN)];
                let limit = rustix::event::Timespec {
                    tv_sec: 20,
                    tv_nsec: 0,
                };
                let woken = rustix::event::poll(&mut fds, Some(&limit)).unwrap();
                assert_eq!(woken, 1, "slept through entry {expected}");
                wake_fd.clear();
                consumer.awake();
            }
        }
        sender.join().unwrap();
    }

    proptest! {
        #[test]
        fn whatever_is_written_into_the_segment_neither_end_panics(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 1..40),
            headers in prop::collection::vec((0usize..3, any::<u64>()), 0..6),
        ) {
            let (control, (mut producer, mut consumer)) = ends();
            let (_, mut outcomes) = server_ends(&control);
            let words = control.words();
            for (place, value) in damage {
                words[place.index(words.len())].store(value, Ordering::SeqCst);
            }
            for (line, value) in headers {
                words[line * LINE_WORDS].store(value, Ordering::SeqCst);
            }
            for _ in 0..2 * CAPACITY {
                let _ = consumer.pop();
                let _ = consumer.sleep(WaitOn::WakeFd, WakeFor::Anything);
                let _ = producer.push(&[1; SUBMISSION_WORDS]);
                let _ = outcomes.push(&[1; COMPLETION_WORDS]);
            }
        }
    }
}
