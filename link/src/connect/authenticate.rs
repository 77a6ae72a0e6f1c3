//! The handshake over a stream, with a time limit. Both sides prove that they hold the key before anything else is
//! said.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::{Credentials, Error, limit, receive};
use crate::handshake::{
    CHALLENGE_BYTES, HELLO_BYTES, Initiator, NONCE_BYTES, PROOF_BYTES, PeerIdentity, Responder,
};
use crate::limits::{MESSAGE_TIME, PROOF_TIME};

/// A fresh nonce from the kernel.
pub fn nonce() -> io::Result<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut nonce)?;
    Ok(nonce)
}

/// Proves who we are to whoever we dialled, and learns who that is.
pub fn initiate<I: PeerIdentity>(
    stream: &mut TcpStream,
    credentials: &Credentials<I>,
) -> Result<I, Error<I>> {
    let Credentials { identity, key } = credentials;
    limit(stream, Some(MESSAGE_TIME))?;
    let (initiator, hello) = Initiator::new(key.clone(), *identity, nonce()?);
    stream.write_all(&hello)?;
    let mut challenge = [0; CHALLENGE_BYTES];
    receive(stream, &mut challenge, Instant::now() + MESSAGE_TIME)?;
    let (theirs, proof) = initiator.finish(&challenge)?;
    stream.write_all(&proof)?;
    limit(stream, None)?;
    Ok(theirs)
}

/// Learns who dialled, if `wanted`, and proves who we are.
pub(super) fn respond<I: PeerIdentity>(
    stream: &mut TcpStream,
    credentials: &Credentials<I>,
    wanted: impl Fn(I) -> bool,
) -> Result<I, Error<I>> {
    let Credentials { identity, key } = credentials;
    limit(stream, Some(PROOF_TIME))?;
    let deadline = Instant::now() + PROOF_TIME;
    let mut hello = [0; HELLO_BYTES];
    receive(stream, &mut hello, deadline)?;
    let responder = Responder::new(&hello)?;
    let claim = responder.claim();
    let (challenged, challenge) = responder.challenge(key.clone(), *identity, nonce()?)?;
    if !wanted(claim) {
        return Err(Error::Unwanted(claim));
    }
    stream.write_all(&challenge)?;
    let mut proof = [0; PROOF_BYTES];
    receive(stream, &mut proof, deadline)?;
    let theirs = challenged.finish(&proof)?;
    limit(stream, None)?;
    Ok(theirs)
}
