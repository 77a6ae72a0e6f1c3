//! What happens when memory for results is short: calls wait for it in their order, so that nobody is ever
//! given a sum of different calls.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod gang;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use collective::machine::Timing;
use gang::{Gang, PATIENCE, counter, f32s, failure, filled, run, sum, to_f32s, wait_until};
use hfreduce_client::client::{CallTicket, Client, ResultView};
use hfreduce_client::entry::FailureKind;
use hfreduce_client::{Call, DType, OpKind};
use hfreduce_sidecar::background::Before;
use hfreduce_sidecar::member::MemberOptions;

const LIMIT_BYTES: usize = 4 << 20;
/// Elements of a sum whose result takes a quarter of the memory.
const QUARTER: usize = LIMIT_BYTES / 4 / 4;

fn small(nodes: usize, procs: u32) -> Gang {
    Gang::with(nodes, procs, |options| MemberOptions {
        limit_bytes: LIMIT_BYTES,
        ..options
    })
}

/// Every rank brings the same number as its `QUARTER` elements.
fn submit(client: &Client, number: f32) -> CallTicket {
    let input = filled(client, &number.to_le_bytes().repeat(QUARTER));
    let call = sum(QUARTER as u64);
    client.submit(call, Some(input), PATIENCE).unwrap()
}

/// The sum of two ranks' numbers.
fn wait(client: &Client, ticket: CallTicket, number: f32) -> ResultView {
    let result = client.wait(ticket, PATIENCE).unwrap().result;
    assert_eq!(to_f32s(&result), vec![2.0 * number; QUARTER]);
    result
}

// COLL-1: the sum of the same calls, however slowly one rank drops its results.
#[test]
fn calls_wait_in_their_order_until_results_are_dropped() {
    let gang = small(2, 1);
    gang.each(|client| {
        let mut held: Vec<ResultView> = [1.0, 2.0, 3.0]
            .map(|number| wait(&client, submit(&client, number), number))
            .into();
        if client.standing().rank == 0 {
            held.clear();
        }
        let fourth = submit(&client, 4.0);
        // On node 1 there is no memory for it, until one is dropped behind it in the ring.
        let fifth = submit(&client, 5.0);
        held.pop();
        let sixth = submit(&client, 6.0);
        let seventh = submit(&client, 7.0);
        for (ticket, number) in [(fourth, 4.0), (fifth, 5.0), (sixth, 6.0), (seventh, 7.0)] {
            wait(&client, ticket, number);
        }
    });
}

// COLL-1: the error names the rank and says what to do.
#[test]
fn a_result_that_never_fits_on_one_node_fails_on_every_rank() {
    let nodes = std::cell::Cell::new(0);
    let gang = Gang::with(2, 1, |options| MemberOptions {
        // The second node has room for nothing.
        limit_bytes: if nodes.replace(1) == 0 {
            LIMIT_BYTES
        } else {
            0
        },
        ..options
    });
    gang.each(|client| {
        let call = Call::new(OpKind::Broadcast { root: 0 }, DType::U8, 1);
        let calls = [call, Call::barrier(), call].map(|call| {
            let is_root = client.standing().rank == 0;
            let reads = is_root && call != Call::barrier();
            let input = reads.then(|| filled(&client, &[7]));
            client.submit(call, input, PATIENCE).unwrap()
        });
        let [first, second, third] = calls.map(|ticket| client.wait(ticket, PATIENCE));
        second.unwrap();
        for refused in [first, third] {
            let (kind, text) = failure(refused);
            assert_eq!(kind, FailureKind::Refused);
            assert!(
                text.contains("rank 1 called broadcast") && text.contains("smaller pieces"),
                "{text}"
            );
        }
    });
}

#[test]
fn a_call_that_disagrees_on_its_own_node_does_not_wait_for_memory() {
    let gang = small(1, 2);
    // Two inputs fit into a process's memory, one result into the node's.
    let gather = Call::new(OpKind::AllGather, DType::U8, (7 * LIMIT_BYTES / 16) as u64);
    let called = Barrier::new(2);
    gang.each(|client| {
        let submit = || {
            let input = client.buffer(gather.count as usize, PATIENCE).unwrap();
            client.submit(gather, Some(input), PATIENCE).unwrap()
        };
        let first = if client.standing().rank == 0 {
            client.submit(Call::barrier(), None, PATIENCE).unwrap()
        } else {
            // Until the other's second call has taken all memory.
            called.wait();
            submit()
        };
        let second = submit();
        if client.standing().rank == 0 {
            called.wait();
        }
        let (kind, text) = failure(client.wait(first, PATIENCE));
        assert_eq!(kind, FailureKind::Mismatch, "{text}");
        client.wait(second, PATIENCE).unwrap();
        run(&client, Call::barrier(), &[]).unwrap();
    });
}

