//! What a client knows at one moment: its rings, the operations in flight, the outcomes nobody took yet,
//! and the segments it has mapped. Every method is called with the client's lock held and none waits.

mod inputs;
mod operations;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use inputs::give_back;
use operations::{End, FIRST_TICKET, InFlight, InFlightCounts};

use super::Error;
use super::buffer::{InputSegment, Mapped};
use super::connect::Attachment;
use super::groups::Groups;
use super::keep::{Belongings, HandoverAnswers};
use super::shared::{Gone, Link};
use crate::attach::{self, Members, SidecarAnswer};
use crate::entry::{CallOutcome, Completion, Submission};
use link::ring::{
    COMPLETION_WORDS, Consumer, Producer, PushError, SUBMISSION_WORDS, WaitOn, WakeFor,
};
use link::segment::Segment;
use link::spin::Spin;

/// Epochs whose members are known: more than end without bringing an operation to its end.
const EPOCHS: usize = 64;

/// Whether there is a sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Presence {
    There,
    /// It is gone, and another may come.
    Away,
    /// None will come.
    Lost(String),
}

#[derive(Debug)]
pub(super) struct State {
    link: Arc<Link>,
    /// Counts the sidecars.
    life: u64,
    presence: Presence,
    /// How long to look for the next one; not at all if what this one knew goes with it.
    patience: Duration,
    submissions: Producer<SUBMISSION_WORDS>,
    completions: Consumer<COMPLETION_WORDS>,
    pub(super) next_ticket: u64,
    operations: HashMap<u64, InFlight>,
    in_flight: InFlightCounts,
    groups: Groups,
    /// Results that are not read any more but found no room in the ring yet.
    unsaid: VecDeque<u64>,
    idle: Vec<InputSegment>,
    /// Sizes and descriptors of all input segments, for the next sidecar.
    inputs: BTreeMap<u32, (u64, Arc<OwnedFd>)>,
    results: HashMap<u32, Arc<Mapped>>,
    /// Where those go that are no results any more.
    gone: Arc<Gone>,
    /// The newest epochs, ascending.
    members: VecDeque<Arc<Members>>,
    pub(super) answers: VecDeque<Result<InputSegment, String>>,
    /// Whether the sidecar has been asked for a segment and has not answered.
    pub(super) is_asked: bool,
    /// Whom an operation waits for, of which the sidecar was asked last.
    pub(super) whom: Option<String>,
    pub(super) spin: Spin,
    /// Whether a thread sleeps; others wait until it has looked.
    pub(super) sleeper: bool,
    /// How many others wait.
    pub(super) waiters: usize,
}

impl State {
    pub(super) fn new(attachment: Attachment, gone: Arc<Gone>) -> Self {
        let Attachment {
            link,
            submissions,
            completions,
            standing: _same_for_all,
            patience,
        } = attachment;
        Self {
            link: Arc::new(link),
            life: 0,
            presence: Presence::There,
            patience,
            submissions,
            completions,
            next_ticket: FIRST_TICKET,
            operations: HashMap::new(),
            in_flight: InFlightCounts::default(),
            groups: Groups::default(),
            unsaid: VecDeque::new(),
            idle: Vec::new(),
            inputs: BTreeMap::new(),
            results: HashMap::new(),
            gone,
            members: VecDeque::new(),
            answers: VecDeque::new(),
            is_asked: false,
            whom: None,
            spin: Spin::default(),
            sleeper: false,
            waiters: 0,
        }
    }

    /// The connection to the sidecar, or to the last one.
    pub(super) fn link(&self) -> Arc<Link> {
        Arc::clone(&self.link)
    }

    pub(super) fn patience(&self) -> Duration {
        self.patience
    }

    /// Nobody looks for another sidecar.
    pub(super) fn be_impatient(&mut self) {
        self.patience = Duration::ZERO;
    }

    /// An error when no sidecar will serve this process any more. One that is away may come back.
    pub(super) fn alive(&self) -> Result<(), Error> {
        match &self.presence {
            Presence::There | Presence::Away => Ok(()),
            Presence::Lost(why) => Err(Error::SidecarLost { why: why.clone() }),
        }
    }

    pub(super) fn is_there(&self) -> bool {
        self.presence == Presence::There
    }

