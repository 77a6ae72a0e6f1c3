//! Headers of the frames between sidecars. Every frame begins with a header of one size and, for the
//! three kinds that carry data, goes on with that many bytes of payload. A header is checked whole when it
//! is parsed: magic, version, checksum, every code, and that unused fields are zero. What a frame means,
//! and whether its sender may send it now, is decided by `collective::machine`.

mod fields;
#[cfg(test)]
mod tests;

use crc32c::crc32c;

use crate::op::Call;
use fields::{Reader, Writer};

/// Bytes of every header: two cache lines, nothing next to a chunk.
pub const HEADER_BYTES: usize = 128;
/// Largest payload: above the largest chunk that makes sense on any transport.
pub const PAYLOAD_LIMIT_BYTES: u32 = 16 << 20;
/// Version of the frames; the handshake's version covers the rest.
pub const VERSION: u8 = 5;

const MAGIC: u32 = u32::from_le_bytes(*b"FFRM");

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

/// What one rank called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its global rank.
    pub rank: u32,
    /// Its call.
    pub call: Call,
}

/// Why an epoch is over, in codes that the sidecar gives a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What happened.
    pub code: u8,
    /// More about it.
    pub detail: u8,
    /// Whom it is about.
    pub subject: u32,
    /// Who saw it.
    pub by: u32,
}

/// Why an operation fails on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Two ranks called different operations.
    Mismatch { one: Claim, other: Claim },
    /// A rank's call cannot be carried out, for a reason in a code that the sidecar gives a meaning.
    Refusal { claim: Claim, reason: u8 },
}

/// How far somebody is: operations below it are final, or all ranks were told their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The first operation that is not final.
    pub done: u64,
    /// The first operation whose end not every rank was told.
    pub told: u64,
}

/// A rank opens a group: what it says, and what its node adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opener {
    /// Its global rank.
    pub rank: u32,
    /// Ranks of the group.
    pub size: u32,
    /// Of the list of them.
    pub checksum: u64,
}

/// Why a group is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispute {
    /// Two ranks mean different groups.
    Mismatch { one: Opener, other: Opener },
    /// A node cannot take part, for a reason in a code that the sidecar gives a meaning.
    Refused { opener: Opener, reason: u8 },
}

/// A message from one rank of a group to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The rank that sends.
    pub from: u32,
    /// The rank that receives.
    pub to: u32,
    /// Under which tag, if it is not part of an operation of the group.
    pub tag: Option<u64>,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A part of a chunk, to the parent; `claim` is the call it belongs to.
    Up { claim: Claim, mark: Mark },
    /// The operation cannot be carried out, to the parent.
    Refuse { verdict: Verdict },
    /// A chunk of the result, to a child.
    Down { mark: Mark },
    /// The operation failed, to a child.
    Fail { verdict: Verdict },
    /// The rank that receives a message expects this; a reason other than 0 is why its node cannot take it.
    Want {
        message: Message,
        call: Call,
        reason: u8,
    },
    /// A chunk of a message.
    Data { message: Message },
    /// The rank that sends a message has called this; a reason other than 0 is why its node cannot send it.
    Deny {
        message: Message,
        call: Call,
        reason: u8,
    },
    /// A receive slot is free again, to who has filled it.
    Credit,
    /// Your part is missing, to a child.
    Awaiting,
    /// The epoch is over.
    Abort { notice: Notice },
    /// How far the sender's subtree is, to the parent, or all are, to a child.
    Mark { mark: Mark },
    /// Still here.
    Heartbeat,
    /// Leaving in good order; `operation` counts those that ended in the group.
    Bye,
    /// A rank opens the group with so many that are present; a reason other than 0 is why its node cannot take part.
    Open {
        opener: Opener,
        present: u32,
        reason: u8,
    },
    /// The group stands.
    Opened,
    /// The group is not opened.
    Disputed { dispute: Dispute },
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's attempt.
    pub attempt: u32,
    /// The sender's epoch.
    pub epoch: u32,
    /// The group of ranks, 0 for all of them.
    pub group: u64,
    /// The operation, by its number in the group; or the message, by its number among those of its two ranks and tag.
    pub operation: u64,
    /// Which of the two trees, or 2 for what is passed on.
    pub tree: u8,
    /// The receive slot.
    pub slot: u8,
    /// The chunk.
    pub chunk: u32,
    /// Bytes of payload that follow.
    pub payload: u32,
    /// What it is.
    pub body: Body,
}

impl Body {
    const fn code(&self) -> u8 {
        match self {
            Self::Up { .. } => 1,
            Self::Refuse {
                verdict: Verdict::Mismatch { .. },
            } => 2,
            Self::Down { .. } => 3,
            Self::Fail {
                verdict: Verdict::Mismatch { .. },
            } => 4,
            Self::Credit => 5,
            Self::Awaiting => 6,
            Self::Abort { .. } => 7,
            Self::Heartbeat => 8,
            Self::Bye => 9,
            Self::Mark { .. } => 12,
            Self::Refuse {
                verdict: Verdict::Refusal { .. },
            } => 10,
            Self::Fail {
                verdict: Verdict::Refusal { .. },
            } => 11,
            Self::Open { .. } => 13,
            Self::Opened => 14,
            Self::Disputed {
                dispute: Dispute::Mismatch { .. },
            } => 15,
            Self::Disputed {
                dispute: Dispute::Refused { .. },
            } => 16,
            Self::Want { .. } => 17,
            Self::Data { .. } => 18,
            Self::Deny { .. } => 19,
        }
    }

