//! A disk without room: writes are refused, what makes room is not, and the room comes back.

use chunk_store::{BatchDue, ChunkKey, Refused, StateEdit, StateVersion, Which};
use sim::Rng;

use crate::shell::{Shell, geometry};

fn all(length: u32) -> StateEdit {
    StateEdit::Replace { length }
}

/// Removes these chunks, all at version 1.
fn remove(shell: &mut Shell, ids: impl Iterator<Item = u128>) {
    for id in ids {
        shell
            .put(id, 2, Some(1), StateEdit::Remove, &[])
            .expect("STORE-5");
    }
}

#[test]
fn blocks_run_out_and_come_back() {
    let mut shell = Shell::new(&mut Rng::new(1), geometry(16, 64));
    for id in 0..16 {
        shell
            .put(id, 1, None, all(4096), &[id as u8; 4096])
            .unwrap();
    }
    assert_eq!(shell.store.usage().free_blocks, 0);
    let full = Err(Refused::Full);
    assert_eq!(shell.put(16, 1, None, all(1), &[1]), full, "STORE-5");
    let part = StateEdit::Write {
        offset: 0,
        length: 1,
    };
    assert_eq!(
        shell.put(3, 2, Some(1), part, &[1]),
        full,
        "nothing is written over"
    );
    // Zeros take no room, and neither does cutting off.
    let cut = StateEdit::Truncate { length: 2048 };
    shell.put(4, 2, Some(1), cut, &[]).unwrap();
    shell.put(3, 2, Some(1), part, &[99]).unwrap();
    assert_eq!(shell.read(3, Which::Committed).unwrap()[..2], [99, 3]);
    remove(&mut shell, 5..16);
    assert_eq!(shell.store.usage().free_blocks, 2 + 44);
    shell.check_blocks();
}

#[test]
fn blocks_of_a_removed_chunk_are_free_when_its_end_is_flushed_and_nobody_reads_them() {
    let mut shell = Shell::new(&mut Rng::new(1), geometry(16, 4));
    shell.put(1, 1, None, all(4096), &[7; 4096]).unwrap();
    let (guard, plan) = shell
        .store
        .read(ChunkKey(1), Which::Committed, 0..4096)
        .unwrap();
    shell.edit(1, 2, Some(1), StateEdit::Remove, &[]).unwrap();
    shell.sync();
    shell.store.commit(ChunkKey(1), StateVersion(2)).unwrap();
    shell.write_batch().unwrap();
    let free = |shell: &Shell| shell.store.usage().free_blocks;
    assert_eq!(free(&shell), 0, "STORE-3: the removal is not flushed");
    shell.flush().unwrap();
    assert_eq!(free(&shell), 0, "STORE-3: they are read");
    assert_eq!(shell.read_plan(&plan).unwrap(), [7; 4096]);
    shell.store.end_read(guard).unwrap();
    assert_eq!(free(&shell), 4);
}

#[test]
fn the_journal_runs_out_and_comes_back() {
    let mut shell = Shell::new(&mut Rng::new(1), geometry(8, 2000));
    for round in 0..5 {
        let first = round * 1000;
        let mut last = first;
        while shell.put(last, 1, None, all(0), &[]) == Ok(()) {
            last += 1;
        }
        assert!(
            last - first > 100,
            "round {round}: only {} chunks",
            last - first
        );
        assert_eq!(shell.put(last, 1, None, all(0), &[]), Err(Refused::Full));
        shell.cut_power();
        shell.open().unwrap().unwrap();
        assert_eq!(
            shell.put(last, 1, None, all(0), &[]),
            Err(Refused::Full),
            "STORE-5"
        );
        remove(&mut shell, first..last);
        assert_eq!(shell.store.usage().chunks, 0);
    }
}

#[test]
fn pending_states_of_a_full_store_can_be_committed_and_discarded() {
    let mut shell = Shell::new(&mut Rng::new(1), geometry(8, 2000));
    let mut last = 0;
    while shell.edit(last, 1, None, all(1024), &[1; 1024]) == Ok(true) {
        last += 1;
    }
    shell.sync();
    for id in 0..last {
        let done = match id % 2 {
            0 => shell.store.commit(ChunkKey(id), StateVersion(1)),
            _ => shell.store.discard(ChunkKey(id), StateVersion(1)),
        };
        done.expect("STORE-5");
    }
    shell.sync();
    remove(&mut shell, (0..last).step_by(2));
    assert_eq!(shell.store.usage().free_blocks, 2000);
}

