//! What a client knows at one moment: its rings, the operations in flight, the outcomes nobody took yet,
//! and the segments it has mapped. Every method is called with the client's lock held and none waits.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::buffer::Lent;
use super::{Error, NO_SEGMENT};
use crate::attach::{self, Channel, ToClient, ToSidecar};
use crate::entry::{Completion, Outcome, Submission};
use crate::op::Call;
use crate::ring::{
    COMPLETION_WORDS, Consumer, Depth, Producer, PushError, SUBMISSION_WORDS, Sleep,
};
use crate::segment::{Segment, View};

/// Idle input segments that are kept: the buckets of a model; more go back to the sidecar.
const IDLE_LIMIT: usize = 64;

#[derive(Debug)]
struct InFlight {
    call: Call,
    input: Option<(Lent, usize)>,
    outcome: Option<Outcome>,
}

/// An operation that is over: its call, the input it was lent, and how it ended.
pub(super) type Finished = (Call, Option<(Lent, usize)>, Outcome);

#[derive(Debug)]
pub(super) struct State {
    submissions: Producer<SUBMISSION_WORDS>,
    completions: Consumer<COMPLETION_WORDS>,
    pub(super) next_ticket: u64,
    operations: HashMap<u64, InFlight>,
    unfinished: usize,
    /// Results that are not read any more but found no room in the ring yet.
    unsaid: VecDeque<u64>,
    idle: Vec<Lent>,
    results: HashMap<u32, Arc<View>>,
    pub(super) answers: VecDeque<Result<Lent, String>>,
    lost: Option<String>,
    /// Whether a thread sleeps; others wait until it has looked.
    pub(super) sleeper: bool,
    /// How many others wait.
    pub(super) waiters: usize,
}

impl State {
    pub(super) fn new(
        submissions: Producer<SUBMISSION_WORDS>,
        completions: Consumer<COMPLETION_WORDS>,
    ) -> Self {
        Self {
            submissions,
            completions,
            next_ticket: 1,
            operations: HashMap::new(),
            unfinished: 0,
            unsaid: VecDeque::new(),
            idle: Vec::new(),
            results: HashMap::new(),
            answers: VecDeque::new(),
            lost: None,
            sleeper: false,
            waiters: 0,
        }
    }

    pub(super) fn alive(&self) -> Result<(), Error> {
        match &self.lost {
            None => Ok(()),
            Some(why) => Err(Error::SidecarLost { why: why.clone() }),
        }
    }

    /// From now on everything fails with the first reason.
    pub(super) fn lose(&mut self, why: String) -> Error {
        let why = self.lost.get_or_insert(why).clone();
        Error::SidecarLost { why }
    }

    /// Takes the outcomes that have come. Says whether there were any.
    pub(super) fn look(&mut self) -> bool {
        let mut any = false;
        while self.lost.is_none() {
            let completion = match self.completions.pop() {
                Ok(None) => break,
                Ok(Some(words)) => Completion::decode(&words).map_err(|error| error.to_string()),
                Err(corrupt) => Err(corrupt.to_string()),
            };
            match completion {
                Ok(Completion { ticket, outcome }) => {
                    any = true;
                    if let Some(operation) = self.operations.get_mut(&ticket)
                        && operation.outcome.replace(outcome).is_none()
                    {
                        self.unfinished -= 1;
                    }
                }
                Err(why) => {
                    self.lose(why);
                }
            }
        }
        any
    }

    /// Takes the messages that have come over the socket, or learns that it was closed.
    pub(super) fn hear(&mut self, channel: &Channel) {
        while self.lost.is_none() {
            match channel.receive_with_fds::<ToClient>() {
                Ok(None) => break,
                Ok(Some((message, fds))) => {
                    if let Err(error) = self.take(message, fds) {
                        self.lose(error.to_string());
                    }
                }
                Err(attach::Error::Closed) => {
                    // What it finished before it died counts.
                    self.look();
                    self.lose("it closed the connection, so it ended or was killed".to_owned());
                }
                Err(error) => {
                    self.lose(error.to_string());
                }
            }
        }
        // A request that nobody waits for any more leaves at most one answer.
        self.answers.truncate(1);
    }

    fn take(&mut self, message: ToClient, mut fds: Vec<OwnedFd>) -> Result<(), Error> {
        let descriptors = fds.len();
        let mut only = || match (fds.pop(), descriptors) {
            (Some(fd), 1) => Ok(fd),
            (_, count) => Err(attach::Error::Descriptors(count)),
        };
        match message {
            ToClient::Input { segment, bytes } => {
                let lent = Lent {
                    number: segment,
                    segment: Segment::open(only()?, bytes as usize)?,
                };
                self.answers.push_back(Ok(lent));
            }
            ToClient::Result { segment, bytes } => {
                let view = View::open(&only()?, bytes as usize)?;
                self.results.insert(segment, Arc::new(view));
            }
            ToClient::Gone { segment } => {
                self.results.remove(&segment);
            }
            ToClient::Refused { reason } => self.answers.push_back(Err(reason)),
            ToClient::Welcome { .. } => return Err(Error::Unexpected { request: "attach" }),
        }
        Ok(())
    }

