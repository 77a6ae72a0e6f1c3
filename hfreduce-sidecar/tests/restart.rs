//! A sidecar is killed and started again, as the kubelet does it, at every moment of an operation. Its processes attach to
//! the new one by themselves; the operation ends with the contributions of all, and nobody is put out.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod gang;

use std::thread;
use std::time::{Duration, Instant};

use collective::membership::Break;
use gang::grouped::{call_sum_in, close, sum_in};
use gang::limits::{self, RESTARTED};
use gang::processes::get;
use gang::restarted::{Restarted, submit, whole};
use gang::{PATIENCE, counter, to_f32s, wait_until};
use hfreduce_client::Call;
use hfreduce_client::client::{CallTicket, Client, Error, Group};
use rustix::process::Signal;

const NODES: u32 = 3;
const PROCS: u32 = 2;

fn gang() -> Restarted {
    Restarted::start("tcp", (NODES, PROCS))
}

#[test]
fn who_has_called_nothing_and_who_has_called_while_it_was_gone_go_on() {
    let mut gang = gang();
    for killed in 0..NODES {
        gang.pods.kill(killed);
        // Some call while it is gone, its own processes too; the others when it is back.
        let early: Vec<CallTicket> = gang.clients[..3]
            .iter()
            .map(|one| submit(one, 1000))
            .collect();
        let since = Instant::now();
        gang.pods.start_again(killed);
        let late = gang.clients[3..].iter().map(|one| submit(one, 1000));
        let tickets = early.into_iter().chain(late).collect();
        gang.check(tickets, 1000);
        // REC-7.
        limits::keep(
            "a sidecar restarts: what was called while it was gone ends",
            RESTARTED,
            since,
        );
    }
}

#[test]
fn an_operation_under_way_ends_with_the_contributions_of_all() {
    let mut gang = gang();
    let elements = 1 << 18;
    for (killed, micros) in [(0, 0), (1, 3_000), (2, 10_000), (0, 30_000)] {
        let tickets = gang.call_all(elements);
        // Not to synchronise: whenever it is, the outcome is the same.
        thread::sleep(Duration::from_micros(micros));
        gang.pods.kill(killed);
        let since = Instant::now();
        gang.pods.start_again(killed);
        gang.check(tickets, elements);
        limits::keep(
            "a sidecar restarts: the operation under way ends",
            RESTARTED,
            since,
        );
    }
}

#[test]
fn what_was_delivered_to_some_is_delivered_to_all() {
    let mut gang = gang();
    for killed in 0..NODES {
        let (first, second) = (gang.call_all(5000), gang.call_all(7));
        // Delivered to one rank, which holds the result; the others have not even asked for it.
        let held = gang.clients[(killed * PROCS) as usize]
            .wait(first[(killed * PROCS) as usize], PATIENCE);
        let held = held.unwrap();
        gang.pods.kill(killed);
        gang.pods.start_again(killed);
        gang.check(second, 7);
        whole(&held, 5000);
        let rest = gang.clients.iter().zip(first);
        for (client, ticket) in rest.filter(|(client, _)| client.standing().rank != killed * PROCS)
        {
            whole(&client.wait(ticket, PATIENCE).unwrap(), 5000);
        }
    }
}

#[test]
fn a_sidecar_that_is_killed_again_before_the_others_go_on_holds_nobody_up_for_good() {
    let mut gang = gang();
    let elements = 100_000;
    for (killed, pause) in [(0, 0), (1, 20), (2, 60), (0, 150), (1, 400)] {
        let tickets = gang.call_all(elements);
        // One alone: what two forget at once may be what was delivered to the third, and nobody could contradict that.
        for _ in 0..3 {
            gang.pods.kill(killed);
            gang.pods.start_again(killed);
            // Not to synchronise: whenever it is, the outcome is the same.
            thread::sleep(Duration::from_millis(pause));
        }
        gang.check(tickets, elements);
    }
}

/// Bytes that the sidecar of a node has sent to its neighbours.
fn sent(gang: &Restarted, node: u32) -> u64 {
    let metrics = get(gang.pods.metrics_address(node), "/metrics");
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix("fireflyer_hfreduce_sent_bytes_total "));
    value.map_or(0, |value| value.parse().unwrap_or(0))
}

