//! What goes wrong, and which error every rank gets: disagreements, dead and frozen sidecars, dead processes.
//! Sidecars that die are processes of their own; the times asserted are ten times the target,
//! because the machine may be busy.

mod gang;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use gang::limits::{self, KILLED, NAMED};
use gang::processes::{Sidecars, loopback, suspects};
use gang::{Gang, PATIENCE, f32s, failure, filled, run, sum, wait_until, wait_until_some};
use hfreduce_client::attach::{AttachChannel, ClientMessage};
use hfreduce_client::client::{Client, Error};
use hfreduce_client::entry::FailureKind;
use hfreduce_client::{Call, DType, OpKind};
use rustix::process::Signal;

/// Who says nothing for so long is given up: what happens at once must not have waited for that.
const SILENT: Duration = Duration::from_secs(10);

// COLL-1: the same error, naming both sides, on every rank; and the group is usable afterwards.
#[test]
fn ranks_that_disagree_are_both_named_on_every_rank_and_the_next_operation_runs() {
    let gang = Gang::start(3, 2);
    let texts = gang.each(|client| {
        let rank = client.standing().rank;
        let odd_one = if rank == 3 { sum(100) } else { sum(101) };
        let (kind, text) = failure(run(&client, odd_one, &f32s(&[1.0; 101])));
        assert_eq!(kind, FailureKind::Mismatch);
        let output = run(&client, sum(1), &f32s(&[1.0])).unwrap();
        assert_eq!(output.result[..], f32s(&[6.0]));
        text
    });
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    let text = &texts[0];
    // Which of the others is named with it depends on the trees.
    assert!(
        text.contains("rank 3 called allreduce(sum, 100 x f32)"),
        "{text}"
    );
    let others = text.matches("called allreduce(sum, 101 x f32)");
    assert_eq!(others.count(), 1, "{text}");
}

// COLL-1: it fails on every rank, and the calls behind it, called before it failed, are not shifted.
#[test]
fn a_call_that_cannot_be_fails_on_every_rank_and_keeps_its_place() {
    let gang = Gang::start(2, 1);
    gang.each(|client| {
        let mut second = sum(1);
        if client.standing().rank == 0 {
            second = Call::new(OpKind::Broadcast { root: 7 }, DType::F32, 1);
        }
        let tickets = [(1.0, sum(1)), (2.0, second), (3.0, sum(1))].map(|(number, call)| {
            let input = filled(&client, &f32s(&[number]));
            client.submit(call, Some(input), PATIENCE).unwrap()
        });
        let [first, second, third] = tickets.map(|ticket| client.wait(ticket, PATIENCE));
        assert_eq!(first.unwrap().result[..], f32s(&[2.0]));
        assert_eq!(third.unwrap().result[..], f32s(&[6.0]));
        let (kind, text) = failure(second);
        assert_eq!(kind, FailureKind::Refused);
        assert!(
            text.contains("rank 0 called broadcast(1 x f32, root 7)"),
            "{text}"
        );
    });
}

// COLL-2: a process that dies is named at once, on every rank of every node.
#[test]
fn a_process_that_dies_in_an_operation_is_named_on_every_rank() {
    let gang = Gang::start(3, 2);
    let doomed = AttachChannel::connect(&gang.nodes[1].socket()).unwrap();
    let version = hfreduce_client::attach::VERSION;
    let local_rank = 1;
    doomed
        .send(
            &ClientMessage::Attach {
                version,
                local_rank,
                again: None,
                groups: 0,
            },
            &[],
        )
        .unwrap();
    let called = Barrier::new(6);
    let texts = std::thread::scope(|scope| {
        let ranks: Vec<_> = [0, 1, 2, 4, 5]
            .map(|rank| {
                let (gang, called) = (&gang, &called);
                scope.spawn(move || {
                    let client = gang.client(rank);
                    let input = filled(&client, &f32s(&[1.0; 100_000]));
                    let ticket = client.submit(sum(100_000), Some(input), PATIENCE).unwrap();
                    called.wait();
                    let start = Instant::now();
                    let (kind, text) = failure(client.wait(ticket, PATIENCE));
                    assert_eq!(kind, FailureKind::Broken);
                    limits::keep(
                        "a process is killed: a rank learns who it was",
                        KILLED,
                        start,
                    );
                    // Whatever is called later fails with the same cause.
                    assert_eq!(failure(run(&client, sum(1), &f32s(&[1.0]))).1, text);
                    text
                })
            })
            .into();
        called.wait();
        // As the kernel does it for a killed process: the socket ends without a word.
        drop(doomed);
        let texts: Vec<String> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        texts
    });
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    assert!(
        texts[0].contains("rank 3") && texts[0].contains("worker-1"),
        "{}",
        texts[0]
    );
}

