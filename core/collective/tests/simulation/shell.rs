//! The shell of every simulated node: memory with real bytes, work that takes time. Checks what a real shell relies
//! on: buffers do not change while somebody reads them, nobody touches what is released, and every ticket's memory
//! is left alone until it is reported.

use std::time::Duration;

use collective::kernels::{self, Store};
use collective::machine::{Buffer, Cause, Effect, Frame, Input, OpId, Region, Ticket};

use crate::cluster::{Cluster, Event, FENCE};

/// Local work or a transmission, until its ticket is reported.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    pub(crate) ticket: Ticket,
    pub(crate) reads: Vec<(Region, Vec<u8>)>,
    pub(crate) writes: Option<(Region, Vec<u8>)>,
}

impl Cluster {
    pub(crate) fn carry_out(&mut self, node: usize, effect: Effect) {
        let now = self.queue.now();
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
                self.work(
                    node,
                    ticket,
                    vec![(source, bytes.clone())],
                    Some((destination, bytes)),
                );
            }
            Effect::End { op, rank, outcome } => self.end(node, op, rank, outcome),
            Effect::FreeInputs { op } => {
                assert!(self.freed[node].insert(op), "freed once");
                self.memory[node].retain(
                    |buffer, _| !matches!(*buffer, Buffer::Input { op: other, .. } if other == op),
                );
            }
            Effect::Release { op } => {
                assert!(self.freed[node].contains(&op), "inputs are freed first");
                assert!(self.released[node].insert(op), "released once");
                self.memory[node].remove(&Buffer::Result { op });
            }
            Effect::Suspect { peer, .. } => self.suspects.push((now, node, peer)),
            Effect::Recovered { peer } => self.recovered.push((node, peer)),
            Effect::Late { op, ranks } => self.late.push((now, node, op, ranks)),
            Effect::Broken { broken } => {
                assert_eq!(self.broken.insert(node, (now, broken)), None, "broken once");
            }
            Effect::Stopped { .. } => {}
        }
    }

    fn send(&mut self, node: usize, peer: usize, frame: Frame, payload: Option<(Ticket, Region)>) {
        self.marks += u64::from(matches!(frame, Frame::Mark { .. }));
        self.frames += 1;
        let bytes = payload.map(|(ticket, region)| {
            let bytes = self.read(node, region);
            assert!(!bytes.is_empty() && bytes.len() <= self.group.chunk_bytes as usize);
            self.work(node, ticket, vec![(region, bytes.clone())], None);
            bytes
        });
        for at in self.network.deliver(self.queue.now(), node, peer) {
            let payload = bytes.clone();
            let event = Event::Arrive {
                to: peer,
                from: node,
                fence: FENCE,
                frame,
                payload,
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
            // Until the work is done nobody may rely on the destination.
            self.write(node, *region, &vec![0xcc; bytes.len()]);
        }
        let delay = Duration::from_nanos(self.rng.range(0..400_000));
        self.queue.after(
            delay,
            Event::Work {
                node,
                work: Work {
                    ticket,
                    reads,
                    writes,
                },
            },
        );
    }

    pub(crate) fn finish(&mut self, node: usize, work: Work) {
        if !self.is_alive(node) {
            return;
        }
        if self.frozen.contains(&node) {
            self.queue
                .after(Duration::from_millis(10), Event::Work { node, work });
            return;
        }
        for (region, bytes) in &work.reads {
            assert!(
                self.read(node, *region) == *bytes,
                "{region:?} changed while node {node} was reading it"
            );
        }
        if let Some((region, bytes)) = &work.writes {
            self.write(node, *region, bytes);
        }
        self.handle(
            node,
            Input::Done {
                ticket: work.ticket,
            },
        );
    }

    fn end(&mut self, node: usize, op: OpId, rank: usize, outcome: Result<u32, Cause>) {
        let global = self.group.layout.ranks(node).start + rank as u32;
        let bytes = outcome.map(|_| self.memory[node][&Buffer::Result { op }].clone());
        let broken = matches!(bytes, Err(Cause::Broken(_)));
        let earlier = self.outcomes[global as usize].insert(op as usize, bytes);
        assert!(earlier.is_none(), "an operation ends once on each rank");
        if broken {
            // The trainer gives up; what it has called already still ends.
            self.programs[global as usize].truncate(self.called[global as usize]);
        }
        self.call_soon(global);
    }

    pub(crate) fn read(&self, node: usize, region: Region) -> Vec<u8> {
        let buffer = self.memory[node].get(&region.buffer);
        let buffer =
            buffer.unwrap_or_else(|| panic!("node {node} reads {region:?}, which is released"));
        let from = region.offset as usize;
        buffer[from..from + region.bytes as usize].to_vec()
    }

    pub(crate) fn write(&mut self, node: usize, region: Region, bytes: &[u8]) {
        let buffer = self.memory[node].get_mut(&region.buffer);
        let buffer =
            buffer.unwrap_or_else(|| panic!("node {node} writes {region:?}, which is released"));
        let from = region.offset as usize;
        buffer[from..from + bytes.len()].copy_from_slice(bytes);
    }
}
