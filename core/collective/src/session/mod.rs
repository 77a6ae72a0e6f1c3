//! The sessions of a node's ranks: which groups each has opened, what it called in them, and how far outcomes were delivered
//! to it. Decides which call goes to the machine next, what the node reports when an epoch ends, and what is opened and
//! called again in the next one. Leaves sockets, rings and memory to the shell, and the operations to [`Machine`].
//!
//! The shell hands the inputs that it gets here to the machine, in their order:
//! - A rank comes: [`Sessions::attach`]; to a node that has lost its memory also [`Sessions::remember`] for each group,
//!   then [`Sessions::returned`]. It goes: [`Sessions::detach`] or [`Sessions::lose`].
//! - It asks: [`Sessions::open`], [`Sessions::call`]. Then, and when something has ended: [`Sessions::next`] and
//!   [`Sessions::accept`] as long as there is a call to take up, and behind each [`Sessions::left`].
//! - The machine answers: [`Sessions::end`] for `End`, [`Sessions::opened`] or [`Sessions::fail`] for `Opened`,
//!   [`Sessions::forget_group`] for `Closed`, [`Sessions::report`] for `Stopped`.
//! - The next epoch: [`Sessions::begin`] says what its machine starts with, [`Sessions::go_on`] what it is handed first.

mod epoch;
mod lane;
mod remembered;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range};

pub use epoch::Begun;
pub use lane::{Called, Lane};
pub use remembered::{Departed, RememberError, Remembered};

use crate::machine::{FIRST_SEND_RECV, GroupId, Input, Machine, OpId, Reason, WORLD};
use crate::recovery::EpochReport;

/// Whether a local rank may attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It may.
    Absent,
    /// It has.
    Attached,
    /// It has called and left in good order: what it called stays.
    Departed,
    /// It is gone.
    Lost,
}

#[derive(Debug)]
struct Session<T> {
    presence: Presence,
    /// Whether it was attached before the node lost its memory.
    came_back: bool,
    lanes: BTreeMap<GroupId, Lane<T>>,
    /// Groups that are over, which it still remembers.
    over: Vec<GroupId>,
}

/// The sessions of a node's ranks. `T` is what the shell keeps with a call.
#[derive(Debug)]
pub struct Sessions<T> {
    /// The first of them.
    first: u32,
    world: u32,
    each: Vec<Session<T>>,
    /// The number of the next message between two ranks.
    next_send_recv: OpId,
    /// After the loss of the node's memory, until it enters an epoch: the local ranks that have not come back yet.
    awaited: Option<BTreeSet<usize>>,
    /// What was reported last.
    report: EpochReport,
    /// Why nothing runs any more, if others went on without this node.
    over: Option<String>,
}

/// The answer to a rank whose group was opened, or could not be.
#[derive(Debug)]
pub struct OpeningAnswer<T> {
    /// The opening that is answered so.
    pub ticket: Option<u64>,
    /// Groups that it need not remember any more.
    pub over: Vec<GroupId>,
    /// Calls that have failed.
    pub failed: Vec<Called<T>>,
    /// For the machine.
    pub inputs: Vec<Input>,
}

impl<T> Default for OpeningAnswer<T> {
    fn default() -> Self {
        Self {
            ticket: None,
            over: Vec::new(),
            failed: Vec::new(),
            inputs: Vec::new(),
        }
    }
}

impl<T> Session<T> {
    fn new(first: u32, world: u32, rank: usize, delivered: OpId) -> Self {
        let world = Lane::new((0..world).collect(), first + rank as u32, delivered);
        Self {
            presence: Presence::Absent,
            came_back: false,
            lanes: BTreeMap::from([(WORLD, world)]),
            over: Vec::new(),
        }
    }

    fn has_called(&self) -> bool {
        self.came_back || self.lanes.len() > 1 || self.lanes.values().any(Lane::was_used)
    }
}

impl<T> Sessions<T> {
    /// Of these ranks among all, none of which has attached.
    #[must_use]
    pub fn new(ranks: Range<u32>, world: u32) -> Self {
        let first = ranks.start;
        let each = (0..ranks.len()).map(|rank| Session::new(first, world, rank, 0));
        Self {
            first,
            world,
            each: each.collect(),
            next_send_recv: FIRST_SEND_RECV,
            awaited: None,
            report: EpochReport::new(),
            over: None,
        }
    }