// COLL-2: a dead sidecar is named at once.
#[test]
fn a_sidecar_that_is_killed_is_named_by_all_others() {
    let gang = Sidecars::start(loopback(4), 1);
    let clients: Vec<Client> = (0..4).map(|node| gang.client(node, 0)).collect();
    let call = sum(5_000_000);
    let tickets: Vec<_> = [0, 1, 3]
        .map(|rank| {
            let client = &clients[rank];
            let input = client.buffer(20_000_000, PATIENCE).unwrap();
            (client, client.submit(call, Some(input), PATIENCE).unwrap())
        })
        .into();
    let start = Instant::now();
    gang.signal(2, Signal::KILL);
    for (client, ticket) in tickets {
        let (kind, text) = failure(client.wait(ticket, PATIENCE));
        assert_eq!(kind, FailureKind::Broken);
        assert!(
            text.contains("node 2 was lost") && text.contains("worker-2"),
            "{text}"
        );
    }
    let lost = run(&clients[2], Call::barrier(), &[]).unwrap_err();
    assert!(matches!(lost, Error::SidecarLost { .. }), "{lost}");
    limits::keep("a sidecar is killed: all others learn which", KILLED, start);
}

// COLL-2: a frozen sidecar is named within 2 s, and given up later.
#[test]
fn a_sidecar_that_is_frozen_is_named_and_then_given_up() {
    let gang = Sidecars::start(loopback(3), 1);
    let clients: Vec<Client> = (0..3).map(|node| gang.client(node, 0)).collect();
    let tickets: Vec<_> = clients[..2]
        .iter()
        .map(|client| {
            let input = filled(client, &f32s(&[1.0]));
            client.submit(sum(1), Some(input), PATIENCE).unwrap()
        })
        .collect();
    assert!(!suspects(gang.metrics_address(0), 2));
    gang.signal(2, Signal::STOP);
    let start = Instant::now();
    wait_until(|| suspects(gang.metrics_address(0), 2));
    let seen = limits::keep("a sidecar freezes: it is named", NAMED, start);
    assert!(seen < SILENT * 2 / 3, "it was given up before: {seen:?}");
    // That has room for a busy machine, what the sidecar measured itself has none.
    let silence = wait_until_some(|| gang.silence(0, 2));
    assert!(silence < NAMED, "{silence:?}");
    for (client, ticket) in clients.iter().zip(tickets) {
        let (_, text) = failure(client.wait(ticket, PATIENCE));
        assert!(
            text.contains("node 2 fell silent") && text.contains("worker-2"),
            "{text}"
        );
    }
}

// The second itself is asserted of the limits it is made of, in `node`.
#[test]
fn a_sidecar_leaves_within_a_second_of_the_request() {
    let gang = Sidecars::start(loopback(2), 1);
    let clients: Vec<Client> = (0..2).map(|node| gang.client(node, 0)).collect();
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| run(client, sum(1000), &f32s(&[1.0; 1000])).unwrap());
        }
    });
    drop(clients);
    let start = Instant::now();
    for rank in 0..2 {
        gang.signal(rank, Signal::TERM);
    }
    gang.await_end();
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_process_that_leaves_without_a_call_may_come_again() {
    let gang = Gang::start(1, 1);
    drop(gang.client(0));
    wait_until(|| Client::attach(&gang.nodes[0].socket(), 0, PATIENCE).is_ok());
}
