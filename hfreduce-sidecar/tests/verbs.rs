//! Gangs over RDMA, on the stand-in for libibverbs that belongs to the tests of `link`: its devices write into memory
//! of this very process, and fail on request. The same on devices in software, with processes that are
//! killed and cables that are pulled, is in `soft_roce`.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod gang;

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use collective::machine::Timing;
use gang::rdma::{Fake, REGISTER_REFUSED, REGISTER_WAITS, STATUS, verbs};
use gang::{
    Gang, PATIENCE, counter, encode, f32s, failure, filled, held_workers, processes, run, sum,
    to_f32s, wait_until,
};
use hfreduce_client::client::Client;
use hfreduce_client::entry::FailureKind;
use hfreduce_client::{Call, DType, OpKind};
use hfreduce_sidecar::member::MemberOptions;
use hfreduce_sidecar::negotiate::{Preference, RdmaNegotiation};
use hfreduce_sidecar::workers::WorkerOptions;

/// Over which transports the nodes are linked.
fn transports(gang: &Gang) -> BTreeSet<String> {
    let links = gang.nodes.iter().flat_map(|node| {
        let metrics = node.registry.text().unwrap();
        processes::transports(&metrics).into_values()
    });
    links.collect()
}

/// Whether all links are over this transport.
#[track_caller]
fn all_over(gang: &Gang, transport: &str) {
    assert_eq!(transports(gang), BTreeSet::from([transport.to_owned()]));
}

/// Sums of several sizes, some of many chunks, come out right on every rank, whose inputs come back unchanged.
fn sums_are_right(gang: &Gang) {
    let ranks = i64::from(gang.world());
    gang.each(|client| {
        let rank = i64::from(client.standing().rank);
        for count in [0, 1, 1000, 1025, 40_000] {
            let call = Call {
                dtype: DType::I64,
                ..sum(count as u64)
            };
            let input = encode(DType::I64, (0..count).map(|at| rank * 3 + at));
            let all = (0..count).map(|at| ranks * at + 3 * ranks * (ranks - 1) / 2);
            let output = run(&client, call, &input).unwrap();
            assert!(output.result[..] == encode(DType::I64, all), "{count}");
            let gather = Call::new(OpKind::AllGather, DType::I64, count as u64);
            let output = run(&client, gather, &input).unwrap();
            let all = (0..ranks).flat_map(|rank| (0..count).map(move |at| rank * 3 + at));
            assert!(output.result[..] == encode(DType::I64, all), "{count}");
        }
    });
}

#[test]
fn sums_over_rdma_are_right_on_every_rank() {
    let fake = Fake::new();
    for (nodes, procs) in [(2, 1), (5, 2)] {
        let gang = Gang::with(nodes, procs, |options| fake.options(options));
        all_over(&gang, "verbs");
        sums_are_right(&gang);
    }
}

#[test]
fn the_order_of_writes_is_relaxed_unless_the_options_say_otherwise() {
    for relaxed_ordering in [true, false] {
        let fake = Fake::new();
        let gang = Gang::with(2, 1, |options| {
            let mut options = fake.options(options);
            assert!(options.rdma.relaxed_ordering, "by default");
            options.rdma.relaxed_ordering = relaxed_ordering;
            options
        });
        all_over(&gang, "verbs");
        assert_eq!(fake.relaxed() > 0, relaxed_ordering);
        sums_are_right(&gang);
    }
}

#[test]
fn a_device_that_registers_nothing_more_costs_a_copy_and_one_that_registers_nothing_a_link() {
    let fake = Fake::new();
    let gang = Gang::with(2, 1, |options| fake.options(options));
    for _ in 0..2 {
        fake.inject(REGISTER_REFUSED, 0);
    }
    sums_are_right(&gang);
    drop(gang);
    let fake = Fake::new();
    fake.inject(REGISTER_REFUSED, 0);
    let gang = Gang::with(2, 1, |options| fake.options(options));
    all_over(&gang, "tcp");
    sums_are_right(&gang);
}

