//! How two neighbours that are connected and know each other go on: through memory that they share, where both run
//! on one machine and see the same files, else over RDMA, where both have it and reach each other by it, else over the
//! connection itself. Each side says over the connection what it can; they try, and both do what came out.
//!
//! That two sidecars are on one machine is shown by one reaching the other's socket with a token that came over
//! the authenticated connection: paths and even boot ids are alike in pods that share nothing.

mod rdma;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};
use tracing::{debug, info, warn};
use wire::attach::{self, Channel, Listener};
use wire::transport::shared::Opening;
use wire::transport::{self, Tcp, Transport, tcp};

use crate::introduce::{HANDSHAKE_LIMIT, limit, nonce};
use crate::member::Options;
use rdma::Capability;
pub use rdma::Rdma;

/// The socket in the run directory where neighbours of the same machine meet.
const SOCKET: &str = "neighbours.sock";
/// Longest offer: a path and a token.
const OFFER_LIMIT_BYTES: usize = 1 << 10;
/// Neighbours that have knocked and are not expected yet: ten at most are ours.
const EARLY_LIMIT: usize = 32;

/// How neighbours are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Preference {
    /// Through shared memory where both run on one machine, else over RDMA where both have it, else over TCP.
    #[default]
    Auto,
    /// Over TCP always.
    Tcp,
    /// Through shared memory where both run on one machine, else over TCP.
    Shared,
    /// Over RDMA where both have it, even on one machine, else over TCP.
    Verbs,
}

impl Preference {
    const fn shares_memory(self) -> bool {
        match self {
            Self::Auto | Self::Shared => true,
            Self::Tcp | Self::Verbs => false,
        }
    }

