//! Frames over RDMA, with the same meaning as over TCP, in order and without loss, but payload
//! goes straight from the sender's memory to its destination. Owns a queue pair and the two rings of header slots; the
//! rules are in `flow`, the bytes in `slot`. What frames mean, and which window is announced when, is the engine's
//! business. A channel never blocks; whoever polls the completion queue hands it what concerns it.
//!
//! One turn of a loop: arm the queue, poll it, give each completion to the channel whose number it names, flush the
//! channels, sleep on the queue's descriptor. A window must be announced before the frame that lets the peer send to
//! it: a frame whose window is not announced holds up those behind it, though no announcement. Completions of a channel that is gone may
//! still be in a queue that outlives it, and numbers are used again: take a new queue with new channels.

mod flow;
mod slot;

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::header::Header;
use crate::segment::{self, Segment, Writers};
use flow::{Arrival, Flow, Limits, Opened, Post};
use slot::{Content, SLOT_BYTES, SLOTS_LIMIT, USED_BYTES};

use super::{
    Access, CompletionQueue, CompletionStatus, Domain, Done, Error as VerbsError, FinishedWork,
    Gid, PairEndpoint, PairOptions, PathOptions, Port, QueuePair, RegionSource, RegisteredRegion,
    Remote, Write,
};

pub use flow::FlowViolation;
pub use slot::{Destination, MalformedSlot, SlotTarget};

/// Receive requests have no names of their own: any of them may be used for anything.
const RECEIVE: u64 = u64::MAX;
/// Words of a slot.
const SLOT_WORDS: usize = SLOT_BYTES / 8;

/// Why a channel is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The library refused something.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// There is no memory for the rings.
    #[error(transparent)]
    Memory(#[from] segment::Error),
    /// One side does not keep to the rules.
    #[error("the channel is broken: {0}")]
    Violation(#[from] FlowViolation),
    /// A request failed.
    #[error("the connection failed: {0}")]
    Failed(CompletionStatus),
    /// The peer's channel is of another size.
    #[error("the peer's ring has {theirs} slots, ours has {ours}")]
    Slots {
        /// What the peer says.
        theirs: u32,
        /// What was configured here.
        ours: u32,
    },
}

/// How large a channel is.
#[derive(Clone, Copy, Debug)]
pub struct ChannelOptions {
    /// Slots of a ring, an even number and the same on both ends: frames that may be sent before the receiver has
    /// looked.
    pub slots: u32,
    /// Writes that may be under way.
    pub sends: u32,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        Self {
            slots: 64,
            sends: 256,
        }
    }
}

impl ChannelOptions {
    /// Completions that one channel may have that nobody has looked at.
    pub fn completions(self) -> u32 {
        let limits = self.limits();
        limits.receives() + limits.sends
    }

    fn limits(self) -> Limits {
        Limits {
            slots: (self.slots.clamp(2, SLOTS_LIMIT) + 1) & !1,
            sends: self.sends.max(8),
        }
    }
}

/// What a peer has to know to connect: exchanged over an authenticated connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// This end.
    pub endpoint: PairEndpoint,
    /// The ring that the peer writes to.
    pub ring: Remote,
    /// Its slots.
    pub slots: u32,
}

impl Invitation {
    /// Bytes of one.
    pub const BYTES: usize = PairEndpoint::BYTES + 16;

    /// As bytes.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (endpoint, rest) = bytes.split_at_mut(PairEndpoint::BYTES);
        endpoint.copy_from_slice(&self.endpoint.encode());
        rest[..8].copy_from_slice(&self.ring.address.to_le_bytes());
        rest[8..12].copy_from_slice(&self.ring.key.to_le_bytes());
        rest[12..].copy_from_slice(&self.slots.to_le_bytes());
        bytes
    }

    /// What bytes stand for.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Result<Self, VerbsError> {
        let mut endpoint = [0; PairEndpoint::BYTES];
        endpoint.copy_from_slice(&bytes[..PairEndpoint::BYTES]);
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[PairEndpoint::BYTES + at..PairEndpoint::BYTES + at + 4]);
            u32::from_le_bytes(word)
        };
        let slots = word(12);
        if slots == 0 || slots > SLOTS_LIMIT {
            return Err(VerbsError::Peer("number of slots"));
        }
        Ok(Self {
            endpoint: PairEndpoint::parse(&endpoint)?,
            ring: Remote {
                address: u64::from(word(4)) << 32 | u64::from(word(0)),
                bytes: u64::from(slots) * SLOT_BYTES as u64,
                key: word(8),
            },
            slots,
        })
    }
}

/// A payload that goes with a frame; its length is in the header.
#[derive(Debug)]
pub struct Payload {
    /// What is notified when the source may be overwritten.
    pub ticket: u64,
    /// Where it is.
    pub source: RegionSource,
    /// Where it goes.
    pub destination: Destination,
}

