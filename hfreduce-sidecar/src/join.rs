//! Connections between sidecars: a door that others knock at, and dialling those with a higher rank.
//! Who the neighbours are is derived from the roster elsewhere; what is said over the connections is the engine's
//! business.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use daemon::pending::{Admission, Pending, PendingTicket};
use link::handshake::{Identity, Party};
use rustix::net::{Shutdown, shutdown};
use tracing::{debug, info, warn};

use crate::dial::{AGREED, Dial};
use crate::frame::Link;
use crate::introduce::{Credentials, Error, HANDSHAKE_LIMIT, limit, receive, respond};
use crate::linker::{Arrivals, Linker};
use crate::metrics::Metrics;
use crate::negotiate::{Negotiator, Side};
use crate::stop::Stop;

/// Connections that have not proved who they are: from addresses of members, and from others. A member has ten neighbours
/// at most.
const PENDING_LIMIT: usize = 64;
/// Connections that are answered at a time, each on a thread. What was evicted is gone in a moment.
const ANSWERED_LIMIT: usize = 4 * PENDING_LIMIT;
/// How often somebody who waits for neighbours looks whether he still should.
const LOOK: Duration = Duration::from_millis(20);
/// How long nobody is accepted while too many are answered.
const PAUSE: Duration = Duration::from_millis(1);
/// How often missing neighbours are named in the log.
const REMIND: Duration = Duration::from_secs(10);
/// The link to a neighbour.
pub(crate) type Joined = (usize, Link);

/// A round of connecting: who may knock, and who waits for it. A new round has a channel of its own, so
/// that no connection of an earlier one is taken for one of this.
#[derive(Debug)]
struct Round {
    epoch: u64,
    ranks: BTreeSet<u32>,
    arrivals: Arrivals,
}

/// The round under way, if there is one.
type Current = Arc<Mutex<Option<Round>>>;

fn current(round: &Current) -> MutexGuard<'_, Option<Round>> {
    // A round is put in place whole.
    round.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connections that have not proved who they are, each with what ends it.
#[derive(Debug)]
struct Unproved {
    /// Where members are, as the roster says.
    addresses: BTreeSet<IpAddr>,
    members: Pending<TcpStream>,
    others: Pending<TcpStream>,
}

/// Shared by who accepts and who answers.
#[derive(Clone, Debug)]
struct Pool(Arc<Mutex<Unproved>>);

/// A place in it.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    source: IpAddr,
    is_member: bool,
    ticket: PendingTicket,
}

impl Pool {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Unproved {
            addresses: BTreeSet::new(),
            members: Pending::new(PENDING_LIMIT),
            others: Pending::new(PENDING_LIMIT),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Unproved> {
        // Nothing that holds it panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection in. The one that makes room for it, if there has to be one, is ended.
    fn admit(&self, source: IpAddr, stream: &TcpStream, metrics: &Metrics) -> io::Result<Admitted> {
        let handle = stream.try_clone()?;
        let source = source.to_canonical();
        let mut unproved = self.lock();
        let is_member = unproved.addresses.contains(&source);
        let pool = if is_member {
            &mut unproved.members
        } else {
            &mut unproved.others
        };
        let Admission { ticket, evicted } = pool.admit(source, handle);
        drop(unproved);
        if let Some(evicted) = evicted {
            metrics.refused_connections.inc();
            // Whoever answers it reads its end.
            evicted.shutdown(std::net::Shutdown::Both).ok();
        }
        Ok(Admitted {
            source,
            is_member,
            ticket,
        })
    }

    /// It has proved who it is, or is over.
    fn settle(&self, admitted: Admitted) {
        let mut unproved = self.lock();
        let pool = if admitted.is_member {
            &mut unproved.members
        } else {
            &mut unproved.others
        };
        drop(pool.settle(admitted.source, admitted.ticket));
    }
}

/// Where neighbours with a lower rank connect. It stays open, so that who comes later is refused at once.
#[derive(Debug)]
pub struct Acceptor {
    address: SocketAddr,
    listener: Arc<TcpListener>,
    closed: Arc<AtomicBool>,
    credentials: Credentials,
    round: Current,
    negotiator: Arc<Negotiator>,
    pool: Pool,
}

/// Nobody can knock any more, and its thread ends.
impl Drop for Acceptor {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // Wakes who accepts, with an error.
        if let Err(error) = shutdown(&self.listener, Shutdown::Both) {
            debug!(%error, "failed to close the acceptor");
        }
    }
}

impl Acceptor {
    /// Opens the door.
    pub(crate) fn open(
        listener: TcpListener,
        credentials: Credentials,
        negotiator: Negotiator,
        metrics: Metrics,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (listener, closed) = (Arc::new(listener), Arc::new(AtomicBool::new(false)));
        let round = Current::default();
        let acceptor = Self {
            address,
            listener: Arc::clone(&listener),
            closed: Arc::clone(&closed),
            credentials: credentials.clone(),
            round: Arc::clone(&round),
            negotiator: Arc::new(negotiator),
            pool: Pool::new(),
        };
        let (negotiator, pool) = (Arc::clone(&acceptor.negotiator), acceptor.pool.clone());
        thread::Builder::new()
            .name("acceptor".to_owned())
            .spawn(move || {
                let pending_handshakes = Arc::new(AtomicUsize::new(0));
                while !closed.load(Ordering::Acquire) {
                    if pending_handshakes.load(Ordering::Relaxed) >= ANSWERED_LIMIT {
                        thread::sleep(PAUSE);
                        continue;
                    }
                    let accepted = listener.accept().and_then(|(stream, from)| {
                        let admitted = pool.admit(from.ip(), &stream, &metrics)?;
                        Ok((stream, admitted))
                    });
                    let Ok((stream, admitted)) = accepted else {
                        // Of descriptors there are some again when others have been answered.
                        thread::sleep(LOOK);
                        continue;
                    };
                    pending_handshakes.fetch_add(1, Ordering::Relaxed);
                    let pending = PendingHandshake {
                        credentials: credentials.clone(),
                        round: Arc::clone(&round),
                        negotiator: Arc::clone(&negotiator),
                        metrics: metrics.clone(),
                        pool: pool.clone(),
                        admitted,
                    };
                    let counter = Arc::clone(&pending_handshakes);
                    let spawned =
                        thread::Builder::new()
                            .name("handshake".to_owned())
                            .spawn(move || {
                                pending.answer(stream);
                                counter.fetch_sub(1, Ordering::Relaxed);
                            });
                    if spawned.is_err() {
                        pool.settle(admitted);
                        pending_handshakes.fetch_sub(1, Ordering::Relaxed);
                    }
                }
            })?;
        Ok(acceptor)
    }

