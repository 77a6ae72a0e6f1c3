//! What the kernel can be answered, and the bytes of it. How long it may keep what it is told is
//! the caller's decision.

mod fields;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::IoSlice;
use std::time::Duration;

use rustix::io::Errno;

use crate::abi::{self, ANSWER_HEADER_BYTES, ATTRIBUTES_BYTES, ENTRY_BYTES, PutFields};
use crate::request::Unique;
pub use fields::{Attributes, FileKind, FileSystemStatus, NamedInode, Opened};

/// An answer. Which one a request wants says its operation.
#[derive(Clone, Copy, Debug)]
pub enum Answer<'a> {
    /// It failed.
    Error(Errno),
    /// It succeeded, and has no result.
    Done,
    /// To what looks up or makes a name.
    Name(NamedInode),
    /// To a lookup: there is no such name, and the kernel need not ask again for so long.
    NoName(Duration),
    /// To a creation.
    Created(NamedInode, Opened),
    /// To what gets or sets attributes, and how long the kernel need not ask again.
    Attributes(Attributes, Duration),
    /// To what opens a file or a directory.
    Opened(Opened),
    /// To a write or a copy: bytes that were taken.
    Written(u32),
    /// To statfs(2).
    FileSystemStatus(FileSystemStatus),
    /// To a seek.
    Offset(u64),
    /// To a question for the size of an extended attribute, or of their list.
    XattrSize(u32),
    /// To a read: at most as many bytes as it wants, fewer only at the end of the file. The target
    /// of a symlink, directory entries, extended attributes.
    Data(&'a [u8]),
    /// The same in pieces, of which the kernel takes at most 1,022.
    Pieces(&'a [&'a [u8]]),
}

impl<'a> Answer<'a> {
    /// The header and fixed fields; the caller's data is not copied.
    pub(crate) fn encode(&self, unique: Unique) -> Encoded<'a> {
        let mut head = Vec::with_capacity(ANSWER_HEADER_BYTES + ENTRY_BYTES + ATTRIBUTES_BYTES);
        let error = if let Self::Error(errno) = self {
            kernel_errno(*errno)
        } else {
            0
        };
        head.put_u32(0); // The length, once it is known.
        head.put(&(-error).to_ne_bytes());
        head.put_u64(unique.raw());
        let (mut data, mut pieces): (&[u8], &[&[u8]]) = (&[], &[]);
        match self {
            Self::Error(_) | Self::Done => {}
            Self::Name(entry) => entry.put(&mut head),
            Self::NoName(valid) => {
                head.put(&[0; 16]);
                head.put_u64(valid.as_secs());
                head.put_u64(0);
                head.put_u32(valid.subsec_nanos());
                head.put(&[0; 4 + ATTRIBUTES_BYTES]);
            }
            Self::Created(entry, opened) => {
                entry.put(&mut head);
                opened.put(&mut head);
            }
            Self::Attributes(attributes, valid) => {
                head.put_u64(valid.as_secs());
                head.put_u32(valid.subsec_nanos());
                head.put_u32(0);
                attributes.put(&mut head);
            }
            Self::Opened(opened) => opened.put(&mut head),
            Self::Written(count) | Self::XattrSize(count) => {
                head.put_u32(*count);
                head.put_u32(0);
            }
            Self::FileSystemStatus(status) => status.put(&mut head),
            Self::Offset(offset) => head.put_u64(*offset),
            Self::Data(borrowed) => data = borrowed,
            Self::Pieces(borrowed) => pieces = borrowed,
        }
        let pieces_bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let length = head.len() + data.len() + pieces_bytes;
        set_length(&mut head, length);
        Encoded { head, data, pieces }
    }
}

/// For errors: without its data, which may be long and a user's.
impl fmt::Display for Answer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Data(data) => write!(f, "{} bytes", data.len()),
            Self::Pieces(pieces) => {
                let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
                write!(f, "{bytes} bytes in {} pieces", pieces.len())
            }
            Self::Error(_)
            | Self::Done
            | Self::Name(_)
            | Self::NoName(_)
            | Self::Created(..)
            | Self::Attributes(..)
            | Self::Opened(_)
            | Self::Written(_)
            | Self::FileSystemStatus(_)
            | Self::Offset(_)
            | Self::XattrSize(_) => write!(f, "{self:?}"),
        }
    }
}

/// Writes the length of all into the first field.
pub(crate) fn set_length(message: &mut [u8], length: usize) {
    // What is too long for the field does not fit into the kernel's buffer either, and is refused.
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    if let Some(field) = message.first_chunk_mut() {
        *field = length.to_ne_bytes();
    }
}

/// The kernel drops answers with numbers that no program may see, and their requests wait for ever.
fn kernel_errno(errno: Errno) -> i32 {
    let number = errno.raw_os_error();
    if (1..abi::ERROR_LIMIT).contains(&number) {
        number
    } else {
        Errno::IO.raw_os_error()
    }
}

/// An answer as it is written.
#[derive(Debug)]
pub(crate) struct Encoded<'a> {
    head: Vec<u8>,
    data: &'a [u8],
    pieces: &'a [&'a [u8]],
}

impl Encoded<'_> {
    /// For one vectored write.
    pub(crate) fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(2 + self.pieces.len());
        slices.extend([&self.head, self.data].map(IoSlice::new));
        slices.extend(self.pieces.iter().map(|piece| IoSlice::new(piece)));
        slices
    }
}
