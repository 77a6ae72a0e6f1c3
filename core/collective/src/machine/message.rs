//! One message from one rank to another, on the side that sends and on the one that receives: what was called for it, its
//! chunks, and which of them have left or come.

use super::cause::Reason;
use super::{Frame, GroupId, MessageId, OpId};
use crate::op::Call;

/// What a rank has called for a message, and why its node cannot carry that out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want {
    pub(super) call: Call,
    pub(super) refused: Option<Reason>,
}

impl Want {
    /// Asks the node of the rank that sends.
    pub(super) const fn asked_of_sender(self, group: GroupId, message: MessageId) -> Frame {
        let Self { call, refused } = self;
        Frame::Want {
            group,
            message,
            call,
            refused,
        }
    }

    /// Tells the node of the rank that receives what the other has called instead.
    pub(super) const fn said_to_receiver(self, group: GroupId, message: MessageId) -> Frame {
        let Self { call, refused } = self;
        Frame::Deny {
            group,
            message,
            call,
            refused,
        }
    }
}

/// A message of a rank here.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) op: OpId,
    /// The local rank whose input it lies in, and where.
    pub(super) rank: usize,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) own: Want,
    /// Whether the rank that receives has called, too.
    pub(super) is_wanted: bool,
    /// The next chunk that goes out, of so many; and how many have not left.
    pub(super) next: u32,
    pub(super) chunks: u32,
    pub(super) left: u32,
}

impl Outgoing {
    pub(super) fn new(
        op: OpId,
        rank: usize,
        offset: u64,
        own: Want,
        bytes: u64,
        chunk_bytes: u32,
    ) -> Self {
        let chunks = chunks(bytes, chunk_bytes);
        Self {
            op,
            rank,
            offset,
            bytes,
            own,
            is_wanted: false,
            next: 0,
            chunks,
            left: chunks,
        }
    }
}

/// A message for a rank here.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) op: OpId,
    /// The local rank, and where in what is its own.
    pub(super) rank: usize,
    offset: u64,
    bytes: u64,
    pub(super) call: Call,
    pub(super) asked: bool,
    /// A bit for each chunk that has come, and how many have not.
    came: Vec<u64>,
    left: u32,
}

impl Incoming {
    pub(super) fn new(
        op: OpId,
        rank: usize,
        offset: u64,
        call: Call,
        bytes: u64,
        chunk_bytes: u32,
    ) -> Self {
        let left = chunks(bytes, chunk_bytes);
        Self {
            op,
            rank,
            offset,
            bytes,
            call,
            asked: false,
            came: vec![0; (left as usize).div_ceil(64)],
            left,
        }
    }

    /// The range in what is the rank's own of a chunk that has not come.
    pub(super) fn place(&self, chunk: u32, chunk_bytes: u32) -> Option<(u64, u64)> {
        let (skipped, bytes) = extent(self.bytes, chunk, chunk_bytes);
        let is_new = chunk < chunks(self.bytes, chunk_bytes) && !self.has(chunk);
        is_new.then_some((self.offset + skipped, bytes))
    }

    fn has(&self, chunk: u32) -> bool {
        let word = self.came.get((chunk / 64) as usize);
        word.is_some_and(|word| word & (1 << (chunk % 64)) != 0)
    }

    /// A chunk has come that has not before. Says whether it was the last.
    pub(super) fn take(&mut self, chunk: u32) -> bool {
        if let Some(word) = self.came.get_mut((chunk / 64) as usize) {
            *word |= 1 << (chunk % 64);
        }
        self.left -= 1;
        self.left == 0
    }
}

/// At least one: a message without bytes says that it was sent.
fn chunks(bytes: u64, chunk_bytes: u32) -> u32 {
    bytes.div_ceil(u64::from(chunk_bytes)).max(1) as u32
}

/// The range of a chunk in a message.
pub(super) fn extent(bytes: u64, chunk: u32, chunk_bytes: u32) -> (u64, u64) {
    let skipped = u64::from(chunk) * u64::from(chunk_bytes);
    let length = bytes.saturating_sub(skipped).min(u64::from(chunk_bytes));
    (skipped, length)
}
