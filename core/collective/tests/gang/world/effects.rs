//! What a machine asks of its sidecar: work that takes time, frames, what ranks learn.

use std::time::Duration;

use collective::machine::{
    Broken, Buffer, Cause, Effect, FIRST_SEND_RECV, Fence, Frame, Input, OpId, Region, Ticket,
};
use collective::membership::SuspicionReason;
use collective::session::Presence;
use sim::To;
use topology::OnPeerLoss;

use super::sessions::Kept;
use super::{ATTEMPT, Event, Leads, MS, World};
use crate::fixture::memory::{Id, Work};

impl World {
    /// Hands an input to a machine and carries out the effects.
    pub(crate) fn handle(&mut self, node: usize, input: Input) {
        if self.victim == Some(node) && self.hosts.runs(node) && self.crash.hit() {
            self.kill_node(node);
        }
        let now = self.now();
        let Some(machine) = self.sidecars[node].machine.as_mut() else {
            return;
        };
        let mut effects = std::mem::take(&mut self.effects);
        machine.handle(now, input, &mut effects);
        // In their order, also where one has the machine asked for something more.
        let sidecar = &mut self.sidecars[node];
        sidecar.asked_for.extend(effects.drain(..));
        self.effects = effects;
        self.drive(node);
    }

    /// Hands inputs to a machine, and carries out the effects when it has them all.
    pub(crate) fn handle_all(&mut self, node: usize, inputs: impl IntoIterator<Item = Input>) {
        let drives = std::mem::replace(&mut self.sidecars[node].drives, true);
        for input in inputs {
            self.handle(node, input);
        }
        self.sidecars[node].drives = drives;
        self.drive(node);
    }

    /// Carries out what the machine has asked for, unless that is being done.
    fn drive(&mut self, node: usize) {
        if std::mem::replace(&mut self.sidecars[node].drives, true) {
            return;
        }
        while let Some(effect) = self.sidecars[node].asked_for.pop_front() {
            self.ask(node, effect);
        }
        self.sidecars[node].drives = false;
        self.begin_next_effects(node);
        self.schedule_tick(node);
    }

    /// Hands an input to the machine of this epoch after some time.
    pub(crate) fn later(&mut self, delay: Duration, node: usize, input: Input) {
        let epoch = self.sidecars[node].epoch;
        let input = Event::Input { node, epoch, input };
        self.hosts.after(delay, To::Process(node), input);
    }

    pub(crate) fn input_later(&mut self, node: usize, epoch: u64, input: Input) {
        if self.sidecars[node].epoch != epoch {
            return;
        }
        self.handle(node, input);
    }

