//! How a sidecar serves its processes, with the code that the real one has for it: processes attach, call, learn what has
//! ended, and leave; the sidecar provides memory for what it hands to the machine.

use std::collections::BTreeSet;

use collective::OpKind;
use collective::machine::{Buffer, Dispute, GroupId, OpId, OpenError, OpenReason, WORLD};
use collective::recovery::EpochReport;
use collective::session::{Called, OpeningAnswer, Presence, Remembered, Sessions};
use sim::To;

use super::groups::Member;
use super::sidecars::Sidecar;
use super::{Event, MS, World};
use crate::fixture::memory::Id;

/// Which call of its process one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// The k-th of a group's program.
    Operation(usize),
    /// A side of a message between two ranks: sends it or receives it.
    Message(usize, usize),
}

impl World {
    /// Those of a sidecar that starts. After a loss of its memory it waits for the processes that it had.
    pub(crate) fn new_sidecar(&self, node: usize) -> Sidecar {
        let own = self.setup.layout.ranks(node);
        let mut ranks = Sessions::new(own.clone(), self.clients.len() as u32);
        if self.hosts.has_died(node) {
            let returns = |rank: &u32| {
                let client = &self.clients[*rank as usize];
                client.alive && !client.has_left
            };
            let returning: BTreeSet<u32> = own.clone().filter(returns).collect();
            ranks.expect(returning.iter().map(|rank| self.local(*rank)).collect());
            for rank in own {
                if let Some(departed) = self.clients[rank as usize].departed.clone() {
                    ranks.restore(self.local(rank), departed).unwrap();
                }
            }
        }
        Sidecar::new(ranks)
    }

    /// A process attaches. After a loss of the sidecar's memory it says which groups it has opened, and how far it is.
    pub(crate) fn attach_process(&mut self, node: usize, rank: u32) {
        let local = self.local(rank);
        let has_died = self.hosts.has_died(node);
        let client = &self.clients[rank as usize];
        if client.has_left || !client.alive {
            return;
        }
        let delivered = self.outcomes(rank).len() as OpId;
        let groups = self.groups_of(rank).into_iter();
        let groups: Vec<Remembered> = groups
            .filter_map(|group| self.remembered(group, rank))
            .collect();
        let ranks = &mut self.sidecars[node].ranks;
        ranks.attach(local, has_died.then_some(delivered));
        if has_died {
            for group in groups {
                ranks.remember(local, group).unwrap();
            }
            ranks.returned(local);
        }
    }

    fn remembered(&self, group: GroupId, rank: u32) -> Option<Remembered> {
        let of = self.groups.get(&group)?;
        let member = of.member(rank)?;
        (member.remembered && group != WORLD).then(|| Remembered {
            group,
            ranks: of.ranks.clone(),
            replicated: of.replicated,
            priority: 0,
            delivered: member.outcomes.len() as OpId,
            closed: member.has_closed(),
            failed: member.is_dead() && !member.has_closed(),
        })
    }

    /// Takes what a process has called, and hands it to the machine as far as that takes it.
    pub(crate) fn pump(&mut self, node: usize, rank: u32) {
        let local = self.local(rank);
        if self.sidecars[node].ranks.presence(local) == Some(Presence::Attached) {
            for group in self.groups_of(rank) {
                self.take_calls(node, group, rank, local);
            }
        }
        while self.sidecars[node].started && self.take_up_next(node, rank, local) {}
    }

    pub(crate) fn pump_all(&mut self, node: usize) {
        for rank in self.setup.layout.ranks(node) {
            let call = Event::Call { rank };
            self.hosts.after(MS / 1000, To::Host(node), call);
        }
    }

    /// There is room for calls that wait.
    pub(crate) fn pump_waiting(&mut self, node: usize) {
        let first = self.setup.layout.ranks(node).start;
        let ranks = &self.sidecars[node].ranks;
        for local in (0..ranks.local()).filter(|local| ranks.waiting(*local) > 0) {
            let rank = first + local as u32;
            let call = Event::Call { rank };
            self.hosts.after(MS / 1000, To::Host(node), call);
        }
    }

