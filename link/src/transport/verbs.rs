//! Frames over RDMA: payload is written from where it lies into the receiver's memory, and read there. What happens to it
//! there is the protocol's business: it is copied once, by this thread or another, or read where the device has put it. No
//! processor moves what is sent.
//!
//! The connection over which the two sides have found each other stays open beside: the kernel ends it at once when
//! a side dies, while a device that gets no answer tries for as long as the path says.

mod adapter;
mod landings;
mod opening;
mod staging;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;

use super::{Error, Outgoing, PayloadTarget, Placing, Received, Transport};
use crate::block::Reading;
use crate::header::{Header, PayloadUse};
use crate::verbs::channel::{self, ChannelEvent, Destination, Payload, RdmaChannel};
use crate::verbs::{CompletionQueue, FinishedWork, RegionSource};
pub use adapter::{Adapter, AdapterChoice, Trouble};
use landings::{Landings, window};
pub use opening::{INVITATION_BYTES, Opening, Shape};
use staging::Staging;

/// What is under way, by its token: the link owns the bytes until they have left.
type InFlight = BTreeMap<u64, Underway>;

#[derive(Debug)]
struct Underway {
    _bytes: Reading,
    window: u64,
    staged: Option<usize>,
}

/// A link over RDMA.
#[derive(Debug)]
pub struct Verbs<H> {
    /// First, so that it is given up before the memory that it uses.
    channel: RdmaChannel<H>,
    queue: Arc<CompletionQueue>,
    landings: Landings,
    staging: Staging,
    adapter: Arc<Adapter>,
    /// Of the windows that the other side announces.
    parity: u64,
    control: TcpStream,
    /// Readable when the queue is, or the connection beside.
    poll: OwnedFd,
    /// Frames that the channel was not given yet.
    waiting: VecDeque<(H, Option<Outgoing>)>,
    in_flight: InFlight,
    /// Not looked at yet.
    completions: VecDeque<FinishedWork>,
    /// Payloads that were given to the channel.
    sent: u64,
    /// Tokens of payload that has left.
    left: Vec<u64>,
    /// Whether the next completion makes the queue's descriptor readable.
    armed: bool,
    closed: bool,
    abandoned: bool,
}

impl<H: Header> Verbs<H> {
    /// Takes what has completed. Says whether there was anything.
    fn poll(&mut self) -> Result<bool, Error> {
        let mut completions = Vec::new();
        let polled = self.queue.poll(&mut completions);
        polled.map_err(channel::Error::from)?;
        let any = !completions.is_empty();
        self.armed &= !any;
        self.completions.extend(completions);
        Ok(any)
    }

    /// Checks whether the other side lives. It says nothing over this connection.
    fn check_alive(&mut self) -> Result<(), Error> {
        if self.closed {
            return Ok(());
        }
        match self.control.read(&mut [0]) {
            Ok(1..) => return Err(Error::Payload("words beside a link over RDMA")),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Ok(());
            }
            Ok(0) | Err(_) => {}
        }
        // It would be readable from here on.
        epoll::delete(&self.poll, &self.control).ok();
        self.closed = true;
        Ok(())
    }

    /// Gives the channel what it can send.
    fn feed(&mut self) -> Result<(), Error> {
        while let Some((header, payload)) = self.waiting.pop_front() {
            let Some(payload) = payload else {
                self.channel.push(header, None)?;
                continue;
            };
            let Some((source, staged)) = self.source(&payload)? else {
                self.waiting.push_front((header, Some(payload)));
                return Ok(());
            };
            let window = window(self.sent, self.parity);
            self.sent += 1;
            let ticket = payload.token;
            let underway = Underway {
                _bytes: payload.bytes,
                window,
                staged,
            };
            self.in_flight.insert(ticket, underway);
            let destination = Destination { window, offset: 0 };
            let payload = Payload {
                ticket,
                source,
                destination,
            };
            self.channel.push(header, Some(payload))?;
        }
        Ok(())
    }

    /// What is sent of a payload: its own bytes where they are registered, else a copy, if there is room for one.
    fn source(
        &mut self,
        payload: &Outgoing,
    ) -> Result<Option<(RegionSource, Option<usize>)>, Error> {
        let bytes = payload.bytes.len();
        let (block, start) = payload.bytes.place();
        let source = self.adapter.source(block, start, bytes as u32);
        if let Some(source) = source.map_err(channel::Error::from)? {
            return Ok(Some((source, None)));
        }
        let copied = self.staging.copy(&payload.bytes)?;
        Ok(copied.map(|(place, source)| (source, Some(place))))
    }

    fn release_sent(&mut self, tickets: Vec<u64>) {
        for ticket in tickets {
            if let Some(underway) = self.in_flight.remove(&ticket) {
                self.channel.forget(underway.window);
                if let Some(place) = underway.staged {
                    self.staging.free(place);
                }
                self.left.push(ticket);
            }
        }
    }

    /// A frame whose payload lies in a landing.
    fn landed(
        &mut self,
        header: H,
        to: Destination,
        place: &mut Placing<'_, H>,
    ) -> Result<Received<H>, Error> {
        let channel = &mut self.channel;
        let arrived = self.landings.arrived(to, header.payload_bytes(), channel)?;
        match header.payload_use() {
            PayloadUse::CopiedByLink => {}
            PayloadUse::CopiedByReceiver => {
                let payload = self.landings.take_to_copy(arrived);
                return Ok(Received::Frame(header, Some(payload)));
            }
            PayloadUse::ReadInPlace => {
                let payload = self.landings.take_to_read(arrived, channel);
                return Ok(Received::Frame(header, Some(payload)));
            }
        }
        match place(&header).map_err(Error::Unplaced)? {
            PayloadTarget::Into(mut into) if into.len() == arrived.reading.len() => {
                into.copy_from_slice(&arrived.reading);
            }
            PayloadTarget::Into(_) => return Err(Error::Payload("more or less than its place")),
            PayloadTarget::Discard => {}
        }
        self.landings.free(arrived, channel)?;
        Ok(Received::Frame(header, None))
    }
}

