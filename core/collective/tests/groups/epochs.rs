//! From one epoch to the next: nodes are lost, or lose their memory; the others stop, report, and go on.

use std::collections::BTreeMap;

use collective::OpKind;
use collective::machine::{Buffer, GroupId, Input, Machine, OnPeerLoss, OpId, Start, WORLD};
use collective::recovery::{self, Forgotten, GroupReport, Report, Resume};

use crate::shell::group_of;
use crate::world::{Event, MS, World};

impl World {
    /// These nodes begin an epoch.
    pub(crate) fn enter(&mut self, members: Vec<usize>, resume: Option<&Resume>) {
        self.epoch += 1;
        self.members.push(members.clone());
        self.give_up_messages();
        self.note(format!("epoch {} of {members:?}", self.epoch));
        for &node in &members {
            self.build(node, resume);
        }
        if let Some(resume) = resume {
            self.close_what_is_over(resume);
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
        let memory = &mut self.nodes[node].memory;
        memory.retain(|buffer, _| matches!(buffer, Buffer::Result { .. } | Buffer::Own { .. }));
        let mut starts = Vec::new();
        for resume in resume.into_iter().flatten() {
            let told = self.told(node, resume.group);
            if told.is_empty() {
                continue;
            }
            let resume = resume.within(&members);
            for served in &resume.served {
                let result = Buffer::Result {
                    group: resume.group,
                    op: served.held.op,
                };
                let bytes = || vec![0xdd; served.held.bytes as usize];
                self.nodes[node].memory.entry(result).or_insert_with(bytes);
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

    /// The first operation of a group whose end each local rank was not told.
    fn told(&self, node: usize, group: GroupId) -> Vec<OpId> {
        let Some(lane) = self.lanes.get(&group) else {
            return Vec::new();
        };
        let here = lane.ranks.iter().zip(&lane.members);
        here.filter(|(rank, _)| self.node_of(**rank) == node)
            .map(|(_, member)| member.outcomes.len() as OpId)
            .collect()
    }

    /// Groups whose end all were told need nobody any more.
    fn close_what_is_over(&mut self, resume: &Resume) {
        for (&group, lane) in &mut self.lanes {
            let last = lane.members[0].program.last();
            let closes = last.is_some_and(|call| call.kind == OpKind::Close);
            let end = lane.members[0].program.len();
            let base = resume.iter().find(|one| one.group == group);
            let is_over = match base {
                Some(one) => one.base >= end as OpId,
                None => lane
                    .members
                    .iter()
                    .any(|member| member.outcomes.len() == end),
            };
            if closes && is_over {
                lane.members
                    .iter_mut()
                    .for_each(|member| member.closed = true);
                for node in &mut self.nodes {
                    node.memory.retain(|buffer, _| group_of(buffer) != group);
                }
            }
        }
    }

    /// A node is gone, for good or to come back without its memory.
    pub(crate) fn lose(&mut self, node: usize, comes_back: bool) {
        self.note(format!("{node} is lost, comes back: {comes_back}"));
        let lost = &mut self.nodes[node];
        lost.machine = None;
        lost.memory.clear();
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
            let report = self.forgotten(node);
            self.nodes[node].report = Some(report);
        }
    }

    /// What a node knows that has lost its memory: what its ranks were told.
    fn forgotten(&self, node: usize) -> Report {
        let report = |&group: &GroupId| {
            let told = self.told(node, group);
            Some(GroupReport {
                group,
                told_all: *told.iter().min()?,
                told_any: *told.iter().max()?,
                held: Vec::new(),
            })
        };
        self.lanes.keys().filter_map(report).collect()
    }

    /// Begins the next epoch when all that are left have stopped.
    pub(crate) fn go_on(&mut self) {
        if self.recovery.on_peer_loss == OnPeerLoss::Fail {
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