    /// From now on everything fails with the first reason.
    pub(super) fn lose(&mut self, why: String) -> Error {
        if let Presence::Lost(why) = &self.presence {
            return Error::SidecarLost { why: why.clone() };
        }
        self.presence = Presence::Lost(why.clone());
        Error::SidecarLost { why }
    }

    /// The sidecar has ended. What it has delivered counts, and results that it left stay where they are.
    pub(super) fn part(&mut self) {
        self.look();
        if !self.is_there() {
            return;
        }
        if self.patience.is_zero() {
            self.lose("it closed the connection, so it ended or was killed".to_owned());
            return;
        }
        let ends = self
            .operations
            .values_mut()
            .filter_map(|one| one.end.as_mut());
        for end in ends.filter(|end| end.life == self.life) {
            if let CallOutcome::Done { segment, .. } = end.outcome {
                end.view = self.results.get(&segment).cloned();
            }
        }
        self.end_messages();
        self.gone.extend(self.results.drain().map(|(_, view)| view));
        self.unsaid.clear();
        self.drop_answers(0);
        self.is_asked = false;
        self.presence = Presence::Away;
    }

    /// What is restored in the next sidecar.
    pub(super) fn belongings(&self) -> Belongings {
        Belongings {
            delivered: self.groups.delivered(),
            groups: self.groups.known(),
            inputs: self.inputs(),
        }
    }

    /// Another sidecar has taken the place of the one that is gone, and has `segments`. What is not over is called
    /// again. Says whether its wake descriptor must be notified.
    pub(super) fn go_on(
        &mut self,
        attachment: Attachment,
        inputs: &[u32],
        answers: HandoverAnswers,
    ) -> Result<bool, Error> {
        self.alive()?;
        self.link = Arc::new(attachment.link);
        self.submissions = attachment.submissions;
        self.completions = attachment.completions;
        self.patience = attachment.patience;
        self.life += 1;
        self.presence = Presence::There;
        for (message, fds) in answers {
            self.take(message, fds)?;
        }
        for number in inputs
            .iter()
            .filter(|number| !self.inputs.contains_key(number))
        {
            give_back(*number, &self.link); // Dropped meanwhile.
        }
        let open = self.operations.iter().filter(|(_, one)| one.end.is_none());
        let mut open: Vec<u64> = open.map(|(ticket, _)| *ticket).collect();
        open.sort_unstable();
        let mut sleeps = false;
        for ticket in open {
            if let Some(&InFlight { submission, .. }) = self.operations.get(&ticket) {
                match self.push(&submission) {
                    Ok(sleeping) => sleeps |= sleeping,
                    Err(error) => return Err(self.lose(error.to_string())),
                }
            }
        }
        Ok(sleeps)
    }

