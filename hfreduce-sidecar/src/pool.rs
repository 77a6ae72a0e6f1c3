//! Segments for results, used again for results of about their size. Owns how much memory results may hold.

use wire::segment::{self, Segment, Writers};

/// Idle result segments that are kept: what the buckets of a model in flight need.
const IDLE_LIMIT: usize = 64;

/// Why there is no memory for a result.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// Results that were not dropped fill the node's share.
    #[error(
        "{asked} bytes for a result exceed the {limit} bytes of this node, {held} of which are held \
         by results in use"
    )]
    Full {
        /// Bytes asked for.
        asked: usize,
        /// Bytes in use.
        held: usize,
        /// The limit.
        limit: usize,
    },
    /// The kernel has none.
    #[error(transparent)]
    Segment(#[from] segment::Error),
}

/// A segment for results, by the number that clients know it by.
#[derive(Debug)]
pub struct ResultSegment {
    /// Its number, used once.
    pub number: u32,
    /// Its memory.
    pub segment: Segment,
}

/// The segments that no result lies in, and the count of all.
#[derive(Debug)]
pub struct Pool {
    /// Oldest first.
    idle: Vec<ResultSegment>,
    next_number: u32,
    held_bytes: usize,
    limit_bytes: usize,
    /// Segments that were unmapped, whose numbers clients should forget.
    gone: Vec<u32>,
}

impl Pool {
    /// A pool of at most `limit_bytes`, idle ones included.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            idle: Vec::new(),
            next_number: 0,
            held_bytes: 0,
            limit_bytes,
            gone: Vec::new(),
        }
    }

    /// A segment for a result of `bytes`.
    pub fn take(&mut self, bytes: usize) -> Result<ResultSegment, PoolError> {
        let class = segment::size_class(bytes);
        let fits = |result: &ResultSegment| {
            let size = result.segment.len();
            size >= bytes && size <= class.saturating_mul(2)
        };
        let best = (0..self.idle.len())
            .filter(|at| fits(&self.idle[*at]))
            .min_by_key(|at| self.idle[*at].segment.len());
        if let Some(at) = best {
            return Ok(self.idle.swap_remove(at));
        }
        while self.held_bytes.saturating_add(class) > self.limit_bytes && !self.idle.is_empty() {
            let oldest = self.idle.remove(0);
            self.unmap(oldest);
        }
        if self.held_bytes.saturating_add(class) > self.limit_bytes {
            return Err(PoolError::Full {
                asked: bytes,
                held: self.held_bytes,
                limit: self.limit_bytes,
            });
        }
        let segment = Segment::create("fireflyer-result", bytes, Writers::Creator)?;
        self.held_bytes += segment.len();
        let number = self.next_number;
        self.next_number += 1;
        Ok(ResultSegment { number, segment })
    }

    /// Nobody reads a result any more.
    pub fn put_back(&mut self, result: ResultSegment) {
        self.idle.push(result);
        if self.idle.len() > IDLE_LIMIT {
            let oldest = self.idle.remove(0);
            self.unmap(oldest);
        }
    }

    /// Numbers of segments that are gone since the last time.
    pub fn take_gone(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.gone)
    }

    fn unmap(&mut self, result: ResultSegment) {
        self.held_bytes -= result.segment.len();
        self.gone.push(result.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_used_again_and_the_limit_counts_what_is_held() {
        let mut pool = Pool::new(3 << 20);
        let first = pool.take(2 << 20).unwrap();
        let number = first.number;
        let full = pool.take(2 << 20).unwrap_err().to_string();
        assert!(full.contains("exceed the 3145728 bytes"), "{full}");
        pool.put_back(first);
        let again = pool.take((2 << 20) - 5).unwrap();
        assert_eq!(again.number, number);
        pool.put_back(again);
        let small = pool.take(64 << 10).unwrap();
        pool.put_back(small);
        let _all = pool.take(3 << 20).unwrap();
        assert_eq!(pool.take_gone().len(), 2);
    }
}
