//! Bounds, borrows and the end of buffers, and which pages slots have.

use super::*;
use crate::background::Before;
use crate::stop::Stop;

const CHUNK: u32 = 64 << 10;

fn memory(limit_bytes: usize) -> Memory {
    let sizes = Sizes {
        receives: vec![(1, 0)],
        borrows: vec![(2, 0)],
        sends: vec![1],
        slots: 2,
        chunk_bytes: CHUNK,
    };
    let background = Background::new("test", Stop::new().unwrap(), Before::default());
    let mut memory = Memory::new(limit_bytes, MemoryPolicy::Anywhere, background);
    memory.set_edges(&sizes).unwrap();
    memory
}

fn region(buffer: Buffer, offset: u64, bytes: u64) -> Region {
    Region {
        buffer,
        offset,
        bytes,
    }
}

fn slot(peer: usize, slot: u8) -> Buffer {
    let tree = 0;
    Buffer::Receive {
        group: WORLD,
        peer,
        tree,
        slot,
    }
}

const RESULT: Buffer = Buffer::Result {
    group: WORLD,
    op: 7,
};

fn staged(group: GroupId, tree: u8) -> Buffer {
    let slot = 0;
    Buffer::Send { group, tree, slot }
}

#[test]
fn release_frees_inputs_of_an_operation_that_ended_in_the_epoch_before() {
    let mut memory = memory(1 << 30);
    let block = Block::new(Segment::create("input", 64, Writers::Everybody).unwrap());
    let input = InputMemory {
        block: Arc::clone(&block),
        offset: 0,
        bytes: 64,
    };
    memory.call((WORLD, 7), 0, Some(input));
    // The epoch ends here: the next machine knows of the result alone.
    memory.release((WORLD, 7));
    assert_eq!(
        Arc::strong_count(&block),
        1,
        "the process's segment is not mapped any more"
    );
}

#[test]
fn what_is_written_is_read_and_bounds_hold() {
    let mut memory = memory(1 << 30);
    memory.serve((WORLD, 7), 1000).unwrap();
    for buffer in [RESULT, slot(1, 1), staged(WORLD, 1)] {
        let written = region(buffer, 100, 3);
        memory.write(&written).unwrap().copy_from_slice(b"abc");
        assert_eq!(&*memory.read(&written).unwrap(), b"abc");
        let end = 1 << 40;
        for wrong in [
            region(buffer, end, 1),
            region(buffer, 0, end),
            region(buffer, u64::MAX, 2),
            region(buffer, u64::from(CHUNK) - 1, 2),
        ] {
            assert_eq!(memory.read(&wrong).unwrap_err(), OutOfBounds(wrong));
            assert_eq!(memory.write(&wrong).unwrap_err(), OutOfBounds(wrong));
        }
    }
    let none = region(staged(WORLD, 0), 0, 1);
    assert_eq!(memory.read(&none).unwrap_err(), OutOfBounds(none));
}

#[test]
fn groups_have_slots_of_their_own_until_they_are_forgotten() {
    let mut memory = memory(1 << 30);
    let sizes = Sizes {
        receives: vec![(1, 0)],
        borrows: Vec::new(),
        sends: vec![1],
        slots: 2,
        chunk_bytes: CHUNK,
    };
    memory.add_edges(5, &sizes).unwrap();
    let (ours, worlds) = (region(staged(5, 1), 0, 3), region(staged(WORLD, 1), 0, 3));
    memory.write(&ours).unwrap().copy_from_slice(b"abc");
    assert_eq!(&*memory.read(&worlds).unwrap(), [0; 3]);
    memory.forget_group(5);
    assert_eq!(memory.read(&ours).unwrap_err(), OutOfBounds(ours));
    memory.read(&worlds).unwrap();
}

/// KiB of the slots of this process that are in memory, by the kernel's count.
fn resident_kib() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mappings = maps.split("/memfd:fireflyer-slots").skip(1);
    let of = |mapping: &str| {
        let mut lines = mapping.lines();
        let line = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    mappings.map(of).sum()
}

