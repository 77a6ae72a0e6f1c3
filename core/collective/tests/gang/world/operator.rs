//! The operator's side: one leader at a time, whose memory is lost with it, and a store that takes a commit if the one
//! before is the one that the leader knows. Requests of a dead leader may still arrive.

use std::collections::BTreeMap;
use std::time::Duration;

use collective::membership::{
    Commit, Connection, GangPhase, Membership, MembershipEffect, MembershipEvent,
    MembershipMessage, RecoveryPolicy,
};
use sim::To;
use topology::OnPeerLoss;

use super::{Event, MS, World};

pub(crate) struct Leader {
    pub(crate) id: u64,
    pub(crate) membership: Membership,
    /// Whose connection it is.
    pub(crate) connections: BTreeMap<Connection, usize>,
    tick: Option<Duration>,
    /// The epoch it leads and what it is doing.
    phase: (u64, GangPhase),
}

impl World {
    /// A leader starts after a while, with nothing but what the store holds then.
    pub(crate) fn start_leader(&mut self, after: Duration) {
        self.leaders += 1;
        let leader = self.leaders;
        let starts = Event::LeaderStarts { leader };
        self.hosts.after(after, To::World, starts);
    }

    pub(crate) fn become_leader(&mut self, id: u64) {
        let policy = RecoveryPolicy {
            on_peer_loss: OnPeerLoss::Shrink,
            peer_loss: Duration::from_secs(10),
            least: self.setup.least,
        };
        let committed = self.store.last().cloned();
        self.hosts
            .note(("leader", id, committed.as_ref().map(|commit| commit.epoch)));
        let nodes = self.nodes() as u32;
        let membership = Membership::resume(nodes, policy, committed, self.now());
        let view = membership.view();
        self.leader = Some(Leader {
            id,
            phase: (view.epoch, view.phase),
            membership,
            connections: BTreeMap::new(),
            tick: None,
        });
    }

    /// The leader is gone; its connections close.
    pub(crate) fn kill_leader(&mut self) {
        let Some(leader) = self.leader.take() else {
            return;
        };
        for (connection, node) in leader.connections {
            let hung_up = Event::HungUp { node, connection };
            self.hosts.within(MS..20 * MS, To::Process(node), hung_up);
        }
        let after = self.hosts.draw(50 * MS..3000 * MS);
        self.start_leader(after);
    }

    /// A connection between a node and the leader is dead: both notice.
    pub(crate) fn lose_operator(&mut self, node: usize) {
        let Some(leader) = &self.leader else { return };
        let (id, connections) = (leader.id, leader.connections.clone());
        for (connection, _) in connections.into_iter().filter(|&(_, at)| at == node) {
            let hung_up = Event::HungUp { node, connection };
            let seconds = 500 * MS..3000 * MS;
            self.hosts.within(seconds, To::Process(node), hung_up);
            let notice = MembershipEvent::Disconnected { connection };
            let lost = Event::ToLeader { leader: id, notice };
            self.hosts.within(500 * MS..15_000 * MS, To::World, lost);
        }
    }

    /// The process or machine at the other end of the node's connection is gone: the leader notices.
    pub(crate) fn close_operator(&mut self, node: usize) {
        let Some(leader) = &self.leader else { return };
        let (id, connections) = (leader.id, leader.connections.clone());
        for (connection, _) in connections.into_iter().filter(|&(_, at)| at == node) {
            let notice = MembershipEvent::Disconnected { connection };
            let lost = Event::ToLeader { leader: id, notice };
            self.hosts.within(MS..10 * MS, To::World, lost);
        }
    }

    pub(crate) fn send_to_leader(&mut self, node: usize, leader: u64, notice: MembershipEvent) {
        let operator = self.operator();
        let notice = Event::ToLeader { leader, notice };
        self.hosts.send(node, operator, To::World, &notice);
    }

