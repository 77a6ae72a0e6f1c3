//! From one epoch to the next: nodes are lost, or lose their memory; the others stop, report, and go on.

use std::collections::BTreeMap;

use collective::machine::{Buffer, GroupId, Input, Machine, OpId, Start, WORLD};
use collective::recovery::{
    self, Forgotten, GroupReport, GroupResume, Report, Resume, Told, is_over, told_each,
};
use topology::OnPeerLoss;

use crate::memory::Memory;
use crate::world::{Event, MS, World};

impl World {
    /// These nodes begin an epoch.
    pub(crate) fn enter(&mut self, members: Vec<usize>, resume: Option<&Resume>) {
        self.epoch += 1;
        self.members.push(members.clone());
        self.give_up_messages();
        self.note(format!("epoch {} of {members:?}", self.epoch));
        for &node in &members {
            if let Some(resume) = resume {
                self.close_what_is_over(node, resume);
            }
            self.build(node, resume);
        }
        for &node in &members {
            for rank in self.layout.ranks(node) {
                for group in self.lanes.keys().copied().collect::<Vec<_>>() {
                    if let Some(member) = self.member(group, rank) {
                        // Opened again, unless it is the world.
                        member.asked = group == WORLD || member.closed;
                        member.stands = group == WORLD;
                        member.submitted = member.outcomes.len();
                    }
                }
                self.act_soon(rank);
            }
        }
    }

    fn build(&mut self, node: usize, resume: Option<&Resume>) {
        let config = self.config(node);
        let members = self.present().to_vec();
        let report = self.nodes[node].report.take();
        let held = |group: GroupId| {
            let of = report.iter().flatten().find(|of| of.group == group);
            of.map_or_else(Vec::new, |of| of.held.clone())
        };
        let stays = |buffer| matches!(buffer, Buffer::Result { .. } | Buffer::Own { .. });
        self.nodes[node].memory.keep(stays);
        let mut starts = Vec::new();
        for resume in resume.into_iter().flatten() {
            if let Some(start) = Start::of_refused(resume) {
                starts.push(start);
                continue;
            }
            let Some(told) = self.told(node, resume.group) else {
                continue;
            };
            let resume = resume.within(&members);
            for served in &resume.served {
                let id = (resume.group, served.held.op);
                let memory = &mut self.nodes[node].memory;
                memory.add_result(id, served.held.bytes);
            }
            starts.push(Start {
                held: held(resume.group),
                told,
                resume,
            });
        }
        let now = self.queue.now();
        let machine = match resume {
            Some(_) => Machine::resume(config, starts, now),
            None => Machine::new(config, now),
        };
        let peers = machine.peers();
        self.nodes[node].links = peers.iter().map(|&peer| members[peer]).collect();
        self.nodes[node].machine = Some(machine);
        self.forget_tick(node);
        self.allocate(node, WORLD);
        self.later(MS, node, Input::Tick);
    }

    /// What a node knows of a group from its ranks.
    fn known(&self, node: usize, group: GroupId) -> Vec<Option<Told>> {
        let lane = &self.lanes[&group];
        let here = lane.ranks.iter().zip(&lane.members);
        here.filter(|(rank, _)| self.node_of(**rank) == node)
            .map(|(_, member)| member.told())
            .collect()
    }

    /// The first operation of a group whose end each local rank was not told; none where the node knows nothing of it.
    fn told(&self, node: usize, group: GroupId) -> Option<Vec<OpId>> {
        let known = self.known(node, group);
        let any = known.iter().any(Option::is_some);
        any.then(|| told_each(&known))
    }

    /// Groups whose end all were told need nobody any more.
    fn close_what_is_over(&mut self, node: usize, resume: &Resume) {
        for group in self.lanes.keys().copied().collect::<Vec<_>>() {
            let base = resume.iter().find(|one| one.group == group);
            if is_over(
                &self.known(node, group),
                base.and_then(GroupResume::needed_from),
            ) {
                self.closed(node, group);
                self.forget_group(node, group);
            }
        }
    }

    /// A node is gone, for good or to come back without its memory.
    pub(crate) fn lose(&mut self, node: usize, comes_back: bool) {
        self.note(format!("{node} is lost, comes back: {comes_back}"));
        let lost = &mut self.nodes[node];
        lost.machine = None;
        lost.memory = Memory::default();
        lost.own.clear();
        lost.life += 1;
        lost.report = None;
        self.give_up_messages_of(node);
        let own = self.present().binary_search(&node).unwrap();
        for other in self.present().to_vec() {
            self.network.cut(node, other);
            if self.nodes[other].links.contains(&node) {
                self.later(50 * MS, other, Input::PeerLost { peer: own });
            }
            let (life, epoch) = (self.nodes[other].life, self.epoch);
            let input = Input::Revoke;
            let revoke = Event::Input {
                node: other,
                life,
                epoch,
                input,
            };
            self.queue.after(100 * MS, revoke);
        }
        if comes_back {
            for rank in self.layout.ranks(node) {
                for group in self.lanes.keys().copied().collect::<Vec<_>>() {
                    if let Some(member) = self.member(group, rank) {
                        member.remind();
                    }
                }
            }
            let report = self.forgotten(node);
            self.nodes[node].report = Some(report);
        }
    }

    /// What a node reports that has lost its memory: what its ranks were told.
    fn forgotten(&self, node: usize) -> Report {
        let groups = self.lanes.keys();
        groups
            .filter_map(|&group| Some(GroupReport::of_told(group, &self.told(node, group)?)))
            .collect()
    }

    /// Begins the next epoch when all that are left have stopped.
    pub(crate) fn go_on(&mut self) {
        if self.recovery.on_peer_loss == OnPeerLoss::Restart {
            return;
        }
        let stopped = |&node: &usize| {
            let node = &self.nodes[node];
            let idle = node.machine.as_ref().is_none_or(Machine::is_idle);
            node.machine.is_none() && node.report.is_none() || node.report.is_some() && idle
        };
        let any = self
            .present()
            .iter()
            .any(|&node| self.nodes[node].report.is_some());
        if !any || !self.present().iter().all(stopped) {
            return;
        }
        let left = self.present().iter().copied();
        let reports: BTreeMap<usize, &Report> = left
            .filter_map(|node| Some((node, self.nodes[node].report.as_ref()?)))
            .collect();
        let members: Vec<usize> = reports.keys().copied().collect();
        let resume = match recovery::resume(&reports) {
            Ok(resume) => resume,
            Err(Forgotten { op }) => {
                // What each rank gets for itself nobody else has.
                let calls = self.lanes.values().flat_map(|lane| &lane.members);
                let mut calls = calls.filter_map(|member| member.program.get(op as usize));
                assert!(calls.any(|call| call.kind.exchanges()), "{op} is forgotten");
                self.forgotten = true;
                return;
            }
        };
        for group in &resume {
            let line = format!(
                "group {} from {}: {:?}",
                group.group, group.base, group.served
            );
            self.story.push(line);
        }
        self.network.heal();
        self.enter(members, Some(&resume));
    }
}
