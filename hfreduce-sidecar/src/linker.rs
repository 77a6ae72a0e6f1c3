//! Links that are made during an epoch, to members that no tree of the world joins to this node: groups need them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::dial::Dial;
use crate::introduce::Credentials;
use crate::join::Joined;
use crate::negotiate::Negotiator;
use crate::stop::Stop;

/// Where a new link is handed to.
#[derive(Clone, Debug)]
pub(crate) struct Arrivals {
    sender: Sender<Joined>,
    /// Notified for a thread that waits elsewhere.
    wakes: Option<Stop>,
}

impl Arrivals {
    /// For somebody who waits at the other end.
    pub(crate) fn new(sender: Sender<Joined>) -> Self {
        let wakes = None;
        Self { sender, wakes }
    }

    pub(crate) fn hand(&self, link: Joined) {
        self.sender.send(link).ok();
        if let Some(wakes) = &self.wakes {
            wakes.wake_fd().notify();
        }
    }
}

/// Makes links in one epoch. Its end is that of what it still dials.
#[derive(Debug)]
pub struct Linker {
    rank: u32,
    epoch: u64,
    credentials: Credentials,
    negotiator: Arc<Negotiator>,
    /// Of each member.
    addresses: BTreeMap<usize, SocketAddr>,
    arrivals: Arrivals,
    arrived: Receiver<Joined>,
    over: Arc<AtomicBool>,
}

impl Linker {
    pub(crate) fn new(
        rank: u32,
        epoch: u64,
        credentials: Credentials,
        negotiator: Arc<Negotiator>,
        addresses: BTreeMap<usize, SocketAddr>,
        stop: Stop,
    ) -> Self {
        let (sender, arrived) = channel();
        Self {
            rank,
            epoch,
            credentials,
            negotiator,
            addresses,
            arrivals: Arrivals {
                sender,
                wakes: Some(stop),
            },
            arrived,
            over: Arc::default(),
        }
    }

    /// Where links that others have asked for go to.
    pub(crate) fn arrivals(&self) -> Arrivals {
        self.arrivals.clone()
    }

    /// Members with a lower rank, who dial this one.
    pub(crate) fn lower(&self) -> impl Iterator<Item = u32> {
        let ranks = self.addresses.keys().map(|rank| *rank as u32);
        ranks.filter(|rank| *rank < self.rank)
    }

    /// A link to this member is needed: one with a higher rank is dialled, the others come.
    pub(crate) fn connect(&self, peer: usize) {
        let Some(&address) = self.addresses.get(&peer) else {
            return;
        };
        if (peer as u32) < self.rank {
            return;
        }
        Dial {
            peer,
            address,
            epoch: self.epoch,
            credentials: self.credentials.clone(),
            over: Arc::clone(&self.over),
            arrivals: self.arrivals.clone(),
            negotiator: Arc::clone(&self.negotiator),
        }
        .spawn();
    }

    /// Lets go of memory that only a device keeps.
    pub(crate) fn forget_gone(&self) {
        self.negotiator.forget_gone();
    }

    /// Links that stand since the last time.
    pub(crate) fn arrived(&self) -> impl Iterator<Item = Joined> {
        self.arrived.try_iter()
    }
}

impl Drop for Linker {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}
