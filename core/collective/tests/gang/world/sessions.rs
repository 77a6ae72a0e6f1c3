//! What a sidecar knows of its processes: in which groups each takes part, which of its calls the machine has, what was
//! delivered to it. After a restart or in a new epoch the sidecar hands in again what has not ended for them.

use std::collections::BTreeSet;

use collective::machine::{
    Buffer, Dispute, GroupId, Input, OpId, OpenError, OpenReason, Start, WORLD,
};
use collective::recovery::{GroupReport, GroupResume, Report, Resume, Told, is_over, told_each};
use sim::To;
use topology::OnPeerLoss;

use super::{Event, MS, World};

/// A process in one of its groups, as its sidecar knows it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Session {
    /// The machine was asked to open the group, in this epoch.
    pub(crate) asked: bool,
    /// The group is open in this epoch.
    pub(crate) is_open: bool,
    /// How many of the calls the machine has.
    pub(crate) submitted: usize,
}

impl World {
    /// A process has attached: it names the groups that it has opened.
    pub(crate) fn attach_process(&mut self, node: usize, rank: u32) {
        let local = self.local(rank);
        for group in self.groups_of(rank) {
            let remembers = self.member(group, rank).is_some_and(|one| one.remembered);
            if self.hosts.has_died(node) && remembers {
                let sessions = &mut self.sidecars[node].sessions;
                sessions.entry((group, local)).or_default();
            }
        }
    }

    /// In a new epoch all groups but the world have to be opened again.
    pub(crate) fn renew_sessions(&mut self, node: usize) {
        let first = self.setup.layout.ranks(node).start;
        let keys = self.sidecars[node].sessions.keys().copied();
        for (group, local) in keys.collect::<Vec<_>>() {
            let member = self.member(group, first + local as u32);
            let session = Session {
                asked: group == WORLD,
                is_open: group == WORLD,
                submitted: member.map_or(0, |member| member.outcomes.len()),
            };
            let sessions = &mut self.sidecars[node].sessions;
            sessions.insert((group, local), session);
        }
    }

    /// Hands openings and calls to the machine, as far as it takes them.
    pub(crate) fn pump(&mut self, node: usize, rank: u32) {
        let local = self.local(rank);
        for group in self.groups_of(rank) {
            if self.takes_calls(node) {
                self.open(node, group, rank, local);
            }
            while self.may_submit(node, group, rank, local) {
                self.submit(node, group, rank, local);
            }
        }
    }

    pub(crate) fn pump_all(&mut self, node: usize) {
        for rank in self.setup.layout.ranks(node) {
            let call = Event::Call { rank };
            self.hosts.after(MS / 1000, To::Host(node), call);
        }
    }

    pub(crate) fn takes_calls(&self, node: usize) -> bool {
        let sidecar = &self.sidecars[node];
        let restarts = self.setup.recovery.on_peer_loss == OnPeerLoss::Restart;
        let machine = sidecar.machine.as_ref();
        let goes = machine.is_some_and(|machine| restarts || machine.broken().is_none());
        goes && sidecar.started && sidecar.report.is_none()
    }

    pub(crate) fn session(&self, node: usize, group: GroupId, local: usize) -> Option<Session> {
        self.sidecars[node].sessions.get(&(group, local)).copied()
    }

