//! A sidecar is killed and started again, as the kubelet does it, at every moment of an operation. Its processes attach to
//! the new one by themselves; the operation ends with the contributions of all, and nobody is put out.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod gang;

use std::thread;
use std::time::{Duration, Instant};

use gang::leader::Leader;
use gang::pods::Pods;
use gang::{PATIENCE, f32s, filled, to_f32s};
use wire::client::{Client, Output, Ticket};
use wire::{Call, DType, ReduceOp};

/// Ten times the 3 s that a restart may cost beyond the absence (REC-7).
const WITHIN: Duration = Duration::from_secs(30);
/// Nobody is given up while a busy machine starts a process.
const PEER_LOSS: Duration = Duration::from_secs(60);
const NODES: u32 = 3;
const PROCS: u32 = 2;
const WORLD: u32 = NODES * PROCS;

struct Restarted {
    leader: Leader,
    pods: Pods,
    clients: Vec<Client>,
}

impl Restarted {
    fn start(transport: &str) -> Self {
        let leader = Leader::start(NODES as usize, PEER_LOSS);
        let pods = Pods::of_processes((NODES, PROCS), leader.address, transport);
        let clients: Vec<Client> = (0..WORLD).map(|rank| pods.client_of(rank)).collect();
        let gang = Self {
            leader,
            pods,
            clients,
        };
        gang.check(gang.call_all(10), 10);
        gang
    }

    fn call_all(&self, elements: usize) -> Vec<Ticket> {
        let call = |client| submit(client, elements);
        self.clients.iter().map(call).collect()
    }

    /// All ranks have taken part, and nobody was put out.
    fn check(&self, tickets: Vec<Ticket>, elements: usize) {
        thread::scope(|scope| {
            for (client, ticket) in self.clients.iter().zip(tickets) {
                scope.spawn(move || whole(&client.wait(ticket, PATIENCE).unwrap(), elements));
            }
        });
        let members: Vec<u32> = (0..NODES).collect();
        assert_eq!(*self.leader.members.lock().unwrap(), members);
    }
}

fn submit(client: &Client, elements: usize) -> Ticket {
    let rank = client.standing().rank as f32;
    let input = filled(client, &f32s(&vec![rank + 1.0; elements]));
    let call = Call::all_reduce(DType::F32, ReduceOp::Sum, elements as u64);
    client.submit(call, Some(input), PATIENCE).unwrap()
}

/// The result has the contributions of all ranks, and the input is as it was.
fn whole(output: &Output, elements: usize) {
    let all = (1..=WORLD).sum::<u32>() as f32;
    let sums = to_f32s(&output.result);
    assert_eq!(sums.len(), elements);
    assert!(sums.iter().all(|sum| *sum == all), "{:?}", &sums[..1]);
    assert_eq!(output.members.ranks, WORLD);
    assert!(output.members.nodes().eq(0..NODES));
    let input = to_f32s(output.input.as_ref().unwrap());
    assert!(input.iter().all(|one| *one == input[0]));
}

fn over_each(work: impl Fn(Restarted)) {
    for transport in ["auto", "tcp"] {
        work(Restarted::start(transport));
    }
}

#[test]
fn who_has_called_nothing_and_who_has_called_while_it_was_gone_go_on() {
    over_each(|mut gang| {
        for killed in 0..NODES {
            gang.pods.kill(killed);
            // Some call while it is gone, its own processes too; the others when it is back.
            let early: Vec<Ticket> = gang.clients[..3]
                .iter()
                .map(|one| submit(one, 1000))
                .collect();
            let since = Instant::now();
            gang.pods.start_again(killed);
            let late = gang.clients[3..].iter().map(|one| submit(one, 1000));
            let tickets = early.into_iter().chain(late).collect();
            gang.check(tickets, 1000);
            assert!(since.elapsed() < WITHIN, "{:?}", since.elapsed());
        }
    });
}

#[test]
fn an_operation_under_way_ends_with_the_contributions_of_all() {
    over_each(|mut gang| {
        let elements = 1 << 20;
        for (killed, micros) in [(0, 0), (1, 3_000), (2, 10_000), (0, 30_000)] {
            let tickets = gang.call_all(elements);
            // Not to synchronise: whenever it is, the outcome is the same.
            thread::sleep(Duration::from_micros(micros));
            gang.pods.kill(killed);
            let since = Instant::now();
            gang.pods.start_again(killed);
            gang.check(tickets, elements);
            assert!(since.elapsed() < WITHIN, "{:?}", since.elapsed());
        }
    });
}

#[test]
fn what_some_were_told_is_what_all_are_told() {
    over_each(|mut gang| {
        for killed in 0..NODES {
            let (first, second) = (gang.call_all(5000), gang.call_all(7));
            // Told to one rank, whose result is held; by the others not even asked for.
            let held = gang.clients[(killed * PROCS) as usize]
                .wait(first[(killed * PROCS) as usize], PATIENCE);
            let held = held.unwrap();
            gang.pods.kill(killed);
            gang.pods.start_again(killed);
            gang.check(second, 7);
            whole(&held, 5000);
            let rest = gang.clients.iter().zip(first);
            for (client, ticket) in
                rest.filter(|(client, _)| client.standing().rank != killed * PROCS)
            {
                whole(&client.wait(ticket, PATIENCE).unwrap(), 5000);
            }
        }
    });
}
