//! A limit on how often something happens: so many times at once, and once more in each period.

use std::time::Duration;

use tokio::time::Instant;

/// A bucket of tokens that fills evenly up to its size.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    /// Tokens of a full bucket; at least one.
    size: u32,
    /// From one token to the next.
    period: Duration,
    /// When the bucket will be full.
    full: Instant,
}

impl TokenBucket {
    /// Makes a full bucket.
    pub(crate) fn new(size: u32, period: Duration, now: Instant) -> Self {
        Self {
            size,
            period,
            full: now,
        }
    }

    /// Takes a token, if one is there.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let full = self.full.max(now);
        let is_there = full - now <= self.period * (self.size - 1);
        if is_there {
            self.full = full + self.period;
        }
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(60);

    fn take_all(bucket: &mut TokenBucket, now: Instant) -> usize {
        (0..100).filter(|_| bucket.take(now)).count()
    }

    #[test]
    fn so_many_tokens_are_there_at_once_then_one_in_each_period() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(32, PERIOD, start);
        assert_eq!(take_all(&mut bucket, start), 32);
        let early = start + PERIOD - Duration::from_nanos(1);
        assert_eq!(take_all(&mut bucket, early), 0);
        assert_eq!(take_all(&mut bucket, start + PERIOD), 1);
        assert_eq!(take_all(&mut bucket, start + PERIOD * 4), 3);
        assert_eq!(take_all(&mut bucket, start + PERIOD * 1000), 32, "no more");
    }
}