    /// A rank opens a group, or its sidecar does it again for it in a new epoch.
    fn open(&mut self, node: usize, group: GroupId, rank: u32, local: usize) {
        let member = self.member(group, rank).unwrap();
        let asks = member.asked && member.opened.is_none();
        let session = self.session(node, group, local);
        if session.map_or(!asks, |session| session.asked) {
            return;
        }
        let of = &self.groups[&group];
        let ranks = member.opens_with.as_ref().unwrap_or(&of.ranks).clone();
        let replicated = of.replicated;
        let sessions = &mut self.sidecars[node].sessions;
        sessions.entry((group, local)).or_default().asked = true;
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
        self.hosts.note(("opened", node, group, rank, outcome));
        let is_open_still = matches!(
            outcome,
            Err(OpenError::Dispute(Dispute::Refused { reason, .. })) if reason == OpenReason::Taken
        );
        if outcome.is_err() && !is_open_still {
            self.free_group(node, group);
        }
        let client = &self.clients[rank as usize];
        let listens = client.alive && !client.out;
        let Some(member) = self.member_mut(group, rank).filter(|_| listens) else {
            return;
        };
        let is_first = member.opened.is_none();
        let submitted = member.outcomes.len();
        if is_first || outcome.is_err() {
            member.opened = Some(outcome);
        }
        if is_first && outcome.is_ok() {
            member.remembered = true;
            self.forget_what_is_over(node, rank, local);
        }
        let sessions = &mut self.sidecars[node].sessions;
        if is_first && outcome.is_err() {
            sessions.remove(&(group, local));
        } else if let Some(session) = sessions.get_mut(&(group, local)) {
            assert!(!session.is_open, "answered once");
            session.is_open = outcome.is_ok();
            if session.is_open {
                session.submitted = submitted;
            }
        }
        let call = Event::Call { rank };
        self.hosts.after(MS / 1000, To::Host(node), call);
    }

    /// A process learns which of its groups it need not remember.
    fn forget_what_is_over(&mut self, node: usize, rank: u32, local: usize) {
        let over = std::mem::take(&mut self.sidecars[node].over);
        let (mine, others): (Vec<_>, _) = over.into_iter().partition(|&(of, _)| of == local);
        self.sidecars[node].over = others;
        for (_, group) in mine {
            if let Some(member) = self.member_mut(group, rank) {
                member.remembered = false;
            }
        }
    }

    fn may_submit(&self, node: usize, group: GroupId, rank: u32, local: usize) -> bool {
        let (Some(machine), Some(session), Some(member)) = (
            &self.sidecars[node].machine,
            self.session(node, group, local),
            self.member(group, rank),
        ) else {
            return false;
        };
        let has = session.is_open && !member.is_dead() && session.submitted < member.called;
        has && self.takes_calls(node) && machine.may_submit(group, local)
    }

    fn submit(&mut self, node: usize, group: GroupId, rank: u32, local: usize) {
        let size = self.present(node, group);
        let sessions = &mut self.sidecars[node].sessions;
        let session = sessions.get_mut(&(group, local)).unwrap();
        let op = session.submitted;
        session.submitted += 1;
        let id = (group, op as OpId);
        let call = self.member(group, rank).unwrap().program[op];
        let refused = self.refused.get(&(rank, id.1));
        if let Some(&reason) = refused.filter(|_| group == WORLD) {
            let refuse = Input::Refuse {
                group,
                rank: local,
                call,
                reason,
            };
            self.handle(node, refuse);
            return;
        }
        call.check(self.groups[&group].ranks.len() as u32).unwrap();
        let input = self.brought(group, rank, op, &call);
        let total = input.len() as u64;
        let exchange = self.exchange(group, rank, local, id.1);
        let at_once = match exchange {
            Some(_) => total,
            None => self.rng.range(0..total + 1),
        };
        self.add_own(node, id, rank, &call);
        let sidecar = &mut self.sidecars[node];
        sidecar.memory.add_input(id, local, input, at_once);
        sidecar.memory.add_result(id, call.result_bytes(size));
        sidecar.released.remove(&id);
        let mut ready = at_once;
        while ready < total {
            ready = self.rng.range(ready + 1..total + 1);
            let delay = self.hosts.draw(MS / 1000..MS);
            let more = Input::Ready {
                group,
                rank: local,
                op: id.1,
                ready,
            };
            self.later(delay, node, more);
        }
        let submit = exchange.unwrap_or(Input::Submit {
            group,
            rank: local,
            call,
            ready: at_once,
        });
        self.handle(node, submit);
    }

    /// How many ranks of a group a node's epoch has.
    fn present(&self, node: usize, group: GroupId) -> u32 {
        let sidecar = &self.sidecars[node];
        let of = &self.groups[&group];
        if of.ranks.len() == self.clients.len() {
            return sidecar.world;
        }
        let is_here = |rank: &&u32| {
            let node = self.setup.layout.node_of(**rank);
            sidecar.members.binary_search(&node).is_ok()
        };
        of.ranks.iter().filter(is_here).count() as u32
    }