    /// What a process has asked for in a group since this sidecar knows it.
    fn take_calls(&mut self, node: usize, group: GroupId, rank: u32, local: usize) {
        let member = self.member(group, rank).unwrap();
        let knows = self.sidecars[node].ranks.lane(group, local).is_some();
        if member.asked && member.opened.is_none() && !knows {
            let of = &self.groups[&group];
            let with = member.opens_with.as_ref().unwrap_or(&of.ranks).clone();
            let kind = (of.replicated, 0);
            let ranks = &mut self.sidecars[node].ranks;
            let open = ranks.open((group, local), with, kind, u64::from(rank));
            if self.sidecars[node].started {
                self.handle_all(node, open);
            }
            return;
        }
        let (called, delivered) = (member.called, member.outcomes.len());
        if member.opened != Some(Ok(())) || !knows {
            return;
        }
        let taken = &mut self.sidecars[node].taken;
        let taken = *taken.entry((group, local)).or_insert(delivered);
        for op in taken..called {
            let call = self.member(group, rank).unwrap().program[op];
            let exchanges = matches!(call.kind, OpKind::AllToAll { .. });
            let called = Called {
                call,
                splits: exchanges.then(|| self.splits(group, rank, op)),
                refused: None,
                kept: Kept::Operation(op),
            };
            let ranks = &mut self.sidecars[node].ranks;
            assert!(ranks.call(group, local, called), "it is open");
        }
        self.sidecars[node].taken.insert((group, local), called);
    }

    /// Gives the next call of a process its place. False when there is none.
    fn take_up_next(&mut self, node: usize, rank: u32, local: usize) -> bool {
        let sidecar = &mut self.sidecars[node];
        let Some(machine) = &sidecar.machine else {
            return false;
        };
        let Some((group, op, called)) = sidecar.ranks.next(machine, local, None) else {
            return false;
        };
        let called = called.clone();
        let refused = self.refused.get(&(rank, op)).copied();
        let refused = refused.filter(|_| group == WORLD);
        // Nobody would give the memory of one that fails back.
        let fails = sidecar.ranks.fails(machine, group, local);
        if refused.is_none() && !fails {
            self.provide(node, (group, op), rank, &called);
        }
        let ranks = &mut self.sidecars[node].ranks;
        let (_, input) = ranks.accept(group, local, refused).unwrap();
        match input {
            Ok(input) => self.handle(node, input),
            // It has failed, as its process knows.
            Err(_over) => drop(self.sidecars[node].ranks.end(group, op, local, false)),
        }
        let left = self.sidecars[node].ranks.left(local);
        self.handle_all(node, left);
        true
    }

    /// Memory for what a rank brings and gets.
    fn provide(&mut self, node: usize, id: Id, rank: u32, called: &Called<Kept>) {
        let (local, call) = (self.local(rank), called.call);
        let op = match called.kept {
            Kept::Operation(op) => op,
            Kept::Message(at, side) => {
                self.provide_message(node, id, rank, (at, side));
                return;
            }
        };
        assert_eq!(id.1, op as OpId, "calls keep their order");
        let size = self.groups[&id.0].ranks.len() as u32;
        call.check(size).unwrap();
        let input = self.brought(id.0, rank, op, &call);
        self.add_own(node, id, rank, &call);
        let sidecar = &mut self.sidecars[node];
        sidecar.memory.add_input(id, local, input);
        sidecar.memory.add_result(id, call.result_bytes(size));
        sidecar.released.remove(&id);
    }

    /// The epoch goes on: the machine gets what has not ended, and what has to be opened again.
    pub(crate) fn go(&mut self, node: usize) {
        self.sidecars[node].started = true;
        let inputs = self.sidecars[node].ranks.go_on();
        self.handle_all(node, inputs);
        self.pump_all(node);
    }

