//! The engine's groups: what its processes open, the memory and the links that groups need, and their end.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use collective::machine::{
    Cause, Dispute, GroupId, Input, OpenError, OpenReason, Reason, Verdict, WORLD,
};
use collective::recovery::{GroupResume, Resume, Told, is_over};
use tracing::{debug, error, info};
use wire::entry::FailureKind;

use super::{Engine, LINK, epoch};
use crate::session::{Departed, Session};

/// Lost ranks that an error names.
const MOST_NAMED: usize = 8;

impl Engine {
    /// A process opens a group.
    pub(super) fn open(&mut self, group: GroupId, rank: usize) {
        if let Some(over) = self.over.clone() {
            self.fail_open(group, rank, FailureKind::Broken, &over);
            return;
        }
        let Some(lane) = self.lane(group, rank) else {
            return;
        };
        let (ranks, replicated) = (lane.ranks.clone(), lane.replicated);
        self.agenda.prefer(group, lane.priority);
        self.handle(Input::Open {
            group,
            rank,
            ranks,
            replicated,
        });
    }

    /// In a new epoch all groups that are not closed are opened again.
    pub(super) fn open_again(&mut self) {
        for rank in self.sessions.keys().copied().collect::<Vec<_>>() {
            let groups = self.sessions.get(&rank).map(|one| one.groups());
            for group in groups.into_iter().flatten().filter(|group| *group != WORLD) {
                let session = self.sessions.get_mut(&rank);
                if let Some(lane) = session.and_then(|one| one.lane_mut(group)) {
                    lane.reopens = true;
                }
                self.open(group, rank);
            }
        }
    }

    /// The answer to that.
    pub(super) fn opened(&mut self, group: GroupId, rank: usize, outcome: Result<(), OpenError>) {
        let kind = match outcome {
            Ok(()) => {
                let epoch = self.config.fence.epoch;
                let Some(session) = self.sessions.get_mut(&rank) else {
                    self.opened_for_departed(group, rank, Ok(()));
                    return;
                };
                match session.opened(group, epoch) {
                    Ok(true) => debug!(group, local_rank = rank, "a group is open"),
                    Ok(false) => self.call_again(group, rank),
                    Err(error) => self.lose_session(rank, &error),
                }
                return;
            }
            Err(OpenError::Dispute(Dispute::Mismatch { .. })) => FailureKind::Mismatch,
            Err(OpenError::Dispute(Dispute::Refused { .. })) => FailureKind::Refused,
            Err(OpenError::Broken(_)) => FailureKind::Broken,
        };
        let text = match outcome {
            Err(OpenError::Broken(broken)) => self.text(&broken.into()),
            Err(OpenError::Dispute(dispute)) => dispute.to_string(),
            Ok(()) => return,
        };
        info!(group, local_rank = rank, text, "a group was not opened");
        let taken = OpenReason::Taken;
        if !matches!(outcome, Err(OpenError::Dispute(Dispute::Refused { reason, .. })) if reason == taken)
        {
            self.drop_results(group);
        }
        self.fail_open(group, rank, kind, &text);
    }

    fn fail_open(&mut self, group: GroupId, rank: usize, kind: FailureKind, text: &str) {
        if let Some(session) = self.sessions.get_mut(&rank)
            && let Err(error) = session.fail_open(group, kind, text)
        {
            self.lose_session(rank, &error);
        }
        if !self.sessions.contains_key(&rank) {
            self.opened_for_departed(group, rank, Err(text.to_owned()));
        }
    }

    /// A group needs its slots.
    pub(super) fn begin_group(&mut self, group: GroupId) {
        let mut sizes = epoch::sizes(&self.machine, group, &self.config, &self.links);
        // Links that lend may come later; until then nothing is written to these.
        sizes.receives.append(&mut sizes.borrows);
        if let Err(error) = self.memory.add_edges(group, &sizes) {
            error!(%error, group, "no memory for the slots of a group; ending the epoch");
            self.handle(Input::Revoke);
        }
    }

    /// A group is over here, or never was.
    pub(super) fn forget_group(&mut self, group: GroupId) {
        self.memory.forget_group(group);
        self.agenda.forget(group);
        for session in self.sessions.values_mut() {
            session.forget_group(group);
        }
        for departed in self.departed.values_mut() {
            departed.forget_group(group);
        }
    }

    /// The groups of its processes, of those who left too, the world first.
    pub(super) fn known_groups(&self) -> BTreeSet<GroupId> {
        let sessions = self.sessions.values().flat_map(Session::groups);
        let departed = self.departed.values().flat_map(Departed::groups);
        sessions.chain(departed).collect()
    }

