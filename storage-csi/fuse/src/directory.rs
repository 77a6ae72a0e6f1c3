//! Lists of directory entries for the kernel, up to the size that it wants. Which entries there
//! are, and in which order, belongs to the caller.

use crate::abi::{DIRECTORY_ALIGNMENT, DIRECTORY_ENTRY_BYTES, ENTRY_BYTES, PutFields};
use crate::answer::{Answer, FileKind, NamedInode};
use crate::request::{FileName, Inode};

/// Entries of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// What the name stands for.
    pub inode: Inode,
    /// What that is.
    pub kind: FileKind,
    /// The offset at which a later request goes on behind this entry; not zero.
    pub next: u64,
    /// Its name.
    pub name: FileName<'a>,
}

/// Whether an entry was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Fit {
    /// It was.
    Added,
    /// It was not: the list is full, and is the answer.
    Full,
}

/// A list that answers one request.
#[derive(Debug)]
pub struct DirectoryList {
    bytes: Vec<u8>,
    limit: usize,
}

impl DirectoryList {
    /// An empty list of at most `size` bytes, which is what the request wants. An empty answer says
    /// that the directory has ended.
    pub fn new(size: u32) -> Self {
        Self {
            bytes: Vec::new(),
            limit: size as usize,
        }
    }

    /// Adds an entry to the answer to
    /// [`ReadDirectory`](crate::request::FileOperation::ReadDirectory).
    pub fn add(&mut self, entry: &DirectoryEntry<'_>) -> Fit {
        if !self.has_room(entry, 0) {
            return Fit::Full;
        }
        self.put(entry);
        Fit::Added
    }

    /// Adds one to the answer to
    /// [`ReadDirectoryPlus`](crate::request::FileOperation::ReadDirectoryPlus), with what its
    /// lookup would answer, and counts one lookup if it was added. Of `.` and `..`, and of what
    /// could not be looked up, there is none.
    pub fn add_plus(&mut self, entry: &DirectoryEntry<'_>, named: Option<&NamedInode>) -> Fit {
        if !self.has_room(entry, ENTRY_BYTES) {
            return Fit::Full;
        }
        match named {
            Some(named) => named.put(&mut self.bytes),
            None => self.bytes.put(&[0; ENTRY_BYTES]),
        }
        self.put(entry);
        Fit::Added
    }

    /// The answer.
    pub fn answer(&self) -> Answer<'_> {
        Answer::Data(&self.bytes)
    }

    fn has_room(&self, entry: &DirectoryEntry<'_>, before: usize) -> bool {
        let bytes = before + DIRECTORY_ENTRY_BYTES + entry.name.as_bytes().len();
        self.bytes.len() + bytes.next_multiple_of(DIRECTORY_ALIGNMENT) <= self.limit
    }

    fn put(&mut self, entry: &DirectoryEntry<'_>) {
        let name = entry.name.as_bytes();
        self.bytes.put_u64(entry.inode.0);
        self.bytes.put_u64(entry.next);
        self.bytes.put_u32(name.len() as u32);
        self.bytes.put_u32(entry.kind.number());
        self.bytes.put(name);
        let end = self.bytes.len().next_multiple_of(DIRECTORY_ALIGNMENT);
        self.bytes.resize(end, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::Fields;

    fn entry(name: &'static [u8]) -> DirectoryEntry<'static> {
        DirectoryEntry {
            inode: Inode(0x11),
            kind: FileKind::Directory,
            next: 0x22,
            name: FileName::new(name).unwrap(),
        }
    }

    #[test]
    fn an_entry_fits_to_the_last_byte_and_leaves_no_part_where_it_does_not() {
        for (name, bytes) in [(&b"1234567"[..], 32), (b"12345678", 32), (b"123456789", 40)] {
            let mut list = DirectoryList::new(2 * bytes);
            assert_eq!(list.add(&entry(name)), Fit::Added);
            assert_eq!(list.add(&entry(name)), Fit::Added);
            assert_eq!(list.add(&entry(b"x")), Fit::Full);
            assert_eq!(list.bytes.len(), 2 * bytes as usize);
            let mut short = DirectoryList::new(bytes - 1);
            assert_eq!(short.add(&entry(name)), Fit::Full);
            assert!(short.bytes.is_empty());
            let mut plus = DirectoryList::new(128 + bytes);
            assert_eq!(plus.add_plus(&entry(name), None), Fit::Added);
            assert_eq!(plus.add(&entry(b"x")), Fit::Full);
            assert_eq!(
                DirectoryList::new(127 + bytes).add_plus(&entry(name), None),
                Fit::Full
            );
        }
    }

    #[test]
    fn fields_lie_where_the_kernel_reads_them() {
        let mut list = DirectoryList::new(4096);
        assert_eq!(list.add_plus(&entry(b"name"), None), Fit::Added);
        assert_eq!(list.bytes[..128], [0; 128]);
        let mut fields = Fields::new(&list.bytes[128..]);
        assert_eq!((fields.u64(), fields.u64()), (Ok(0x11), Ok(0x22)));
        assert_eq!((fields.u32(), fields.u32()), (Ok(4), Ok(4)));
        assert_eq!(fields.rest(), b"name\0\0\0\0");
    }
}
