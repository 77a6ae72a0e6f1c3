//! Frames over TCP: header and payload in one stream. Owns order and partial reads and writes, and how a data
//! connection is set up. Buffer sizes are left to the kernel: setting them turns its tuning off, which costs a
//! fifth of the rate.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use super::{Error, Outgoing, Place, Placing, QUEUE_LIMIT, Received, Transport, gone};
use crate::block::Writing;
use crate::frame::{HEADER_BYTES, Header};

/// Payload that nobody wants is read in pieces of this size.
const DISCARD_BYTES: usize = 64 << 10;
/// Frames that leave in one call of the kernel.
const FRAMES_AT_ONCE: usize = 8;
/// What is read ahead where a header is expected: small frames come whole and several at once, and of a large
/// one next to nothing is copied twice.
const AHEAD_BYTES: usize = 8 << 10;
/// Congestion controls that neither pace nor probe, in order of preference. BBR, a usual default, reaches
/// 6.9 GB/s where cubic reaches 11.6 (loopback, measured).
const CONGESTION: [&str; 2] = ["cubic", "reno"];

/// Sets what every data connection needs. False: neither cubic nor reno may be used; the kernel's default stays.
pub fn tune(stream: &TcpStream) -> io::Result<bool> {
    stream.set_nodelay(true)?;
    let set = |name: &&str| rustix::net::sockopt::set_tcp_congestion(stream, name).is_ok();
    Ok(CONGESTION.iter().any(set))
}

#[derive(Debug)]
struct Queued {
    header: [u8; HEADER_BYTES],
    payload: Option<Outgoing>,
    sent: usize,
}

impl Queued {
    fn payload(&self) -> &[u8] {
        self.payload.as_ref().map_or(&[], |payload| &payload.bytes)
    }

    /// What is still to be sent.
    fn rest(&self) -> [IoSlice<'_>; 2] {
        let header = self.header.get(self.sent..).unwrap_or_default();
        let payload = self.payload();
        let payload = &payload[self.sent.saturating_sub(HEADER_BYTES)..];
        [IoSlice::new(header), IoSlice::new(payload)]
    }

    fn left(&self) -> usize {
        HEADER_BYTES + self.payload().len() - self.sent
    }
}

#[derive(Debug)]
enum Incoming {
    Header,
    Payload {
        header: Header,
        into: Writing,
        filled: usize,
    },
    Discard {
        header: Header,
        left: usize,
    },
}

/// Bytes that were read before it was known where they belong.
#[derive(Debug)]
struct Ahead {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
    /// Whether the socket had no more when it was read last.
    is_all: bool,
}

impl Ahead {
    fn new() -> Self {
        Self {
            bytes: vec![0; AHEAD_BYTES].into(),
            start: 0,
            end: 0,
            is_all: false,
        }
    }

    fn len(&self) -> usize {
        self.end - self.start
    }

    /// The first bytes, at most so many: they are used.
    fn take(&mut self, most: usize) -> &[u8] {
        let start = self.start;
        self.start += most.min(self.len());
        &self.bytes[start..self.start]
    }

    /// Reads on behind what is left.
    fn fill(&mut self, stream: &mut TcpStream, count: &mut u64) -> Result<(), Error> {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.len());
        let space = self.bytes.len() - self.end;
        let read = read(stream, count, &mut self.bytes[self.end..])?;
        self.end += read;
        self.is_all = read < space;
        Ok(())
    }
}

/// A link over an authenticated connection.
#[derive(Debug)]
pub struct Tcp {
    stream: TcpStream,
    queue: VecDeque<Queued>,
    incoming: Incoming,
    ahead: Ahead,
    scratch: Vec<u8>,
    abandoned: bool,
    blocked: bool,
    traffic: (u64, u64),
}

