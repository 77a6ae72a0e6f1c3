//! Frames between sidecars of one machine. Headers go through a ring in shared memory, and payload is not sent at
//! all: a frame says where it lies, and the receiver reads it there. A part that goes up is one of the sources of
//! the parent's reduction right where the child's kernel, or its only process, has put it; a result that goes down
//! is copied once, by the one who gets it, or not even that: see `answers`. So a byte crosses no kernel, and half as many
//! are written.
//!
//! The segments of either side are mapped by the other for reading, and where results lie for writing. A socket beside
//! the ring carries their descriptors, wakes who sleeps on descriptors, and ends when a side dies.

mod answers;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};

use super::{
    Error, Lent, Outgoing, Place, Placing, QUEUE_LIMIT, Received, Transport, is_read_in_place,
};
use crate::attach::{self, Channel};
use crate::block::{Block, Reading, Writing};
use crate::doorbell::{Depth, Sleep};
use crate::frame::{Body, HEADER_BYTES, Header};
use crate::ring::{self, Bed, Consumer, FRAME_WORDS, Producer, PushError};
use crate::segment::{Segment, View};
use answers::Answers;

/// First words of an entry: the header.
const HEADER_WORDS: usize = HEADER_BYTES / 8;
/// The word that says in which segment the payload lies.
const SEGMENT: usize = HEADER_WORDS;
/// The word that says where in it.
const OFFSET: usize = HEADER_WORDS + 1;
/// In the place of a segment: the payload lies where the answer to a part belongs.
const IN_PLACE: u64 = u64::MAX;
/// Segments that the other side may share: results and inputs in use, and as many idle ones.
const SHARED_LIMIT: usize = 4096;

/// What goes over the socket.
#[derive(Debug, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
enum Note {
    /// First: the ring that this side reads. With its descriptor.
    Mailbox { bytes: u64 },
    /// A segment that payload will lie in. With its descriptor.
    Share { number: u64, bytes: u64 },
    /// A segment that answers may be written to. With its descriptor.
    Offer { number: u64, bytes: u64 },
    /// It is gone.
    Gone { number: u64 },
    /// Wake up.
    Ring,
}

/// A connection whose other side has not named its mailbox yet.
#[derive(Debug)]
pub struct Opening {
    channel: Channel,
    inbox: Consumer<FRAME_WORDS>,
}

impl Opening {
    /// Makes this side's mailbox and hands it over.
    pub fn new(channel: Channel) -> Result<Self, Error> {
        let (mailbox, inbox) = ring::mailbox()?;
        let bytes = mailbox.len() as u64;
        channel.send(&Note::Mailbox { bytes }, &[mailbox.fd()])?;
        Ok(Self { channel, inbox })
    }

    /// The link, if the other side's mailbox has come; poll the socket until it has.
    pub fn finish(self) -> Result<Result<Shared, Self>, Error> {
        match self.channel.receive_with_fds::<Note>()? {
            None => Ok(Err(self)),
            Some((Note::Mailbox { bytes }, fds)) => {
                let mailbox = Arc::new(Segment::open(only(fds)?, length(bytes))?);
                let outbox = ring::mailbox_producer(&mailbox)
                    .ok_or(Error::Payload("a mailbox that is too small"))?;
                Ok(Ok(Shared::new(self.channel, self.inbox, outbox)))
            }
            Some((Note::Share { .. } | Note::Offer { .. } | Note::Gone { .. } | Note::Ring, _)) => {
                Err(Error::Payload("segments before its mailbox"))
            }
        }
    }
}

impl AsFd for Opening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// A link through shared memory.
#[derive(Debug)]
pub struct Shared {
    channel: Channel,
    inbox: Consumer<FRAME_WORDS>,
    outbox: Producer<FRAME_WORDS>,
    /// Frames that found no room in the ring.
    queue: VecDeque<(Header, Option<Outgoing>)>,
    /// Payload that the other side copies: until it is done with that entry of the ring.
    copied: VecDeque<(u64, Outgoing)>,
    /// Payload that the other side reads in place: until it returns the slot of that tree of that group.
    read: BTreeMap<(u64, u8, u8), Outgoing>,
    /// Tokens of payload that has been read.
    left: Vec<u64>,
    /// Segments of this side that the other side has mapped.
    told: BTreeMap<u64, Weak<Block>>,
    /// Segments of the other side.
    views: BTreeMap<u64, Arc<View>>,
    answers: Answers,
    /// Entries of the outbox that the other side was done with when this side looked last.
    consumed: u64,
    /// Whether this side sleeps until the other is done with entries.
    waits: bool,
    closed: bool,
    abandoned: bool,
    traffic: (u64, u64),
}

impl Shared {
    fn new(channel: Channel, inbox: Consumer<FRAME_WORDS>, outbox: Producer<FRAME_WORDS>) -> Self {
        Self {
            channel,
            inbox,
            outbox,
            queue: VecDeque::new(),
            copied: VecDeque::new(),
            read: BTreeMap::new(),
            left: Vec::new(),
            told: BTreeMap::new(),
            views: BTreeMap::new(),
            answers: Answers::default(),
            consumed: 0,
            waits: false,
            closed: false,
            abandoned: false,
            traffic: (0, 0),
        }
    }

