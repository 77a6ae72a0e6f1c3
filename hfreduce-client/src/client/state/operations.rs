//! Operations in flight, and those that are over and that nobody has taken yet.

use std::sync::Arc;

use super::State;
use crate::client::buffer::{InputSegment, Mapped};
use crate::client::{Error, IN_FLIGHT_LIMIT, MESSAGE_LIMIT, NO_SEGMENT};
use crate::entry::{CallOutcome, FailureKind, Submission};
use crate::{Call, OpKind};
use link::ring;

/// Messages that may be called for while there is no sidecar, of those that are sent and of those that are received.
const AWAY_LIMIT: usize = (ring::CAPACITY - IN_FLIGHT_LIMIT) / 2;
/// The first call's ticket.
pub(super) const FIRST_TICKET: u64 = 1;

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) call: Call,
    pub(super) submission: Submission,
    input: Option<(InputSegment, usize)>,
    /// The ranks of the group that it opens, if it does.
    pub(super) opens: Option<Arc<[u32]>>,
    pub(super) end: Option<End>,
}

/// How an operation ended.
#[derive(Debug)]
pub(super) struct End {
    pub(super) outcome: CallOutcome,
    /// Which sidecar has delivered it.
    pub(super) life: u64,
    /// Where the result lies, if that sidecar is gone.
    pub(super) view: Option<Arc<Mapped>>,
}

/// How many calls are in flight, by what they are counted as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::client) struct InFlightCounts {
    operations: usize,
    sent: usize,
    received: usize,
}

impl InFlightCounts {
    fn of(&mut self, call: &Call) -> &mut usize {
        if !call.kind.is_between_two() {
            &mut self.operations
        } else if let OpKind::Send { .. } = call.kind {
            &mut self.sent
        } else {
            &mut self.received
        }
    }

    pub(super) fn end(&mut self, call: &Call) {
        *self.of(call) -= 1;
    }
}

/// An operation that is over.
#[derive(Debug)]
pub(in crate::client) struct Finished {
    pub(in crate::client) call: Call,
    /// Its input, and how much of it was used.
    pub(in crate::client) input: Option<(InputSegment, usize)>,
    /// Why it failed, or what it left.
    pub(in crate::client) outcome: CallOutcome,
    /// Which sidecar has delivered it.
    pub(in crate::client) life: u64,
    view: Option<Arc<Mapped>>,
}

impl State {
    /// Ends what is under way between two ranks: nobody but the sidecar knew how far it was.
    pub(super) fn end_messages(&mut self) {
        let text = "the sidecar of this process ended meanwhile, and what was under way between two ranks with it";
        for operation in self.operations.values_mut() {
            if operation.end.is_none() && operation.call.kind.is_between_two() {
                self.in_flight.end(&operation.call);
                operation.end = Some(End {
                    outcome: CallOutcome::Failed {
                        kind: FailureKind::Broken,
                        text: text.to_owned(),
                    },
                    life: self.life,
                    view: None,
                });
            }
        }
    }

    pub(in crate::client) fn in_flight(&self) -> InFlightCounts {
        self.in_flight
    }

    /// Whether one more call of its kind may be in flight. What is called while there is no sidecar goes into the empty ring
    /// of the next one, all at once.
    pub(in crate::client) fn has_room(&self, call: &Call) -> bool {
        let messages = if self.is_there() {
            MESSAGE_LIMIT
        } else {
            AWAY_LIMIT
        };
        let is_message = call.kind.is_between_two();
        let limit = if is_message {
            messages
        } else {
            IN_FLIGHT_LIMIT
        };
        *self.in_flight().of(call) < limit
    }

    pub(in crate::client) fn called(
        &mut self,
        ticket: u64,
        call: Call,
        submission: Submission,
        input: Option<(InputSegment, usize)>,
        opens: Option<Arc<[u32]>>,
    ) {
        let operation = InFlight {
            call,
            submission,
            input,
            opens,
            end: None,
        };
        self.operations.insert(ticket, operation);
        *self.in_flight.of(&call) += 1;
    }

    pub(in crate::client) fn call(&self, ticket: u64) -> Result<Call, Error> {
        let operation = self.operations.get(&ticket);
        operation
            .map(|operation| operation.call)
            .ok_or(Error::UnknownTicket(ticket))
    }

    /// The group of a collective in flight; none of what is over, or under way between two ranks.
    pub(in crate::client) fn group_of(&self, ticket: u64) -> Result<Option<u64>, Error> {
        let operation = self.operations.get(&ticket);
        let operation = operation.ok_or(Error::UnknownTicket(ticket))?;
        if operation.end.is_some() || operation.call.kind.is_between_two() {
            return Ok(None);
        }
        Ok(match operation.submission {
            Submission::Call { group, .. } => Some(group),
            Submission::Open { .. } | Submission::Release { .. } => None,
        })
    }

    pub(in crate::client) fn is_finished(&self, ticket: u64) -> Result<bool, Error> {
        let operation = self.operations.get(&ticket);
        operation
            .map(|operation| operation.end.is_some())
            .ok_or(Error::UnknownTicket(ticket))
    }

    /// An operation that is over, taken out, once its result can be read.
    pub(in crate::client) fn take_finished(
        &mut self,
        ticket: u64,
    ) -> Result<Option<Finished>, Error> {
        let operation = self.operations.get(&ticket);
        let operation = operation.ok_or(Error::UnknownTicket(ticket))?;
        match &operation.end {
            None => return Ok(None),
            Some(end) if end.life == self.life => match end.outcome {
                CallOutcome::Done { segment, epoch, .. }
                    if segment != NO_SEGMENT && !self.results.contains_key(&segment)
                        || self.members(Some(epoch)).is_none() =>
                {
                    // Segment and members were announced before the outcome was written.
                    self.receive();
                }
                CallOutcome::Done { .. } | CallOutcome::Failed { .. } => {}
            },
            Some(_) => {}
        }
        Ok(self.operations.remove(&ticket).and_then(|operation| {
            let InFlight {
                call, input, end, ..
            } = operation;
            end.map(|end| Finished {
                call,
                input,
                outcome: end.outcome,
                life: end.life,
                view: end.view,
            })
        }))
    }

    /// The segment that a result of `bytes` lies in, if it has any.
    pub(in crate::client) fn result(
        &mut self,
        finished: &Finished,
        segment: u32,
        bytes: u64,
    ) -> Result<Option<Arc<Mapped>>, Error> {
        if segment == NO_SEGMENT && bytes == 0 {
            return Ok(None);
        }
        let now = self.results.get(&segment);
        let now = now.filter(|_| finished.life == self.life && self.is_there());
        match finished.view.as_ref().or(now) {
            Some(view) if view.len() as u64 >= bytes => Ok(Some(Arc::clone(view))),
            Some(_) | None => Err(self.lose(format!(
                "it announced a result of {bytes} bytes in segment {segment}, which it never announced"
            ))),
        }
    }
}
