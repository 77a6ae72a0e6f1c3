//! A TCP link to a neighbour: a queue of frames to send and the frame that is being received. Owns order
//! and partial reads and writes. What frames mean is the machine's business, where payload lies the
//! memory's. A link never blocks; the engine polls it.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use collective::machine::{Fence, Frame, Placement, Region, Ticket};
use wire::frame::{self, HEADER_BYTES, Header};

use crate::codec::{self, Unknown};
use crate::memory::{Memory, OutOfBounds};

/// Frames that may wait: each operation in flight sends less than this per neighbour at once, because
/// payload is bounded by slots. A machine that queues more has a bug.
const QUEUE_LIMIT: usize = 4096;
/// Payload that nobody wants is read in pieces of this size.
const DISCARD_BYTES: usize = 64 << 10;

/// Why a link is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The other side closed it, or is gone.
    #[error("the connection was closed")]
    Closed,
    /// It broke.
    #[error("the connection failed: {0}")]
    Failed(#[source] io::Error),
    /// What came is no frame.
    #[error(transparent)]
    Frame(#[from] frame::Error),
    /// What came is a frame of another version.
    #[error(transparent)]
    Unknown(#[from] Unknown),
    /// The machine named memory that is not there.
    #[error(transparent)]
    Memory(#[from] OutOfBounds),
    /// The machine sends without end.
    #[error("{0} frames wait to be sent, at most {QUEUE_LIMIT} can")]
    Queue(usize),
}

#[derive(Debug)]
struct Outgoing {
    header: [u8; HEADER_BYTES],
    payload: Option<(Ticket, Region)>,
    sent: usize,
}

#[derive(Debug)]
enum Incoming {
    Header {
        bytes: [u8; HEADER_BYTES],
        filled: usize,
    },
    Payload {
        fence: Fence,
        frame: Frame,
        region: Region,
        filled: u64,
    },
    Discard {
        fence: Fence,
        frame: Frame,
        left: u64,
    },
}

impl Incoming {
    const START: Self = Self::Header {
        bytes: [0; HEADER_BYTES],
        filled: 0,
    };
}

/// What one read brought.
#[derive(Debug)]
pub enum Received {
    /// A whole frame, its payload in place.
    Frame(Fence, Frame),
    /// Part of one: read on.
    Part,
    /// Nothing more for now.
    Nothing,
}

/// The link to one neighbour.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    queue: VecDeque<Outgoing>,
    incoming: Incoming,
    scratch: Vec<u8>,
    abandoned: bool,
    /// Whether the kernel took less than was offered: poll for room.
    pub blocked: bool,
    /// Bytes sent and received, headers included.
    pub traffic: (u64, u64),
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Link {
    /// A link over an authenticated connection.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            queue: VecDeque::new(),
            incoming: Incoming::START,
            scratch: Vec::new(),
            abandoned: false,
            blocked: false,
            traffic: (0, 0),
        })
    }

    /// Queues a frame.
    pub fn push(
        &mut self,
        fence: Fence,
        frame: &Frame,
        payload: Option<(Ticket, Region)>,
    ) -> Result<(), Error> {
        if self.queue.len() >= QUEUE_LIMIT {
            return Err(Error::Queue(self.queue.len()));
        }
        self.queue.push_back(Outgoing {
            header: codec::frame_to_wire(fence, frame).encode(),
            payload,
            sent: 0,
        });
        Ok(())
    }

    /// Whether everything that was queued has been handed to the kernel.
    pub fn is_flushed(&self) -> bool {
        self.queue.is_empty()
    }

    /// Sends what the kernel takes. The tickets of payloads that have left go into `left`.
    pub fn flush(&mut self, memory: &Memory, left: &mut Vec<Ticket>) -> Result<(), Error> {
        self.blocked = false;
        while let Some(frame) = self.queue.front_mut() {
            let payload = match &frame.payload {
                Some((_, region)) => memory.read(region)?,
                None => &[],
            };
            let total = HEADER_BYTES + payload.len();
            let header = frame.header.get(frame.sent..).unwrap_or_default();
            let rest = &payload[frame.sent.saturating_sub(HEADER_BYTES)..];
            match self
                .stream
                .write_vectored(&[IoSlice::new(header), IoSlice::new(rest)])
            {
                Ok(0) => return Err(Error::Closed),
                Ok(bytes) => {
                    self.traffic.0 += bytes as u64;
                    frame.sent += bytes;
                    if frame.sent == total {
                        left.extend(frame.payload.map(|(ticket, _)| ticket));
                        self.queue.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.blocked = true;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(gone(error)),
            }
        }
        Ok(())
    }

    /// Whether frames may be pushed.
    pub fn can_send(&self) -> bool {
        !self.abandoned
    }

    /// Sends nothing more. Gives up what is queued; the tickets of its payloads go into `left`. What has come
    /// so far can still be received, and then the link is closed, whatever the other side does.
    pub fn abandon(&mut self, left: &mut Vec<Ticket>) {
        self.abandoned = true;
        left.extend(
            self.queue
                .drain(..)
                .filter_map(|frame| Some(frame.payload?.0)),
        );
        // What lies in the kernel is read even so, and more is not taken.
        self.stream.shutdown(std::net::Shutdown::Both).ok();
    }

    /// Reads once. `place` says where the payload of a frame goes.
    pub fn receive(
        &mut self,
        memory: &mut Memory,
        place: impl FnOnce(Fence, &Frame) -> Placement,
    ) -> Result<Received, Error> {
        let Self {
            stream,
            incoming,
            scratch,
            traffic,
            ..
        } = self;
        let mut take = |into: &mut [u8]| -> Result<Option<usize>, Error> {
            match stream.read(into) {
                Ok(0) => Err(Error::Closed),
                Ok(bytes) => {
                    traffic.1 += bytes as u64;
                    Ok(Some(bytes))
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) =>
                {
                    Ok(None)
                }
                Err(error) => Err(gone(error)),
            }
        };
        let (fence, frame, left) = match incoming {
            Incoming::Header { bytes, filled } => {
                let Some(read) = take(&mut bytes[*filled..])? else {
                    return Ok(Received::Nothing);
                };
                *filled += read;
                if *filled < HEADER_BYTES {
                    return Ok(Received::Part);
                }
                let (fence, frame) = codec::frame_from_wire(&Header::parse(bytes)?)?;
                let payload = payload_bytes(&frame);
                if payload == 0 {
                    *incoming = Incoming::START;
                    return Ok(Received::Frame(fence, frame));
                }
                *incoming = match place(fence, &frame) {
                    Placement::Into(region) => Incoming::Payload {
                        fence,
                        frame,
                        region,
                        filled: 0,
                    },
                    Placement::Discard => Incoming::Discard {
                        fence,
                        frame,
                        left: payload,
                    },
                };
                return Ok(Received::Part);
            }
            Incoming::Payload {
                fence,
                frame,
                region,
                filled,
            } => {
                let rest = Region {
                    offset: region.offset + *filled,
                    bytes: region.bytes - *filled,
                    ..*region
                };
                let Some(read) = memory.write(&rest, |bytes, _| take(bytes))?? else {
                    return Ok(Received::Nothing);
                };
                *filled += read as u64;
                (*fence, *frame, region.bytes - *filled)
            }
            Incoming::Discard { fence, frame, left } => {
                scratch.resize(DISCARD_BYTES, 0);
                let most = DISCARD_BYTES.min(*left as usize);
                let Some(read) = take(&mut scratch[..most])? else {
                    return Ok(Received::Nothing);
                };
                *left -= read as u64;
                (*fence, *frame, *left)
            }
        };
        if left > 0 {
            return Ok(Received::Part);
        }
        *incoming = Incoming::START;
        Ok(Received::Frame(fence, frame))
    }
}

/// Payload that follows a frame.
fn payload_bytes(frame: &Frame) -> u64 {
    match frame {
        Frame::Up { bytes, .. } | Frame::Down { bytes, .. } => u64::from(*bytes),
        Frame::Refuse { .. }
        | Frame::Fail { .. }
        | Frame::Credit { .. }
        | Frame::Awaiting { .. }
        | Frame::Abort { .. }
        | Frame::Mark { .. }
        | Frame::Heartbeat
        | Frame::Bye { .. } => 0,
    }
}

/// A peer that died looks like one of these, depending on what was under way.
fn gone(error: io::Error) -> Error {
    let by_the_peer = matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted
    );
    if by_the_peer {
        Error::Closed
    } else {
        Error::Failed(error)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn an_abandoned_link_gives_what_has_come_and_ends_although_the_other_side_is_open() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        let fence = Fence {
            attempt: 1,
            epoch: 1,
        };
        let bye = Frame::Bye { ended: 3 };
        let bytes = codec::frame_to_wire(fence, &bye).encode();
        theirs.write_all(&bytes).unwrap();
        while ours.peek(&mut [0; HEADER_BYTES]).unwrap() < HEADER_BYTES {}
        let mut link = Link::new(ours).unwrap();
        link.abandon(&mut Vec::new());
        assert!(!link.can_send() && link.is_flushed());
        let mut memory = Memory::new(&[], &[], 1, 512, 0).unwrap();
        let mut receive = || link.receive(&mut memory, |_, _| Placement::Discard);
        let said = receive().unwrap();
        assert!(matches!(said, Received::Frame(_, frame) if frame == bye));
        assert!(matches!(receive(), Err(Error::Closed)));
    }
}
