//! The members of an epoch that may be linked to this one: of two the lower dials, the higher accepts. A round ends when
//! it is dropped, and nothing of it goes on after that.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::acceptor::AGREED;
use super::authenticate::initiate;
use super::{Credentials, Error, Negotiator, Side, limit};
use crate::handshake::PeerIdentity;
use crate::header::Header;
use crate::limits::MESSAGE_TIME;
use crate::transport::BoxedLink;
use crate::wake_fd::WakeFd;

/// How long a connection may take to be made before it is tried again.
const DIAL_LIMIT: Duration = Duration::from_secs(2);
/// First and longest pause between two tries.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// After so long without an answer somebody should look: who starts late is there by then.
const LATE: Duration = Duration::from_secs(30);
/// How often somebody who waits for links looks whether it still should.
const LOOK: Duration = Duration::from_millis(20);
/// The epoch of connections that belong to none.
pub const OPEN_EPOCH: u64 = 0;
/// How often missing peers are named in the log.
const REMIND: Duration = Duration::from_secs(10);

/// Who may connect to this side.
#[derive(Debug)]
pub(super) enum Callers<I> {
    These(BTreeSet<I>),
    /// Whoever proves that it has the key.
    Anyone,
}

impl<I: PeerIdentity> Callers<I> {
    pub(super) fn has(&self, caller: &I) -> bool {
        match self {
            Self::These(callers) => callers.contains(caller),
            Self::Anyone => true,
        }
    }
}

/// What the threads of a round need. It is over when nobody but them has it.
#[derive(Debug)]
pub(super) struct Shared<I, H> {
    pub(super) epoch: u64,
    pub(super) callers: Callers<I>,
    established: Sender<(I, BoxedLink<H>)>,
    wakes: Option<Arc<WakeFd>>,
}

impl<I: PeerIdentity, H: Header> Shared<I, H> {
    /// Hands a link over.
    pub(super) fn hand(&self, peer: I, link: BoxedLink<H>) {
        self.established.send((peer, link)).ok();
        if let Some(wakes) = &self.wakes {
            wakes.notify();
        }
    }
}

/// Makes links to members in one epoch.
#[derive(Debug)]
pub struct Round<I, H> {
    credentials: Credentials<I>,
    negotiator: Arc<Negotiator>,
    members: BTreeMap<I, SocketAddr>,
    shared: Arc<Shared<I, H>>,
    established: Receiver<(I, BoxedLink<H>)>,
}

impl<I: PeerIdentity, H: Header> Round<I, H> {
    /// Makes links in this epoch. Without an [`Acceptor`](super::Acceptor) only to higher members: nobody reaches it.
    pub fn new(
        credentials: Credentials<I>,
        negotiator: Arc<Negotiator>,
        epoch: u64,
        members: BTreeMap<I, SocketAddr>,
        wakes: Option<Arc<WakeFd>>,
    ) -> Self {
        let lower = members.range(..credentials.identity);
        let callers = Callers::These(lower.map(|(peer, _)| *peer).collect());
        Self::with(credentials, negotiator, (epoch, callers), members, wakes)
    }

    /// Takes whoever dials, in an epoch that has no end.
    pub(super) fn open(
        credentials: Credentials<I>,
        negotiator: Arc<Negotiator>,
        wakes: Option<Arc<WakeFd>>,
    ) -> Self {
        let anyone = (OPEN_EPOCH, Callers::Anyone);
        Self::with(credentials, negotiator, anyone, BTreeMap::new(), wakes)
    }

    fn with(
        credentials: Credentials<I>,
        negotiator: Arc<Negotiator>,
        (epoch, callers): (u64, Callers<I>),
        members: BTreeMap<I, SocketAddr>,
        wakes: Option<Arc<WakeFd>>,
    ) -> Self {
        let (sender, established) = std::sync::mpsc::channel();
        let shared = Shared {
            epoch,
            callers,
            established: sender,
            wakes,
        };
        Self {
            credentials,
            negotiator,
            members,
            shared: Arc::new(shared),
            established,
        }
    }

