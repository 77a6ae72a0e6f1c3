//! One connection of a sidecar: authenticates it, then passes messages between it and the gangs.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use collective::membership::encoding::{
    self as rendezvous, Decoder, FRAME_LIMIT_BYTES, Features, TO_OPERATOR_LIMIT_BYTES, ToOperator,
    ToSidecar, encode, text,
};
use collective::membership::{Connection, MembershipEvent};
use contract::identity::{Identity, Party};
use daemon::slots::Slot;
use link::handshake::{self, CHALLENGE_BYTES, HELLO_BYTES, NONCE_BYTES, PROOF_BYTES, Responder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, info};

use crate::leader::Role;
use crate::limits::PROOF_TIME;
use crate::rendezvous::Service;
use crate::rendezvous::directory::{Gang, GangRefusal};
use crate::rendezvous::gang_session::{Frame, Outbox};
use crate::rendezvous::gangs::Input;
use crate::rendezvous::large::{LargeFramePermit, Share};
use crate::token_bucket::TokenBucket;

/// Before another try to accept, when there was no descriptor.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a sidecar may take to say hello after that.
const HELLO: Duration = Duration::from_secs(5);
/// How long a large frame may take, from its length to its end.
const LARGE: Duration = Duration::from_secs(10);
/// A sidecar speaks every second; after this its connection is half open.
const SILENCE: Duration = Duration::from_secs(15);
/// A sidecar that does not read for so long is cut off: it dials again.
const WRITE: Duration = Duration::from_secs(10);
/// What may wait for a sidecar: a roster, a go, and their repetitions.
const OUTBOX: usize = 16;
/// Several heartbeats; part of every session's memory.
const READ_BYTES: usize = 2 * 1024;
/// Lines of the log about what one connection says: so many at once, and one more in each period.
/// Whoever has the gang's key may say the same thousands of times a second.
const LINES: u32 = 32;
const LINE_PERIOD: Duration = Duration::from_secs(60);
/// Nodes that one line of the log names: a node asks some thirty whether they reach it.
const NAMED: usize = 64;

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("failed to read from or write to the sidecar")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Handshake(#[from] handshake::Error<Identity>),
    #[error(transparent)]
    Frame(#[from] rendezvous::Error),
    #[error("failed to authenticate the peer: {0}")]
    Unknown(&'static str),
    #[error("failed to draw a nonce: {0}")]
    Random(String),
    #[error("failed to get a heartbeat from the sidecar for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("failed to accept the sidecar: its first message is not a hello")]
    OutOfTurn,
    #[error("failed to read a frame of {0} bytes: at most {TO_OPERATOR_LIMIT_BYTES} are allowed")]
    TooLarge(usize),
    #[error("failed to read a large report: other reports used all memory for {} s", .0.as_secs())]
    NoRoom(Duration),
    #[error("failed to keep this connection: its rank has connected again")]
    Replaced,
    #[error("failed to accept the sidecar: all connections are in use")]
    Full,
}

/// Serves one connection to its end. It has the slot until it has proved that it knows a key.
pub(super) async fn run(stream: TcpStream, peer: SocketAddr, slot: Slot, service: Service) {
    let mut session = Session {
        stream,
        service,
        share: None,
        large: None,
        lines: TokenBucket::new(LINES, LINE_PERIOD, Instant::now()),
    };
    let proved = tokio::select! {
        () = slot.evicted() => {
            session.service.metrics.refused.inc();
            debug!(%peer, "made room for another connection");
            return;
        }
        proved = timeout(PROOF_TIME, session.authenticate()) => proved,
    };
    drop(slot);
    let identity = match proved {
        Ok(Ok(identity)) => identity,
        Ok(Err(error)) => {
            // Whoever reaches the port makes as many of these as it likes: they fill no log.
            session.service.metrics.refused.inc();
            debug!(%peer, %error, "refused a connection");
            return;
        }
        Err(_elapsed) => {
            session.service.metrics.refused.inc();
            debug!(%peer, "a connection did not authenticate in time");
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
    /// What its gang may have of large frames; none before its hello.
    share: Option<Share>,
    /// What the large frame under way takes, and when that has to be there.
    large: Option<(LargeFramePermit, Instant)>,
    /// Lines of the log that the connection may still cause.
    lines: TokenBucket,
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
            Err(GangRefusal { reason, void }) => {
                return self.say(&ToSidecar::Refused { reason, void }).await;
            }
        };
        if rank as usize >= gang.nodes.len() {
            let reason = format!("rank {rank} is not one of {} nodes", gang.nodes.len());
            let void = false;
            return self.say(&ToSidecar::Refused { reason, void }).await;
        }
        let room = Arc::clone(&self.service.room);
        let _room = room.try_acquire_owned().map_err(|_full| Error::Full)?;
        let mut decoder = Decoder::<ToOperator>::default();
        let place = self.service.hellos.enter(identity);
        let place = place.ok_or(Error::OutOfTurn)?;
        let hello = tokio::select! {
            hello = timeout(HELLO, self.receive(&mut decoder)) => hello,
            () = place.replaced() => return Err(Error::Replaced),
        };
        let hello = hello.map_err(|_elapsed| Error::Silent(HELLO))??;
        drop(place);
        let hello = hello.ok_or(Error::OutOfTurn)?;
        let ToOperator::Hello {
            version,
            address,
            features,
            ..
        } = &hello
        else {
            return Err(Error::OutOfTurn);
        };
        debug!(job = %gang.job, attempt = gang.attempt, rank, %address, version, "hello");
        let features = Features::of(features);
        let (frames, mut messages) = mpsc::channel(OUTBOX);
        let connection = self.service.gangs.connection();
        let hello = collective::membership::encoding::event(connection, rank, hello);
        self.share = Some(self.service.large.of(identity));
        let gangs = self.service.gangs.clone();
        gangs
            .send(Input::Connected {
                gang: Arc::clone(&gang),
                connection,
                outbox: Outbox { frames, features },
                hello,
            })
            .await;
        let ended = tokio::select! {
            ended = self.converse(&gang, (connection, rank), &mut decoder, &mut messages) => ended,
            // Whoever leads now has to get it from the sidecar itself.
            _ = role.wait_for(|role| *role != Role::Leading) => Ok(()),
        };
        gangs
            .send(Input::Event {
                connection,
                event: MembershipEvent::Disconnected { connection },
                large: None,
            })
            .await;
        self.service.metrics.skipped.inc_by(decoder.skipped());
        ended
    }

    async fn converse(
        &mut self,
        gang: &Gang,
        (connection, rank): (Connection, u32),
        decoder: &mut Decoder<ToOperator>,
        messages: &mut mpsc::Receiver<Frame>,
    ) -> Result<(), Error> {
        let gangs = self.service.gangs.clone();
        loop {
            let message = tokio::select! {
                received = self.receive(decoder) => match received? {
                    Some(message) => message,
                    None => return Ok(()),
                },
                said = messages.recv() => {
                    let Some(frame) = said else {
                        return Ok(()); // Refused, and the sidecar knows why.
                    };
                    self.write(&frame).await?;
                    continue;
                }
            };
            let large = self.large.take().map(|(part, _)| part);
            if is_notable(&message) {
                if self.lines.take(Instant::now()) {
                    log(gang, &message);
                } else {
                    debug!(job = %gang.job, attempt = gang.attempt, rank, "says more than is logged");
                }
            }
            for input in inputs(connection, rank, (message, large)) {
                gangs.send(input).await;
            }
        }
    }

    /// The next message; none when the sidecar closed the connection.
    ///
    /// Cancel safe: bytes go into the decoder as they are read.
    async fn receive(
        &mut self,
        decoder: &mut Decoder<ToOperator>,
    ) -> Result<Option<ToOperator>, Error> {
        let mut buffer = [0; READ_BYTES];
        loop {
            if let Some(message) = decoder.next()? {
                return Ok(Some(message));
            }
            self.admit(decoder).await?;
            let silent = Instant::now() + SILENCE;
            let until = self
                .large
                .as_ref()
                .map_or(silent, |(_, until)| silent.min(*until));
            let read = timeout_at(until, self.stream.read(&mut buffer)).await;
            let read = read.map_err(|_elapsed| Error::Silent(SILENCE))??;
            if read == 0 {
                return Ok(None);
            }
            decoder.push(&buffer[..read]);
        }
    }

    /// Whether the frame that is not whole yet may be as long as it says. A large one waits until
    /// others are done.
    async fn admit(&mut self, decoder: &Decoder<ToOperator>) -> Result<(), Error> {
        let Some((length, body)) = decoder.unfinished() else {
            return Ok(());
        };
        if length <= TO_OPERATOR_LIMIT_BYTES || self.large.is_some() {
            return Ok(());
        }
        match rendezvous::is_stopped(body) {
            None => return Ok(()), // Its beginning is not there yet.
            Some(true) if length <= FRAME_LIMIT_BYTES => {}
            Some(_) => return Err(Error::TooLarge(length)),
        }
        let share = self.share.as_ref().ok_or(Error::TooLarge(length))?;
        let part = timeout(LARGE, share.admit(length)).await;
        let part = part.map_err(|_elapsed| Error::NoRoom(LARGE))?;
        let part = part.ok_or(Error::TooLarge(length))?;
        self.large = Some((part, Instant::now() + LARGE));
        Ok(())
    }

    async fn say(&mut self, message: &ToSidecar) -> Result<(), Error> {
        let frame = encode(message)?;
        self.write(&frame).await
    }

    async fn write(&mut self, frame: &[u8]) -> Result<(), Error> {
        let written = timeout(WRITE, self.stream.write_all(frame));
        written.await.map_err(|_elapsed| Error::Silent(WRITE))??;
        Ok(())
    }
}

/// What a message means to its gang. A second hello on one connection says nothing new.
fn inputs(
    connection: Connection,
    rank: u32,
    (message, large): (ToOperator, Option<LargeFramePermit>),
) -> Vec<Input> {
    let shown = match &message {
        ToOperator::Hello { .. } => return Vec::new(),
        ToOperator::Heartbeat { progress, .. } => progress.clone(),
        ToOperator::Joined { .. }
        | ToOperator::Suspect { .. }
        | ToOperator::Recovered { .. }
        | ToOperator::Stopped { .. }
        | ToOperator::RankLost
        | ToOperator::Leaving => None,
    };
    let event = collective::membership::encoding::event(connection, rank, message);
    let shown = shown.map(|progress| Input::Progress {
        connection,
        progress,
    });
    let event = Input::Event {
        connection,
        event,
        large,
    };
    shown.into_iter().chain([event]).collect()
}

/// Returns true if people want to know of a message: it is out of the ordinary.
fn is_notable(message: &ToOperator) -> bool {
    match message {
        ToOperator::Suspect { .. }
        | ToOperator::Recovered { .. }
        | ToOperator::Stopped { .. }
        | ToOperator::RankLost => true,
        ToOperator::Hello { .. }
        | ToOperator::Joined { .. }
        | ToOperator::Heartbeat { .. }
        | ToOperator::Leaving => false,
    }
}

/// For people.
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
            info!(%job, attempt, rank, "a suspect sends heartbeats again");
        }
        ToOperator::Stopped {
            epoch, unreached, ..
        } => {
            let unreached = unreached.get(..NAMED).unwrap_or(unreached);
            info!(%job, attempt, epoch, ?unreached, "a sidecar has stopped its epoch");
        }
        ToOperator::RankLost => info!(%job, attempt, "a process of the trainer is gone"),
        ToOperator::Hello { .. }
        | ToOperator::Joined { .. }
        | ToOperator::Heartbeat { .. }
        | ToOperator::Leaving => {}
    }
}
