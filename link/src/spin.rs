//! Looking for an answer for a moment before sleeping. Being woken takes longer than most answers to small messages
//! do, above all on a virtual machine whose idle processors have been given back. Who looks gives its processor away
//! between two looks, so it costs those who have something to do a change of threads at most. Where looking was in
//! vain it becomes rare: then answers take long, or there is more to do than there are processors for, and who gives
//! one away is long without it while a sleeper would be woken in time.

use std::time::{Duration, Instant};

/// How long to look: some times what falling asleep and being woken cost both sides.
const LIMIT: Duration = Duration::from_micros(50);
/// After `n` times in vain, `2^n - 1` occasions pass without looking; `n` is no more than this.
const MOST_VAIN: u32 = 8;

/// Whether looking pays, as it turned out so far.
#[derive(Debug, Default)]
pub struct Spin {
    vain: u32,
    pause: u32,
}

/// Somebody looks.
#[derive(Debug)]
pub struct Look {
    since: Instant,
}

impl Look {
    /// Whether it is long enough.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.since.elapsed() >= LIMIT
    }
}

impl Spin {
    /// Looks, if it is worth it this time.
    pub fn begin(&mut self) -> Option<Look> {
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        let since = Instant::now();
        Some(Look { since })
    }

    /// The look ends. `has_come`: something came meanwhile, which counts if it did in time.
    pub fn end(&mut self, look: &Look, has_come: bool) {
        self.vain = if has_come && !look.is_over() {
            0
        } else {
            (self.vain + 1).min(MOST_VAIN)
        };
        self.pause = (1 << self.vain) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of a thousand occasions are used, where something comes after `time`.
    fn looks(spin: &mut Spin, time: Duration) -> usize {
        let look = |_: &usize| match spin.begin() {
            Some(mut look) => {
                look.since = Instant::now().checked_sub(time).unwrap();
                spin.end(&look, true);
                true
            }
            None => false,
        };
        (0..1000).filter(look).count()
    }

    #[test]
    fn what_pays_goes_on_and_what_does_not_becomes_rare() {
        let mut spin = Spin::default();
        assert!(looks(&mut spin, LIMIT) < 15);
        let again = looks(&mut spin, Duration::ZERO);
        assert!(
            again > 1000 - (1 << MOST_VAIN),
            "{again}: it is tried again"
        );
    }
}
