//! A journal that goes round many times, with few and with many chunks.

use chunk_store::{ChunkKey, StateEdit, StateVersion, Which};
use sim::{Rng, for_each_seed, is_replay, print_count};

use crate::shell::{Shell, geometry};

/// Overwrites chunks at random until the journal has gone round so often. How many edits were not in the next batch.
fn goes_round(rng: &mut Rng, shell: &mut Shell, chunks: u128, notes: usize, rounds: u64) -> u64 {
    let mut versions = vec![None; chunks as usize];
    let (mut next, mut late) = (0, 0);
    let goal = shell.rounds + rounds;
    while shell.rounds < goal {
        next += 1;
        // All of them once, and then a few most of the time.
        let at = match versions.iter().position(Option::is_none) {
            Some(at) => at,
            None if rng.chance(1, 4) => rng.below(versions.len()),
            None => rng.below(versions.len().min(3)),
        };
        let (id, base) = (at as u128, versions[at]);
        let edit = StateEdit::Replace { length: 1 };
        let noted = vec![1; notes];
        let edited = shell.edit_noted(id, next, base, edit, &[next as u8], noted);
        assert_eq!(edited, Ok(true), "STORE-6: chunk {id} of {chunks}");
        shell.write_batch().unwrap();
        late += u64::from(shell.flush().unwrap().is_empty());
        shell.sync();
        shell
            .store
            .commit(ChunkKey(id), StateVersion(next))
            .unwrap();
        shell.sync();
        versions[at] = Some(next);
    }
    shell.cut_power();
    shell.open().unwrap().unwrap();
    for (id, version) in versions.into_iter().enumerate() {
        let bytes = shell.read(id as u128, Which::Committed).ok();
        let expected = version.map(|version| vec![version as u8]);
        assert_eq!(bytes, expected, "STORE-6");
    }
    shell.check_blocks();
    late
}

#[test]
fn a_journal_with_few_chunks_goes_round() {
    for_each_seed(20, |rng| {
        let mut shell = Shell::new(rng, geometry(8, 64));
        let chunks = rng.range(1..4).into();
        let late = goes_round(rng, &mut shell, chunks, 100, 5);
        assert_eq!(late, 0, "STORE-6: nothing waits for cleaning");
    });
}

#[test]
fn a_journal_that_is_as_full_as_it_may_be_goes_round() {
    let (mut most, mut most_late) = (0, 0);
    for_each_seed(12, |rng| {
        let segments = *rng.pick(&[8, 9, 16, 40]);
        let notes = *rng.pick(&[1, 300, 2000]);
        let mut shell = Shell::new(rng, geometry(segments, 5000));
        let mut chunks = 0;
        let edit = StateEdit::Replace { length: 1 };
        while shell.edit_noted(chunks, 1, None, edit, &[1], vec![0; notes]) == Ok(true) {
            chunks += 1;
        }
        // Each of them in turn has a second state.
        let mut shell = Shell::new(rng, geometry(segments, 5000));
        let late = goes_round(rng, &mut shell, (chunks - 1).max(1), notes, 3);
        // The smallest rings have too few segments for cleaning to keep pace.
        assert!(late == 0 || segments < 16, "STORE-6: {late} edits waited");
        most_late = most_late.max(late);
        most = most.max(chunks as u64);
    });
    assert!(is_replay() || most_late > 0, "the reserve was needed");
    print_count("chunks", most);
}
