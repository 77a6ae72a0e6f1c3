//! How a sidecar joins an epoch: connects along its trees, builds its machine from what it kept, waits for the word to go.

use collective::DoubleTree;
use collective::machine::{Buffer, Config, Fence, GroupId, Input, Machine, Timing, WORLD};
use collective::membership::MembershipEvent;
use collective::recovery::Resume;
use collective::session::Begun;
use sim::To;

use super::sidecars::Joining;
use super::{ATTEMPT, Event, MS, World};

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
            self.report(node, |connection| MembershipEvent::Joined {
                connection,
                epoch,
            });
            return;
        }
        let pending = sidecar.joining.as_ref().map_or(0, |joining| joining.epoch);
        if epoch <= sidecar.epoch.max(sidecar.asked).max(pending) {
            return;
        }
        if sidecar.machine.is_some() && sidecar.report.is_none() {
            // Before the start nothing was done that a report could contain.
            assert!(!sidecar.started, "who goes on has stopped");
            self.handle(node, Input::Revoke);
        }
        let sidecar = &mut self.sidecars[node];
        sidecar.asks_since = None;
        let trees = self.trees(&members);
        self.sidecars[node].joining = Some(Joining {
            epoch,
            me: members.binary_search(&node).unwrap(),
            trees,
            members,
            resume,
        });
        let join = Event::Join { node, epoch };
        self.hosts.after(MS, To::Process(node), join);
    }

    pub(crate) fn trees(&self, members: &[usize]) -> DoubleTree {
        let zones = members.iter().map(|&member| self.setup.zones[member]);
        DoubleTree::build(&zones.collect::<Vec<u64>>())
    }

    /// Connects to the neighbours of the epoch, as far as they are there.
    pub(crate) fn join(&mut self, node: usize, epoch: u64) {
        let sidecar = &self.sidecars[node];
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
            there && !self.hosts.is_frozen(peer) && !self.is_cut(node, peer)
        };
        let all = joining
            .trees
            .tree_peers(joining.me)
            .into_iter()
            .all(is_there);
        if !idle || !sidecar.reading.is_empty() || !all {
            let pause = if idle { 10 * MS } else { MS };
            let join = Event::Join { node, epoch };
            self.hosts.after(pause, To::Process(node), join);
            return;
        }
        self.build(node);
        self.report(node, |connection| MembershipEvent::Joined {
            connection,
            epoch,
        });
    }

    pub(crate) fn build(&mut self, node: usize) {
        let now = self.now();
        self.close_links(node);
        let joining = self.sidecars[node].joining.take().unwrap();
        let is_slot = |buffer| matches!(buffer, Buffer::Receive { .. } | Buffer::Send { .. });
        let sidecar = &mut self.sidecars[node];
        sidecar.memory.keep(|buffer| !is_slot(buffer));
        sidecar.report = None;
        let resume = Some(&joining.resume).filter(|resume| !resume.is_empty());
        let Begun { over, starts } = sidecar.ranks.begin(resume, &joining.members);
        for group in over {
            self.free_group(node, group);
        }
        let sidecar = &mut self.sidecars[node];
        let layout = self.setup.layout.of_members(&joining.members).unwrap();
        let gateway = joining.trees.gateway();
        sidecar.gateway = gateway.map(|(near, far)| [joining.members[near], joining.members[far]]);
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
            // Nodes differ in how many they fill.
            window: self.setup.slots - node as u8 % self.setup.slots,
            timing: Timing::default(),
            recovery: self.setup.recovery,
        };
        config.check().unwrap();
        for start in starts.iter().flatten() {
            for served in &start.resume.served {
                let id = (start.resume.group, served.retained.op);
                sidecar.memory.add_result(id, served.retained.bytes);
                sidecar.released.remove(&id);
            }
        }
        sidecar.machine = Some(match starts {
            Some(starts) => Machine::resume(config, starts, now),
            None => Machine::new(config, now),
        });
        sidecar.epoch = joining.epoch;
        sidecar.members = joining.members;
        sidecar.started = false;
        sidecar.said = None;
        sidecar.incoming.clear();
        sidecar.answered.clear();
        sidecar.freed.clear();
        sidecar.broken = None;
        self.sidecars[node].links = self.peers(node).into_iter().collect();
        self.add_slots(node, WORLD);
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

    /// Slots for the edges of a group.
    pub(crate) fn add_slots(&mut self, node: usize, group: GroupId) {
        let sidecar = &mut self.sidecars[node];
        let Some(machine) = &sidecar.machine else {
            return;
        };
        let bytes = self.setup.chunk_bytes;
        for slot in 0..self.setup.slots {
            for (peer, tree) in machine.receives(group) {
                let buffer = Buffer::Receive {
                    group,
                    peer,
                    tree,
                    slot,
                };
                sidecar.memory.add_slot(buffer, bytes);
            }
            for tree in machine.sends(group) {
                let buffer = Buffer::Send { group, tree, slot };
                sidecar.memory.add_slot(buffer, bytes);
            }
        }
    }
}
