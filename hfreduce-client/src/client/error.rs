//! Why something a client asked for did not happen, in words for whoever runs the training script.

use std::time::Duration;

use super::connect::is_absence;
use super::{IN_FLIGHT_LIMIT, MESSAGE_LIMIT};
use crate::attach;
use crate::cuda;
use crate::entry::{FailureKind, MalformedEntry};
use crate::{Call, OpKind};
use link::ring::Corrupt;
use link::segment;

/// Why an operation or a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket is not there or broke.
    #[error(transparent)]
    Socket(#[from] attach::Error),
    /// A segment could not be mapped.
    #[error(transparent)]
    Segment(#[from] segment::Error),
    /// The sidecar will not have this process, or has no segment for it.
    #[error("failed to {request}: the sidecar refused: {reason}")]
    Refused {
        /// What was asked.
        request: &'static str,
        /// Why not.
        reason: String,
    },
    /// The sidecar answered something else than was asked.
    #[error("failed to {request}: the sidecar sent an unexpected answer")]
    Unexpected {
        /// What was asked.
        request: &'static str,
    },
    /// The operation failed, on every rank alike if others had joined it.
    #[error("{call} failed: {text}")]
    Operation {
        /// The operation.
        call: Call,
        /// Whether the next one can run.
        kind: FailureKind,
        /// Why, naming who has to be looked at.
        text: String,
    },
    /// A group was not opened, on all its ranks alike.
    #[error("failed to open a group of {ranks} ranks: {text}")]
    Group {
        /// How many this process has asked for.
        ranks: usize,
        /// Whether ranks mean different groups.
        kind: FailureKind,
        /// Why, naming who has to be looked at.
        text: String,
    },
    /// A group was not opened so far.
    #[error(
        "failed to open a group of {ranks} ranks: timed out after {waited:?}, one of them has not opened it"
    )]
    GroupTimeout {
        /// How many it has.
        ranks: usize,
        /// How long was waited.
        waited: Duration,
    },
    /// The sidecar is gone.
    #[error("the hfreduce sidecar of this node is gone: {why}")]
    SidecarLost {
        /// How it was noticed.
        why: String,
    },
    /// The operation is not finished; it goes on and can be waited for again.
    #[error("{call} timed out after {waited:?}: {why}")]
    Timeout {
        /// The operation.
        call: Call,
        /// How long was waited.
        waited: Duration,
        /// Whom it waits for, as far as is known.
        why: String,
    },
    /// As many calls of its kind are in flight as may be, and none ends.
    #[error(
        "failed to call {call}: timed out after {waited:?}, {}",
        in_flight(call)
    )]
    Busy {
        /// The operation.
        call: Call,
        /// How long was waited.
        waited: Duration,
    },
    /// No answer from the sidecar.
    #[error("failed to {request}: timed out, no answer from the sidecar after {waited:?}")]
    NoAnswer {
        /// What was asked.
        request: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// The input is too small for the call.
    #[error("failed to call {call}: it reads {needed} bytes, the buffer has {given}")]
    Input {
        /// The operation.
        call: Call,
        /// Bytes it reads.
        needed: usize,
        /// Bytes there are.
        given: usize,
    },
    /// The ticket was never given, or its output was taken already.
    #[error("failed to wait for ticket {0}: it is not in flight")]
    UnknownTicket(u64),
    /// The GPU.
    #[error(transparent)]
    Gpu(#[from] cuda::Error),
    /// The process forked.
    #[error(
        "failed to use the hfreduce client in process {child}: it belongs to process {owner}; \
         attach again after fork, or start workers with `spawn`"
    )]
    Forked {
        /// The process that attached.
        owner: u32,
        /// This process.
        child: u32,
    },
}

/// What is said of an operation as long as nobody knows whom it waits for.
pub(super) const LATE: &str = "a rank has not called it, or is slow";

impl Error {
    /// Whether it only says that the time given was too short: the same may be tried again, and goes on where it was.
    pub fn is_late(&self) -> bool {
        self.waited().is_some() || is_absence(self)
    }

    /// The same error at the end of several attempts that have taken so long together.
    #[must_use]
    pub fn after(mut self, all: Duration) -> Self {
        if let Self::Timeout { waited, .. }
        | Self::GroupTimeout { waited, .. }
        | Self::Busy { waited, .. }
        | Self::NoAnswer { waited, .. } = &mut self
        {
            *waited = all;
        }
        self
    }

    /// The same error of an operation that waits for somebody.
    #[must_use]
    pub fn because(mut self, whom: String) -> Self {
        if let Self::Timeout { why, .. } = &mut self
            && !whom.is_empty()
        {
            *why = whom;
        }
        self
    }

    fn waited(&self) -> Option<Duration> {
        if let Self::Timeout { waited, .. }
        | Self::GroupTimeout { waited, .. }
        | Self::Busy { waited, .. }
        | Self::NoAnswer { waited, .. } = self
        {
            return Some(*waited);
        }
        None
    }
}

/// What is in flight where a call finds no room, and what to do.
fn in_flight(call: &Call) -> String {
    match call.kind {
        OpKind::Send { .. } => format!(
            "{MESSAGE_LIMIT} messages that this process sends are in flight; wait for some, and see whether their \
             receivers have called"
        ),
        OpKind::Receive { .. } => format!(
            "{MESSAGE_LIMIT} messages that this process receives are in flight; wait for some, and see whether \
             their senders have called"
        ),
        OpKind::AllReduce { .. }
        | OpKind::Reduce { .. }
        | OpKind::Broadcast { .. }
        | OpKind::AllGather
        | OpKind::ReduceScatter { .. }
        | OpKind::Gather { .. }
        | OpKind::Scatter { .. }
        | OpKind::AllToAll { .. }
        | OpKind::Barrier
        | OpKind::Close => {
            format!("{IN_FLIGHT_LIMIT} operations of this process are in flight; wait for some")
        }
    }
}

impl From<Corrupt> for Error {
    fn from(corrupt: Corrupt) -> Self {
        Self::SidecarLost {
            why: corrupt.to_string(),
        }
    }
}

impl From<MalformedEntry> for Error {
    fn from(malformed: MalformedEntry) -> Self {
        Self::SidecarLost {
            why: malformed.to_string(),
        }
    }
}
