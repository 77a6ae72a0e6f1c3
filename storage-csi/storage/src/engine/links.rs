//! The links of a service: to the services that it shares chains with, of which the lower numbers dial, and to clients, which
//! dial it. A client's new connection ends its old one, so that nothing comes over that any more.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use chain_link::{
    Buffers, ChainHeader, ChainLink, ChainMap, ChunkBytes, Dialler, LinkError, PeerRole,
    ReceivedFrame, StoragePeer, wait,
};
use craq::encoding::ChainFrame;
use link::connect::{Acceptor, Credentials, Negotiator, Round};
use link::wake_fd::WakeFd;
use tracing::{debug, info, warn};

type PeerRound = Round<StoragePeer, ChainHeader>;

/// Where a frame came from, and where one goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// A service, by its number.
    Service(u32),
    /// A client's connection, by a number that none before had.
    Client(u64),
}

/// Where others dial, and what is needed to dial them.
#[derive(Debug)]
pub(crate) struct Ports {
    /// They are open as long as this is there.
    _acceptors: [Acceptor<StoragePeer, ChainHeader>; 2],
    members: PeerRound,
    clients: PeerRound,
    dialler: Dialler,
}

impl Ports {
    pub(crate) fn new(
        members: Acceptor<StoragePeer, ChainHeader>,
        clients: Acceptor<StoragePeer, ChainHeader>,
        credentials: Credentials<StoragePeer>,
        negotiator: Negotiator,
        wakes: &Arc<WakeFd>,
    ) -> Self {
        Self {
            members: members.serve(Some(Arc::clone(wakes))),
            clients: clients.serve(Some(Arc::clone(wakes))),
            _acceptors: [members, clients],
            dialler: Dialler::new(credentials, negotiator, wakes),
        }
    }
}

/// All links.
#[derive(Debug)]
pub(super) struct Links {
    number: u32,
    ports: Ports,
    buffers: Arc<Buffers>,
    links: BTreeMap<Source, ChainLink>,
    /// Where the services are that this one dials.
    addresses: BTreeMap<u32, SocketAddr>,
    /// The connection of each client.
    clients: BTreeMap<StoragePeer, u64>,
    last_connection: u64,
    ready: Vec<Source>,
    has_lost_clients: bool,
}

impl Links {
    pub(super) fn new(number: u32, ports: Ports, buffers: &Arc<Buffers>) -> Self {
        Self {
            number,
            ports,
            buffers: Arc::clone(buffers),
            links: BTreeMap::new(),
            addresses: BTreeMap::new(),
            clients: BTreeMap::new(),
            last_connection: 0,
            ready: Vec::new(),
            has_lost_clients: false,
        }
    }

    /// Links those services that share a chain with this one.
    pub(super) fn follow(&mut self, map: &ChainMap) {
        let ours = map
            .chains
            .values()
            .filter(|of| of.services.contains(&self.number));
        let others: BTreeSet<u32> = ours.flat_map(|of| of.services.iter().copied()).collect();
        let higher = others.range(self.number + 1..);
        let address = |service: &u32| Some((*service, map.services.get(service)?.members));
        let addresses: BTreeMap<u32, SocketAddr> = higher.filter_map(address).collect();
        // One that has moved is not the one that the link is to.
        for (service, before) in &self.addresses {
            if addresses.get(service) != Some(before) {
                self.links.remove(&Source::Service(*service));
                self.ports.dialler.forget(*service);
            }
        }
        self.addresses = addresses;
        self.dial();
    }

    fn dial(&mut self) {
        for (&service, &address) in &self.addresses {
            if !self.links.contains_key(&Source::Service(service)) {
                self.ports.dialler.dial(service, address);
            }
        }
    }

