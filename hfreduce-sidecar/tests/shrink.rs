//! The survivors of a loss go on: real sidecar processes with real clients, led by `collective::membership` with a store
//! in memory. The operation under way is finished by those who are left, with the same result on all of them.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod gang;

use std::thread;
use std::time::{Duration, Instant};

use contract::run_dir;
use gang::grouped::{call_sum_in, close, sum_in};
use gang::leader::Leader;
use gang::limits::{self, KILLED};
use gang::pods::Pods;
use gang::{PATIENCE, f32s, failure, filled, run, to_f32s, wait_until};
use hfreduce_client::client::{CallTicket, Client, Group, Output};
use hfreduce_client::entry::FailureKind;
use hfreduce_client::{Call, DType, ReduceOp};
use rustix::process::Signal;
use topology::OnPeerLoss;

const PEER_LOSS: Duration = Duration::from_secs(2);

/// A gang of one process a node, that has made its first operation.
fn start(nodes: u32) -> (Leader, Pods, Vec<Client>) {
    let leader = Leader::start(nodes as usize, PEER_LOSS);
    let address = std::net::Ipv4Addr::LOCALHOST.into();
    let pods = Pods::start_at(address, nodes, leader.address, OnPeerLoss::Shrink, "tcp");
    let clients: Vec<Client> = (0..nodes).map(|rank| pods.client(rank)).collect();
    gang::pods::sum(&clients);
    (leader, pods, clients)
}

fn submit(client: &Client, elements: usize) -> CallTicket {
    let rank = client.standing().rank as f32;
    let input = filled(client, &f32s(&vec![rank + 1.0; elements]));
    let call = Call::all_reduce(DType::F32, ReduceOp::Sum, elements as u64);
    client.submit(call, Some(input), PATIENCE).unwrap()
}

/// The one number that all elements of the result are.
fn result(client: &Client, ticket: CallTicket) -> f32 {
    number(&wait(client, ticket))
}

fn wait(client: &Client, ticket: CallTicket) -> Output {
    client.wait(ticket, PATIENCE).unwrap()
}

fn number(output: &Output) -> f32 {
    let result = to_f32s(&output.result);
    assert!(result.iter().all(|one| *one == result[0]));
    result[0]
}

/// Waits for all, and then looks at what came: that takes longer than the operation.
fn results(clients: &[Client], tickets: &[CallTicket], come: impl FnOnce()) -> Vec<f32> {
    let ranks = clients.iter().zip(tickets);
    let outputs: Vec<Output> = ranks
        .map(|(client, ticket)| wait(client, *ticket))
        .collect();
    come();
    outputs.iter().map(number).collect()
}