/// What a completion brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelEvent<H> {
    /// A whole frame; its payload, if it has any, lies at its place.
    Frame {
        /// The frame.
        header: H,
        /// Where its payload is. It was announced by this side; whether this frame's payload belongs there is
        /// for whoever knows the frame's meaning to check.
        place: SlotTarget,
    },
    /// Nothing for the engine.
    Nothing,
}

/// One end of a channel.
#[derive(Debug)]
pub struct RdmaChannel<H> {
    flow: Flow<RegionSource, H>,
    /// First, so that it is given up before its memory.
    pair: QueuePair,
    region: Arc<RegisteredRegion>,
    /// The ring that the peer writes to, then the slots as we send them.
    memory: Segment,
    limits: Limits,
    ring: Option<Remote>,
    failed: bool,
    /// Bytes sent and received, slots included.
    pub traffic: (u64, u64),
}

impl<H: Header> RdmaChannel<H> {
    /// An end that can be connected from the port.
    pub fn new(
        domain: &Arc<Domain>,
        completions: &Arc<CompletionQueue>,
        port: &Port,
        gid: &Gid,
        options: ChannelOptions,
    ) -> Result<Self, Error> {
        let limits = options.limits();
        let bytes = 2 * limits.slots as usize * SLOT_BYTES;
        let memory = Segment::create("fireflyer-ring", bytes, Writers::Everybody)?;
        let access = Access {
            remote_write: true,
            // The number of a slot must not be there before the rest of it.
            relaxed_ordering: false,
        };
        let region = RegisteredRegion::register(domain, &memory, access)?;
        let options = PairOptions {
            sends: limits.sends,
            receives: limits.receives(),
            inline_bytes: USED_BYTES as u32,
        };
        let mut pair = QueuePair::new(domain, completions, port, gid, options)?;
        for _ in 0..limits.receives() {
            pair.post_receive(RECEIVE)?;
        }
        Ok(Self {
            flow: Flow::new(limits),
            pair,
            region,
            memory,
            limits,
            ring: None,
            failed: false,
            traffic: (0, 0),
        })
    }

    /// What the peer has to know.
    pub fn invitation(&self) -> Result<Invitation, Error> {
        let bytes = self.limits.slots as usize * SLOT_BYTES;
        Ok(Invitation {
            endpoint: self.pair.endpoint(),
            ring: self.region.remote(0, bytes as u64)?,
            slots: self.limits.slots,
        })
    }

    /// Connects to the end that the peer has invited to. Nothing may be posted before the peer has done so, too:
    /// exchange a word over the other connection.
    pub fn connect(&mut self, peer: &Invitation, path: PathOptions) -> Result<(), Error> {
        if peer.slots != self.limits.slots {
            return Err(Error::Slots {
                theirs: peer.slots,
                ours: self.limits.slots,
            });
        }
        self.pair.connect(&peer.endpoint, path)?;
        self.ring = Some(peer.ring);
        Ok(())
    }

    /// The number that completions of this channel name.
    pub fn number(&self) -> u32 {
        self.pair.number()
    }

    /// Queues a frame.
    pub fn push(&mut self, header: H, payload: Option<Payload>) -> Result<(), Error> {
        let payload = payload.map(|payload| (payload.ticket, payload.source, payload.destination));
        let bytes = payload.as_ref().map_or(0, |(_, source, _)| source.bytes());
        if bytes != header.payload_bytes() {
            return Err(FlowViolation::from(MalformedSlot::Field("length of the payload")).into());
        }
        Ok(self.flow.push(header, payload)?)
    }

    /// Asks the peer to put payload for this window there, before any frame that is pushed later.
    pub fn announce(&mut self, window: u64, remote: Remote) -> Result<(), Error> {
        Ok(self.flow.announce(window, Some(remote))?)
    }

    /// Announces to the peer that payload for this window is not wanted: its frames come without.
    pub fn refuse(&mut self, window: u64) -> Result<(), Error> {
        Ok(self.flow.announce(window, None)?)
    }

    /// Forgets a window on this side: both sides know by themselves that nothing more comes for it.
    pub fn forget(&mut self, window: u64) {
        self.flow.forget(window);
    }

    /// Whether everything that was queued has been posted.
    pub fn is_flushed(&self) -> bool {
        self.flow.is_flushed()
    }

    /// Whether everything that was queued has arrived in the peer's memory.
    pub fn is_idle(&self) -> bool {
        self.flow.is_idle()
    }

    /// Windows that the peer has announced and that were not forgotten.
    pub fn windows(&self) -> usize {
        self.flow.windows()
    }

    /// The window that the next frame waits for, and all others with it.
    pub fn missing_window(&self) -> Option<u64> {
        self.flow.missing_window()
    }

