//! What a rank has called in one of its groups, the world included, and how far it got the outcomes.

use std::collections::{BTreeMap, VecDeque};

use super::remembered::{RememberError, Remembered};
use crate::machine::{FIRST_SEND_RECV, GroupId, Input, OpId, Reason, Splits};
use crate::op::{Call, OpKind};
use crate::recovery::OpenedGroup;

/// A call, with what the shell keeps of it.
#[derive(Clone, Debug)]
pub struct Called<T> {
    /// What was called.
    pub call: Call,
    /// How an all-to-all is divided.
    pub splits: Option<Splits>,
    /// Why this node cannot carry it out, if so.
    pub refused: Option<Reason>,
    /// What the shell keeps.
    pub kept: T,
}

/// The calls of a rank in one group.
#[derive(Debug)]
pub struct Lane<T> {
    ranks: Vec<u32>,
    replicated: bool,
    priority: i8,
    rank: u32,
    /// The shell's number for the opening, while that is not answered.
    opening: Option<u64>,
    /// The first operation whose outcome was not delivered.
    delivered: OpId,
    /// The operation that has closed it.
    closed: Option<OpId>,
    /// Why nothing can be called in it any more.
    dead: Option<String>,
    /// Whether it is being opened again in a new epoch: what was called before goes first.
    reopens: bool,
    /// The operation that is called next.
    next_op: OpId,
    /// Calls that came after those, in their order.
    waiting: VecDeque<Called<T>>,
    /// Whether the first of them waits for the shell's memory.
    stalled: bool,
    in_flight: BTreeMap<OpId, Called<T>>,
    /// Whether messages were sent or received.
    has_posted: bool,
}

impl<T> Lane<T> {
    /// `rank`: the place in the group.
    pub(super) fn new(ranks: Vec<u32>, rank: u32, delivered: OpId) -> Self {
        Self {
            ranks,
            replicated: true,
            priority: 0,
            rank,
            opening: None,
            delivered,
            closed: None,
            dead: None,
            reopens: false,
            next_op: delivered,
            waiting: VecDeque::new(),
            stalled: false,
            in_flight: BTreeMap::new(),
            has_posted: false,
        }
    }

    /// A group that `own` opens with these ranks. Whether it is one of them is for the machines to say, to all of them.
    pub(super) fn opening(
        ranks: Vec<u32>,
        own: u32,
        replicated: bool,
        priority: i8,
        ticket: u64,
    ) -> Self {
        let rank = ranks.partition_point(|rank| *rank < own) as u32;
        Self {
            replicated,
            priority,
            opening: Some(ticket),
            ..Self::new(ranks, rank, 0)
        }
    }

    /// A group as one of its ranks remembers it.
    pub(super) fn remembered(
        group: Remembered,
        own: u32,
        world: u32,
    ) -> Result<Self, RememberError> {
        let rank = group.check(own, world)?;
        let delivered = group.delivered;
        Ok(Self {
            replicated: group.replicated,
            priority: group.priority,
            closed: group.closed.then(|| delivered - 1),
            dead: group
                .failed
                .then(|| "the group could not be opened again in an epoch before".to_owned()),
            ..Self::new(group.ranks, rank, delivered)
        })
    }

    /// What a later session has to know of it. Calls that are not over count as delivered: nobody asks for them any more.
    pub(super) fn remember(&self, group: GroupId) -> Remembered {
        let is_operation = |called: &&Called<T>| !called.call.kind.is_between_two();
        let waiting = self.waiting.iter().filter(is_operation);
        let pending = self.in_flight.values().filter(is_operation);
        let last = pending.chain(waiting.clone()).last();
        let closes = last.is_some_and(|called| called.call.kind == OpKind::Close);
        let (delivered, closed) = match (self.closed, &self.dead) {
            (Some(last), _) => (last + 1, true),
            (None, Some(_)) => (self.delivered, false),
            (None, None) => (self.next_op + waiting.count() as OpId, closes),
        };
        Remembered {
            group,
            ranks: self.ranks.clone(),
            replicated: self.replicated,
            priority: self.priority,
            delivered,
            closed,
            failed: self.closed.is_none() && self.dead.is_some(),
        }
    }

    /// The ranks of the group.
    #[must_use]
    pub fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// How many they are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// The place of this one among them.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// What is computed for it goes before what is for groups of a lower one.
    #[must_use]
    pub fn priority(&self) -> i8 {
        self.priority
    }

    /// Whether calls are taken: it is open, and was not closed.
    pub(super) fn takes_calls(&self) -> bool {
        self.opening.is_none() && self.closed.is_none()
    }

