//! Power cuts after any step of the disk, in random use and while the store opens, and flushes that fail.

use chunk_store::{
    ChunkKey, RecoveryError, RecoveryStep, Refused, StateEdit, StateVersion, StoreRecovery, Which,
};
use sim::{Rng, explore, is_replay, print_count};

use crate::shell::{NoBytes, Shell, geometry};
use crate::world::World;

/// Two batches, one torn over the other, made the first one whole.
const TORN_TWICE: u64 = 30_125_815_156_971_731;

#[test]
fn a_power_cut_after_any_step_takes_nothing_that_was_acknowledged() {
    let (mut cuts, mut damaged, mut torn) = (0, 0, 0);
    explore(2_000, &[TORN_TWICE], |rng| {
        let mut world = World::new(rng.fork());
        // Some begin with a journal that has gone round.
        if rng.chance(1, 8) {
            while world.shell.rounds == 0 {
                world.happens().unwrap();
            }
        }
        for _ in 0..rng.range(1..6) {
            world.shell.steps_left = Some(rng.range(1..60));
            while world.happens().is_ok() {}
            let summary = world.reopens(rng.range(0..3));
            cuts += 1;
            damaged += summary.damaged as u64;
            torn += summary.torn as u64;
        }
    });
    assert!(is_replay() || damaged.min(torn) > 20, "{damaged} {torn}");
    print_count("cuts", cuts);
    print_count("damaged", damaged);
    print_count("torn", torn);
}

#[test]
fn after_a_flush_that_failed_the_store_opens_with_what_will_stay() {
    explore(500, &[], |rng| {
        let mut world = World::new(rng.fork());
        for _ in 0..rng.range(1..4) {
            for _ in 0..rng.range(0..150) {
                world.happens().unwrap();
            }
            world.flush_fails();
            for _ in 0..rng.range(0..20) {
                world.happens().unwrap();
            }
            world.reopens(0);
        }
    });
}

#[test]
fn blocks_that_a_power_cut_took_are_missed_for_good() {
    // So that some run ends where a segment has room for two of the three records.
    for before in 0..16 {
        let mut shell = Shell::new(&mut Rng::new(1), geometry(8, 64));
        let all = StateEdit::Replace { length: 1 };
        for _ in 0..before {
            shell.edit(9, 1, None, all, &[1]).unwrap();
            shell.sync();
            shell.store.discard(ChunkKey(9), StateVersion(1)).unwrap();
            shell.sync();
        }
        let mut lost = Vec::new();
        for id in 0..3 {
            shell
                .edit_noted(id, 1, None, all, &[1], vec![0; 2000])
                .unwrap();
            let which = Which::Pending(StateVersion(1));
            let (guard, plan) = shell.store.read(ChunkKey(id), which, 0..1).unwrap();
            shell.store.end_read(guard).unwrap();
            lost.extend(plan.pieces[0].at);
        }
        shell.write_batch().unwrap();
        if shell.flush().unwrap().len() < 3 {
            continue;
        }
        for at in lost {
            shell.disk.lose_sector(0, at as usize);
        }
        shell.cut_power();
        assert_eq!(shell.open().unwrap().unwrap().damaged, 3);
        shell.write_batch().unwrap();
        shell.flush().unwrap();
        shell.cut_power();
        assert_eq!(
            shell.open().unwrap().unwrap().damaged,
            3,
            "STORE-4: {before}"
        );
        shell.store.commit(ChunkKey(2), StateVersion(1)).unwrap();
        let found = shell.read(2, Which::Committed);
        let damaged = Refused::Damaged(StateVersion(1));
        assert_eq!(found, Err(NoBytes::Refused(damaged)), "STORE-4");
    }
}

#[test]
fn a_recovery_is_carried_out_in_its_order() {
    let shell = Shell::new(&mut Rng::new(1), geometry(8, 64));
    let mut recovery = StoreRecovery::new(shell.superblock, false);
    let out_of_turn = RecoveryError::OutOfTurn;
    assert_eq!(recovery.done(), Err(out_of_turn));
    let mut steps = 0;
    while recovery.done() == Err(out_of_turn) {
        let RecoveryStep::Read { at, bytes } = recovery.step() else {
            panic!("{:?}", recovery.step());
        };
        let read = shell.block(at, bytes as u32);
        recovery.read(read.as_deref()).unwrap();
        steps += 1;
    }
    assert_eq!((steps, recovery.step()), (8, RecoveryStep::Flush));
    assert_eq!(recovery.read(None), Err(out_of_turn));
    assert_eq!(recovery.finish().err(), Some(out_of_turn));
}