    /// The node has lost its memory, and these ranks will come back.
    pub fn expect(&mut self, ranks: BTreeSet<usize>) {
        self.awaited = Some(ranks);
    }

    /// Whether the node has lost its memory and has not entered an epoch since.
    #[must_use]
    pub fn has_lost_memory(&self) -> bool {
        self.awaited.is_some()
    }

    /// Whether a rank is to come back after the loss of the node's memory.
    #[must_use]
    pub fn expects(&self, rank: usize) -> bool {
        let awaited = self.awaited.as_ref();
        awaited.is_some_and(|awaited| awaited.contains(&rank))
    }

    /// How many local ranks there are.
    #[must_use]
    pub fn local(&self) -> usize {
        self.each.len()
    }

    /// Whether a local rank may attach; none if there is none of this number.
    #[must_use]
    pub fn presence(&self, rank: usize) -> Option<Presence> {
        Some(self.each.get(rank)?.presence)
    }

    /// A rank attaches. `delivered`: how far it was in the world, if the node has lost its memory since.
    pub fn attach(&mut self, rank: usize, delivered: Option<OpId>) {
        let (first, world) = (self.first, self.world);
        if let Some(session) = self.each.get_mut(rank) {
            *session = Session {
                presence: Presence::Attached,
                came_back: delivered.is_some(),
                ..Session::new(first, world, rank, delivered.unwrap_or(0))
            };
        }
    }

    /// A rank that came back remembers a group.
    pub fn remember(&mut self, rank: usize, group: Remembered) -> Result<(), RememberError> {
        let own = self.first + rank as u32;
        let id = group.group;
        let Some(session) = self.each.get_mut(rank) else {
            return Err(RememberError::Own {
                group: id,
                rank: own,
            });
        };
        if session.lanes.contains_key(&id) {
            return Err(RememberError::Twice(id));
        }
        session
            .lanes
            .insert(id, Lane::remembered(group, own, self.world)?);
        Ok(())
    }

    /// A rank has come back and has said what it remembers.
    pub fn returned(&mut self, rank: usize) {
        if let Some(awaited) = &mut self.awaited {
            awaited.remove(&rank);
        }
    }

    /// A rank has left before the node lost its memory. One that cannot be true is expected to come back.
    pub fn restore(&mut self, rank: usize, record: Departed) -> Result<(), RememberError> {
        self.attach(rank, Some(record.delivered));
        let mut groups = record.groups.into_iter();
        let restored = groups.try_for_each(|group| self.remember(rank, group));
        if let Err(error) = restored {
            self.awaited.get_or_insert_default().insert(rank);
            self.reset(rank, Presence::Absent);
            return Err(error);
        }
        self.set_presence(rank, Presence::Departed);
        Ok(())
    }

    /// A rank leaves in good order. One that has called leaves its calls here, also those that wait, and the machine learns
    /// of it when it has them all; the record is for the case that the node loses its memory. One that has called nothing
    /// may attach again.
    pub fn detach(&mut self, rank: usize) -> Option<(Departed, Option<Input>)> {
        let session = self.each.get_mut(rank)?;
        if session.presence != Presence::Attached {
            return None;
        }
        if !session.has_called() {
            self.reset(rank, Presence::Absent);
            return None;
        }
        session.presence = Presence::Departed;
        let own = self.first + rank as u32;
        let lanes = session.lanes.iter();
        let (world, groups): (Vec<_>, Vec<_>) = lanes
            .map(|(group, lane)| lane.remember(*group))
            // What it opens, and is not answered yet, may be no group.
            .filter(|one| one.check(own, self.world).is_ok())
            .partition(|one| one.group == WORLD);
        let delivered = world.first().map_or(0, |world| world.delivered);
        Some((Departed { delivered, groups }, self.left(rank)))
    }

    /// A rank is gone, and what it called with it.
    pub fn lose(&mut self, rank: usize) {
        self.reset(rank, Presence::Lost);
    }