    pub(crate) fn carry_out(&mut self, node: usize, effect: Effect) {
        let ends = match effect {
            // Nothing is reported of messages; those of an epoch that has stopped fail.
            Effect::End {
                op, ref outcome, ..
            } => op < FIRST_SEND_RECV || outcome.is_ok(),
            Effect::FreeInputs { op, .. } | Effect::Release { op, .. } => op < FIRST_SEND_RECV,
            Effect::Opened { .. } | Effect::Closed { .. } => true,
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
        let now = self.now();
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
                let sidecar = &mut self.sidecars[node];
                assert!(sidecar.freed.insert((group, op)), "freed once");
                sidecar.memory.free_inputs((group, op));
            }
            Effect::Release { group, op } => self.release(node, (group, op)),
            Effect::Suspect { peer, .. } => {
                self.seen.suspects.push((now, node, peer));
                self.suspect(node, peer, SuspicionReason::Frozen);
            }
            Effect::Recovered { peer } => self.seen.recovered.push((node, peer)),
            Effect::Late { group, op, ranks } => {
                self.seen.late.push((now, node, (group, op), ranks));
            }
            Effect::Broken { broken } => self.broke(node, broken),
            Effect::Stopped { report } => self.machine_stopped(node, report),
            Effect::Begin { group } => self.add_slots(node, group),
            Effect::Connect { peer } => self.connect(node, peer),
            Effect::Opened {
                group,
                rank,
                outcome,
            } => self.opened(node, group, rank, outcome),
            Effect::Closed { group } => self.closed(node, group),
        }
    }

    fn release(&mut self, node: usize, id: Id) {
        let sidecar = &mut self.sidecars[node];
        assert!(sidecar.released.insert(id), "released once");
        let is_first = sidecar.epoch == 1 && id.1 < FIRST_SEND_RECV;
        assert!(
            !is_first || sidecar.freed.contains(&id),
            "inputs are freed first"
        );
        // Those of an operation that ended in an epoch before were perhaps not freed there.
        sidecar.memory.free_inputs(id);
        sidecar.memory.release(id);
        let is_its =
            |buffer: &Buffer| matches!(*buffer, Buffer::Own { group, op, .. } if (group, op) == id);
        sidecar.own.retain(|buffer| !is_its(buffer));
        self.pump_waiting(node);
    }

    fn broke(&mut self, node: usize, broken: Broken) {
        self.hosts.note(("broken", node, broken));
        let now = self.now();
        let earlier = self.sidecars[node].broken.replace((now, broken));
        assert_eq!(earlier, None, "broken once");
        match broken {
            Broken::NodeLost { node: peer, .. } => self.suspect(node, peer, SuspicionReason::Dead),
            Broken::NodeSilent { node: peer, .. } => {
                self.suspect(node, peer, SuspicionReason::Silent);
            }
            Broken::Protocol { .. } | Broken::RankLeft { .. }
                if self.setup.leads == Leads::Operator =>
            {
                panic!("node {node}: {broken}, though all behave and call everything")
            }
            Broken::Protocol { .. }
            | Broken::RankLeft { .. }
            | Broken::NodeLeft { .. }
            | Broken::RankLost { .. }
            | Broken::Revoked => {}
        }
    }

    fn send(&mut self, node: usize, peer: usize, frame: Frame, payload: Option<(Ticket, Region)>) {
        let to = self.sidecars[node].members[peer];
        let is_linked = self.sidecars[node].links.contains(&to);
        assert!(is_linked, "no link from {node} to {to} for {frame:?}");
        self.check_crossing(node, to);
        let bytes = payload.map(|(ticket, region)| {
            let (work, bytes) = self.sidecars[node].memory.send(ticket, region);
            assert!(!bytes.is_empty() && bytes.len() <= self.setup.chunk_bytes as usize);
            self.work(node, work);
            bytes
        });
        self.seen.frames += 1;
        self.seen.watermarks += u64::from(matches!(frame, Frame::Watermark { .. }));
        if let Frame::ReduceChunk { group, op, .. } = frame {
            *self.seen.ups.entry((group, op)).or_default() += 1;
        }
        if let Frame::BroadcastChunk { group, op, .. } = frame {
            *self.seen.downs.entry((group, op)).or_default() += 1;
        }
        if let (Frame::Data { .. }, Some(bytes)) = (frame, &bytes) {
            *self.seen.parts.entry((node, to)).or_default() += bytes.len() as u64;
        }
        let epoch = self.sidecars[node].epoch;
        let fence = Fence {
            attempt: ATTEMPT,
            epoch: epoch as u32,
        };
        let arrive = Event::Arrive {
            to,
            from: node,
            epoch,
            item: Some((fence, frame, bytes)),
        };
        self.hosts.send(node, to, To::Process(to), &arrive);
    }

    /// ZONE-2: one pair of nodes exchanges data between two zones, whatever group it is for.
    fn check_crossing(&self, node: usize, to: usize) {
        if self.setup.zones[node] != self.setup.zones[to] {
            let pair = self.sidecars[node].gateway.unwrap();
            assert!(pair.contains(&node) && pair.contains(&to), "{node} to {to}");
        }
    }

    fn work(&mut self, node: usize, work: Work) {
        let epoch = self.sidecars[node].epoch;
        let work = Event::Work { node, epoch, work };
        let most = 2 * MS / 5;
        self.hosts.within(MS / 1000..most, To::Process(node), work);
    }

    pub(crate) fn finish(&mut self, node: usize, epoch: u64, work: &Work) {
        let sidecar = &mut self.sidecars[node];
        if sidecar.epoch != epoch || sidecar.machine.is_none() {
            assert!(sidecar.is_out, "work outlives its machine");
            return;
        }
        sidecar.computes &= !work.computes();
        sidecar.memory.finish(work);
        let ticket = work.ticket;
        self.handle(node, Input::Done { ticket });
    }

    fn end(&mut self, node: usize, id: Id, local: usize, outcome: Result<u32, Cause>) {
        let rank = self.setup.layout.ranks(node).start + local as u32;
        let (group, op) = id;
        let ranks = &mut self.sidecars[node].ranks;
        let called = ranks.end(group, op, local, outcome.is_ok());
        let waits = ranks.presence(local) == Some(Presence::Attached);
        assert!(
            called.is_some() || !waits,
            "operation {op} of group {group} ends again, or uncalled, on rank {rank}"
        );
        let client = &self.clients[rank as usize];
        let Some(called) = called.filter(|_| client.alive && !client.out) else {
            return;
        };
        let at = match called.kept {
            Kept::Operation(at) => at,
            Kept::Message(at, side) => {
                self.message_ended(node, id, local, (at, side), outcome);
                self.call_soon(rank);
                return;
            }
        };
        assert_eq!(op, at as OpId);
        let outcome = outcome.map(|epoch| {
            let bytes = if called.call.kind.exchanges() {
                self.deliver_own(node, id, rank, &called.call)
            } else {
                self.sidecars[node].memory.deliver(id)
            };
            (bytes, epoch)
        });
        let in_order = self.setup.recovery.on_peer_loss == OnPeerLoss::Shrink;
        let member = self.member_mut(group, rank).unwrap();
        if matches!(outcome, Err(Cause::Broken(_))) {
            // The trainer gives up; what it has called already still ends.
            member.program.truncate(member.called);
        }
        assert!(!in_order || member.outcomes.len() == at);
        let earlier = member.outcomes.insert(op, outcome);
        assert_eq!(earlier, None, "an operation ends once on each rank");
        self.call_soon(rank);
    }

    fn suspect(&mut self, node: usize, peer: usize, reason: SuspicionReason) {
        let sidecar = &self.sidecars[node];
        let (epoch, rank) = (sidecar.epoch, sidecar.members[peer] as u32);
        self.report(node, |connection| {
            collective::membership::MembershipEvent::Suspect {
                connection,
                epoch,
                rank,
                reason,
            }
        });
    }

    /// What is final may be being read by ranks: nothing is written to it.
    pub(crate) fn check_unread(&self, node: usize, region: Region) {
        let Buffer::Result { group, op } = region.buffer else {
            return;
        };
        if self.setup.recovery.on_peer_loss == OnPeerLoss::Restart {
            return;
        }
        let report = self.machine(node).report();
        let of = report.iter().filter(|of| of.group == group);
        let mut held = of.flat_map(|of| &of.retained);
        let is_final = held.any(|held| held.op == op && held.complete);
        assert!(!is_final, "node {node} writes {region:?}, which is final");
    }
}
