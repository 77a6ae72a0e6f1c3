//! What a machine asks of its sidecar: memory with real bytes, work that takes time, frames. Checks that buffers do not
//! change while somebody reads them and that nobody touches what is released.

use collective::kernels::{self, Store};
use collective::machine::{
    Broken, Buffer, Cause, Effect, Fence, Frame, Input, OpId, Region, Ticket,
};
use collective::membership::Reason;

use crate::world::{ATTEMPT, Event, MS, World};

/// Local work or a transmission, until its ticket is reported.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    ticket: Ticket,
    reads: Vec<(Region, Vec<u8>)>,
    writes: Option<(Region, Vec<u8>)>,
}

impl World {
    /// Hands an input to a machine and carries out the effects.
    pub(crate) fn handle(&mut self, node: usize, input: Input) {
        let now = self.now();
        let Some(machine) = self.sidecars[node].machine.as_mut() else {
            return;
        };
        let mut effects = Vec::new();
        machine.handle(now, input, &mut effects);
        for effect in effects {
            self.carry_out(node, effect);
        }
        self.schedule_tick(node);
    }

    fn carry_out(&mut self, node: usize, effect: Effect) {
        let ends = match effect {
            Effect::End { .. } | Effect::FreeInputs { .. } | Effect::Release { .. } => true,
            Effect::Send { .. }
            | Effect::Reduce { .. }
            | Effect::Copy { .. }
            | Effect::Suspect { .. }
            | Effect::Recovered { .. }
            | Effect::Late { .. }
            | Effect::Broken { .. }
            | Effect::Stopped { .. } => false,
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
                op,
                dtype,
                scale,
                sources,
                destination,
            } => {
                let reads: Vec<_> = sources
                    .iter()
                    .map(|&region| (region, self.read(node, region)))
                    .collect();
                let slices: Vec<&[u8]> = reads.iter().map(|(_, bytes)| bytes.as_slice()).collect();
                let mut result = vec![0; destination.bytes as usize];
                kernels::reduce(dtype, op, &mut result, &slices, scale, Store::Cached);
                self.work(node, ticket, reads, Some((destination, result)));
            }
            Effect::Copy {
                ticket,
                source,
                destination,
            } => {
                let bytes = self.read(node, source);
                let reads = vec![(source, bytes.clone())];
                self.work(node, ticket, reads, Some((destination, bytes)));
            }
            Effect::End { op, rank, outcome } => self.end(node, op, rank, outcome),
            Effect::FreeInputs { op } => {
                self.sidecars[node].memory.retain(
                    |buffer, _| !matches!(*buffer, Buffer::Input { op: other, .. } if other == op),
                );
            }
            Effect::Release { op } => {
                assert!(self.sidecars[node].released.insert(op), "released once");
                self.sidecars[node].memory.remove(&Buffer::Result { op });
                self.pump_all(node);
            }
            Effect::Suspect { peer, .. } => self.suspect(node, peer, Reason::Frozen),
            Effect::Recovered { .. } | Effect::Late { .. } => {}
            Effect::Broken { broken } => self.broke(node, broken),
            Effect::Stopped { report } => self.machine_stopped(node, report),
        }
    }

    fn broke(&mut self, node: usize, broken: Broken) {
        self.note(("broken", node, broken));
        match broken {
            Broken::NodeLost { node: peer, .. } => self.suspect(node, peer, Reason::Dead),
            Broken::NodeSilent { node: peer, .. } => self.suspect(node, peer, Reason::Silent),
            Broken::Protocol { .. } => panic!("node {node}: {broken}"),
            Broken::NodeLeft { .. }
            | Broken::RankLost { .. }
            | Broken::RankLeft { .. }
            | Broken::Revoked => {}
        }
    }

    fn send(&mut self, node: usize, peer: usize, frame: Frame, payload: Option<(Ticket, Region)>) {
        let bytes = payload.map(|(ticket, region)| {
            let bytes = self.read(node, region);
            assert!(!bytes.is_empty() && bytes.len() <= self.setup.chunk_bytes as usize);
            self.work(node, ticket, vec![(region, bytes.clone())], None);
            bytes
        });
        match frame {
            Frame::Up { op, .. } => *self.ups.entry(op).or_default() += 1,
            Frame::Down { op, .. } => *self.downs.entry(op).or_default() += 1,
            Frame::Refuse { .. }
            | Frame::Fail { .. }
            | Frame::Credit { .. }
            | Frame::Awaiting { .. }
            | Frame::Mark { .. }
            | Frame::Abort { .. }
            | Frame::Heartbeat
            | Frame::Bye { .. } => {}
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

    fn work(
        &mut self,
        node: usize,
        ticket: Ticket,
        reads: Vec<(Region, Vec<u8>)>,
        writes: Option<(Region, Vec<u8>)>,
    ) {
        if let Some((region, bytes)) = &writes {
            self.check_unread(node, *region);
            // Until the work is done nobody may rely on the destination.
            self.write(node, *region, &vec![0xcc; bytes.len()]);
        }
        let delay = self.a_while(MS / 1000, 2 * MS / 5);
        let work = Work {
            ticket,
            reads,
            writes,
        };
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
        for (region, bytes) in &work.reads {
            let now = self.read(node, *region);
            assert!(
                now == *bytes,
                "{region:?} changed while node {node} read it"
            );
        }
        if let Some((region, bytes)) = &work.writes {
            self.write(node, *region, bytes);
        }
        let ticket = work.ticket;
        self.handle(node, Input::Done { ticket });
    }

    fn end(&mut self, node: usize, op: OpId, rank: usize, outcome: Result<u32, Cause>) {
        let global = self.setup.layout.ranks(node).start + rank as u32;
        let result = Buffer::Result { op };
        let outcome = outcome.map(|epoch| {
            let bytes = self.sidecars[node].memory.get(&result);
            (bytes.cloned().unwrap_or_default(), epoch)
        });
        let client = &mut self.clients[global as usize];
        if client.alive && !client.out {
            assert_eq!(client.outcomes.len(), op as usize, "told once and in order");
            client.outcomes.push(outcome);
        }
        self.call_soon(global);
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
        let Buffer::Result { op } = region.buffer else {
            return;
        };
        let report = self.sidecars[node].machine.as_ref().unwrap().report();
        let mut held = report[0].held.iter();
        let is_final = held.any(|held| held.op == op && held.complete);
        assert!(!is_final, "node {node} writes {region:?}, which is final");
    }

    pub(crate) fn read(&self, node: usize, region: Region) -> Vec<u8> {
        let buffer = self.sidecars[node].memory.get(&region.buffer);
        let buffer =
            buffer.unwrap_or_else(|| panic!("node {node} reads {region:?}, which is released"));
        let from = region.offset as usize;
        buffer[from..from + region.bytes as usize].to_vec()
    }

    pub(crate) fn write(&mut self, node: usize, region: Region, bytes: &[u8]) {
        let buffer = self.sidecars[node].memory.get_mut(&region.buffer);
        let buffer =
            buffer.unwrap_or_else(|| panic!("node {node} writes {region:?}, which is released"));
        let from = region.offset as usize;
        buffer[from..from + bytes.len()].copy_from_slice(bytes);
    }
}