// Alone in a process: other tests have slots too.
#[test]
fn slots_have_no_page_before_they_are_written_to_and_count_from_then_on() {
    const ALONE: &str = "FIREFLYER_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name =
            "memory::tests::slots_have_no_page_before_they_are_written_to_and_count_from_then_on";
        let mut test = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = test.args([name, "--exact"]).env(ALONE, "1").output();
        let ended = ended.unwrap();
        assert!(
            ended.status.success(),
            "{}",
            String::from_utf8_lossy(&ended.stdout)
        );
        return;
    }
    let mut memory = memory(1 << 30);
    let relayed = (1, collective::machine::FORWARDING);
    let sizes = Sizes {
        receives: vec![(1, 0), relayed],
        borrows: Vec::new(),
        sends: vec![1],
        slots: 4,
        chunk_bytes: CHUNK,
    };
    memory.add_edges(5, &sizes).unwrap();
    assert_eq!((resident_kib(), memory.slot_bytes.get()), (0, 0));
    let of_group = region(staged(5, 1), 0, u64::from(CHUNK));
    for buffer in [of_group, region(slot(1, 1), 0, u64::from(CHUNK))] {
        memory.write(&buffer).unwrap().fill(1);
        memory.write(&buffer).unwrap().fill(2);
    }
    let two = 2 * CHUNK as usize;
    assert_eq!(resident_kib(), two as u64 >> 10);
    assert_eq!(memory.slot_bytes.get(), two);
    memory.forget_group(5);
    assert_eq!(resident_kib(), u64::from(CHUNK) >> 10);
    assert_eq!(memory.slot_bytes.get(), CHUNK as usize);
}

#[test]
fn what_is_written_when_its_group_or_epoch_ends_is_not_what_the_next_one_gets() {
    let mut memory = memory(1 << 30);
    let sizes = Sizes {
        receives: Vec::new(),
        borrows: Vec::new(),
        sends: vec![1],
        slots: 2,
        chunk_bytes: CHUNK,
    };
    memory.add_edges(5, &sizes).unwrap();
    for (group, ended) in [(5, "group"), (WORLD, "epoch")] {
        let slot = region(staged(group, 1), 0, 3);
        let mut written = memory.write(&slot).unwrap();
        if group == WORLD {
            memory.set_edges(&sizes).unwrap();
        } else {
            memory.forget_group(group);
            memory.add_edges(group, &sizes).unwrap();
        }
        written.copy_from_slice(b"abc");
        let next = memory.write(&slot).unwrap();
        assert_eq!(next[..], [0; 3], "after the end of the {ended}");
    }
}

#[test]
fn an_input_that_is_read_when_its_process_goes_stays_as_it_was() {
    let mut memory = memory(1 << 30);
    let block = Block::new(Segment::create("input", 64, Writers::Everybody).unwrap());
    block.write(0..64).unwrap().fill(7);
    let (offset, bytes) = (0, 64);
    let input = InputMemory {
        block: Arc::clone(&block),
        offset,
        bytes,
    };
    memory.call((WORLD, 7), 0, Some(input));
    let (group, op, rank) = (WORLD, 7, 0);
    let all = region(Buffer::Input { group, op, rank }, 0, 64);
    let read = memory.read(&all).unwrap();
    block.release_at_end();
    let gone = Arc::downgrade(&block);
    drop(block);
    memory.forget_inputs((WORLD, 7));
    assert_eq!(read[..], [7; 64]);
    drop(read);
    assert_eq!(gone.strong_count(), 0);
}

#[test]
fn a_destination_is_never_its_own_source() {
    let mut memory = memory(1 << 30);
    memory.serve((WORLD, 7), 1000).unwrap();
    let all = region(RESULT, 0, 1000);
    let part = region(RESULT, 999, 1);
    let beside = region(RESULT, 1000, 8);
    let _written = memory.write(&all).unwrap();
    assert_eq!(memory.read(&part).unwrap_err(), OutOfBounds(part));
    memory.read(&beside).unwrap();
}

#[test]
fn a_borrowed_slot_is_read_where_it_lies_until_it_is_given_back() {
    let mut memory = memory(1 << 30);
    memory.serve((WORLD, 7), 1000).unwrap();
    let theirs = region(RESULT, 10, 3);
    memory.write(&theirs).unwrap().copy_from_slice(b"abc");
    let payload = memory.read(&theirs).unwrap();
    memory.borrow((WORLD, 2, 0), 1, payload);
    let (all, part, more) = (
        region(slot(2, 1), 0, 3),
        region(slot(2, 1), 1, 2),
        region(slot(2, 1), 1, 3),
    );
    assert_eq!(&*memory.read(&all).unwrap(), b"abc");
    assert_eq!(&*memory.read(&part).unwrap(), b"bc");
    assert_eq!(memory.read(&more).unwrap_err(), OutOfBounds(more));
    assert_eq!(memory.write(&all).unwrap_err(), OutOfBounds(all));
    memory.give_back((WORLD, 2, 0), 1);
    assert_eq!(memory.read(&all).unwrap_err(), OutOfBounds(all));
}