    /// Posts what may be posted.
    pub fn flush(&mut self) -> Result<(), Error> {
        let Some(ring) = self.ring.filter(|_| !self.failed) else {
            return Ok(());
        };
        while let Some(post) = self.flow.next_post()? {
            self.post(&ring, &post)?;
        }
        Ok(())
    }

    fn post(&mut self, ring: &Remote, post: &Post<RegionSource, H>) -> Result<(), Error> {
        let number = post.signal();
        let slot;
        let (source, to, id) = match post {
            Post::Payload { source, to } => (Some(source), (to.address, to.key), None),
            Post::Slot {
                number,
                content,
                id,
            } => {
                let index = *number % u64::from(self.limits.slots);
                let at = index * SLOT_BYTES as u64;
                slot = self.stage(index as usize, &content.encode(*number))?;
                (Some(&slot), (ring.address.wrapping_add(at), ring.key), *id)
            }
            Post::Credit { id, .. } => (None, (ring.address, ring.key), *id),
        };
        self.traffic.0 += source.map_or(0, |source| source.bytes().into());
        Ok(self.pair.post_write(&Write {
            id: id.unwrap_or(0),
            source,
            address: to.0,
            key: to.1,
            number,
            signaled: id.is_some(),
        })?)
    }

    /// Puts a slot where it is sent from. Its place is free: the peer has read what was there before.
    fn stage(&mut self, index: usize, bytes: &[u8; USED_BYTES]) -> Result<RegionSource, Error> {
        let at = (self.limits.slots as usize + index) * SLOT_BYTES;
        if let Some(place) = self.memory.bytes_mut().get_mut(at..at + USED_BYTES) {
            place.copy_from_slice(bytes);
        }
        Ok(self.region.source(at as u64, USED_BYTES as u32)?)
    }

    /// Takes in a completion of this channel. The tickets of payloads that have left go into `left`.
    pub fn complete(
        &mut self,
        completion: &FinishedWork,
        left: &mut Vec<u64>,
    ) -> Result<ChannelEvent<H>, Error> {
        if !completion.status.is_success() {
            return if self.failed {
                Ok(ChannelEvent::Nothing)
            } else {
                Err(Error::Failed(completion.status))
            };
        }
        let number = match completion.done {
            Done::Received(number) => number,
            // Given up with everything else.
            Done::Write if self.failed => return Ok(ChannelEvent::Nothing),
            Done::Write => {
                self.flow.completed(completion.id, left)?;
                return Ok(ChannelEvent::Nothing);
            }
            Done::Other => return Ok(ChannelEvent::Nothing),
        };
        if !self.failed {
            self.pair.post_receive(RECEIVE)?;
        }
        match self.flow.arrived(number)? {
            Arrival::Credit => Ok(ChannelEvent::Nothing),
            Arrival::Slot(number) => {
                let content = Content::parse(&self.copy_out(number), number)
                    .map_err(FlowViolation::Malformed)?;
                self.traffic.1 += USED_BYTES as u64;
                Ok(match self.flow.open(content)? {
                    Opened::Window => ChannelEvent::Nothing,
                    Opened::Frame { header, place } => {
                        if matches!(place, SlotTarget::At(_)) {
                            self.traffic.1 += u64::from(header.payload_bytes());
                        }
                        ChannelEvent::Frame { header, place }
                    }
                })
            }
        }
    }

    /// A slot as it is now. Its words are read once each: a peer that goes on writing changes nothing any more.
    fn copy_out(&self, number: u64) -> [u8; USED_BYTES] {
        // The device has written the slot before its completion, which was read before this.
        fence(Ordering::Acquire);
        let index = (number % u64::from(self.limits.slots)) as usize;
        let words = self.memory.words().iter().skip(index * SLOT_WORDS);
        let mut bytes = [0; USED_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        bytes
    }

    /// Sends nothing more, and nothing more arrives; what has arrived can still be taken in. The tickets of all
    /// payloads that were queued or under way go into `left`; the peer notices at its next write.
    pub fn abandon(&mut self, left: &mut Vec<u64>) {
        self.failed = true;
        self.flow.abandon(left);
        // Already failed, if this is refused.
        self.pair.fail().ok();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_invitation_is_refused_or_means_what_it_says(
            mut bytes in any::<[u8; Invitation::BYTES]>(),
            mtu in 0u8..8,
            slots in 0..2 * SLOTS_LIMIT,
        ) {
            // Mostly right, so that some are taken.
            for at in [3, 7, 27] {
                bytes[at] = 0;
            }
            bytes[26] = mtu;
            bytes[PairEndpoint::BYTES + 12..].copy_from_slice(&slots.to_le_bytes());
            match Invitation::parse(&bytes) {
                Ok(invitation) => prop_assert_eq!(invitation.encode(), bytes),
                Err(_) => prop_assert!(!(1..=5).contains(&mtu) || slots == 0 || slots > SLOTS_LIMIT),
            }
        }
    }
}
