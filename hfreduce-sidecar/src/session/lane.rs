//! What a process has called in one of its groups, the world included.

use std::collections::{BTreeMap, VecDeque};

use collective::machine::{FIRST_POST, OpId, Splits};
use collective::recovery::Told;

use super::{Called, Waiting};

/// The calls of a process in one group.
#[derive(Debug)]
pub struct Lane {
    /// The ranks of the group; none for the world.
    pub ranks: Vec<u32>,
    /// Whether some of them can go on without others.
    pub replicated: bool,
    /// What is computed for it goes before what is for lanes of a lower one.
    pub priority: i8,
    /// The process among them.
    pub rank: u32,
    /// How many they are.
    pub size: u32,
    /// The process's number for the opening, while that is not answered.
    pub(super) opening: Option<u64>,
    /// The first operation whose end it was not told; of the world the engine knows.
    pub told: OpId,
    /// The operation that has closed it.
    pub closed: Option<OpId>,
    /// Why nothing can be called in it any more.
    pub dead: Option<String>,
    /// Whether it is being opened again in a new epoch: what was called before goes first.
    pub reopens: bool,
    /// The operation that it calls next.
    pub next_op: OpId,
    /// Calls that came after those, in their order.
    pub(super) waiting: VecDeque<Waiting>,
    /// Whether the first of them waits for memory.
    pub stalled: bool,
    pub(super) in_flight: BTreeMap<OpId, Called>,
    /// Whether it has sent or received messages.
    pub(super) has_posted: bool,
    /// How those are divided in which each rank has parts for the others.
    pub(super) splits: BTreeMap<OpId, Splits>,
}

impl Lane {
    pub(super) fn new(ranks: Vec<u32>, rank: u32, size: u32) -> Self {
        Self {
            ranks,
            replicated: true,
            priority: 0,
            rank,
            size,
            opening: None,
            told: 0,
            closed: None,
            dead: None,
            reopens: false,
            next_op: 0,
            waiting: VecDeque::new(),
            stalled: false,
            in_flight: BTreeMap::new(),
            has_posted: false,
            splits: BTreeMap::new(),
        }
    }

    /// What the process was told in it.
    pub fn knows(&self) -> Told {
        Told {
            first: self.told,
            closed: self.closed.is_some(),
        }
    }

    /// Whether it has not been answered that the group is open.
    pub fn is_opening(&self) -> bool {
        self.opening.is_some()
    }

    /// The call whose turn is next.
    pub fn first_waiting(&self) -> Option<&Waiting> {
        self.waiting.front()
    }

    /// An operation is over: what was called.
    pub(super) fn ended(&mut self, op: OpId) -> Option<Called> {
        // Where a group has failed, ends say nothing of how far the others are.
        if op < FIRST_POST && self.dead.is_none() {
            self.told = self.told.max(op + 1);
        }
        self.splits.remove(&op);
        self.in_flight.remove(&op)
    }

    /// How an operation that is not over is divided.
    pub fn splits(&self, op: OpId) -> Option<Splits> {
        self.splits.get(&op).cloned()
    }

    /// The calls from this operation on that are not over, in their order. Messages end with their epoch.
    pub fn in_flight_from(&self, first: OpId) -> impl Iterator<Item = (OpId, Called)> {
        self.in_flight
            .range(first..FIRST_POST)
            .map(|(op, called)| (*op, *called))
    }
}
