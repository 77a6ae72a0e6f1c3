//! The groups of the trainer: which ranks they have, what each of these calls in them and what it was told.

use std::collections::BTreeSet;

use collective::Call;
use collective::OpKind;
use collective::machine::{Cause, GroupId, OpId, OpenError, Start, WORLD};
use collective::recovery::{GroupReport, GroupResume, Report, Resume, Told, is_over, told_each};

use crate::fixture::memory::Payload;
use crate::world::World;

/// The end of an operation as a rank was told it: the bytes it may read and the epoch, or why there are none.
pub(crate) type Outcome = Result<(Payload, u32), Cause>;

/// A group as its ranks know it.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) ranks: Vec<u32>,
    pub(crate) replicated: bool,
    pub(crate) members: Vec<Member>,
}

/// One rank in a group: what its process knows, whatever becomes of its sidecar.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) program: Vec<Call>,
    /// It has asked for the group.
    pub(crate) asked: bool,
    pub(crate) opened: Option<Result<(), OpenError>>,
    /// It tells the next sidecar of the group.
    pub(crate) remembered: bool,
    pub(crate) called: usize,
    /// In the order of calls.
    pub(crate) outcomes: Vec<Outcome>,
}

impl Lane {
    pub(crate) fn member(&self, rank: u32) -> Option<&Member> {
        self.members.get(self.ranks.binary_search(&rank).ok()?)
    }

    /// Whether a rank has called the end of the group.
    pub(crate) fn is_closing(&self) -> bool {
        let closing = |member: &Member| {
            let called = member.program[..member.called].last();
            called.is_some_and(|call| call.kind == OpKind::Close)
        };
        self.members.iter().any(closing)
    }
}

impl Member {
    /// Whether it has something to do that it need not wait for.
    pub(crate) fn may_go_on(&self, window: usize) -> bool {
        let limit = self.program.len().min(self.outcomes.len() + window);
        !self.asked || self.opened == Some(Ok(())) && self.called < limit
    }

    /// Whether the group is of no use any more, although it stood once.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.opened, Some(Err(_)))
    }

    pub(crate) fn has_closed(&self) -> bool {
        let last = self.outcomes.len().checked_sub(1);
        last.is_some_and(|op| self.program[op].kind == OpKind::Close && self.outcomes[op].is_ok())
    }

    pub(crate) fn has_ended(&self) -> bool {
        match self.opened {
            Some(Ok(())) => self.outcomes.len() == self.program.len(),
            Some(Err(_)) => true,
            None => false,
        }
    }

    fn told(&self) -> Told {
        Told {
            first: self.outcomes.len() as OpId,
            closed: self.has_closed(),
        }
    }
}

impl World {
    /// These ranks will open a group and call the same in it.
    pub(crate) fn add_group(
        &mut self,
        group: GroupId,
        ranks: Vec<u32>,
        replicated: bool,
        calls: &[Call],
    ) {
        let is_world = group == WORLD;
        let member = Member {
            program: calls.to_vec(),
            asked: is_world,
            opened: is_world.then_some(Ok(())),
            remembered: is_world,
            called: 0,
            outcomes: Vec::new(),
        };
        let lane = Lane {
            members: vec![member; ranks.len()],
            ranks,
            replicated,
        };
        self.lanes.insert(group, lane);
    }

    pub(crate) fn member(&self, group: GroupId, rank: u32) -> Option<&Member> {
        self.lanes.get(&group)?.member(rank)
    }

    pub(crate) fn member_mut(&mut self, group: GroupId, rank: u32) -> Option<&mut Member> {
        let lane = self.lanes.get_mut(&group)?;
        let at = lane.ranks.binary_search(&rank).ok()?;
        Some(&mut lane.members[at])
    }

    /// A rank in the group of all.
    pub(crate) fn of_world(&self, rank: u32) -> &Member {
        &self.lanes[&WORLD].members[rank as usize]
    }

    pub(crate) fn groups_of(&self, rank: u32) -> Vec<GroupId> {
        let lanes = self.lanes.iter();
        let of = lanes.filter(|(_, lane)| lane.ranks.binary_search(&rank).is_ok());
        of.map(|(&group, _)| group).collect()
    }