    /// Nothing is left of a rank but how far it was in the world.
    fn reset(&mut self, rank: usize, presence: Presence) {
        let (first, world) = (self.first, self.world);
        let delivered = self.lane(WORLD, rank).map_or(0, Lane::delivered);
        if let Some(session) = self.each.get_mut(rank) {
            *session = Session::new(first, world, rank, delivered);
            session.presence = presence;
        }
    }

    fn set_presence(&mut self, rank: usize, presence: Presence) {
        if let Some(session) = self.each.get_mut(rank) {
            session.presence = presence;
        }
    }

    /// A rank in one of its groups.
    #[must_use]
    pub fn lane(&self, group: GroupId, rank: usize) -> Option<&Lane<T>> {
        self.each.get(rank)?.lanes.get(&group)
    }

    fn lane_mut(&mut self, group: GroupId, rank: usize) -> Option<&mut Lane<T>> {
        self.each.get_mut(rank)?.lanes.get_mut(&group)
    }

    fn lanes(&self, rank: usize) -> impl Iterator<Item = (GroupId, &Lane<T>)> {
        let lanes = self.each.get(rank).map(|session| &session.lanes);
        let lanes = lanes.into_iter().flatten();
        lanes.map(|(group, lane)| (*group, lane))
    }

    /// How many calls of a rank are not taken up.
    #[must_use]
    pub fn waiting(&self, rank: usize) -> usize {
        self.lanes(rank).map(|(_, lane)| lane.waiting()).sum()
    }

    /// Whether a call of a rank waits for the shell's memory.
    #[must_use]
    pub fn is_stalled(&self, rank: usize) -> bool {
        self.lanes(rank).any(|(_, lane)| lane.is_stalled())
    }

    /// A rank opens a group, which it has not open, with these ranks; `ticket` is the shell's number for it.
    pub fn open(
        &mut self,
        (group, rank): (GroupId, usize),
        ranks: Vec<u32>,
        (replicated, priority): (bool, i8),
        ticket: u64,
    ) -> Option<Input> {
        let own = self.first + rank as u32;
        let session = self.each.get_mut(rank)?;
        let lane = Lane::opening(ranks, own, replicated, priority, ticket);
        let open = lane.open(group, rank);
        session.lanes.insert(group, lane);
        Some(open)
    }

    /// A rank calls something in a group. False if it has not opened it, or has closed it.
    pub fn call(&mut self, group: GroupId, rank: usize, called: Called<T>) -> bool {
        let lane = self.lane_mut(group, rank);
        let Some(lane) = lane.filter(|lane| lane.takes_calls()) else {
            return false;
        };
        lane.call(called);
        true
    }

    /// Whether calls fail at once: the epoch is over, and none will follow.
    #[must_use]
    pub fn is_over(&self, machine: &Machine) -> bool {
        self.over.is_some() || machine.is_over()
    }

    /// Whether calls of a rank in a group fail at once: its epoch is over, or the group is no more.
    #[must_use]
    pub fn fails(&self, machine: &Machine, group: GroupId, rank: usize) -> bool {
        let lane = self.lane(group, rank);
        self.is_over(machine) || lane.is_some_and(|lane| lane.dead().is_some())
    }

    /// The next call of a rank that may be taken up, in its groups behind this one: the shell provides memory, then
    /// accepts it. A call without memory waits, and all behind it in its group.
    #[must_use]
    pub fn next(
        &self,
        machine: &Machine,
        rank: usize,
        behind: Option<GroupId>,
    ) -> Option<(GroupId, OpId, &Called<T>)> {
        let from = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let mut lanes = self.each.get(rank)?.lanes.range((from, Bound::Unbounded));
        lanes.find_map(|(&group, lane)| {
            let (called, next_op) = lane.next()?;
            let is_post = called.call.kind.is_between_two();
            let may = if is_post {
                machine.may_send_recv(group)
            } else {
                machine.may_submit(group, rank)
            };
            let fails = self.fails(machine, group, rank);
            let op = if is_post {
                self.next_send_recv
            } else {
                next_op
            };
            (fails || may && !lane.reopens()).then_some((group, op, called))
        })
    }

