//! Where the answers to parts belong. The result of a chunk is computed by the root of its tree, from parts that its
//! children lend it; a child then copies it. That reads and writes each byte once more than there is a need to: where
//! both are on one machine the reduction may write the child's result as well, while it has the sums in registers.
//! So a part names the place where its answer belongs, and the frame that comes down says that the answer lies there.
//!
//! The other side maps the segment of that place for writing, once, when it is first named. That has to be before it is
//! sealed, which it is when it is first handed to a process: one that is sealed is offered to nobody new, and what it
//! cannot map it does not write to. A place is the other side's until it returns the slot of the part. If the link ends
//! before, it may still be writing: see [`Lending`].

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use super::{Note, SHARED_LIMIT, length, slot_of};
use crate::attach::Channel;
use crate::block::{Block, Lending, Writing};
use crate::frame::{Body, HEADER_BYTES, Header};
use crate::ring::FRAME_WORDS;
use crate::segment::Segment;
use crate::transport::Error;

/// The word after those of the payload: the number of the segment and 1, or 0 if no place is named.
const SEGMENT: usize = HEADER_BYTES / 8 + 2;
/// Where in it.
const OFFSET: usize = SEGMENT + 1;
/// How much.
const BYTES: usize = SEGMENT + 2;

/// A chunk of an operation of a group.
type Chunk = (u64, u64, u32);

/// The answers that this side waits for, and those that it may give.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Segments of this side that were offered for writing.
    offered: BTreeMap<u64, Weak<Block>>,
    /// Places that the other side may write to, by the slots of the parts.
    lent: BTreeMap<(u64, u8, u8), (Chunk, Lending)>,
    /// Chunks whose place was returned and that have not come down yet.
    returned: BTreeSet<Chunk>,
    /// Segments of the other side, and whether they could be mapped: at most [`SHARED_LIMIT`].
    places: BTreeMap<u64, Option<Arc<Block>>>,
}

impl Answers {
    /// Names the place of an answer in an entry, after its segment has been announced.
    pub(super) fn name(
        &mut self,
        channel: &Channel,
        place: &Writing,
        entry: &mut [u64; FRAME_WORDS],
    ) -> Result<(), Error> {
        let (block, range) = place.place();
        let number = block.number();
        if !self.offered.contains_key(&number) {
            if block.is_sealed() {
                return Ok(());
            }
            let bytes = block.len() as u64;
            channel.send(&Note::Offer { number, bytes }, &[block.fd()])?;
            self.forget_gone(channel);
            self.offered.insert(number, Arc::downgrade(block));
        }
        entry[SEGMENT] = number + 1;
        (entry[OFFSET], entry[BYTES]) = (range.start as u64, range.len() as u64);
        Ok(())
    }

    /// The entry that names it is in the ring.
    pub(super) fn lend(&mut self, header: &Header, entry: &[u64; FRAME_WORDS], place: Writing) {
        if entry[SEGMENT] > 0 {
            let lent = (chunk_of(header), Lending::new(place));
            self.lent.insert(slot_of(header), lent);
        }
    }

    /// The other side has returned a slot, and writes to the place of its answer no more.
    pub(super) fn returned(&mut self, header: &Header) {
        if let Some((chunk, lending)) = self.lent.remove(&slot_of(header)) {
            lending.returned();
            self.returned.insert(chunk);
        }
    }

    /// A frame has come. Without a payload that it speaks of, it has to be the answer to a part that named a place.
    pub(super) fn check(&mut self, header: &Header, is_in_place: bool) -> Result<(), Error> {
        if let Body::Fail { .. } = header.body {
            let failed = (header.group, header.operation);
            self.returned.retain(|&(of, op, _)| (of, op) != failed);
        }
        let is_down = matches!(header.body, Body::Down { .. });
        let is_answer = is_down && self.returned.remove(&chunk_of(header));
        if is_in_place && !is_answer {
            return Err(Error::Payload(
                "a result in a place that was not lent for it",
            ));
        }
        Ok(())
    }

    /// The other side offers a segment for writing.
    pub(super) fn open(&mut self, number: u64, fd: OwnedFd, bytes: u64) -> Result<(), Error> {
        if self.places.len() >= SHARED_LIMIT {
            return Err(Error::Payload("more places for answers than there can be"));
        }
        let block = match Segment::open(fd, length(bytes)) {
            Ok(segment) => Some(Block::new(segment)),
            Err(error) if error.is_sealed() => None,
            Err(error) => return Err(error.into()),
        };
        self.places.insert(number, block);
        Ok(())
    }

    /// A segment of the other side is gone.
    pub(super) fn gone(&mut self, number: u64) {
        self.places.remove(&number);
    }

    /// Whether an entry names a segment that was not announced so far.
    pub(super) fn is_unknown(&self, entry: &[u64; FRAME_WORDS]) -> bool {
        let number = entry[SEGMENT].checked_sub(1);
        number.is_some_and(|number| !self.places.contains_key(&number))
    }

    /// The place that an entry names, if this side can write there.
    pub(super) fn take(&self, entry: &[u64; FRAME_WORDS]) -> Result<Option<Writing>, Error> {
        let Some(number) = entry[SEGMENT].checked_sub(1) else {
            return Ok(None);
        };
        let place = self.places.get(&number);
        let place = place.ok_or(Error::Payload(
            "a place in a segment that was never offered",
        ))?;
        let Some(block) = place else {
            return Ok(None);
        };
        let start = length(entry[OFFSET]);
        let end = start.saturating_add(length(entry[BYTES]));
        // Two places that overlap are refused as well.
        let writing = block.write(start..end);
        let wrong = |_| Error::Payload("a place outside of its segment, or one that is taken");
        writing.map(Some).map_err(wrong)
    }

    fn forget_gone(&mut self, channel: &Channel) {
        self.offered.retain(|&number, block| {
            let is_there = block.strong_count() > 0;
            if !is_there {
                // As for what is shared.
                channel.send(&Note::Gone { number }, &[]).ok();
            }
            is_there
        });
    }
}

const fn chunk_of(header: &Header) -> Chunk {
    (header.group, header.operation, header.chunk)
}
