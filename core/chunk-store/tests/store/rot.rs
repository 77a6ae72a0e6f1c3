//! Bits that flip and sectors that cannot be read any more, in what was flushed: a read returns what was written or says
//! that it cannot, and a store whose journal has lost records says so when it opens.

use std::collections::BTreeMap;

use chunk_store::{ChunkKey, RecoveryError, Refused, StateEdit, StateVersion, Which};
use sim::{Rng, for_each_seed, is_replay, print_count};

use crate::edits::{any_edit, edited};
use crate::shell::{NoBytes, Shell, geometry};

/// A store and what each version of each chunk held.
struct Rotting {
    shell: Shell,
    written: BTreeMap<(u128, u128), Vec<u8>>,
    newest: BTreeMap<u128, u128>,
    /// The same before the last change.
    before: BTreeMap<u128, u128>,
}

impl Rotting {
    fn new(rng: &mut Rng) -> Self {
        let mut rotting = Self {
            shell: Shell::new(rng, geometry(8, 64)),
            written: BTreeMap::new(),
            newest: BTreeMap::new(),
            before: BTreeMap::new(),
        };
        for version in 1..rng.range(5..40) {
            rotting.puts(rng, version.into());
        }
        rotting
    }

    fn puts(&mut self, rng: &mut Rng, version: u128) {
        let id = rng.range(0..5).into();
        let base = self.newest.get(&id).copied();
        let (edit, new) = any_edit(rng, 6 << 10);
        let old = base.map(|base| self.written[&(id, base)].clone());
        match self.shell.put(id, version, base, edit, &new) {
            Ok(()) => {}
            Err(Refused::Full) => return,
            Err(other) => panic!("{other}"),
        }
        self.before.clone_from(&self.newest);
        match edited(old.as_deref(), edit, &new) {
            Some(bytes) => {
                self.written.insert((id, version), bytes);
                self.newest.insert(id, version);
            }
            None => drop(self.newest.remove(&id)),
        }
    }

    /// Each chunk holds what was written as the version it says, or is known to be damaged. How many are.
    fn check(&mut self) -> u64 {
        let chunks = self.shell.store.versions(None, usize::MAX);
        let chunks: Vec<_> = chunks.map(|chunk| (chunk.id.0, chunk.committed)).collect();
        let versions: Vec<_> = chunks
            .into_iter()
            .filter_map(|(id, committed)| Some((id, committed?.version.0)))
            .collect();
        let mut damaged = 0;
        for (id, version) in versions {
            match self.shell.read(id, Which::Committed) {
                Ok(bytes) => assert_eq!(bytes, self.written[&(id, version)], "STORE-4"),
                Err(no_bytes) => {
                    let known = NoBytes::Refused(Refused::Damaged(StateVersion(version)));
                    assert!(
                        no_bytes == known || no_bytes == NoBytes::Bad,
                        "{no_bytes:?}"
                    );
                    assert_eq!(self.shell.read(id, Which::Committed), Err(known), "STORE-4");
                    assert!(self.shell.store.damaged().any(|one| one.0 == id), "STORE-4");
                    damaged += 1;
                }
            }
        }
        damaged
    }
}

#[test]
fn rot_is_never_read_and_a_journal_that_lost_something_is_noticed() {
    let (mut damaged, mut lost, mut back) = (0, 0, 0);
    for_each_seed(1_500, |rng| {
        let mut rotting = Rotting::new(rng);
        let total = rotting.shell.superblock.geometry().total_bytes() as usize;
        for _ in 0..rng.range(1..40) {
            match rng.chance(1, 2) {
                true => drop(rotting.shell.disk.rot(0)),
                false => rotting.shell.disk.lose_sector(0, rng.below(total)),
            }
        }
        let found = rotting.check();
        damaged += found;
        // What was found stays known.
        rotting.shell.sync();
        match rotting.shell.open().unwrap() {
            Ok(summary) => {
                assert!(summary.damaged as u64 >= found, "STORE-4");
                let versions = rotting.shell.store.versions(None, usize::MAX);
                let committed =
                    versions.map(|chunk| Some((chunk.id.0, chunk.committed?.version.0)));
                let committed: BTreeMap<_, _> = committed.flatten().collect();
                // The last batch may be gone: nobody knows that it was flushed. One that says what was found is later.
                let is_before = found == 0 && committed == rotting.before;
                assert!(committed == rotting.newest || is_before, "STORE-7");
                back += u64::from(is_before);
            }
            Err(error) => {
                assert!(
                    matches!(
                        error,
                        RecoveryError::Lost { .. } | RecoveryError::Empty { .. }
                    ),
                    "{error}"
                );
                lost += 1;
                let accepted = rotting.shell.open_accepting(true).unwrap();
                match accepted {
                    Ok(summary) => assert!(summary.lost > 0, "STORE-7"),
                    Err(error) => return assert!(matches!(error, RecoveryError::Empty { .. })),
                }
            }
        }
        rotting.check();
        rotting.shell.sync();
        rotting.check();
    });
    assert!(is_replay() || damaged.min(lost) > 100, "{damaged} {lost}");
    print_count("damaged", damaged);
    print_count("lost", lost);
    print_count("back", back);
}