    /// Takes what came over the socket.
    fn hear(&mut self) -> Result<(), Error> {
        while !self.closed {
            match self.channel.receive_with_fds::<Note>() {
                Ok(None) => break,
                Ok(Some((Note::Share { number, bytes }, fds))) => {
                    if self.views.len() >= SHARED_LIMIT {
                        return Err(Error::Payload("more segments than there can be"));
                    }
                    let view = View::open(&only(fds)?, length(bytes))?;
                    self.views.insert(number, Arc::new(view));
                }
                Ok(Some((Note::Offer { number, bytes }, fds))) => {
                    self.answers.open(number, only(fds)?, bytes)?;
                }
                Ok(Some((Note::Gone { number }, _))) => {
                    self.views.remove(&number);
                    self.answers.gone(number);
                }
                Ok(Some((Note::Ring, _))) => {}
                Ok(Some((Note::Mailbox { .. }, _))) => {
                    return Err(Error::Payload("a second mailbox"));
                }
                Err(attach::Error::Closed) => self.closed = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Wakes the other side, which sleeps on its socket. One that is full of rings is awake.
    fn ring(&self) {
        self.channel.send(&Note::Ring, &[]).ok();
    }

    /// Where the payload of an entry lies.
    fn payload(&mut self, header: &Header, entry: &[u64; FRAME_WORDS]) -> Result<Reading, Error> {
        let number = entry[SEGMENT];
        if !self.views.contains_key(&number) {
            // It was announced before the frame was written.
            self.hear()?;
        }
        let view = self.views.get(&number);
        let view = view.ok_or(Error::Payload("a segment that was never shared"))?;
        let start = length(entry[OFFSET]);
        let end = start.saturating_add(header.payload as usize);
        Reading::of_view(Arc::clone(view), start..end)
            .ok_or(Error::Payload("bytes outside of their segment"))
    }

    /// Where the answer to a part may be written.
    fn answer(&mut self, entry: &[u64; FRAME_WORDS]) -> Result<Option<Writing>, Error> {
        if self.answers.is_unknown(entry) {
            self.hear()?;
        }
        self.answers.take(entry)
    }

    /// Makes a segment known to the other side.
    fn share(&mut self, block: &Arc<Block>) -> Result<(), Error> {
        let number = block.number();
        if !self.told.contains_key(&number) {
            let bytes = block.len() as u64;
            self.channel
                .send(&Note::Share { number, bytes }, &[block.fd()])?;
            self.told.insert(number, Arc::downgrade(block));
            self.forget_gone();
        }
        Ok(())
    }

    fn forget_gone(&mut self) {
        let channel = &self.channel;
        self.told.retain(|&number, block| {
            let is_there = block.strong_count() > 0;
            if !is_there {
                // Lost only when the socket is full or closed; then the other side keeps a mapping longer.
                channel.send(&Note::Gone { number }, &[]).ok();
            }
            is_there
        });
    }
}

impl Transport for Shared {
    fn name(&self) -> &'static str {
        "shared memory"
    }

    fn push(&mut self, header: &Header, payload: Option<Outgoing>) -> Result<(), Error> {
        if self.queue.len() >= QUEUE_LIMIT {
            return Err(Error::Queue(self.queue.len()));
        }
        self.queue.push_back((*header, payload));
        Ok(())
    }

    fn flush(&mut self, left: &mut Vec<u64>) -> Result<(), Error> {
        left.append(&mut self.left);
        self.consumed = self.outbox.consumed()?;
        while self
            .copied
            .front()
            .is_some_and(|(entry, _)| *entry < self.consumed)
        {
            left.extend(self.copied.pop_front().map(|(_, payload)| payload.token));
        }
        if self.closed && !self.queue.is_empty() {
            return Err(Error::Closed);
        }
        let mut rings = false;
        while let Some((header, payload)) = self.queue.front() {
            if self.outbox.room()? == 0 {
                break;
            }
            let header = *header;
            let mut entry = [0; FRAME_WORDS];
            for (word, bytes) in entry.iter_mut().zip(header.encode().chunks_exact(8)) {
                *word = bytes
                    .iter()
                    .rev()
                    .fold(0, |word, byte| word << 8 | u64::from(*byte));
            }
            if let Some(payload) = payload {
                let (block, start) = payload
                    .bytes
                    .place()
                    .ok_or(Error::Payload("bytes that are not this side's to share"))?;
                let block = Arc::clone(block);
                (entry[SEGMENT], entry[OFFSET]) = (block.number(), start as u64);
                if let Some(place) = &payload.answer {
                    self.answers.name(&self.channel, place, &mut entry)?;
                }
                self.share(&block)?;
            } else if header.payload > 0 {
                entry[SEGMENT] = IN_PLACE;
            }
            let number = self.outbox.produced();
            let pushed = if let Body::Credit = header.body {
                self.outbox.push_softly(&entry)
            } else {
                self.outbox.push(&entry)
            };
            match pushed {
                Ok(asleep) => rings |= asleep,
                Err(PushError::Full) => break,
                Err(PushError::Corrupt(corrupt)) => return Err(corrupt.into()),
            }
            self.traffic.0 += HEADER_BYTES as u64 + u64::from(header.payload);
            // Whatever fails before leaves it in the queue, whose tokens are given back with the link.
            match self.queue.pop_front().and_then(|(_, payload)| payload) {
                Some(mut payload) if is_read_in_place(&header.body) => {
                    if let Some(place) = payload.answer.take() {
                        self.answers.lend(&header, &entry, place);
                    }
                    self.read.insert(slot_of(&header), payload);
                }
                Some(payload) => self.copied.push_back((number, payload)),
                None => {}
            }
        }
        if rings {
            self.ring();
        }
        Ok(())
    }

    fn is_flushed(&self) -> bool {
        self.queue.is_empty()
    }

    fn receive(&mut self, place: &mut Placing<'_>) -> Result<Received, Error> {
        let Some(entry) = self.inbox.peek()? else {
            return if self.closed || self.abandoned {
                Err(Error::Closed)
            } else {
                Ok(Received::Nothing)
            };
        };
        let mut bytes = [0; HEADER_BYTES];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(entry) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let header = Header::parse(&bytes)?;
        self.traffic.1 += HEADER_BYTES as u64 + u64::from(header.payload);
        let mut lent = None;
        let is_in_place = header.payload > 0 && entry[SEGMENT] == IN_PLACE;
        self.answers.check(&header, is_in_place)?;
        if header.payload > 0 && !is_in_place {
            let bytes = self.payload(&header, &entry)?;
            if is_read_in_place(&header.body) {
                let answer = self.answer(&entry)?;
                lent = Some(Lent { bytes, answer });
            } else {
                match place(&header).map_err(Error::Unplaced)? {
                    Place::Into(mut into) if into.len() == bytes.len() => {
                        into.copy_from_slice(&bytes);
                    }
                    Place::Into(_) => return Err(Error::Payload("more or less than its place")),
                    Place::Discard => {}
                }
            }
        }
        if let Body::Credit = header.body {
            self.answers.returned(&header);
            let payload = self.read.remove(&slot_of(&header));
            self.left.extend(payload.map(|payload| payload.token));
        }
        if self.inbox.done() {
            self.ring();
        }
        Ok(Received::Frame(header, lent))
    }

    fn can_send(&self) -> bool {
        !self.abandoned
    }

    fn abandon(&mut self, left: &mut Vec<u64>) {
        self.abandoned = true;
        left.append(&mut self.left);
        let queued = self.queue.drain(..).filter_map(|(_, payload)| payload);
        let copied = self.copied.drain(..).map(|(_, payload)| payload);
        let read = std::mem::take(&mut self.read).into_values();
        left.extend(
            queued
                .chain(copied)
                .chain(read)
                .map(|payload| payload.token),
        );
        self.channel.shutdown();
    }

    fn take_traffic(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.traffic)
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }

    fn wake(&mut self) -> Result<(), Error> {
        self.hear()
    }

    fn is_polled(&self) -> bool {
        true
    }

    fn lends(&self) -> bool {
        true
    }

    fn takes_places(&self) -> bool {
        true
    }

    fn has_come(&mut self) -> bool {
        let is_done = |consumed| {
            let copied = self.copied.front();
            copied.is_some_and(|(entry, _)| *entry < consumed)
                || !self.queue.is_empty() && consumed > self.consumed
        };
        // Who has broken a ring is found out when it is read.
        self.inbox.has_entry().unwrap_or(true) || self.outbox.consumed().is_ok_and(is_done)
    }

    fn sleep(&mut self, how: Sleep, depth: Depth) -> Result<bool, Error> {
        if !self.inbox.sleep(how, depth)? {
            return Ok(false);
        }
        self.waits = !self.queue.is_empty() || depth == Depth::Light && !self.copied.is_empty();
        if self.waits && !self.outbox.sleep(self.consumed, how)? {
            self.inbox.awake();
            return Ok(false);
        }
        Ok(true)
    }

    fn awake(&self) {
        self.inbox.awake();
        self.outbox.awake();
    }

    fn beds(&self, into: &mut Vec<Bed>) {
        into.push(self.inbox.bed());
        if self.waits {
            into.push(self.outbox.bed());
        }
    }
}

/// The slot that a part takes and a credit returns: every group has slots of its own.
const fn slot_of(header: &Header) -> (u64, u8, u8) {
    (header.group, header.tree, header.slot)
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn only(fds: Vec<OwnedFd>) -> Result<OwnedFd, attach::Error> {
    let [fd] = <[_; 1]>::try_from(fds).map_err(|fds| attach::Error::Descriptors(fds.len()))?;
    Ok(fd)
}

#[cfg(test)]
mod tests;
