//! Keys of the store: two letters, then numbers, big-endian, so that what belongs together lies together and in order.

use crate::types::{EntryName, HandleId, InodeNumber, MountId, OperationId};

/// Bytes of the letters.
const LETTERS: usize = 2;

fn key(letters: &[u8; LETTERS], numbers: &[u64]) -> Vec<u8> {
    let mut key = letters.to_vec();
    for number in numbers {
        key.extend(number.to_be_bytes());
    }
    key
}

/// The numbers behind the letters.
pub(crate) fn numbers<const COUNT: usize>(key: &[u8]) -> Option<[u64; COUNT]> {
    let bytes = key.get(LETTERS..)?;
    let mut numbers = bytes.chunks_exact(8).filter_map(|one| one.try_into().ok());
    let mut take = || numbers.next().map(u64::from_be_bytes);
    let mut all = [0; COUNT];
    for number in &mut all {
        *number = take()?;
    }
    (bytes.len() == COUNT * 8).then_some(all)
}

/// The next number of an inode.
pub(crate) fn next_inode() -> Vec<u8> {
    key(b"mc", &[])
}

/// Sum of what volumes promise.
pub(crate) fn promised() -> Vec<u8> {
    key(b"mp", &[])
}

/// A volume by its name.
pub(crate) fn volume(name: &str) -> Vec<u8> {
    [b"mv", name.as_bytes()].concat()
}

/// A part of a volume's usage.
pub(crate) fn usage(volume: InodeNumber, shard: u64) -> Vec<u8> {
    key(b"mu", &[volume.0, shard])
}

/// All parts of it.
pub(crate) fn usages(volume: InodeNumber) -> Vec<u8> {
    key(b"mu", &[volume.0])
}

/// An inode.
pub(crate) fn inode(inode: InodeNumber) -> Vec<u8> {
    key(b"mi", &[inode.0])
}

/// When a directory's entries changed last.
pub(crate) fn entries_time(directory: InodeNumber) -> Vec<u8> {
    key(b"mt", &[directory.0])
}

/// How many directories are in a directory.
pub(crate) fn subdirectories(directory: InodeNumber) -> Vec<u8> {
    key(b"mn", &[directory.0])
}

/// Where a symbolic link points to.
pub(crate) fn target(symlink: InodeNumber) -> Vec<u8> {
    key(b"ms", &[symlink.0])
}

/// An entry of a directory.
pub(crate) fn entry(directory: InodeNumber, name: &EntryName) -> Vec<u8> {
    let mut entry = entries(directory);
    entry.extend(name.as_bytes());
    entry
}

/// All entries of it.
pub(crate) fn entries(directory: InodeNumber) -> Vec<u8> {
    key(b"me", &[directory.0])
}

/// The name in the key of an entry.
pub(crate) fn entry_name(key: &[u8]) -> Option<EntryName> {
    EntryName::new(key.get(LETTERS + 8..)?)
}

/// An open file.
pub(crate) fn handle(inode: InodeNumber, handle: HandleId) -> Vec<u8> {
    key(b"mh", &[inode.0, handle.mount.0, handle.number])
}

/// All handles of a file.
pub(crate) fn handles(inode: InodeNumber) -> Vec<u8> {
    key(b"mh", &[inode.0])
}

/// The same handle, by mount.
pub(crate) fn mount_handle(inode: InodeNumber, handle: HandleId) -> Vec<u8> {
    key(b"mo", &[handle.mount.0, inode.0, handle.number])
}

/// All handles of a mount.
pub(crate) fn mount_handles(mount: MountId) -> Vec<u8> {
    key(b"mo", &[mount.0])
}

/// All handles or answers by mount, and the last key that one of them can have.
pub(crate) fn by_mount(mount: MountId) -> [(Vec<u8>, Vec<u8>); 2] {
    let last = [mount.0, u64::MAX, u64::MAX];
    [b"mo", b"mr"].map(|letters| (key(letters, &[]), key(letters, &last)))
}

/// The mount of such a key.
pub(crate) fn mount_of(key: &[u8]) -> Option<MountId> {
    let [mount] = numbers(key.get(..LETTERS + 8)?)?;
    Some(MountId(mount))
}

/// What is known of a mount.
pub(crate) fn mount(mount: MountId) -> Vec<u8> {
    key(b"mm", &[mount.0])
}

/// The answer to an operation.
pub(crate) fn result(id: OperationId) -> Vec<u8> {
    key(b"mr", &[id.mount.0, id.number])
}

/// All that are kept for a mount.
pub(crate) fn results(mount: MountId) -> Vec<u8> {
    key(b"mr", &[mount.0])
}

/// An inode to be collected.
pub(crate) fn garbage(inode: InodeNumber) -> Vec<u8> {
    key(b"mg", &[inode.0])
}

/// All inodes to be collected.
pub(crate) fn all_garbage() -> Vec<u8> {
    key(b"mg", &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_their_numbers() {
        let handle_of = |mount, number| {
            let mount = MountId(mount);
            handle(InodeNumber(0x0102), HandleId { mount, number })
        };
        assert!(handle_of(1, 255) < handle_of(1, 256));
        assert!(handle_of(1, u64::MAX) < handle_of(2, 0));
        assert!(handle_of(1, 7).starts_with(&handles(InodeNumber(0x0102))));
        assert_eq!(numbers(&handle_of(3, 7)), Some([0x0102, 3, 7]));
        assert_eq!(numbers::<2>(&handle_of(3, 7)), None);
        assert_eq!(inode(InodeNumber(0x0102)), b"mi\0\0\0\0\0\0\x01\x02");
    }

    #[test]
    fn an_entry_gives_its_name_back() {
        let name = EntryName::new(b"\xff name").unwrap();
        assert_eq!(entry_name(&entry(InodeNumber(5), &name)), Some(name));
    }
}
