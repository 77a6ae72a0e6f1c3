//! What goes into the machine and what comes out: inputs, effects, frames and the buffers they speak of.
//! No bytes pass here. The shell owns the memory; the machine says which range goes where.

use std::time::Duration;

use super::cause::{Broken, Cause, Reason, Verdict};
use super::dispute::{Claimed, Dispute, OpenError};
use crate::numerics::Arithmetic;
use crate::op::Call;
use crate::recovery::EpochReport;

/// An operation: the k-th call of every rank of the group is operation k, counted from 0 in the attempt.
pub type OpId = u64;

/// A group of ranks with an order of operations of its own. The number is whoever opens it to choose, the same on all
/// its ranks and used for one group of the attempt; 0 is the world.
pub type GroupId = u64;

/// The group of all ranks.
pub const WORLD: GroupId = 0;

/// Names one piece of work given to the shell, until the shell reports it with [`Input::Done`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// What fences frames: those of another attempt or epoch are dropped and counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence {
    /// The run of the job.
    pub attempt: u32,
    /// The membership within the attempt.
    pub epoch: u32,
}

/// Memory of this node, as the machine knows it. `peer` is a node rank, `rank` a local rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Buffer {
    /// What a local rank brought to an operation: [`Call::input_bytes`]. Only ever read.
    Input {
        group: GroupId,
        op: OpId,
        rank: usize,
    },
    /// The node's result of an operation: [`Call::result_bytes`], on every node and for every kind.
    Result { group: GroupId, op: OpId },
    /// A slot of `chunk_bytes` that a child fills in one tree; [`super::Config::slots`] of them.
    Receive {
        group: GroupId,
        peer: usize,
        tree: u8,
        slot: u8,
    },
    /// A slot of `chunk_bytes` staged for the parent in one tree; [`super::Config::slots`] of them.
    Send { group: GroupId, tree: u8, slot: u8 },
    /// What a local rank gets from an operation that nobody else gets: [`Call::own_bytes`], or the parts that others
    /// have for it.
    Own {
        group: GroupId,
        op: OpId,
        rank: usize,
    },
}

impl Buffer {
    /// The group that it belongs to.
    #[must_use]
    pub const fn group(&self) -> GroupId {
        let (Self::Input { group, .. }
        | Self::Result { group, .. }
        | Self::Own { group, .. }
        | Self::Receive { group, .. }
        | Self::Send { group, .. }) = *self;
        group
    }
}

/// In the place of a tree: what is passed on between nodes that have no link to each other. Its slots are the receiver's.
pub const FORWARDING: u8 = 2;
/// In the place of a slot: the frame's payload has arrived where it is meant for, or it has none.
pub const NO_SLOT: u8 = u8::MAX;
/// The first operation that is a message between two ranks and has no place in the order of a group. The shell numbers
/// them upwards from here, each once on a node.
pub const FIRST_SEND_RECV: OpId = 1 << 63;

/// Whose bytes for whom: one message from a rank of a group to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    /// The rank that sends, by its number in the group.
    pub from: u32,
    /// The rank that receives.
    pub to: u32,
    /// What it is a part of.
    pub of: Stream,
    /// The operation, or its place among the messages of these two ranks with this tag.
    pub number: u64,
}

/// What a message is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// An operation of the group.
    Operation,
    /// What two ranks send each other under a tag.
    Tag(u64),
}

/// How many elements a rank has for each rank of its group, and how many each has for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Splits {
    /// To each rank; the parts lie in its input one after another.
    pub send: Vec<u64>,
    /// From each rank; they come to lie in the same way.
    pub receive: Vec<u64>,
}

/// A range of a buffer. `bytes` may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Region {
    /// Which buffer.
    pub buffer: Buffer,
    /// First byte.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}

/// How far a node is: operations below it are final, or delivered to all its ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Watermark {
    /// The first operation that is not final.
    pub completed: OpId,
    /// The first operation whose outcome was not delivered to every rank.
    pub delivered: OpId,
}

