//! One trainer process attached to this sidecar: its socket, rings, input segments and tickets. The
//! process is not trusted: everything it names is looked up in tables of this side. Which operation runs
//! when, and what is told to other nodes, is the engine's and the machine's business.

mod input;
mod lane;
mod lent;
mod opening;
#[cfg(test)]
mod tests;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use collective::machine::{FIRST_POST, GroupId, OpId, Reason, Splits, WORLD};
use wire::attach::{self, Channel, Members, Standing, ToClient, ToSidecar};
use wire::block::Block;
use wire::client::NO_SEGMENT;
use wire::entry::{Completion, FailureKind, Malformed, Outcome, Submission};
use wire::home::Home;
use wire::ring::{
    self, Bed, Bell, COMPLETION_WORDS, Consumer, Corrupt, Depth, Producer, PushError,
    SUBMISSION_WORDS, Sleep,
};
use wire::segment;

pub use lane::Lane;

use crate::memory::Input;
use crate::pool::ResultBlock;
use input::Brought;
use told::Telling;

/// Messages of one process answered at a time; the others get their turn before the rest.
const MESSAGE_BUDGET: usize = 16;
/// How long a process looks for the next sidecar where operations wait for one, in seconds: some restarts of the
/// kubelet, and time for the others to go on without this node.
const PATIENCE_SECONDS: u32 = 60;

/// Why a process is let go.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It ended, or its socket broke.
    #[error(transparent)]
    Socket(#[from] attach::Error),
    /// It broke its ring.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// It wrote what is no entry.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// There is no memory for its rings.
    #[error(transparent)]
    Segment(#[from] segment::Error),
    /// There are no descriptors for its bell.
    #[error("failed to create a bell")]
    Bell(#[source] std::io::Error),
    /// It calls more than it may have in flight.
    #[error("it has more than {} operations in flight", ring::CAPACITY)]
    TooMany,
    /// It uses a ticket twice, or gives back what it does not hold.
    #[error("ticket {0} is not what it says")]
    Ticket(u64),
    /// It lends what it may not.
    #[error(
        "it lends a segment although this sidecar has forgotten nothing, or after it has called"
    )]
    Lends,
    /// It tells of groups out of turn.
    #[error(
        "it tells of a group although this sidecar has forgotten none, or has not told of all before it calls"
    )]
    Tells,
    /// It calls in a group that it has not opened, or has closed.
    #[error("it calls in group {0:x}, which it has not opened or has closed")]
    Group(GroupId),
    /// It attaches again over the same socket.
    #[error("it attached twice over one socket")]
    Twice,
}

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

/// Where a process begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// It has called nothing yet.
    Afresh,
    /// It was attached to a sidecar before this one.
    Again {
        /// It was told the ends of all operations before this.
        told: OpId,
        /// How many other groups it has opened.
        groups: u32,
    },
}

impl Begin {
    /// The operation that it calls first.
    pub fn first(self) -> OpId {
        match self {
            Self::Afresh => 0,
            Self::Again { told, .. } => told,
        }
    }
}

/// What the socket brought.
#[derive(Debug)]
pub enum Heard {
    /// Nothing that concerns others.
    Nothing,
    /// The process leaves in good order.
    Detached,
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

/// An attached process.
#[derive(Debug)]
pub struct Session {
    channel: Channel,
    standing: Standing,
    calls: Consumer<SUBMISSION_WORDS>,
    outcomes: Producer<COMPLETION_WORDS>,
    /// Between the process and the engine; polled by the engine.
    pub bell: Bell,
    inputs: BTreeMap<u32, Arc<Block>>,
    /// Whether it may lend what an earlier sidecar has made for it.
    may_lend: bool,
    telling: Telling,
    next_segment: u32,
    limit_bytes: usize,
    home: Home,
    known_results: BTreeSet<u32>,
    begin: Begin,
    /// Its groups: those that it has opened, and the world.
    lanes: BTreeMap<GroupId, Lane>,
    /// Groups that are over, which it was not told yet.
    over: Vec<GroupId>,
    /// Calls of all groups, and openings, that are not answered.
    unanswered: usize,
    /// What it was told that left it something to give back; none where that was nothing.
    held: BTreeMap<u64, Option<(GroupId, OpId)>>,
}

impl Session {
    /// Welcomes a process; it may be lent `limit_bytes` of input segments, which lie in `home`. `lasts`: another sidecar would go on with
    /// what it has called.
    pub fn welcome(
        channel: Channel,
        standing: Standing,
        (limit_bytes, home): (usize, Home),
        begin: Begin,
        lasts: bool,
    ) -> Result<Self, Error> {
        let control = Arc::new(ring::control()?);
        let (calls, outcomes) = ring::server_ends(&control);
        let (bell, clients_end) = Bell::pair().map_err(Error::Bell)?;
        let welcome = ToClient::Welcome {
            control_bytes: control.len() as u64,
            standing,
            patience_seconds: if lasts { PATIENCE_SECONDS } else { 0 },
        };
        let fds = [control.fd(), clients_end.as_fd()];
        channel.send(&welcome, &fds)?;
        Ok(Self {
            channel,
            standing,
            calls,
            outcomes,
            bell,
            inputs: BTreeMap::new(),
            may_lend: begin != Begin::Afresh,
            telling: Telling::of(begin),
            next_segment: 0,
            limit_bytes,
            home,
            known_results: BTreeSet::new(),
            begin,
            lanes: BTreeMap::from([(
                WORLD,
                Lane {
                    next_op: begin.first(),
                    ..Lane::new(Vec::new(), standing.rank, standing.world)
                },
            )]),
            over: Vec::new(),
            unanswered: 0,
            held: BTreeMap::new(),
        })
    }

