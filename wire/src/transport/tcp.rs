//! Frames over TCP: header and payload in one stream. Owns order and partial reads and writes, and how a data
//! connection is set up. Buffer sizes are left to the kernel: setting them turns its tuning off, which costs a
//! fifth of the rate.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::sockopt::{set_ip_tos, set_ipv6_tclass, set_tcp_congestion};

use super::{Error, Outgoing, Place, Placing, QUEUE_LIMIT, Received, Transport, gone};
use crate::block::Writing;
use crate::frame::{HEADER_BYTES, Header};

/// Payload that nobody wants is read in pieces of this size.
const DISCARD_BYTES: usize = 64 << 10;
/// Congestion controls that neither pace nor probe, in order of preference. BBR, a usual default, reaches
/// 6.9 GB/s where cubic reaches 11.6 (loopback, measured).
const CONGESTION: [&str; 2] = ["cubic", "reno"];

/// Sets what every data connection needs; packets get the traffic class, of which the upper six bits are the DSCP.
/// False: neither cubic nor reno may be used; the kernel's default stays.
pub fn tune(stream: &TcpStream, traffic_class: u8) -> io::Result<bool> {
    stream.set_nodelay(true)?;
    if traffic_class != 0 {
        match stream.local_addr()? {
            SocketAddr::V4(_) => set_ip_tos(stream, traffic_class)?,
            SocketAddr::V6(_) => set_ipv6_tclass(stream, traffic_class.into())?,
        }
    }
    let set = |name: &&str| set_tcp_congestion(stream, name).is_ok();
    Ok(CONGESTION.iter().any(set))
}

#[derive(Debug)]
struct Queued {
    header: [u8; HEADER_BYTES],
    payload: Option<Outgoing>,
    sent: usize,
}

#[derive(Debug)]
enum Incoming {
    Header {
        bytes: [u8; HEADER_BYTES],
        filled: usize,
    },
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

impl Incoming {
    const START: Self = Self::Header {
        bytes: [0; HEADER_BYTES],
        filled: 0,
    };
}

/// A link over an authenticated connection.
#[derive(Debug)]
pub struct Tcp {
    stream: TcpStream,
    queue: VecDeque<Queued>,
    incoming: Incoming,
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
            incoming: Incoming::START,
            scratch: Vec::new(),
            abandoned: false,
            blocked: false,
            traffic: (0, 0),
        })
    }

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
        while let Some(frame) = self.queue.front_mut() {
            let payload: &[u8] = frame.payload.as_ref().map_or(&[], |payload| &payload.bytes);
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
        let Self {
            stream,
            incoming,
            scratch,
            traffic,
            ..
        } = self;
        let count = &mut traffic.1;
        let (header, left) = match incoming {
            Incoming::Header { bytes, filled } => {
                let read = Self::read(stream, count, &mut bytes[*filled..])?;
                *filled += read;
                if read == 0 {
                    return Ok(Received::Nothing);
                }
                if *filled < HEADER_BYTES {
                    return Ok(Received::Part);
                }
                let header = Header::parse(bytes)?;
                if header.payload == 0 {
                    *incoming = Incoming::START;
                    return Ok(Received::Frame(header, None));
                }
                let bytes = header.payload as usize;
                *incoming = match place(&header).map_err(Error::Unplaced)? {
                    Place::Into(into) if into.len() == bytes => Incoming::Payload {
                        header,
                        into,
                        filled: 0,
                    },
                    Place::Into(_) => return Err(Error::Payload("more or less than its place")),
                    Place::Discard => Incoming::Discard {
                        header,
                        left: bytes,
                    },
                };
                return Ok(Received::Part);
            }
            Incoming::Payload {
                header,
                into,
                filled,
            } => {
                let read = Self::read(stream, count, &mut into[*filled..])?;
                if read == 0 {
                    return Ok(Received::Nothing);
                }
                *filled += read;
                (*header, into.len() - *filled)
            }
            Incoming::Discard { header, left } => {
                scratch.resize(DISCARD_BYTES, 0);
                let most = DISCARD_BYTES.min(*left);
                let read = Self::read(stream, count, &mut scratch[..most])?;
                if read == 0 {
                    return Ok(Received::Nothing);
                }
                *left -= read;
                (*header, *left)
            }
        };
        if left > 0 {
            return Ok(Received::Part);
        }
        *incoming = Incoming::START;
        Ok(Received::Frame(header, None))
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
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};

    use rustix::net::sockopt::{ip_tos, ipv6_tclass};

    use super::*;
    use crate::frame::Body;

    #[test]
    fn packets_get_the_traffic_class_on_both_kinds_of_addresses() {
        for address in [
            IpAddr::from(Ipv4Addr::LOCALHOST),
            Ipv6Addr::LOCALHOST.into(),
        ] {
            let Ok(listener) = TcpListener::bind((address, 0)) else {
                assert!(address.is_ipv6(), "a machine without IPv4");
                continue;
            };
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            tune(&stream, 0x20).unwrap();
            let class = match address {
                IpAddr::V4(_) => ip_tos(&stream).unwrap().into(),
                IpAddr::V6(_) => ipv6_tclass(&stream).unwrap(),
            };
            assert_eq!(class, 0x20);
        }
    }

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
}
