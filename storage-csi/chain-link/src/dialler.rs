//! Services that are dialled until there is a link.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use link::connect::{Credentials, Negotiator, OPEN_EPOCH, Round};
use link::transport::BoxedLink;
use link::wake_fd::WakeFd;

use crate::header::ChainHeader;
use crate::peer::{PeerRole, StoragePeer};

/// Dials services, each on a thread of its own until it answers.
#[derive(Debug)]
pub struct Dialler {
    credentials: Credentials<StoragePeer>,
    negotiator: Arc<Negotiator>,
    wakes: Arc<WakeFd>,
    dialled: BTreeMap<u32, Dialled>,
}

#[derive(Debug)]
struct Dialled {
    address: SocketAddr,
    round: Round<StoragePeer, ChainHeader>,
}

impl Dialler {
    /// For this side, which is woken when there is a link.
    #[must_use]
    pub fn new(
        credentials: Credentials<StoragePeer>,
        negotiator: Negotiator,
        wakes: &Arc<WakeFd>,
    ) -> Self {
        Self {
            credentials,
            negotiator: Arc::new(negotiator),
            wakes: Arc::clone(wakes),
            dialled: BTreeMap::new(),
        }
    }

    /// A service is wanted at this address. One that is dialled there already goes on being dialled.
    pub fn dial(&mut self, service: u32, address: SocketAddr) {
        let is_dialled = |of: &Dialled| of.address == address;
        if self.dialled.get(&service).is_some_and(is_dialled) {
            return;
        }
        let file_system = self.credentials.identity.file_system();
        let peer = StoragePeer::new(file_system, PeerRole::Service, service);
        let round = Round::new(
            self.credentials.clone(),
            Arc::clone(&self.negotiator),
            OPEN_EPOCH,
            BTreeMap::from([(peer, address)]),
            Some(Arc::clone(&self.wakes)),
        );
        round.connect(peer);
        self.dialled.insert(service, Dialled { address, round });
    }

    /// It is not wanted any more.
    pub fn forget(&mut self, service: u32) {
        self.dialled.remove(&service);
    }

    /// Links that there are now. Their services are not dialled any more.
    pub fn take_established(&mut self) -> Vec<(StoragePeer, BoxedLink<ChainHeader>)> {
        let mut new = Vec::new();
        self.dialled.retain(|_, dialled| {
            let before = new.len();
            new.extend(dialled.round.established());
            new.len() == before
        });
        new
    }
}