    pub(crate) fn opened(
        &mut self,
        node: usize,
        group: GroupId,
        local: usize,
        outcome: Result<(), OpenError>,
    ) {
        let rank = self.setup.layout.ranks(node).start + local as u32;
        self.hosts.note(("opened", node, group, rank, outcome));
        let is_new = self.sidecars[node].answered.insert((group, local));
        assert!(is_new, "rank {rank} is answered again");
        let taken = OpenReason::Taken;
        let is_taken = matches!(outcome, Err(OpenError::Dispute(Dispute::Refused { reason, .. })) if reason == taken);
        if outcome.is_err() && !is_taken {
            self.free_group(node, group);
        }
        let ranks = &mut self.sidecars[node].ranks;
        let OpeningAnswer {
            ticket,
            over,
            inputs,
            ..
        } = match &outcome {
            Ok(()) => ranks.opened(group, local),
            Err(error) => ranks.fail(group, local, &error.to_string()),
        };
        let client = &self.clients[rank as usize];
        if client.alive && !client.out {
            for group in over {
                self.member_mut(group, rank).unwrap().remembered = false;
            }
            // A test may have one open a group that is not its own.
            if let Some(member) = self.member_mut(group, rank) {
                if ticket.is_some() || outcome.is_err() {
                    member.opened = Some(outcome);
                }
                member.remembered |= ticket.is_some() && outcome.is_ok();
            }
        }
        self.handle_all(node, inputs);
        self.pump_all(node);
    }

    /// What a sidecar says that it has reached, with its machine's report or without memory; none while processes are to
    /// come back.
    pub(crate) fn report_of(&mut self, node: usize) -> Option<EpochReport> {
        let sidecar = &mut self.sidecars[node];
        let report = sidecar.report.clone();
        if sidecar.machine.is_none() && !sidecar.ranks.has_lost_memory() {
            // It has never been in an epoch.
            sidecar.ranks.expect(BTreeSet::new());
        }
        sidecar.ranks.report(&report.unwrap_or_default())
    }

    /// The groups that a sidecar knows of.
    pub(crate) fn groups_at(&self, node: usize) -> BTreeSet<GroupId> {
        let ranks = &self.sidecars[node].ranks;
        let knows = |group: &GroupId| {
            let mut all = 0..ranks.local();
            all.any(|local| ranks.lane(*group, local).is_some())
        };
        self.groups.keys().copied().filter(knows).collect()
    }

    /// A machine is done with a group.
    pub(crate) fn closed(&mut self, node: usize, group: GroupId) {
        self.hosts.note(("closed", node, group));
        // It may be one that was open before and is refused since a loss: then nobody knows its end.
        let mut here = self.setup.layout.ranks(node);
        let was_ended = here.all(|rank| {
            let member = self.member(group, rank);
            let has_left = self.clients[rank as usize].has_left;
            has_left || member.is_none_or(|one| one.outcomes.len() >= one.program.len())
        });
        self.sidecars[node].memory.keep(|buffer| {
            let is_slot = matches!(buffer, Buffer::Receive { .. } | Buffer::Send { .. });
            assert!(
                is_slot || !was_ended || buffer.group() != group,
                "{buffer:?} is there after the end of its group"
            );
            true
        });
        self.free_group(node, group);
        self.sidecars[node].ranks.forget_group(group);
    }

    pub(crate) fn free_group(&mut self, node: usize, group: GroupId) {
        let sidecar = &mut self.sidecars[node];
        sidecar.memory.forget(group);
        sidecar.own.retain(|buffer| buffer.group() != group);
    }

    /// A rank that has nothing more to call leaves.
    pub(crate) fn leave(&mut self, node: usize, rank: u32) {
        let local = self.local(rank);
        let of = self.groups_of(rank);
        let mut mine = of.iter().filter_map(|&group| self.member(group, rank));
        let ranks = &self.sidecars[node].ranks;
        let attached = ranks.presence(local) == Some(Presence::Attached);
        let waits = !self.hasty.contains(&rank);
        let is_done = |one: &Member| one.has_ended() || !waits && one.has_called();
        if !attached || !self.leavers.contains(&rank) || !mine.all(is_done) {
            return;
        }
        self.clients[rank as usize].has_left = true;
        let ranks = &mut self.sidecars[node].ranks;
        let Some((departed, left)) = ranks.detach(local) else {
            return;
        };
        self.clients[rank as usize].departed = Some(departed);
        if self.sidecars[node].started {
            self.handle_all(node, left);
        }
    }
}
