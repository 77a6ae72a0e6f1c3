//! The frames between sidecars as bytes: a header of one size and, for the three kinds that carry data, that many bytes
//! of payload behind it. Parsing is total, and checks a header whole: magic, version, checksum, every code, and that it
//! says nothing that its kind does not say, so that there is one way to write each frame. What a frame means, and whether
//! its sender may send it now, is decided by [`crate::machine`].

pub use crate::limits::PAYLOAD_LIMIT_BYTES;

mod codes;
mod fields;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;

use crc32c::crc32c;

use crate::machine::{
    Broken, CallRefusal, Claimed, Dispute, Fence, Frame, MessageId, Mismatch, Stream, Verdict,
};
use crate::op::Call;
pub use fields::{CALL_WORDS, call_from_words, call_to_words};
use fields::{Reader, Writer};

/// Bytes of every header: two cache lines, nothing next to a chunk.
pub const HEADER_BYTES: usize = 128;
/// Version of the frames; the handshake's version covers the rest.
pub const VERSION: u8 = 5;

const MAGIC: u32 = u32::from_le_bytes(*b"FFRM");
/// What all frames begin with.
const COMMON_BYTES: usize = 40;
const SUM_BYTES: usize = 4;

/// Why bytes are no header. The link is of no use afterwards: close it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Something else is sent over the link.
    #[error("failed to parse a frame: it does not begin with our magic")]
    Magic,
    /// The sender is older or newer.
    #[error("failed to parse a frame: its version is {0}, this side speaks {VERSION}")]
    Version(u8),
    /// The header was damaged.
    #[error("failed to parse a frame: its checksum does not match")]
    Checksum,
    /// A field holds what it cannot hold.
    #[error("failed to parse a frame: its {0} is out of bounds")]
    Field(&'static str),
}

/// What every header begins with, behind magic and version.
#[derive(Clone, Copy, Default)]
struct Common {
    kind: u8,
    /// Which of the two trees, or [`crate::machine::RELAY`].
    tree: u8,
    slot: u8,
    group: u64,
    /// The operation, or the message by its number among those of its two ranks and tag.
    operation: u64,
    chunk: u32,
    payload: u32,
}

impl Frame {
    /// Bytes of payload that follow.
    #[must_use]
    pub const fn payload_bytes(&self) -> u32 {
        match *self {
            Self::ReduceChunk { bytes, .. }
            | Self::BroadcastChunk { bytes, .. }
            | Self::Data { bytes, .. } => bytes,
            Self::Refuse { .. }
            | Self::Fail { .. }
            | Self::ReadyToReceive { .. }
            | Self::ReceiveRejected { .. }
            | Self::Credit { .. }
            | Self::Awaiting { .. }
            | Self::Abort { .. }
            | Self::Watermark { .. }
            | Self::Heartbeat
            | Self::Leaving { .. }
            | Self::Open { .. }
            | Self::Opened { .. } => 0,
        }
    }
}

/// The header of a frame.
#[must_use]
pub fn encode(fence: Fence, frame: &Frame) -> [u8; HEADER_BYTES] {
    let mut bytes = unsealed(fence, frame);
    let (content, sum) = bytes.split_at_mut(HEADER_BYTES - SUM_BYTES);
    sum.copy_from_slice(&crc32c(content).to_le_bytes());
    bytes
}

/// The same without its checksum.
fn unsealed(fence: Fence, frame: &Frame) -> [u8; HEADER_BYTES] {
    let mut writer = Writer::behind(COMMON_BYTES);
    let common = body(&mut writer, frame);
    let mut writer = writer.back();
    writer.u32(MAGIC);
    writer.put(&[VERSION, common.kind, common.tree, common.slot]);
    writer.u32(fence.attempt);
    writer.u32(fence.epoch);
    writer.u64(common.group);
    writer.u64(common.operation);
    writer.u32(common.chunk);
    writer.u32(common.payload);
    writer.bytes
}