#[test]
fn what_is_under_way_is_bounded() {
    let mut shell = Shell::new(&mut Rng::new(1), geometry(100, 5000));
    let mut tickets = Vec::new();
    let refused = loop {
        let id = ChunkKey(tickets.len() as u128);
        match shell
            .store
            .prepare(id, StateVersion(1), None, all(0), Vec::new())
        {
            Ok((ticket, _)) => tickets.push(ticket),
            Err(refused) => break refused,
        }
    };
    assert_eq!((refused, tickets.len()), (Refused::Busy, 4096));
    for ticket in tickets {
        shell.store.abandon(ticket).unwrap();
    }
    assert_eq!(shell.store.usage().record_bytes, 0);
    let notes = vec![0; chunk_store::NOTES_LIMIT_BYTES + 1];
    let noted = shell
        .store
        .prepare(ChunkKey(1), StateVersion(1), None, all(0), notes);
    assert_eq!(noted.unwrap_err(), Refused::LongNotes);
    shell.put(1, 1, None, all(1), &[1]).unwrap();
    let mut read = || shell.store.read(ChunkKey(1), Which::Committed, 0..1);
    let reads = std::iter::from_fn(|| read().ok()).count();
    assert_eq!((reads, read().unwrap_err()), (16_384, Refused::Busy));
}

/// Makes a chunk pending, with long notes or none.
fn pend(shell: &mut Shell, id: u128, version: u128, base: Option<u128>, notes: usize) -> bool {
    let edited = shell.edit_noted(id, version, base, all(0), &[], vec![1; notes]);
    match edited {
        Ok(is_written) => is_written,
        Err(Refused::Full) => false,
        Err(other) => panic!("{other}"),
    }
}

fn discard(shell: &mut Shell, id: u128, version: u128) {
    shell
        .store
        .discard(ChunkKey(id), StateVersion(version))
        .unwrap();
}

/// Chunks that were queued before they grew.
const GROWING: std::ops::Range<u128> = 100..140;

fn grow(shell: &mut Shell) {
    for id in GROWING {
        discard(shell, id, 1);
        if !pend(shell, id, 2, None, 2000) {
            return;
        }
    }
}

#[test]
fn a_power_cut_brings_back_no_more_than_fits() {
    for batches in 1..8 {
        let mut shell = Shell::new(&mut Rng::new(1), geometry(40, 64));
        let mut last = 0;
        while pend(&mut shell, last, 1, None, 2000) {
            shell.sync();
            shell.store.commit(ChunkKey(last), StateVersion(1)).unwrap();
            if !pend(&mut shell, last, 2, Some(1), 2000) {
                break;
            }
            last += 1;
        }
        shell.sync();
        for id in GROWING {
            pend(&mut shell, id, 1, None, 0);
        }
        for id in 0..last {
            discard(&mut shell, id, 2);
        }
        grow(&mut shell);
        for _ in 0..batches {
            shell.write_batch().unwrap();
            shell.flush().unwrap();
        }
        shell.cut_power();
        shell.open().unwrap().expect("STORE-5");
    }
}

#[test]
fn a_batch_under_way_counts_too() {
    for before in 0..16 {
        let mut shell = Shell::new(&mut Rng::new(1), geometry(8, 64));
        for _ in 0..before {
            pend(&mut shell, 9, 1, None, 0);
            shell.sync();
            discard(&mut shell, 9, 1);
            shell.sync();
        }
        let last = (0..9)
            .find(|&id| !pend(&mut shell, id, 1, None, 2000))
            .unwrap();
        shell.write_batch().unwrap();
        for id in GROWING {
            pend(&mut shell, id, 1, None, 0);
        }
        for id in 0..last {
            discard(&mut shell, id, 1);
        }
        grow(&mut shell);
        shell.flush().unwrap();
        shell.write_batch().unwrap();
        shell.flush().unwrap();
        shell.cut_power();
        shell.open().unwrap().expect("STORE-5");
    }
}

#[test]
fn a_batch_is_waited_for_where_it_makes_something_durable_or_frees_what_is_scarce() {
    let mut shell = Shell::new(&mut Rng::new(1), geometry(16, 64));
    assert_eq!(shell.store.batch_due(), BatchDue::Never);
    shell.edit(1, 1, None, all(4096), &[1; 4096]).unwrap();
    assert_eq!(shell.store.batch_due(), BatchDue::Now);
    shell.write_batch().unwrap();
    assert_eq!(shell.store.batch_due(), BatchDue::Never);
    shell.flush().unwrap();
    shell.store.commit(ChunkKey(1), StateVersion(1)).unwrap();
    assert_eq!(shell.store.batch_due(), BatchDue::Later);
    // With the next content it goes as well.
    shell.edit(2, 1, None, all(4096), &[2; 4096]).unwrap();
    assert_eq!(shell.store.batch_due(), BatchDue::Now);
    shell.sync();
    assert_eq!(shell.store.batch_due(), BatchDue::Never);
    for id in 3..16 {
        shell
            .put(id, 1, None, all(4096), &[id as u8; 4096])
            .unwrap();
    }
    shell.edit(16, 1, None, all(4096), &[16; 4096]).unwrap();
    shell.sync();
    shell.store.commit(ChunkKey(16), StateVersion(1)).unwrap();
    assert_eq!(
        shell.store.batch_due(),
        BatchDue::Now,
        "{} blocks are free",
        shell.store.usage().free_blocks
    );
}
