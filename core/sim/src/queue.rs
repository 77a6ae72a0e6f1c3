//! Virtual time: events happen in the order of their time, equal times in the order they were scheduled.

use std::collections::BTreeMap;
use std::time::Duration;

/// Events to come. Time starts at 0 and moves only when an event is taken.
#[derive(Clone, Debug)]
pub struct Queue<E> {
    now: Duration,
    scheduled: u64,
    events: BTreeMap<(Duration, u64), E>,
}

impl<E> Default for Queue<E> {
    fn default() -> Self {
        Self {
            now: Duration::ZERO,
            scheduled: 0,
            events: BTreeMap::new(),
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
        self.events
            .insert((time.max(self.now), self.scheduled), event);
        self.scheduled += 1;
    }

    /// Schedules an event some time from now.
    pub fn after(&mut self, delay: Duration, event: E) {
        self.at(self.now + delay, event);
    }

    /// The time of the next event.
    #[must_use]
    pub fn next_at(&self) -> Option<Duration> {
        self.events.keys().next().map(|&(time, _)| time)
    }

    /// Takes the next event and moves time to it.
    pub fn pop(&mut self) -> Option<E> {
        let ((time, _), event) = self.events.pop_first()?;
        self.now = time;
        Some(event)
    }

    /// Drops the events for which `keep` is false: what a crash loses.
    pub fn retain(&mut self, mut keep: impl FnMut(&E) -> bool) {
        self.events.retain(|_, event| keep(event));
    }

    /// Number of events to come.
    #[must_use]
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether nothing is to come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
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
}