#[test]
fn a_damaged_chunk_is_replaced_in_its_own_version() {
    let mut shell = Shell::new(&mut Rng::new(1), geometry(8, 64));
    let all = StateEdit::Replace { length: 2000 };
    shell.put(1, 5, None, all, &[1; 2000]).unwrap();
    let (guard, plan) = shell
        .store
        .read(ChunkKey(1), Which::Committed, 0..1)
        .unwrap();
    shell.store.end_read(guard).unwrap();
    let at = plan.pieces[0].at.unwrap();
    shell.disk.lose_sector(0, at as usize);
    let part = StateEdit::Write {
        offset: 0,
        length: 1,
    };
    assert_eq!(
        shell.edit(1, 6, Some(5), part, &[2]),
        Ok(false),
        "the old block is read"
    );
    assert!(shell.store.damaged().eq([ChunkKey(1)]));
    shell.sync();
    shell.cut_power();
    shell.open().unwrap().unwrap();
    let damaged = Err(Refused::Damaged(StateVersion(5)));
    assert_eq!(shell.edit(1, 6, Some(5), part, &[2]), damaged, "STORE-4");
    shell.put(1, 5, Some(5), all, &[1; 2000]).unwrap();
    assert_eq!(shell.read(1, Which::Committed).unwrap(), [1; 2000]);
    assert_eq!(shell.store.damaged().next(), None);
    let not_newer = Err(Refused::NotNewer(StateVersion(5)));
    assert_eq!(shell.put(1, 5, Some(5), all, &[1; 2000]), not_newer);
    shell.check_blocks();
}

#[test]
fn what_is_written_while_its_block_is_found_damaged_is_damaged_too() {
    let mut shell = Shell::new(&mut Rng::new(1), geometry(8, 64));
    shell
        .put(1, 1, None, StateEdit::Replace { length: 2048 }, &[1; 2048])
        .unwrap();
    let (id, version) = (ChunkKey(1), StateVersion(2));
    let part = StateEdit::Write {
        offset: 0,
        length: 1024,
    };
    let prepared = shell
        .store
        .prepare(id, version, Some(StateVersion(1)), part, Vec::new());
    let (ticket, plans) = prepared.unwrap();
    let (guard, plan) = shell.store.read(id, Which::Committed, 1024..2048).unwrap();
    shell.store.end_read(guard).unwrap();
    assert!(
        shell
            .store
            .mark_damaged(id, plan.pieces[0].at.unwrap())
            .unwrap()
    );
    let sums = shell.fill(id, &plans, &[2; 1024]).unwrap().unwrap();
    shell.store.written(ticket, &sums).unwrap();
    shell.sync();
    shell.store.commit(id, version).unwrap();
    let damaged = Err(NoBytes::Refused(Refused::Damaged(version)));
    assert_eq!(shell.read(1, Which::Committed), damaged, "STORE-4");
}

#[test]
fn a_flushed_batch_that_only_a_torn_one_knows_of_is_missed() {
    let mut shell = Shell::new(&mut Rng::new(1), geometry(8, 64));
    let all = StateEdit::Replace { length: 1 };
    shell.put(1, 1, None, all, &[1]).unwrap();
    shell
        .edit_noted(1, 2, Some(1), all, &[2], vec![1; 1000])
        .unwrap();
    let last = shell.store.take_batch().unwrap();
    shell.write(last.at, &last.bytes).unwrap();
    shell.written = Some(last.sequence);
    shell.flush().unwrap();
    shell
        .edit_noted(2, 1, None, all, &[2], vec![1; 1000])
        .unwrap();
    let torn = shell.store.take_batch().unwrap();
    shell.write(torn.at, &torn.bytes[..512]).unwrap();
    shell.flush().unwrap();
    let mut cut = shell.disk.clone();
    shell.cut_power();
    let summary = shell.open().unwrap().unwrap();
    assert_eq!((summary.torn, summary.chunks), (1, 1));
    cut.lose_sector(0, last.at as usize + 512);
    shell.disk = cut;
    let opened = shell.open().unwrap();
    let lost = RecoveryError::Lost {
        batches: 1,
        near: last.sequence,
    };
    assert_eq!(opened, Err(lost), "STORE-7");
}
