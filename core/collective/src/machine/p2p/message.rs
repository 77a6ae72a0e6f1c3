//! One message from one rank to another, on the side that sends and on the one that receives: what was called for it, its
//! chunks, and which of them have left or come.

use crate::machine::cause::Reason;
use crate::machine::io::{Frame, GroupId, MessageId, OpId};
use crate::op::Call;

/// What a rank has called for a message, and why its node cannot carry that out.
#[derive(Clone, Copy, Debug)]
pub(in crate::machine) struct PairCall {
    pub(in crate::machine) call: Call,
    pub(in crate::machine) refused: Option<Reason>,
}

impl PairCall {
    /// Asks the node of the rank that sends.
    pub(super) const fn ready_to_receive(self, group: GroupId, message: MessageId) -> Frame {
        let Self { call, refused } = self;
        Frame::ReadyToReceive {
            group,
            message,
            call,
            refused,
        }
    }

    /// Reports to the receiving node what the other has called instead.
    pub(super) const fn reject(self, group: GroupId, message: MessageId) -> Frame {
        let Self { call, refused } = self;
        Frame::ReceiveRejected {
            group,
            message,
            call,
            refused,
        }
    }
}

/// What a local rank sends or gets in an operation, and where it lies.
#[derive(Clone, Copy, Debug)]
pub(in crate::machine) struct Transfer {
    pub(in crate::machine) message: MessageId,
    /// The local rank, and where in its input or in what is its own.
    pub(in crate::machine) rank: usize,
    pub(in crate::machine) offset: u64,
    pub(in crate::machine) call: Call,
}

/// One chunk of a message, as a frame names it.
#[derive(Clone, Copy, Debug)]
pub(in crate::machine) struct Piece {
    pub(in crate::machine) message: MessageId,
    pub(in crate::machine) chunk: u32,
    pub(in crate::machine) slot: u8,
    pub(in crate::machine) bytes: u32,
}

impl Piece {
    pub(super) const fn frame(self, group: GroupId) -> Frame {
        let Self {
            message,
            chunk,
            slot,
            bytes,
        } = self;
        Frame::Data {
            group,
            message,
            chunk,
            slot,
            bytes,
        }
    }
}

/// A call of a rank here that is no part of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendRecv {
    /// The local rank.
    pub(super) rank: usize,
    pub(super) call: Call,
    /// Whether its end was delivered.
    pub(super) delivered: bool,
}

/// A message of a rank here.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) op: OpId,
    /// The local rank whose input it lies in, and where.
    pub(super) rank: usize,
    offset: u64,
    bytes: u64,
    pub(super) own: PairCall,
    /// Whether the rank that receives has called, too.
    pub(super) is_wanted: bool,
    /// The next chunk that goes out, of so many; and how many have not left.
    next: u32,
    chunks: u32,
    left: u32,
}

impl Outgoing {
    pub(super) fn new(op: OpId, rank: usize, offset: u64, own: PairCall, chunk_bytes: u32) -> Self {
        let bytes = own.call.input_bytes();
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

    /// The next chunk that goes out and its range in the input.
    pub(super) fn take(&mut self, chunk_bytes: u32) -> (u32, u64, u64) {
        let chunk = self.next;
        self.next += 1;
        let (skipped, bytes) = extent(self.bytes, chunk, chunk_bytes);
        (chunk, self.offset + skipped, bytes)
    }

    /// Whether all chunks are on their way.
    pub(super) const fn is_sent(&self) -> bool {
        self.next == self.chunks
    }

    /// A chunk has left. Says whether it was the last.
    pub(super) const fn left(&mut self) -> bool {
        self.left -= 1;
        self.left == 0
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
    pub(super) fn new(op: OpId, rank: usize, offset: u64, call: Call, chunk_bytes: u32) -> Self {
        let bytes = call.input_bytes();
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
fn extent(bytes: u64, chunk: u32, chunk_bytes: u32) -> (u64, u64) {
    let skipped = u64::from(chunk) * u64::from(chunk_bytes);
    let length = bytes.saturating_sub(skipped).min(u64::from(chunk_bytes));
    (skipped, length)
}
