//! The rules of a channel, without memory or devices: which slot comes next, who may send how much, what is to be
//! posted, and what a completion means. The same on both sides; each sends over its half and receives over the
//! other's.
//!
//! A sender writes payload to its destination, then the frame's header into slot `n` of the receiver's ring, with a
//! number that wakes the receiver. The receiver copies the slot out, posts a new receive request, and says now and
//! then how many slots it has read: the sender never has more slots written than the ring has. Two such words can be
//! unread at a time, since each stands for half a ring; that many receive requests are kept beyond the ring's.

use std::collections::{BTreeMap, VecDeque};

use super::slot::{Content, Destination, MalformedSlot, Signal, SlotTarget};
use crate::header::Header;
pub(super) use crate::limits::RDMA_WINDOWS;
use crate::verbs::Remote;

/// Words about read slots that can be unread.
const CREDITS_UNREAD: u32 = 2;

/// How large a channel is; both ends must agree on the slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Slots of a ring: an even number, so that half a ring is half of it.
    pub(super) slots: u32,
    /// Writes that may be under way.
    pub(super) sends: u32,
}

impl Limits {
    /// Receive requests that must be posted.
    pub(super) fn receives(self) -> u32 {
        self.slots + CREDITS_UNREAD
    }
}

/// What goes wrong by somebody's fault; the channel is of no use afterwards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowViolation {
    /// What the peer wrote makes no sense.
    #[error(transparent)]
    Malformed(#[from] MalformedSlot),
    /// The peer said that it wrote a slot that was not free or not next.
    #[error("slot {came} was written, slot {next} comes next")]
    Order {
        /// What it said.
        came: u64,
        /// What comes next.
        next: u64,
    },
    /// The peer said that it had read what was never written.
    #[error("{read} slots were read of {written} that were written")]
    Credit {
        /// What it said.
        read: u64,
        /// What was written.
        written: u64,
    },
    /// A frame's payload lies where none was asked for.
    #[error("{bytes} bytes of payload lie at {} of window {}, which was not announced or is smaller", .to.offset, .to.window)]
    Window {
        /// Where it lies.
        to: Destination,
        /// Its length.
        bytes: u32,
    },
    /// The peer announces without end.
    #[error("more than {RDMA_WINDOWS} windows are announced")]
    Windows,
    /// We send without end.
    #[error("{0} frames wait to be sent: no more may")]
    Queue(usize),
    /// A write has completed that was not under way.
    #[error("write {0} has completed and was not under way")]
    Completion(u64),
}

/// A write that is to be posted now, in this order. `id` is there if it must say when it has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Post<S, H> {
    /// Payload, before its header.
    Payload { source: S, to: Remote },
    /// A slot's content, with the number that wakes the peer.
    Slot {
        number: u64,
        content: Content<H>,
        id: Option<u64>,
    },
    /// How many slots were read.
    Credit { count: u64, id: Option<u64> },
}

impl<S, H> Post<S, H> {
    /// The number that the peer receives.
    pub(super) fn signal(&self) -> Option<u32> {
        match self {
            Self::Payload { .. } => None,
            Self::Slot { number, .. } => Some(Signal::Slot(*number).encode()),
            Self::Credit { count, .. } => Some(Signal::Credit(*count).encode()),
        }
    }
}

/// What a number from the peer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// Copy this slot out and [`Flow::open`] it.
    Slot(u64),
    /// There may be more to post.
    Credit,
}

/// What came in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opened<H> {
    Frame { header: H, place: SlotTarget },
    Window,
}

#[derive(Debug)]
struct Outgoing<S, H> {
    content: Content<H>,
    payload: Option<(u64, S)>,
}

/// Writes under way up to one that says when it has completed.
#[derive(Debug, Default)]
struct Batch {
    id: u64,
    writes: u32,
    tickets: Vec<u64>,
}

/// One end of a channel.
#[derive(Debug)]
pub(super) struct Flow<S, H> {
    limits: Limits,
    /// Go before frames: were both sides' frames to wait for windows, nobody would learn of any.
    announcements: VecDeque<Content<H>>,
    waiting: VecDeque<Outgoing<S, H>>,
    /// The payload of the first that waits is posted, its header is not.
    payload_posted: bool,
    /// Slots that we have written, and of them those that the peer has read.
    written: u64,
    read: u64,
    /// Slots that we have read, and of them those that the peer knows of.
    taken: u64,
    reported: u64,
    /// What the peer has announced.
    windows: BTreeMap<u64, Option<Remote>>,
    /// What we have announced, with its length.
    announced: BTreeMap<u64, u64>,
    room: u32,
    open: Batch,
    under_way: VecDeque<Batch>,
}

