//! The shell of every simulated node: carries out what its machine asks for; work takes time.

use std::time::Duration;

use collective::machine::{Cause, Effect, Frame, Input, OpId, Region, Ticket, WORLD};

use crate::cluster::{Cluster, Event, FENCE};
use crate::fixture::memory::Work;

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
                arithmetic,
                sources,
                partials,
                destination,
            } => {
                let reads = [sources, partials];
                let work = self.memory[node].reduce(ticket, arithmetic, reads, destination);
                self.work(node, work);
            }
            Effect::Copy {
                ticket,
                source,
                destination,
            } => {
                let work = self.memory[node].copy(ticket, source, destination);
                self.work(node, work);
            }
            Effect::End {
                op, rank, outcome, ..
            } => self.end(node, op, rank, outcome),
            Effect::FreeInputs { op, .. } => {
                assert!(self.freed[node].insert(op), "freed once");
                self.memory[node].free_inputs((WORLD, op));
            }
            Effect::Release { op, .. } => {
                assert!(self.freed[node].contains(&op), "inputs are freed first");
                assert!(self.released[node].insert(op), "released once");
                self.memory[node].release((WORLD, op));
            }
            Effect::Suspect { peer, .. } => self.suspects.push((now, node, peer)),
            Effect::Recovered { peer } => self.recovered.push((node, peer)),
            Effect::Late { op, ranks, .. } => self.late.push((now, node, op, ranks)),
            Effect::Broken { broken } => {
                assert_eq!(self.broken.insert(node, (now, broken)), None, "broken once");
            }
            Effect::Stopped { .. } => {}
            Effect::Begin { .. }
            | Effect::Connect { .. }
            | Effect::Opened { .. }
            | Effect::Closed { .. } => unreachable!("nobody opens a group here"),
        }
    }

    fn send(&mut self, node: usize, peer: usize, frame: Frame, payload: Option<(Ticket, Region)>) {
        self.marks += u64::from(matches!(frame, Frame::Mark { .. }));
        self.frames += 1;
        let bytes = payload.map(|(ticket, region)| {
            let (work, bytes) = self.memory[node].send(ticket, region);
            assert!(!bytes.is_empty() && bytes.len() <= self.group.chunk_bytes as usize);
            self.work(node, work);
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

    fn work(&mut self, node: usize, work: Work) {
        let delay = Duration::from_nanos(self.rng.range(0..400_000));
        self.queue.after(delay, Event::Work { node, work });
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
        self.memory[node].finish(&work);
        self.handle(
            node,
            Input::Done {
                ticket: work.ticket,
            },
        );
    }

    fn end(&mut self, node: usize, op: OpId, rank: usize, outcome: Result<u32, Cause>) {
        let global = self.group.layout.ranks(node).start + rank as u32;
        let bytes = outcome.map(|_| self.memory[node].tell((WORLD, op)));
        let broken = matches!(bytes, Err(Cause::Broken(_)));
        let earlier = self.outcomes[global as usize].insert(op as usize, bytes);
        assert!(earlier.is_none(), "an operation ends once on each rank");
        if broken {
            // The trainer gives up; what it has called already still ends.
            self.programs[global as usize].truncate(self.called[global as usize]);
        }
        self.call_soon(global);
    }
}