    pub(super) fn may_sleep(&mut self) -> bool {
        match self.completions.sleep(Sleep::Word, Depth::Light) {
            Ok(may) => may && self.lost.is_none(),
            Err(corrupt) => {
                self.lose(corrupt.to_string());
                false
            }
        }
    }

    pub(super) fn awake(&self) {
        self.completions.awake();
    }

    pub(super) fn in_flight(&self) -> usize {
        self.unfinished
    }

    /// Writes to the ring, after the releases that found no room before.
    pub(super) fn push(&mut self, submission: &Submission) -> Result<bool, PushError> {
        let mut sleeps = self.push_unsaid()?;
        sleeps |= self.submissions.push(&submission.encode())?;
        Ok(sleeps)
    }

    fn push_unsaid(&mut self) -> Result<bool, PushError> {
        let mut sleeps = false;
        while let Some(ticket) = self.unsaid.front() {
            let release = Submission::Release { ticket: *ticket };
            // Nobody waits for it, unless the sidecar says so.
            sleeps |= self.submissions.push_softly(&release.encode())?;
            self.unsaid.pop_front();
        }
        Ok(sleeps)
    }

    /// Gives a result back. Says whether the sidecar's bell must be rung.
    pub(super) fn release(&mut self, ticket: u64) -> bool {
        self.unsaid.push_back(ticket);
        match self.push_unsaid() {
            Ok(sleeps) => sleeps,
            Err(PushError::Full) => true,
            Err(PushError::Corrupt(corrupt)) => {
                self.lose(corrupt.to_string());
                false
            }
        }
    }

    pub(super) fn called(&mut self, ticket: u64, call: Call, input: Option<(Lent, usize)>) {
        let operation = InFlight {
            call,
            input,
            outcome: None,
        };
        self.operations.insert(ticket, operation);
        self.unfinished += 1;
    }

    pub(super) fn call(&self, ticket: u64) -> Result<Call, Error> {
        let operation = self.operations.get(&ticket);
        operation
            .map(|operation| operation.call)
            .ok_or(Error::UnknownTicket(ticket))
    }

    pub(super) fn is_finished(&self, ticket: u64) -> Result<bool, Error> {
        let operation = self.operations.get(&ticket);
        operation
            .map(|operation| operation.outcome.is_some())
            .ok_or(Error::UnknownTicket(ticket))
    }

    /// An operation that is over, taken out, once its result can be read.
    pub(super) fn take_finished(
        &mut self,
        ticket: u64,
        channel: &Channel,
    ) -> Result<Option<Finished>, Error> {
        let operation = self.operations.get(&ticket);
        let operation = operation.ok_or(Error::UnknownTicket(ticket))?;
        match operation.outcome {
            None => return Ok(None),
            Some(Outcome::Done { segment, .. })
                if segment != NO_SEGMENT && !self.results.contains_key(&segment) =>
            {
                // The segment was announced before the outcome was written.
                self.hear(channel);
            }
            Some(_) => {}
        }
        Ok(self.operations.remove(&ticket).and_then(|operation| {
            let InFlight {
                call,
                input,
                outcome,
            } = operation;
            outcome.map(|outcome| (call, input, outcome))
        }))
    }

    /// The segment a result lies in, if it has any bytes.
    pub(super) fn result(&mut self, segment: u32, bytes: u64) -> Result<Option<Arc<View>>, Error> {
        if segment == NO_SEGMENT && bytes == 0 {
            return Ok(None);
        }
        match self.results.get(&segment) {
            Some(view) if view.len() as u64 >= bytes => Ok(Some(Arc::clone(view))),
            Some(_) | None => Err(self.lose(format!(
                "it announced a result of {bytes} bytes in segment {segment}, which it never lent"
            ))),
        }
    }

    /// An idle segment that fits and is not much too large.
    pub(super) fn take_idle(&mut self, bytes: usize) -> Option<Lent> {
        let sizes = self.idle.iter().map(|lent| lent.segment.len());
        let (at, size) = sizes
            .enumerate()
            .filter(|(_, size)| *size >= bytes)
            .min_by_key(|(_, size)| *size)?;
        (size <= crate::segment::size_class(bytes.saturating_mul(2)))
            .then(|| self.idle.swap_remove(at))
    }

    pub(super) fn keep_idle(&mut self, lent: Lent, channel: &Channel) {
        if self.idle.len() >= IDLE_LIMIT {
            let oldest = self.idle.remove(0);
            give_back(&oldest, channel);
        }
        self.idle.push(lent);
    }

    /// Gives all idle segments back. Says whether there were any.
    pub(super) fn free_idle(&mut self, channel: &Channel) -> bool {
        let any = !self.idle.is_empty();
        for lent in self.idle.drain(..) {
            give_back(&lent, channel);
        }
        any
    }
}

/// Lost only if the socket is full or closed, and then the sidecar frees everything anyway or counts
/// the segment until this process ends.
fn give_back(lent: &Lent, channel: &Channel) {
    let segment = lent.number;
    channel.send(&ToSidecar::Free { segment }, &[]).ok();
}
