//! RDMA at the meeting: which device, whether two can be linked, and trying it. Every step ends with a word of each
//! side over the connection, so that both go on together or both stay with TCP.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use collective::machine::Timing;
use link::transport::Error as LinkError;
use link::transport::verbs::{Adapter, AdapterChoice, INVITATION_BYTES, Opening, Shape};
use link::verbs::{Error, GidChoice, LinkLayer, PathOptions, VerbsLibrary};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};
use tracing::{debug, info, warn};

use super::Side;
use crate::frame::FencedFrame;
use crate::member::MemberOptions;

/// How long what was written may take to arrive. Less than a word of the handshake: the other side waits for ours.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(2);

/// Which device is used and how its packets are marked; what is not said is found out.
#[derive(Clone, Debug)]
pub struct RdmaNegotiation {
    /// Another libibverbs than the machine's.
    pub library: Option<PathBuf>,
    /// The kernel's name for the device.
    pub device: Option<String>,
    /// Its port, from 1.
    pub port: Option<u8>,
    /// The place in the port's table of addresses.
    pub gid_index: Option<u8>,
    /// Where peers reach this node: a device with this address is preferred.
    pub near: Option<IpAddr>,
    /// InfiniBand's service level.
    pub service_level: u8,
    /// Whether the device may write payload to this node's memory in any order.
    pub relaxed_ordering: bool,
    /// How long a peer's device may not answer before the peer is lost.
    pub patience: Duration,
}

impl Default for RdmaNegotiation {
    fn default() -> Self {
        Self {
            library: None,
            device: None,
            port: None,
            gid_index: None,
            near: None,
            service_level: 0,
            relaxed_ordering: true,
            patience: Timing::default().lost,
        }
    }
}

/// What a side needs of the other's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Capability {
    cable: Cable,
    payload_bytes: u32,
    slots: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Cable {
    InfiniBand,
    Ethernet,
}

/// This node's device.
#[derive(Debug)]
pub(super) struct Device {
    adapter: Arc<Adapter>,
    shape: Shape,
    slots: u8,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.adapter.fmt(f)
    }
}

impl Device {
    pub(super) fn open(options: &MemberOptions) -> Result<Self, Error> {
        let rdma = &options.rdma;
        let library = VerbsLibrary::load(rdma.library.as_deref())?;
        let path = PathOptions {
            service_level: rdma.service_level,
            traffic_class: options.traffic_class,
            ..PathOptions::default()
        }
        .lasting(rdma.patience);
        let open = |gid| {
            let wanted = AdapterChoice {
                device: rdma.device.clone(),
                port: rdma.port,
                gid,
                path,
                relaxed_ordering: rdma.relaxed_ordering,
                home: options.places.results.clone(),
            };
            Adapter::open(&library, &wanted, Box::new(trouble()))
        };
        let adapter = match (rdma.gid_index, rdma.near) {
            (Some(index), _) => open(GidChoice::Index(index))?,
            // A pod's address is often not that of a device.
            (None, Some(near)) => {
                open(GidChoice::Address(near)).or_else(|_| open(GidChoice::Automatic))?
            }
            (None, None) => open(GidChoice::Automatic)?,
        };
        let slots = options.slots;
        let shape = Shape {
            payload_bytes: options.chunk_bytes,
            // Two trees, up and down.
            places: 4 * usize::from(slots),
        };
        Ok(Self {
            adapter,
            shape,
            slots,
        })
    }

    pub(super) fn forget_gone(&self) {
        self.adapter.forget_gone();
    }

    pub(super) fn capability(&self) -> Capability {
        Capability {
            cable: match self.adapter.link_layer() {
                LinkLayer::InfiniBand => Cable::InfiniBand,
                LinkLayer::Ethernet => Cable::Ethernet,
            },
            payload_bytes: self.shape.payload_bytes,
            slots: self.slots,
        }
    }

    /// Tries to link to the neighbour. None: both stay with TCP, and this side has said why.
    pub(super) fn agree(
        &self,
        stream: &mut TcpStream,
        peer: u32,
        theirs: Capability,
        side: Side,
    ) -> io::Result<Option<Opening<FencedFrame>>> {
        if theirs != self.capability() {
            let ours = self.capability();
            info!(
                node = peer,
                ?ours,
                ?theirs,
                "no RDMA with this neighbour: the two do not fit"
            );
            return Ok(None);
        }
        let opened = Opening::new(&self.adapter, self.shape, side == Side::Dialled)
            .and_then(|opening| Ok((opening.invitation()?, opening)));
        let none = [0; INVITATION_BYTES];
        let ours = opened.as_ref().map_or(&none, |(invitation, _)| invitation);
        stream.write_all(ours)?;
        let mut theirs = none;
        stream.read_exact(&mut theirs)?;
        let mut opening = match opened {
            Ok((_, opening)) if theirs != none => opening,
            Ok(_) => return Ok(off(peer, None)),
            Err(error) => return Ok(off(peer, Some(&error))),
        };
        let mut done = opening.connect(&theirs);
        if both(stream, done.is_ok())? {
            done = arrives(&mut opening);
            if both(stream, done.is_ok())? {
                return Ok(Some(opening));
            }
        }
        Ok(off(peer, done.as_ref().err()))
    }
}

/// Waits until what each has written has arrived.
fn arrives(opening: &mut Opening<FencedFrame>) -> Result<(), LinkError> {
    let start = Instant::now();
    while !opening.look()? {
        let left = ARRIVAL_LIMIT.saturating_sub(start.elapsed());
        if left.is_zero() {
            let why = "what is written does not arrive: do the two devices reach each other?";
            let late = io::Error::new(io::ErrorKind::TimedOut, why);
            return Err(LinkError::Failed(late));
        }
        wait(opening, left);
    }
    Ok(())
}

/// Waits until there may be something to read, for a second at most.
fn wait(source: &impl AsFd, limit: Duration) {
    let limit = Timespec::try_from(limit.min(Duration::from_secs(1))).ok();
    let mut fds = [PollFd::new(source, PollFlags::IN)];
    rustix::event::poll(&mut fds, limit.as_ref()).ok();
}

/// Tells the other side whether this one is done with a step, and hears whether both are.
fn both(stream: &mut TcpStream, done: bool) -> io::Result<bool> {
    stream.write_all(&[done.into()])?;
    let mut theirs = [0];
    stream.read_exact(&mut theirs)?;
    Ok(done && theirs == [1])
}

fn off(peer: u32, error: Option<&LinkError>) -> Option<Opening<FencedFrame>> {
    match error {
        Some(error) => warn!(node = peer, %error, "no RDMA with this neighbour: TCP is used"),
        None => info!(node = peer, "no RDMA with this neighbour: it has said so"),
    }
    None
}

/// Says once what keeps memory from being registered.
fn trouble() -> impl Fn(&Error) + Send + Sync {
    let said = AtomicBool::new(false);
    move |error| {
        if said.swap(true, Ordering::Relaxed) {
            debug!(%error, "this memory is copied before it is sent");
        } else {
            warn!(%error, "some memory is copied before it is sent");
        }
    }
}
