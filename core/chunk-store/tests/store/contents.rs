//! Contents after random edits, commits, discards and reads, compared with a model's; what a store lists and refuses.

use chunk_store::{ChunkKey, Refused, StateEdit, StateVersion, Which};
use sim::{Rng, explore, print_count};

use crate::shell::{Shell, geometry};
use crate::world::World;

#[test]
fn a_store_holds_what_was_put_into_it() {
    let (mut steps, mut full) = (0, 0);
    explore(300, &[207], |rng| {
        let mut world = World::new(rng.fork());
        for round in 0..400 {
            world.happens().unwrap();
            if round % 100 == 99 {
                world.settles().unwrap();
                world.check();
                world.shell.check_blocks();
            }
        }
        let before = world.now.clone();
        world.reopens(0);
        world.now = before;
        world.check();
        steps += world.shell.steps;
        full += world.full;
    });
    print_count("steps", steps);
    print_count("full", full);
}

#[test]
fn chunks_are_listed_in_pages_with_their_states_and_notes() {
    let mut shell = Shell::new(&mut Rng::new(1), geometry(8, 64));
    let all = StateEdit::Replace { length: 3 };
    for id in [7, 3, 5] {
        shell.put(id, 1, None, all, b"abc").unwrap();
    }
    shell
        .edit_noted(5, 4, Some(1), StateEdit::Remove, &[], b"session".to_vec())
        .unwrap();
    shell
        .edit(1, 9, None, StateEdit::Truncate { length: 9 }, &[])
        .unwrap();
    let page = |shell: &Shell, after, limit| -> Vec<u128> {
        let page = shell.store.versions(after, limit);
        page.map(|chunk| chunk.id.0).collect()
    };
    assert_eq!(page(&shell, None, 2), [1, 3]);
    assert_eq!(page(&shell, Some(ChunkKey(3)), 2), [5, 7]);
    assert_eq!(page(&shell, Some(ChunkKey(7)), 2), []);
    for is_durable in [false, true] {
        let chunk = shell.store.chunk(ChunkKey(5)).unwrap();
        let (committed, pending) = (chunk.committed.unwrap(), chunk.pending.unwrap());
        assert_eq!((committed.version, committed.length), (StateVersion(1), 3));
        assert!(committed.notes.is_empty() && committed.is_durable);
        assert_eq!(
            (pending.version, pending.notes),
            (StateVersion(4), &b"session"[..])
        );
        assert!(pending.is_removal && pending.is_durable == is_durable);
        shell.sync();
    }
    shell.store.commit(ChunkKey(5), StateVersion(4)).unwrap();
    assert_eq!(page(&shell, None, 9), [1, 3, 7]);
}

#[test]
fn an_edit_of_another_version_is_told_what_is_there() {
    let mut shell = Shell::new(&mut Rng::new(1), geometry(8, 64));
    let all = StateEdit::Replace { length: 1 };
    let (id, first, second) = (ChunkKey(1), StateVersion(5), StateVersion(6));
    assert_eq!(
        shell.put(1, 5, Some(4), all, &[1]),
        Err(Refused::Base(None))
    );
    shell.put(1, 5, None, all, &[1]).unwrap();
    for base in [None, Some(4), Some(6)] {
        assert_eq!(
            shell.put(1, 7, base, all, &[1]),
            Err(Refused::Base(Some(first)))
        );
    }
    assert_eq!(
        shell.put(1, 4, Some(5), all, &[1]),
        Err(Refused::NotNewer(first))
    );
    let beyond = StateEdit::Truncate {
        length: 64 * 1024 + 1,
    };
    assert_eq!(shell.put(1, 6, Some(5), beyond, &[]), Err(Refused::TooLong));
    assert_eq!(shell.store.commit(id, first), Err(Refused::Absent(None)));
    shell.edit(1, 6, Some(5), all, &[1]).unwrap();
    assert_eq!(
        shell.put(1, 7, Some(5), all, &[1]),
        Err(Refused::Pending(second))
    );
    assert_eq!(
        shell.store.discard(id, first),
        Err(Refused::Absent(Some(second)))
    );
    let read = shell.store.read(id, Which::Pending(first), 0..1);
    assert_eq!(read.unwrap_err(), Refused::Absent(Some(second)));
    assert_eq!(shell.store.batch_flushed(99), Err(Refused::Unknown));
    // A place that the chunk does not have.
    assert_eq!(shell.store.mark_damaged(id, 0), Ok(false));
}
