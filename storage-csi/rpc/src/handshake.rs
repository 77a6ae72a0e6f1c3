//! The handshake over a stream: three messages of fixed size, before HTTP/2. Time limits are the callers'.

use std::io;

use chain_link::{PeerRole, StoragePeer};
use link::connect::nonce;
use link::handshake::{self, CHALLENGE_BYTES, HELLO_BYTES, Initiator, PROOF_BYTES, Responder};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::RpcCredentials;
use crate::keys::KeyError;

/// Why a connection is of no use.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// It broke.
    #[error("failed to authenticate the peer: the connection broke")]
    Broken(#[from] io::Error),
    /// The other side is not accepted.
    #[error(transparent)]
    Refused(#[from] handshake::Error<StoragePeer>),
    /// There is no key for the other side.
    #[error("failed to authenticate the peer")]
    Key(#[from] KeyError),
    /// Somebody else answered.
    #[error("failed to reach a {expected:?}: {peer} answered")]
    Role {
        /// Who should have.
        expected: PeerRole,
        /// Who did.
        peer: StoragePeer,
    },
    /// It took too long.
    #[error("failed to authenticate the peer in time")]
    Late,
}

/// The side that dialled: it expects a server of a role.
pub(crate) async fn initiate(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    credentials: &RpcCredentials,
    expected: PeerRole,
) -> Result<(), HandshakeError> {
    let key = credentials.key_to(expected)?.clone();
    let (initiator, hello) = Initiator::new(key, credentials.identity, nonce()?);
    stream.write_all(&hello).await?;
    let mut challenge = [0; CHALLENGE_BYTES];
    stream.read_exact(&mut challenge).await?;
    let (peer, proof) = initiator.finish(&challenge)?;
    if peer.role() != Some(expected) {
        return Err(HandshakeError::Role { expected, peer });
    }
    stream.write_all(&proof).await?;
    Ok(())
}

/// The side that was dialled: it learns by whom.
pub(crate) async fn respond(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    credentials: &RpcCredentials,
) -> Result<StoragePeer, HandshakeError> {
    let RpcCredentials { identity, keys } = credentials;
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).await?;
    let responder = Responder::new(&hello)?;
    let key = keys.between(responder.claim(), *identity)?.clone();
    let (challenged, challenge) = responder.challenge(key, *identity, nonce()?)?;
    stream.write_all(&challenge).await?;
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).await?;
    Ok(challenged.finish(&proof)?)
}
