//! Links to other nodes of an epoch, by their ranks.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use collective::membership::encoding::Peer;
use contract::identity::{Identity, Party};
use link::connect::{Acceptor, Round};

use crate::frame::{FencedFrame, Link};
use crate::stop::Stop;

/// The port where other nodes connect.
pub(crate) type DataPort = Acceptor<Identity, FencedFrame>;

/// Makes links in one epoch, to members that no tree of the world joins to this node: groups need them.
#[derive(Debug)]
pub struct Linker {
    own: Identity,
    round: Round<Identity, FencedFrame>,
}

impl Linker {
    /// From here on any of these members may connect.
    pub(crate) fn new<'a>(
        port: &DataPort,
        own: Identity,
        epoch: u64,
        peers: impl Iterator<Item = &'a Peer>,
        stop: &Stop,
    ) -> Self {
        let members = peers.map(|peer| member(own, peer)).collect();
        let round = port.begin(epoch, members, Some(stop.wake_fd_handle()));
        Self { own, round }
    }

    /// A link to this member is needed: one with a higher rank is dialled, the others connect by themselves.
    pub(crate) fn connect(&self, rank: usize) {
        self.round.connect(self.own.peer(rank as u32));
    }

    /// Links that were established since the last time.
    pub(crate) fn established(&self) -> impl Iterator<Item = (usize, Link)> {
        by_rank(self.round.established())
    }

    /// Frees memory that only a device keeps.
    pub(crate) fn forget_gone(&self) {
        self.round.forget_gone();
    }
}

/// Links to all of these peers; none when `cancelled` says so first.
pub(crate) fn connect_all<'a>(
    port: &DataPort,
    own: Identity,
    epoch: u64,
    peers: impl Iterator<Item = &'a Peer>,
    cancelled: impl Fn() -> bool,
) -> Option<BTreeMap<usize, Link>> {
    let members = peers.map(|peer| member(own, peer)).collect();
    let links = port.begin(epoch, members, None).connect_all(cancelled)?;
    Some(by_rank(links).collect())
}

fn member(own: Identity, peer: &Peer) -> (Identity, SocketAddr) {
    let address = SocketAddr::new(peer.address, peer.port);
    (own.peer(peer.rank), address)
}

fn by_rank(
    links: impl IntoIterator<Item = (Identity, Link)>,
) -> impl Iterator<Item = (usize, Link)> {
    let links = links.into_iter();
    links.filter_map(|(identity, link)| match identity.party {
        Party::Sidecar { rank } => Some((rank as usize, link)),
        Party::Operator => None,
    })
}
