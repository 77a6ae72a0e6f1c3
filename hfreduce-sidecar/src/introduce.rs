//! Who is at the other end of a connection: the handshake over a stream, with a time limit. Both sides prove that
//! they hold the attempt's key before anything else is said.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::negotiate;
use link::handshake::{self, Identity, Initiator, Key, NONCE_BYTES, Responder};

/// How long the other side may take for a message of the handshake.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(3);

/// Why two sidecars could not be connected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The network or the other side failed.
    #[error("failed to exchange the handshake")]
    Exchange(#[from] io::Error),
    /// The other side is not who it should be.
    #[error(transparent)]
    Handshake(#[from] handshake::Error),
    /// Somebody else answers at the neighbour's address.
    #[error("failed to reach node {expected}: {answered} answers at its address")]
    Somebody {
        /// Who should be there.
        expected: usize,
        /// Who is.
        answered: Identity,
    },
    /// The two could not agree on how to go on.
    #[error(transparent)]
    Transport(#[from] negotiate::Error),
    /// Not one of those who may connect.
    #[error("{0} is no neighbour that connects to this node now")]
    Unwanted(Identity),
    /// A neighbour whose roster is another one than ours: one of us will hear of a later one.
    #[error("{claim} connects for epoch {theirs}, which is not the one this node is joining")]
    Epoch {
        /// Who connects.
        claim: Identity,
        /// The epoch it names.
        theirs: u64,
    },
}

/// Who this sidecar is, and what proves it.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// Who.
    pub identity: Identity,
    /// The attempt's key.
    pub key: Key,
}

/// How long a connection may take that others have made and that has proved nothing, all messages together.
pub(crate) const UNPROVED_LIMIT: Duration = Duration::from_secs(2);

/// A fresh nonce from the kernel.
pub fn nonce() -> io::Result<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut nonce)?;
    Ok(nonce)
}

/// Proves who we are to whoever we dialled, and learns who that is.
pub fn initiate(stream: &mut TcpStream, credentials: &Credentials) -> Result<Identity, Error> {
    let Credentials { identity, key } = credentials;
    limit(stream, Some(HANDSHAKE_LIMIT))?;
    let (initiator, hello) = Initiator::new(key.clone(), *identity, nonce()?);
    stream.write_all(&hello)?;
    let mut challenge = [0; handshake::CHALLENGE_BYTES];
    receive(stream, &mut challenge)?;
    let (theirs, proof) = initiator.finish(&challenge)?;
    stream.write_all(&proof)?;
    limit(stream, None)?;
    Ok(theirs)
}

/// Learns who dialled, if `wanted`, and proves who we are.
pub(crate) fn respond(
    stream: &mut TcpStream,
    credentials: &Credentials,
    wanted: impl Fn(Identity) -> bool,
) -> Result<Identity, Error> {
    let Credentials { identity, key } = credentials;
    limit(stream, Some(UNPROVED_LIMIT))?;
    let deadline = Instant::now() + UNPROVED_LIMIT;
    let mut hello = [0; handshake::HELLO_BYTES];
    receive_until(stream, &mut hello, deadline)?;
    let responder = Responder::new(&hello)?;
    let claim = responder.claim();
    let (challenged, challenge) = responder.challenge(key.clone(), *identity, nonce()?)?;
    if !wanted(claim) {
        return Err(Error::Unwanted(claim));
    }
    stream.write_all(&challenge)?;
    let mut proof = [0; handshake::PROOF_BYTES];
    receive_until(stream, &mut proof, deadline)?;
    let theirs = challenged.finish(&proof)?;
    limit(stream, None)?;
    Ok(theirs)
}

/// Reads a message. All of it has to be here in time: who sends it byte by byte keeps a place at the door no longer.
pub(crate) fn receive(stream: &mut TcpStream, message: &mut [u8]) -> io::Result<()> {
    receive_until(stream, message, Instant::now() + HANDSHAKE_LIMIT)
}

fn receive_until(stream: &mut TcpStream, message: &mut [u8], deadline: Instant) -> io::Result<()> {
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

pub(crate) fn limit(stream: &TcpStream, limit: Option<Duration>) -> io::Result<()> {
    stream.set_read_timeout(limit)?;
    stream.set_write_timeout(limit)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    #[test]
    fn who_sends_byte_by_byte_is_not_waited_for_longer() {
        const LIMIT: Duration = Duration::from_millis(300);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut unauthenticated = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let dripping = thread::spawn(move || {
            let pause = LIMIT / 10;
            while unauthenticated.write_all(&[0]).is_ok() {
                thread::sleep(pause);
            }
        });
        // All of it would come after a hundred limits.
        let start = Instant::now();
        let refused = receive_until(&mut stream, &mut [0; 1000], start + LIMIT).unwrap_err();
        let took = start.elapsed();
        assert!(took < 20 * LIMIT, "{took:?}");
        let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        assert!(kinds.contains(&refused.kind()), "{refused}");
        drop(stream);
        dripping.join().unwrap();
    }
}
