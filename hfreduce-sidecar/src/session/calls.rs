//! What a process asks over its rings, and what it is answered. Every question is answered once, and what an answer leaves is held until it is given back.

use std::time::Instant;

use collective::machine::{GroupId, OpId};
use collective::session::Called;
use hfreduce_client::attach::SidecarAnswer;
use hfreduce_client::client::NO_SEGMENT;
use hfreduce_client::entry::{CallOutcome, Completion, FailureKind, Submission};
use link::ring::{self, PushError};

use super::input::Brought;
use super::{Error, Ranks, Session};
pub(super) use crate::limits::MAX_UNRETURNED;
use crate::memory::InputMemory;
use crate::pool::ResultBlock;

/// What is kept of a call until it is over.
#[derive(Debug)]
pub struct PendingCall {
    /// The process's number for it.
    pub ticket: u64,
    /// When it came.
    pub since: Instant,
    /// Bytes that it gets for itself alone.
    pub own_bytes: u64,
    /// Where the contribution lies until the call is taken up, or what is wrong with it; none if the operation reads
    /// none here.
    pub input: Result<Option<InputMemory>, String>,
}

/// What the ring brought.
#[derive(Debug)]
pub enum Taken {
    /// What is answered already, or needs no answer.
    Nothing,
    /// It opens a group: the input for the machine.
    Open(GroupId, collective::machine::Input),
    /// The result of an operation is not read any more.
    Release(GroupId, OpId),
}

impl Session {
    /// The next entry of the ring, if there is one. Releases lie behind calls there, so the ring is read on
    /// while a call waits for what they give back.
    pub fn take(&mut self, ranks: &mut Ranks) -> Result<Option<Taken>, Error> {
        let Some(words) = self.calls.pop()? else {
            return Ok(None);
        };
        self.may_restore = false; // It offers segments first, and waits for the answers.
        if !self.is_restored() {
            return Err(Error::RestoresGroup);
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
                ranks: count,
                replicated,
                priority,
                input,
            } => {
                self.note_question()?;
                self.open(ranks, ticket, (group, count), (replicated, priority), input)
            }
            Submission::Call {
                ticket,
                group,
                call,
                input,
            } => {
                self.note_question()?;
                let rank = self.rank();
                let Brought {
                    input,
                    splits,
                    own_bytes,
                } = self.input(ranks.lane(group, rank), &call, input);
                let called = Called {
                    call,
                    splits,
                    refused: None,
                    kept: PendingCall {
                        ticket,
                        since: Instant::now(),
                        own_bytes,
                        input,
                    },
                };
                if ranks.call(group, rank, called) {
                    Ok(Some(Taken::Nothing))
                } else {
                    Err(Error::Group(group))
                }
            }
        }
    }

    /// One more question that has to be answered.
    fn note_question(&mut self) -> Result<(), Error> {
        let unread = ring::COMPLETION_CAPACITY - self.outcomes.room()?;
        if self.unanswered + unread >= ring::COMPLETION_CAPACITY {
            return Err(Error::TooMany);
        }
        self.unanswered += 1;
        Ok(())
    }

    /// Delivers that an operation has succeeded, which the members of `epoch` took part in. The result, if it
    /// gets one, is held for it.
    pub fn succeed(
        &mut self,
        (group, op): (GroupId, OpId),
        epoch: u32,
        called: &PendingCall,
        result: Option<(&ResultBlock, u64)>,
    ) -> Result<(), Error> {
        if self.held.len() >= MAX_UNRETURNED {
            return Err(Error::HoldsTooMany);
        }
        // Held first, so that a process that is lost half-way lets go of it too.
        if self.held.insert(called.ticket, Some((group, op))).is_some() {
            return Err(Error::Ticket(called.ticket));
        }
        let epoch = epoch.into();
        let outcome = match result {
            None => CallOutcome::Done {
                segment: NO_SEGMENT,
                bytes: 0,
                epoch,
            },
            Some((result, bytes)) => {
                if self.known_results.insert(result.number) {
                    let message = SidecarAnswer::Result {
                        segment: result.number,
                        bytes: result.block.len() as u64,
                    };
                    self.say(&message, &[result.block.fd()])?;
                }
                CallOutcome::Done {
                    segment: result.number,
                    bytes,
                    epoch,
                }
            }
        };
        self.complete(called.ticket, outcome)
    }

    /// Delivers that an operation has failed.
    pub fn fail(&mut self, ticket: u64, kind: FailureKind, text: String) -> Result<(), Error> {
        self.complete(ticket, CallOutcome::Failed { kind, text })
    }

    pub(super) fn complete(&mut self, ticket: u64, outcome: CallOutcome) -> Result<(), Error> {
        self.unanswered = self.unanswered.saturating_sub(1);
        match self.outcomes.push(&Completion { ticket, outcome }.encode()) {
            Ok(true) => self.wake_fd.notify(),
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
