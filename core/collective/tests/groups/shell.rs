//! What a machine asks of its node: memory with real bytes, work that takes time, frames, links. Checks that buffers do
//! not change while somebody reads them and that nobody touches what is released.

use collective::kernels::{self, Store};
use collective::machine::{
    Broken, Buffer, Effect, Frame, GroupId, Input, OnPeerLoss, Region, Ticket,
};

use crate::world::{CHUNK, Event, MS, World};

/// Local work or a transmission, until its ticket is reported.
#[derive(Debug)]
pub(crate) struct Work {
    ticket: Ticket,
    reads: Vec<(Region, Vec<u8>)>,
    writes: Option<(Region, Vec<u8>)>,
}

/// The group that a buffer belongs to.
pub(crate) fn group_of(buffer: &Buffer) -> GroupId {
    buffer.group()
}

impl World {
    pub(crate) fn carry_out(&mut self, node: usize, effect: Effect) {
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
                let reads: Vec<_> = sources
                    .iter()
                    .chain(&partials)
                    .map(|&region| (region, self.read(node, region)))
                    .collect();
                let slices: Vec<&[u8]> = reads.iter().map(|(_, bytes)| bytes.as_slice()).collect();
                let mut result = vec![0; destination.bytes as usize];
                let (elements, partials) = slices.split_at(sources.len());
                let into = &mut [result.as_mut_slice()];
                kernels::combine(arithmetic, into, elements, partials, Store::Cached);
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
            Effect::End {
                group,
                op,
                rank,
                outcome,
            } => self.end(node, group, op, rank, outcome),
            Effect::FreeInputs { group, op } => {
                self.nodes[node].memory.retain(|buffer, _| {
                    !matches!(*buffer, Buffer::Input { group: g, op: o, .. } if (g, o) == (group, op))
                });
            }
            Effect::Release { group, op } => {
                let is_its = |buffer: &Buffer| match *buffer {
                    Buffer::Result { group: g, op: o }
                    | Buffer::Own {
                        group: g, op: o, ..
                    } => (g, o) == (group, op),
                    Buffer::Input { .. } | Buffer::Receive { .. } | Buffer::Send { .. } => false,
                };
                self.nodes[node].memory.retain(|buffer, _| !is_its(buffer));
            }
            Effect::Begin { group } => self.allocate(node, group),
            Effect::Connect { peer } => {
                // Both ends learn of a link, whoever asked first, or that there is nobody.
                let other = self.present()[peer];
                let own = self.present().binary_search(&node).unwrap();
                if self.nodes[other].machine.is_none() {
                    self.later(50 * MS, node, Input::PeerLost { peer });
                } else {
                    self.link(node, other, peer, own);
                }
            }
            Effect::Opened {
                group,
                rank,
                outcome,
            } => self.opened(node, group, rank, outcome),
            Effect::Closed { group } => {
                let begun = self.nodes[node].memory.keys();
                let left = begun
                    .filter(|buffer| group_of(buffer) == group)
                    .find(|buffer| {
                        matches!(
                            buffer,
                            Buffer::Input { .. } | Buffer::Result { .. } | Buffer::Own { .. }
                        )
                    });
                assert_eq!(left, None, "released before the end of the group");
                let memory = &mut self.nodes[node].memory;
                memory.retain(|buffer, _| group_of(buffer) != group);
                self.closed(node, group);
            }
            Effect::Late { group, op, ranks } => self.late.push((node, group, op, ranks)),
            Effect::Broken { broken } => {
                assert!(!matches!(broken, Broken::Protocol { .. }), "{broken}");
                self.note(format!("{node}: {broken}"));
            }
            Effect::Stopped { report } => self.nodes[node].report = Some(report),
            Effect::Suspect { .. } | Effect::Recovered { .. } => {}
        }
    }

    fn link(&mut self, node: usize, other: usize, peer: usize, own: usize) {
        let delay = self.a_while(5 * MS);
        for (node, peer) in [(node, peer), (other, own)] {
            let (life, epoch) = (self.nodes[node].life, self.epoch);
            let event = Event::Input {
                node,
                life,
                epoch,
                input: Input::Linked { peer },
            };
            self.queue.after(delay, event);
        }
    }

    /// Slots for the edges of a group.
    pub(crate) fn allocate(&mut self, node: usize, group: GroupId) {
        let machine = self.nodes[node].machine.as_ref().unwrap();
        let slots = 0..self.slots;
        let receives = machine
            .receives(group)
            .into_iter()
            .flat_map(|(peer, tree)| {
                slots.clone().map(move |slot| Buffer::Receive {
                    group,
                    peer,
                    tree,
                    slot,
                })
            });
        let sends = machine.sends(group).into_iter().flat_map(|tree| {
            slots
                .clone()
                .map(move |slot| Buffer::Send { group, tree, slot })
        });
        let all: Vec<Buffer> = receives.chain(sends).collect();
        let all = all
            .into_iter()
            .map(|buffer| (buffer, vec![0xee; CHUNK as usize]));
        self.nodes[node].memory.extend(all);
    }

    fn send(&mut self, node: usize, peer: usize, frame: Frame, payload: Option<(Ticket, Region)>) {
        self.frames += 1;
        let to = self.present()[peer];
        assert!(
            self.nodes[node].links.contains(&to),
            "no link from {node} to {to} for {frame:?}"
        );
        self.check_crossing(node, to);
        let payload = payload.map(|(ticket, region)| {
            let bytes = self.read(node, region);
            assert!(!bytes.is_empty() && bytes.len() <= CHUNK as usize);
            if let Frame::Data { .. } = frame {
                *self.parts.entry((node, to)).or_default() += bytes.len() as u64;
            }
            self.work(node, ticket, vec![(region, bytes.clone())], None);
            bytes
        });
        let fence = self.fence();
        for at in self.network.deliver(self.queue.now(), node, to) {
            let event = Event::Arrive {
                to,
                from: node,
                fence,
                frame,
                payload: payload.clone(),
            };
            self.queue.at(at, event);
        }
    }

    /// ZONE-2: one pair of nodes exchanges data between two zones, whatever group it is for.
    fn check_crossing(&self, node: usize, to: usize) {
        if self.zones[node] == self.zones[to] {
            return;
        }
        let (near, far) = self.trees().gateway().unwrap();
        let pair = [self.present()[near], self.present()[far]];
        assert!(pair.contains(&node) && pair.contains(&to), "{node} to {to}");
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
        let delay = self.a_while(MS / 2);
        let (life, epoch) = (self.nodes[node].life, self.epoch);
        let work = Work {
            ticket,
            reads,
            writes,
        };
        let event = Event::Work {
            node,
            life,
            epoch,
            work,
        };
        self.queue.after(delay, event);
    }

    pub(crate) fn finish(&mut self, node: usize, work: &Work) {
        if self.nodes[node].machine.is_none() {
            return;
        }
        for (region, bytes) in &work.reads {
            let same = self.read(node, *region) == *bytes;
            assert!(same, "{region:?} changed while node {node} read it");
        }
        if let Some((region, bytes)) = &work.writes {
            self.nodes[node].computes = false;
            self.write(node, *region, bytes);
        }
        let ticket = work.ticket;
        self.handle(node, Input::Done { ticket });
    }

    fn read(&self, node: usize, region: Region) -> Vec<u8> {
        let buffer = self.nodes[node].memory.get(&region.buffer);
        let buffer = buffer.unwrap_or_else(|| panic!("node {node} reads {region:?}: released"));
        let from = region.offset as usize;
        buffer[from..from + region.bytes as usize].to_vec()
    }

    /// What is final may be being read by ranks: nothing is written to it.
    pub(crate) fn write(&mut self, node: usize, region: Region, bytes: &[u8]) {
        if let Buffer::Result { group, op } = region.buffer
            && self.recovery.on_peer_loss == OnPeerLoss::Hold
        {
            let report = self.nodes[node].machine.as_ref().unwrap().report();
            let of = report.iter().filter(|of| of.group == group);
            let mut held = of.flat_map(|of| &of.held);
            let is_final =
                held.any(|held| held.op == op && held.complete && held.verdict.is_none());
            assert!(!is_final, "{region:?} is final");
        }
        let buffer = self.nodes[node].memory.get_mut(&region.buffer);
        let buffer = buffer.unwrap_or_else(|| panic!("node {node} writes {region:?}: released"));
        let from = region.offset as usize;
        buffer[from..from + bytes.len()].copy_from_slice(bytes);
    }
}
