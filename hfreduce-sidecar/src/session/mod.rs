//! One trainer process attached to this sidecar: its socket, rings, input segments and tickets. The
//! process is not trusted: everything it names is looked up in tables of this side. Which operation runs
//! when, and what is sent to other nodes, is the engine's and the machine's business.

mod calls;
mod input;
mod inputs;
mod opening;
mod restoring;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use collective::machine::{GroupId, OpId};
use hfreduce_client::attach::{
    self, AttachChannel, ClientMessage, Members, SidecarAnswer, Standing,
};
use hfreduce_client::entry::MalformedEntry;
use link::block::Block;
use link::ring::{
    self, COMPLETION_WORDS, Consumer, Corrupt, Producer, SUBMISSION_WORDS, WaitOn, WaitSlot,
    WakeFor,
};
use link::segment;
use link::wake_fd::WakeFd;

use crate::background::Background;
pub use calls::{PendingCall, Taken};
pub use inputs::Room;

use inputs::Request;
use restoring::Restoring;

/// Messages of one process answered at a time; the others get their turn before the rest.
const MESSAGE_BUDGET: usize = 16;
/// How long a process looks for the next sidecar where operations wait for one, in seconds: some restarts of the
/// kubelet, and time for the others to go on without this node.
const PATIENCE_SECONDS: u32 = 60;

/// What all processes of the node have called.
pub type Ranks = collective::session::Sessions<PendingCall>;

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
    Malformed(#[from] MalformedEntry),
    /// There is no memory for its rings.
    #[error(transparent)]
    Segment(#[from] segment::Error),
    /// The process has no descriptors left for its wake descriptor.
    #[error("failed to create a wake descriptor")]
    WakeFd(#[source] std::io::Error),
    /// It calls more than it may have in flight.
    #[error("it has more than {} operations in flight", ring::COMPLETION_CAPACITY)]
    TooMany,
    /// It gives nothing back.
    #[error("it holds the results of more operations than it may: it has to give them back")]
    HoldsTooMany,
    /// It uses a ticket twice, or gives back what it does not hold.
    #[error("ticket {0} is not what it says")]
    Ticket(u64),
    /// It offers a segment that it may not.
    #[error(
        "it registers a segment again although this sidecar has lost nothing, or after it has called"
    )]
    RestoresSegment,
    /// It reports groups out of turn.
    #[error(
        "it reopens a group although this sidecar has lost none, or calls before it has reopened all"
    )]
    RestoresGroup,
    /// It calls in a group that it has not opened, or has closed.
    #[error("it calls in group {0:x}, which it has not opened or has closed")]
    Group(GroupId),
    /// It asks for segments faster than they can be made.
    #[error(
        "it has asked for {} segments, and goes on before it is answered",
        inputs::REQUEST_LIMIT
    )]
    AsksTooMuch,
    /// It attaches again over the same socket.
    #[error("it attached twice over one socket")]
    Twice,
}

/// Where a process begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// It has called nothing yet.
    Afresh,
    /// It was attached to a sidecar before this one.
    Again {
        /// The first operation whose outcome was not delivered to it.
        delivered: OpId,
        /// How many other groups it has opened.
        groups: u32,
    },
}

impl Begin {
    /// How far outcomes were delivered to it in the world, if it was attached before.
    pub fn delivered(self) -> Option<OpId> {
        match self {
            Self::Afresh => None,
            Self::Again { delivered, .. } => Some(delivered),
        }
    }
}

/// What the socket brought.
#[derive(Debug)]
pub enum SessionEvent {
    /// Nothing that concerns others.
    Nothing,
    /// The process wants to know whom the oldest operation waits for that it has called in a group.
    Asks {
        /// The number of the group.
        group: GroupId,
    },
    /// The process leaves in good order.
    Detached,
}

/// An attached process.
#[derive(Debug)]
pub struct Session {
    channel: AttachChannel,
    standing: Standing,
    calls: Consumer<SUBMISSION_WORDS>,
    outcomes: Producer<COMPLETION_WORDS>,
    /// Between the process and the engine; polled by the engine.
    pub wake_fd: WakeFd,
    inputs: BTreeMap<u32, Arc<Block>>,
    /// Whether it may offer segments that an earlier sidecar has made for it.
    may_restore: bool,
    restoring: Restoring,
    next_segment: u32,
    room: Room,
    /// What it has asked for, in the order of the answers.
    requests: VecDeque<Request>,
    known_results: BTreeSet<u32>,
    /// Calls of all groups, and openings, that are not answered.
    unanswered: usize,
    /// Outcomes that were delivered and not released yet; none where nothing is to be released.
    held: BTreeMap<u64, Option<(GroupId, OpId)>>,
}