    /// Takes the outcomes that have come. Says whether there were any.
    pub(super) fn look(&mut self) -> bool {
        let mut any = false;
        // What found the ring full may be what the sidecar waits for.
        if !self.unsaid.is_empty() && self.say_unsaid() {
            self.link.wake_fd.notify();
        }
        while self.is_there() {
            let completion = match self.completions.pop() {
                Ok(None) => break,
                Ok(Some(words)) => Completion::decode(&words).map_err(|error| error.to_string()),
                Err(corrupt) => Err(corrupt.to_string()),
            };
            match completion {
                Ok(Completion { ticket, outcome }) => {
                    any = true;
                    if let Some(operation) = self.operations.get_mut(&ticket) {
                        if operation.end.is_none() {
                            self.in_flight.end(&operation.call);
                            let opens = operation.opens.as_ref();
                            self.groups.ended(&operation.submission, opens, &outcome);
                        }
                        operation.end = Some(End {
                            outcome,
                            life: self.life,
                            view: None,
                        });
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
    pub(super) fn receive(&mut self) {
        let link = self.link();
        while self.is_there() {
            match link.channel.receive_with_fds::<SidecarAnswer>() {
                Ok(None) => break,
                Ok(Some((message, fds))) => {
                    if let Err(error) = self.take(message, fds) {
                        self.lose(error.to_string());
                    }
                }
                Err(attach::Error::Closed) => {
                    self.part();
                }
                Err(error) => {
                    self.lose(error.to_string());
                }
            }
        }
        // A request that nobody waits for any more leaves at most one answer.
        self.drop_answers(1);
    }

    fn take(&mut self, message: SidecarAnswer, mut fds: Vec<OwnedFd>) -> Result<(), Error> {
        let descriptors = fds.len();
        let mut only = || match (fds.pop(), descriptors) {
            (Some(fd), 1) => Ok(fd),
            (_, count) => Err(attach::Error::Descriptors(count)),
        };
        match message {
            SidecarAnswer::Input { segment, .. } if descriptors == 0 => {
                // The kernel gives none to a process that has as many as it may.
                let reason = "this process has no descriptor left for it; wait for some of the calls in flight, each of \
                              which holds one, or raise its limit (`ulimit -n`)";
                give_back(segment, &self.link);
                self.is_asked = false;
                self.answers.push_back(Err(reason.to_owned()));
            }
            SidecarAnswer::Input { segment, bytes } => {
                let input = InputSegment {
                    number: segment,
                    segment: Segment::open(only()?, bytes as usize)?,
                };
                self.inputs.insert(segment, (bytes, input.segment.handle()));
                self.is_asked = false;
                self.answers.push_back(Ok(input));
            }
            SidecarAnswer::Result { segment, bytes } => {
                let view = Mapped::open(&only()?, bytes as usize)?;
                self.gone
                    .extend(self.results.insert(segment, Arc::new(view)));
            }
            SidecarAnswer::Gone { segment } => {
                self.gone.extend(self.results.remove(&segment));
            }
            SidecarAnswer::Members(members) => {
                self.members.retain(|known| known.epoch < members.epoch);
                self.members.push_back(Arc::new(members));
                if self.members.len() > EPOCHS {
                    self.members.pop_front();
                }
            }
            SidecarAnswer::Refused { reason } => {
                self.is_asked = false;
                self.answers.push_back(Err(reason));
            }
            SidecarAnswer::Waits { whom } => self.whom = Some(whom),
            SidecarAnswer::Over { groups } => self.groups.forget(&groups),
            SidecarAnswer::Attached { .. } | SidecarAnswer::Taken { .. } | SidecarAnswer::Noted => {
                return Err(Error::Unexpected { request: "attach" });
            }
        }
        Ok(())
    }

    /// The members of an epoch; of the newest for none.
    pub(super) fn members(&self, epoch: Option<u64>) -> Option<Arc<Members>> {
        let known = match epoch {
            None => self.members.back(),
            Some(epoch) => self.members.iter().find(|known| known.epoch == epoch),
        };
        known.cloned()
    }

    pub(super) fn prepare_wait(&mut self) -> bool {
        match self.completions.sleep(WaitOn::Futex, WakeFor::Anything) {
            Ok(may) => may && self.is_there(),
            Err(corrupt) => {
                self.lose(corrupt.to_string());
                false
            }
        }
    }

    pub(super) fn awake(&self) {
        self.completions.awake();
    }

    /// Writes to the ring, after the releases that found no room before. What is called while the sidecar is away is
    /// called when there is another.
    pub(super) fn push(&mut self, submission: &Submission) -> Result<bool, PushError> {
        if !self.is_there() {
            return Ok(false);
        }
        let mut sleeps = self.push_unsaid()?;
        sleeps |= self.submissions.push(&submission.encode())?;
        Ok(sleeps)
    }

    fn push_unsaid(&mut self) -> Result<bool, PushError> {
        let mut sleeps = false;
        while let Some(ticket) = self.unsaid.front() {
            let release = Submission::Release { ticket: *ticket };
            // Nobody waits for it, unless the sidecar says so.
            sleeps |= self.submissions.push_not_urgent(&release.encode())?;
            self.unsaid.pop_front();
        }
        Ok(sleeps)
    }

    /// Gives a result back to the sidecar that has made it, if that is there. Says whether its wake descriptor must be notified.
    pub(super) fn release(&mut self, ticket: u64, life: u64) -> bool {
        if life != self.life || !self.is_there() {
            return false;
        }
        self.unsaid.push_back(ticket);
        self.say_unsaid()
    }

    /// Writes releases to the ring, as far as they find room. Says whether the wake descriptor must be notified.
    fn say_unsaid(&mut self) -> bool {
        match self.push_unsaid() {
            Ok(sleeps) => sleeps,
            Err(PushError::Full) => true,
            Err(PushError::Corrupt(corrupt)) => {
                self.lose(corrupt.to_string());
                false
            }
        }
    }
}
