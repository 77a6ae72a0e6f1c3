//! How groups come to stand on a node and end there, and the links that they need besides those of the world.

use std::time::Duration;

use collective::machine::{Dispute, GroupId, Input, OpenError, OpenReason};

use crate::sidecar::Seat;
use crate::world::{Event, MS, World};

impl World {
    /// A rank opens a group, or its sidecar does it again for it in a new epoch.
    pub(crate) fn open(&mut self, node: usize, group: GroupId, rank: u32, local: usize) {
        let member = self.member(group, rank);
        let asks = member.is_some_and(|member| member.asked && member.opened.is_none());
        let seat = self.sidecars[node].seats.get(&(group, local));
        if seat.map_or(!asks, |seat| seat.asked) {
            return;
        }
        let lane = &self.lanes[&group];
        let (ranks, replicated) = (lane.ranks.clone(), lane.replicated);
        let seat = Seat {
            asked: true,
            ..Seat::default()
        };
        let seats = &mut self.sidecars[node].seats;
        seats.entry((group, local)).or_insert(seat).asked = true;
        let open = Input::Open {
            group,
            rank: local,
            ranks,
            replicated,
        };
        self.handle(node, open);
    }

    pub(crate) fn opened(
        &mut self,
        node: usize,
        group: GroupId,
        local: usize,
        outcome: Result<(), OpenError>,
    ) {
        let rank = self.setup.layout.ranks(node).start + local as u32;
        self.note(("opened", node, group, rank, outcome));
        if let Err(error) = outcome {
            let reason = OpenReason::Gateway;
            let lies_apart = matches!(
                error,
                OpenError::Dispute(Dispute::Refused { reason: why, .. }) if why == reason
            );
            assert!(lies_apart, "group {group} of rank {rank}: {error}");
            let sidecar = &mut self.sidecars[node];
            sidecar.memory.forget(group);
            sidecar.own.retain(|buffer| buffer.group() != group);
        }
        let client = &self.clients[rank as usize];
        let hears = client.alive && !client.out;
        let Some(member) = self.member_mut(group, rank).filter(|_| hears) else {
            return;
        };
        let is_first = member.opened.is_none();
        let submitted = member.outcomes.len();
        if is_first || outcome.is_err() {
            member.opened = Some(outcome);
        }
        if is_first && outcome.is_ok() {
            member.remembered = true;
            self.tell_what_is_over(node, rank, local);
        }
        let seats = &mut self.sidecars[node].seats;
        if is_first && outcome.is_err() {
            seats.remove(&(group, local));
        } else if let Some(seat) = seats.get_mut(&(group, local)) {
            assert!(!seat.stands, "answered once");
            (seat.stands, seat.submitted) = (outcome.is_ok(), submitted);
        }
        self.queue.after(MS / 1000, Event::Call { rank });
    }

    /// A process hears which of its groups it need not remember.
    fn tell_what_is_over(&mut self, node: usize, rank: u32, local: usize) {
        let over = std::mem::take(&mut self.sidecars[node].over);
        let (mine, others) = over.into_iter().partition(|&(of, _)| of == local);
        self.sidecars[node].over = others;
        let mine: Vec<(usize, GroupId)> = mine;
        for (_, group) in mine {
            if let Some(member) = self.member_mut(group, rank) {
                member.remembered = false;
            }
        }
    }

    /// A machine asks for a link.
    pub(crate) fn connect(&mut self, node: usize, peer: usize) {
        let sidecar = &self.sidecars[node];
        let (life, epoch, peer) = (sidecar.life, sidecar.epoch, sidecar.members[peer]);
        let delay = self.a_while(MS / 10, 5 * MS);
        let link = Event::Link {
            node,
            life,
            epoch,
            peer,
        };
        self.queue.after(delay, link);
    }

    /// Two sidecars link, as soon as both are there in the epoch.
    pub(crate) fn link(&mut self, node: usize, life: u64, epoch: u64, peer: usize) {
        let is_there = |at: usize| {
            let sidecar = &self.sidecars[at];
            let runs = sidecar.machine.is_some() && sidecar.report.is_none();
            sidecar.epoch == epoch && runs && !sidecar.frozen
        };
        if self.sidecars[node].life != life || !is_there(node) {
            return; // Its epoch is over.
        }
        if !is_there(peer) || self.is_cut(node, peer) {
            let pause: Duration = 20 * MS;
            let link = Event::Link {
                node,
                life,
                epoch,
                peer,
            };
            self.queue.after(pause, link);
            return;
        }
        for (one, other) in [(node, peer), (peer, node)] {
            if let Ok(peer) = self.sidecars[one].members.binary_search(&other) {
                self.handle(one, Input::Linked { peer });
            }
        }
    }
}
