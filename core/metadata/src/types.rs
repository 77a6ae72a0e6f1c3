//! Names of things: inodes, entries, mounts, handles, operations.

use serde::{Deserialize, Serialize};

/// Longest name of an entry.
pub const MOST_NAME_BYTES: usize = 255;
/// Longest target of a symbolic link.
pub const MOST_TARGET_BYTES: usize = 4095;

/// An inode. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InodeNumber(pub u64);

/// Somebody who uses the file system. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MountId(pub u64);

/// An open file of a mount. Number 0 is for the mount's trim of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HandleId {
    pub mount: MountId,
    /// Given by the mount, from 1, and never used again by it.
    pub number: u64,
}

/// An operation that is done once, however often it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OperationId {
    pub mount: MountId,
    /// Given by the mount, and never used again by it.
    pub number: u64,
}

/// What an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the kinds of inodes that Linux has")]
pub enum InodeKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharacterDevice,
    BlockDevice,
}

/// Name of an entry: 1 to 255 bytes, without a slash or a zero, and neither `.` nor `..`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
pub struct EntryName(Vec<u8>);

impl EntryName {
    /// None if these bytes are no name.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let is_name = (1..=MOST_NAME_BYTES).contains(&bytes.len())
            && !bytes.contains(&b'/')
            && !bytes.contains(&0)
            && bytes != b"."
            && bytes != b"..";
        is_name.then(|| Self(bytes.to_vec()))
    }

    /// Its bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<Vec<u8>> for EntryName {
    type Error = &'static str;

    fn try_from(bytes: Vec<u8>) -> Result<Self, Self::Error> {
        Self::new(&bytes)
            .ok_or("a name has 1 to 255 bytes, no slash and no zero, and is not . or ..")
    }
}

impl From<EntryName> for Vec<u8> {
    fn from(name: EntryName) -> Self {
        name.0
    }
}

impl std::fmt::Debug for EntryName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_up_to_255_bytes_of_any_kind_but_slash_and_zero() {
        let is_name = |bytes: &[u8]| EntryName::new(bytes).is_some();
        assert!(is_name(b"a") && is_name(&[0xff; 255]) && is_name(b"...") && is_name(b" "));
        assert!(!is_name(b"") && !is_name(&[b'a'; 256]) && !is_name(b".") && !is_name(b".."));
        assert!(!is_name(b"a/b") && !is_name(b"a\0b"));
        assert!(serde_json::from_str::<EntryName>("[46,46]").is_err());
    }
}
