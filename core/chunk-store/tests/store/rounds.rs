//! A journal that goes round many times, with few and with many chunks.

use chunk_store::{Edit, Refused, Which};
use sim::{Rng, for_each_seed, print_count};

use crate::shell::{Shell, geometry};

/// Overwrites chunks at random until the journal has gone round so often. How many batches that took, and how many
/// changes there were.
fn goes_round(rng: &mut Rng, shell: &mut Shell, chunks: u128, notes: usize, rounds: u64) {
    let mut versions = vec![None; chunks as usize];
    let mut next = 0;
    let goal = shell.rounds + rounds;
    while shell.rounds < goal {
        next += 1;
        let at = rng.below(versions.len());
        let (id, base) = (at as u128, versions[at]);
        let edit = Edit::Replace { length: 1 };
        let new = [next as u8];
        // The first batches of each run are the smallest that there are, others hold more.
        let edited = shell.edit_noted(id, next, base, edit, &new, vec![1; notes]);
        assert_eq!(edited, Ok(true), "STORE-6: chunk {id} of {chunks}");
        let batch = shell.store.take_batch().expect("STORE-6");
        assert!(batch.bytes.len() <= 64 << 10, "STORE-6: a batch is bounded");
        shell.write(batch.at, &batch.bytes).unwrap();
        shell.written = Some(batch.sequence);
        shell.flush().unwrap();
        shell.sync();
        shell
            .store
            .commit(chunk_store::ChunkId(id), chunk_store::Version(next))
            .unwrap();
        shell.sync();
        versions[at] = Some(next);
    }
    shell.cut_power();
    shell.open().unwrap().unwrap();
    for (id, version) in versions.into_iter().enumerate() {
        let bytes = shell.read(id as u128, Which::Committed).ok();
        assert_eq!(bytes, version.map(|version| vec![version as u8]), "STORE-6");
    }
    shell.check_blocks();
}

#[test]
fn a_journal_with_few_chunks_goes_round() {
    for_each_seed(20, |rng| {
        let mut shell = Shell::new(rng, geometry(8, 64));
        let chunks = rng.range(1..4).into();
        goes_round(rng, &mut shell, chunks, 100, 5);
    });
}

#[test]
fn a_journal_that_is_as_full_as_it_may_be_goes_round() {
    let mut most = 0;
    for_each_seed(12, |rng| {
        let segments = *rng.pick(&[8, 9, 16, 40]);
        let notes = *rng.pick(&[1, 300, 2000]);
        let mut shell = Shell::new(rng, geometry(segments, 5000));
        // As many chunks as fit, all of which are committed.
        let mut chunks = 0;
        loop {
            let edit = Edit::Replace { length: 1 };
            match shell.edit_noted(chunks, 1, None, edit, &[1], vec![0; notes]) {
                Ok(_) => chunks += 1,
                Err(Refused::Full) => break,
                Err(other) => panic!("{other}"),
            }
        }
        // One of them is edited at a time.
        let mut shell = Shell::new(rng, geometry(segments, 5000));
        goes_round(rng, &mut shell, (chunks - 1).max(1), notes, 3);
        most = most.max(chunks as u64);
    });
    print_count("chunks", most);
}
