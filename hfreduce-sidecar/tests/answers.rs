//! Results that a neighbour on the same machine writes where they belong: the same bits as over a network, by one pass
//! over the memory less, and nothing that comes too late changes them.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod gang;

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use collective::tree::DoubleTree;
use gang::leader::Leader;
use gang::pods::Pods;
use gang::{Gang, PATIENCE, f32s, filled, run, sum, to_f32s, wait_until};
use hfreduce_sidecar::meet::Preference;
use hfreduce_sidecar::member::Options;
use rustix::process::Signal;
use wire::assignment::OnPeerLoss;
use wire::client::{Client, ResultView, Ticket};
use wire::run_dir;
use wire::segment::size_class;
use wire::{Call, DType, Numerics, OpKind, ReduceOp};

/// Two chunks of most types, and more of those that go up in f32: the last is long enough in all of them.
const BYTES: usize = 246_760;
const CHUNK_BYTES: u32 = 128 << 10;

fn gang(transport: Preference) -> Gang {
    Gang::with(2, 1, |options| Options {
        chunk_bytes: CHUNK_BYTES,
        transport,
        ..options
    })
}

/// Any bits: the kernels make of them the same on every node.
fn noise(rank: u32) -> Vec<u8> {
    let mut state = u64::from(rank) + 1;
    let mut next = || {
        // Xorshift: any mixture will do.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..BYTES).map(|_| next()).collect()
}

fn calls() -> Vec<Call> {
    let mut calls = Vec::new();
    for dtype in DType::ALL {
        let is_float = !matches!(dtype, DType::U8 | DType::I32 | DType::I64);
        let count = (BYTES / dtype.size()) as u64;
        for reduce in ReduceOp::ALL {
            let plain = match reduce {
                ReduceOp::PremulSum if is_float => Call::premul_sum(*dtype, 0.75, count),
                ReduceOp::PremulSum => continue,
                ReduceOp::Sum | ReduceOp::Avg | ReduceOp::Max | ReduceOp::Min => {
                    Call::all_reduce(*dtype, *reduce, count)
                }
            };
            calls.push(plain);
            if is_float && matches!(reduce, ReduceOp::Sum | ReduceOp::Avg) {
                let others = [Numerics::Precise, Numerics::Bitwise];
                calls.extend(others.map(|numerics| Call { numerics, ..plain }));
            }
        }
    }
    calls
}

/// Bytes of results that the nodes' reductions have written so far.
fn written(gang: &Gang) -> u64 {
    let counts = gang.nodes.iter().map(|node| {
        let metrics = node.registry.text().unwrap();
        let is_meant = |line: &&str| {
            let name = "fireflyer_hfreduce_memory_bytes_total{";
            line.starts_with(name) && line.contains("\"write\"") && line.contains("\"result\"")
        };
        let line = metrics.lines().find(is_meant);
        let value = line.and_then(|line| line.rsplit(' ').next());
        value.unwrap().parse::<u64>().unwrap()
    });
    counts.sum()
}

#[test]
fn both_nodes_get_the_bits_of_every_type_and_operator_in_one_pass() {
    let bits = |transport| {
        let gang = gang(transport);
        let ranks = gang.each(|client| {
            let input = noise(client.standing().rank);
            let result = |call| run(&client, call, &input).unwrap().result.to_vec();
            calls().into_iter().map(result).collect::<Vec<_>>()
        });
        let [one, other] = <[_; 2]>::try_from(ranks).unwrap();
        assert!(one == other, "the nodes differ");
        (one, written(&gang))
    };
    let (over_network, once) = bits(Preference::Tcp);
    let (in_place, twice) = bits(Preference::Auto);
    for ((call, one), other) in calls().iter().zip(over_network).zip(in_place) {
        assert!(one == other, "{call}");
    }
    // What comes over a network is received where it belongs, by no reduction.
    let all = (calls().len() * BYTES) as u64;
    assert_eq!((once, twice), (all, 2 * all));
}

#[test]
fn a_result_in_a_segment_that_was_handed_out_before_is_copied() {
    // Memory for one result: that of the broadcast, which no part names, is used again.
    let gang = Gang::with(2, 1, |options| Options {
        chunk_bytes: CHUNK_BYTES,
        limit_bytes: size_class(BYTES),
        ..options
    });
    let elements = (BYTES / 4) as u64;
    let together = Barrier::new(2);
    let counts = gang.each(|client| {
        let mine = f32s(&vec![
            client.standing().rank as f32 + 1.0;
            elements as usize
        ]);
        let call = Call::new(OpKind::Broadcast, DType::F32, elements);
        run(&client, call, &mine).unwrap();
        together.wait();
        let before = written(&gang);
        together.wait();
        let output = run(&client, sum(elements), &mine).unwrap();
        assert!(to_f32s(&output.result).iter().all(|sum| *sum == 3.0));
        together.wait();
        written(&gang) - before
    });
    assert_eq!(counts, [BYTES as u64; 2]);
}

/// So many that a node that is stopped somewhere is mostly stopped while it computes.
const ELEMENTS: usize = 4 << 20;

fn submit(client: &Client) -> Ticket {
    let weight = (1 << client.standing().rank) as f32;
    let input = filled(client, &f32s(&vec![weight; ELEMENTS]));
    client
        .submit(sum(ELEMENTS as u64), Some(input), PATIENCE)
        .unwrap()
}

fn results(clients: &[Client], tickets: Vec<Ticket>) -> Vec<ResultView> {
    let ranks = clients.iter().zip(tickets);
    let waited = ranks.map(|(client, ticket)| client.wait(ticket, PATIENCE).unwrap().result);
    waited.collect()
}

fn all_are(result: &ResultView, number: f32) -> bool {
    to_f32s(result).iter().all(|one| *one == number)
}

#[test]
fn a_node_that_wakes_up_when_the_others_went_on_changes_no_later_result() {
    let leader = Leader::start(3, Duration::from_secs(1));
    let address = std::net::Ipv4Addr::LOCALHOST.into();
    let shrink = OnPeerLoss::Shrink;
    let pods = Pods::start_at(address, 3, leader.address, shrink, "auto");
    let mut clients: Vec<Client> = (0..3).map(|rank| pods.client(rank)).collect();
    gang::pods::sum(&clients);
    // It computes for the others.
    let frozen = DoubleTree::build(&["a"; 3]).trees[0].root;
    let mut tickets: Vec<Ticket> = clients.iter().map(submit).collect();
    // Somewhere on the way: wherever it stops, nothing changes.
    thread::sleep(Duration::from_millis(4));
    pods.signal(frozen, Signal::STOP);
    let lost = clients.remove(frozen);
    tickets.remove(frozen);
    let rest = (7 - (1 << frozen)) as f32;
    let first = results(&clients, tickets);
    assert!(
        [7.0, rest]
            .iter()
            .any(|sum| first.iter().all(|one| all_are(one, *sum)))
    );
    drop(first);
    // Results of their own, kept while it wakes up.
    let kept: Vec<Vec<ResultView>> = (0..3)
        .map(|_| {
            let tickets = clients.iter().map(submit).collect();
            results(&clients, tickets)
        })
        .collect();
    pods.signal(frozen, Signal::CONT);
    wait_until(|| pods.run_dir(frozen as u32).join(run_dir::VOID).exists());
    for result in kept.iter().flatten() {
        assert!(all_are(result, rest), "somebody has written to it");
    }
    drop(lost);
}
