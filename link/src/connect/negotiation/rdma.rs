//! RDMA in the negotiation: whether two devices fit, and trying it. Every step ends with a byte of each side over the
//! connection, so that both go on together or both stay with TCP.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::{Shape, Side};
use crate::header::Header;
use crate::transport::Error;
use crate::transport::verbs::{self, Adapter, INVITATION_BYTES, Opening};
use crate::verbs::LinkLayer;

/// How long what was written may take to arrive. Less than a message of the handshake: the other side waits for ours.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(2);

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

/// This side's device.
#[derive(Debug)]
pub(super) struct Rdma {
    pub(super) adapter: Arc<Adapter>,
    pub(super) shape: Shape,
}

impl Rdma {
    pub(super) fn capability(&self) -> Capability {
        Capability {
            cable: match self.adapter.link_layer() {
                LinkLayer::InfiniBand => Cable::InfiniBand,
                LinkLayer::Ethernet => Cable::Ethernet,
            },
            payload_bytes: self.shape.payload_bytes,
            slots: self.shape.slots,
        }
    }

    /// Tries to link to the peer. None: both stay with TCP, and this side has said why.
    pub(super) fn agree<H: Header>(
        &self,
        stream: &mut TcpStream,
        peer: impl fmt::Display + Copy,
        theirs: Capability,
        side: Side,
    ) -> io::Result<Option<Opening<H>>> {
        let ours = self.capability();
        if theirs != ours {
            info!(%peer, ?ours, ?theirs, "no RDMA with this peer: the two do not fit");
            return Ok(None);
        }
        let shape = verbs::Shape {
            payload_bytes: self.shape.payload_bytes,
            places: self.shape.flows * usize::from(self.shape.slots),
        };
        let opened = Opening::new(&self.adapter, shape, side == Side::Dialled)
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
fn arrives<H: Header>(opening: &mut Opening<H>) -> Result<(), Error> {
    let start = Instant::now();
    while !opening.look()? {
        let left = ARRIVAL_LIMIT.saturating_sub(start.elapsed());
        if left.is_zero() {
            let why = "what is written does not arrive: do the two devices reach each other?";
            return Err(Error::Failed(io::Error::new(io::ErrorKind::TimedOut, why)));
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

/// Sends the other side whether this one is done with a step, and learns whether both are.
fn both(stream: &mut TcpStream, done: bool) -> io::Result<bool> {
    stream.write_all(&[done.into()])?;
    let mut theirs = [0];
    stream.read_exact(&mut theirs)?;
    Ok(done && theirs == [1])
}

fn off<H>(peer: impl fmt::Display, error: Option<&Error>) -> Option<Opening<H>> {
    match error {
        Some(error) => warn!(%peer, %error, "no RDMA with this peer: TCP is used"),
        None => info!(%peer, "no RDMA with this peer: it has said so"),
    }
    None
}
