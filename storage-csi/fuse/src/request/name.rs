//! Names that the kernel may send: of directory entries and of extended attributes.

use std::fmt;

/// Bytes of the longest name, as on every file system that a Linux program knows.
pub const NAME_LIMIT_BYTES: usize = 255;

/// Why bytes are no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongName {
    /// A user gave a long one.
    #[error("a name is longer than {NAME_LIMIT_BYTES} bytes")]
    TooLong,
    /// No name is like this.
    #[error("{0}")]
    Invalid(&'static str),
}

/// The name of a directory entry: 1 to 255 bytes without NUL and slash, and neither `.` nor `..`
/// unless it is one of the constants.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileName<'a>(&'a [u8]);

impl FileName<'static> {
    /// The directory itself, for lists of its entries.
    pub const CURRENT: Self = Self(b".");
    /// The directory above, for lists of entries.
    pub const PARENT: Self = Self(b"..");
}

impl<'a> FileName<'a> {
    /// Checks the bytes of a name.
    pub fn new(bytes: &'a [u8]) -> Result<Self, WrongName> {
        check(bytes)?;
        if bytes.contains(&b'/') {
            return Err(WrongName::Invalid("a name has a slash"));
        }
        if bytes == b"." || bytes == b".." {
            return Err(WrongName::Invalid("a name is . or .."));
        }
        Ok(Self(bytes))
    }

    /// Its bytes, which need not be UTF-8.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

/// The name of an extended attribute: 1 to 255 bytes without NUL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrName<'a>(&'a [u8]);

impl<'a> XattrName<'a> {
    /// Checks the bytes of a name.
    pub fn new(bytes: &'a [u8]) -> Result<Self, WrongName> {
        check(bytes)?;
        Ok(Self(bytes))
    }

    /// Its bytes, which need not be UTF-8.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

/// What holds of both.
fn check(bytes: &[u8]) -> Result<(), WrongName> {
    if bytes.is_empty() {
        Err(WrongName::Invalid("a name is empty"))
    } else if bytes.contains(&0) {
        Err(WrongName::Invalid("a name has a NUL"))
    } else if bytes.len() > NAME_LIMIT_BYTES {
        Err(WrongName::TooLong)
    } else {
        Ok(())
    }
}

impl fmt::Debug for FileName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Debug for XattrName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_leave_a_directory_is_no_name() {
        for wrong in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0"] {
            let refused = FileName::new(wrong);
            assert!(
                matches!(refused, Err(WrongName::Invalid(_))),
                "{refused:?} {wrong:?}"
            );
        }
        for right in [&b"..."[..], b"\xff", b" ", &[b'n'; 255]] {
            assert_eq!(FileName::new(right).map(FileName::as_bytes), Ok(right));
        }
        assert_eq!(FileName::new(&[b'n'; 256]), Err(WrongName::TooLong));
    }

    #[test]
    fn the_name_of_an_extended_attribute_may_have_a_slash() {
        assert!(XattrName::new(b"user.a/b").is_ok());
        assert!(XattrName::new(b"").is_err() && XattrName::new(&[b'x'; 256]).is_err());
    }
}
