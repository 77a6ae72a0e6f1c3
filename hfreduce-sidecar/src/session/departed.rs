//! A process that has called and left. What it called keeps its place in the order of operations, and its groups are opened
//! again for it in each new epoch, so that the others get what it took part in.

use std::collections::BTreeMap;

use collective::machine::{GroupId, OpId, WORLD};
use wire::OpKind;
use wire::attach::{Standing, Told};

use super::{Called, Lane, Session};
use crate::welcomed::{Left, LeftGroup};

/// The groups of a process that has left, the world included.
#[derive(Debug)]
pub struct Departed {
    lanes: BTreeMap<GroupId, Lane>,
}

impl Departed {
    /// What is left of a session. Groups that it was not answered are none of its.
    pub fn of(session: Session) -> Self {
        let mut lanes = session.lanes;
        lanes.retain(|_, lane| !lane.is_opening());
        Self { lanes }
    }

    /// One that has left an earlier sidecar; `standing` is its own.
    pub fn of_record(left: &Left, standing: Standing) -> Result<Self, String> {
        let world = Lane {
            told: left.told,
            next_op: left.told,
            ..Lane::new(Vec::new(), standing.rank, standing.world)
        };
        let mut lanes = BTreeMap::from([(WORLD, world)]);
        for LeftGroup { ranks, told } in &left.groups {
            let ascend = ranks.is_sorted_by(|one, next| one < next);
            let exist = ranks.last().is_some_and(|last| *last < standing.world);
            if !ascend || !exist {
                return Err(format!("the ranks of group {:x} are none", told.group));
            }
            let lane = Lane::of_told(ranks.clone(), standing.rank, told)?;
            if lanes.insert(told.group, lane).is_some() {
                return Err(format!("group {:x} is there twice", told.group));
            }
        }
        Ok(Self { lanes })
    }

    /// What the next sidecar has to know. Calls that are not over count as told: their inputs go with this one.
    pub fn record(&self) -> Left {
        let told = |lane: &Lane| match (lane.closed, &lane.dead) {
            (Some(last), _) => last + 1,
            (None, Some(_)) => lane.told,
            (None, None) => lane.next_op,
        };
        let group = |(&group, lane): (&GroupId, &Lane)| LeftGroup {
            ranks: lane.ranks.clone(),
            told: Told {
                group,
                replicated: lane.replicated,
                priority: lane.priority,
                told: told(lane),
                closed: lane.closed.is_some(),
                failed: lane.closed.is_none() && lane.dead.is_some(),
            },
        };
        let groups = self.lanes.iter().filter(|(group, _)| **group != WORLD);
        Left {
            told: self.lanes.get(&WORLD).map_or(0, told),
            groups: groups.map(group).collect(),
        }
    }

    /// One of its groups.
    pub fn lane(&self, group: GroupId) -> Option<&Lane> {
        self.lanes.get(&group)
    }

    /// The numbers of its groups, the world first.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.lanes.keys().copied()
    }

    /// An operation is over, which nobody has to be told. `succeeded`: for the others, and so the end of a group.
    pub fn ended(&mut self, group: GroupId, op: OpId, succeeded: bool) {
        let Some(lane) = self.lanes.get_mut(&group) else {
            return;
        };
        let closes = |called: &Called| called.call.kind == OpKind::Close;
        if lane.ended(op).is_some_and(|called| closes(&called)) && succeeded {
            lane.closed = Some(op);
        }
    }

    /// Its groups are about to be opened again.
    pub fn reopen(&mut self) {
        for (group, lane) in &mut self.lanes {
            lane.reopens = *group != WORLD;
        }
    }

    /// Whether they stand again, or never will.
    pub fn has_reopened(&self) -> bool {
        !self.lanes.values().any(|lane| lane.reopens)
    }

    /// A group stands again, or never will: then for this reason.
    pub fn opened(&mut self, group: GroupId, outcome: Result<(), String>) {
        if let Some(lane) = self.lanes.get_mut(&group) {
            lane.reopens = false;
            if let Err(text) = outcome {
                lane.in_flight.clear();
                lane.dead = Some(text);
            }
        }
    }

    /// A group is over, if the process has closed it.
    pub fn forget_group(&mut self, group: GroupId) {
        let is_over = |lane: &Lane| lane.closed.is_some();
        if group != WORLD && self.lanes.get(&group).is_some_and(is_over) {
            self.lanes.remove(&group);
        }
    }
}