impl<H: Header> Transport<H> for Verbs<H> {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn push(&mut self, header: &H, payload: Option<Outgoing>) -> Result<(), Error> {
        if self.waiting.len() >= H::MAX_QUEUED {
            return Err(Error::Queue(self.waiting.len()));
        }
        self.waiting.push_back((*header, payload));
        Ok(())
    }

    fn flush(&mut self, left: &mut Vec<u64>) -> Result<(), Error> {
        left.append(&mut self.left);
        if self.abandoned {
            return Ok(());
        }
        if self.closed && !self.is_flushed() {
            return Err(Error::Closed);
        }
        self.landings.reclaim(&mut self.channel)?;
        self.feed()?;
        Ok(self.channel.flush()?)
    }

    fn queued(&self) -> usize {
        self.waiting.len()
    }

    fn is_flushed(&self) -> bool {
        self.waiting.is_empty() && self.channel.is_idle()
    }

    fn receive(&mut self, place: &mut Placing<'_, H>) -> Result<Received<H>, Error> {
        loop {
            let Some(completion) = self.completions.pop_front() else {
                if self.poll()? {
                    continue;
                }
                return if self.closed || self.abandoned {
                    Err(Error::Closed)
                } else {
                    Ok(Received::Nothing)
                };
            };
            let mut tickets = Vec::new();
            let event = self.channel.complete(&completion, &mut tickets)?;
            self.release_sent(tickets);
            match event {
                ChannelEvent::Nothing => {}
                ChannelEvent::Frame { header, place: to } => match to {
                    channel::SlotTarget::None => return Ok(Received::Frame(header, None)),
                    channel::SlotTarget::At(to) => return self.landed(header, to, place),
                    channel::SlotTarget::Unwanted => {
                        return Err(Error::Payload("bytes that were kept back"));
                    }
                },
            }
        }
    }

    fn can_send(&self) -> bool {
        !self.abandoned
    }

    fn abandon(&mut self, left: &mut Vec<u64>) {
        self.abandoned = true;
        left.append(&mut self.left);
        let queued = self.waiting.drain(..).filter_map(|(_, payload)| payload);
        left.extend(queued.map(|payload| payload.token));
        // Of what is under way the channel and this side keep the same account.
        self.channel.abandon(&mut Vec::new());
        left.extend(std::mem::take(&mut self.in_flight).into_keys());
        self.control.shutdown(Shutdown::Both).ok();
    }

    fn take_traffic(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.channel.traffic)
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }

    fn wake(&mut self) -> Result<(), Error> {
        self.queue.quiet();
        self.armed = false;
        self.check_alive()
    }

    fn is_polled(&self) -> bool {
        true
    }

    fn receives_in_place(&self) -> bool {
        true
    }

    fn poll_received(&mut self) -> bool {
        // A device that fails is found out when it is read.
        self.poll().is_err() || !self.completions.is_empty()
    }

    fn sleep(&mut self) -> Result<bool, Error> {
        if !self.armed {
            self.queue.arm().map_err(channel::Error::from)?;
            self.armed = true;
            self.poll()?;
        }
        Ok(self.completions.is_empty())
    }
}
