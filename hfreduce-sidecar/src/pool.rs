//! Segments for results, used again for results of about their size. Owns how much memory results may hold, beside the
//! slots of edges.

use std::collections::BTreeMap;
use std::sync::Arc;

use collective::machine::{GroupId, OpId};
use link::block::Block;
use link::memory_policy::MemoryPolicy;
use link::segment::{self, Segment, Writers};

use crate::background::{Background, BackgroundAnswer, Unable};

/// What the kernel calls them.
const NAME: &str = "fireflyer-result";
/// Idle result segments that are kept: what the buckets of a model in flight need.
const IDLE_LIMIT: usize = 64;

/// Why there is no memory for a result.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// It never fits.
    #[error(
        "{asked} bytes for a result exceed the {limit} bytes that this node may use for results"
    )]
    TooLarge {
        /// Bytes asked for.
        asked: usize,
        /// The limit.
        limit: usize,
    },
    /// Results that were not dropped fill the node's share: it fits when some of them are.
    #[error(
        "results in use hold {held} of the {limit} bytes that this node may use for results, and \
         {asked} more are needed"
    )]
    Full {
        /// Bytes asked for.
        asked: usize,
        /// Bytes in use.
        held: usize,
        /// The limit.
        limit: usize,
    },
    /// It is being made.
    #[error("memory for the result is being made")]
    Preparing,
    /// The kernel has none.
    #[error(transparent)]
    Segment(#[from] segment::Error),
    /// Nobody can make it.
    #[error(transparent)]
    Unable(#[from] Unable),
}

/// What memory is made for: one thing at a time for each of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SegmentRequest {
    /// The result of an operation.
    Result(GroupId, OpId),
    /// What a local rank's first call that waits in a group gets for itself.
    Own(GroupId, usize),
}

/// A segment that is being made, of this size.
#[derive(Debug)]
struct Making {
    bytes: usize,
    answer: BackgroundAnswer<Result<Segment, segment::Error>>,
}

/// A segment for results, by the number that clients know it by.
#[derive(Debug)]
pub struct ResultBlock {
    /// Its number, used once.
    pub number: u32,
    /// Its memory.
    pub block: Arc<Block>,
}

impl ResultBlock {
    fn len(&self) -> usize {
        self.block.len()
    }
}

/// The segments that no result lies in, and the count of all.
#[derive(Debug)]
pub struct Pool {
    /// Oldest first.
    idle: Vec<ResultBlock>,
    next_number: u32,
    held_bytes: usize,
    /// Of slots that somebody has written to.
    slot_bytes: usize,
    limit_bytes: usize,
    home: MemoryPolicy,
    /// At most one for each rank and group, and one for each group.
    making: BTreeMap<SegmentRequest, Making>,
    /// Segments that were unmapped, whose numbers clients should forget.
    gone: Vec<u32>,
}

impl Pool {
    /// A pool of at most `limit_bytes`, idle ones included, that lie in `home`.
    pub fn new(limit_bytes: usize, home: MemoryPolicy) -> Self {
        Self {
            idle: Vec::new(),
            next_number: 0,
            held_bytes: 0,
            slot_bytes: 0,
            limit_bytes,
            home,
            making: BTreeMap::new(),
            gone: Vec::new(),
        }
    }

    /// Where its segments lie.
    pub fn home(&self) -> &MemoryPolicy {
        &self.home
    }

    /// A segment for a result of `bytes`. Idle ones are given up for it where that is needed. A new one has no page yet.
    pub fn take(&mut self, bytes: usize) -> Result<ResultBlock, PoolError> {
        if let Some(idle) = self.find(bytes)? {
            return Ok(idle);
        }
        let (name, writers) = (NAME, Writers::Creator);
        let segment = Segment::create_untouched(name, bytes, writers, &self.home)?;
        self.held_bytes += segment.len();
        Ok(self.number(segment))
    }

    /// The same with all pages of a new one, which is made in the background: until then the answer is
    /// [`PoolError::Preparing`], and what was made for somebody who does not come again serves others. Without one it comes
    /// at once, and its pages later.
    pub fn prepare(
        &mut self,
        wanted: SegmentRequest,
        bytes: usize,
        background: Option<&mut Background>,
    ) -> Result<ResultBlock, PoolError> {
        let Some(background) = background else {
            return self.take(bytes);
        };
        let failed = self.collect(wanted);
        if let Some(error) = failed {
            return Err(error);
        }
        if self.making.contains_key(&wanted) {
            return Err(PoolError::Preparing);
        }
        if let Some(idle) = self.find(bytes)? {
            return Ok(idle);
        }
        let home = self.home.clone();
        let make = move || Segment::create_at(NAME, bytes, Writers::Creator, &home);
        let answer = background.ask(make)?;
        let bytes = segment::size_class(bytes);
        self.held_bytes += bytes;
        self.making.insert(wanted, Making { bytes, answer });
        Err(PoolError::Preparing)
    }

    /// Takes what has been made since. Why what this one wants could not be, if so.
    fn collect(&mut self, wanted: SegmentRequest) -> Option<PoolError> {
        let mut made = Vec::new();
        self.making
            .retain(|key, making| match making.answer.take() {
                None => true,
                Some(answer) => {
                    made.push((*key, making.bytes, answer));
                    false
                }
            });
        let mut failed = None;
        for (key, bytes, answer) in made {
            let error = match answer {
                Ok(Ok(segment)) => {
                    let result = self.number(segment);
                    self.put_back(result);
                    continue;
                }
                Ok(Err(error)) => error.into(),
                Err(unable) => unable.into(),
            };
            self.held_bytes -= bytes;
            if key == wanted {
                failed = Some(error);
            }
        }
        failed
    }

