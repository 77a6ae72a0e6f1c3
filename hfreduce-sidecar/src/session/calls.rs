//! What a process asks over its rings, and what it is answered: calls wait for their turn, take their place in the order of
//! operations and end. Every question is answered once, and what an answer leaves is held until it is given back.

use std::time::Instant;

use collective::machine::{FIRST_POST, GroupId, OpId, Reason, Splits};
use wire::attach::ToClient;
use wire::client::NO_SEGMENT;
use wire::entry::{Completion, FailureKind, Outcome, Submission};
use wire::ring::{self, PushError};

use super::input::Brought;
use super::{Begin, Error, Lane, Session};
use crate::memory::Input;
use crate::pool::ResultBlock;

/// A call that is not over.
#[derive(Clone, Copy, Debug)]
pub struct Called {
    /// The process's number for it.
    pub ticket: u64,
    /// The call.
    pub call: wire::Call,
    /// When it came.
    pub since: Instant,
    /// Why this node cannot carry it out, if so.
    pub refused: Option<Reason>,
    /// Bytes that it gets for itself alone.
    pub own_bytes: u64,
}

/// A call that came and has not taken its place in the order of operations yet.
#[derive(Debug)]
pub struct Waiting {
    /// The process's number for it, the call, and when it came.
    pub called: Called,
    /// Where the contribution lies, or what is wrong with it; none if the operation reads none here.
    pub input: Result<Option<Input>, String>,
    /// How an all-to-all is divided.
    pub splits: Option<Splits>,
}

/// Operations of which a process may hold the result, or that there is none: far more than its memory allows results.
pub(super) const MAX_HELD: usize = 1 << 18;

/// What the ring brought.
#[derive(Debug)]
pub enum Taken {
    /// What is answered already, or needs no answer.
    Nothing,
    /// A call, which waits for its turn: see [`Session::first_waiting_from`].
    Call,
    /// It opens a group: the answer is [`Session::opened`], or [`Session::fail_open`].
    Open(GroupId),
    /// The result of an operation is not read any more.
    Release(GroupId, OpId),
}

impl Session {
    /// The next entry of the ring, if there is one. Releases lie behind calls there, so the ring is read on
    /// while a call waits for what they give back.
    pub fn take(&mut self) -> Result<Option<Taken>, Error> {
        let Some(words) = self.calls.pop()? else {
            return Ok(None);
        };
        self.may_lend = false; // It lends first, and waits for the answers.
        if !self.has_told_all() {
            return Err(Error::Tells);
        }
        match Submission::decode(&words)? {
            Submission::Release { ticket } => match self.held.remove(&ticket) {
                Some(Some((group, op))) => Ok(Some(Taken::Release(group, op))),
                Some(None) => Ok(Some(Taken::Nothing)),
                None => Err(Error::Ticket(ticket)),
            },
            Submission::Open {
                ticket,
                group,
                ranks,
                replicated,
                priority,
                input,
            } => {
                self.note_question()?;
                self.open(ticket, group, ranks, (replicated, priority), input)
            }
            Submission::Call {
                ticket,
                group,
                call,
                input,
            } => {
                self.note_question()?;
                let Brought {
                    input,
                    splits,
                    own_bytes,
                } = self.input(group, &call, input);
                let since = Instant::now();
                let lane = self.lanes.get_mut(&group);
                let lane = lane.filter(|lane| lane.opening.is_none() && lane.closed.is_none());
                let lane = lane.ok_or(Error::Group(group))?;
                lane.waiting.push_back(Waiting {
                    called: Called {
                        ticket,
                        call,
                        since,
                        refused: None,
                        own_bytes,
                    },
                    input,
                    splits,
                });
                Ok(Some(Taken::Call))
            }
        }
    }

    /// One more question that has to be answered.
    fn note_question(&mut self) -> Result<(), Error> {
        let unread = ring::CAPACITY - self.outcomes.room()?;
        if self.unanswered + unread >= ring::CAPACITY {
            return Err(Error::TooMany);
        }
        self.unanswered += 1;
        Ok(())
    }

    /// How many calls wait for their turn.
    pub fn waiting(&self) -> usize {
        self.lanes.values().map(|lane| lane.waiting.len()).sum()
    }