impl Tcp {
    /// A link over an authenticated connection.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            queue: VecDeque::new(),
            incoming: Incoming::Header,
            ahead: Ahead::new(),
            scratch: Vec::new(),
            abandoned: false,
            blocked: false,
            traffic: (0, 0),
        })
    }

    /// What was read of a payload already goes to its place.
    fn begin(&mut self, header: Header, place: &mut Placing<'_>) -> Result<Incoming, Error> {
        let bytes = header.payload as usize;
        let ahead = self.ahead.take(bytes);
        Ok(match place(&header).map_err(Error::Unplaced)? {
            Place::Into(mut into) if into.len() == bytes => {
                into[..ahead.len()].copy_from_slice(ahead);
                let filled = ahead.len();
                Incoming::Payload {
                    header,
                    into,
                    filled,
                }
            }
            Place::Into(_) => return Err(Error::Payload("more or less than its place")),
            Place::Discard => {
                let left = bytes - ahead.len();
                Incoming::Discard { header, left }
            }
        })
    }

    /// The frame, if its payload is complete.
    fn finish(&mut self, header: Header) -> Option<Received> {
        let left = match &self.incoming {
            Incoming::Header => 0,
            Incoming::Payload { into, filled, .. } => into.len() - filled,
            Incoming::Discard { left, .. } => *left,
        };
        (left == 0).then(|| {
            self.incoming = Incoming::Header;
            Received::Frame(header, None)
        })
    }

    /// The next header, once all of it has come.
    fn next_header(&mut self) -> Result<Option<Header>, Error> {
        if self.ahead.len() < HEADER_BYTES {
            // What had nothing more is not asked again at once: the socket tells. One that is abandoned is read
            // to its end.
            if std::mem::take(&mut self.ahead.is_all) && !self.abandoned {
                return Ok(None);
            }
            self.ahead.fill(&mut self.stream, &mut self.traffic.1)?;
        }
        if self.ahead.len() < HEADER_BYTES {
            return Ok(None);
        }
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(self.ahead.take(HEADER_BYTES));
        Ok(Some(Header::parse(&bytes)?))
    }
}

/// Reads once; nothing when there is nothing yet.
fn read(stream: &mut TcpStream, count: &mut u64, into: &mut [u8]) -> Result<usize, Error> {
    match stream.read(into) {
        Ok(0) => Err(Error::Closed),
        Ok(bytes) => {
            *count += bytes as u64;
            Ok(bytes)
        }
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) =>
        {
            Ok(0)
        }
        Err(error) => Err(gone(error)),
    }
}

impl Transport for Tcp {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn push(&mut self, header: &Header, payload: Option<Outgoing>) -> Result<(), Error> {
        if self.queue.len() >= QUEUE_LIMIT {
            return Err(Error::Queue(self.queue.len()));
        }
        self.queue.push_back(Queued {
            header: header.encode(),
            payload,
            sent: 0,
        });
        Ok(())
    }