/// What goes over a link. `ReduceChunk`, `BroadcastChunk` and `Data` are followed by `bytes` of payload, the others by none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Child to parent: this subtree's part of a chunk, with the call it belongs to. `slot` is the
    /// parent's receive slot, taken until the parent returns it with `Credit`.
    ReduceChunk {
        group: GroupId,
        tree: u8,
        op: OpId,
        chunk: u32,
        slot: u8,
        bytes: u32,
        call: Call,
        rank: u32,
        /// Of the subtree, when this is tree 0.
        watermark: Watermark,
    },
    /// Child to parent in tree 0, instead of the first `ReduceChunk` of an operation: it cannot be carried out.
    Refuse {
        group: GroupId,
        op: OpId,
        verdict: Verdict,
    },
    /// Parent to child: a chunk of the result.
    BroadcastChunk {
        group: GroupId,
        tree: u8,
        op: OpId,
        chunk: u32,
        bytes: u32,
        /// Of all nodes.
        watermark: Watermark,
    },
    /// Parent to child in tree 0, instead of every `BroadcastChunk` of an operation: it failed for all.
    Fail {
        group: GroupId,
        op: OpId,
        verdict: Verdict,
    },
    /// To the node of the rank that sends, passed on: the rank that receives has called, and this is what it expects.
    /// A reason: its node cannot take it.
    ReadyToReceive {
        group: GroupId,
        message: MessageId,
        call: Call,
        refused: Option<Reason>,
    },
    /// To the node of the rank that receives, passed on: so many bytes of a message. `slot` is the next node's, if it has
    /// to pass them on, and is taken until it returns it with `Credit` of [`FORWARDING`].
    Data {
        group: GroupId,
        message: MessageId,
        chunk: u32,
        slot: u8,
        bytes: u32,
    },
    /// The same way, instead of any `Data` of a message between two ranks: the one that sends has called this, which is
    /// something else, or which its node cannot carry out.
    ReceiveRejected {
        group: GroupId,
        message: MessageId,
        call: Call,
        refused: Option<Reason>,
    },
    /// Parent to child, or back to who has handed it over to be passed on: a receive slot is free again.
    Credit { group: GroupId, tree: u8, slot: u8 },
    /// To neighbours in tree 0, passed on once: we have waited long for this operation; who is missing?
    Awaiting { group: GroupId, op: OpId },
    /// To all neighbours, passed on once: the epoch is over.
    Abort { broken: Broken },
    /// Between neighbours in tree 0: how far the child's subtree is, or how far all are.
    Watermark {
        group: GroupId,
        watermark: Watermark,
    },
    /// Nothing to say, still here.
    Heartbeat,
    /// Leaving in good order after ending the first `ended` operations of a group. Said of each group, last of the world.
    Leaving { group: GroupId, ended: u64 },
    /// Towards the root of the world's tree 0, passed on: a rank opens a group, or cannot.
    Open { group: GroupId, claim: Claimed },
    /// From there to all who have opened it, passed on: the group is open, or why it never will be.
    Opened {
        group: GroupId,
        outcome: Result<(), Dispute>,
    },
}

impl Frame {
    /// The open group that it is about; none where it concerns the node.
    #[must_use]
    pub const fn group(&self) -> Option<GroupId> {
        match *self {
            Self::ReduceChunk { group, .. }
            | Self::Refuse { group, .. }
            | Self::BroadcastChunk { group, .. }
            | Self::Fail { group, .. }
            | Self::ReadyToReceive { group, .. }
            | Self::Data { group, .. }
            | Self::ReceiveRejected { group, .. }
            | Self::Credit { group, .. }
            | Self::Awaiting { group, .. }
            | Self::Watermark { group, .. } => Some(group),
            Self::Abort { .. }
            | Self::Heartbeat
            | Self::Leaving { .. }
            | Self::Open { .. }
            | Self::Opened { .. } => None,
        }
    }
}

/// What happened: the shell hands it to the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A local rank made its next call of a group (checked with [`Call::check`]); all of its input may be read.
    Submit {
        group: GroupId,
        rank: usize,
        call: Call,
    },
    /// A local rank made its next call, and this node cannot carry it out. It takes its place like any other and
    /// fails on every rank; its input and result are not touched.
    Refuse {
        group: GroupId,
        rank: usize,
        call: Call,
        reason: Reason,
    },
    /// A local rank made its next call of a group, an all-to-all; all of its input may be read. Its splits have an entry
    /// for each rank.
    Exchange {
        group: GroupId,
        rank: usize,
        call: Call,
        splits: Splits,
    },
    /// A local rank sends or receives a message ([`crate::OpKind::is_between_two`]); all of the input may be read. `op` is
    /// a number from [`FIRST_SEND_RECV`] on. A reason: this node cannot carry it out, and it fails on both ranks.
    SendRecv {
        group: GroupId,
        rank: usize,
        op: OpId,
        call: Call,
        refused: Option<Reason>,
    },
    /// A local rank opens a group of these global ranks, which ascend. `replicated`: its ranks do the same work, so
    /// that some can go on without others. All of them open it alike; the answer is [`Effect::Opened`].
    Open {
        group: GroupId,
        rank: usize,
        ranks: Vec<u32>,
        replicated: bool,
    },
    /// A link that was asked for with [`Effect::Connect`] is established, or one that its other end asked for.
    Linked { peer: usize },
    /// A frame came from a neighbour, its payload (if any) lies where [`super::Machine::place`] said.
    Frame {
        peer: usize,
        fence: Fence,
        frame: Frame,
    },
    /// A `Send` with payload has left its region, or a `Reduce` or `Copy` is finished.
    Done { ticket: Ticket },
    /// The link to a neighbour closed or failed for good.
    PeerLost { peer: usize },
    /// A local rank's process died.
    RankLost { rank: usize },
    /// A local rank closed its session in good order.
    RankLeft { rank: usize },
    /// The membership authority ended the epoch (a new machine serves the next).
    Revoke,
    /// This node's trainers are gone in good order: it leaves (`Leaving` to all peers) when nothing is in
    /// flight any more.
    Leave,
    /// Time passed; due at [`super::Machine::wake_at`].
    Tick,
}

