//! Links between neighbours: one protocol of frames, several ways to carry them. A transport delivers every frame
//! once and in order, its payload to where the receiver wants it, and says when what is being sent may be
//! used again. It never blocks; whoever owns it polls. What frames mean is `collective::machine`'s business.

pub mod tcp;
pub mod verbs;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

use crate::block::{Denied, Reading, Writing};
use crate::header::Header;
use crate::segment;
use crate::verbs::channel;

pub use tcp::Tcp;
pub use verbs::Verbs;

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
    #[error("{0}")]
    Frame(String),
    /// The receiver has no place for it.
    #[error("{0}")]
    Unplaced(String),
    /// The memory of a payload is in use otherwise: a bug of this side.
    #[error(transparent)]
    Memory(#[from] Denied),
    /// More is sent than can ever be on the way.
    #[error("{0} frames wait to be sent: no more may")]
    Queue(usize),
    /// A payload is not what was sent.
    #[error("{0} was damaged on the way: it does not match its checksum")]
    Damaged(String),
    /// What came with a frame cannot be read.
    #[error("invalid frame: {0}")]
    Payload(&'static str),
    /// There is no memory for payload.
    #[error(transparent)]
    Segment(#[from] segment::Error),
    /// The device failed, the peer's does not answer, or one of the two breaks the rules.
    #[error(transparent)]
    Verbs(#[from] channel::Error),
}

/// Payload that is sent: owned by the link until it hands the token back.
#[derive(Debug)]
pub struct Outgoing {
    /// The sender's name for it.
    pub token: u64,
    /// The bytes.
    pub bytes: Reading,
}

/// Where the payload of a frame goes.
#[derive(Debug)]
pub enum PayloadTarget {
    /// There.
    Into(Writing),
    /// Nobody wants it.
    Discard,
}

/// Says where a payload goes.
pub type Placing<'a, H> = dyn FnMut(&H) -> Result<PayloadTarget, String> + 'a;

/// What one look at a link brought.
#[derive(Debug)]
pub enum Received<H> {
    /// A whole frame. Its payload is in place, or lies in the memory of the link and is read from here, as its
    /// [`PayloadUse`](crate::header::PayloadUse) says. What is read in place must be dropped before the sender gets the credit for another.
    Frame(H, Option<Reading>),
    /// Part of one: look again.
    Part,
    /// Nothing more for now.
    Nothing,
}

/// A link to a peer, over whichever transport.
pub type BoxedLink<H> = Box<dyn Transport<H>>;

/// A link to a neighbour.
pub trait Transport<H: Header>: fmt::Debug + Send {
    /// How it is called in logs and metrics.
    fn name(&self) -> &'static str;

    /// Queues a frame.
    fn push(&mut self, header: &H, payload: Option<Outgoing>) -> Result<(), Error>;

    /// Sends what can be sent. The tokens of payloads that have left go into `left`.
    fn flush(&mut self, left: &mut Vec<u64>) -> Result<(), Error>;

    /// Frames that are queued and not sent.
    fn queued(&self) -> usize;

    /// Whether everything that was queued has been handed over.
    fn is_flushed(&self) -> bool;

    /// Looks once for what has come.
    fn receive(&mut self, place: &mut Placing<'_, H>) -> Result<Received<H>, Error>;

    /// Whether frames may be pushed.
    fn can_send(&self) -> bool;

    /// Sends nothing more. Gives up what is queued; the tokens of its payloads go into `left`. What has come
    /// so far can still be received, and then the link is closed, whatever the other side does.
    fn abandon(&mut self, left: &mut Vec<u64>);

    /// Bytes sent and received since the last time, headers included.
    fn take_traffic(&mut self) -> (u64, u64);

    /// Readable when there may be something to receive, if its owner sleeps on descriptors.
    fn socket(&self) -> BorrowedFd<'_>;

    /// The socket is readable.
    fn wake(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Whether its owner should also wait until the socket can be written to.
    fn is_blocked(&self) -> bool {
        false
    }

    /// Whether it has to be looked at without a sign of its socket.
    fn is_polled(&self) -> bool {
        false
    }

    /// Whether it keeps payload that is [read in place](crate::header::PayloadUse::ReadInPlace) in its own memory, so that its receiver
    /// needs none for it.
    fn receives_in_place(&self) -> bool {
        false
    }

    /// Whether something was read ahead: look again, the socket does not signal it.
    fn has_more(&self) -> bool {
        false
    }

    /// Whether something has arrived that its socket does not signal, or does not yet; as cheaply as can be.
    fn poll_received(&mut self) -> bool {
        self.has_more()
    }

    /// Prepares for its owner's sleep. False: something has come, do not sleep.
    fn sleep(&mut self) -> Result<bool, Error> {
        Ok(!self.has_more())
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
