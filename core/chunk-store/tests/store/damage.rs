//! Bytes that no store has written: no superblock and no journal makes a store panic, whether its checksums are right or
//! not.

use chunk_store::{
    Geometry, RecoveryError, StateEdit, Superblock, SuperblockError, Which, checksum,
};
use sim::{Rng, damage, for_each_seed, print_count};

use crate::edits::any_edit;
use crate::shell::{Shell, geometry};

/// The copies of a superblock as a shell reads them.
fn read(copies: [Option<&[u8]>; 2]) -> Result<(Superblock, Option<u64>), SuperblockError> {
    let read = Superblock::read(copies);
    read.map(|(superblock, damaged)| (superblock, damaged.map(|write| write.at)))
}

fn copy(uuid: u128) -> (Superblock, Vec<u8>) {
    let superblock = Superblock::new(geometry(8, 100), uuid).unwrap();
    (superblock, superblock.format().swap_remove(0).bytes)
}

#[test]
fn one_good_superblock_is_enough_and_the_other_is_written_again() {
    let (superblock, good) = copy(1);
    let mut bad = good.clone();
    bad[20] ^= 1;
    let zeros = vec![0; Superblock::BYTES];
    assert_eq!(read([Some(&good), Some(&good)]), Ok((superblock, None)));
    for other in [Some(&bad[..]), Some(&zeros), Some(&good[..40]), None] {
        assert_eq!(read([Some(&good), other]), Ok((superblock, Some(65_536))));
        assert_eq!(read([other, Some(&good)]), Ok((superblock, Some(0))));
    }
    let (_, repair) = Superblock::read([Some(&bad), Some(&good)]).unwrap();
    assert_eq!(repair.unwrap().bytes, good);
}

#[test]
fn what_cannot_be_opened_is_told_apart() {
    let (_, good) = copy(1);
    let (_, other) = copy(2);
    let mut bad = good.clone();
    bad[20] ^= 1;
    let zeros = vec![0; Superblock::BYTES];
    let mut newer = good.clone();
    newer[8] = 2;
    let sum = checksum(&newer[..48]);
    newer[48..52].copy_from_slice(&sum.to_le_bytes());
    for (one, two, error) in [
        (&zeros, &zeros, SuperblockError::Foreign),
        (&newer, &newer, SuperblockError::Newer(2)),
        (&newer, &good, SuperblockError::Newer(2)),
        (&bad, &bad, SuperblockError::Damaged),
        (&bad, &zeros, SuperblockError::Damaged),
        (&good, &other, SuperblockError::Differ),
    ] {
        assert_eq!(read([Some(one), Some(two)]), Err(error));
    }
    assert_eq!(read([None, None]), Err(SuperblockError::Damaged));
}

#[test]
fn a_disk_is_laid_out_within_bounds() {
    let good = geometry(8, 1);
    let check = |geometry| Superblock::new(geometry, 1).map_err(|error| error.field);
    assert!(check(good).is_ok());
    let large = Geometry {
        sector_bytes: 4096,
        block_bytes: 4096,
        ..good
    };
    for (geometry, field) in [
        (
            Geometry {
                sector_bytes: 1024,
                ..good
            },
            "sector_bytes",
        ),
        (
            Geometry {
                block_bytes: 256,
                ..good
            },
            "block_bytes",
        ),
        (
            Geometry {
                block_bytes: 3072,
                ..good
            },
            "block_bytes",
        ),
        (Geometry { blocks: 0, ..good }, "blocks"),
        (
            Geometry {
                blocks: u32::MAX,
                ..good
            },
            "blocks",
        ),
        (
            Geometry {
                segments: 7,
                ..good
            },
            "segments",
        ),
        (
            Geometry {
                segment_bytes: 16_896,
                ..good
            },
            "segment_bytes",
        ),
        (
            Geometry {
                segment_bytes: 8192,
                ..good
            },
            "segment_bytes",
        ),
        (large, "segment_bytes"),
    ] {
        assert_eq!(check(geometry).unwrap_err(), field);
    }
}

#[test]
fn a_disk_without_a_journal_is_not_an_empty_store() {
    let mut shell = Shell::new(&mut Rng::new(1), geometry(8, 100));
    shell.write(128 << 10, &[0; 512]).unwrap();
    let opened = shell.open().unwrap();
    assert!(
        matches!(
            opened,
            Err(RecoveryError::Empty {
                at: 131_072,
                segments: 8
            })
        ),
        "{opened:?}"
    );
}