/// What the shell has to do, in this order for effects that concern the same peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send a frame. With a payload, report `ticket` when the region may be overwritten.
    Send {
        peer: usize,
        frame: Frame,
        payload: Option<(Ticket, Region)>,
    },
    /// Combine the sources and behind them the partials, in this order and scaled on the way, into the destination; all
    /// have as many elements. Report `ticket`.
    Reduce {
        ticket: Ticket,
        arithmetic: Arithmetic,
        /// Elements of its type.
        sources: Vec<Region>,
        /// Sums in f32 that other nodes have sent ([`crate::Form::Partial`]).
        partials: Vec<Region>,
        destination: Region,
    },
    /// Copy. Report `ticket`.
    Copy {
        ticket: Ticket,
        source: Region,
        destination: Region,
    },
    /// A local rank's operation is over. After `Ok` the node's result holds the bytes the rank is
    /// entitled to, its input is not read again, and the members of the epoch named there took part. The rank has to
    /// know before anything that follows is carried out: a watermark says so to others.
    End {
        group: GroupId,
        op: OpId,
        rank: usize,
        outcome: Result<u32, Cause>,
    },
    /// Nothing reads the operation's inputs any more. Comes once for each operation that ended, after its `End`s.
    FreeInputs { group: GroupId, op: OpId },
    /// Nothing reads or writes the operation's result any more, and nobody can need it. Comes once for each
    /// operation, after [`Effect::FreeInputs`]. A call made after [`Effect::Broken`] ends at once, uses no buffers
    /// and gets none; and a payload that the shell is still reading in then is the shell's own to finish first.
    Release { group: GroupId, op: OpId },
    /// A group begins on this node: it needs its slots ([`super::Machine::receives`] and
    /// [`super::Machine::sends`]) from here on.
    Begin { group: GroupId },
    /// A link to this node is needed too. Report [`Input::Linked`], or [`Input::PeerLost`].
    Connect { peer: usize },
    /// A group that a local rank has opened is open on all its nodes, and the rank may call operations; or it never will be.
    Opened {
        group: GroupId,
        rank: usize,
        outcome: Result<(), OpenError>,
    },
    /// A group is over on this node and its slots are of no use any more: after [`crate::OpKind::Close`], or where it could not
    /// be opened. Comes after the release of its operations.
    Closed { group: GroupId },
    /// A neighbour has been silent for [`super::Timing::suspect`].
    Suspect { peer: usize, silent: Duration },
    /// A suspect sends again.
    Recovered { peer: usize },
    /// Others have waited [`super::Timing::late`] for these local ranks to call operation `op`.
    /// Nobody is declared dead for it.
    Late {
        group: GroupId,
        op: OpId,
        ranks: Vec<usize>,
    },
    /// The epoch is over on this node; comes once, before the failures of what was in flight.
    Broken { broken: Broken },
    /// After `Broken`, where operations wait ([`topology::OnPeerLoss::Shrink`]): how far this node is. Nothing ends and
    /// nothing is released any more. The shell keeps calls, inputs and results for the machine of the next epoch,
    /// which takes over when [`super::Machine::is_idle`].
    Stopped { report: EpochReport },
}

impl Effect {
    /// The group that it is for; none where it concerns the node.
    #[must_use]
    pub const fn group(&self) -> Option<GroupId> {
        match *self {
            Self::Send { ref frame, .. } => frame.group(),
            Self::Reduce { destination, .. } | Self::Copy { destination, .. } => {
                Some(destination.buffer.group())
            }
            Self::End { group, .. }
            | Self::FreeInputs { group, .. }
            | Self::Release { group, .. }
            | Self::Begin { group }
            | Self::Opened { group, .. }
            | Self::Closed { group }
            | Self::Late { group, .. } => Some(group),
            Self::Connect { .. }
            | Self::Suspect { .. }
            | Self::Recovered { .. }
            | Self::Broken { .. }
            | Self::Stopped { .. } => None,
        }
    }
}

/// Where the payload of an incoming frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Read it into this region, then hand the frame to the machine.
    Into(Region),
    /// Read and drop it, then hand the frame to the machine all the same.
    Discard,
}
