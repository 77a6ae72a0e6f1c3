//! What the kernel asks, parsed once: numbers, names and data of one request, borrowed from the
//! buffer that it was read into. What was not understood becomes a [`Refusal`] with its answer.

mod name;
mod operation;
mod parse;
mod refusal;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::abi;
pub use name::{FileName, NAME_LIMIT_BYTES, WrongName, XattrName};
pub use operation::{
    CopyRange, FileOperation, FileTime, Forgets, RenameMode, SeekTo, SetAttributes, SetTime,
};
pub use refusal::{Refusal, RefusalReason};

/// The number of an inode, the same in the kernel and in the caller's file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inode(pub u64);

impl Inode {
    /// The root of every mount.
    pub const ROOT: Self = Self(1);
}

/// What the caller answered when a file was opened, and gets back with each request on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileHandle(pub u64);

/// The number of a request, as the kernel wrote it and wants it back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unique(pub(crate) u64);

impl Unique {
    /// As the kernel wrote it.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// What names the request, whether or not it comes again.
    pub fn number(self) -> u64 {
        self.0 & !abi::RESENT
    }

    /// Whether the kernel sends it again: a process before may have done what it asks.
    pub fn is_resent(self) -> bool {
        self.0 & abi::RESENT != 0
    }
}

impl fmt::Display for Unique {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let again = if self.is_resent() { " (resent)" } else { "" };
        write!(f, "{}{again}", self.number())
    }
}

impl fmt::Debug for Unique {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unique({self})")
    }
}

/// The process that asks. All are zero where the kernel asks for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User, as the mount's user namespace has it.
    pub uid: u32,
    /// Group, as the mount's user namespace has it.
    pub gid: u32,
    /// Thread, as the mount's process namespace has it; zero where it has none.
    pub pid: u32,
}

/// A request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Its number.
    pub unique: Unique,
    /// What it is about; of a name, the directory that has it.
    pub inode: Inode,
    /// Who asks.
    pub caller: Caller,
    /// What is asked.
    pub operation: FileOperation<'a>,
}

impl<'a> Request<'a> {
    /// Reads the bytes of one request.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Refusal> {
        parse::request(bytes)
    }

    /// Whether the kernel waits for an answer.
    pub fn wants_answer(&self) -> bool {
        !matches!(
            self.operation,
            FileOperation::Forget { .. }
                | FileOperation::BatchForget(_)
                | FileOperation::Interrupt { .. }
        )
    }
}