/// Memory that is made only as often as somebody allows, or at will once nobody can any more.
fn slow_memory() -> (Before, Sender<()>) {
    let (allow, allowed) = channel();
    let allowed = Mutex::new(allowed);
    let before = Before::call(move || {
        allowed.lock().unwrap().recv().ok();
    });
    (before, allow)
}

#[test]
fn memory_that_takes_longer_than_a_lost_node_delays_no_heartbeat() {
    // A tenth of what is usual.
    let timing = Timing {
        heartbeat: Duration::from_millis(25),
        suspect: Duration::from_millis(500),
        lost: Duration::from_secs(1),
        ..Timing::default()
    };
    let (before, allow) = slow_memory();
    let gang = Gang::over(
        2,
        1,
        |options, rank| MemberOptions {
            timing,
            before_memory: if rank == 0 {
                before.clone()
            } else {
                Before::default()
            },
            ..options
        },
        |_| {},
    );
    let (slow, other) = (gang.client(0), gang.client(1));
    let suspects = || {
        let metrics = gang.nodes[1].registry.text().unwrap();
        counter(&metrics, "fireflyer_hfreduce_suspects_total ")
    };
    let longer_than_lost = || {
        let start = Instant::now();
        wait_until(|| {
            assert_eq!(suspects(), 0, "a node that makes memory is a suspect");
            start.elapsed() > timing.lost + timing.suspect
        });
    };
    let one = f32s(&[1.0]);
    thread::scope(|scope| {
        // It asks for an input, which comes late; then the result of its call does.
        let late = scope.spawn(|| run(&slow, sum(1), &one).unwrap());
        longer_than_lost();
        let early = scope.spawn(|| run(&other, sum(1), &one).unwrap());
        assert!(!late.is_finished() && !early.is_finished());
        allow.send(()).unwrap();
        longer_than_lost();
        assert!(!late.is_finished() && !early.is_finished());
        drop(allow);
        for output in [late, early] {
            assert_eq!(output.join().unwrap().result[..], f32s(&[2.0]));
        }
    });
}

#[test]
fn a_call_that_waits_for_memory_counts_though_its_process_leaves() {
    let (before, allow) = slow_memory();
    let options = |options, rank| MemberOptions {
        before_memory: if rank == 0 {
            before.clone()
        } else {
            Before::default()
        },
        ..options
    };
    let gang = Gang::over(2, 1, options, |_| {});
    let (leaves, stays) = (gang.client(0), gang.client(1));
    allow.send(()).unwrap();
    let input = filled(&leaves, &f32s(&[1.0]));
    leaves.submit(sum(1), Some(input), PATIENCE).unwrap();
    drop(leaves);
    let output = run(&stays, sum(1), &f32s(&[2.0])).unwrap();
    assert_eq!(output.result[..], f32s(&[3.0]));
}

#[test]
fn segments_of_a_process_are_unmapped_beside_the_engine_when_it_leaves() {
    let pieces = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&pieces);
    let before = Before::call(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let gang = Gang::with(1, 1, |options| MemberOptions {
        before_memory: before.clone(),
        ..options
    });
    let leaves = gang.client(0);
    drop(filled(&leaves, &f32s(&[1.0])));
    assert_eq!(pieces.load(Ordering::Relaxed), 1, "its memory is made");
    drop(leaves);
    wait_until(|| pieces.load(Ordering::Relaxed) == 2);
}

#[test]
fn segments_of_a_process_count_for_the_next_one_in_its_place() {
    let gang = small(1, 1);
    let ask = |client: &Client| client.buffer(3 * LIMIT_BYTES / 4, PATIENCE).map(|_| ());
    ask(&gang.client(0)).unwrap();
    let refused = ask(&gang.client(0)).unwrap_err().to_string();
    assert!(refused.contains("may use for inputs"), "{refused}");
}