    /// What a leader handles is part of the story, but for what comes all the time.
    fn note_notice(&self, notice: &MembershipEvent) {
        let who = |connection| self.leader.as_ref()?.connections.get(connection);
        match notice {
            MembershipEvent::Heartbeat { .. } | MembershipEvent::Tick => {}
            MembershipEvent::Stopped {
                connection,
                epoch,
                reach,
                ..
            } => self.hosts.note(("stopped", who(connection), epoch, reach)),
            MembershipEvent::Suspect { .. }
            | MembershipEvent::Hello { .. }
            | MembershipEvent::Joined { .. }
            | MembershipEvent::Recovered { .. }
            | MembershipEvent::RankLost { .. }
            | MembershipEvent::Gone { .. }
            | MembershipEvent::Completed { .. }
            | MembershipEvent::Committed { .. }
            | MembershipEvent::CommitFailed { .. }
            | MembershipEvent::Leaving { .. }
            | MembershipEvent::Disconnected { .. } => self.hosts.note(notice),
        }
    }

    pub(crate) fn on_notice(&mut self, id: u64, notice: MembershipEvent) {
        self.note_notice(&notice);
        let now = self.now();
        let Some(leader) = self.leader.as_mut().filter(|leader| leader.id == id) else {
            return;
        };
        if notice == MembershipEvent::Tick {
            leader.tick = None;
        }
        if let MembershipEvent::Disconnected { connection } = notice {
            leader.connections.remove(&connection);
        }
        let mut effects = Vec::new();
        let mut changed = false;
        leader.membership.handle(now, notice, &mut effects);
        for effect in effects {
            match effect {
                MembershipEffect::Send {
                    connection,
                    message,
                } => self.send_to_sidecar(connection, &message),
                MembershipEffect::Commit { commit, after } => {
                    // Most are taken at once; some take long, some get lost.
                    let most = if self.rng.chance(1, 8) { 700 } else { 20 };
                    let delay = self.hosts.draw(MS..most * MS);
                    let leader = id;
                    let store = Event::Store {
                        leader,
                        commit,
                        after,
                    };
                    if self.rng.chance(1, 20) {
                        let notice = MembershipEvent::CommitFailed { current: None };
                        let failed = Event::ToLeader { leader, notice };
                        self.hosts.after(delay, To::World, failed);
                    } else {
                        self.hosts.after(delay, To::World, store);
                    }
                }
                MembershipEffect::Changed => changed = true,
            }
        }
        let Some(leader) = &mut self.leader else {
            return;
        };
        if changed {
            let view = leader.membership.view();
            if let Some(broken) = view.broken {
                self.broken.get_or_insert(broken);
            }
            leader.phase = (view.epoch, view.phase);
        }
        let wake = leader.membership.wake_at();
        if let Some(at) = wake
            && leader.tick.is_none_or(|tick| at < tick)
        {
            leader.tick = Some(at);
            let tick = Event::LeaderTick { leader: id };
            self.hosts.at(at, To::World, tick);
        }
    }

    fn send_to_sidecar(&mut self, connection: Connection, message: &MembershipMessage) {
        let Some(leader) = &mut self.leader else {
            return;
        };
        let Some(&node) = leader.connections.get(&connection) else {
            return;
        };
        if matches!(*message, MembershipMessage::Refused(_)) {
            leader.connections.remove(&connection);
        }
        if !matches!(
            message,
            MembershipMessage::Next { .. }
                | MembershipMessage::Revoke { .. }
                | MembershipMessage::Roster { .. }
        ) {
            self.hosts.note(("sent", node, message));
        }
        let operator = self.operator();
        let message = message.clone();
        let event = Event::ToSidecar {
            node,
            connection,
            message,
        };
        self.hosts.send(operator, node, To::Process(node), &event);
    }

    pub(crate) fn decide(&mut self, leader: u64, commit: Commit, after: Option<u64>) {
        let current = self.store.last().cloned();
        self.hosts.note(("store", leader, &commit, after));
        let notice = if current.as_ref().map(|commit| commit.epoch) == after {
            assert!(Some(commit.epoch) > after, "epochs ascend");
            if let Some(before) = &current {
                let stays = |rank| before.members.contains(rank);
                assert!(commit.members.iter().all(stays), "nobody comes back");
            }
            let epoch = commit.epoch;
            self.store.push(commit);
            MembershipEvent::Committed { epoch }
        } else {
            MembershipEvent::CommitFailed { current }
        };
        let notice = Event::ToLeader { leader, notice };
        self.hosts.within(MS..5 * MS, To::World, notice);
    }

    /// What the leader is doing, if there is one.
    pub(crate) fn phase(&self) -> Option<(u64, &GangPhase)> {
        let leader = self.leader.as_ref()?;
        Some((leader.phase.0, &leader.phase.1))
    }
}