    /// The socket, for polling.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Where the process stands.
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Answers what came over the socket, or as much of it as one process may ask at a time.
    pub fn hear(&mut self) -> Result<Heard, Error> {
        for _ in 0..MESSAGE_BUDGET {
            // From anybody else descriptors are not taken: the kernel closes them.
            let received = if self.may_lend {
                self.channel.receive_with_fds::<ToSidecar>()?
            } else {
                let received = self.channel.receive::<ToSidecar>()?;
                received.map(|message| (message, Vec::new()))
            };
            let Some((message, fds)) = received else {
                break;
            };
            match message {
                ToSidecar::Attach { .. } => return Err(Error::Twice),
                ToSidecar::Detach => return Ok(Heard::Detached),
                ToSidecar::Ranks { .. } | ToSidecar::Group(_) if self.has_told_all() => {
                    return Err(Error::Tells);
                }
                ToSidecar::Ranks { ranks } => {
                    let noted = self.note_ranks(&ranks);
                    self.answer(ToClient::Noted, noted)?;
                }
                ToSidecar::Group(said) => {
                    let noted = self.note_group(&said);
                    self.answer(ToClient::Noted, noted)?;
                }
                ToSidecar::Lend { .. } if !self.may_lend => return Err(Error::Lends),
                ToSidecar::Lend { segment, bytes } => {
                    let taken = self.take_back(segment, bytes, fds);
                    self.answer(ToClient::Taken { segment }, taken)?;
                }
                ToSidecar::Allocate { bytes } => match self.lend(bytes) {
                    Ok((segment, lent)) => {
                        let bytes = lent.segment().len() as u64;
                        let message = ToClient::Input { segment, bytes };
                        self.say(&message, &[lent.segment().fd()])?;
                    }
                    Err(reason) => self.say(&ToClient::Refused { reason }, &[])?,
                },
                // An operation in flight keeps its segment alive by itself.
                ToSidecar::Free { segment } => drop(self.inputs.remove(&segment)),
            }
        }
        Ok(Heard::Nothing)
    }

    /// Tells the members of an epoch.
    pub fn tell_members(&self, members: Members) -> Result<(), Error> {
        self.say(&ToClient::Members(members), &[])
    }

    fn answer(&self, done: ToClient, outcome: Result<(), String>) -> Result<(), Error> {
        match outcome {
            Ok(()) => self.say(&done, &[]),
            Err(reason) => self.say(&ToClient::Refused { reason }, &[]),
        }
    }

    /// Sends a message. That the process is gone is no error here: whether it left or was lost stands in what it has
    /// sent, which is read to its end.
    fn say(&self, message: &ToClient, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        match self.channel.send(message, fds) {
            Ok(()) | Err(attach::Error::Closed) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

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

    /// One of its groups.
    pub fn lane(&self, group: GroupId) -> Option<&Lane> {
        self.lanes.get(&group)
    }

    /// The same, to be changed.
    pub fn lane_mut(&mut self, group: GroupId) -> Option<&mut Lane> {
        self.lanes.get_mut(&group)
    }

    /// The numbers of its groups, the world first.
    pub fn groups(&self) -> Vec<GroupId> {
        self.lanes.keys().copied().collect()
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

    /// How an operation that is not over is divided.
    pub fn splits(&self, group: GroupId, op: OpId) -> Option<Splits> {
        self.lanes.get(&group)?.splits.get(&op).cloned()
    }

    /// An operation is over: what was called.
    pub fn ended(&mut self, group: GroupId, op: OpId) -> Option<Called> {
        let lane = self.lanes.get_mut(&group)?;
        // Where a group has failed, ends say nothing of how far the others are.
        if op < FIRST_POST && lane.dead.is_none() {
            lane.told = lane.told.max(op + 1);
        }
        lane.splits.remove(&op);
        lane.in_flight.remove(&op)
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
                    // From here on it is not for neighbours that have not written to it.
                    result.block.segment().seal()?;
                    let message = ToClient::Result {
                        segment: result.number,
                        bytes: result.block.segment().len() as u64,
                    };
                    self.say(&message, &[result.block.segment().fd()])?;
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

    fn complete(&mut self, ticket: u64, outcome: Outcome) -> Result<(), Error> {
        self.unanswered = self.unanswered.saturating_sub(1);
        match self.outcomes.push(&Completion { ticket, outcome }.encode()) {
            Ok(true) => self.bell.ring(),
            Ok(false) => {}
            Err(PushError::Full) => return Err(Error::TooMany),
            Err(PushError::Corrupt(corrupt)) => return Err(corrupt.into()),
        }
        Ok(())
    }

    /// A segment of results is gone.
    pub fn forget(&mut self, number: u32) -> Result<(), Error> {
        if self.known_results.remove(&number) {
            self.say(&ToClient::Gone { segment: number }, &[])?;
        }
        Ok(())
    }

    /// Operations whose results the process holds.
    pub fn holds(&self) -> impl Iterator<Item = (GroupId, OpId)> {
        self.held.values().copied().flatten()
    }

    /// Whether its ring holds something; one that has broken its ring is found out when it is read.
    pub fn has_entry(&self) -> bool {
        self.calls.has_entry().unwrap_or(true)
    }

    /// Announces that the engine is about to sleep. False: there is an entry, do not.
    pub fn sleep(&self, how: Sleep, depth: Depth) -> Result<bool, Error> {
        Ok(self.calls.sleep(how, depth)?)
    }

    /// Where the engine sleeps until the process calls.
    pub fn bed(&self) -> Bed {
        self.calls.bed()
    }

    /// Announces that the engine looks at the ring again.
    pub fn awake(&self) {
        self.calls.awake();
    }
}