    pub(crate) const fn uses_rdma(self) -> bool {
        match self {
            Self::Auto | Self::Verbs => true,
            Self::Tcp | Self::Shared => false,
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
    /// Shared memory or RDMA could not be set up.
    #[error("failed to set up a link with a neighbour")]
    Transport(#[from] transport::Error),
    /// The socket could not be made.
    #[error(transparent)]
    Socket(#[from] attach::Error),
    /// One side insists on checksums, the other has none.
    #[error("failed to agree on checksums: this node has --checksum on, the neighbour has it off")]
    Checksum,
    /// The other side did not finish.
    #[error("failed to set up shared memory with a neighbour: it did not answer in time")]
    Late,
}

/// What a side can do.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Offer {
    /// Where it listens for neighbours on its machine, and what they have to say there.
    #[serde(default)]
    shared: Option<Spot>,
    /// What its RDMA device speaks.
    #[serde(default)]
    rdma: Option<Capability>,
    /// Whether it wants checksums of payload over TCP.
    #[serde(default)]
    checksum: Wish,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Spot {
    path: PathBuf,
    token: String,
}

/// What is said at that place.
#[derive(Debug, Serialize, Deserialize)]
struct Knock {
    rank: u32,
    token: String,
}

/// Which side this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// It has dialled.
    Dialled,
    /// It was dialled.
    Answered,
}

/// Where neighbours of the same machine are met.
#[derive(Debug)]
pub struct Meeting {
    rank: u32,
    here: Option<Here>,
    /// The device, or why there is none.
    rdma: Result<rdma::Device, String>,
    /// The traffic class of data packets.
    traffic_class: u8,
    checksum: Checksum,
}

struct Here {
    spot: Spot,
    listener: Listener,
    /// Who has knocked before it was expected.
    early: Mutex<BTreeMap<u32, Channel>>,
}

/// Without the token.
impl fmt::Debug for Here {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Here")
            .field("path", &self.spot.path)
            .finish_non_exhaustive()
    }
}

impl Meeting {
    /// Prepares for the neighbours of node `rank`: a place in its run directory, and its RDMA device.
    pub fn open(rank: u32, options: &Options) -> Result<Self, Error> {
        let preference = options.transport;
        let here = if preference.shares_memory() {
            let path = std::path::absolute(&options.run_dir)?.join(SOCKET);
            let listener = Listener::bind(&path)?;
            let token = nonce()?.iter().map(|byte| format!("{byte:02x}")).collect();
            Some(Here {
                spot: Spot { path, token },
                listener,
                early: Mutex::default(),
            })
        } else {
            None
        };
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
        Ok(Self {
            rank,
            here,
            rdma,
            traffic_class: options.traffic_class,
            checksum: options.checksum,
        })
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
    ) -> Result<Box<dyn Transport>, Error> {
        limit(&stream, Some(HANDSHAKE_LIMIT))?;
        let here = self.here.as_ref();
        let ours = Offer {
            shared: here.map(|here| here.spot.clone()),
            rdma: self.rdma.as_ref().ok().map(rdma::Device::capability),
            checksum: self.checksum.wish(&stream)?,
        };
        say(&mut stream, &ours)?;
        let theirs = hear(&mut stream)?;
        let channel = match (here, theirs.shared, side) {
            (Some(_), Some(spot), Side::Dialled) => self.knock(&mut stream, &spot)?,
            (Some(here), Some(_), Side::Answered) => here.answer(&mut stream, peer)?,
            (None, _, _) | (_, None, _) => None,
        };
        if let Some(channel) = channel {
            limit(&stream, None)?;
            return finish(Opening::new(channel)?);
        }
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

    fn over_tcp(
        &self,
        stream: TcpStream,
        wishes: [Wish; 2],
        peer: u32,
    ) -> Result<Box<dyn Transport>, Error> {
        let is_off = wishes.contains(&Wish::Off);
        if is_off && self.checksum == Checksum::On {
            return Err(Error::Checksum);
        }
        let has_sums = !is_off && wishes.contains(&Wish::Wants);
        info!(node = peer, checksums = has_sums, "TCP with this neighbour");
        Ok(Box::new(Tcp::new(stream, has_sums)?))
    }

    /// Tries to reach the neighbour on this machine, and hears whether it agrees.
    fn knock(&self, stream: &mut TcpStream, spot: &Spot) -> Result<Option<Channel>, Error> {
        let knock = Knock {
            rank: self.rank,
            token: spot.token.clone(),
        };
        let channel = Channel::connect(&spot.path)
            .and_then(|channel| channel.send(&knock, &[]).map(|()| channel))
            .ok();
        stream.write_all(&[u8::from(channel.is_some())])?;
        let mut agreed = [0];
        stream.read_exact(&mut agreed)?;
        Ok(channel.filter(|_| agreed == [1]))
    }
}

impl Here {
    /// Finds the neighbour that says it has knocked, and says whether it is here.
    fn answer(&self, stream: &mut TcpStream, peer: u32) -> Result<Option<Channel>, Error> {
        let mut tried = [0];
        stream.read_exact(&mut tried)?;
        let channel = match tried {
            [1] => self.expect(peer),
            _ => None,
        };
        stream.write_all(&[u8::from(channel.is_some())])?;
        Ok(channel)
    }

    /// The neighbour's knock, which was here before it said that it has knocked, unless it went to somebody else. A process
    /// that has knocked before and ended may have left others: the last one counts.
    fn expect(&self, peer: u32) -> Option<Channel> {
        let start = Instant::now();
        let mut early = self.early.lock().unwrap_or_else(PoisonError::into_inner);
        while start.elapsed() < HANDSHAKE_LIMIT
            && let Ok(Some(channel)) = self.listener.accept()
        {
            let knock = channel.receive::<Knock>().ok().flatten();
            if let Some(knock) = knock.filter(|knock| knock.token == self.spot.token)
                && (early.len() < EARLY_LIMIT || early.contains_key(&knock.rank))
            {
                early.insert(knock.rank, channel);
            }
        }
        early.remove(&peer)
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

/// Waits for the other side's mailbox.
fn finish(mut opening: Opening) -> Result<Box<dyn Transport>, Error> {
    let start = Instant::now();
    loop {
        match opening.finish()? {
            Ok(link) => return Ok(Box::new(link)),
            Err(unfinished) => opening = unfinished,
        }
        let left = HANDSHAKE_LIMIT.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(Error::Late);
        }
        wait(&opening, left);
    }
}

/// Waits until there may be something to read, for a second at most.
fn wait(source: &impl AsFd, limit: Duration) {
    let limit = Timespec::try_from(limit.min(Duration::from_secs(1))).ok();
    let mut fds = [PollFd::new(source, PollFlags::IN)];
    rustix::event::poll(&mut fds, limit.as_ref()).ok();
}

#[cfg(test)]
mod tests;
