//! Epochs that the test leads: nodes are lost, or lose their memory; the others stop, report, and go on at once.

use std::collections::BTreeMap;

use collective::machine::{Broken, Input, Machine};
use collective::membership::{Break, Commit};
use collective::recovery::{self, EpochReport, Forgotten, Resume};
use topology::OnPeerLoss;

use super::sidecars::Joining;
use super::{Leads, MS, World};

impl World {
    /// The first epoch, of all nodes.
    pub(crate) fn begin(&mut self) {
        for node in 0..self.nodes() {
            self.hosts.start(node);
            self.attach_all(node);
        }
        self.enter((0..self.nodes()).collect(), &Resume::new());
    }

    /// These nodes begin an epoch.
    fn enter(&mut self, members: Vec<usize>, resume: &Resume) {
        let epoch = self.store.last().map_or(1, |commit| commit.epoch + 1);
        self.store.push(Commit {
            epoch,
            members: members.iter().map(|&node| node as u32).collect(),
            resume: resume.clone(),
        });
        self.hosts.note(("epoch", epoch, &members));
        let trees = self.trees(&members);
        for (me, &node) in members.iter().enumerate() {
            self.sidecars[node].joining = Some(Joining {
                epoch,
                members: members.clone(),
                me,
                trees: trees.clone(),
                resume: resume.clone(),
            });
        }
        for &node in &members {
            self.build(node);
        }
        for node in members {
            self.go(node);
        }
    }

    fn attach_all(&mut self, node: usize) {
        self.sidecars[node].attached = self.setup.layout.local(node);
        let ranks = self.setup.layout.ranks(node);
        ranks.for_each(|rank| self.attach_process(node, rank));
    }

    /// A node is gone, for good or to come back without its memory.
    pub(crate) fn lose(&mut self, node: usize, comes_back: bool) {
        self.hosts.note(("lost", node, comes_back));
        self.give_up_messages_of(node);
        if comes_back {
            self.kill_sidecar(node);
            self.hosts.start(node);
            self.sidecars[node] = self.new_sidecar(node);
            self.attach_all(node);
            self.sidecars[node].report = self.report_of(node);
        } else {
            self.kill_node(node);
        }
        for other in self.members() {
            if other != node && self.sidecars[other].machine.is_some() {
                self.later(100 * MS, other, Input::Revoke);
            }
        }
    }

    /// Begins the next epoch when all that are left have stopped.
    pub(crate) fn begin_next_epoch(&mut self) {
        let is_left = self.setup.leads == Leads::Test && self.broken.is_none();
        if !is_left || self.setup.recovery.on_peer_loss == OnPeerLoss::Restart {
            return;
        }
        let left = |node: &u32| Some((*node as usize, &self.sidecars[*node as usize]));
        let members = &self.store.last().unwrap().members;
        let mut sidecars = members.iter().filter_map(left);
        if !sidecars
            .clone()
            .any(|(_, sidecar)| sidecar.report.is_some())
        {
            return;
        }
        let stopped = sidecars.all(|(node, sidecar)| {
            let idle = sidecar.machine.as_ref().is_none_or(Machine::is_idle);
            let rests = idle && sidecar.reading.is_empty();
            !self.hosts.runs(node) || sidecar.report.is_some() && rests
        });
        if !stopped {
            return;
        }
        let reports = members.iter().filter_map(left);
        let reports: BTreeMap<usize, &EpochReport> = reports
            .filter_map(|(node, sidecar)| Some((node, sidecar.report.as_ref()?)))
            .collect();
        let members: Vec<usize> = reports.keys().copied().collect();
        match recovery::resume(&reports) {
            Ok(resume) => {
                for group in &resume {
                    let from = ("group", group.group, group.base, &group.served);
                    self.hosts.note(from);
                }
                self.give_up_messages();
                self.enter(members, &resume);
            }
            Err(Forgotten { op }) => {
                // What each rank gets for itself nobody else has.
                let calls = self.groups.values().flat_map(|group| &group.members);
                let mut calls = calls.filter_map(|member| member.program.get(op as usize));
                assert!(calls.any(|call| call.kind.exchanges()), "{op} is forgotten");
                self.broken = Some(Break::Forgotten { op });
            }
        }
    }

    /// Whether an epoch may have ended of this: a node was lost, or others said so first.
    pub(crate) fn ends_of(&self, broken: Broken) -> bool {
        let was_lost = |node: usize| self.hosts.has_died(node);
        match broken {
            // In a later epoch the numbers are those of its members.
            Broken::NodeLost { node, .. } if self.store.len() == 1 => was_lost(node),
            Broken::NodeLost { .. } | Broken::Revoked => (0..self.nodes()).any(was_lost),
            Broken::NodeSilent { .. }
            | Broken::NodeLeft { .. }
            | Broken::RankLost { .. }
            | Broken::RankLeft { .. }
            | Broken::Protocol { .. } => false,
        }
    }
}
