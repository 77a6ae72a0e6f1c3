//! Virtual time: events happen in the order of their time, equal times in the order they were scheduled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Events to come. Time starts at 0 and moves only when an event is taken.
#[derive(Clone, Debug)]
pub struct Queue<E> {
    now: Duration,
    scheduled: u64,
    /// When each event happens, and in which slot it waits: events are large, and stay where they are.
    times: BinaryHeap<Reverse<(Duration, u64, usize)>>,
    slots: Vec<Option<E>>,
    free: Vec<usize>,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self {
            now: Duration::ZERO,
            scheduled: 0,
            times: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<E> Queue<E> {
    /// The time of the event taken last.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Schedules an event; one for the past happens next.
    pub fn at(&mut self, time: Duration, event: E) {
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = Some(event);
                slot
            }
            None => {
                self.slots.push(Some(event));
                self.slots.len() - 1
            }
        };
        let time = time.max(self.now);
        self.times.push(Reverse((time, self.scheduled, slot)));
        self.scheduled += 1;
    }

    /// Schedules an event some time from now.
    pub fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now + delay, event);
    }

    /// The time of the next event.
    #[must_use]
    pub fn next_at(&self) -> Option<Duration> {
        self.times.peek().map(|&Reverse((time, ..))| time)
    }

    /// Takes the next event and moves time to it.
    pub fn pop(&mut self) -> Option<E> {
        let Reverse((time, _, slot)) = self.times.pop()?;
        self.now = time;
        self.free.push(slot);
        self.slots[slot].take()
    }

    /// Moves time on although nothing happens, at most to the next event.
    pub fn pass(&mut self, time: Duration) {
        let limit = self.next_at().unwrap_or(time);
        self.now = self.now.max(time.min(limit));
    }

    /// Drops the events for which `keep` is false: what a crash loses.
    pub fn retain(&mut self, mut keep: impl FnMut(&E) -> bool) {
        let Self {
            times, slots, free, ..
        } = self;
        times.retain(|&Reverse((.., slot))| {
            let kept = slots[slot].as_ref().is_some_and(&mut keep);
            if !kept {
                slots[slot] = None;
                free.push(slot);
            }
            kept
        });
    }

    /// Number of events to come.
    #[must_use]
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// Whether nothing is to come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_time_order_and_equal_times_in_scheduling_order() {
        let ms = Duration::from_millis;
        let mut queue = Queue::default();
        queue.at(ms(5), 'c');
        queue.at(ms(1), 'a');
        queue.at(ms(5), 'd');
        queue.at(ms(2), 'b');
        assert_eq!(
            std::iter::from_fn(|| queue.pop()).collect::<String>(),
            "abcd"
        );
        assert_eq!(queue.now(), ms(5));
        queue.at(ms(1), 'z');
        assert_eq!(queue.next_at(), Some(ms(5)), "the past is now");
    }

    #[test]
    fn time_passes_up_to_the_next_event_and_never_back() {
        let ms = Duration::from_millis;
        let mut queue = Queue::default();
        queue.at(ms(5), 'a');
        queue.pass(ms(3));
        assert_eq!(queue.now(), ms(3));
        queue.pass(ms(1));
        assert_eq!(queue.now(), ms(3));
        queue.pass(ms(9));
        assert_eq!(queue.now(), ms(5));
        assert_eq!(queue.pop(), Some('a'));
    }

    #[test]
    fn what_is_not_kept_is_gone_and_the_rest_keeps_its_order() {
        let ms = Duration::from_millis;
        let mut queue = Queue::default();
        (0..6).for_each(|n| queue.at(ms(10 - n), n));
        queue.retain(|n| n % 2 == 0);
        queue.at(ms(7), 9);
        assert_eq!(queue.len(), 4);
        let rest: Vec<u64> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest, [4, 9, 2, 0]);
        assert!(queue.is_empty());
    }
}