    /// Calls that are not taken up.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether the first of them waits for the shell's memory.
    pub(super) fn is_stalled(&self) -> bool {
        self.stalled
    }

    pub(super) fn delivered(&self) -> OpId {
        self.delivered
    }

    pub(super) fn knows(&self) -> OpenedGroup {
        OpenedGroup {
            delivered: self.delivered,
            closed: self.closed.is_some(),
        }
    }

    /// The opening that is not answered yet.
    pub(super) fn ticket(&self) -> Option<u64> {
        self.opening
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    pub(super) fn dead(&self) -> Option<&str> {
        self.dead.as_deref()
    }

    pub(super) fn reopens(&self) -> bool {
        self.reopens
    }

    /// Whether the machine lacks calls: those that wait, and while it is opened again those before.
    pub(super) fn has_calls_to_hand(&self) -> bool {
        let is_before = |op: &OpId| *op < FIRST_SEND_RECV;
        !self.waiting.is_empty() || self.reopens && self.in_flight.keys().any(is_before)
    }

    pub(super) fn was_used(&self) -> bool {
        self.next_op > 0 || self.has_posted || !self.waiting.is_empty()
    }

    pub(super) fn call(&mut self, called: Called<T>) {
        self.waiting.push_back(called);
    }

    pub(super) fn stall(&mut self) -> bool {
        !std::mem::replace(&mut self.stalled, true)
    }

    /// The call whose turn is next, and the number of the operation, unless it is a message.
    pub(super) fn next(&self) -> Option<(&Called<T>, OpId)> {
        Some((self.waiting.front()?, self.next_op))
    }

    /// The next call takes its place in the order of operations; a message has none and gets this number.
    pub(super) fn accept(&mut self, post: &mut OpId, refused: Option<Reason>) -> Option<OpId> {
        let mut called = self.waiting.pop_front()?;
        let is_post = called.call.kind.is_between_two();
        let next = if is_post { post } else { &mut self.next_op };
        let op = *next;
        *next += 1;
        called.refused = refused;
        self.stalled = false;
        self.has_posted |= is_post;
        self.in_flight.insert(op, called);
        Some(op)
    }

    pub(super) fn called_mut(&mut self, op: OpId) -> Option<&mut Called<T>> {
        self.in_flight.get_mut(&op)
    }

    /// An operation is over: what was called.
    pub(super) fn end(&mut self, op: OpId, succeeded: bool) -> Option<Called<T>> {
        // Where a group has failed, outcomes say nothing of how far the others are.
        if op < FIRST_SEND_RECV && self.dead.is_none() {
            self.delivered = self.delivered.max(op + 1);
        }
        let called = self.in_flight.remove(&op)?;
        if succeeded && called.call.kind == OpKind::Close {
            self.closed = Some(op);
        }
        Some(called)
    }

    pub(super) fn open(&self, group: GroupId, rank: usize) -> Input {
        Input::Open {
            group,
            rank,
            ranks: self.ranks.clone(),
            replicated: self.replicated,
        }
    }

    pub(super) fn reopen(&mut self) {
        self.reopens = true;
    }

    /// The group stands: the opening that is answered so, if it is the first.
    pub(super) fn opened(&mut self) -> Option<u64> {
        self.reopens = false;
        self.opening.take()
    }

    /// Nothing can be called any more: what was in flight.
    pub(super) fn fail(&mut self, text: &str) -> Vec<Called<T>> {
        self.reopens = false;
        self.dead = Some(text.to_owned());
        std::mem::take(&mut self.in_flight).into_values().collect()
    }

    /// How an accepted call is handed to the machine.
    pub(super) fn hand(&self, group: GroupId, rank: usize, op: OpId) -> Option<Input> {
        let &Called {
            call,
            ref splits,
            refused,
            ..
        } = self.in_flight.get(&op)?;
        Some(match (refused, splits) {
            (refused, _) if op >= FIRST_SEND_RECV => Input::SendRecv {
                group,
                rank,
                op,
                call,
                refused,
            },
            (Some(reason), _) => Input::Refuse {
                group,
                rank,
                call,
                reason,
            },
            (None, Some(splits)) => Input::Exchange {
                group,
                rank,
                call,
                splits: splits.clone(),
            },
            (None, None) => Input::Submit { group, rank, call },
        })
    }

    /// The calls that are not over, in their order, to be called in a new epoch. Messages end with theirs.
    pub(super) fn call_again(&self, group: GroupId, rank: usize) -> impl Iterator<Item = Input> {
        let ops = self.in_flight.range(..FIRST_SEND_RECV);
        ops.filter_map(move |(&op, _)| self.hand(group, rank, op))
    }
}
