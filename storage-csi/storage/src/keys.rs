//! Names of a chain's chunks and versions in the store of a target, and what a chunk remembers of sessions there.

use chunk_store::{ChunkKey, StateVersion};
use craq::{ChunkId, Records, Version, encoding};

/// Bits of a piece's place in a file, which frames keep below [`encoding::MOST_CHUNKS`], and of a file's number behind which the chain's is.
const INDEX_BITS: u32 = 40;
const FILE_BITS: u32 = 64;

/// A chunk is named by its chain first: a chain's chunks are neighbours.
#[must_use]
pub(crate) fn key(chain: u32, chunk: ChunkId) -> ChunkKey {
    let file = u128::from(chunk.file) << INDEX_BITS;
    ChunkKey(first_key(chain) | file | u128::from(chunk.index))
}

const fn first_key(chain: u32) -> u128 {
    // As `From` would, which is not const.
    (chain as u128 & 0xff_ffff) << (INDEX_BITS + FILE_BITS)
}

/// Behind which key the chunks of a chain begin; none for the first chain.
pub(crate) fn before(chain: u32, after: Option<ChunkId>) -> Option<ChunkKey> {
    match after {
        Some(after) => Some(key(chain, after)),
        None => first_key(chain).checked_sub(1).map(ChunkKey),
    }
}

/// The chain and the chunk of a key.
pub(crate) fn chunk(key: ChunkKey) -> (u32, ChunkId) {
    let index = key.0 & ((1 << INDEX_BITS) - 1);
    let chunk = ChunkId {
        file: (key.0 >> INDEX_BITS) as u64,
        index: index as u64,
    };
    ((key.0 >> (INDEX_BITS + FILE_BITS)) as u32, chunk)
}

/// What the store calls a version.
#[must_use]
pub(crate) fn stored(version: Version) -> StateVersion {
    StateVersion(u128::from(version.chain) << 64 | u128::from(version.update))
}

pub(crate) fn version(stored: StateVersion) -> Version {
    Version {
        chain: (stored.0 >> 64) as u64,
        update: stored.0 as u64,
    }
}

/// Whether the content is that there is none, then the records.
pub(crate) fn notes(is_removed: bool, records: &Records) -> Vec<u8> {
    let mut notes = vec![u8::from(is_removed)];
    notes.extend(encoding::records_list(records));
    notes
}

pub(crate) fn is_removed(notes: &[u8]) -> bool {
    notes.first() == Some(&1)
}

/// Records that cannot be read are none: their chunk's notes have a checksum, so nobody wrote them.
pub(crate) fn records(notes: &[u8]) -> Records {
    let list = notes.get(1..).unwrap_or_default();
    encoding::records(list).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_are_ordered_by_chain_file_and_place() {
        let chunk_of = |file, index| ChunkId { file, index };
        let largest = chunk_of(u64::MAX, (1 << INDEX_BITS) - 1);
        let all = [
            (0, chunk_of(0, 0)),
            (0, largest),
            (1, chunk_of(0, 0)),
            (1, chunk_of(0, 1)),
            (1, chunk_of(1, 0)),
            (0xff_ffff, largest),
        ];
        let keys = all.map(|(chain, chunk)| key(chain, chunk));
        assert!(keys.is_sorted());
        assert_eq!(keys.map(chunk), all);
        assert_eq!(before(0, None), None);
        assert!(before(1, None) >= Some(keys[1]) && before(1, None) < Some(keys[2]));
        let newest = Version {
            chain: 3,
            update: u64::MAX,
        };
        assert_eq!(version(stored(newest)), newest);
    }

    #[test]
    fn notes_say_what_was_removed_and_keep_records() {
        let record = craq::Record {
            session: craq::SessionId(7),
            number: 9,
        };
        let kept = Records::new(vec![record]).unwrap();
        let notes = notes(true, &kept);
        assert!(is_removed(&notes) && records(&notes) == kept);
        // As on the disks of 2026-11-22.
        assert_eq!(notes, [1, 7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert!(!is_removed(&[]) && records(&[]) == Records::default());
    }
}