// Otherwise a sidecar that delivers it might take it along.
#[test]
fn no_outcome_is_delivered_before_every_node_has_the_result() {
    let elements = 10_000;
    let gang = Restarted::start("tcp", (2, 1));
    let mut shown = false;
    for (first, second) in [(0, 1), (1, 0)] {
        let before = sent(&gang, first);
        let one = submit(&gang.clients[first as usize], elements);
        let since = Instant::now();
        let mut went_up = false;
        while !went_up && since.elapsed() < Duration::from_secs(2) {
            thread::sleep(Duration::from_millis(20));
            went_up = sent(&gang, first) > before + 2 * elements as u64;
        }
        // The contribution of a leaf is at the root. Now the root has all it needs, and nothing reaches the leaf.
        if went_up {
            gang.pods.signal(first as usize, Signal::STOP);
        }
        let other = submit(&gang.clients[second as usize], elements);
        if went_up {
            let early = gang.clients[second as usize].wait(other, Duration::from_millis(500));
            assert!(
                matches!(early, Err(Error::Timeout { .. })),
                "it was delivered"
            );
            gang.pods.signal(first as usize, Signal::CONT);
            shown = true;
        }
        for (rank, ticket) in [(first, one), (second, other)] {
            whole(
                &gang.clients[rank as usize].wait(ticket, PATIENCE).unwrap(),
                elements,
            );
        }
    }
    assert!(shown, "no node was a leaf");
}

