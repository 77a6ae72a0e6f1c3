//! The groups of the trainer: which ranks they have, what each of these calls in them and how that ended.

use std::collections::{BTreeMap, BTreeSet};

use collective::machine::{Cause, GroupId, OpId, OpenError, WORLD};
use collective::{Call, OpKind};

use super::World;
use crate::fixture::memory::Payload;

/// The end of an operation as one rank sees it: the bytes it may read and the epoch, or why there are none.
pub(crate) type Outcome = Result<(Payload, u32), Cause>;

/// By operation: where an operation is over for all when a node is lost, several in flight need not end in order.
pub(crate) type Outcomes = BTreeMap<OpId, Outcome>;

/// A group as its ranks know it.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) ranks: Vec<u32>,
    pub(crate) replicated: bool,
    pub(crate) members: Vec<Member>,
}

/// One rank in a group: what its process knows, whatever happens to its sidecar.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// With whom it opens the group, where that is not with its ranks.
    pub(crate) opens_with: Option<Vec<u32>>,
    pub(crate) program: Vec<Call>,
    /// It has asked for the group.
    pub(crate) asked: bool,
    pub(crate) opened: Option<Result<(), OpenError>>,
    /// It names the group to the next sidecar.
    pub(crate) remembered: bool,
    pub(crate) called: usize,
    pub(crate) outcomes: Outcomes,
}

impl Group {
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

    /// Whether the group is of no use any more, although it was open once.
    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.opened, Some(Err(_)))
    }

    pub(crate) fn has_closed(&self) -> bool {
        let last = self.outcomes.last_key_value();
        last.is_some_and(|(&op, end)| {
            self.program[op as usize].kind == OpKind::Close && end.is_ok()
        })
    }

    /// Whether it has called all that it is to call.
    pub(crate) fn has_called(&self) -> bool {
        self.opened == Some(Ok(())) && self.called == self.program.len()
    }

    pub(crate) fn has_ended(&self) -> bool {
        match self.opened {
            Some(Ok(())) => self.outcomes.len() == self.program.len(),
            Some(Err(_)) => true,
            None => false,
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
            opens_with: None,
            program: calls.to_vec(),
            asked: is_world,
            opened: is_world.then_some(Ok(())),
            remembered: is_world,
            called: 0,
            outcomes: Outcomes::new(),
        };
        let of = Group {
            members: vec![member; ranks.len()],
            ranks,
            replicated,
        };
        self.groups.insert(group, of);
    }

    pub(crate) fn member(&self, group: GroupId, rank: u32) -> Option<&Member> {
        self.groups.get(&group)?.member(rank)
    }

    pub(crate) fn member_mut(&mut self, group: GroupId, rank: u32) -> Option<&mut Member> {
        let group = self.groups.get_mut(&group)?;
        let at = group.ranks.binary_search(&rank).ok()?;
        Some(&mut group.members[at])
    }

    pub(crate) fn groups_of(&self, rank: u32) -> Vec<GroupId> {
        let groups = self.groups.iter();
        let of = groups.filter(|(_, group)| group.ranks.binary_search(&rank).is_ok());
        of.map(|(&group, _)| group).collect()
    }

    /// The nodes that hold ranks of a group, lost ones too.
    pub(crate) fn nodes_of(&self, group: GroupId) -> BTreeSet<usize> {
        let ranks = self.groups[&group].ranks.iter();
        ranks.map(|&rank| self.setup.layout.node_of(rank)).collect()
    }

    /// Groups that all ranks which are left have closed, and nodes that are not done with them.
    pub(crate) fn left_of_closed_groups(&self) -> Vec<(GroupId, usize)> {
        let members = self.members();
        let has_closed = |(rank, member): (&u32, &Member)| {
            let is_left = members.contains(&self.setup.layout.node_of(*rank));
            !is_left || member.has_closed() || self.has_left_closing(*rank, member)
        };
        let closed = self.groups.iter().filter(|(_, group)| {
            let mut members = group.ranks.iter().zip(&group.members);
            members.all(has_closed)
        });
        let pairs = closed.flat_map(|(&group, _)| members.iter().map(move |&node| (group, node)));
        let has_left = |&(group, node): &(GroupId, usize)| {
            let left = self.sidecars[node].memory.groups();
            self.groups_at(node).contains(&group) || group != WORLD && left.contains(&group)
        };
        pairs.filter(has_left).collect()
    }

    /// Whether a rank has called the end of a group and has left without waiting for it.
    fn has_left_closing(&self, rank: u32, member: &Member) -> bool {
        let last = member.program.last();
        let closes = last.is_some_and(|call| call.kind == OpKind::Close);
        self.clients[rank as usize].has_left && closes && !member.is_dead()
    }
}
