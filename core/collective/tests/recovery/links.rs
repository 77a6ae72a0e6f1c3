//! Links between sidecars: what arrives is handled in order, and a payload takes time to read in.

use std::time::Duration;

use collective::machine::{Fence, Frame, Input, Machine, Placement};

use crate::fixture::memory::Payload;
use crate::world::{Event, MS, World};

/// A frame and its payload, or the end of the link.
pub(crate) type Item = Option<(Fence, Frame, Option<Payload>)>;

impl World {
    /// The nodes that live at the other ends of a node's links, and the epoch of these: the one that it joins, or is in.
    pub(crate) fn neighbours(&self, node: usize) -> Option<(Vec<usize>, u64)> {
        let epoch_of = |node: usize| {
            let sidecar = &self.sidecars[node];
            let joins = sidecar.joining.as_ref().map(|joining| joining.epoch);
            joins.or(sidecar.machine.as_ref().map(|_| sidecar.epoch))
        };
        let epoch = epoch_of(node)?;
        let mut peers = match &self.sidecars[node].joining {
            Some(joining) => {
                let peers = joining.trees.neighbours(joining.me).into_iter();
                peers.map(|peer| joining.members[peer]).collect()
            }
            None => self.peers(node),
        };
        peers.retain(|&peer| {
            let lives = self.sidecars[peer].alive && !self.sidecars[peer].frozen;
            lives && epoch_of(peer) == Some(epoch) && !self.is_cut(node, peer)
        });
        (!peers.is_empty()).then_some((peers, epoch))
    }

    /// A link between two that live ends: each sees that in its time, and one perhaps after it has written a damaged
    /// payload where a sound one belongs.
    pub(crate) fn break_link(&mut self, node: usize, peer: usize, epoch: u64, damages: bool) {
        self.note(("link", node, peer, epoch, damages));
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

    /// Handles what has arrived on a link, up to the next payload, which takes time to read in.
    pub(crate) fn take_in(&mut self, to: usize, from: usize) {
        loop {
            let sidecar = &mut self.sidecars[to];
            let Ok(peer) = sidecar.members.binary_search(&from) else {
                return;
            };
            if sidecar.reading.contains(&from) || sidecar.machine.is_none() {
                return;
            }
            let Some((epoch, item)) = sidecar.incoming.entry(from).or_default().pop_front() else {
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
            let Some(mut bytes) = payload else {
                self.handle(to, Input::Frame { peer, fence, frame });
                continue;
            };
            let is_damaged = sidecar.damaged.contains(&(from, epoch));
            if is_damaged {
                bytes = bytes.iter().map(|byte| !byte).collect();
            }
            if let Some(machine) = &sidecar.machine
                && let Placement::Into(region) = machine.place(peer, fence, &frame)
            {
                self.check_unread(to, region);
                self.sidecars[to].memory.read_in(from, region, &bytes);
            }
            let sidecar = &mut self.sidecars[to];
            sidecar.reading.insert(from);
            let life = sidecar.life;
            let sound = (!is_damaged).then_some((fence, frame, None));
            let incoming = sidecar.incoming.entry(from).or_default();
            incoming.push_front((epoch, sound));
            let delay = self.a_while(MS / 1000, MS / 5);
            self.queue.after(delay, Event::Handled { to, from, life });
        }
    }

    pub(crate) fn handled(&mut self, to: usize, from: usize, life: u64) {
        if self.sidecars[to].life == life {
            self.sidecars[to].reading.remove(&from);
            self.sidecars[to].memory.has_read_in(from);
            self.take_in(to, from);
        }
    }

    pub(crate) fn schedule_tick(&mut self, node: usize) {
        let sidecar = &mut self.sidecars[node];
        let Some(machine) = &sidecar.machine else {
            return;
        };
        let (at, life) = (machine.wake_at(), sidecar.life);
        if at != Duration::MAX && sidecar.tick.is_none_or(|tick| at < tick) {
            sidecar.tick = Some(at);
            self.queue.at(at, Event::Tick { node, life });
        }
    }

    pub(crate) fn tick(&mut self, node: usize, life: u64) {
        if self.sidecars[node].life == life {
            self.sidecars[node].tick = None;
            self.handle(node, Input::Tick);
            let due = self.sidecars[node].machine.as_ref().map(Machine::wake_at);
            let now = self.now();
            assert!(due.is_none_or(|due| due > now), "a tick leaves nothing due");
        }
    }
}