#[test]
fn without_the_library_the_gang_starts_over_tcp() {
    let gang = Gang::with(2, 1, |options| {
        verbs(options, Path::new("/nowhere/libibverbs.so.1"))
    });
    all_over(&gang, "tcp");
    sums_are_right(&gang);
}

#[test]
fn neighbours_of_which_one_wants_tcp_use_tcp() {
    let fake = Fake::new();
    for tcp in [0..1, 1..2, 0..3] {
        let options = |options, rank| {
            let mut options = fake.options(options);
            if tcp.contains(&rank) {
                options.transport = Preference::Tcp;
            }
            options
        };
        let gang = Gang::over(tcp.len().max(2), 1, options, |_| {});
        all_over(&gang, "tcp");
    }
}

#[test]
fn a_device_waits_for_a_silent_peer_as_long_as_the_attempt_does() {
    let fake = Fake::new();
    // 4.096 us times two to the first, once more than the second: 10.7 s, then 60.1 s.
    for (patience, expected) in [(None, (19, 4)), (Some(60), (21, 6))] {
        let gang = Gang::with(2, 1, |options| {
            let options = fake.options(options);
            let usual = options.rdma.patience;
            let patience = patience.map_or(usual, Duration::from_secs);
            let rdma = RdmaNegotiation {
                patience,
                ..options.rdma
            };
            MemberOptions { rdma, ..options }
        });
        all_over(&gang, "verbs");
        assert_eq!(fake.path_options(), expected);
    }
}

#[test]
fn registering_memory_for_longer_than_a_lost_node_delays_no_heartbeat_and_no_sum() {
    let fake = Fake::new();
    let gang = Gang::with(2, 1, |options| MemberOptions {
        timing: SHORT,
        chunk_bytes: 256 << 10,
        ..fake.options(options)
    });
    all_over(&gang, "verbs");
    let clients = [0, 1].map(|rank| gang.client(rank));
    let elements = 17 << 18;
    fake.inject(REGISTER_WAITS, 16 << 20);
    let start = Instant::now();
    let sum_at = |client: &Client| {
        let output = run(client, sum(elements), &f32s(&vec![1.0; elements as usize]));
        let sums = to_f32s(&output.unwrap().result);
        assert!(sums.iter().all(|sum| *sum == 2.0));
    };
    let sum_up = || {
        thread::scope(|scope| {
            scope.spawn(|| sum_at(&clients[0]));
            sum_at(&clients[1]);
        });
    };
    thread::scope(|scope| {
        scope.spawn(sum_up);
        wait_until(|| {
            let suspects = gang.counted("fireflyer_hfreduce_suspects_total ");
            assert_eq!(suspects, 0, "a node that registers memory is a suspect");
            start.elapsed() > SHORT.lost + SHORT.suspect
        });
    });
    assert_eq!(fake.largest(), 0, "nothing large was registered");
    fake.inject(REGISTER_WAITS, 0);
    wait_until(|| fake.largest() >= 4 * elements);
    sum_up();
}

/// The node that has a parent in the tree of a single chunk: of two with a rank each, all it computes is the copy of the
/// result out of the memory of its link.
const LEAF: u32 = 1;
const ROOT: u32 = 0;

/// A tenth of what is usual.
const SHORT: Timing = Timing {
    heartbeat: Duration::from_millis(25),
    suspect: Duration::from_millis(500),
    lost: Duration::from_secs(1),
    late: Duration::from_secs(1),
};

/// Two nodes, of which one has these workers.
fn leaf_with(fake: &Fake, workers: &WorkerOptions) -> Gang {
    let options = |options: MemberOptions, rank| MemberOptions {
        timing: SHORT,
        workers: if rank == LEAF {
            workers.clone()
        } else {
            options.workers.clone()
        },
        ..fake.options(options)
    };
    let gang = Gang::over(2, 1, options, |_| {});
    all_over(&gang, "verbs");
    gang
}

