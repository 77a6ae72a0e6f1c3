//! Connections that others make to this side's port: how many may be unproved at a time, and which are let into the
//! round under way.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{Shutdown, shutdown};
use tracing::{debug, warn};

use super::authenticate::respond;
use super::round::Shared;
use super::{Credentials, Error, Negotiator, Round, Side, limit, receive};
use crate::handshake::PeerIdentity;
use crate::header::Header;
use crate::limits::{ANSWERED_CONNECTIONS, MESSAGE_TIME, PENDING_CONNECTIONS};
use crate::pending::{Admission, Pending, PendingTicket};
use crate::wake_fd::WakeFd;

/// How long nobody is accepted after accepting has failed.
const RETRY: Duration = Duration::from_millis(20);
/// How long nobody is accepted while too many are answered.
const PAUSE: Duration = Duration::from_millis(1);
/// What the acceptor says once it agrees on the epoch.
pub(super) const AGREED: [u8; 1] = [1];

/// The connections that have not proved who they are, each with what ends it.
#[derive(Debug)]
struct Unproved {
    /// Where members are.
    addresses: BTreeSet<IpAddr>,
    members: Pending<TcpStream>,
    others: Pending<TcpStream>,
}

impl Unproved {
    /// Members have room of their own.
    fn pool(&mut self, is_member: bool) -> &mut Pending<TcpStream> {
        if is_member {
            &mut self.members
        } else {
            &mut self.others
        }
    }
}

/// A place among them.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    source: IpAddr,
    is_member: bool,
    ticket: PendingTicket,
}

/// What the acceptor and its threads share.
struct Port<I, H> {
    listener: TcpListener,
    closed: AtomicBool,
    credentials: Credentials<I>,
    negotiator: Arc<Negotiator>,
    /// Counts connections that were refused.
    refused: Box<dyn Fn() + Send + Sync>,
    round: Mutex<Weak<Shared<I, H>>>,
    unproved: Mutex<Unproved>,
    /// Connections that are answered now.
    answered: AtomicUsize,
}

/// Where lower members connect. It stays open between rounds, so that who comes later is refused at once.
pub struct Acceptor<I, H> {
    address: SocketAddr,
    port: Arc<Port<I, H>>,
}

impl<I, H> fmt::Debug for Acceptor<I, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Acceptor({})", self.address)
    }
}

/// Nobody can connect any more, and its thread ends.
impl<I, H> Drop for Acceptor<I, H> {
    fn drop(&mut self) {
        self.port.closed.store(true, Ordering::Release);
        // Wakes who accepts, with an error.
        if let Err(error) = shutdown(&self.port.listener, Shutdown::Both) {
            debug!(%error, "failed to close the port");
        }
    }
}

impl<I: PeerIdentity, H: Header> Acceptor<I, H> {
    /// Accepts from here on. `refused` counts connections that were turned away.
    pub fn open(
        listener: TcpListener,
        credentials: Credentials<I>,
        negotiator: Negotiator,
        refused: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let port = Arc::new(Port {
            listener,
            closed: AtomicBool::new(false),
            credentials,
            negotiator: Arc::new(negotiator),
            refused: Box::new(refused),
            round: Mutex::default(),
            unproved: Mutex::new(Unproved {
                addresses: BTreeSet::new(),
                members: Pending::new(PENDING_CONNECTIONS),
                others: Pending::new(PENDING_CONNECTIONS),
            }),
            answered: AtomicUsize::new(0),
        });
        let accepts = Arc::clone(&port);
        thread::Builder::new()
            .name("acceptor".to_owned())
            .spawn(move || {
                while !accepts.closed.load(Ordering::Acquire) {
                    accepts.accept();
                }
            })?;
        Ok(Self { address, port })
    }