/// A disk on which something was done.
fn used(rng: &mut Rng) -> Shell {
    let mut shell = Shell::new(rng, geometry(8, 100));
    let mut newest = [None; 4];
    for version in 1..rng.range(3..30) {
        let id = rng.below(newest.len());
        let (edit, new) = any_edit(rng, 4096);
        let version = version.into();
        if shell
            .put(id as u128, version, newest[id], edit, &new)
            .is_ok()
        {
            newest[id] = (edit != StateEdit::Remove).then_some(version);
        }
    }
    shell
}

/// Gives every batch in these bytes the checksums that it should have.
fn sign(journal: &mut [u8], uuid: u128) {
    let seed = checksum(&uuid.to_le_bytes());
    for batch in (0..journal.len()).step_by(512) {
        let bytes = &mut journal[batch..];
        if &bytes[..8] != b"FFCHUNKJ" {
            continue;
        }
        let length = u32::from_le_bytes(bytes[44..48].try_into().unwrap()) as usize;
        if let Some(records) = bytes[64..].get(..length) {
            let sum = crc32c::crc32c_append(seed, records);
            bytes[52..56].copy_from_slice(&sum.to_le_bytes());
        }
        let sum = crc32c::crc32c_append(seed, &bytes[..60]);
        bytes[60..64].copy_from_slice(&sum.to_le_bytes());
    }
}

#[test]
fn no_journal_makes_a_store_panic() {
    let mut opened = 0;
    for_each_seed(3_000, |rng| {
        let mut shell = used(rng);
        let journal = 128 << 10..(128 + 8 * 16) << 10;
        let mut bytes = shell.disk.read(0, journal.clone()).unwrap().to_vec();
        // What is used of the first segment, and all of it.
        let reach = *rng.pick(&[600, 4096, bytes.len()]);
        for _ in 0..rng.range(1..6) {
            damage::in_place(rng, &mut bytes[..reach]);
        }
        if rng.chance(3, 4) {
            sign(&mut bytes, shell.superblock.uuid());
        }
        shell.write(journal.start as u64, &bytes).unwrap();
        if shell.open().unwrap().is_err() && shell.open_accepting(true).unwrap().is_err() {
            return;
        }
        // STORE-7: whatever it holds now, it can be used.
        opened += 1;
        let chunks = shell.store.versions(None, usize::MAX);
        let chunks: Vec<_> = chunks
            .map(|chunk| {
                (
                    chunk.id.0,
                    chunk.committed.map(|state| state.version.0),
                    chunk.pending.map(|state| state.version),
                )
            })
            .collect();
        for (id, committed, pending) in chunks {
            let _bytes_or_not = shell.read(id, Which::Committed);
            if let Some(version) = pending {
                let _bytes_or_not = shell.read(id, Which::Pending(version));
                shell
                    .store
                    .discard(chunk_store::ChunkKey(id), version)
                    .unwrap();
            }
            let next = committed.unwrap_or(0).saturating_add(1);
            let (edit, new) = any_edit(rng, 4096);
            let _done_or_refused = shell.put(id, next, committed, edit, &new);
        }
        shell.sync();
        shell.open().unwrap().ok();
    });
    print_count("opened", opened);
}

#[test]
fn one_block_in_too_many_records_is_given_to_one() {
    let geometry = Geometry {
        segments: 32,
        segment_bytes: 64 << 10,
        ..geometry(8, 100)
    };
    let mut shell = Shell::new(&mut Rng::new(1), geometry);
    let uuid = shell.superblock.uuid();
    // 580 chunks with 2 states of 64 blocks each, all of them the first.
    for sequence in 2..12_u64 {
        let mut batch = b"FFCHUNKJ".to_vec();
        for number in [sequence, sequence - 1, 1, sequence] {
            batch.extend(number.to_le_bytes());
        }
        batch.extend(0_u32.to_le_bytes());
        batch.extend((58 * 1092_u32).to_le_bytes());
        batch.extend(58_u32.to_le_bytes());
        batch.resize(64, 0);
        for record in 0..58 {
            batch.extend(u128::from(sequence * 100 + record).to_le_bytes());
            batch.extend([1, 1, 0, 0]);
            for version in [1_u128, 2] {
                batch.extend(version.to_le_bytes());
                batch.extend([0; 4]);
                batch.extend((64_u32 << 10).to_le_bytes());
                batch.extend([0; 512]);
            }
        }
        batch.resize(64 << 10, 0);
        sign(&mut batch, uuid);
        let at = (128 << 10) + sequence * (64 << 10);
        shell.write(at, &batch).unwrap();
    }
    let summary = shell.open().unwrap().unwrap();
    assert_eq!((summary.chunks, summary.damaged), (580, 580), "STORE-7");
    assert_eq!(shell.store.usage().free_blocks, 100, "STORE-3");
}