#[test]
fn a_copy_out_of_a_link_that_takes_longer_than_a_lost_node_delays_no_heartbeat() {
    let fake = Fake::new();
    let (slow, begins, allow) = held_workers();
    let gang = leaf_with(&fake, &slow);
    let allow = allow; // Dropped before the gang, which waits for its workers.
    thread::scope(|scope| {
        let ranks = [LEAF, ROOT].map(|rank| {
            let client = gang.client(rank);
            scope.spawn(move || run(&client, sum(1000), &f32s(&[1.0; 1000])).unwrap())
        });
        begins.recv_timeout(PATIENCE).unwrap();
        let start = Instant::now();
        wait_until(|| {
            let suspects = gang.counted("fireflyer_hfreduce_suspects_total ");
            assert_eq!(suspects, 0, "a node that copies is a suspect");
            start.elapsed() > SHORT.lost + SHORT.suspect
        });
        let [leaf, root] = ranks;
        assert!(!leaf.is_finished(), "its result is not copied yet");
        drop(allow);
        for rank in [leaf, root] {
            assert_eq!(to_f32s(&rank.join().unwrap().result), [2.0; 1000]);
        }
    });
}

// COLL-1: the same on all members.
#[test]
fn what_came_before_a_link_was_lost_counts_although_it_is_copied_after() {
    let fake = Fake::new();
    let (slow, begins, allow) = held_workers();
    let gang = leaf_with(&fake, &slow);
    let allow = allow; // Dropped before the gang, which waits for its workers.
    let (leaf, root) = (gang.client(LEAF), gang.client(ROOT));
    let tickets = [&leaf, &root].map(|client| {
        let input = filled(client, &f32s(&[1.0; 1000]));
        client.submit(sum(1000), Some(input), PATIENCE).unwrap()
    });
    begins.recv_timeout(PATIENCE).unwrap();
    let result = root.wait(tickets[1], PATIENCE).unwrap().result;
    assert_eq!(to_f32s(&result), [2.0; 1000]);
    fake.inject(STATUS, 12);
    wait_until(|| {
        let metrics = gang.nodes[LEAF as usize].registry.text().unwrap();
        counter(&metrics, "fireflyer_hfreduce_peers ") == 0
    });
    drop(allow);
    let result = leaf.wait(tickets[0], PATIENCE).unwrap().result;
    assert_eq!(to_f32s(&result), [2.0; 1000]);
    let input = filled(&leaf, &f32s(&[1.0]));
    let ticket = leaf.submit(sum(1), Some(input), PATIENCE).unwrap();
    let (kind, text) = failure(leaf.wait(ticket, PATIENCE));
    assert_eq!(kind, FailureKind::Broken);
    assert!(text.contains("was lost"), "{text}");
}

// COLL-2: a write that fails names the node that it was meant for, or the one that it came from, on every rank.
#[test]
fn a_link_that_fails_in_an_operation_names_a_node_on_every_rank() {
    let fake = Fake::new();
    let gang = Gang::with(3, 1, |options| fake.options(options));
    let clients: Vec<Client> = (0..3).map(|rank| gang.client(rank)).collect();
    let texts: Vec<String> = thread::scope(|scope| {
        let waiting: Vec<_> = clients
            .iter()
            .map(|client| {
                let input = filled(client, &f32s(&[1.0; 100_000]));
                scope.spawn(move || {
                    let ticket = client.submit(sum(100_000), Some(input), PATIENCE).unwrap();
                    let (kind, text) = failure(client.wait(ticket, PATIENCE));
                    assert_eq!(kind, FailureKind::Broken);
                    text
                })
            })
            .collect();
        fake.inject(STATUS, 12);
        waiting
            .into_iter()
            .map(|waiting| waiting.join().unwrap())
            .collect()
    });
    assert!(
        texts.iter().all(|text| text.contains("was lost")),
        "{texts:?}"
    );
}
