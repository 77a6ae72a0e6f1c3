//! What a machine asks of its sidecar: work that takes time, frames, what ranks are told.

use collective::machine::{Broken, Buffer, Cause, Effect, Fence, Frame, Input, Region, Ticket};
use collective::membership::Reason;

use crate::fixture::memory::{Id, Work};
use crate::world::{ATTEMPT, Event, MS, World};

impl World {
    /// Hands an input to a machine and carries out the effects.
    pub(crate) fn handle(&mut self, node: usize, input: Input) {
        let now = self.now();
        let Some(machine) = self.sidecars[node].machine.as_mut() else {
            return;
        };
        let mut effects = std::mem::take(&mut self.effects);
        machine.handle(now, input, &mut effects);
        for effect in effects.drain(..) {
            self.carry_out(node, effect);
        }
        self.effects = effects;
        self.schedule_tick(node);
    }

    fn carry_out(&mut self, node: usize, effect: Effect) {
        let ends = match effect {
            Effect::End { .. }
            | Effect::FreeInputs { .. }
            | Effect::Release { .. }
            | Effect::Opened { .. }
            | Effect::Closed { .. } => true,
            Effect::Send { .. }
            | Effect::Reduce { .. }
            | Effect::Copy { .. }
            | Effect::Suspect { .. }
            | Effect::Recovered { .. }
            | Effect::Late { .. }
            | Effect::Broken { .. }
            | Effect::Stopped { .. }
            | Effect::Begin { .. }
            | Effect::Connect { .. } => false,
        };
        let has_stopped = self.sidecars[node].report.is_some();
        assert!(
            !(ends && has_stopped),
            "what was reported holds: {effect:?}"
        );
        match effect {
            Effect::Send {
                peer,
                frame,
                payload,
            } => self.send(node, peer, frame, payload),
            Effect::Reduce {
                ticket,
                arithmetic,
                sources,
                partials,
                destination,
            } => {
                self.check_unread(node, destination);
                let memory = &mut self.sidecars[node].memory;
                let work = memory.reduce(ticket, arithmetic, [sources, partials], destination);
                self.work(node, work);
            }
            Effect::Copy {
                ticket,
                source,
                destination,
            } => {
                self.check_unread(node, destination);
                let work = self.sidecars[node].memory.copy(ticket, source, destination);
                self.work(node, work);
            }
            Effect::End {
                group,
                op,
                rank,
                outcome,
            } => self.end(node, (group, op), rank, outcome),
            Effect::FreeInputs { group, op } => {
                self.sidecars[node].memory.free_inputs((group, op));
            }
            Effect::Release { group, op } => {
                let id = (group, op);
                assert!(self.sidecars[node].released.insert(id), "released once");
                let sidecar = &mut self.sidecars[node];
                sidecar.memory.release(id);
                let is_its = |buffer: &Buffer| matches!(*buffer, Buffer::Own { group, op, .. } if (group, op) == id);
                sidecar.own.retain(|buffer| !is_its(buffer));
                self.pump_all(node);
            }
            Effect::Suspect { peer, .. } => self.suspect(node, peer, Reason::Frozen),
            Effect::Recovered { .. } | Effect::Late { .. } => {}
            Effect::Broken { broken } => self.broke(node, broken),
            Effect::Stopped { report } => self.machine_stopped(node, report),
            Effect::Begin { group } => self.add_slots(node, group),
            Effect::Connect { peer } => self.connect(node, peer),
            Effect::Opened {
                group,
                rank,
                outcome,
            } => self.opened(node, group, rank, outcome),
            Effect::Closed { group } => {
                self.note(("closed", node, group));
                self.forget_group(node, group);
            }
        }
    }

    fn broke(&mut self, node: usize, broken: Broken) {
        self.note(("broken", node, broken));
        match broken {
            Broken::NodeLost { node: peer, .. } => self.suspect(node, peer, Reason::Dead),
            Broken::NodeSilent { node: peer, .. } => self.suspect(node, peer, Reason::Silent),
            Broken::Protocol { .. } => panic!("node {node}: {broken}"),
            Broken::RankLeft { .. } => panic!("node {node}: {broken}, which had called everything"),
            Broken::NodeLeft { .. } | Broken::RankLost { .. } | Broken::Revoked => {}
        }
    }

