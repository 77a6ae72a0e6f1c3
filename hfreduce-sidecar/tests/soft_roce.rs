//! Gangs over four RDMA devices in software, `rxe0` to `rxe3`, a sidecar process on each: what they sum, and what every
//! rank learns when a sidecar is killed or a cable (`p0` to `p3`) is pulled. Run by `cargo xtask test --rdma`. The
//! guest is emulated, so the times asserted are ten times the target.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod gang;

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use gang::leader::Leader;
use gang::limits::{self, NAMED};
use gang::pods::Pods;
use gang::processes::{self, Sidecars, get, loopback, transports};
use gang::{PATIENCE, encode, f32s, failure, filled, run, sum, to_f32s, wait_until};
use hfreduce_client::client::{CallTicket, Client};
use hfreduce_client::entry::FailureKind;
use hfreduce_client::{Call, DType, OpKind};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use topology::OnPeerLoss;

/// How long a sidecar may be gone before the others go on.
const PEER_LOSS: Duration = Duration::from_secs(2);
/// How long a silent node is waited for where a loss ends the attempt.
const SILENT: Duration = Duration::from_secs(10);
const NODES: u8 = 4;
/// The largest sum: 8 MiB.
const MOST: u64 = 2 << 20;
/// Small ones: an emulator takes seconds to provide for large ones on every link.
const CHUNK: &[&str] = &["--chunk-bytes", "65536"];

fn start() -> (Sidecars, Vec<Client>) {
    let gang = Sidecars::start_over("verbs", CHUNK, loopback(NODES), 1);
    let clients = (0..NODES.into()).map(|node| gang.client(node, 0)).collect();
    (gang, clients)
}

/// The transports of all links of a gang, each once.
fn links(gang: &Sidecars) -> Vec<String> {
    let metrics = |rank| get(gang.metrics_address(rank), "/metrics");
    let links = (0..NODES.into()).flat_map(|rank| transports(&metrics(rank)).into_values());
    let mut links: Vec<String> = links.collect();
    links.sort_unstable();
    links.dedup();
    links
}

/// Lets every rank run one call at a time with its own input.
fn each(clients: &[Client], work: impl Fn(&Client, i64) + Sync) {
    thread::scope(|scope| {
        for (rank, client) in (0..).zip(clients) {
            let work = &work;
            scope.spawn(move || work(client, rank));
        }
    });
}

fn sums_are_right(clients: &[Client], counts: &[u64]) {
    let ranks = clients.len() as i64;
    each(clients, |client, rank| {
        for count in counts.iter().map(|count| *count as i64) {
            let part = |at: i64| (at % 1000) + rank;
            let input = encode(DType::F32, (0..count).map(part));
            let all = (0..count).map(|at| ranks * (at % 1000) + ranks * (ranks - 1) / 2);
            let output = run(client, sum(count as u64), &input).unwrap();
            assert!(output.result[..] == encode(DType::F32, all), "{count}");
        }
    });
}

/// Pulls a node's cable, or plugs it in.
fn cable(node: usize, state: &str) {
    let mut ip = Command::new("/sbin/ip");
    let ip = ip.args(["link", "set", &format!("p{node}"), state]);
    assert!(ip.status().unwrap().success());
    let wanted = if state == "up" { "ACTIVE" } else { "DOWN" };
    let file = format!("/sys/class/infiniband/rxe{node}/ports/1/state");
    wait_until(|| std::fs::read_to_string(&file).unwrap().contains(wanted));
}

fn submit(client: &Client, elements: u64) -> CallTicket {
    let rank = client.standing().rank as f32;
    let input = filled(client, &f32s(&vec![rank + 1.0; elements as usize]));
    client.submit(sum(elements), Some(input), PATIENCE).unwrap()
}

/// The error that a rank gets of an operation that fails, in time.
fn error_of(client: &Client, ticket: CallTicket) -> String {
    let since = Instant::now();
    let (kind, text) = failure(client.wait(ticket, PATIENCE));
    assert_eq!(kind, FailureKind::Broken);
    limits::keep("a node is lost: it is named", NAMED, since);
    text
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn sums_of_up_to_8_mebibytes_are_right_on_every_node() {
    let (gang, clients) = start();
    assert_eq!(links(&gang), ["verbs"], "{}", gang.log(0));
    sums_are_right(&clients, &[0, 1, 1000, MOST]);
    each(&clients, |client, rank| {
        let call = Call::new(OpKind::Broadcast { root: 2 }, DType::I64, 100_000);
        let output = run(client, call, &encode(DType::I64, rank..rank + 100_000)).unwrap();
        assert!(output.result[..] == encode(DType::I64, 2..100_002));
    });
}

// COLL-2: a dead sidecar is named at once, by the connection beside the link.
#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn a_sidecar_that_is_killed_is_named_on_every_other_node() {
    let (gang, clients) = start();
    sums_are_right(&clients, &[1000]);
    let others = [0, 1, 3].map(|rank| &clients[rank]);
    let tickets = others.map(|client| submit(client, 200_000));
    gang.signal(2, Signal::KILL);
    for (client, ticket) in others.into_iter().zip(tickets) {
        let text = error_of(client, ticket);
        assert!(text.contains("node 2 was lost"), "{text}");
        assert!(text.contains("node 2 is worker-2"), "{text}");
    }
}

