//! The processes of a trainer: each does what its programs hold, in an order of its own between its groups, as far as its
//! window allows; after a restart or a new epoch the sidecar hands in again what they were not told the end of.

use collective::machine::{GroupId, Input, OpId};

use crate::lanes::Member;
use crate::world::{Event, MS, World};

impl World {
    pub(crate) fn call_soon(&mut self, rank: u32) {
        let delay = self.a_while(MS / 1000, 3 * MS);
        self.queue.after(delay, Event::Call { rank });
    }

    /// A rank calls the next operation of one of its groups, or asks for a group.
    pub(crate) fn call(&mut self, rank: u32) {
        let client = &self.clients[rank as usize];
        // Trainers start when the gang does.
        if !client.alive || client.out || self.store.is_empty() {
            return;
        }
        let window = self.setup.window;
        let groups = self.groups_of(rank).into_iter();
        let may = |group: &GroupId| {
            let member = self.member(*group, rank);
            member.is_some_and(|member| member.may_go_on(window))
        };
        let next: Vec<GroupId> = groups.filter(may).collect();
        if !next.is_empty() {
            let group = *self.rng.pick(&next);
            if let Some(member) = self.member_mut(group, rank) {
                member.called += usize::from(member.asked);
                member.asked = true;
            }
            self.call_soon(rank);
        }
        let node = self.setup.layout.node_of(rank);
        self.pump(node, rank);
        self.leave(node, rank);
    }

    /// A rank that has nothing more to call leaves. The machine of a later epoch learns it when the rank's groups stand again.
    fn leave(&mut self, node: usize, rank: u32) {
        let local = (rank - self.setup.layout.ranks(node).start) as usize;
        let sidecar = &self.sidecars[node];
        let of = self.groups_of(rank);
        let mut mine = of.iter().filter_map(|&group| self.member(group, rank));
        let is_attached = sidecar.alive && sidecar.attached == self.setup.layout.local(node);
        if self.leavers.contains(&rank) && is_attached && mine.all(Member::has_ended) {
            self.clients[rank as usize].left = true;
        }
        let settled = |group: &GroupId| {
            let seat = self.sidecars[node].seats.get(&(*group, local));
            let is_dead = self.member(*group, rank).is_some_and(Member::is_dead);
            is_dead || seat.is_none_or(|seat| seat.stands)
        };
        let is_left = self.clients[rank as usize].left;
        if is_left
            && self.takes_calls(node)
            && of.iter().all(settled)
            && self.sidecars[node].departed.insert(local)
        {
            self.handle(node, Input::RankLeft { rank: local });
        }
    }

    pub(crate) fn pump_all(&mut self, node: usize) {
        for rank in self.setup.layout.ranks(node) {
            self.queue.after(MS / 1000, Event::Call { rank });
        }
    }

    /// Hands openings and calls to the machine, as far as it takes them.
    fn pump(&mut self, node: usize, rank: u32) {
        let local = (rank - self.setup.layout.ranks(node).start) as usize;
        for group in self.groups_of(rank) {
            if self.takes_calls(node) {
                self.open(node, group, rank, local);
            }
            while self.may_submit(node, group, rank, local) {
                self.submit(node, group, rank, local);
            }
        }
    }

    fn takes_calls(&self, node: usize) -> bool {
        let sidecar = &self.sidecars[node];
        let machine = sidecar.machine.as_ref();
        let goes = machine.is_some_and(|machine| machine.broken().is_none());
        goes && sidecar.started && sidecar.report.is_none()
    }

    fn may_submit(&self, node: usize, group: GroupId, rank: u32, local: usize) -> bool {
        let sidecar = &self.sidecars[node];
        let (Some(machine), Some(seat), Some(member)) = (
            &sidecar.machine,
            sidecar.seats.get(&(group, local)),
            self.member(group, rank),
        ) else {
            return false;
        };
        let has = seat.stands && !member.is_dead() && seat.submitted < member.called;
        has && self.takes_calls(node) && machine.may_submit(group, local)
    }

    fn submit(&mut self, node: usize, group: GroupId, rank: u32, local: usize) {
        let world = self.present(node, group);
        let sidecar = &mut self.sidecars[node];
        let Some(seat) = sidecar.seats.get_mut(&(group, local)) else {
            return;
        };
        let op = seat.submitted;
        seat.submitted += 1;
        let id = (group, op as OpId);
        let input = self.input(group, rank, op);
        let Some(call) = self.member(group, rank).map(|member| member.program[op]) else {
            return;
        };
        let total = input.len() as u64;
        let exchange = self.exchange(group, rank, local, id.1);
        let at_once = match exchange {
            Some(_) => total,
            None => self.rng.range(0..total + 1),
        };
        self.add_own(node, id, rank, &call);
        let sidecar = &mut self.sidecars[node];
        sidecar.memory.add_input(id, local, input, at_once);
        sidecar.memory.add_result(id, call.result_bytes(world));
        sidecar.released.remove(&id);
        let (life, epoch) = (sidecar.life, sidecar.epoch);
        if at_once < total {
            let delay = self.a_while(MS / 1000, MS);
            let event = Event::Ready {
                node,
                life,
                epoch,
                rank: local,
                id,
                ready: total,
            };
            self.queue.after(delay, event);
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
        let lane = &self.lanes[&group];
        if lane.ranks.len() == self.clients.len() {
            return sidecar.world;
        }
        let is_here = |rank: &&u32| {
            let node = self.setup.layout.node_of(**rank);
            sidecar.members.binary_search(&node).is_ok()
        };
        lane.ranks.iter().filter(is_here).count() as u32
    }

    pub(crate) fn ready(
        &mut self,
        node: usize,
        (life, epoch): (u64, u64),
        rank: usize,
        (group, op): (GroupId, OpId),
        ready: u64,
    ) {
        if self.sidecars[node].life == life && self.sidecars[node].epoch == epoch {
            let memory = &mut self.sidecars[node].memory;
            memory.ready((group, op), rank, ready);
            let ready = Input::Ready {
                group,
                rank,
                op,
                ready,
            };
            self.handle(node, ready);
        }
    }

    /// The input of a rank for its k-th operation of a group.
    pub(crate) fn input(&self, group: GroupId, rank: u32, op: usize) -> Vec<u8> {
        let Some(member) = self.member(group, rank) else {
            return Vec::new();
        };
        self.brought(group, rank, op, &member.program[op])
    }
}
