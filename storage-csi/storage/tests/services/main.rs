//! Services as they ship, on disks and loopback, with clients: a chain of three whose members stop, come back over their
//! disks, or find that bytes have changed.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

mod trio;

use craq::{ChainCall, ChainOutcome, ChunkId, Edit};
use trio::{CHAIN, LIMIT, OTHER, Trio};

fn chunk(index: u64) -> ChunkId {
    ChunkId { file: 9, index }
}

#[test]
fn what_is_written_is_read_from_every_member() {
    let trio = Trio::start();
    let client = trio.client(1);
    let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| (at / 7) as u8).collect();
    trio::write(&client, chunk(0), 0, &bytes);
    trio::write(&client, chunk(1), 100, b"far");
    for _ in 0..3 {
        // Each goes to the next member.
        assert_eq!(trio::read(&client, chunk(0), 0, 1 << 20), bytes);
    }
    let far = trio::read(&client, chunk(1), 0, 1 << 20);
    assert_eq!(far, [&[0; 100][..], b"far"].concat());
    assert_eq!(
        trio::read(&client, chunk(0), 70_000, 10),
        bytes[70_000..70_010]
    );
    assert_eq!(trio::read(&client, chunk(2), 0, 10), b"");
    trio::edit(&client, chunk(0), Edit::Truncate { length: 10 });
    assert_eq!(trio::read(&client, chunk(0), 0, 1 << 20), bytes[..10]);
    trio::edit(&client, chunk(0), Edit::Remove);
    assert_eq!(trio::read(&client, chunk(0), 0, 1 << 20), b"");
}

#[test]
fn a_write_waits_for_a_member_that_is_away_and_reads_go_on() {
    let mut trio = Trio::start();
    let client = trio.client(1);
    trio::write(&client, chunk(0), 0, b"before");
    for away in 0..3 {
        trio.stop(away);
        let (sender, done) = std::sync::mpsc::channel();
        let text = format!("away {away}");
        let bytes = client.buffers().copy(text.as_bytes()).unwrap();
        let edit = Edit::Write { offset: 0, bytes };
        let write = ChainCall::Edit {
            chunk: chunk(1),
            edit,
        };
        client.call(CHAIN, write, move |outcome| sender.send(outcome).unwrap());
        assert_eq!(trio::read(&client, chunk(0), 0, 100), b"before");
        assert!(done.try_recv().is_err(), "{away} has not got it");
        trio.start_again(away);
        let outcome = done.recv_timeout(LIMIT).unwrap();
        assert!(matches!(outcome, ChainOutcome::Edited), "{outcome:?}");
        for _ in 0..3 {
            assert_eq!(trio::read(&client, chunk(1), 0, 100), text.as_bytes());
        }
    }
}

#[test]
fn changed_bytes_are_not_served_and_are_repaired() {
    let mut trio = Trio::start();
    let client = trio.client(1);
    let bytes = vec![7; 300_000];
    trio::write(&client, chunk(0), 0, &bytes);
    trio.settle();
    trio.stop(1);
    assert!(
        trio.flip_bytes(1, &[7; 4096]) > 0,
        "the bytes are on the disk"
    );
    trio.start_again(1);
    for _ in 0..6 {
        assert_eq!(trio::read(&client, chunk(0), 0, 1 << 20), bytes);
    }
    trio.wait_until(|trio| {
        trio.status()
            .iter()
            .all(|target| target.damaged_chunks == 0)
    });
    trio.stop(1);
    assert!(trio.count(1, &[7; 4096]) >= trio.count(0, &[7; 4096]));
}

#[test]
fn several_clients_write_the_same_chunks_at_once() {
    let trio = Trio::start();
    let clients: Vec<_> = (1..4).map(|session| trio.client(session)).collect();
    std::thread::scope(|scope| {
        for (number, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                for index in 0..20 {
                    let bytes = vec![number as u8 + 1; 10_000];
                    trio::write(client, chunk(index % 4), 10_000 * number as u32, &bytes);
                }
            });
        }
    });
    for index in 0..4 {
        let whole: Vec<u8> = (0..3).flat_map(|number| vec![number + 1; 10_000]).collect();
        for client in &clients {
            assert_eq!(trio::read(client, chunk(index), 0, 1 << 20), whole);
        }
    }
}

#[test]
fn a_full_disk_refuses_writes_and_takes_removals() {
    let trio = Trio::start();
    let client = trio.client(1);
    let bytes = vec![1; 1 << 20];
    let mut written = 0;
    loop {
        let bytes = client.buffers().copy(&bytes).unwrap();
        let edit = Edit::Write { offset: 0, bytes };
        let write = ChainCall::Edit {
            chunk: chunk(written),
            edit,
        };
        match client.wait(CHAIN, write).unwrap() {
            ChainOutcome::Edited => written += 1,
            ChainOutcome::Failed(craq::ChainCallError::Full) => break,
            outcome @ (ChainOutcome::Bytes(..) | ChainOutcome::Failed(_)) => panic!("{outcome:?}"),
        }
        assert!(written < 1000);
    }
    assert!(written > 10, "{written}");
    for index in 0..10 {
        trio::edit(&client, chunk(index), Edit::Remove);
    }
    trio.settle();
    trio::write(&client, chunk(2000), 0, &bytes);
}

#[test]
fn a_call_waits_until_its_chain_is_known() {
    let mut trio = Trio::start();
    let client = trio.client_without_other(1);
    trio::write(&client, chunk(0), 0, b"linked");
    let (sender, done) = std::sync::mpsc::channel();
    let read = ChainCall::Read {
        chunk: chunk(0),
        offset: 0,
        length: 100,
    };
    client.call(OTHER, read, move |outcome| sender.send(outcome).unwrap());
    // Behind it in the client's queue.
    assert_eq!(trio::read(&client, chunk(0), 0, 100), b"linked");
    assert!(done.try_recv().is_err(), "the client does not know it");
    trio.publish();
    let outcome = done.recv_timeout(LIMIT).unwrap();
    assert!(
        matches!(&outcome, ChainOutcome::Bytes(_, bytes) if bytes.is_empty()),
        "{outcome:?}"
    );
}