    /// The roster: members are at these addresses, and have room of their own at the door.
    pub(crate) fn expect(&self, addresses: impl Iterator<Item = IpAddr>) {
        self.pool.lock().addresses = addresses.map(|address| address.to_canonical()).collect();
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connects to all `neighbours`: those with a higher rank are dialled, the others awaited. Goes on until
    /// all are there; `none` when `cancelled` says so first.
    pub fn connect(
        &self,
        epoch: u64,
        neighbours: &BTreeMap<usize, SocketAddr>,
        cancelled: impl Fn() -> bool,
    ) -> Option<BTreeMap<usize, Link>> {
        let Party::Sidecar { rank } = self.credentials.identity.party else {
            return None;
        };
        let over = Arc::new(AtomicBool::new(false));
        let (sender, joined) = channel();
        let arrivals = Arrivals::new(sender);
        let lower = neighbours
            .keys()
            .map(|peer| *peer as u32)
            .filter(|peer| *peer < rank);
        *current(&self.round) = Some(Round {
            epoch,
            ranks: lower.collect(),
            arrivals: arrivals.clone(),
        });
        for (peer, address) in neighbours.iter().filter(|(peer, _)| **peer as u32 > rank) {
            Dial {
                peer: *peer,
                address: *address,
                epoch,
                credentials: self.credentials.clone(),
                over: Arc::clone(&over),
                arrivals: arrivals.clone(),
                negotiator: Arc::clone(&self.negotiator),
            }
            .spawn();
        }
        let mut links = BTreeMap::new();
        let mut reminded = Instant::now();
        let missing = |links: &BTreeMap<usize, Link>| -> Vec<usize> {
            let there = |peer: &&usize| !links.contains_key(*peer);
            neighbours.keys().filter(there).copied().collect()
        };
        while links.len() < neighbours.len() && !cancelled() {
            match joined.recv_timeout(LOOK) {
                // Who connects again has forgotten its first connection.
                Ok((peer, link)) if neighbours.contains_key(&peer) => {
                    links.insert(peer, link);
                }
                Ok(_) | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if reminded.elapsed() > REMIND {
                reminded = Instant::now();
                info!(missing = ?missing(&links), "waiting for neighbours");
            }
        }
        over.store(true, Ordering::Release);
        *current(&self.round) = None;
        missing(&links).is_empty().then_some(links)
    }
}

impl Acceptor {
    /// After a round: from here on any member of the epoch may connect, when a group needs it.
    pub(crate) fn linker(
        &self,
        epoch: u64,
        addresses: BTreeMap<usize, SocketAddr>,
        stop: Stop,
    ) -> Option<Linker> {
        let Party::Sidecar { rank } = self.credentials.identity.party else {
            return None;
        };
        let negotiator = Arc::clone(&self.negotiator);
        let credentials = self.credentials.clone();
        let linker = Linker::new(rank, epoch, credentials, negotiator, addresses, stop);
        *current(&self.round) = Some(Round {
            epoch,
            ranks: linker.lower().collect(),
            arrivals: linker.arrivals(),
        });
        Some(linker)
    }
}

/// A connection that somebody made to the door.
struct PendingHandshake {
    credentials: Credentials,
    round: Current,
    negotiator: Arc<Negotiator>,
    metrics: Metrics,
    pool: Pool,
    admitted: Admitted,
}

impl PendingHandshake {
    fn answer(&self, mut stream: TcpStream) {
        let wanted = |identity: Identity| match identity.party {
            Party::Operator => false,
            Party::Sidecar { rank } => {
                let round = current(&self.round);
                round.as_ref().is_some_and(|of| of.ranks.contains(&rank))
            }
        };
        let proved = respond(&mut stream, &self.credentials, wanted);
        self.pool.settle(self.admitted);
        let answered = proved
            .and_then(|identity| Ok(self.negotiator.tune(&stream).map(|()| identity)?))
            .and_then(|identity| self.agree(&mut stream, identity));
        let from = stream.peer_addr();
        let taken = answered.and_then(|(rank, arrivals)| {
            let link = self.negotiator.agree(stream, rank, Side::Answered)?;
            arrivals.hand((rank as usize, link));
            Ok(())
        });
        match taken {
            Ok(()) => {}
            // A neighbour that was told of the roster first comes again.
            Err(error @ (Error::Unwanted(_) | Error::Epoch { .. })) => {
                debug!(%error, "refused a connection for now");
            }
            // Somebody asked whether this node is reached.
            Err(Error::Exchange(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                debug!(%error, "a connection that said nothing");
            }
            // Whoever can reach the port makes as many of these as it likes.
            Err(Error::Exchange(error)) => {
                self.metrics.refused_connections.inc();
                debug!(%error, "a connection that did not say in time who it is");
            }
            Err(error) => {
                self.metrics.refused_connections.inc();
                let from = from.map_or_else(|_| "?".to_owned(), |a| a.to_string());
                warn!(%error, from, "refused a connection to the data port");
            }
        }
    }
}

impl PendingHandshake {
    /// Takes the connection into the round of its epoch, and tells the dialler. Without this, one that
    /// comes while rosters change is taken into a round that is given up, and its dialler believes that
    /// it stands.
    fn agree(&self, stream: &mut TcpStream, identity: Identity) -> Result<(u32, Arrivals), Error> {
        let Party::Sidecar { rank } = identity.party else {
            return Err(Error::Unwanted(identity));
        };
        limit(stream, Some(HANDSHAKE_LIMIT))?;
        let mut epoch = [0; 8];
        receive(stream, &mut epoch)?;
        let theirs = u64::from_le_bytes(epoch);
        let arrivals = match &*current(&self.round) {
            Some(round) if round.epoch == theirs && round.ranks.contains(&rank) => {
                round.arrivals.clone()
            }
            Some(_) | None => {
                return Err(Error::Epoch {
                    claim: identity,
                    theirs,
                });
            }
        };
        stream.write_all(&AGREED)?;
        limit(stream, None)?;
        Ok((rank, arrivals))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::path::PathBuf;

    use link::handshake::{JobId, Key};

    use super::*;
    use crate::dial::propose;
    use crate::introduce::initiate;
    use crate::member::MemberOptions;
    use crate::negotiate::Preference;

    fn acceptor(rank: u32) -> Acceptor {
        let identity = Identity {
            job: JobId::new("job"),
            attempt: 1,
            party: Party::Sidecar { rank },
        };
        let credentials = Credentials {
            identity,
            key: Key::new([7; 32]),
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let metrics = Metrics::new(&daemon::Registry::new("test").unwrap()).unwrap();
        let options = MemberOptions {
            transport: Preference::Tcp,
            ..MemberOptions::new(PathBuf::new())
        };
        let negotiator = Negotiator::open(&options);
        Acceptor::open(listener, credentials, negotiator, metrics).unwrap()
    }

    #[test]
    fn a_door_that_is_dropped_closes_its_port() {
        let acceptor = acceptor(0);
        let address = acceptor.address();
        TcpStream::connect(address).unwrap();
        drop(acceptor);
        // Its thread lets the listener go after that.
        let start = Instant::now();
        while TcpListener::bind(address).is_err() {
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "{address} is still taken"
            );
            thread::yield_now();
        }
    }

    #[test]
    fn a_connection_of_another_epoch_is_refused_and_one_of_this_epoch_is_taken() {
        let (low, high) = (acceptor(0), acceptor(1));
        let to_low = BTreeMap::from([(0, low.address())]);
        let to_high = BTreeMap::from([(1, high.address())]);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| high.connect(5, &to_low, || false));
            let wait = Instant::now();
            while current(&high.round).is_none() {
                assert!(
                    wait.elapsed() < HANDSHAKE_LIMIT,
                    "the acceptor never opened a round"
                );
                thread::yield_now();
            }
            let mut early = TcpStream::connect(high.address()).unwrap();
            initiate(&mut early, &low.credentials).unwrap();
            assert!(
                propose(&mut early, 4).is_err(),
                "epoch 4 was taken into epoch 5"
            );
            assert_eq!(low.connect(5, &to_high, || false).unwrap().len(), 1);
            assert_eq!(waiting.join().unwrap().unwrap().len(), 1);
        });
    }
}