    /// A call waits for the shell's memory. Whether that is news.
    pub fn stall(&mut self, group: GroupId, rank: usize) -> bool {
        self.lane_mut(group, rank).is_some_and(Lane::stall)
    }

    /// The next call of a rank in a group takes its place in the order of operations. `refused`: this node cannot carry it
    /// out, so it fails on every rank; without its place the calls behind it would meet other calls than theirs on other
    /// nodes. What the machine is handed, or why the call fails here.
    pub fn accept(
        &mut self,
        group: GroupId,
        rank: usize,
        refused: Option<Reason>,
    ) -> Option<(&mut Called<T>, Result<Input, String>)> {
        let lane = self.each.get_mut(rank)?.lanes.get_mut(&group)?;
        let op = lane.accept(&mut self.next_send_recv, refused)?;
        let fails = self.over.clone().or_else(|| lane.dead().map(str::to_owned));
        let input = match fails {
            Some(why) => Err(why),
            None => Ok(lane.hand(group, rank, op)?),
        };
        Some((lane.called_mut(op)?, input))
    }

    /// An operation has ended for a rank: what was called, if the rank is there to get the outcome.
    pub fn end(
        &mut self,
        group: GroupId,
        op: OpId,
        rank: usize,
        succeeded: bool,
    ) -> Option<Called<T>> {
        let session = self.each.get_mut(rank)?;
        let called = session.lanes.get_mut(&group)?.end(op, succeeded);
        called.filter(|_| session.presence == Presence::Attached)
    }

    /// A group stands, for the first time or in a new epoch.
    pub fn opened(&mut self, group: GroupId, rank: usize) -> OpeningAnswer<T> {
        let mut answer = OpeningAnswer::default();
        let Some(session) = self.each.get_mut(rank) else {
            return answer;
        };
        if let Some(lane) = session.lanes.get_mut(&group) {
            answer.ticket = lane.opened();
            answer.inputs.extend(lane.call_again(group, rank));
        }
        if answer.ticket.is_some() {
            answer.over = std::mem::take(&mut session.over);
        }
        answer.inputs.extend(self.left(rank));
        answer
    }

    /// A group could not be opened, or not again in a new epoch: all that was called in it fails, and is called.
    pub fn fail(&mut self, group: GroupId, rank: usize, text: &str) -> OpeningAnswer<T> {
        let mut answer = OpeningAnswer::default();
        let Some(session) = self.each.get_mut(rank) else {
            return answer;
        };
        let lane = session.lanes.get_mut(&group);
        answer.ticket = lane.as_ref().and_then(|lane| lane.ticket());
        if answer.ticket.is_some() {
            session.lanes.remove(&group);
        } else if let Some(lane) = lane {
            answer.failed = lane.fail(text);
        }
        if session.presence != Presence::Attached {
            answer.failed.clear();
        }
        answer.inputs.extend(self.left(rank));
        answer
    }

    /// Ends all that runs, for this reason. Returns the answers to the ranks that are there, for
    /// each of their groups.
    pub fn give_up(&mut self, reason: String) -> Vec<(usize, OpeningAnswer<T>)> {
        let mut answers = Vec::new();
        for rank in 0..self.each.len() {
            if self.presence(rank) == Some(Presence::Attached) {
                let groups: Vec<GroupId> = self.lanes(rank).map(|(group, _)| group).collect();
                let fail = groups
                    .into_iter()
                    .map(|group| (rank, self.fail(group, rank, &reason)));
                answers.extend(fail);
            }
        }
        self.over = Some(reason);
        answers
    }

    /// Why nothing runs any more, if others went on without this node.
    #[must_use]
    pub fn over(&self) -> Option<&str> {
        self.over.as_deref()
    }

    /// A group is over on this node, or never was. Who has not closed it keeps it: what it calls there fails.
    pub fn forget_group(&mut self, group: GroupId) {
        for session in &mut self.each {
            let lane = session.lanes.get(&group);
            if group != WORLD && lane.is_some_and(Lane::is_closed) {
                session.lanes.remove(&group);
                if session.presence == Presence::Attached {
                    session.over.push(group);
                }
            }
        }
    }
}
