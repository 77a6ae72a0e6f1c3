//! The segments that a process's inputs lie in: made for it, or taken back from one that an earlier sidecar has served.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use wire::block::Block;
use wire::segment::{self, Segment, Writers};

use super::Session;

/// Input segments of one process: the buckets of a large model.
const SEGMENT_LIMIT: usize = 1024;

impl Session {
    /// Takes a segment back that an earlier sidecar has made. It may be anything, so it is checked as a stranger's.
    pub(super) fn take_back(
        &mut self,
        number: u32,
        bytes: u64,
        fds: Vec<OwnedFd>,
    ) -> Result<(), String> {
        let count = fds.len();
        let Ok([fd]) = <[OwnedFd; 1]>::try_from(fds) else {
            return Err(format!(
                "segment {number} came with {count} descriptors instead of one"
            ));
        };
        let next = number.checked_add(1);
        let Some(next) = next.filter(|_| !self.inputs.contains_key(&number)) else {
            return Err(format!(
                "there is a segment {number} already, or none can be"
            ));
        };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.check_room(bytes, bytes)?;
        let segment = Segment::open(fd, bytes).map_err(|error| error.to_string())?;
        self.inputs.insert(number, Block::new(segment));
        self.next_segment = self.next_segment.max(next);
        Ok(())
    }

    pub(super) fn lend(&mut self, bytes: u64) -> Result<(u32, Arc<Block>), String> {
        let wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.check_room(wanted, segment::size_class(wanted))?;
        let number = self.next_segment;
        let next = number
            .checked_add(1)
            .ok_or("all numbers of segments are used up")?;
        let block = Segment::create_at("fireflyer-input", wanted, Writers::Everybody, &self.home)
            .map(Block::new)
            .map_err(|error| error.to_string())?;
        self.next_segment = next;
        self.inputs.insert(number, Arc::clone(&block));
        Ok((number, block))
    }

    /// Whether the process may use so much more memory for inputs; `size` is what `wanted` bytes take.
    fn check_room(&self, wanted: usize, size: usize) -> Result<(), String> {
        let lent: usize = self
            .inputs
            .values()
            .map(|block| block.segment().len())
            .sum();
        let room = self.limit_bytes.saturating_sub(lent);
        if size > room || self.inputs.len() >= SEGMENT_LIMIT {
            return Err(format!(
                "{wanted} bytes were asked for, and {lent} of the {} bytes that one process may use \
                 for inputs are lent in {} segments",
                self.limit_bytes,
                self.inputs.len()
            ));
        }
        Ok(())
    }
}