    /// Groups whose end all were told: the machines of this epoch never hear of them.
    pub(super) fn forget_groups_that_are_over(&mut self, resume: &Resume) {
        for group in self
            .known_groups()
            .into_iter()
            .filter(|group| *group != WORLD)
        {
            let base = resume.iter().find(|one| one.group == group);
            if is_over(&self.known(group), base.and_then(GroupResume::needed_from)) {
                self.drop_results(group);
                self.forget_group(group);
            }
        }
    }

    /// What each of a group's ranks here knows of it; nothing if none does.
    pub(super) fn known(&self, group: GroupId) -> Vec<Option<Told>> {
        let ranks = 0..self.seats.len();
        let lanes = ranks.filter_map(|rank| self.lane(group, rank));
        // What a process says that opens a group is not checked yet.
        let Some(lane) = lanes.min_by_key(|lane| lane.is_opening()) else {
            return Vec::new();
        };
        let local = |rank: &u32| {
            rank.checked_sub(self.standing.rank)
                .map(|local| local as usize)
        };
        let here = lane.ranks.iter().filter_map(local);
        here.filter(|local| *local < self.seats.len())
            .map(|local| Some(self.lane(group, local)?.knows()))
            .collect()
    }

    /// Results of a group that no machine will release any more.
    fn drop_results(&mut self, group: GroupId) {
        let ops: Vec<_> = self
            .uses
            .range((group, 0)..=(group, u64::MAX))
            .map(|(op, _)| *op)
            .collect();
        for op in ops {
            self.memory.forget_inputs(op.0, op.1);
            self.uses.entry(op).or_default().released = true;
            self.forget_if_unused(op);
        }
    }

    /// Who was lost, in words that follow those of a cause that is about it; nothing for others. A refusal itself names
    /// who called.
    pub(super) fn lost_for(&self, (group, rank): (GroupId, usize), cause: &Cause) -> String {
        let Cause::Verdict(Verdict::Refusal(refusal)) = cause else {
            return String::new();
        };
        let lane = self.sessions.get(&rank).and_then(|one| one.lane(group));
        let Some(lane) = lane.filter(|_| is_about_a_loss(refusal.reason)) else {
            return String::new();
        };
        let each = self.standing.local_world.max(1);
        // The world has no list.
        let all = (0..self.standing.world).filter(|_| group == WORLD);
        let ranks = lane.ranks.iter().copied().chain(all);
        let is_lost = |rank: &u32| self.members.binary_search(&(rank / each)).is_err();
        let lost: Vec<u32> = ranks.filter(is_lost).collect();
        let mut text = String::new();
        for (place, rank) in lost.iter().take(MOST_NAMED).enumerate() {
            let node = rank / each;
            let before = if place == 0 { "; lost:" } else { "," };
            let _ = write!(text, "{before} rank {rank} on node {node}");
            if let Some(name) = self.names.get(node as usize).filter(|one| !one.is_empty()) {
                let _ = write!(text, " ({name})");
            }
        }
        if lost.len() > MOST_NAMED {
            let _ = write!(text, " and {} more", lost.len() - MOST_NAMED);
        }
        text
    }

    /// A group needs a link to a member.
    pub(super) fn connect(&mut self, peer: usize) {
        let rank = self.rank_of(peer);
        info!(node = rank, name = self.name(peer), "linking for a group");
        if let Some(linker) = &self.linker {
            linker.connect(rank);
        }
    }

    /// Takes the links that stand since.
    pub(super) fn take_links(&mut self) {
        let Some(linker) = &self.linker else {
            return;
        };
        let arrived: Vec<_> = linker.arrived().collect();
        for (rank, link) in arrived {
            let Ok(peer) = self.members.binary_search(&(rank as u32)) else {
                continue;
            };
            if self.links.contains_key(&peer) || self.stopping.is_some() {
                continue; // Who connects again has nothing to say that the first did not.
            }
            if let Err(error) = self.watch(&link.socket(), LINK | peer as u64) {
                error!(%error, node = rank, "failed to poll a link");
                self.handle(Input::PeerLost { peer });
                continue;
            }
            info!(node = rank, transport = link.name(), "linked for a group");
            self.links.insert(peer, link);
            self.metrics.peers.set(self.links.len() as i64);
            self.handle(Input::Linked { peer });
        }
    }
}

fn is_about_a_loss(reason: Reason) -> bool {
    match reason {
        Reason::RootLost | Reason::RanksLost | Reason::NotReplicated => true,
        Reason::Root
        | Reason::Size
        | Reason::Factor
        | Reason::Parts
        | Reason::Input
        | Reason::Limit
        | Reason::Memory
        | Reason::Splits
        | Reason::Closed
        | Reason::Left
        | Reason::Tags => false,
    }
}