/// What each process does at the same time as the others.
fn each<T: Send>(clients: &[Client], work: impl Fn(&Client) -> T + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let running: Vec<_> = clients
            .iter()
            .map(|client| scope.spawn(move || work(client)))
            .collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// Every other process, and all of the first two nodes: with the world, what a process may be in at once.
const GROUPS: [&[u32]; 2] = [&[0, 2, 4], &[0, 1, 2, 3]];

/// Opens those of these groups that a process is in, numbered from `first`.
fn open(client: &Client, first: u64) -> Vec<(Group, f32)> {
    let rank = client.standing().rank;
    let mine = (first..)
        .zip(GROUPS)
        .filter(|(_, ranks)| ranks.contains(&rank));
    mine.map(|(number, ranks)| {
        let group = client.open(number, ranks, true, PATIENCE).unwrap();
        (group, ranks.iter().sum::<u32>() as f32)
    })
    .collect()
}

fn is_all(client: &Client, ticket: CallTicket, elements: usize, expected: f32) {
    let output = client.wait(ticket, PATIENCE).unwrap();
    let sums = to_f32s(&output.result);
    assert_eq!(sums.len(), elements);
    assert!(sums.iter().all(|sum| *sum == expected), "{:?}", &sums[..1]);
}

#[test]
fn what_is_under_way_in_groups_that_overlap_and_in_the_world_ends_with_the_contributions_of_all() {
    let mut gang = gang();
    let groups = each(&gang.clients, |client| open(client, 7));
    let elements = 1 << 16;
    for (killed, micros) in [(0, 0), (1, 2_000), (2, 5_000), (0, 20_000)] {
        let tickets: Vec<Vec<(CallTicket, f32)>> = gang
            .clients
            .iter()
            .zip(&groups)
            .map(|(client, groups)| {
                let mine = groups.iter().flat_map(|&(group, sum)| {
                    let call = || (call_sum_in(client, group, elements), sum);
                    [call(), call()]
                });
                let world = (call_sum_in(client, client.world(), elements), 15.0);
                mine.chain([world]).collect()
            })
            .collect();
        // Not to synchronise: whenever it is, the outcome is the same.
        thread::sleep(Duration::from_micros(micros));
        gang.pods.kill(killed);
        let since = Instant::now();
        gang.pods.start_again(killed);
        thread::scope(|scope| {
            for (client, tickets) in gang.clients.iter().zip(tickets) {
                scope.spawn(move || {
                    for (ticket, sum) in tickets {
                        is_all(client, ticket, elements, sum);
                    }
                });
            }
        });
        // REC-7.
        limits::keep(
            "a sidecar restarts: what is under way in groups ends",
            RESTARTED,
            since,
        );
        gang.check(gang.call_all(10), 10);
    }
}

#[test]
fn a_group_that_opens_or_closes_meanwhile_is_open_or_closed_for_all() {
    let mut gang = gang();
    for (killed, first) in [(0, 10), (1, 20), (2, 30)] {
        let closed = each(&gang.clients, |client| open(client, first));
        each(&gang.clients, |client| {
            for (group, _) in open(client, first + 2) {
                close(client, group); // Before.
            }
        });
        let end = |client: &Client, groups: &[(Group, f32)]| -> Vec<CallTicket> {
            let ends = groups.iter().map(|(group, _)| {
                client
                    .submit_in(*group, Call::close(), None, PATIENCE)
                    .unwrap()
            });
            ends.collect()
        };
        let ranks = || gang.clients.iter().zip(&closed);
        // Some have called it, some not.
        let early: Vec<_> = ranks()
            .take(3)
            .map(|(one, groups)| end(one, groups))
            .collect();
        let clients = gang.clients.clone();
        let opening = thread::spawn(move || each(&clients, |client| open(client, first + 4)));
        gang.pods.kill(killed);
        gang.pods.start_again(killed);
        let late = gang.clients.iter().zip(&closed).skip(3);
        let late = late.map(|(one, groups)| end(one, groups));
        let tickets: Vec<_> = early.into_iter().chain(late).collect();
        for (client, tickets) in gang.clients.iter().zip(tickets) {
            for ticket in tickets {
                client.wait(ticket, PATIENCE).unwrap();
            }
        }
        let open = opening.join().unwrap();
        // Once more, when the outcomes were just delivered.
        gang.pods.kill(killed);
        gang.pods.start_again(killed);
        thread::scope(|scope| {
            for (client, groups) in gang.clients.iter().zip(&open) {
                scope.spawn(move || {
                    for &(group, sum) in groups {
                        assert_eq!(sum_in(client, group, 3), [sum; 3]);
                        close(client, group);
                    }
                });
            }
        });
        gang.check(gang.call_all(10), 10);
    }
}

// Its sidecar starts again, then another's, then its own once more.
#[test]
fn a_process_that_called_and_left_is_not_waited_for_and_what_was_delivered_to_it_holds() {
    let mut gang = gang();
    let all: Vec<u32> = (0..NODES * PROCS).collect();
    let shared = each(&gang.clients, |client| {
        client.open(7, &all, true, PATIENCE).unwrap()
    });
    let leaver = gang.clients.remove(1);
    let (of_world, in_group) = (submit(&leaver, 5000), call_sum_in(&leaver, shared[1], 10));
    let others = gang.clients.iter().zip([0, 2, 3, 4, 5]);
    let tickets: Vec<(CallTicket, CallTicket)> = others
        .map(|(client, rank)| (submit(client, 5000), call_sum_in(client, shared[rank], 10)))
        .collect();
    whole(&leaver.wait(of_world, PATIENCE).unwrap(), 5000);
    is_all(&leaver, in_group, 10, 15.0);
    drop(leaver);
    wait_until(|| {
        let metrics = get(gang.pods.metrics_address(0), "/metrics");
        counter(&metrics, "fireflyer_hfreduce_clients ") == 1
    });
    for (number, killed) in (100..).zip([0, 1, 0]) {
        gang.pods.kill(killed);
        let since = Instant::now();
        gang.pods.start_again(killed);
        let left: Vec<u32> = all.iter().copied().filter(|rank| *rank != 1).collect();
        each(&gang.clients, |client| {
            let group = client.open(number, &left, true, PATIENCE).unwrap();
            assert_eq!(sum_in(client, group, 3), [14.0; 3]);
        });
        // REC-7.
        limits::keep(
            "a sidecar restarts where a process has left: the others go on",
            RESTARTED,
            since,
        );
    }
    for (client, (of_world, in_group)) in gang.clients.iter().zip(tickets) {
        whole(&client.wait(of_world, PATIENCE).unwrap(), 5000);
        is_all(client, in_group, 10, 15.0);
    }
    gang.check(Vec::new(), 0);
    // What would need it ends the attempt, and is not waited for.
    submit(&gang.clients[0], 1);
    wait_until(|| {
        let view = gang.leader.view.lock().unwrap().clone().unwrap();
        matches!(view.broken, Some(Break::Fruitless { .. }))
    });
    assert!(
        gang.pods
            .log(0)
            .contains("rank 1 on node 0 left while operation 2")
    );
}