    /// The nodes that hold ranks of a group, lost ones too.
    pub(crate) fn nodes_of(&self, group: GroupId) -> BTreeSet<usize> {
        let ranks = self.lanes[&group].ranks.iter();
        ranks.map(|&rank| self.setup.layout.node_of(rank)).collect()
    }

    /// What a sidecar knows of a group from its ranks.
    fn known(&self, node: usize, group: GroupId) -> Vec<Option<Told>> {
        let lane = &self.lanes[&group];
        let own = self.setup.layout.ranks(node);
        let here = lane.ranks.iter().zip(&lane.members);
        here.filter(|(rank, _)| own.contains(rank))
            .map(|(&rank, member)| {
                let local = (rank - own.start) as usize;
                let seats = &self.sidecars[node].seats;
                seats.contains_key(&(group, local)).then(|| member.told())
            })
            .collect()
    }

    /// The first operation of a group whose end each local rank was not told; none where the sidecar knows nothing of it.
    fn told_at(&self, node: usize, group: GroupId) -> Option<Vec<OpId>> {
        let known = self.known(node, group);
        known.iter().any(Option::is_some).then(|| told_each(&known))
    }

    /// The groups that a sidecar knows of.
    fn groups_at(&self, node: usize) -> BTreeSet<GroupId> {
        let seats = self.sidecars[node].seats.keys();
        seats.map(|&(group, _)| group).collect()
    }

    /// What a sidecar without memory reports: what its processes were told.
    pub(crate) fn recollection(&self, node: usize) -> Report {
        let groups = self.groups_at(node).into_iter();
        let of = |group| Some(GroupReport::of_told(group, &self.told_at(node, group)?));
        groups.filter_map(of).collect()
    }

    /// Where the groups of a new epoch begin on a node that has reported this.
    pub(crate) fn starts(
        &self,
        node: usize,
        members: &[usize],
        resume: &Resume,
        report: &Report,
    ) -> Vec<Start> {
        let start = |resume: &GroupResume| {
            let of = report.iter().find(|of| of.group == resume.group);
            Start::of_refused(resume).or_else(|| {
                Some(Start {
                    resume: resume.within(members),
                    told: self.told_at(node, resume.group)?,
                    held: of.map_or_else(Vec::new, |of| of.held.clone()),
                })
            })
        };
        resume.iter().filter_map(start).collect()
    }

    /// Groups that all ranks which are left have closed, and nodes that are not done with them.
    pub(crate) fn left_of_closed_groups(&self) -> Vec<(GroupId, usize)> {
        let members = self.members();
        let has_closed = |(rank, member): (&u32, &Member)| {
            let is_left = members.contains(&self.setup.layout.node_of(*rank));
            !is_left || member.has_closed()
        };
        let closed = self.lanes.iter().filter(|(_, lane)| {
            let mut members = lane.ranks.iter().zip(&lane.members);
            members.all(has_closed)
        });
        let pairs = closed.flat_map(|(&group, _)| members.iter().map(move |&node| (group, node)));
        let has_left = |&(group, node): &(GroupId, usize)| {
            let left = self.sidecars[node].memory.groups();
            self.groups_at(node).contains(&group) || group != WORLD && left.contains(&group)
        };
        pairs.filter(has_left).collect()
    }

    /// Groups whose end all were told need nobody any more.
    pub(crate) fn forget_groups_that_are_over(&mut self, node: usize, resume: &Resume) {
        for group in self.groups_at(node).into_iter().filter(|one| *one != WORLD) {
            let base = resume.iter().find(|one| one.group == group);
            if is_over(
                &self.known(node, group),
                base.and_then(GroupResume::needed_from),
            ) {
                self.forget_group(node, group);
            }
        }
    }

    /// A group is over on a node: its processes need not remember it, which they hear with the answer to their next opening.
    pub(crate) fn forget_group(&mut self, node: usize, group: GroupId) {
        let own = self.setup.layout.ranks(node);
        let closed: Vec<usize> = own
            .clone()
            .filter(|&rank| self.member(group, rank).is_some_and(|one| one.has_closed()))
            .map(|rank| (rank - own.start) as usize)
            .collect();
        let sidecar = &mut self.sidecars[node];
        sidecar.memory.forget(group);
        sidecar.own.retain(|buffer| buffer.group() != group);
        for local in closed {
            if sidecar.seats.remove(&(group, local)).is_some() {
                sidecar.over.push((local, group));
            }
        }
    }
}