#[test]
fn an_operation_under_way_is_finished_without_the_node_whose_process_died() {
    let (_leader, _pods, mut clients) = start(3);
    let elements = 1 << 20;
    let tickets: Vec<CallTicket> = clients[..2]
        .iter()
        .map(|client| submit(client, elements))
        .collect();
    // It has not called; its end is the end of its socket, as when it is killed.
    let lost = clients.pop().unwrap();
    let since = Instant::now();
    lost.abandon();
    for (client, ticket) in clients.iter().zip(tickets) {
        assert_eq!(result(client, ticket), 3.0);
    }
    limits::keep(
        "a process dies: the others finish the operation without it",
        KILLED,
        since,
    );
    // And all that follow: an average is that of the two.
    let averages: Vec<Vec<f32>> = thread::scope(|scope| {
        let average = |client| {
            let call = Call::all_reduce(DType::F32, ReduceOp::Avg, 2);
            to_f32s(&run(client, call, &f32s(&[1.0, 4.0])).unwrap().result)
        };
        let running: Vec<_> = clients
            .iter()
            .map(|client| scope.spawn(move || average(client)))
            .collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(averages, [[1.0, 4.0], [1.0, 4.0]]);
}

/// Rank 3 is in the first two of these, whose ranks do different work and the same.
const GROUPS: [(&[u32], bool); 3] = [(&[0, 1, 3], false), (&[0, 3], true), (&[1, 2], false)];

/// All ranks open those of the groups that they are in.
fn open(clients: &[Client]) -> Vec<[Option<Group>; 3]> {
    let opens = |client: &Client| {
        let rank = client.standing().rank;
        let mut number = 10;
        GROUPS.map(|(ranks, replicated)| {
            number += 1;
            let open = || client.open(number, ranks, replicated, PATIENCE).unwrap();
            ranks.contains(&rank).then(open)
        })
    };
    thread::scope(|scope| {
        let running: Vec<_> = clients
            .iter()
            .map(|client| scope.spawn(move || opens(client)))
            .collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

// COLL-1 for a group that cannot shrink, in a gang that can.
#[test]
fn a_group_that_is_not_replicated_fails_with_the_lost_rank_named_and_all_others_go_on() {
    let (_leader, _pods, mut clients) = start(4);
    let groups = open(&clients);
    let lost = clients.pop().unwrap();
    let [first, second, third] = [0, 1, 2].map(|rank| &clients[rank]);
    let of = |rank: usize, group: usize| groups[rank][group].unwrap();
    let elements = 1 << 20;
    // Of each group and of the world something is under way that waits for rank 3, if that is in it.
    let failing = [(first, 0), (second, 1)].map(|(client, rank)| {
        (
            client,
            of(rank, 0),
            call_sum_in(client, of(rank, 0), elements),
        )
    });
    let shrinking = call_sum_in(first, of(0, 1), elements);
    let apart = [(second, 1), (third, 2)]
        .map(|(client, rank)| (client, call_sum_in(client, of(rank, 2), elements)));
    let world = [first, second, third].map(|client| (client, submit(client, elements)));
    // Its end is the end of its socket, as when it is killed.
    let since = Instant::now();
    lost.abandon();
    for (client, _, ticket) in &failing {
        let (kind, text) = failure(client.wait(*ticket, PATIENCE));
        assert_eq!(kind, FailureKind::Refused);
        assert!(
            text.ends_with("; lost: rank 3 on node 3 (worker-3)"),
            "{text}"
        );
    }
    limits::keep(
        "a process dies: its group that is not replicated fails and names it",
        KILLED,
        since,
    );
    for (client, ticket) in world {
        assert_eq!(result(client, ticket), 6.0);
    }
    assert_eq!(result(first, shrinking), 0.0, "rank 0 alone");
    for (client, ticket) in apart {
        assert_eq!(result(client, ticket), 3.0, "ranks 1 and 2");
    }
    // Later calls end alike, and the group can be closed.
    thread::scope(|scope| {
        for (client, group, _) in failing {
            scope.spawn(move || {
                let ticket = call_sum_in(client, group, 5);
                let (_, text) = failure(client.wait(ticket, PATIENCE));
                assert!(text.contains("lost: rank 3"), "{text}");
                close(client, group);
            });
        }
        for client in [first, second, third] {
            scope.spawn(move || assert_eq!(sum_in(client, client.world(), 2), [3.0; 2]));
        }
    });
}

#[test]
fn what_a_rank_has_called_before_it_died_ends_alike_on_all_others_of_its_group() {
    for micros in [0, 500, 2_000, 10_000] {
        let (_leader, _pods, mut clients) = start(4);
        let groups = open(&clients);
        let in_group = [0, 1, 3].map(|rank| {
            let group = groups[rank][0].unwrap();
            call_sum_in(&clients[rank], group, 1 << 20)
        });
        // Not to synchronise: whenever it is, all end alike.
        thread::sleep(Duration::from_micros(micros));
        clients.pop().unwrap().abandon();
        let ends: Vec<Result<f32, String>> = clients
            .iter()
            .zip(in_group)
            .take(2)
            .map(|(client, ticket)| match client.wait(ticket, PATIENCE) {
                Ok(output) => Ok(number(&output)),
                failed => Err(failure(failed).1),
            })
            .collect();
        match &ends[0] {
            Ok(sum) => assert_eq!(*sum, 4.0, "with what rank 3 brought"),
            Err(text) => assert!(text.contains("lost: rank 3"), "{text}"),
        }
        assert_eq!(ends[0], ends[1]);
        let tickets: Vec<CallTicket> = clients.iter().map(|one| submit(one, 5)).collect();
        for (client, ticket) in clients.iter().zip(tickets) {
            assert_eq!(result(client, ticket), 6.0);
        }
    }
}

#[test]
fn a_node_whose_sidecar_is_killed_is_waited_for_and_then_done_without() {
    let (_leader, pods, clients) = start(4);
    let elements = 3 << 20;
    let tickets: Vec<CallTicket> = clients
        .iter()
        .map(|client| submit(client, elements))
        .collect();
    let since = Instant::now();
    pods.signal(0, Signal::KILL);
    let sums = results(&clients[1..], &tickets[1..], || {
        let what = "a sidecar is killed for good: the others finish without it";
        limits::keep(what, PEER_LOSS + KILLED, since);
    });
    // Either it was complete somewhere before the kill, and all have it, or nobody's contains rank 0.
    assert!(
        [[10.0; 3], [9.0; 3]].contains(&[sums[0], sums[1], sums[2]]),
        "{sums:?}"
    );
    let survivors = &clients[1..];
    let tickets: Vec<CallTicket> = survivors.iter().map(|client| submit(client, 5)).collect();
    for (client, ticket) in survivors.iter().zip(tickets) {
        assert_eq!(result(client, ticket), 9.0);
    }
}

#[test]
fn losses_one_after_the_other_leave_one_that_goes_on() {
    let (_leader, _pods, mut clients) = start(4);
    while clients.len() > 1 {
        let lost = clients.remove(0);
        let tickets: Vec<CallTicket> = clients.iter().map(|client| submit(client, 1000)).collect();
        lost.abandon();
        let all: f32 = clients
            .iter()
            .map(|client| client.standing().rank as f32 + 1.0)
            .sum();
        for (client, ticket) in clients.iter().zip(tickets) {
            assert_eq!(result(client, ticket), all);
        }
    }
}

#[test]
fn a_sidecar_that_comes_back_too_late_tells_its_processes_that_the_others_went_on() {
    let (leader, mut pods, clients) = start(3);
    pods.kill(2);
    let tickets: Vec<CallTicket> = clients.iter().map(|client| submit(client, 10)).collect();
    for (client, ticket) in clients[..2].iter().zip(&tickets) {
        assert_eq!(result(client, *ticket), 3.0);
    }
    let view = leader.view.lock().unwrap().clone().unwrap();
    assert_eq!(view.members, [0, 1]);
    pods.start_again(2);
    let since = Instant::now();
    let (kind, text) = failure(clients[2].wait(tickets[2], PATIENCE));
    assert_eq!(kind, FailureKind::Broken);
    assert!(text.contains("gone on without it"), "{text}");
    limits::keep(
        "a sidecar comes back too late: its processes learn it",
        KILLED,
        since,
    );
}

#[test]
fn the_other_processes_of_a_node_that_is_out_get_an_error() {
    let (_leader, pods, mut clients) = start(3);
    let frozen = clients.pop().unwrap();
    let input = filled(&frozen, &f32s(&[3.0; 10]));
    // The operator takes it for dead, and it cannot know.
    pods.signal(2, Signal::STOP);
    let call = Call::all_reduce(DType::F32, ReduceOp::Sum, 10);
    let ticket = frozen.submit(call, Some(input), PATIENCE).unwrap();
    let tickets: Vec<CallTicket> = clients.iter().map(|client| submit(client, 10)).collect();
    thread::scope(|scope| {
        for (client, ticket) in clients.iter().zip(tickets) {
            scope.spawn(move || assert_eq!(result(client, ticket), 3.0));
        }
    });
    pods.signal(2, Signal::CONT);
    let (kind, _) = failure(frozen.wait(ticket, PATIENCE));
    assert_eq!(kind, FailureKind::Broken);
    // Also for ranks that call nothing.
    wait_until(|| pods.run_dir(2).join(run_dir::VOID).exists());
}
