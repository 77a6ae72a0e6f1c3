//! How two neighbours that are connected and know each other go on: over RDMA, where both have it and reach each other
//! by it, else over the connection itself. Each side says over the connection what it can; they try, and both do what
//! came out.

mod rdma;

use std::io::{self, Read, Write};
use std::net::TcpStream;

use link::transport::{self, Tcp, tcp};
use serde::{Deserialize, Serialize};
use tracing::{debug, info, warn};

use crate::frame::Link;
use crate::introduce::{HANDSHAKE_LIMIT, limit};
use crate::member::MemberOptions;
use rdma::Capability;
pub use rdma::RdmaNegotiation;

/// Longest offer: several times what an offer of ours takes.
const OFFER_LIMIT_BYTES: usize = 1 << 10;

/// How neighbours are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Preference {
    /// Over RDMA where both have it, else over TCP.
    #[default]
    Auto,
    /// Over TCP always.
    Tcp,
    /// As `auto`; a node without RDMA warns.
    Verbs,
}

impl Preference {
    pub(crate) const fn uses_rdma(self) -> bool {
        match self {
            Self::Auto | Self::Verbs => true,
            Self::Tcp => false,
        }
    }
}

/// Whether payload over TCP is followed by a checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Checksum {
    /// Where packets leave the machine, unless a neighbour has turned it off.
    #[default]
    Auto,
    /// Always: a neighbour that has turned it off is refused.
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

/// Why two neighbours could not agree.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection failed.
    #[error("failed to agree on a transport")]
    Exchange(#[from] io::Error),
    /// The other side's words make no sense.
    #[error("failed to read a neighbour's offer of transports")]
    Offer(#[from] serde_json::Error),
    /// An offer that is too long.
    #[error("failed to read a neighbour's offer of transports: it has {0} bytes")]
    Length(usize),
    /// RDMA could not be set up.
    #[error("failed to set up a link with a neighbour")]
    Transport(#[from] transport::Error),
    /// One side insists on checksums, the other has none.
    #[error("failed to agree on checksums: this node has --checksum on, the neighbour has it off")]
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

/// Which side this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// It has dialled.
    Dialled,
    /// It was dialled.
    Answered,
}

/// What this node can agree on with its neighbours.
#[derive(Debug)]
pub struct Negotiator {
    /// The device, or why there is none.
    rdma: Result<rdma::Device, String>,
    /// The traffic class of data packets.
    traffic_class: u8,
    checksum: Checksum,
}

impl Negotiator {
    /// Prepares for the neighbours of this node: opens its RDMA device.
    pub fn open(options: &MemberOptions) -> Self {
        let preference = options.transport;
        let rdma = if preference.uses_rdma() {
            rdma::Device::open(options).map_err(|error| error.to_string())
        } else {
            Err(format!("the transport is {preference:?}"))
        };
        match &rdma {
            Ok(device) => info!(%device, "RDMA is on"),
            Err(reason) if preference == Preference::Verbs => warn!(reason, "RDMA is off"),
            Err(reason) => info!(reason, "RDMA is off"),
        }
        Self {
            rdma,
            traffic_class: options.traffic_class,
            checksum: options.checksum,
        }
    }

    /// Lets go of memory that the RDMA device keeps and nobody else does.
    pub(crate) fn forget_gone(&self) {
        if let Ok(device) = &self.rdma {
            device.forget_gone();
        }
    }

    /// Sets what every data connection needs.
    pub(crate) fn tune(&self, stream: &TcpStream) -> io::Result<()> {
        if !tcp::tune(stream, self.traffic_class)? {
            debug!("neither cubic nor reno may be used; the kernel's default stays");
        }
        Ok(())
    }

    /// Agrees with the neighbour `peer` at the other end of an authenticated connection.
    pub(crate) fn agree(
        &self,
        mut stream: TcpStream,
        peer: u32,
        side: Side,
    ) -> Result<Link, Error> {
        limit(&stream, Some(HANDSHAKE_LIMIT))?;
        let ours = Offer {
            rdma: self.rdma.as_ref().ok().map(rdma::Device::capability),
            checksum: self.checksum.wish(&stream)?,
        };
        say(&mut stream, &ours)?;
        let theirs = hear(&mut stream)?;
        let opening = match (&self.rdma, theirs.rdma) {
            (Ok(device), Some(capability)) => device.agree(&mut stream, peer, capability, side)?,
            (Ok(_), None) => {
                info!(node = peer, "no RDMA with this neighbour: it has none");
                None
            }
            (Err(_), _) => None,
        };
        limit(&stream, None)?;
        match opening {
            Some(opening) => Ok(Box::new(opening.finish(stream)?)),
            None => self.over_tcp(stream, [ours.checksum, theirs.checksum], peer),
        }
    }

    fn over_tcp(&self, stream: TcpStream, wishes: [Wish; 2], peer: u32) -> Result<Link, Error> {
        let is_off = wishes.contains(&Wish::Off);
        if is_off && self.checksum == Checksum::On {
            return Err(Error::Checksum);
        }
        let has_sums = !is_off && wishes.contains(&Wish::Wants);
        info!(node = peer, checksums = has_sums, "TCP with this neighbour");
        Ok(Box::new(Tcp::new(stream, has_sums)?))
    }
}

fn say(stream: &mut TcpStream, offer: &Offer) -> Result<(), Error> {
    let words = serde_json::to_vec(offer)?;
    let length = u16::try_from(words.len()).map_err(|_| Error::Length(words.len()))?;
    stream.write_all(&[&length.to_le_bytes()[..], &words].concat())?;
    Ok(())
}

fn hear(stream: &mut TcpStream) -> Result<Offer, Error> {
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
