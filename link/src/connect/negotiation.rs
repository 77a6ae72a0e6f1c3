//! How two sides that are connected and know each other go on: over RDMA, where both have it and reach each other by it,
//! else over the connection itself. Each says over the connection what it can; they try, and both do what came out.

mod rdma;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tracing::{debug, info};

use super::{Side, limit};
use crate::header::Header;
use crate::limits::MESSAGE_TIME;
use crate::transport::verbs::Adapter;
use crate::transport::{self, BoxedLink, Tcp, tcp};
use rdma::{Capability, Rdma};

/// Longest offer: several times what an offer of ours takes.
const OFFER_LIMIT_BYTES: usize = 1 << 10;

/// Whether payload over TCP is followed by a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Where packets leave the machine, unless a peer has turned it off.
    #[default]
    Auto,
    /// Always: a peer that has turned it off is refused.
    On,
    /// Never.
    Off,
}

impl Checksum {
    fn wish(self, stream: &TcpStream) -> io::Result<Wish> {
        Ok(match self {
            Self::Off => Wish::Off,
            Self::On => Wish::Wants,
            // Nothing is damaged between two sockets of one kernel.
            Self::Auto if stream.local_addr()?.ip() == stream.peer_addr()?.ip() => Wish::Can,
            Self::Auto => Wish::Wants,
        })
    }
}

/// What a side says about checksums. They are there if one wants them and none has turned them off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Wish {
    /// Also what a side means that says nothing.
    #[default]
    Off,
    Can,
    Wants,
}

/// How large the payloads of a link are, and how many may be on their way. Over RDMA both sides need the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Largest payload.
    pub payload_bytes: u32,
    /// Payloads of a flow that may be under way to a side, or be read there.
    pub slots: u8,
    /// Flows in each direction that a link carries; a constant of the protocol.
    pub flows: usize,
}

/// Why two sides could not agree.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection failed.
    #[error("failed to agree on a transport")]
    Exchange(#[from] io::Error),
    /// The other side's offer makes no sense.
    #[error("failed to read a peer's offer of transports")]
    Offer(#[from] serde_json::Error),
    /// An offer that is too long.
    #[error("failed to read a peer's offer of transports: it has {0} bytes")]
    Length(usize),
    /// RDMA could not be set up.
    #[error("failed to set up a link with a peer")]
    Transport(#[from] transport::Error),
    /// One side insists on checksums, the other has none.
    #[error("failed to agree on checksums: this node has --checksum on, the peer has it off")]
    Checksum,
}

/// What a side can do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Offer {
    /// What its RDMA device speaks.
    #[serde(default)]
    rdma: Option<Capability>,
    /// Whether it wants checksums of payload over TCP.
    #[serde(default)]
    checksum: Wish,
}

/// What this side can agree on with its peers.
#[derive(Debug)]
pub struct Negotiator {
    rdma: Option<Rdma>,
    /// The traffic class of data packets.
    traffic_class: u8,
    checksum: Checksum,
}

impl Negotiator {
    /// Links over this device where peers have one too, else over TCP.
    pub fn new(rdma: Option<(Arc<Adapter>, Shape)>, traffic_class: u8, checksum: Checksum) -> Self {
        Self {
            rdma: rdma.map(|(adapter, shape)| Rdma { adapter, shape }),
            traffic_class,
            checksum,
        }
    }

    /// Frees memory that the RDMA device keeps and nobody else does.
    pub(super) fn forget_gone(&self) {
        if let Some(rdma) = &self.rdma {
            rdma.adapter.forget_gone();
        }
    }

    /// Sets what every data connection needs.
    pub(super) fn tune(&self, stream: &TcpStream) -> io::Result<()> {
        if !tcp::tune(stream, self.traffic_class)? {
            debug!("neither cubic nor reno may be used; the kernel's default stays");
        }
        Ok(())
    }

    /// Agrees with the peer at the other end of an authenticated connection.
    pub(super) fn agree<H: Header>(
        &self,
        mut stream: TcpStream,
        peer: impl fmt::Display + Copy,
        side: Side,
    ) -> Result<BoxedLink<H>, Error> {
        limit(&stream, Some(MESSAGE_TIME))?;
        let ours = Offer {
            rdma: self.rdma.as_ref().map(Rdma::capability),
            checksum: self.checksum.wish(&stream)?,
        };
        send(&mut stream, &ours)?;
        let theirs = receive(&mut stream)?;
        let opening = match (&self.rdma, theirs.rdma) {
            (Some(rdma), Some(capability)) => rdma.agree(&mut stream, peer, capability, side)?,
            (Some(_), None) => {
                info!(%peer, "no RDMA with this peer: it has none");
                None
            }
            (None, _) => None,
        };
        limit(&stream, None)?;
        if let Some(opening) = opening {
            return Ok(Box::new(opening.finish(stream)?));
        }
        let wishes = [ours.checksum, theirs.checksum];
        let is_off = wishes.contains(&Wish::Off);
        if is_off && self.checksum == Checksum::On {
            return Err(Error::Checksum);
        }
        let has_sums = !is_off && wishes.contains(&Wish::Wants);
        info!(%peer, checksums = has_sums, "TCP with this peer");
        Ok(Box::new(Tcp::new(stream, has_sums)?))
    }
}

fn send(stream: &mut TcpStream, offer: &Offer) -> Result<(), Error> {
    let words = serde_json::to_vec(offer)?;
    let length = u16::try_from(words.len()).map_err(|_| Error::Length(words.len()))?;
    stream.write_all(&[&length.to_le_bytes()[..], &words].concat())?;
    Ok(())
}

fn receive(stream: &mut TcpStream) -> Result<Offer, Error> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let length = usize::from(u16::from_le_bytes(length));
    if length > OFFER_LIMIT_BYTES {
        return Err(Error::Length(length));
    }
    let mut words = vec![0; length];
    stream.read_exact(&mut words)?;
    Ok(serde_json::from_slice(&words)?)
}
