//! How two ends become a link: each makes its own and invites the other, connects, and shows that what it writes
//! arrives. Only then is the link taken into use: devices that do not reach each other are noticed here.

use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::epoll;

use super::adapter::Adapter;
use super::landings::Landings;
use super::staging::Staging;
use super::{Error, Verbs};
use crate::header::Header;
use crate::verbs::CompletionQueue;
use crate::verbs::channel::{self, ChannelEvent, ChannelOptions, Invitation, RdmaChannel};

/// How large the frames of a link are: the same on both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Largest payload.
    pub payload_bytes: u32,
    /// Payloads that may be under way to an end, or be read there.
    pub places: usize,
}

/// Bytes of an invitation.
pub const INVITATION_BYTES: usize = Invitation::BYTES;

/// An end that is not in use yet.
#[derive(Debug)]
pub struct Opening<H> {
    channel: RdmaChannel<H>,
    queue: Arc<CompletionQueue>,
    landings: Landings,
    staging: Staging,
    adapter: Arc<Adapter>,
    is_first: bool,
}

impl<H: Header> Opening<H> {
    /// Makes an end and registers its memory. One of the two is the first.
    pub fn new(adapter: &Arc<Adapter>, shape: Shape, is_first: bool) -> Result<Self, Error> {
        let options = ChannelOptions::default();
        let queue = CompletionQueue::new(&adapter.context, options.completions())
            .map_err(channel::Error::from)?;
        let Adapter {
            domain, port, gid, ..
        } = &**adapter;
        let mut channel = RdmaChannel::new(domain, &queue, port, gid, options)?;
        let bytes = shape.payload_bytes as usize;
        let landings = Landings::new(adapter, bytes, shape.places, is_first.into(), &mut channel)?;
        let staging = Staging::new(adapter, bytes)?;
        let adapter = Arc::clone(adapter);
        Ok(Self {
            channel,
            queue,
            landings,
            staging,
            adapter,
            is_first,
        })
    }

    /// What the other end has to know.
    pub fn invitation(&self) -> Result<[u8; INVITATION_BYTES], Error> {
        Ok(self.channel.invitation()?.encode())
    }

    /// Connects to the end that has invited. When both have, both may [`Opening::look`].
    pub fn connect(&mut self, invitation: &[u8; INVITATION_BYTES]) -> Result<(), Error> {
        let invitation = Invitation::parse(invitation).map_err(channel::Error::from)?;
        Ok(self.channel.connect(&invitation, self.adapter.path)?)
    }

    /// Looks whether what this end has written has arrived, and something of the other. Call again when the
    /// descriptor is readable. When both ends have seen it, both may [`Opening::finish`].
    pub fn look(&mut self) -> Result<bool, Error> {
        let mut completions = Vec::new();
        self.queue.arm().map_err(channel::Error::from)?;
        self.channel.flush()?;
        self.queue
            .poll(&mut completions)
            .map_err(channel::Error::from)?;
        for completion in completions {
            match self.channel.complete(&completion, &mut Vec::new())? {
                ChannelEvent::Nothing => {}
                ChannelEvent::Frame { .. } => {
                    return Err(Error::Payload("a link that is not in use"));
                }
            }
        }
        self.channel.flush()?;
        Ok(self.channel.is_idle() && self.channel.windows() > 0)
    }

    /// The link. `control` is the connection over which the two have agreed: it ends when a side dies.
    pub fn finish(self, control: TcpStream) -> Result<Verbs<H>, Error> {
        let failed = |errno: rustix::io::Errno| Error::Failed(errno.into());
        control.set_nonblocking(true).map_err(Error::Failed)?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let data = epoll::EventData::new_u64(0);
        for source in [control.as_fd(), self.queue.as_fd()] {
            epoll::add(&poll, source, data, epoll::EventFlags::IN).map_err(failed)?;
        }
        Ok(Verbs {
            channel: self.channel,
            queue: self.queue,
            landings: self.landings,
            staging: self.staging,
            adapter: self.adapter,
            parity: (!self.is_first).into(),
            control,
            poll,
            waiting: VecDeque::new(),
            in_flight: super::InFlight::default(),
            completions: VecDeque::new(),
            sent: 0,
            left: Vec::new(),
            armed: false,
            closed: false,
            abandoned: false,
        })
    }
}

impl<H> AsFd for Opening<H> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}