    fn send(&mut self, node: usize, peer: usize, frame: Frame, payload: Option<(Ticket, Region)>) {
        let bytes = payload.map(|(ticket, region)| {
            let (work, bytes) = self.sidecars[node].memory.send(ticket, region);
            assert!(!bytes.is_empty() && bytes.len() <= self.setup.chunk_bytes as usize);
            self.work(node, work);
            bytes
        });
        match frame {
            Frame::Up { group, op, .. } => *self.ups.entry((group, op)).or_default() += 1,
            Frame::Down { group, op, .. } => *self.downs.entry((group, op)).or_default() += 1,
            Frame::Refuse { .. }
            | Frame::Fail { .. }
            | Frame::Want { .. }
            | Frame::Data { .. }
            | Frame::Deny { .. }
            | Frame::Credit { .. }
            | Frame::Awaiting { .. }
            | Frame::Mark { .. }
            | Frame::Abort { .. }
            | Frame::Heartbeat
            | Frame::Bye { .. }
            | Frame::Open { .. }
            | Frame::Opened { .. } => {}
        }
        let sidecar = &self.sidecars[node];
        let (to, epoch) = (sidecar.members[peer], sidecar.epoch);
        let fence = Fence {
            attempt: ATTEMPT,
            epoch: epoch as u32,
        };
        if self.is_cut(node, to) {
            return;
        }
        for at in self.network.deliver(self.queue.now(), node, to) {
            let item = Some((fence, frame, bytes.clone()));
            let event = Event::Arrive {
                to,
                from: node,
                epoch,
                item,
            };
            self.queue.at(at, event);
        }
    }

    fn work(&mut self, node: usize, work: Work) {
        let delay = self.a_while(MS / 1000, 2 * MS / 5);
        let (life, epoch) = (self.sidecars[node].life, self.sidecars[node].epoch);
        let event = Event::Work {
            node,
            life,
            epoch,
            work,
        };
        self.queue.after(delay, event);
    }

    pub(crate) fn finish(&mut self, node: usize, life: u64, epoch: u64, work: &Work) {
        if self.sidecars[node].life != life {
            return;
        }
        if self.sidecars[node].epoch != epoch || self.sidecars[node].machine.is_none() {
            assert!(self.sidecars[node].is_out, "work outlives its machine");
            return;
        }
        self.sidecars[node].memory.finish(work);
        let ticket = work.ticket;
        self.handle(node, Input::Done { ticket });
    }

    fn end(&mut self, node: usize, id: Id, local: usize, outcome: Result<u32, Cause>) {
        let rank = self.setup.layout.ranks(node).start + local as u32;
        let (group, op) = id;
        let member = self.member(group, rank);
        let call = member
            .and_then(|member| member.program.get(op as usize))
            .copied();
        let outcome = outcome.map(|epoch| match call.filter(|call| call.kind.exchanges()) {
            Some(call) => (self.tell_own(node, id, rank, &call), epoch),
            None => (self.sidecars[node].memory.tell(id), epoch),
        });
        let client = &self.clients[rank as usize];
        let hears = client.alive && !client.out;
        if let Some(member) = self.member_mut(group, rank).filter(|_| hears) {
            assert_eq!(member.outcomes.len(), op as usize, "told once and in order");
            member.outcomes.push(outcome);
        }
        self.call_soon(rank);
    }

    fn suspect(&mut self, node: usize, peer: usize, reason: Reason) {
        let sidecar = &self.sidecars[node];
        let (epoch, rank) = (sidecar.epoch, sidecar.members[peer] as u32);
        self.report(node, |connection| collective::membership::Event::Suspect {
            connection,
            epoch,
            rank,
            reason,
        });
    }

    /// What is final may be being read by ranks: nothing is written to it.
    pub(crate) fn check_unread(&self, node: usize, region: Region) {
        let Buffer::Result { group, op } = region.buffer else {
            return;
        };
        let report = self.sidecars[node].machine.as_ref().unwrap().report();
        let of = report.iter().filter(|of| of.group == group);
        let mut held = of.flat_map(|of| &of.held);
        let is_final = held.any(|held| held.op == op && held.complete);
        assert!(!is_final, "node {node} writes {region:?}, which is final");
    }
}