    /// The first group from this number on in which a call waits for its turn.
    pub fn first_waiting_from(&self, group: GroupId) -> Option<GroupId> {
        let mut lanes = self.lanes.range(group..);
        lanes.find_map(|(group, lane)| (!lane.waiting.is_empty()).then_some(*group))
    }

    /// Whether a call waits for memory.
    pub fn is_stalled(&self) -> bool {
        self.lanes.values().any(|lane| lane.stalled)
    }

    /// Whether the process has called anything.
    pub fn has_called(&self) -> bool {
        let mut lanes = self.lanes.values();
        let used = |lane: &Lane| lane.next_op > 0 || lane.has_posted || !lane.waiting.is_empty();
        self.begin != Begin::Afresh || self.lanes.len() > 1 || lanes.any(used)
    }

    /// The call whose turn is next takes its place in the order of operations.
    pub fn accept(&mut self, group: GroupId, refused: Option<Reason>) -> Option<Waiting> {
        let lane = self.lanes.get_mut(&group)?;
        let op = lane.next_op;
        lane.next_op += 1;
        self.accept_as(group, op, refused)
    }

    /// The same for a message between two ranks, which has none: `op` is its number.
    pub fn accept_as(
        &mut self,
        group: GroupId,
        op: OpId,
        refused: Option<Reason>,
    ) -> Option<Waiting> {
        let lane = self.lanes.get_mut(&group)?;
        let mut waiting = lane.waiting.pop_front()?;
        waiting.called.refused = refused;
        lane.stalled = false;
        lane.has_posted |= op >= FIRST_POST;
        lane.in_flight.insert(op, waiting.called);
        if let Some(splits) = waiting.splits.clone() {
            lane.splits.insert(op, splits);
        }
        Some(waiting)
    }

    /// An operation is over: what was called.
    pub fn ended(&mut self, group: GroupId, op: OpId) -> Option<Called> {
        self.lanes.get_mut(&group)?.ended(op)
    }

    /// Tells the process that an operation has succeeded, which the members of `epoch` took part in. The result, if it
    /// gets one, is held for it.
    pub fn succeed(
        &mut self,
        (group, op): (GroupId, OpId),
        epoch: u32,
        called: &Called,
        result: Option<(&ResultBlock, u64)>,
    ) -> Result<(), Error> {
        if self.held.len() >= MAX_HELD {
            return Err(Error::HoldsTooMany);
        }
        // Held first, so that a process that is lost half-way lets go of it too.
        if self.held.insert(called.ticket, Some((group, op))).is_some() {
            return Err(Error::Ticket(called.ticket));
        }
        if let Some(lane) = self.lanes.get_mut(&group)
            && called.call.kind == wire::OpKind::Close
        {
            lane.closed = Some(op);
        }
        let epoch = epoch.into();
        let outcome = match result {
            None => Outcome::Done {
                segment: NO_SEGMENT,
                bytes: 0,
                epoch,
            },
            Some((result, bytes)) => {
                if self.known_results.insert(result.number) {
                    let message = ToClient::Result {
                        segment: result.number,
                        bytes: result.block.len() as u64,
                    };
                    self.say(&message, &[result.block.fd()])?;
                }
                Outcome::Done {
                    segment: result.number,
                    bytes,
                    epoch,
                }
            }
        };
        self.complete(called.ticket, outcome)
    }

    /// Tells the process that an operation has failed.
    pub fn fail(&mut self, ticket: u64, kind: FailureKind, text: String) -> Result<(), Error> {
        self.complete(ticket, Outcome::Failed { kind, text })
    }

    pub(super) fn complete(&mut self, ticket: u64, outcome: Outcome) -> Result<(), Error> {
        self.unanswered = self.unanswered.saturating_sub(1);
        match self.outcomes.push(&Completion { ticket, outcome }.encode()) {
            Ok(true) => self.bell.ring(),
            Ok(false) => {}
            Err(PushError::Full) => return Err(Error::TooMany),
            Err(PushError::Corrupt(corrupt)) => return Err(corrupt.into()),
        }
        Ok(())
    }

    /// Operations whose results the process holds.
    pub fn holds(&self) -> impl Iterator<Item = (GroupId, OpId)> {
        self.held.values().copied().flatten()
    }
}
