//! Requests that the transport answers by itself, and why.

use rustix::io::Errno;

use super::{Unique, WrongName};
use crate::abi::{TooShort, opcode};

/// Why a request is answered by the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusalReason {
    /// The kernel goes on without it, and mostly does not ask again.
    #[error("no file system of ours answers its kind")]
    Unsupported,
    /// A user's name is too long.
    #[error("{}", WrongName::TooLong)]
    NameTooLong,
    /// A program asks for something that no file system of ours does.
    #[error("{0}")]
    Invalid(&'static str),
    /// Its bytes are not what the protocol says, or a name is none.
    #[error("{0}")]
    Malformed(&'static str),
}

impl RefusalReason {
    /// What the kernel is answered.
    pub fn errno(self) -> Errno {
        match self {
            Self::Unsupported => Errno::NOSYS,
            Self::NameTooLong => Errno::NAMETOOLONG,
            Self::Invalid(_) => Errno::INVAL,
            Self::Malformed(_) => Errno::IO,
        }
    }
}

/// A request that no caller sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to understand request {unique} of kind {opcode}: {reason}")]
pub struct Refusal {
    /// Its number.
    pub unique: Unique,
    /// Its kind, in the kernel's numbers.
    pub opcode: u32,
    /// What is wrong with it.
    pub reason: RefusalReason,
}

impl Refusal {
    /// Whether the kernel waits for an answer. Without a number there is nothing to answer.
    pub fn wants_answer(&self) -> bool {
        let silent = [opcode::FORGET, opcode::BATCH_FORGET, opcode::INTERRUPT];
        self.unique.raw() != 0 && !silent.contains(&self.opcode)
    }
}

impl From<TooShort> for RefusalReason {
    fn from(TooShort: TooShort) -> Self {
        Self::Malformed("it ends too early")
    }
}

impl From<WrongName> for RefusalReason {
    fn from(wrong: WrongName) -> Self {
        match wrong {
            WrongName::TooLong => Self::NameTooLong,
            WrongName::Invalid(why) => Self::Malformed(why),
        }
    }
}