    /// Takes new links. Answers which services they are to.
    pub(super) fn establish(&mut self) -> Vec<u32> {
        let mut services = Vec::new();
        let mut new: Vec<_> = self.ports.members.established().collect();
        new.extend(self.ports.dialler.take_established());
        for (peer, link) in new {
            if peer.role() != Some(PeerRole::Service) {
                warn!(%peer, "refused: it is no storage service");
                continue;
            }
            let link = ChainLink::new(link, Arc::clone(&self.buffers));
            let service = peer.number();
            info!(%peer, "linked");
            self.links.insert(Source::Service(service), link);
            services.push(service);
        }
        let clients: Vec<_> = self.ports.clients.established().collect();
        for (peer, link) in clients {
            if peer.role() != Some(PeerRole::Client) {
                warn!(%peer, "refused: it is no client");
                continue;
            }
            self.last_connection += 1;
            if let Some(before) = self.clients.insert(peer, self.last_connection) {
                self.links.remove(&Source::Client(before));
                self.has_lost_clients = true;
            }
            let link = ChainLink::new(link, Arc::clone(&self.buffers));
            let source = Source::Client(self.last_connection);
            debug!(%peer, "a client");
            self.links.insert(source, link);
        }
        services
    }

    /// Sleeps until a link has something, or longer ago. Clients are not listened to if they may not ask.
    pub(super) fn wait(
        &mut self,
        wakes: &WakeFd,
        hears_clients: bool,
        most: Duration,
    ) -> io::Result<()> {
        let may = |source: &Source| hears_clients || matches!(source, Source::Service(_));
        let asked = || self.links.iter().filter(|(source, _)| may(source));
        let said = wait(wakes, asked().map(|(_, link)| link), most)?;
        let ready = asked().zip(said).filter(|(_, said)| *said);
        self.ready = ready.map(|((source, _), _)| *source).collect();
        Ok(())
    }

    /// Links that had something when it woke.
    pub(super) fn ready(&mut self) -> Vec<Source> {
        std::mem::take(&mut self.ready)
    }

    /// The next frame of a link.
    pub(super) fn receive(&mut self, source: Source) -> Option<ReceivedFrame> {
        let received = self.links.get_mut(&source)?.receive();
        received.unwrap_or_else(|error| {
            self.lost(source, &error);
            None
        })
    }

    /// Sends a frame; nothing comes of it without a link.
    pub(super) fn send(
        &mut self,
        to: Source,
        (chain, version): (u32, u64),
        frame: &ChainFrame<ChunkBytes>,
    ) {
        let Some(link) = self.links.get_mut(&to) else {
            return;
        };
        if let Err(error) = link.send(chain.into(), version, frame) {
            self.lost(to, &error);
        }
    }

    /// Sends what is queued, and dials who is missing.
    pub(super) fn flush(&mut self) {
        let mut lost = Vec::new();
        for (source, link) in &mut self.links {
            if let Err(error) = link.flush() {
                lost.push((*source, error));
            }
        }
        for (source, error) in lost {
            self.lost(source, &error);
        }
        self.dial();
    }

    /// Ends a link because of what came over it.
    pub(super) fn cut(&mut self, source: Source, why: &str) {
        warn!(?source, why, "ended a connection");
        self.remove(source);
    }

    fn lost(&mut self, source: Source, error: &LinkError) {
        match source {
            Source::Service(service) => warn!(service, %error, "lost the link to a service"),
            Source::Client(_) => debug!(%error, "lost a client"),
        }
        self.remove(source);
    }

    fn remove(&mut self, source: Source) {
        self.links.remove(&source);
        if let Source::Client(connection) = source {
            self.clients.retain(|_, of| *of != connection);
            self.has_lost_clients = true;
        }
    }

    /// Whether a client has gone since the last time.
    pub(super) fn take_lost_clients(&mut self) -> bool {
        std::mem::take(&mut self.has_lost_clients)
    }

    /// Whether this connection is open.
    pub(super) fn has_client(&self, connection: u64) -> bool {
        self.links.contains_key(&Source::Client(connection))
    }
}
