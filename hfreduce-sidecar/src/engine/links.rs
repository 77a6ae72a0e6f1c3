//! The links to neighbours: those that the trees of an epoch need from the start, and those made later for groups.

use std::collections::BTreeMap;

use link::transport::{Error, Outgoing, Placing, Received};
use tracing::{info, warn};

use super::LINK;
use super::members::Members;
use super::poller::Poller;
use crate::frame::{FencedFrame, Link};
use crate::linker::Linker;
use crate::metrics::Metrics;

#[derive(Debug)]
pub(super) struct Links {
    each: BTreeMap<usize, Link>,
    /// Makes further ones.
    linker: Option<Linker>,
    /// Neighbours whose links have something to send.
    pushed: Vec<usize>,
}

/// What became of what was to be sent: payloads that have left, and why nothing more can leave.
#[derive(Debug, Default)]
pub(super) struct Flushed {
    pub(super) left: Vec<u64>,
    pub(super) error: Option<Error>,
}

impl Links {
    pub(super) fn new(each: BTreeMap<usize, Link>, linker: Option<Linker>) -> Self {
        Self {
            each,
            linker,
            pushed: Vec::new(),
        }
    }

    /// The links of an epoch stand.
    pub(super) fn watch(
        &self,
        poller: &Poller,
        members: &Members,
        metrics: &Metrics,
    ) -> rustix::io::Result<()> {
        for (&peer, link) in &self.each {
            poller.watch(&link.socket(), LINK | peer as u64)?;
            let (rank, name) = (members.rank_of(peer), members.name(peer));
            metrics.suspect(rank, name, false);
            metrics.link(rank, name, link.name(), true);
        }
        metrics.peers.set(self.each.len() as i64);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.each.is_empty()
    }

    pub(super) fn peers(&self) -> Vec<usize> {
        self.each.keys().copied().collect()
    }

    pub(super) fn has(&self, peer: usize) -> bool {
        self.each.contains_key(&peer)
    }

    /// How each neighbour is reached.
    pub(super) fn transports(&self) -> impl Iterator<Item = (usize, &'static str)> {
        self.each.iter().map(|(&peer, link)| (peer, link.name()))
    }

    /// Whether payloads are read where the link has put them.
    pub(super) fn receives_in_place(&self, peer: usize) -> bool {
        self.each
            .get(&peer)
            .is_some_and(|link| link.receives_in_place())
    }

    /// A link's socket has something to say.
    pub(super) fn wake(&mut self, peer: usize) -> Result<(), Error> {
        self.each.get_mut(&peer).map_or(Ok(()), |link| link.wake())
    }

    /// The first neighbour from this one on whose socket does not signal that something has arrived.
    pub(super) fn polled_from(&self, peer: usize) -> Option<usize> {
        let mut links = self.each.range(peer..);
        links.find_map(|(&peer, link)| (link.is_polled() || link.has_more()).then_some(peer))
    }

    /// What has come over a link, if it stands.
    pub(super) fn receive(
        &mut self,
        peer: usize,
        place: &mut Placing<'_, FencedFrame>,
    ) -> Result<Received<FencedFrame>, Error> {
        let link = self.each.get_mut(&peer);
        link.map_or(Ok(Received::Nothing), |link| link.receive(place))
    }

    /// Whether anything has come over some link.
    pub(super) fn poll_received(&mut self) -> bool {
        self.each.values_mut().any(|link| link.poll_received())
    }

    /// Queues a frame. False when the link takes nothing any more.
    pub(super) fn push(
        &mut self,
        peer: usize,
        header: &FencedFrame,
        payload: Option<Outgoing>,
    ) -> Result<bool, Error> {
        let link = self.each.get_mut(&peer).filter(|link| link.can_send());
        let Some(link) = link else {
            return Ok(false);
        };
        link.push(header, payload)?;
        self.flush_soon(peer);
        Ok(true)
    }

    /// What is to be said to a neighbour by the link itself leaves with the next frames.
    pub(super) fn flush_soon(&mut self, peer: usize) {
        if self.has(peer) && !self.pushed.contains(&peer) {
            self.pushed.push(peer);
        }
    }

    /// A neighbour for whom something was queued.
    pub(super) fn next_pushed(&mut self) -> Option<usize> {
        self.pushed.pop()
    }