    fn number(&mut self, segment: Segment) -> ResultBlock {
        let number = self.next_number;
        self.next_number += 1;
        let block = Block::new(segment);
        ResultBlock { number, block }
    }

    /// An idle segment that fits. None: there is room for a new one.
    fn find(&mut self, bytes: usize) -> Result<Option<ResultBlock>, PoolError> {
        let class = segment::size_class(bytes);
        if class > self.limit_bytes {
            return Err(PoolError::TooLarge {
                asked: bytes,
                limit: self.limit_bytes,
            });
        }
        let fits = |result: &ResultBlock| {
            let size = result.len();
            size >= bytes && size <= class.saturating_mul(2)
        };
        let best = (0..self.idle.len())
            .filter(|at| fits(&self.idle[*at]))
            .min_by_key(|at| self.idle[*at].len());
        if let Some(at) = best {
            return Ok(Some(self.idle.swap_remove(at)));
        }
        let wanted = class.saturating_add(self.slot_bytes);
        while self.held_bytes.saturating_add(wanted) > self.limit_bytes && !self.idle.is_empty() {
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
        Ok(None)
    }

    /// So many bytes of slots are in memory: whoever makes a segment gives up as many more bytes of idle ones. Calls find as
    /// much room as without slots, which stay for as long as their group: who waited for them would wait for ever.
    pub fn count_slots(&mut self, bytes: usize) {
        self.slot_bytes = bytes;
    }

    /// Nobody reads a result any more.
    pub fn put_back(&mut self, result: ResultBlock) {
        if Arc::strong_count(&result.block) > 1 {
            // An operation has failed while a link still reads a payload into it, or a worker writes to it.
            self.unmap(result);
            return;
        }
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

    fn unmap(&mut self, result: ResultBlock) {
        self.held_bytes -= result.len();
        self.gone.push(result.number);
    }
}

#[cfg(test)]
mod tests {
    use link::segment::SegmentView;

    use super::*;

    #[test]
    fn segments_are_used_again_and_the_limit_counts_what_is_held() {
        let mut pool = Pool::new(3 << 20, MemoryPolicy::Anywhere);
        let first = pool.take(2 << 20).unwrap();
        let number = first.number;
        let full = pool.take(2 << 20).unwrap_err();
        assert!(matches!(full, PoolError::Full { .. }), "{full}");
        pool.put_back(first);
        let again = pool.take((2 << 20) - 5).unwrap();
        assert_eq!(again.number, number);
        pool.put_back(again);
        let small = pool.take(64 << 10).unwrap();
        pool.put_back(small);
        let _all = pool.take(3 << 20).unwrap();
        assert_eq!(pool.take_gone().len(), 2);
    }

    #[test]
    fn a_result_that_is_still_written_is_given_to_nobody_else() {
        let mut pool = Pool::new(1 << 20, MemoryPolicy::Anywhere);
        let result = pool.take(100).unwrap();
        let (number, block) = (result.number, Arc::downgrade(&result.block));
        let mut written = result.block.write(0..100).unwrap();
        pool.put_back(result);
        assert_eq!(pool.take_gone(), [number]);
        let next = pool.take(100).unwrap();
        assert_ne!(next.number, number);
        written.fill(7);
        assert_eq!(next.block.read(0..100).unwrap()[..], [0; 100]);
        drop(written);
        assert_eq!(block.strong_count(), 0);
    }

    #[test]
    fn slots_leave_less_room_for_idle_segments_and_none_less_for_results() {
        let mut pool = Pool::new(4 << 20, MemoryPolicy::Anywhere);
        let two = [pool.take(1 << 20).unwrap(), pool.take(1 << 20).unwrap()];
        two.into_iter().for_each(|result| pool.put_back(result));
        let small = pool.take(64 << 10).unwrap();
        assert_eq!(pool.take_gone().len(), 0, "there is room for all");
        pool.put_back(small);
        pool.count_slots(2 << 20);
        let _small = [pool.take(64 << 10).unwrap(), pool.take(64 << 10).unwrap()];
        assert_eq!(pool.take_gone().len(), 1, "two and the slots are too much");
        pool.count_slots(4 << 20);
        pool.take(3 << 20).unwrap();
    }

    // T16.
    #[test]
    fn a_result_can_be_written_by_its_node_only() {
        let mut pool = Pool::new(1 << 20, MemoryPolicy::Anywhere);
        let result = pool.take(1).unwrap();
        result.block.write(0..1).unwrap()[0] = 7;
        let handed = || result.block.fd().try_clone_to_owned().unwrap();
        let view = SegmentView::open(&handed(), result.len()).unwrap();
        assert_eq!(view.bytes()[0], 7);
        Segment::open(handed(), result.len()).unwrap_err();
    }

    #[test]
    fn what_never_fits_is_another_error_than_what_does_not_fit_now() {
        let mut pool = Pool::new(1 << 20, MemoryPolicy::Anywhere);
        let idle = pool.take(64 << 10).unwrap();
        pool.put_back(idle);
        let never = pool.take((1 << 20) + 1).unwrap_err();
        assert!(matches!(never, PoolError::TooLarge { .. }), "{never}");
        assert_eq!(pool.take_gone().len(), 0, "nothing is given up in vain");
    }
}
