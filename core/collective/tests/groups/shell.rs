//! What a machine asks of its node: work that takes time, frames, links.

use collective::machine::{Broken, Buffer, Effect, Frame, GroupId, Input, Region, Ticket};
use topology::OnPeerLoss;

use crate::memory::Work;
use crate::world::{CHUNK, Event, MS, World};

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
                self.check_unread(node, destination);
                let memory = &mut self.nodes[node].memory;
                let work = memory.reduce(ticket, arithmetic, [sources, partials], destination);
                self.work(node, work, true);
            }
            Effect::Copy {
                ticket,
                source,
                destination,
            } => {
                self.check_unread(node, destination);
                let work = self.nodes[node].memory.copy(ticket, source, destination);
                self.work(node, work, true);
            }
            Effect::End {
                group,
                op,
                rank,
                outcome,
            } => self.end(node, group, op, rank, outcome),
            Effect::FreeInputs { group, op } => {
                self.nodes[node].memory.free_inputs((group, op));
            }
            Effect::Release { group, op } => {
                let id = (group, op);
                let node = &mut self.nodes[node];
                node.memory.release(id);
                let is_its = |buffer: &Buffer| matches!(*buffer, Buffer::Own { group, op, .. } if (group, op) == id);
                node.own.retain(|buffer| !is_its(buffer));
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
                // It may be one that stood before and is refused since a loss: then nobody was told its end.
                let mut here = self.layout.ranks(node);
                let was_ended = here.all(|rank| {
                    let member = self.has(group, rank);
                    member.is_none_or(|one| one.outcomes.len() >= one.program.len())
                });
                self.nodes[node].memory.keep(|buffer| {
                    let is_slot = matches!(buffer, Buffer::Receive { .. } | Buffer::Send { .. });
                    assert!(
                        is_slot || !was_ended || buffer.group() != group,
                        "{buffer:?} is there after the end of its group"
                    );
                    true
                });
                self.forget_group(node, group);
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
        for buffer in all {
            self.nodes[node].memory.add_slot(buffer, CHUNK);
        }
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
            let (work, bytes) = self.nodes[node].memory.send(ticket, region);
            assert!(!bytes.is_empty() && bytes.len() <= CHUNK as usize);
            if let Frame::Data { .. } = frame {
                *self.parts.entry((node, to)).or_default() += bytes.len() as u64;
            }
            self.work(node, work, false);
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

    fn work(&mut self, node: usize, work: Work, computes: bool) {
        let delay = self.a_while(MS / 2);
        let (life, epoch) = (self.nodes[node].life, self.epoch);
        let event = Event::Work {
            node,
            life,
            epoch,
            work,
            computes,
        };
        self.queue.after(delay, event);
    }

    pub(crate) fn finish(&mut self, node: usize, work: &Work, computes: bool) {
        if self.nodes[node].machine.is_none() {
            return;
        }
        self.nodes[node].computes &= !computes;
        self.nodes[node].memory.finish(work);
        let ticket = work.ticket;
        self.handle(node, Input::Done { ticket });
    }

    /// A group has no part in what follows on a node.
    pub(crate) fn forget_group(&mut self, node: usize, group: GroupId) {
        let node = &mut self.nodes[node];
        node.memory.forget(group);
        node.own.retain(|buffer| buffer.group() != group);
    }

    /// What is final may be being read by ranks: nothing is written to it.
    pub(crate) fn check_unread(&self, node: usize, region: Region) {
        if let Buffer::Result { group, op } = region.buffer
            && self.recovery.on_peer_loss == OnPeerLoss::Shrink
        {
            let report = self.nodes[node].machine.as_ref().unwrap().report();
            let of = report.iter().filter(|of| of.group == group);
            let mut held = of.flat_map(|of| &of.held);
            let is_final =
                held.any(|held| held.op == op && held.complete && held.verdict.is_none());
            assert!(!is_final, "{region:?} is final");
        }
    }
}