impl<S: Clone, H: Header> Flow<S, H> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            announcements: VecDeque::new(),
            waiting: VecDeque::new(),
            payload_posted: false,
            written: 0,
            read: 0,
            taken: 0,
            reported: 0,
            windows: BTreeMap::new(),
            announced: BTreeMap::new(),
            room: limits.sends,
            open: Batch::default(),
            under_way: VecDeque::new(),
        }
    }

    /// Queues a frame. The source of a payload is in use until its ticket has left.
    pub(super) fn push(
        &mut self,
        header: H,
        payload: Option<(u64, S, Destination)>,
    ) -> Result<(), FlowViolation> {
        let place = match &payload {
            Some((_, _, to)) => SlotTarget::At(*to),
            None => SlotTarget::None,
        };
        self.check_room()?;
        self.waiting.push_back(Outgoing {
            content: Content::Frame { header, place },
            payload: payload.map(|(ticket, source, _)| (ticket, source)),
        });
        Ok(())
    }

    /// Announces to the peer where to put payload under this name, before any frame that is queued later. Without a
    /// place, payload is not wanted.
    pub(super) fn announce(
        &mut self,
        window: u64,
        remote: Option<Remote>,
    ) -> Result<(), FlowViolation> {
        match remote {
            Some(remote) => {
                self.announced.insert(window, remote.bytes);
                if self.announced.len() > RDMA_WINDOWS {
                    return Err(FlowViolation::Windows);
                }
            }
            None => {
                self.announced.remove(&window);
            }
        }
        self.check_room()?;
        self.announcements
            .push_back(Content::Window { window, remote });
        Ok(())
    }

    /// Forgets a name on this side, in both directions: both know by themselves that nothing more comes.
    pub(super) fn forget(&mut self, window: u64) {
        self.windows.remove(&window);
        self.announced.remove(&window);
    }

    fn check_room(&self) -> Result<(), FlowViolation> {
        match self.waiting.len() + self.announcements.len() {
            queued if queued >= H::MAX_QUEUED => Err(FlowViolation::Queue(queued)),
            _ => Ok(()),
        }
    }

    /// Whether everything that was queued has been posted.
    pub(super) fn is_flushed(&self) -> bool {
        self.waiting.is_empty() && self.announcements.is_empty()
    }

    /// Whether everything that was queued has arrived: the last slot of a queue always says so.
    pub(super) fn is_idle(&self) -> bool {
        self.is_flushed() && self.under_way.is_empty()
    }

    /// Places that the peer has announced and that were not forgotten.
    pub(super) fn windows(&self) -> usize {
        self.windows.len()
    }

    /// The window that the first waiting frame needs and the peer has not announced.
    pub(super) fn missing_window(&self) -> Option<u64> {
        match self.waiting.front()?.content {
            Content::Frame {
                place: SlotTarget::At(to),
                ..
            } if !self.windows.contains_key(&to.window) => Some(to.window),
            Content::Frame { .. } | Content::Window { .. } => None,
        }
    }

    /// What is to be posted next, if there is anything that may be.
    pub(super) fn next_post(&mut self) -> Result<Option<Post<S, H>>, FlowViolation> {
        if self.room == 0 {
            return Ok(None);
        }
        // First, because the peer may be waiting for it.
        if self.taken - self.reported >= u64::from(self.limits.slots / 2) {
            self.reported = self.taken;
            let id = self.count_write(false);
            let count = self.reported;
            return Ok(Some(Post::Credit { count, id }));
        }
        if self.written - self.read >= self.limits.slots.into() {
            return Ok(None);
        }
        if let Some(content) = self.announcements.pop_front() {
            return Ok(Some(self.slot(content, None)));
        }
        let Some(front) = self.waiting.front_mut() else {
            return Ok(None);
        };
        if let (Content::Frame { header, place }, Some((_, source)), false) =
            (&mut front.content, &front.payload, self.payload_posted)
            && let SlotTarget::At(to) = *place
        {
            match self.windows.get(&to.window) {
                // In order: what comes later waits as well.
                None => return Ok(self.sign_of_life()),
                Some(None) => *place = SlotTarget::Unwanted,
                Some(Some(window)) => {
                    let bytes = header.payload_bytes();
                    let to = part(window, to, bytes)?;
                    let source = source.clone();
                    self.payload_posted = true;
                    self.open.writes += 1;
                    self.room -= 1;
                    return Ok(Some(Post::Payload { source, to }));
                }
            }
        }
        let Some(Outgoing { content, payload }) = self.waiting.pop_front() else {
            return Ok(None);
        };
        self.payload_posted = false;
        Ok(Some(self.slot(content, payload.map(|(ticket, _)| ticket))))
    }

    /// Brings a heartbeat past what waits for its window, which may take as long as a late rank: its sender lives.
    fn sign_of_life(&mut self) -> Option<Post<S, H>> {
        let at = self.waiting.iter().position(|one| match &one.content {
            Content::Frame { header, .. } => header.may_overtake(),
            Content::Window { .. } => false,
        })?;
        let heartbeat = self.waiting.remove(at)?;
        Some(self.slot(heartbeat.content, None))
    }

    fn slot(&mut self, content: Content<H>, ticket: Option<u64>) -> Post<S, H> {
        let number = self.written;
        self.written += 1;
        self.open.tickets.extend(ticket);
        let id = self.count_write(ticket.is_some() || self.is_flushed());
        Post::Slot {
            number,
            content,
            id,
        }
    }

    /// Counts a write that ends a message. It says when it has completed if somebody waits for that, or if no
    /// other has for a while: only then is there room again.
    fn count_write(&mut self, awaited: bool) -> Option<u64> {
        self.room -= 1;
        self.open.writes += 1;
        let long = self.open.writes >= self.limits.sends.div_ceil(4);
        (awaited || long).then(|| {
            let id = self.open.id;
            let next = Batch {
                id: id + 1,
                ..Batch::default()
            };
            self.under_way
                .push_back(std::mem::replace(&mut self.open, next));
            id
        })
    }

    /// A write has completed. The tickets of payloads that have left go into `left`.
    pub(super) fn completed(&mut self, id: u64, left: &mut Vec<u64>) -> Result<(), FlowViolation> {
        match self.under_way.pop_front() {
            Some(batch) if batch.id == id => {
                self.room += batch.writes;
                left.extend(batch.tickets);
                Ok(())
            }
            Some(_) | None => Err(FlowViolation::Completion(id)),
        }
    }

    /// Gives up all that was queued or is under way: the tickets of payloads go into `left`.
    pub(super) fn abandon(&mut self, left: &mut Vec<u64>) {
        let under_way = std::mem::take(&mut self.under_way);
        let open = std::mem::take(&mut self.open);
        left.extend(under_way.into_iter().flat_map(|batch| batch.tickets));
        left.extend(open.tickets);
        self.announcements.clear();
        left.extend(
            self.waiting
                .drain(..)
                .filter_map(|out| Some(out.payload?.0)),
        );
        self.payload_posted = false;
    }

    /// A number came from the peer. A receive request was used for it, and another must be posted before what is
    /// posted next.
    pub(super) fn arrived(&mut self, number: u32) -> Result<Arrival, FlowViolation> {
        match Signal::decode(number, self.taken, self.read) {
            Signal::Slot(came) if came == self.taken => {
                self.taken += 1;
                Ok(Arrival::Slot(came))
            }
            Signal::Slot(came) => Err(FlowViolation::Order {
                came,
                next: self.taken,
            }),
            Signal::Credit(read) if read <= self.written => {
                self.read = read;
                Ok(Arrival::Credit)
            }
            Signal::Credit(read) => Err(FlowViolation::Credit {
                read,
                written: self.written,
            }),
        }
    }

    /// Takes in the content of a slot that has arrived.
    pub(super) fn open(&mut self, content: Content<H>) -> Result<Opened<H>, FlowViolation> {
        match content {
            Content::Frame { header, place } => {
                if let SlotTarget::At(to) = place {
                    let bytes = header.payload_bytes();
                    let length = self.announced.get(&to.window);
                    let fits = to
                        .offset
                        .checked_add(bytes.into())
                        .zip(length)
                        .is_some_and(|(end, length)| end <= *length);
                    if !fits {
                        return Err(FlowViolation::Window { to, bytes });
                    }
                }
                Ok(Opened::Frame { header, place })
            }
            Content::Window { window, remote } => {
                self.windows.insert(window, remote);
                if self.windows.len() > RDMA_WINDOWS {
                    return Err(FlowViolation::Windows);
                }
                Ok(Opened::Window)
            }
        }
    }
}

/// The part of a window that a payload goes to.
fn part(window: &Remote, to: Destination, bytes: u32) -> Result<Remote, FlowViolation> {
    let end = to.offset.checked_add(bytes.into());
    let address = window.address.checked_add(to.offset);
    match (end, address) {
        (Some(end), Some(address)) if end <= window.bytes => Ok(Remote {
            address,
            bytes: bytes.into(),
            key: window.key,
        }),
        _ => Err(FlowViolation::Window { to, bytes }),
    }
}

#[cfg(test)]
mod tests;
