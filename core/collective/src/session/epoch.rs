//! From one epoch to the next: what the node reports, what it begins with, and what it does again.

use std::collections::BTreeSet;

use super::{Lane, Presence, Session, Sessions};
use crate::machine::{GroupId, Input, Start, WORLD};
use crate::recovery::{
    EpochReport, GroupReport, GroupResume, OpenedGroup, Resume, delivered_each, is_over,
};

/// What an epoch begins with on this node.
#[derive(Debug)]
pub struct Begun {
    /// Groups that nobody needs any more.
    pub over: Vec<GroupId>,
    /// Where the others begin, if it is not the first.
    pub starts: Option<Vec<Start>>,
}

impl<T> Sessions<T> {
    /// What this node reports when its machine has stopped with `report` and everything that it asked for is done; none
    /// while ranks are expected back, whose memory is that of the node.
    pub fn report(&mut self, report: &EpochReport) -> Option<EpochReport> {
        self.report = match &self.awaited {
            Some(awaited) if !awaited.is_empty() => return None,
            Some(_) => self.recollection(),
            None => report.clone(),
        };
        Some(self.report.clone())
    }

    /// How far outcomes were delivered to the ranks, and nothing else.
    fn recollection(&self) -> EpochReport {
        let groups = self.groups().into_iter();
        groups
            .map(|group| GroupReport::of_delivered(group, &delivered_each(&self.known(group))))
            .collect()
    }

    /// The groups of all ranks, the world first.
    fn groups(&self) -> BTreeSet<GroupId> {
        let lanes = self.each.iter().flat_map(|session| session.lanes.keys());
        lanes.copied().collect()
    }

    /// What each of a group's ranks here knows of it; nothing if none does.
    fn known(&self, group: GroupId) -> Vec<Option<OpenedGroup>> {
        let lanes = self.each.iter().map(|session| session.lanes.get(&group));
        // What a rank says that opens a group is not checked yet.
        let checked = lanes.flatten().min_by_key(|lane| lane.ticket().is_some());
        let ranks = checked.map_or(&[][..], Lane::ranks).iter();
        let own = self.first..self.first + self.each.len() as u32;
        ranks
            .filter(|rank| own.contains(rank))
            .map(|rank| Some(self.lane(group, (rank - own.start) as usize)?.knows()))
            .collect()
    }

    /// The node enters an epoch of these nodes.
    pub fn begin(&mut self, resume: Option<&Resume>, members: &[usize]) -> Begun {
        let (mut over, mut starts) = (Vec::new(), None);
        if let Some(resume) = resume {
            for group in self.groups().into_iter().filter(|group| *group != WORLD) {
                let base = resume.iter().find(|one| one.group == group);
                if is_over(&self.known(group), base.and_then(GroupResume::needed_from)) {
                    self.forget_group(group);
                    over.push(group);
                }
            }
            let each = resume.iter().filter_map(|one| self.start_of(one, members));
            starts = Some(each.collect());
        }
        self.awaited = None;
        Begun { over, starts }
    }

    /// Where a group begins on this node, if it has ranks here.
    fn start_of(&self, resume: &GroupResume, members: &[usize]) -> Option<Start> {
        // Also where no rank has asked for it yet.
        if let Some(start) = Start::of_refused(resume) {
            return Some(start);
        }
        let delivered = delivered_each(&self.known(resume.group));
        let held = self.report.iter().find(|of| of.group == resume.group);
        (!delivered.is_empty()).then(|| Start {
            resume: resume.within(members),
            delivered,
            retained: held.map_or_else(Vec::new, |of| of.retained.clone()),
        })
    }

    /// What the machine of an epoch is handed first: the calls in the world that are not over, the openings of all other
    /// groups, and who has left.
    pub fn go_on(&mut self) -> Vec<Input> {
        let mut inputs = Vec::new();
        let stays = |presence| matches!(presence, Presence::Attached | Presence::Departed);
        for (rank, session) in self.each.iter_mut().enumerate() {
            if stays(session.presence)
                && let Some(world) = session.lanes.get(&WORLD)
            {
                inputs.extend(world.call_again(WORLD, rank));
            }
        }
        for (rank, session) in self.each.iter_mut().enumerate() {
            if stays(session.presence) {
                for (&group, lane) in session.lanes.range_mut(WORLD + 1..) {
                    lane.reopen();
                    inputs.push(lane.open(group, rank));
                }
            }
        }
        inputs.extend((0..self.each.len()).filter_map(|rank| self.left(rank)));
        inputs
    }

    /// The machine learns that a rank has left when it has all that the rank called.
    #[must_use]
    pub fn left(&self, rank: usize) -> Option<Input> {
        let departed = |session: &&Session<T>| session.presence == Presence::Departed;
        let session = self.each.get(rank).filter(departed)?;
        let has_all = !session.lanes.values().any(Lane::has_calls_to_hand);
        has_all.then_some(Input::RankLeft { rank })
    }
}
