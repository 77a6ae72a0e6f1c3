//! One connection of a sidecar: authenticates it, then passes messages between it and the gangs.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use collective::membership::{Connection, Event};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tracing::{debug, info, warn};
use wire::handshake::{
    self, CHALLENGE_BYTES, HELLO_BYTES, Identity, NONCE_BYTES, PROOF_BYTES, Party, Responder,
};
use wire::rendezvous::{self, Decoder, ToOperator, ToSidecar, encode, text};

use crate::leader::Role;
use crate::rendezvous::Service;
use crate::rendezvous::directory::{Gang, Refusal};
use crate::rendezvous::gangs::Input;

/// Before another try to accept, when there was no descriptor.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// A stranger that says nothing holds a descriptor for so long.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// A sidecar speaks every second; after this its connection is half open.
const SILENCE: Duration = Duration::from_secs(15);
/// A sidecar that does not read for so long is cut off: it dials again.
const WRITE: Duration = Duration::from_secs(10);
/// What may wait for a sidecar: a roster, a go, and their repetitions.
const OUTBOX: usize = 16;
/// Several heartbeats; part of every session's memory.
const READ_BYTES: usize = 2 * 1024;

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to talk to the sidecar")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Handshake(#[from] handshake::Error),
    #[error(transparent)]
    Frame(#[from] rendezvous::Error),
    #[error("failed to authenticate the peer: {0}")]
    Unknown(&'static str),
    #[error("failed to draw a nonce: {0}")]
    Random(String),
    #[error("failed to hear from the sidecar for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("failed to follow: the sidecar spoke out of turn, expected hello")]
    OutOfTurn,
}

/// Serves one connection to its end.
pub(super) async fn run(stream: TcpStream, peer: SocketAddr, service: Service) {
    let mut session = Session { stream, service };
    let identity = match tokio::time::timeout(HANDSHAKE, session.authenticate()).await {
        Ok(Ok(identity)) => identity,
        Ok(Err(error)) => {
            session.service.metrics.refused.inc();
            info!(%peer, %error, "refused a connection");
            return;
        }
        Err(_elapsed) => {
            session.service.metrics.refused.inc();
            debug!(%peer, "a connection said nothing");
            return;
        }
    };
    let connections = session.service.metrics.connections.clone();
    connections.inc();
    match session.serve(&identity).await {
        Ok(()) => debug!(%peer, %identity, "a sidecar has left"),
        Err(error) => debug!(%peer, %identity, %error, "a connection has ended"),
    }
    connections.dec();
}

struct Session {
    stream: TcpStream,
    service: Service,
}

impl Session {
    async fn authenticate(&mut self) -> Result<Identity, Error> {
        self.stream.set_nodelay(true)?;
        let mut hello = [0; HELLO_BYTES];
        self.stream.read_exact(&mut hello).await?;
        let responder = Responder::new(&hello)?;
        let claim = responder.claim();
        if claim.party == Party::Operator {
            return Err(Error::Unknown("only sidecars dial here"));
        }
        let key = self
            .service
            .directory
            .key(claim.job, claim.attempt)
            .ok_or(Error::Unknown("its job is not known"))?;
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(|error| Error::Random(error.to_string()))?;
        let identity = Identity {
            party: Party::Operator,
            ..claim
        };
        let (challenged, challenge): (_, [u8; CHALLENGE_BYTES]) =
            responder.challenge(key, identity, nonce)?;
        self.stream.write_all(&challenge).await?;
        let mut proof = [0; PROOF_BYTES];
        self.stream.read_exact(&mut proof).await?;
        Ok(challenged.finish(&proof)?)
    }

    async fn serve(&mut self, identity: &Identity) -> Result<(), Error> {
        let Party::Sidecar { rank } = identity.party else {
            return Ok(());
        };
        let mut role = self.service.role.clone();
        let current = *role.borrow_and_update();
        match current {
            Role::Leading => {}
            Role::Standby {
                leader: Some(address),
            } => {
                return self.say(&ToSidecar::Redirect { address }).await;
            }
            // It dials again, and somebody will lead by then.
            Role::Standby { leader: None } => return Ok(()),
        }
        let gang = match self.service.directory.gang(identity.job, identity.attempt) {
            Ok(gang) => gang,
            Err(Refusal { reason, void }) => {
                return self.say(&ToSidecar::Refused { reason, void }).await;
            }
        };
        let mut decoder = Decoder::<ToOperator>::default();
        let hello = self.hear(&mut decoder).await?.ok_or(Error::OutOfTurn)?;
        let ToOperator::Hello {
            version, address, ..
        } = &hello
        else {
            return Err(Error::OutOfTurn);
        };
        debug!(job = %gang.job, attempt = gang.attempt, rank, %address, version, "hello");
        let (outbox, mut messages) = mpsc::channel(OUTBOX);
        let connection = self.service.gangs.connection();
        let hello = rendezvous_codec::event(connection, rank, hello)?;
        let gangs = self.service.gangs.clone();
        let gang_of = gang.clone();
        gangs
            .send(Input::Connected {
                gang: gang_of,
                connection,
                outbox,
                hello,
            })
            .await;
        let ended = tokio::select! {
            ended = self.converse(&gang, (connection, rank), &mut decoder, &mut messages) => ended,
            // Whoever leads now has to hear it from the sidecar itself.
            _ = role.wait_for(|role| *role != Role::Leading) => Ok(()),
        };
        gangs
            .send(Input::Event {
                gang,
                event: Event::Disconnected { connection },
            })
            .await;
        ended
    }

    async fn converse(
        &mut self,
        gang: &Gang,
        (connection, rank): (Connection, u32),
        decoder: &mut Decoder<ToOperator>,
        messages: &mut mpsc::Receiver<ToSidecar>,
    ) -> Result<(), Error> {
        let gangs = self.service.gangs.clone();
        loop {
            let message = tokio::select! {
                heard = self.hear(decoder) => match heard? {
                    Some(message) => message,
                    None => return Ok(()),
                },
                said = messages.recv() => {
                    let Some(message) = said else {
                        return Ok(()); // Refused, and told so.
                    };
                    self.say(&message).await?;
                    continue;
                }
            };
            for input in inputs(gang, connection, rank, message) {
                gangs.send(input).await;
            }
        }
    }

    /// The next message; none when the sidecar closed the connection.
    ///
    /// Cancel safe: bytes go into the decoder as they are read.
    async fn hear(
        &mut self,
        decoder: &mut Decoder<ToOperator>,
    ) -> Result<Option<ToOperator>, Error> {
        let mut buffer = [0; READ_BYTES];
        loop {
            if let Some(message) = decoder.next()? {
                return Ok(Some(message));
            }
            let read = tokio::time::timeout(SILENCE, self.stream.read(&mut buffer));
            let read = read.await.map_err(|_elapsed| Error::Silent(SILENCE))??;
            if read == 0 {
                return Ok(None);
            }
            decoder.push(&buffer[..read]);
        }
    }

    async fn say(&mut self, message: &ToSidecar) -> Result<(), Error> {
        let frame = encode(message)?;
        let written = tokio::time::timeout(WRITE, self.stream.write_all(&frame));
        written.await.map_err(|_elapsed| Error::Silent(WRITE))??;
        Ok(())
    }
}

/// What a message means to its gang. A second hello on one connection says nothing new.
fn inputs(gang: &Gang, connection: Connection, rank: u32, message: ToOperator) -> Vec<Input> {
    let shown = match &message {
        ToOperator::Hello { .. } => return Vec::new(),
        ToOperator::Heartbeat { progress } => progress.clone(),
        ToOperator::Joined { .. }
        | ToOperator::Suspect { .. }
        | ToOperator::Recovered { .. }
        | ToOperator::Stopped { .. }
        | ToOperator::RankLost
        | ToOperator::Bye => None,
    };
    log(gang, &message);
    let event = match rendezvous_codec::event(connection, rank, message) {
        Ok(event) => event,
        Err(error) => {
            warn!(job = %gang.job, rank, %error, "what a node says makes no sense: it is not counted");
            return Vec::new();
        }
    };
    let shown = shown.map(|progress| Input::Progress {
        gang: gang.clone(),
        progress,
    });
    let event = Input::Event {
        gang: gang.clone(),
        event,
    };
    shown.into_iter().chain([event]).collect()
}

/// For people: what is out of the ordinary.
fn log(gang: &Gang, message: &ToOperator) {
    let Gang { job, attempt, .. } = gang;
    match message {
        ToOperator::Suspect {
            rank,
            reason,
            detail,
            ..
        } => {
            let detail = text(detail);
            info!(%job, attempt, rank, ?reason, detail, "suspected");
        }
        ToOperator::Recovered { rank, .. } => {
            info!(%job, attempt, rank, "a suspect was heard again");
        }
        ToOperator::Stopped {
            epoch, unreached, ..
        } => info!(%job, attempt, epoch, ?unreached, "a node has stopped"),
        ToOperator::RankLost => info!(%job, attempt, "a process of the trainer is gone"),
        ToOperator::Hello { .. }
        | ToOperator::Joined { .. }
        | ToOperator::Heartbeat { .. }
        | ToOperator::Bye => {}
    }
}