// COLL-2: no connection breaks when a cable is pulled; the devices get no answer.
#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn a_pulled_cable_is_reported_on_every_node_and_plugged_in_a_new_gang_works() {
    let (gang, clients) = start();
    sums_are_right(&clients, &[1000]);
    cable(1, "down");
    let tickets: Vec<CallTicket> = clients
        .iter()
        .map(|client| submit(client, 100_000))
        .collect();
    // The devices are as patient as the attempt, so either may notice first.
    for (client, ticket) in clients.iter().zip(tickets) {
        let since = Instant::now();
        let (kind, text) = failure(client.wait(ticket, PATIENCE));
        assert_eq!(kind, FailureKind::Broken);
        assert!(
            text.contains("fell silent") || text.contains("was lost"),
            "{text}"
        );
        limits::keep("a node is silent: it is given up", SILENT, since);
    }
    let why = "the peer does not answer: it is gone, or the link is down";
    wait_until(|| (0..4).any(|rank| gang.log(rank).contains(why)));
    drop((clients, gang));
    cable(1, "up");
    let (gang, clients) = start();
    assert_eq!(links(&gang), ["verbs"]);
    sums_are_right(&clients, &[1000]);
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn devices_that_do_not_reach_each_other_leave_the_gang_on_tcp_and_the_log_says_why() {
    // Active at both ends, and nothing passes.
    let mut ip = Command::new("/sbin/ip");
    let mut cut = |state: &str| {
        let ip = ip.args(["link", "set", "dev", "switch", state]);
        assert!(ip.status().unwrap().success());
    };
    cut("down");
    let (gang, clients) = start();
    assert_eq!(links(&gang), ["tcp"]);
    sums_are_right(&clients, &[1000]);
    let why = "no RDMA with this peer: TCP is used";
    assert!(
        (0..4).any(|rank| gang.log(rank).contains(why)),
        "{}",
        gang.log(1)
    );
    let mut ip = Command::new("/sbin/ip");
    assert!(
        ip.args(["link", "set", "dev", "switch", "up"])
            .status()
            .unwrap()
            .success()
    );
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn a_node_that_may_not_lock_memory_uses_tcp_and_the_log_says_what_to_do() {
    // Root may lock anything unless this is taken from it and from all that it starts.
    remove_capability_from_bounding_set(CapabilitySet::IPC_LOCK).unwrap();
    let mut capabilities = rustix::thread::capabilities(None).unwrap();
    capabilities.effective.remove(CapabilitySet::IPC_LOCK);
    capabilities.permitted.remove(CapabilitySet::IPC_LOCK);
    rustix::thread::set_capabilities(None, capabilities).unwrap();
    let limit = Some(1 << 20);
    let limits = Rlimit {
        current: limit,
        maximum: limit,
    };
    setrlimit(Resource::Memlock, limits).unwrap();
    let (gang, clients) = start();
    assert_eq!(links(&gang), ["tcp"]);
    sums_are_right(&clients, &[1000]);
    let log = gang.log(0);
    assert!(log.contains("LimitMEMLOCK=infinity"), "{log}");
}

/// What all elements of a result are.
fn result(client: &Client, ticket: CallTicket) -> f32 {
    let result = to_f32s(&client.wait(ticket, PATIENCE).unwrap().result);
    assert!(result.iter().all(|one| *one == result[0]));
    result[0]
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn the_others_finish_the_operation_of_a_node_that_is_lost() {
    let leader = Leader::start(NODES.into(), PEER_LOSS);
    let address = std::net::Ipv4Addr::LOCALHOST.into();
    let pods = Pods::start_at(
        address,
        NODES.into(),
        leader.address,
        OnPeerLoss::Shrink,
        "verbs",
    );
    let clients: Vec<Client> = (0..NODES.into()).map(|rank| pods.client(rank)).collect();
    gang::pods::sum(&clients);
    let metrics = || get(pods.metrics_address(0), "/metrics");
    assert!(
        processes::transports(&metrics())
            .values()
            .all(|name| name == "verbs")
    );
    let tickets: Vec<CallTicket> = clients
        .iter()
        .map(|client| submit(client, 200_000))
        .collect();
    pods.signal(2, Signal::KILL);
    for (rank, (client, ticket)) in clients.iter().zip(tickets).enumerate() {
        if rank != 2 {
            let sum = result(client, ticket);
            assert!(sum == 10.0 || sum == 7.0, "{sum}");
        }
    }
    let survivors = [0, 1, 3].map(|rank| &clients[rank]);
    let tickets = survivors.map(|client| submit(client, 1000));
    for (client, ticket) in survivors.into_iter().zip(tickets) {
        assert_eq!(result(client, ticket), 7.0);
    }
    let links = processes::transports(&metrics());
    assert!(links.values().all(|name| name == "verbs"), "{links:?}");
}
