//! Messages from one rank to another. Who receives asks for a message when it has called for it, so bytes travel only
//! when their place is there, and nothing has to be kept for those who come late but the question: the receiver drives,
//! as in the rendezvous of MPI. Who asks whom is in `matching`, sends and receives that are no part of an operation are
//! in `send_recv`, how bytes travel is in `transfer`.

mod matching;
mod message;
mod queues;
mod send_recv;
mod transfer;

use std::collections::{BTreeMap, VecDeque};

use super::cause::Verdict;
use super::io::{Frame, MessageId, OpId, Ticket};
use message::{Incoming, Outgoing, SendRecv};
pub(super) use message::{PairCall, Piece, Transfer};
use queues::{Queues, SendDesc};

/// What has happened to an operation that messages are a part of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A message from or to a rank here is where it belongs.
    Over { op: OpId },
    /// Two ranks do not agree about what one sends the other.
    Mismatch { op: OpId, verdict: Verdict },
}

/// All messages of a group that concern this node.
#[derive(Debug, Default)]
pub(super) struct P2p {
    /// Whether frames may go out: before, others may be ahead, and a link of ours not stand yet.
    is_open: bool,
    /// To be passed on to these nodes then.
    deferred: VecDeque<(usize, Frame)>,
    outgoing: BTreeMap<MessageId, Outgoing>,
    incoming: BTreeMap<MessageId, Incoming>,
    /// Asked for before a rank here has called: at most what may be in flight.
    early: BTreeMap<MessageId, PairCall>,
    requests: Requests,
    queues: Queues,
    /// Calls of ranks here that are no part of an operation.
    calls: BTreeMap<OpId, SendRecv>,
    sequence: Sequence,
    /// Payloads that are being handed over, and how many of them use what belongs to a call or an operation.
    sending: BTreeMap<Ticket, SendDesc>,
    in_use: BTreeMap<OpId, u32>,
    /// Not taken yet.
    events: Vec<Event>,
}

/// Messages of operations that this node asks for: of the own zone, and of others.
#[derive(Debug, Default)]
struct Requests {
    waiting: [VecDeque<MessageId>; 2],
    asked: [usize; 2],
}

/// How many messages were sent and received under a tag: of (from, to, tag).
#[derive(Debug, Default)]
struct Sequence {
    sent: BTreeMap<(u32, u32, u64), u64>,
    received: BTreeMap<(u32, u32, u64), u64>,
}

impl P2p {
    /// The group is open on all its nodes.
    pub(super) fn open(&mut self) {
        self.is_open = true;
    }

    /// What has happened since this was asked last.
    pub(super) fn poll(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Whether a payload on its way uses the input of an operation, or its place.
    pub(super) fn uses(&self, op: OpId) -> bool {
        self.in_use.contains_key(&op)
    }

    /// Whether a rank here waits for a message, or a neighbour for one to be passed on.
    pub(super) fn is_busy(&self) -> bool {
        !self.calls.is_empty() || self.queues.hold_slots()
    }

    fn forget(&mut self) {
        self.incoming.clear();
        self.outgoing.clear();
        self.early.clear();
        self.requests.waiting = Default::default();
        self.deferred.clear();
        self.queues.clear();
    }
}
