//! What the rendezvous of an attempt receives, sends and knows. Mirrors the control messages without their encoding.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::survivors::Reach;
use crate::recovery::{EpochReport, Resume};
use topology::Progress;

/// One connection of a sidecar; the shell hands out a new number for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection(pub u64);

/// Where a rank's sidecar is reached by its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address on the network the job uses.
    pub address: IpAddr,
    /// Data port.
    pub port: u16,
}

/// Why a peer is suspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SuspicionReason {
    /// Its link closed without `Leaving`: the epoch is over for those who saw it.
    Dead,
    /// Nothing came from it for so long that it was given up: the epoch is over for those who saw it.
    Silent,
    /// Nothing comes from it, but its connection is up: it may come back.
    Frozen,
}

/// What happened, from the shell. Ranks are node ranks.
#[derive(Clone, Debug, PartialEq)]
pub enum MembershipEvent {
    /// A sidecar introduced itself on a new, authenticated connection.
    Hello {
        connection: Connection,
        rank: u32,
        endpoint: Endpoint,
        /// The epoch it was a member of before this connection.
        joined: Option<u64>,
    },
    /// All its peer links of the epoch stand.
    Joined { connection: Connection, epoch: u64 },
    /// It lives, and perhaps says how far training is.
    Heartbeat {
        connection: Connection,
        progress: Option<Progress>,
        /// Number of operations that its ranks have finished, if any.
        operations: Option<u64>,
    },
    /// It suspects a peer. Repeated on each new connection as long as it holds.
    Suspect {
        connection: Connection,
        epoch: u64,
        rank: u32,
        reason: SuspicionReason,
    },
    /// A frozen peer sends to it again. Not repeated: a new connection says what still holds.
    Recovered {
        connection: Connection,
        epoch: u64,
        rank: u32,
    },
    /// It has stopped in this epoch and in all before, and will not go on in one of them: how far it is, and whom it
    /// reaches. Said again when what it reaches changes, and on each new connection.
    Stopped {
        connection: Connection,
        epoch: u64,
        report: EpochReport,
        reach: Reach,
    },
    /// A process of its trainer is gone. Said again on each new connection.
    RankLost { connection: Connection },
    /// The pod of this rank is gone for good.
    Gone { rank: u32 },
    /// The rank has ended well, whether this leader has heard of it or not: nobody waits for it.
    Completed { rank: u32 },
    /// The store has taken the commit of this epoch.
    Committed { epoch: u64 },
    /// The store has not taken the commit at hand. What it holds, if that is known.
    CommitFailed { current: Option<Commit> },
    /// It leaves in good order.
    Leaving { connection: Connection },
    /// The connection is gone.
    Disconnected { connection: Connection },
    /// Time passed; due at [`super::Membership::wake_at`].
    Tick,
}

/// An epoch as it is written down, before anybody goes on in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The epoch.
    pub epoch: u64,
    /// Its members, ascending.
    pub members: Vec<u32>,
    /// What it begins with; empty for the first.
    pub resume: Resume,
}

/// What the shell says to a sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipMessage {
    /// Everybody's endpoint in rank order: connect along the trees. A later one replaces an earlier one.
    Roster {
        epoch: u64,
        endpoints: Vec<Endpoint>,
    },
    /// Stop in this epoch and all before, and report; the members that are known, for one that has lost its memory.
    /// A later one replaces an earlier one.
    Revoke {
        epoch: u64,
        members: Vec<(u32, Endpoint)>,
    },
    /// The members of the next epoch and what it begins with: connect along its trees. A later one replaces an
    /// earlier one; the same may come again.
    Next {
        epoch: u64,
        members: Vec<(u32, Endpoint)>,
        resume: Resume,
    },
    /// Everybody has joined. May come again after a reconnection.
    Go { epoch: u64 },
    /// Not wanted; the connection is closed afterwards.
    Refused(HelloRefusal),
}

/// Why a sidecar is not wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloRefusal {
    /// No such member.
    #[error("rank {rank} is not a member: the attempt has {nodes} nodes")]
    Rank { rank: u32, nodes: u32 },
    /// Its epoch is over.
    #[error("epoch {theirs} is over, the members are in epoch {ours}")]
    Epoch { theirs: u64, ours: u64 },
    /// The others have gone on without it.
    #[error("rank {rank} was lost: the members have gone on without it in epoch {epoch}")]
    Out { rank: u32, epoch: u64 },
    /// The same rank speaks on another connection: this one may try again when that has fallen silent.
    #[error("rank {rank} is connected already and sent a heartbeat a moment ago")]
    Connected { rank: u32 },
    /// The same rank has connected again.
    #[error("rank {rank} has connected again")]
    Replaced { rank: u32 },
    /// The attempt cannot go on.
    #[error("the gang is broken: {0}")]
    Broken(Break),
}

/// What the shell has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipEffect {
    /// Send a message; after [`MembershipMessage::Refused`] close the connection. Of what goes to many there is one.
    Send {
        connection: Connection,
        message: Arc<MembershipMessage>,
    },
    /// Store the commit if the last one in the store is that of epoch `after`, and say how that went.
    Commit { commit: Commit, after: Option<u64> },
    /// Something has changed but the step of the training: plan again.
    Changed,
}

impl MembershipEffect {
    /// One message to one sidecar.
    pub(super) fn send(connection: Connection, message: MembershipMessage) -> Self {
        Self::Send {
            connection,
            message: Arc::new(message),
        }
    }
}

/// Who suspects whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Suspicion {
    /// The suspect.
    pub rank: u32,
    /// Who says so.
    pub by: u32,
    /// What was seen.
    pub reason: SuspicionReason,
}

/// Why the members of an epoch cannot go on together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Break {
    /// A sidecar came back without its memory after it had joined.
    #[error("the sidecar of rank {rank} restarted")]
    Restarted { rank: u32 },
    /// A peer gave it up.
    #[error("rank {rank} was lost (reported by rank {by})")]
    Lost { rank: u32, by: u32 },
    /// Too few are left.
    #[error("{left} nodes are left, fewer than {least}")]
    TooFew { left: u32, least: u32 },
    /// Going on has not helped.
    #[error("{epochs} epochs in a row have ended before the operation they began with")]
    Fruitless { epochs: u32 },
    /// What the survivors would begin with is gone.
    #[error("the result of operation {op} was lost with those who had it")]
    Forgotten { op: u64 },
}

/// How far the rendezvous is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GangPhase {
    /// Waiting for the hello of these ranks.
    Gathering { missing: Vec<u32> },
    /// Everybody is known; waiting for these ranks to join.
    Connecting { missing: Vec<u32> },
    /// Everybody joined: trainers run.
    Running,
    /// The epoch is over; waiting for these ranks to report.
    Stopping { missing: Vec<u32> },
    /// The members of the next epoch are being written down.
    Proposing,
}

/// What the scheduler needs to know of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct GangView {
    /// The epoch.
    pub epoch: u64,
    /// Its members.
    pub members: Vec<u32>,
    /// How far it is.
    pub phase: GangPhase,
    /// Suspicions, ordered by suspect.
    pub suspects: Vec<Suspicion>,
    /// Why it cannot go on, if so. The first reason stays.
    pub broken: Option<Break>,
    /// Ranks that left in good order.
    pub left: Vec<u32>,
    /// Ranks known to this leader that sent nothing for [`super::QUIET`]. A running job tolerates that.
    pub quiet: Vec<u32>,
    /// How far training is.
    pub progress: Progress,
}