/// Writes what only this kind of frame says. What it says in the fields of all.
fn body(writer: &mut Writer, frame: &Frame) -> Common {
    let of = |kind, group, operation| Common {
        kind,
        group,
        operation,
        ..Common::default()
    };
    match *frame {
        Frame::ReduceChunk {
            group,
            tree,
            op,
            chunk,
            slot,
            bytes,
            ref call,
            rank,
            watermark,
        } => {
            writer.rank(rank);
            writer.call(call);
            writer.watermark(watermark);
            Common {
                tree,
                slot,
                chunk,
                payload: bytes,
                ..of(1, group, op)
            }
        }
        Frame::Refuse {
            group,
            op,
            ref verdict,
        } => {
            let is_mismatch = writer.verdict(verdict);
            of(if is_mismatch { 2 } else { 10 }, group, op)
        }
        Frame::BroadcastChunk {
            group,
            tree,
            op,
            chunk,
            bytes,
            watermark,
        } => {
            writer.watermark(watermark);
            Common {
                tree,
                chunk,
                payload: bytes,
                ..of(3, group, op)
            }
        }
        Frame::Fail {
            group,
            op,
            ref verdict,
        } => {
            let is_mismatch = writer.verdict(verdict);
            of(if is_mismatch { 4 } else { 11 }, group, op)
        }
        Frame::Credit { group, tree, slot } => Common {
            tree,
            slot,
            ..of(5, group, 0)
        },
        Frame::Awaiting { group, op } => of(6, group, op),
        Frame::Abort { ref broken } => of(7, 0, writer.broken(broken)),
        Frame::Heartbeat => of(8, 0, 0),
        Frame::Leaving { group, ended } => of(9, group, ended),
        Frame::Watermark { group, watermark } => {
            writer.watermark(watermark);
            of(12, group, 0)
        }
        Frame::Open { group, ref claim } => {
            writer.opener(&claim.opener);
            writer.u32(claim.present);
            writer.u8(claim.refused.map_or(0, codes::of_open_reason));
            of(13, group, 0)
        }
        Frame::Opened { group, ref outcome } => match outcome {
            Ok(()) => of(14, group, 0),
            Err(Dispute::Mismatch { one, other }) => {
                writer.opener(one);
                writer.opener(other);
                of(15, group, 0)
            }
            Err(Dispute::Refused { opener, reason }) => {
                writer.opener(opener);
                writer.u8(codes::of_open_reason(*reason));
                of(16, group, 0)
            }
        },
        Frame::ReadyToReceive {
            group,
            ref message,
            ref call,
            refused,
        } => {
            writer.message(message);
            writer.call(call);
            writer.u8(refused.map_or(0, codes::of_reason));
            of(17, group, message.number)
        }
        Frame::Data {
            group,
            ref message,
            chunk,
            slot,
            bytes,
        } => {
            writer.message(message);
            Common {
                slot,
                chunk,
                payload: bytes,
                ..of(18, group, message.number)
            }
        }
        Frame::ReceiveRejected {
            group,
            ref message,
            ref call,
            refused,
        } => {
            writer.message(message);
            writer.call(call);
            writer.u8(refused.map_or(0, codes::of_reason));
            of(19, group, message.number)
        }
    }
}

/// The frame that a header stands for.
pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<(Fence, Frame), Error> {
    let mut reader = Reader(bytes);
    if reader.u32() != MAGIC {
        return Err(Error::Magic);
    }
    let [version, kind, tree, slot] = reader.take();
    if version != VERSION {
        return Err(Error::Version(version));
    }
    let (content, sum) = bytes.split_at(HEADER_BYTES - SUM_BYTES);
    if crc32c(content).to_le_bytes() != sum {
        return Err(Error::Checksum);
    }
    let fence = Fence {
        attempt: reader.u32(),
        epoch: reader.u32(),
    };
    let common = Common {
        kind,
        tree,
        slot,
        group: reader.u64(),
        operation: reader.u64(),
        chunk: reader.u32(),
        payload: reader.u32(),
    };
    let frame = parse_body(common, &mut reader)?;
    if frame.payload_bytes() > PAYLOAD_LIMIT_BYTES {
        return Err(Error::Field("payload"));
    }
    if unsealed(fence, &frame)[..HEADER_BYTES - SUM_BYTES] != *content {
        return Err(Error::Field("padding"));
    }
    Ok((fence, frame))
}

fn parse_body(common: Common, reader: &mut Reader<'_>) -> Result<Frame, Error> {
    let Common {
        kind,
        tree,
        slot,
        group,
        operation: op,
        chunk,
        payload: bytes,
    } = common;
    Ok(match kind {
        1 => Frame::ReduceChunk {
            group,
            tree,
            op,
            chunk,
            slot,
            bytes,
            rank: reader.rank()?,
            call: reader.call()?,
            watermark: reader.watermark(),
        },
        2 | 10 => Frame::Refuse {
            group,
            op,
            verdict: reader.verdict(kind == 2)?,
        },
        3 => Frame::BroadcastChunk {
            group,
            tree,
            op,
            chunk,
            bytes,
            watermark: reader.watermark(),
        },
        4 | 11 => Frame::Fail {
            group,
            op,
            verdict: reader.verdict(kind == 4)?,
        },
        5 => Frame::Credit { group, tree, slot },
        6 => Frame::Awaiting { group, op },
        7 => Frame::Abort {
            broken: reader.broken(op)?,
        },
        8 => Frame::Heartbeat,
        9 => Frame::Leaving { group, ended: op },
        12 => Frame::Watermark {
            group,
            watermark: reader.watermark(),
        },
        13 => Frame::Open {
            group,
            claim: Claimed {
                opener: reader.opener(),
                present: reader.u32(),
                refused: reader.unless_zero(codes::open_reason)?,
            },
        },
        14 => Frame::Opened {
            group,
            outcome: Ok(()),
        },
        15 => Frame::Opened {
            group,
            outcome: Err(Dispute::Mismatch {
                one: reader.opener(),
                other: reader.opener(),
            }),
        },
        16 => Frame::Opened {
            group,
            outcome: Err(Dispute::Refused {
                opener: reader.opener(),
                reason: codes::open_reason(reader.u8())?,
            }),
        },
        17 => Frame::ReadyToReceive {
            group,
            message: reader.message(op)?,
            call: reader.call()?,
            refused: reader.unless_zero(codes::reason)?,
        },
        18 => Frame::Data {
            group,
            message: reader.message(op)?,
            chunk,
            slot,
            bytes,
        },
        19 => Frame::ReceiveRejected {
            group,
            message: reader.message(op)?,
            call: reader.call()?,
            refused: reader.unless_zero(codes::reason)?,
        },
        _ => return Err(Error::Field("kind")),
    })
}