    /// Sends what is queued for a neighbour, as far as the link takes it.
    pub(super) fn flush(&mut self, peer: usize, poller: &Poller) -> Flushed {
        let mut flushed = Flushed::default();
        let Some(link) = self.each.get_mut(&peer) else {
            return flushed;
        };
        let was_blocked = link.is_blocked();
        flushed.error = link.flush(&mut flushed.left).err();
        if link.is_blocked() != was_blocked {
            poller.watch_room(link.socket(), LINK | peer as u64, !was_blocked);
        }
        flushed
    }

    /// How many frames are queued for the neighbour that is farthest behind.
    pub(super) fn most_queued(&self) -> usize {
        let queued = self.each.values().map(|link| link.queued());
        queued.max().unwrap_or(0)
    }

    /// Whether nothing is queued.
    pub(super) fn are_flushed(&self) -> bool {
        self.each.values().all(|link| link.is_flushed())
    }

    /// Nothing can be sent over a link any more. It is lost when all that came over it has been read: a peer
    /// that is gone has often said why before. The payloads that were queued.
    pub(super) fn stop_sending(
        &mut self,
        peer: usize,
        error: &Error,
        members: &Members,
    ) -> Vec<u64> {
        let (node, name) = (members.rank_of(peer), members.name(peer));
        info!(node, name, %error, "link takes nothing more");
        let mut left = Vec::new();
        if let Some(link) = self.each.get_mut(&peer) {
            link.abandon(&mut left);
        }
        left
    }

    /// Closes a link for good, whatever is still queued: those payloads.
    pub(super) fn close(
        &mut self,
        peer: usize,
        poller: &Poller,
        members: &Members,
        metrics: &Metrics,
    ) -> Vec<u64> {
        let mut left = Vec::new();
        if let Some(mut link) = self.each.remove(&peer) {
            poller.forget(link.socket());
            link.abandon(&mut left);
            metrics.peers.set(self.each.len() as i64);
            let (rank, name) = (members.rank_of(peer), members.name(peer));
            metrics.link(rank, name, link.name(), false);
        }
        left
    }

    /// A link has failed: says so.
    pub(super) fn note_lost(
        &self,
        peer: usize,
        error: &Error,
        members: &Members,
        metrics: &Metrics,
    ) {
        let (node, name) = (members.rank_of(peer), members.name(peer));
        if let Error::Damaged { .. } = error {
            metrics.damaged.inc();
            warn!(node, name, %error, "link ended");
        } else {
            info!(node, name, %error, "link ended");
        }
    }

    /// A group needs a link to a member.
    pub(super) fn connect(&self, rank: usize) {
        if let Some(linker) = &self.linker {
            linker.connect(rank);
        }
    }

    /// Takes the links that were established since, unless the epoch ends: for each member whether it could be watched.
    pub(super) fn take_established(
        &mut self,
        ends: bool,
        poller: &Poller,
        members: &Members,
        metrics: &Metrics,
    ) -> Vec<(usize, rustix::io::Result<()>)> {
        let established: Vec<_> = self.linker.iter().flat_map(Linker::established).collect();
        let mut taken = Vec::new();
        for (rank, link) in established {
            let Some(peer) = members
                .place_of(rank)
                .filter(|peer| !ends && !self.has(*peer))
            else {
                continue; // Who connects again has nothing to say that the first did not.
            };
            let watched = poller.watch(&link.socket(), LINK | peer as u64);
            if watched.is_ok() {
                info!(node = rank, transport = link.name(), "linked for a group");
                self.each.insert(peer, link);
                metrics.peers.set(self.each.len() as i64);
            }
            taken.push((peer, watched));
        }
        taken
    }

    /// Announces that the engine is about to sleep. False when something has come; an error is that of a neighbour's link.
    pub(super) fn sleep(&mut self) -> Result<bool, (usize, Error)> {
        for (&peer, link) in &mut self.each {
            if !link.sleep().map_err(|error| (peer, error))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(super) fn count_traffic(&mut self, metrics: &Metrics) {
        for link in self.each.values_mut() {
            let (sent, received) = link.take_traffic();
            metrics.sent_bytes.inc_by(sent);
            metrics.received_bytes.inc_by(received);
        }
    }

    /// Lets go of memory that only a device keeps.
    pub(super) fn forget_gone(&self) {
        self.linker.iter().for_each(Linker::forget_gone);
    }
}
