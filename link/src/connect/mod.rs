//! From an address to a link: dialling and accepting, who is at the other end, whether both mean the same epoch, and
//! which transport both can use. Each step ends before the next begins, and each has a time limit. Owns threads, one for each
//! connection that is being made; a link is handed over once it is established.

mod acceptor;
mod authenticate;
mod negotiation;
mod round;

use std::io::{self, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::handshake::{self, Key, PeerIdentity};

pub use acceptor::Acceptor;
pub use authenticate::{initiate, nonce};
pub use negotiation::{Checksum, Negotiator, Shape};
pub use round::{OPEN_EPOCH, Round};

/// Who this side is, and what proves it.
#[derive(Clone, Debug)]
pub struct Credentials<I> {
    /// Who.
    pub identity: I,
    /// The key that all members hold.
    pub key: Key,
}

/// Which side of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// It has dialled.
    Dialled,
    /// It was dialled.
    Answered,
}

/// Why two sides could not be connected.
#[derive(Debug, thiserror::Error)]
pub enum Error<I: PeerIdentity> {
    /// The network or the other side failed.
    #[error("failed to exchange the handshake")]
    Exchange(#[from] io::Error),
    /// The other side is not who it should be.
    #[error(transparent)]
    Handshake(#[from] handshake::Error<I>),
    /// Somebody else answers at the peer's address.
    #[error("failed to reach {expected}: {answered} answers at its address")]
    Somebody {
        /// Who should be there.
        expected: I,
        /// Who is.
        answered: I,
    },
    /// The two could not agree on how to go on.
    #[error(transparent)]
    Transport(#[from] negotiation::Error),
    /// Not one of those who may connect.
    #[error("{0} is no peer that connects to this node now")]
    Unwanted(I),
    /// A peer in another epoch than ours: one of the two will learn of a later one.
    #[error("{claim} connects for epoch {theirs}, which is not the one this node is joining")]
    Epoch {
        /// Who connects.
        claim: I,
        /// The epoch it names.
        theirs: u64,
    },
}

/// Reads a message. All of it has to be here in time: who sends it byte by byte does not wait for longer.
fn receive(stream: &mut TcpStream, message: &mut [u8], deadline: Instant) -> io::Result<()> {
    let mut rest = message;
    while !rest.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(rest) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => rest = rest.get_mut(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn limit(stream: &TcpStream, limit: Option<Duration>) -> io::Result<()> {
    stream.set_read_timeout(limit)?;
    stream.set_write_timeout(limit)
}

#[cfg(test)]
mod tests;