    pub(super) fn shared(&self) -> Weak<Shared<I, H>> {
        Arc::downgrade(&self.shared)
    }

    /// A link to this member is needed: a higher one is dialled, a lower one connects by itself.
    pub fn connect(&self, peer: I) {
        let Some(&address) = self.members.get(&peer) else {
            return;
        };
        if peer <= self.credentials.identity {
            return;
        }
        let dial = Dial {
            peer,
            address,
            epoch: self.shared.epoch,
            credentials: self.credentials.clone(),
            negotiator: Arc::clone(&self.negotiator),
            round: self.shared(),
        };
        let named = thread::Builder::new().name("dialler".to_owned());
        if let Err(error) = named.spawn(move || dial.run()) {
            warn!(%error, %peer, "failed to start a thread");
        }
    }

    /// Connects to all members, and waits until all are linked; none when `cancelled` says so first.
    pub fn connect_all(self, cancelled: impl Fn() -> bool) -> Option<BTreeMap<I, BoxedLink<H>>> {
        self.members.keys().for_each(|peer| self.connect(*peer));
        let mut links = BTreeMap::new();
        let mut reminded = Instant::now();
        while links.len() < self.members.len() {
            if cancelled() {
                return None;
            }
            // Who connects again has forgotten its first connection.
            links.extend(self.established.recv_timeout(LOOK));
            if reminded.elapsed() > REMIND {
                reminded = Instant::now();
                let missing = self
                    .members
                    .keys()
                    .filter(|peer| !links.contains_key(*peer));
                let missing: Vec<String> = missing.map(I::to_string).collect();
                info!(?missing, "waiting for peers");
            }
        }
        Some(links)
    }

    /// Links that were established since the last time.
    pub fn established(&self) -> impl Iterator<Item = (I, BoxedLink<H>)> {
        self.established.try_iter()
    }

    /// Frees memory that only a device keeps.
    pub fn forget_gone(&self) {
        self.negotiator.forget_gone();
    }
}

/// A peer that is being dialled.
struct Dial<I, H> {
    peer: I,
    address: SocketAddr,
    epoch: u64,
    credentials: Credentials<I>,
    negotiator: Arc<Negotiator>,
    round: Weak<Shared<I, H>>,
}

impl<I: PeerIdentity, H: Header> Dial<I, H> {
    /// Dials until the link is established or its round is over.
    fn run(&self) {
        let (mut pause, longest) = BACKOFF;
        let (begun, mut named) = (Instant::now(), false);
        let (peer, address) = (self.peer, self.address);
        while self.round.strong_count() > 0 {
            match self.once() {
                Ok(link) => {
                    if let Some(round) = self.round.upgrade() {
                        round.hand(peer, link);
                    }
                    return;
                }
                Err(Error::Exchange(error)) if !named && begun.elapsed() > LATE => {
                    named = true;
                    warn!(%peer, %address, %error, "this member does not answer at its data port, and is waited for");
                }
                Err(Error::Exchange(error)) => debug!(%peer, %address, %error, "not there yet"),
                Err(error) => warn!(%peer, %address, %error, "refused"),
            }
            thread::sleep(pause);
            pause = (pause * 2).min(longest);
        }
    }

    fn once(&self) -> Result<BoxedLink<H>, Error<I>> {
        let mut stream = TcpStream::connect_timeout(&self.address, DIAL_LIMIT)?;
        self.negotiator.tune(&stream)?;
        let answered = initiate(&mut stream, &self.credentials)?;
        if answered != self.peer {
            let expected = self.peer;
            return Err(Error::Somebody { expected, answered });
        }
        propose(&mut stream, self.epoch)?;
        Ok(self.negotiator.agree(stream, answered, Side::Dialled)?)
    }
}

/// Names the epoch to a peer that was dialled, and waits until it agrees.
pub(super) fn propose(stream: &mut TcpStream, epoch: u64) -> io::Result<()> {
    limit(stream, Some(MESSAGE_TIME))?;
    stream.write_all(&epoch.to_le_bytes())?;
    let mut agreed = [0; AGREED.len()];
    stream.read_exact(&mut agreed)?;
    limit(stream, None)
}
