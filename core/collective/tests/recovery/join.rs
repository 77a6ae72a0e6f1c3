//! How a sidecar joins an epoch: connects along its trees, builds its machine from what it kept, waits for the word to go.

use collective::DoubleTree;
use collective::machine::{Buffer, Config, Fence, Input, Machine, OpId, Start, Timing};
use collective::membership::Event as Heard;
use collective::recovery::Resume;

use crate::sidecar::Joining;
use crate::world::{ATTEMPT, Event, MS, World};

impl World {
    pub(crate) fn begin_to_join(
        &mut self,
        node: usize,
        epoch: u64,
        members: Vec<usize>,
        resume: Resume,
    ) {
        let sidecar = &mut self.sidecars[node];
        if sidecar.epoch == epoch && sidecar.machine.is_some() {
            self.report(node, |connection| Heard::Joined { connection, epoch });
            return;
        }
        let pending = sidecar.joining.as_ref().map_or(0, |joining| joining.epoch);
        if epoch <= sidecar.epoch.max(sidecar.asked).max(pending) {
            return;
        }
        if sidecar.machine.is_some() && sidecar.report.is_none() {
            // Before the start nothing was done that a report could tell.
            assert!(!sidecar.started, "who goes on has stopped");
            self.handle(node, Input::Revoke);
        }
        let sidecar = &mut self.sidecars[node];
        sidecar.asks_since = None;
        let zones: Vec<u64> = members
            .iter()
            .map(|&member| self.setup.zones[member])
            .collect();
        sidecar.joining = Some(Joining {
            epoch,
            me: members.binary_search(&node).unwrap(),
            trees: DoubleTree::build(&zones),
            members,
            resume,
        });
        let life = sidecar.life;
        self.queue.after(MS, Event::Join { node, life, epoch });
    }

    /// Connects to the neighbours of the epoch, as far as they are there.
    pub(crate) fn join(&mut self, node: usize, life: u64, epoch: u64) {
        let sidecar = &self.sidecars[node];
        if sidecar.life != life {
            return;
        }
        let Some(joining) = sidecar
            .joining
            .as_ref()
            .filter(|joining| joining.epoch == epoch)
        else {
            return;
        };
        let idle = sidecar.machine.as_ref().is_none_or(Machine::is_idle);
        let is_there = |peer: usize| {
            let peer = joining.members[peer];
            let other = &self.sidecars[peer];
            let joins = other
                .joining
                .as_ref()
                .is_some_and(|joining| joining.epoch == epoch);
            let there = joins || other.epoch == epoch && other.machine.is_some();
            there && !other.frozen && !self.is_cut(node, peer)
        };
        let all = joining
            .trees
            .neighbours(joining.me)
            .into_iter()
            .all(is_there);
        if !idle || !sidecar.reading.is_empty() || !all {
            let pause = if idle { 10 * MS } else { MS };
            self.queue.after(pause, Event::Join { node, life, epoch });
            return;
        }
        self.build(node);
        self.report(node, |connection| Heard::Joined { connection, epoch });
    }

    pub(crate) fn build(&mut self, node: usize) {
        let now = self.now();
        self.close_links(node);
        let ranks = self.setup.layout.ranks(node);
        let told: Vec<OpId> = ranks
            .map(|rank| self.clients[rank as usize].outcomes.len() as OpId)
            .collect();
        let sidecar = &mut self.sidecars[node];
        let joining = sidecar.joining.take().unwrap();
        let layout = self.setup.layout.of_members(&joining.members).unwrap();
        sidecar.world = layout.world();
        let config = Config {
            node: joining.me,
            layout,
            trees: joining.trees,
            fence: Fence {
                attempt: ATTEMPT,
                epoch: joining.epoch as u32,
            },
            chunk_bytes: self.setup.chunk_bytes,
            slots: self.setup.slots,
            timing: Timing::default(),
            recovery: self.setup.recovery,
        };
        config.check().unwrap();
        let report = sidecar.report.take();
        let is_result = |buffer| matches!(buffer, Buffer::Result { .. });
        sidecar.memory.keep(is_result);
        let machine = match joining.resume.first() {
            None => Machine::new(config, now),
            Some(resume) => {
                let held = report.map_or_else(Vec::new, |report| report[0].held.clone());
                let resume = resume.within(&joining.members);
                for served in &resume.served {
                    let op = served.held.op;
                    sidecar.memory.add_result(op, served.held.bytes);
                    sidecar.released.remove(&op);
                }
                let start = Start {
                    resume,
                    told: told.clone(),
                    held,
                };
                Machine::resume(config, &start, now)
            }
        };
        let slots = 0..self.setup.slots;
        for (peer, tree) in machine.receives() {
            for slot in slots.clone() {
                let buffer = Buffer::Receive { peer, tree, slot };
                sidecar.memory.add_slot(buffer, self.setup.chunk_bytes);
            }
        }
        for tree in machine.sends() {
            for slot in slots.clone() {
                let buffer = Buffer::Send { tree, slot };
                sidecar.memory.add_slot(buffer, self.setup.chunk_bytes);
            }
        }
        sidecar.submitted = told.iter().map(|&told| told as usize).collect();
        sidecar.machine = Some(machine);
        sidecar.epoch = joining.epoch;
        sidecar.members = joining.members;
        sidecar.started = false;
        sidecar.said = None;
        sidecar.incoming.clear();
        sidecar.tick = None;
        // A peer that died since it was there.
        let epoch = self.sidecars[node].epoch;
        for peer in self.peers(node) {
            let other = &self.sidecars[peer];
            let joins = other
                .joining
                .as_ref()
                .is_some_and(|joining| joining.epoch == epoch);
            if !joins && (other.epoch != epoch || other.machine.is_none()) {
                self.lose_link(node, peer, epoch);
            }
        }
        let locals: Vec<u32> = self.setup.layout.ranks(node).collect();
        for (local, rank) in locals.into_iter().enumerate() {
            if !self.clients[rank as usize].alive {
                self.handle(node, Input::RankLost { rank: local });
            }
        }
        self.handle(node, Input::Tick);
        self.schedule_tick(node);
        self.take_in_early(node);
    }
}