impl Session {
    /// Attaches a process, which gets at most as much memory as there is `room` for. `lasts`: another sidecar would go on
    /// with what it has called.
    pub fn attach(
        channel: AttachChannel,
        standing: Standing,
        room: Room,
        begin: Begin,
        lasts: bool,
    ) -> Result<Self, Error> {
        let control = Arc::new(ring::control()?);
        let (calls, outcomes) = ring::server_ends(&control);
        let (wake_fd, clients_end) = WakeFd::pair().map_err(Error::WakeFd)?;
        let attachment = SidecarAnswer::Attached {
            control_bytes: control.len() as u64,
            standing,
            patience_seconds: if lasts { PATIENCE_SECONDS } else { 0 },
        };
        let fds = [control.fd(), clients_end.as_fd()];
        channel.send(&attachment, &fds)?;
        Ok(Self {
            channel,
            standing,
            calls,
            outcomes,
            wake_fd,
            inputs: BTreeMap::new(),
            may_restore: begin != Begin::Afresh,
            restoring: Restoring::of(begin),
            next_segment: 0,
            room,
            requests: VecDeque::new(),
            known_results: BTreeSet::new(),
            unanswered: 0,
            held: BTreeMap::new(),
        })
    }

    /// The socket, for polling.
    pub fn channel(&self) -> &AttachChannel {
        &self.channel
    }

    /// Its number among the ranks of this node.
    fn rank(&self) -> usize {
        self.standing.local_rank as usize
    }

    /// Answers what came over the socket, or as much of it as one process may ask at a time.
    pub fn read_socket(
        &mut self,
        ranks: &mut Ranks,
        background: &mut Background,
    ) -> Result<SessionEvent, Error> {
        for _ in 0..MESSAGE_BUDGET {
            // From anybody else descriptors are not taken: the kernel closes them.
            let received = if self.may_restore {
                self.channel.receive_with_fds::<ClientMessage>()?
            } else {
                let received = self.channel.receive::<ClientMessage>()?;
                received.map(|message| (message, Vec::new()))
            };
            let Some((message, fds)) = received else {
                break;
            };
            match message {
                ClientMessage::Attach { .. } => return Err(Error::Twice),
                ClientMessage::Whom { group } => return Ok(SessionEvent::Asks { group }),
                ClientMessage::Detach => return Ok(SessionEvent::Detached),
                ClientMessage::Ranks { .. } | ClientMessage::Group(_) if self.is_restored() => {
                    return Err(Error::RestoresGroup);
                }
                ClientMessage::Ranks { ranks: listed } => {
                    let noted = self.note_ranks(&listed);
                    self.answer(SidecarAnswer::Noted, noted)?;
                }
                ClientMessage::Group(said) => {
                    let noted = self.note_group(ranks, &said);
                    self.answer(SidecarAnswer::Noted, noted)?;
                }
                ClientMessage::RestoreSegment { .. } if !self.may_restore => {
                    return Err(Error::RestoresSegment);
                }
                ClientMessage::RestoreSegment { segment, bytes } => {
                    self.take_back(segment, bytes, fds, background)?;
                }
                ClientMessage::Allocate { bytes } => self.send_segment(bytes, background)?,
                // An operation in flight keeps its segment alive by itself.
                ClientMessage::Free { segment } => {
                    if let Some(freed) = self.inputs.remove(&segment) {
                        freed.release_at_end();
                        background.drop_there(freed);
                    }
                }
            }
        }
        Ok(SessionEvent::Nothing)
    }

    /// Its registered segments. An operation in flight keeps its own by itself.
    pub fn take_inputs(&mut self) -> impl Send + use<> {
        std::mem::take(&mut self.inputs)
    }

    /// Sends the members of an epoch.
    pub fn send_members(&self, members: Members) -> Result<(), Error> {
        self.say(&SidecarAnswer::Members(members), &[])
    }

    /// Says whom an operation waits for.
    pub fn send_whom(&self, whom: String) -> Result<(), Error> {
        self.say(&SidecarAnswer::Waits { whom }, &[])
    }

    fn answer(&self, done: SidecarAnswer, outcome: Result<(), String>) -> Result<(), Error> {
        match outcome {
            Ok(()) => self.say(&done, &[]),
            Err(reason) => self.say(&SidecarAnswer::Refused { reason }, &[]),
        }
    }

    /// Sends a message. That the process is gone is no error here: whether it left or was lost stands in what it has
    /// sent, which is read to its end.
    fn say(&self, message: &SidecarAnswer, fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        match self.channel.send(message, fds) {
            Ok(()) | Err(attach::Error::Closed) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// A segment of results is gone.
    pub fn forget(&mut self, number: u32) -> Result<(), Error> {
        if self.known_results.remove(&number) {
            self.say(&SidecarAnswer::Gone { segment: number }, &[])?;
        }
        Ok(())
    }

    /// Whether its ring holds something; one that has broken its ring is found out when it is read.
    pub fn has_entry(&self) -> bool {
        self.calls.has_entry().unwrap_or(true)
    }

    /// Announces that the engine is about to sleep. False: there is an entry, do not.
    pub fn sleep(&self, how: WaitOn, depth: WakeFor) -> Result<bool, Error> {
        Ok(self.calls.sleep(how, depth)?)
    }

    /// Where the engine sleeps until the process calls.
    pub fn wait_slot(&self) -> WaitSlot {
        self.calls.wait_slot()
    }

    /// Announces that the engine looks at the ring again.
    pub fn awake(&self) {
        self.calls.awake();
    }
}