    /// What a sidecar knows of a group from its ranks.
    fn known(&self, node: usize, group: GroupId) -> Vec<Option<Told>> {
        let of = &self.groups[&group];
        let own = self.setup.layout.ranks(node);
        let here = of.ranks.iter().zip(&of.members);
        here.filter(|(rank, _)| own.contains(rank))
            .map(|(&rank, member)| {
                let session = self.session(node, group, (rank - own.start) as usize);
                session.map(|_| member.delivered())
            })
            .collect()
    }

    /// The first operation of a group whose end each local rank does not know; none where the sidecar knows nothing of it.
    fn delivered_at(&self, node: usize, group: GroupId) -> Option<Vec<OpId>> {
        let known = self.known(node, group);
        known.iter().any(Option::is_some).then(|| told_each(&known))
    }

    /// The groups that a sidecar knows of.
    pub(crate) fn groups_at(&self, node: usize) -> BTreeSet<GroupId> {
        let sessions = self.sidecars[node].sessions.keys();
        sessions.map(|&(group, _)| group).collect()
    }

    /// What a sidecar without memory reports: what was delivered to its processes.
    pub(crate) fn recollection(&self, node: usize) -> Report {
        let groups = self.groups_at(node).into_iter();
        let of = |group| {
            Some(GroupReport::of_told(
                group,
                &self.delivered_at(node, group)?,
            ))
        };
        groups.filter_map(of).collect()
    }

    /// Where the groups of a new epoch begin on a node that has reported this.
    pub(crate) fn starts(
        &self,
        node: usize,
        members: &[usize],
        resume: &Resume,
        report: &Report,
    ) -> Vec<Start> {
        let start = |resume: &GroupResume| {
            let of = report.iter().find(|of| of.group == resume.group);
            Start::of_refused(resume).or_else(|| {
                Some(Start {
                    resume: resume.within(members),
                    told: self.delivered_at(node, resume.group)?,
                    held: of.map_or_else(Vec::new, |of| of.held.clone()),
                })
            })
        };
        resume.iter().filter_map(start).collect()
    }

    /// Groups whose end everybody knows need nobody any more.
    pub(crate) fn forget_groups_that_are_over(&mut self, node: usize, resume: &Resume) {
        for group in self.groups_at(node).into_iter().filter(|one| *one != WORLD) {
            let base = resume.iter().find(|one| one.group == group);
            if is_over(
                &self.known(node, group),
                base.and_then(GroupResume::needed_from),
            ) {
                self.forget_group(node, group);
            }
        }
    }

    /// A machine is done with a group.
    pub(crate) fn closed(&mut self, node: usize, group: GroupId) {
        self.hosts.note(("closed", node, group));
        // It may be one that was open before and is refused since a loss: then nobody knows its end.
        let mut here = self.setup.layout.ranks(node);
        let was_ended = here.all(|rank| {
            let member = self.member(group, rank);
            member.is_none_or(|one| one.outcomes.len() >= one.program.len())
        });
        self.sidecars[node].memory.keep(|buffer| {
            let is_slot = matches!(buffer, Buffer::Receive { .. } | Buffer::Send { .. });
            assert!(
                is_slot || !was_ended || buffer.group() != group,
                "{buffer:?} is there after the end of its group"
            );
            true
        });
        self.forget_group(node, group);
    }

    /// A group is over on a node: its processes need not remember it, which they learn with the answer to their next opening.
    fn forget_group(&mut self, node: usize, group: GroupId) {
        let own = self.setup.layout.ranks(node);
        let closed = own
            .clone()
            .filter(|&rank| self.member(group, rank).is_some_and(|one| one.has_closed()));
        let closed: Vec<usize> = closed.map(|rank| (rank - own.start) as usize).collect();
        self.free_group(node, group);
        let sidecar = &mut self.sidecars[node];
        for local in closed {
            if sidecar.sessions.remove(&(group, local)).is_some() {
                sidecar.over.push((local, group));
            }
        }
    }

    fn free_group(&mut self, node: usize, group: GroupId) {
        let sidecar = &mut self.sidecars[node];
        sidecar.memory.forget(group);
        sidecar.own.retain(|buffer| buffer.group() != group);
    }
}
