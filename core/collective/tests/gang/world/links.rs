//! Links between sidecars: what arrives is handled in order, or overtakes the payload that takes time to read in.

use std::time::Duration;

use collective::machine::{Fence, Frame, Input, Machine, Placement};
use sim::To;

use super::{Event, Leads, MS, World};
use crate::fixture::memory::Payload;

/// A frame and its payload, or the end of the link.
pub(crate) type Item = Option<(Fence, Frame, Option<Payload>)>;

impl World {
    /// The nodes that live at the other ends of a node's links, and the epoch of these: the one that it joins, or is in.
    pub(crate) fn tree_peers(&self, node: usize) -> Option<(Vec<usize>, u64)> {
        let epoch_of = |node: usize| {
            let sidecar = &self.sidecars[node];
            let joins = sidecar.joining.as_ref().map(|joining| joining.epoch);
            joins.or(sidecar.machine.as_ref().map(|_| sidecar.epoch))
        };
        let epoch = epoch_of(node)?;
        let mut peers = match &self.sidecars[node].joining {
            Some(joining) => {
                let peers = joining.trees.tree_peers(joining.me).into_iter();
                peers.map(|peer| joining.members[peer]).collect()
            }
            None => self.peers(node),
        };
        peers.retain(|&peer| {
            let lives = self.hosts.runs(peer) && !self.hosts.is_frozen(peer);
            lives && epoch_of(peer) == Some(epoch) && !self.is_cut(node, peer)
        });
        (!peers.is_empty()).then_some((peers, epoch))
    }

    /// A link between two that live ends: each sees that in its time, and one perhaps after it has written a damaged
    /// payload where a sound one belongs.
    pub(crate) fn break_link(&mut self, node: usize, peer: usize, epoch: u64, damages: bool) {
        self.hosts.note(("link", node, peer, epoch, damages));
        if damages {
            self.sidecars[node].damaged.insert((peer, epoch));
        }
        self.lose_link(node, peer, epoch);
        self.lose_link(peer, node, epoch);
    }

    pub(crate) fn arrive(&mut self, to: usize, from: usize, epoch: u64, item: Item) {
        let sidecar = &mut self.sidecars[to];
        if sidecar.machine.is_none() || epoch > sidecar.epoch {
            // The link's other end is faster: what comes while this one is still connecting waits in the link.
            let mut joining = sidecar.joining.iter();
            if joining.any(|joining| joining.epoch == epoch) {
                sidecar.early.push((from, epoch, item));
            }
            return;
        }
        let incoming = sidecar.incoming.entry(from).or_default();
        incoming.push_back((epoch, item));
        self.take_in(to, from);
    }

    /// What waited in the links of an epoch can be handled.
    pub(crate) fn take_in_early(&mut self, to: usize) {
        let current = self.sidecars[to].epoch;
        for (from, epoch, item) in std::mem::take(&mut self.sidecars[to].early) {
            if epoch == current {
                self.arrive(to, from, epoch, item);
            }
        }
    }

    /// Handles what has arrived on a link, up to the next payload, which takes time to read in; where that is overtaken, up
    /// to the end of the link.
    pub(crate) fn take_in(&mut self, to: usize, from: usize) {
        let now = self.now();
        loop {
            let sidecar = &mut self.sidecars[to];
            let Ok(peer) = sidecar.members.binary_search(&from) else {
                return;
            };
            let mut reading = sidecar.reading.keys();
            let reads = reading.any(|(sender, _)| *sender == from);
            if reads && !self.setup.overtakes || sidecar.machine.is_none() {
                return;
            }
            let incoming = sidecar.incoming.entry(from).or_default();
            if reads && matches!(incoming.front(), Some((_, None))) {
                return; // All that came over a link is handed in before its loss.
            }
            let Some((epoch, item)) = incoming.pop_front() else {
                return;
            };
            if sidecar.ended.contains(&(from, epoch)) {
                continue;
            }
            let Some((fence, frame, payload)) = item else {
                sidecar.ended.insert((from, epoch));
                if epoch == sidecar.epoch {
                    self.handle(to, Input::PeerLost { peer });
                }
                continue;
            };
            sidecar.last_frame.insert(from, now);
            let Some(mut bytes) = payload else {
                self.handle(to, Input::Frame { peer, fence, frame });
                continue;
            };
            let read = (from, sidecar.read_in);
            // A link that is overtaken has no checksums.
            let is_damaged = !self.setup.overtakes && sidecar.damaged.contains(&(from, epoch));
            if is_damaged {
                bytes = bytes.iter().map(|byte| !byte).collect();
            }
            if let Some(machine) = &sidecar.machine
                && let Placement::Into(region) = machine.place(peer, fence, &frame)
            {
                self.check_unread(to, region);
                self.sidecars[to].memory.read_in(read, region, &bytes);
            }
            let sidecar = &mut self.sidecars[to];
            sidecar.read_in += 1;
            let sound = (!is_damaged).then_some((fence, frame, None));
            sidecar.reading.insert(read, (epoch, sound));
            let handled = Event::Handled { to, read };
            let most = MS / 5;
            self.hosts.within(MS / 1000..most, To::Process(to), handled);
        }
    }

    pub(crate) fn handled(&mut self, to: usize, read: (usize, u64)) {
        let sidecar = &mut self.sidecars[to];
        sidecar.memory.has_read_in(read);
        let (from, _) = read;
        if let Some(frame) = sidecar.reading.remove(&read) {
            let incoming = sidecar.incoming.entry(from).or_default();
            incoming.push_front(frame);
        }
        self.take_in(to, from);
    }

    pub(crate) fn schedule_tick(&mut self, node: usize) {
        if let Some(machine) = &self.sidecars[node].machine
            && machine.wake_at() != Duration::MAX
        {
            let at = machine.wake_at();
            self.hosts.wake_at(node, at, Event::Tick { node });
        }
    }

    pub(crate) fn tick(&mut self, node: usize) {
        self.handle(node, Input::Tick);
        let due = self.sidecars[node].machine.as_ref().map(Machine::wake_at);
        let now = self.now();
        assert!(due.is_none_or(|due| due > now), "a tick leaves nothing due");
    }

    /// A machine asks for a link.
    pub(crate) fn connect(&mut self, node: usize, peer: usize) {
        let sidecar = &self.sidecars[node];
        let (epoch, peer) = (sidecar.epoch, sidecar.members[peer]);
        let link = Event::Link { node, epoch, peer };
        let most = 5 * MS;
        self.hosts.within(MS / 10..most, To::Process(node), link);
    }

    /// Two sidecars link, as soon as both are there in the epoch.
    pub(crate) fn link(&mut self, node: usize, epoch: u64, peer: usize) {
        let is_there = |at: usize| {
            let sidecar = &self.sidecars[at];
            let runs = sidecar.machine.is_some() && sidecar.report.is_none();
            sidecar.epoch == epoch && runs && !self.hosts.is_frozen(at)
        };
        if !is_there(node) {
            return; // Its epoch is over.
        }
        if !is_there(peer) || self.is_cut(node, peer) {
            if self.setup.leads == Leads::Test && !self.hosts.runs(peer) {
                self.lose_link(node, peer, epoch);
                return;
            }
            let link = Event::Link { node, epoch, peer };
            self.hosts.after(20 * MS, To::Process(node), link);
            return;
        }
        for (one, other) in [(node, peer), (peer, node)] {
            let sidecar = &mut self.sidecars[one];
            if let Ok(peer) = sidecar.members.binary_search(&other) {
                sidecar.links.insert(other);
                self.handle(one, Input::Linked { peer });
            }
        }
    }
}
