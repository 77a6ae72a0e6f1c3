//! A disk as the release of 2026-11-22 (commit e7d0cdb1) left it: this release opens it, and one of that release opens
//! what this one has left.

use std::fmt::Write as _;

use chunk_store::{ChunkKey, RecoverySummary, StateEdit, StateVersion, Which};
use sim::Rng;

use crate::shell::{Shell, geometry};

const DISK: &str = include_str!("kept/disk.txt");
const SECTOR: usize = 512;

/// A store with each kind of record: long and short contents, holes, notes, contents and removals that are pending.
fn full() -> Shell {
    let mut shell = Shell::new(&mut Rng::new(1), geometry(8, 64));
    let write = |offset, length| StateEdit::Write { offset, length };
    let cut = |length| StateEdit::Truncate { length };
    let all = |length| StateEdit::Replace { length };
    shell.put(1, 1, None, all(2500), &[0xa1; 2500]).unwrap();
    let part = write(1000, 700);
    shell.put(1, 2, Some(1), part, &[0xa2; 700]).unwrap();
    shell.put(2, 1, None, write(9000, 3), b"end").unwrap();
    shell.put(2, 2, Some(1), cut(9001), &[]).unwrap();
    shell.put(3, 1, None, all(1), b"x").unwrap();
    shell.put(3, 2, Some(1), StateEdit::Remove, &[]).unwrap();
    let (notes, pending) = (b"notes".to_vec(), b"pending".to_vec());
    let edit = all(4);
    shell.edit_noted(4, 1, None, edit, b"four", notes).unwrap();
    shell.sync();
    shell.store.commit(ChunkKey(4), StateVersion(1)).unwrap();
    let edit = write(2, 1200);
    let new = [0xb4; 1200];
    shell
        .edit_noted(4, 2, Some(1), edit, &new, pending)
        .unwrap();
    shell
        .put(u128::MAX, 1, None, all(1024), &[0xff; 1024])
        .unwrap();
    shell
        .edit(u128::MAX, 2, Some(1), StateEdit::Remove, &[])
        .unwrap();
    shell.sync();
    shell
}

/// A line for each sector that is not all zeros: its number, and its bytes in hexadecimal without zeros at the end. A
/// byte that is there more than once is followed by `x`, the number of times and `.`.
fn text(shell: &Shell) -> String {
    let mut text = String::new();
    let total = shell.superblock.geometry().total_bytes() as usize;
    for number in 0..total / SECTOR {
        let sector = shell
            .block((number * SECTOR) as u64, SECTOR as u32)
            .unwrap();
        let length = sector.iter().rposition(|byte| *byte != 0);
        let Some(length) = length.map(|last| last + 1) else {
            continue;
        };
        write!(text, "{number} ").unwrap();
        for run in sector[..length].chunk_by(|one, next| one == next) {
            match run.len() {
                1 => write!(text, "{:02x}", run[0]).unwrap(),
                times => write!(text, "{:02x}x{times}.", run[0]).unwrap(),
            }
        }
        text.push('\n');
    }
    text
}

fn sector(mut text: &str) -> Vec<u8> {
    let mut sector = Vec::new();
    while !text.is_empty() {
        let (byte, rest) = text.split_at(2);
        let byte = u8::from_str_radix(byte, 16).unwrap();
        let run = rest.strip_prefix('x').and_then(|rest| rest.split_once('.'));
        let (times, rest) = run.map_or((1, rest), |(times, rest)| (times.parse().unwrap(), rest));
        sector.extend(vec![byte; times]);
        text = rest;
    }
    sector.resize(SECTOR, 0);
    sector
}

/// A disk that holds this.
fn disk(text: &str) -> Shell {
    let mut shell = Shell::new(&mut Rng::new(1), geometry(8, 64));
    for line in text.lines() {
        let (number, bytes) = line.split_once(' ').unwrap();
        let at = number.parse::<usize>().unwrap() * SECTOR;
        shell.write(at as u64, &sector(bytes)).unwrap();
    }
    shell.flush().unwrap();
    shell
}

#[test]
fn a_disk_of_an_earlier_release_is_read() {
    let mut shell = disk(DISK);
    let summary = shell.open().unwrap().unwrap();
    let expected = RecoverySummary {
        chunks: 4,
        damaged: 0,
        torn: 0,
        lost: 0,
    };
    assert_eq!(summary, expected);
    let mut long = vec![0xa1; 2500];
    long[1000..1700].fill(0xa2);
    assert_eq!(shell.read(1, Which::Committed), Ok(long));
    let mut holes = vec![0; 9001];
    holes[9000] = b'e';
    assert_eq!(shell.read(2, Which::Committed), Ok(holes));
    assert!(shell.store.chunk(ChunkKey(3)).is_none());
    let chunk = shell.store.chunk(ChunkKey(4)).unwrap();
    let notes = (chunk.committed.unwrap().notes, chunk.pending.unwrap().notes);
    assert_eq!(notes, (&b"notes"[..], &b"pending"[..]));
    assert_eq!(shell.read(4, Which::Committed), Ok(b"four".to_vec()));
    let pending = shell.read(4, Which::Pending(StateVersion(2))).unwrap();
    assert_eq!(
        (&pending[..2], &pending[2..]),
        (&b"four"[..2], &[0xb4; 1200][..])
    );
    let last = ChunkKey(u128::MAX);
    let removal = shell.store.chunk(last).unwrap().pending.unwrap();
    assert!(removal.is_removal && removal.is_durable);
    shell.store.commit(last, StateVersion(2)).unwrap();
    shell.sync();
    shell.check_blocks();
}

#[test]
fn this_release_writes_what_an_earlier_one_did() {
    let text = text(&full());
    assert!(text == DISK, "{text}");
}
