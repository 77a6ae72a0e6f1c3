//! What a file system tells the kernel without being asked.

use crate::abi::{ANSWER_HEADER_BYTES, PutFields, notify};
use crate::answer::set_length;
use crate::request::{FileName, Inode};

/// The kernel has no longer file.
const FILE_LIMIT_BYTES: u64 = i64::MAX as u64;

/// Says what the kernel holds and must not trust any more, or asks for requests again. Whoever
/// answers a request on an inode must not first wait for a notification on it: the kernel may hold
/// locks for the request that the notification waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification<'a> {
    /// Another host changed the inode: drop its attributes and cached bytes from `offset` on,
    /// `length` of them or all that follow.
    InvalidateInode {
        /// Whose.
        inode: Inode,
        /// The first byte.
        offset: u64,
        /// How many.
        length: Option<u64>,
    },
    /// Another host changed what the name stands for.
    InvalidateName {
        /// The directory.
        parent: Inode,
        /// The name in it.
        name: FileName<'a>,
    },
    /// Send again what was read and not answered. A successor says so before it reads anything:
    /// what it has read itself comes again, too.
    Resend,
}

impl Notification<'_> {
    /// As it is written.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(ANSWER_HEADER_BYTES + 24);
        let code = match self {
            Self::InvalidateInode { .. } => notify::INVALIDATE_INODE,
            Self::InvalidateName { .. } => notify::INVALIDATE_ENTRY,
            Self::Resend => notify::RESEND,
        };
        bytes.put_u32(0); // The length, once it is known.
        bytes.put(&code.to_ne_bytes());
        bytes.put_u64(0); // No request's number.
        match self {
            Self::InvalidateInode {
                inode,
                offset,
                length,
            } => {
                bytes.put_u64(inode.0);
                // A number that is negative for the kernel would leave the content as it is.
                let offset = (*offset).min(FILE_LIMIT_BYTES);
                bytes.put_u64(offset);
                let most = (FILE_LIMIT_BYTES - offset).max(1);
                // Zero is for all that follow.
                bytes.put_u64(length.map_or(0, |length| length.clamp(1, most)));
            }
            Self::InvalidateName { parent, name } => {
                let name = name.as_bytes();
                bytes.put_u64(parent.0);
                bytes.put_u32(name.len() as u32);
                bytes.put_u32(0);
                bytes.put(name);
                bytes.put(&[0]);
            }
            Self::Resend => {}
        }
        let length = bytes.len();
        set_length(&mut bytes, length);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Fields;

    fn check(notification: Notification<'_>, code: u32, longs: &[u64], rest: &[u8]) {
        let bytes = notification.encode();
        let mut fields = Fields::new(&bytes);
        assert_eq!(fields.u32(), Ok(bytes.len() as u32), "{notification:?}");
        assert_eq!((fields.u32(), fields.u64()), (Ok(code), Ok(0)));
        for long in longs {
            assert_eq!(fields.u64(), Ok(*long), "{notification:?}");
        }
        assert_eq!(fields.rest(), rest, "{notification:?}");
    }

    #[test]
    fn the_kernel_reads_what_was_meant() {
        let name = FileName::new(b"name").unwrap();
        let parent = Inode(9);
        let named = Notification::InvalidateName { parent, name };
        check(named, 3, &[9], b"\x04\0\0\0\0\0\0\0name\0");
        check(Notification::Resend, 7, &[], b"");
        let content = |offset, length| Notification::InvalidateInode {
            inode: Inode(8),
            offset,
            length,
        };
        check(content(1, Some(2)), 2, &[8, 1, 2], b"");
        check(content(0, None), 2, &[8, 0, 0], b"");
        // Without the limits these would mean other bytes.
        let most = FILE_LIMIT_BYTES;
        check(content(0, Some(u64::MAX)), 2, &[8, 0, most], b"");
        check(content(u64::MAX, Some(2)), 2, &[8, most, 1], b"");
    }
}