    /// Whether payload may follow.
    pub const fn carries_payload(&self) -> bool {
        matches!(
            self,
            Self::Up { .. } | Self::Down { .. } | Self::Data { .. }
        )
    }
}

impl Header {
    /// A header with zeros for what most frames do not say.
    #[must_use]
    pub const fn empty(attempt: u32, epoch: u32, body: Body) -> Self {
        Self {
            attempt,
            epoch,
            group: 0,
            operation: 0,
            tree: 0,
            slot: 0,
            chunk: 0,
            payload: 0,
            body,
        }
    }

    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut writer = Writer::default();
        writer.put(&MAGIC.to_le_bytes());
        writer.put(&[VERSION, self.body.code(), self.tree, self.slot]);
        writer.put(&self.attempt.to_le_bytes());
        writer.put(&self.epoch.to_le_bytes());
        writer.put(&self.group.to_le_bytes());
        writer.put(&self.operation.to_le_bytes());
        writer.put(&self.chunk.to_le_bytes());
        writer.put(&self.payload.to_le_bytes());
        match &self.body {
            Body::Up { claim, mark } => {
                writer.claim(claim);
                writer.mark(mark);
            }
            Body::Down { mark } | Body::Mark { mark } => writer.mark(mark),
            Body::Refuse { verdict } | Body::Fail { verdict } => match verdict {
                Verdict::Mismatch { one, other } => {
                    writer.claim(one);
                    writer.claim(other);
                }
                Verdict::Refusal { claim, reason } => {
                    writer.claim(claim);
                    writer.put(&[*reason]);
                }
            },
            Body::Abort { notice } => {
                writer.put(&[notice.code, notice.detail]);
                writer.put(&notice.subject.to_le_bytes());
                writer.put(&notice.by.to_le_bytes());
            }
            Body::Open {
                opener,
                present,
                reason,
            } => {
                writer.opener(opener);
                writer.put(&present.to_le_bytes());
                writer.put(&[*reason]);
            }
            Body::Disputed { dispute } => match dispute {
                Dispute::Mismatch { one, other } => {
                    writer.opener(one);
                    writer.opener(other);
                }
                Dispute::Refused { opener, reason } => {
                    writer.opener(opener);
                    writer.put(&[*reason]);
                }
            },
            Body::Want {
                message,
                call,
                reason,
            }
            | Body::Deny {
                message,
                call,
                reason,
            } => {
                writer.message(message);
                writer.call(call);
                writer.put(&[*reason]);
            }
            Body::Data { message } => writer.message(message),
            Body::Credit | Body::Awaiting | Body::Heartbeat | Body::Bye | Body::Opened => {}
        }
        let mut bytes = writer.bytes;
        let sum = crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The header that bytes stand for.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Error> {
        let mut reader = Reader(bytes);
        if reader.u32() != MAGIC {
            return Err(Error::Magic);
        }
        let [version, code, tree, slot] = reader.take();
        if version != VERSION {
            return Err(Error::Version(version));
        }
        let (content, sum) = bytes.split_at(HEADER_BYTES - 4);
        if crc32c(content).to_le_bytes() != sum {
            return Err(Error::Checksum);
        }
        let mut header = Self {
            attempt: reader.u32(),
            epoch: reader.u32(),
            group: reader.u64(),
            operation: reader.u64(),
            tree,
            slot,
            chunk: reader.u32(),
            payload: reader.u32(),
            body: Body::Heartbeat,
        };
        header.body = match code {
            1 => Body::Up {
                claim: reader.claim()?,
                mark: reader.mark(),
            },
            2 => Body::Refuse {
                verdict: reader.mismatch()?,
            },
            3 => Body::Down {
                mark: reader.mark(),
            },
            4 => Body::Fail {
                verdict: reader.mismatch()?,
            },
            5 => Body::Credit,
            6 => Body::Awaiting,
            7 => {
                let [code, detail] = reader.take();
                let (subject, by) = (reader.u32(), reader.u32());
                Body::Abort {
                    notice: Notice {
                        code,
                        detail,
                        subject,
                        by,
                    },
                }
            }
            8 => Body::Heartbeat,
            9 => Body::Bye,
            10 => Body::Refuse {
                verdict: reader.refusal()?,
            },
            11 => Body::Fail {
                verdict: reader.refusal()?,
            },
            12 => Body::Mark {
                mark: reader.mark(),
            },
            13 => Body::Open {
                opener: reader.opener(),
                present: reader.u32(),
                reason: reader.u8(),
            },
            14 => Body::Opened,
            15 => Body::Disputed {
                dispute: Dispute::Mismatch {
                    one: reader.opener(),
                    other: reader.opener(),
                },
            },
            16 => Body::Disputed {
                dispute: Dispute::Refused {
                    opener: reader.opener(),
                    reason: reader.u8(),
                },
            },
            17 => Body::Want {
                message: reader.message()?,
                call: reader.call()?,
                reason: reader.u8(),
            },
            18 => Body::Data {
                message: reader.message()?,
            },
            19 => Body::Deny {
                message: reader.message()?,
                call: reader.call()?,
                reason: reader.u8(),
            },
            _ => return Err(Error::Field("kind")),
        };
        let limit = if header.body.carries_payload() {
            PAYLOAD_LIMIT_BYTES
        } else {
            0
        };
        if header.payload > limit {
            return Err(Error::Field("payload"));
        }
        let unused = reader.0.len() - 4;
        if reader.0[..unused].iter().any(|byte| *byte != 0) {
            return Err(Error::Field("padding"));
        }
        Ok(header)
    }
}