    /// Members are at these addresses, and have room of their own.
    pub fn expect(&self, addresses: impl Iterator<Item = IpAddr>) {
        let addresses = addresses.map(|address| address.to_canonical());
        self.port.unproved().addresses = addresses.collect();
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins a round with these members; that before it is over here. `wakes` is notified when a link is
    /// established.
    pub fn begin(
        &self,
        epoch: u64,
        members: BTreeMap<I, SocketAddr>,
        wakes: Option<Arc<WakeFd>>,
    ) -> Round<I, H> {
        let Port {
            credentials,
            negotiator,
            ..
        } = &*self.port;
        let (credentials, negotiator) = (credentials.clone(), Arc::clone(negotiator));
        let round = Round::new(credentials, negotiator, epoch, members, wakes);
        *self.port.round() = round.shared();
        round
    }

    /// Takes whoever has the key and dials in [`OPEN_EPOCH`](super::OPEN_EPOCH), at any time; a round before is over here.
    pub fn serve(&self, wakes: Option<Arc<WakeFd>>) -> Round<I, H> {
        let Port {
            credentials,
            negotiator,
            ..
        } = &*self.port;
        let round = Round::open(credentials.clone(), Arc::clone(negotiator), wakes);
        *self.port.round() = round.shared();
        round
    }
}

impl<I, H> Port<I, H> {
    fn unproved(&self) -> MutexGuard<'_, Unproved> {
        // Nothing that holds it panics.
        self.unproved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn round(&self) -> MutexGuard<'_, Weak<Shared<I, H>>> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection in. The one that makes room for it, if there has to be one, is ended.
    fn admit(&self, source: IpAddr, stream: &TcpStream) -> io::Result<Admitted> {
        let handle = stream.try_clone()?;
        let source = source.to_canonical();
        let mut unproved = self.unproved();
        let is_member = unproved.addresses.contains(&source);
        let Admission { ticket, evicted } = unproved.pool(is_member).admit(source, handle);
        drop(unproved);
        if let Some(evicted) = evicted {
            (self.refused)();
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
        let mut unproved = self.unproved();
        let pool = unproved.pool(admitted.is_member);
        drop(pool.settle(admitted.source, admitted.ticket));
    }
}

impl<I: PeerIdentity, H: Header> Port<I, H> {
    /// Accepts a connection and answers it on a thread.
    fn accept(self: &Arc<Self>) {
        if self.answered.load(Ordering::Relaxed) >= ANSWERED_CONNECTIONS {
            thread::sleep(PAUSE);
            return;
        }
        let accepted = self.listener.accept().and_then(|(stream, from)| {
            let admitted = self.admit(from.ip(), &stream)?;
            Ok((stream, admitted))
        });
        let Ok((stream, admitted)) = accepted else {
            // Of descriptors there are some again when others have been answered.
            thread::sleep(RETRY);
            return;
        };
        self.answered.fetch_add(1, Ordering::Relaxed);
        let port = Arc::clone(self);
        let named = thread::Builder::new().name("handshake".to_owned());
        let spawned = named.spawn(move || {
            port.answer(stream, admitted);
            port.answered.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            self.settle(admitted);
            self.answered.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn answer(&self, stream: TcpStream, admitted: Admitted) {
        let from = stream.peer_addr();
        match self.establish(stream, admitted) {
            Ok(()) => {}
            // A peer that learnt of the epoch first comes again.
            Err(error @ (Error::Unwanted(_) | Error::Epoch { .. })) => {
                debug!(%error, "refused a connection for now");
            }
            // Somebody asked whether this node is reached.
            Err(Error::Exchange(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                debug!(%error, "a connection that said nothing");
            }
            // Whoever can reach the port makes as many of these as it likes: they are counted, and fill no log.
            Err(error @ (Error::Exchange(_) | Error::Handshake(_))) => {
                (self.refused)();
                debug!(%error, "a connection that did not prove who it is");
            }
            // It has the key.
            Err(error) => {
                (self.refused)();
                let from = from.map_or_else(|_| "?".to_owned(), |a| a.to_string());
                warn!(%error, from, "refused a connection to the data port");
            }
        }
    }

    fn establish(&self, mut stream: TcpStream, admitted: Admitted) -> Result<(), Error<I>> {
        let wanted = |peer| {
            let round = self.round().upgrade();
            round.is_some_and(|round| round.callers.has(&peer))
        };
        let proved = respond(&mut stream, &self.credentials, wanted);
        self.settle(admitted);
        let peer = proved?;
        self.negotiator.tune(&stream)?;
        let round = self.agree(&mut stream, peer)?;
        let link = self.negotiator.agree(stream, peer, Side::Answered)?;
        if let Some(round) = round.upgrade() {
            round.hand(peer, link);
        }
        Ok(())
    }

    /// Takes the connection into the round of its epoch, and answers the dialler. Without this, one that comes while
    /// members change is taken into a round that is given up, and its dialler believes that it is established.
    fn agree(&self, stream: &mut TcpStream, claim: I) -> Result<Weak<Shared<I, H>>, Error<I>> {
        limit(stream, Some(MESSAGE_TIME))?;
        let mut epoch = [0; 8];
        receive(stream, &mut epoch, Instant::now() + MESSAGE_TIME)?;
        let theirs = u64::from_le_bytes(epoch);
        let round = self.round().clone();
        let fits = |round: Arc<Shared<I, H>>| round.epoch == theirs && round.callers.has(&claim);
        if !round.upgrade().is_some_and(fits) {
            return Err(Error::Epoch { claim, theirs });
        }
        stream.write_all(&AGREED)?;
        limit(stream, None)?;
        Ok(round)
    }
}