    fn flush(&mut self, left: &mut Vec<u64>) -> Result<(), Error> {
        self.blocked = false;
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); 2 * FRAMES_AT_ONCE];
            let frames = self.queue.iter().flat_map(Queued::rest);
            let filled = slices.iter_mut().zip(frames);
            let filled = filled.map(|(slice, rest)| *slice = rest).count();
            match self.stream.write_vectored(&slices[..filled]) {
                Ok(0) => return Err(Error::Closed),
                Ok(bytes) => {
                    self.traffic.0 += bytes as u64;
                    let mut bytes = bytes;
                    while let Some(frame) = self.queue.front_mut()
                        && bytes > 0
                    {
                        let sent = bytes.min(frame.left());
                        bytes -= sent;
                        frame.sent += sent;
                        if frame.left() > 0 {
                            break;
                        }
                        left.extend(frame.payload.as_ref().map(|payload| payload.token));
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

    fn is_flushed(&self) -> bool {
        self.queue.is_empty()
    }

    fn receive(&mut self, place: &mut Placing<'_>) -> Result<Received, Error> {
        if let Incoming::Header = self.incoming {
            let Some(header) = self.next_header()? else {
                return Ok(Received::Nothing);
            };
            if header.payload == 0 {
                return Ok(Received::Frame(header, None));
            }
            self.incoming = self.begin(header, place)?;
            return Ok(self.finish(header).unwrap_or(Received::Part));
        }
        let Self {
            stream,
            incoming,
            scratch,
            traffic,
            ..
        } = self;
        let count = &mut traffic.1;
        let (header, read) = match incoming {
            Incoming::Header => return Ok(Received::Part),
            Incoming::Payload {
                header,
                into,
                filled,
            } => {
                let read = read(stream, count, &mut into[*filled..])?;
                *filled += read;
                (*header, read)
            }
            Incoming::Discard { header, left } => {
                scratch.resize(DISCARD_BYTES, 0);
                let most = DISCARD_BYTES.min(*left);
                let read = read(stream, count, &mut scratch[..most])?;
                *left -= read;
                (*header, read)
            }
        };
        if read == 0 {
            return Ok(Received::Nothing);
        }
        Ok(self.finish(header).unwrap_or(Received::Part))
    }

    fn can_send(&self) -> bool {
        !self.abandoned
    }

    fn abandon(&mut self, left: &mut Vec<u64>) {
        self.abandoned = true;
        left.extend(
            self.queue
                .drain(..)
                .filter_map(|frame| Some(frame.payload?.token)),
        );
        // What lies in the kernel is read even so, and more is not taken.
        self.stream.shutdown(std::net::Shutdown::Both).ok();
    }

    fn take_traffic(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.traffic)
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn is_blocked(&self) -> bool {
        self.blocked
    }

    fn has_more(&self) -> bool {
        self.ahead.len() >= HEADER_BYTES
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::block::Block;
    use crate::frame::{Body, Mark};
    use crate::segment::{Segment, Writers};

    #[test]
    fn an_abandoned_link_gives_what_has_come_and_ends_although_the_other_side_is_open() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (ours, _) = listener.accept().unwrap();
        let bye = Header {
            operation: 3,
            ..Header::empty(1, 1, Body::Bye)
        };
        theirs.write_all(&bye.encode()).unwrap();
        while ours.peek(&mut [0; HEADER_BYTES]).unwrap() < HEADER_BYTES {}
        let mut link = Tcp::new(ours).unwrap();
        link.abandon(&mut Vec::new());
        assert!(!link.can_send() && link.is_flushed());
        let mut receive = || link.receive(&mut |_| Ok(Place::Discard));
        let said = receive().unwrap();
        assert!(matches!(said, Received::Frame(header, None) if header == bye));
        assert!(matches!(receive(), Err(Error::Closed)));
    }

    /// Two links to each other.
    fn pair() -> (Tcp, Tcp) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        (Tcp::new(one).unwrap(), Tcp::new(other).unwrap())
    }

    fn down(bytes: usize) -> Header {
        let mark = Mark { done: 0, told: 0 };
        Header {
            payload: bytes as u32,
            ..Header::empty(1, 1, Body::Down { mark })
        }
    }

    #[test]
    fn frames_of_every_size_come_whole_and_in_order_however_they_are_read() {
        let (mut one, mut other) = pair();
        // Around what is read ahead, and beyond what one call of the kernel takes.
        let near = |size: usize| (size - 2)..(size + 2);
        let mut sizes: Vec<usize> = vec![0; 100];
        sizes.extend(
            (1..4)
                .chain(near(AHEAD_BYTES - HEADER_BYTES))
                .chain(near(AHEAD_BYTES)),
        );
        sizes.extend([0, 1 << 20, 5, 0, 3 << 20]);
        let content = |at: usize| (at % 251) as u8;
        for (token, size) in sizes.iter().enumerate() {
            let payload = (*size > 0).then(|| {
                let segment = Segment::create("test", *size, Writers::Creator).unwrap();
                let block = Block::new(segment);
                block.write(0..*size).unwrap().fill(content(token));
                let bytes = block.read(0..*size).unwrap();
                Outgoing {
                    token: token as u64,
                    bytes,
                }
            });
            one.push(&down(*size), payload).unwrap();
        }
        let into = Block::new(Segment::create("test", 3 << 20, Writers::Creator).unwrap());
        let (mut left, mut at) = (Vec::new(), 0);
        while at < sizes.len() {
            one.flush(&mut left).unwrap();
            let mut place = |header: &Header| {
                // Every third is unwanted.
                if at.is_multiple_of(3) {
                    return Ok(Place::Discard);
                }
                Ok(Place::Into(into.write(0..header.payload as usize).unwrap()))
            };
            let received = other.receive(&mut place).unwrap();
            if let Received::Frame(header, None) = received {
                assert_eq!(header, down(sizes[at]));
                if !at.is_multiple_of(3) {
                    let bytes = into.read(0..sizes[at]).unwrap();
                    assert!(bytes.iter().all(|byte| *byte == content(at)), "{at}");
                }
                at += 1;
            }
        }
        let loaded = (0..sizes.len()).filter(|at| sizes[*at] > 0);
        assert_eq!(left, loaded.map(|at| at as u64).collect::<Vec<_>>());
        assert!(!other.has_more());
    }
}
