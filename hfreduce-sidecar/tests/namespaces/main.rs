//! T3: real sidecars, each in a network namespace of its own, with real processes as their ranks. Two zones of two
//! nodes; what the interfaces count, what a cut cable and a stopped process do. Needs root and `ip`: where they are
//! not, every test counts as ignored, with the reason.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "test harness, and its own runner"
)]

#[path = "../gang/mod.rs"]
mod gang;
mod network;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use collective::DoubleTree;
use collective::machine::Timing;
use contract::identity::{Identity, JobId, Party};
use gang::limits::{self, KILLED, NAMED};
use gang::processes::{RankSlot, Sidecars, get, suspects};
use gang::{PATIENCE, counter, f32s, failure, filled, run, sum, to_f32s, wait_until};
use hfreduce_client::client::{Client, Output};
use hfreduce_client::entry::FailureKind;
use hfreduce_sidecar::metrics::Metrics;
use hfreduce_sidecar::rendezvous::{Rendezvous, StreamSetup};
use link::connect::Credentials;
use link::handshake::{HELLO_BYTES, Key, PROOF_BYTES, Responder};
use network::{Network, address, missing, missing_throttle};
use rustix::process::Signal;
use serde_json::Value;
use sim::run_tests;

const ZONES: [&str; 4] = ["a", "a", "b", "b"];

type Test = (&'static str, fn());

const TESTS: [Test; 6] = [
    (
        "one_pair_of_nodes_carries_the_data_across_and_no_other_any",
        one_pair_of_nodes_carries_the_data_across_and_no_other_any,
    ),
    (
        "a_partition_ends_the_operation_on_both_sides_and_neither_goes_on",
        a_partition_ends_the_operation_on_both_sides_and_neither_goes_on,
    ),
    (
        "a_cable_that_is_back_in_time_costs_nothing_but_the_time",
        a_cable_that_is_back_in_time_costs_nothing_but_the_time,
    ),
    (
        "a_stopped_sidecar_is_a_suspect_and_is_forgiven",
        a_stopped_sidecar_is_a_suspect_and_is_forgiven,
    ),
    (
        "an_operator_whose_node_is_gone_is_not_taken_for_one_that_listens",
        an_operator_whose_node_is_gone_is_not_taken_for_one_that_listens,
    ),
    (
        "a_killed_process_is_named_on_every_rank",
        a_killed_process_is_named_on_every_rank,
    ),
];

/// Needs an interface that can be throttled, too.
const THROTTLED: Test = (
    "a_throttled_node_is_no_suspect_and_is_named_as_the_slow_one",
    a_throttled_node_is_no_suspect_and_is_named_as_the_slow_one,
);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [verb, socket, local_rank] = &arguments[..]
        && verb == RANK
    {
        return rank(Path::new(socket), local_rank.parse().unwrap());
    }
    let missing = missing();
    let unless = |missing: Option<String>| {
        move |(name, test): Test| (name.to_owned(), missing.clone().map_or(Ok(test), Err))
    };
    let throttled = unless(missing.clone().or_else(missing_throttle))(THROTTLED);
    let others = TESTS.into_iter().map(unless(missing));
    run_tests(others.chain([throttled]))
}

/// Two zones of two nodes with two ranks each. The sidecars end before their network does.
struct Fabric {
    sidecars: Sidecars,
    network: Network,
}

impl Fabric {
    fn start(procs: u32) -> Self {
        let network = Network::mesh(ZONES.len());
        let rank_slot = |(node, zone)| RankSlot {
            address: address(node),
            zone,
            namespace: Some(network.namespace(node)),
        };
        let sidecars = Sidecars::start(
            ZONES.into_iter().enumerate().map(rank_slot).collect(),
            procs,
        );
        Self { sidecars, network }
    }

    fn clients(&self, procs: u32) -> Vec<Client> {
        let rank = |node| (0..procs).map(move |local_rank| (node, local_rank));
        (0..ZONES.len())
            .flat_map(rank)
            .map(|(node, local_rank)| self.sidecars.client(node, local_rank))
            .collect()
    }

    /// Whether a node's sidecar says that another is a suspect.
    fn suspects(&self, by: usize, suspect: usize) -> bool {
        let metrics = self.sidecars.metrics_address(by);
        self.network
            .inside(by, || suspects(metrics, suspect as u32))
    }

    fn crossing_pairs() -> impl Iterator<Item = (usize, usize)> {
        let pairs = (0..ZONES.len()).flat_map(|one| (one + 1..ZONES.len()).map(move |b| (one, b)));
        pairs.filter(|&(one, other)| ZONES[one] != ZONES[other])
    }
}

fn trees() -> DoubleTree {
    DoubleTree::build(&ZONES)
}

fn gateways() -> (usize, usize) {
    let (one, other) = trees().gateways[0];
    (one.min(other), one.max(other))
}

/// All ranks call at once; what each of them got.
fn together<T: Send>(clients: &[Client], work: impl Fn(&Client) -> T + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let ranks: Vec<_> = clients
            .iter()
            .map(|client| scope.spawn(move || work(client)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn check_sum(output: &Output, count: u64, each: f32) {
    let result = to_f32s(&output.result);
    assert_eq!(result.len() as u64, count);
    assert!(result.iter().all(|value| *value == each));
}

// ZONE-2: exactly one pair of nodes exchanges collective data across, S each way; control traffic is exempt.
fn one_pair_of_nodes_carries_the_data_across_and_no_other_any() {
    const COUNT: u64 = 4 << 20;
    const PAYLOAD: u64 = COUNT * 4;
    let fabric = Fabric::start(2);
    let clients = fabric.clients(2);
    let sent = || -> BTreeMap<(usize, usize), u64> {
        let both = |(one, other)| [(one, other), (other, one)];
        let ways = Fabric::crossing_pairs().flat_map(both);
        ways.map(|(from, to)| ((from, to), fabric.network.sent(from, to)))
            .collect()
    };
    let (near, far) = gateways();
    let across = [(near, far), (far, near)];
    let carried = || across.map(|(from, to)| fabric.network.carried(from, to));
    let (sent_before, carried_before) = (sent(), carried());
    together(&clients, |client| {
        let mine = (client.standing().rank + 1) as f32;
        let output = run(client, sum(COUNT), &f32s(&vec![mine; COUNT as usize])).unwrap();
        check_sum(&output, COUNT, 36.0);
    });
    for (way, (before, after)) in across.iter().zip(carried_before.into_iter().zip(carried())) {
        // The headers of our frames come on top.
        let share = (after - before) as f64 / PAYLOAD as f64;
        println!("limit: {share:.4} x the payload crosses {way:?} (1.00 to 1.001)");
        assert!(
            (1.0..=1.001).contains(&share),
            "{share} x the payload crossed {way:?}"
        );
    }
    for (way, bytes) in sent() {
        let bytes = bytes - sent_before[&way];
        assert!(
            across.contains(&way) || bytes < PAYLOAD / 1000,
            "{bytes} bytes crossed {way:?}"
        );
    }
}

// A node that loses its power says no goodbye: left to the kernel, that is noticed after a quarter of an hour, and the
// operator that leads since then is not dialled before.
fn an_operator_whose_node_is_gone_is_not_taken_for_one_that_listens() {
    let network = Network::mesh(2);
    let bind = || TcpListener::bind((address(1), 0)).unwrap();
    let listener = network.inside(1, bind);
    let service = listener.local_addr().unwrap();
    let own = Identity {
        job: JobId::new("job"),
        attempt: 1,
        party: Party::Sidecar { rank: 0 },
    };
    let key = Key::new([7; 32]);
    let setup = StreamSetup {
        service: service.to_string(),
        credentials: Credentials {
            identity: own,
            key: key.clone(),
        },
        address: address(0).into(),
        port: 9404,
        run_dir: PathBuf::new(),
    };
    let metrics = Metrics::new(&daemon::Registry::new("test").unwrap()).unwrap();
    let _sidecar = network.inside(0, || Rendezvous::start(setup, metrics).unwrap());
    let (mut stream, _) = listener.accept().unwrap();
    let mut hello = [0; HELLO_BYTES];
    stream.read_exact(&mut hello).unwrap();
    let operator = Identity {
        party: Party::Operator,
        ..own
    };
    let responder = Responder::new(&hello).unwrap();
    let (_, challenge) = responder.challenge(key, operator, [9; 32]).unwrap();
    stream.write_all(&challenge).unwrap();
    // Its proof, and something that it has to say.
    stream.read_exact(&mut [0; PROOF_BYTES + 1]).unwrap();
    assert!(network.is_connected(0, service.port()));
    network.plug(0, 1, false);
    wait_until(|| !network.is_connected(0, service.port()));
}

// COLL-1: the same kind of end on all members, with its cause; no half goes on without the other.
fn a_partition_ends_the_operation_on_both_sides_and_neither_goes_on() {
    let fabric = Fabric::start(1);
    let clients = fabric.clients(1);
    together(&clients, |client| {
        run(client, sum(1), &f32s(&[1.0])).map(drop).unwrap();
    });
    for (one, other) in Fabric::crossing_pairs() {
        fabric.network.plug(one, other, false);
    }
    let texts = together(&clients, |client| {
        let (kind, text) = failure(run(client, sum(1000), &f32s(&[1.0; 1000])));
        assert_eq!(kind, FailureKind::Broken);
        // Whatever this half tries next fails with the same cause.
        assert_eq!(
            failure(run(client, sum(1), &f32s(&[1.0]))),
            (kind, text.clone())
        );
        text
    });
    let (near, far) = gateways();
    for (node, text) in texts.iter().enumerate() {
        let unseen = if ZONES[node] == ZONES[near] {
            far
        } else {
            near
        };
        assert!(
            text.contains(&format!("node {unseen} fell silent"))
                && text.contains(&format!("worker-{unseen}")),
            "node {node}: {text}"
        );
    }
}

fn a_cable_that_is_back_in_time_costs_nothing_but_the_time() {
    let fabric = Fabric::start(1);
    let clients = fabric.clients(1);
    let (near, far) = gateways();
    fabric.network.plug(near, far, false);
    let cut = Instant::now();
    thread::scope(|scope| {
        let ranks = scope.spawn(|| {
            together(&clients, |client| {
                run(client, sum(1000), &f32s(&[1.0; 1000])).unwrap()
            })
        });
        wait_until(|| fabric.suspects(near, far) && fabric.suspects(far, near));
        limits::keep("a cable is pulled: both ends name each other", NAMED, cut);
        fabric.network.plug(near, far, true);
        for output in ranks.join().unwrap() {
            check_sum(&output, 1000, 4.0);
        }
    });
    wait_until(|| !fabric.suspects(near, far) && !fabric.suspects(far, near));
}

// COLL-2: a silent peer is named as a suspect within 2 s, long before anybody gives it up.
fn a_stopped_sidecar_is_a_suspect_and_is_forgiven() {
    const STOPPED: usize = 3;
    let fabric = Fabric::start(1);
    let clients = fabric.clients(1);
    let peers = trees().tree_peers(STOPPED);
    assert!(!peers.is_empty());
    fabric.sidecars.signal(STOPPED, Signal::STOP);
    let stopped = Instant::now();
    thread::scope(|scope| {
        let ranks = scope.spawn(|| {
            together(&clients, |client| {
                run(client, sum(1000), &f32s(&[1.0; 1000])).unwrap()
            })
        });
        for neighbour in &peers {
            wait_until(|| fabric.suspects(*neighbour, STOPPED));
        }
        limits::keep("a sidecar freezes: its neighbours name it", NAMED, stopped);
        fabric.sidecars.signal(STOPPED, Signal::CONT);
        for output in ranks.join().unwrap() {
            check_sum(&output, 1000, 4.0);
        }
    });
    for neighbour in peers {
        wait_until(|| !fabric.suspects(neighbour, STOPPED));
        let silence = fabric.sidecars.silence(neighbour, STOPPED).unwrap();
        assert!(silence < NAMED, "node {neighbour}: {silence:?}");
    }
}

// Trap T18. A chunk takes longer on the way than a silence that makes a suspect, and is no silence.
fn a_throttled_node_is_no_suspect_and_is_named_as_the_slow_one() {
    const BITS: u32 = 2_000_000;
    /// A chunk for each tree.
    const COUNT: u64 = 256 << 10;
    let fabric = Fabric::start(1);
    let clients = fabric.clients(1);
    let trees = trees();
    // It has somebody to keep waiting, and nobody below it to wait for.
    let is_leaf = |node: &usize| trees.trees[0].children[*node].is_empty();
    let slow = (0..ZONES.len()).find(is_leaf).unwrap();
    let parent = trees.trees[0].parent[slow].unwrap();
    fabric.network.throttle(slow, BITS);
    let ask = |node: usize, path| {
        let address = fabric.sidecars.metrics_address(node);
        fabric.network.inside(node, || get(address, path))
    };
    let since = Instant::now();
    thread::scope(|scope| {
        let ranks = scope.spawn(|| {
            together(&clients, |client| {
                let input = f32s(&vec![1.0; COUNT as usize]);
                run(client, sum(COUNT), &input).unwrap()
            })
        });
        let name = format!("node {slow} (worker-{slow})");
        wait_until(|| {
            let answer = ask(parent, "/ops");
            let (_, body) = answer.split_once("\r\n\r\n").unwrap();
            let ops: Value = serde_json::from_str(body).unwrap();
            let names = ops["operations"][0]["waitsFor"].as_array();
            names.is_some_and(|names| names.iter().any(|one| *one == name))
        });
        for output in ranks.join().unwrap() {
            check_sum(&output, COUNT, 4.0);
        }
    });
    let chunk = Duration::from_secs_f64(COUNT as f64 * 4.0 / 2.0 * 8.0 / f64::from(BITS));
    assert!(
        since.elapsed() > chunk && chunk > Timing::default().suspect,
        "it was throttled"
    );
    for node in 0..ZONES.len() {
        let metrics = ask(node, "/metrics");
        let line = |name: &str| counter(&metrics, name);
        let suspects = metrics
            .lines()
            .find(|line| line.starts_with("fireflyer_hfreduce_suspects_total"));
        assert_eq!(
            suspects,
            Some("fireflyer_hfreduce_suspects_total 0"),
            "node {node}: {metrics}"
        );
        if node == parent {
            let waited = |peer: usize| {
                let name = "fireflyer_hfreduce_waited_for_node_microseconds_total";
                line(&format!(
                    "{name}{{node=\"worker-{peer}\",node_rank=\"{peer}\"}}"
                ))
            };
            let others = (0..ZONES.len()).filter(|peer| *peer != slow).map(waited);
            assert!(waited(slow) > others.sum(), "{metrics}");
        }
    }
}

// COLL-2: a process that dies is named at once, on every rank of every node.
fn a_killed_process_is_named_on_every_rank() {
    let fabric = Fabric::start(2);
    // Node 1's second, so rank 3 of the gang.
    let mut doomed = Process::start(&fabric.sidecars.socket(1), 1);
    let clients: Vec<Client> = [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1)]
        .map(|(node, local_rank)| fabric.sidecars.client(node, local_rank))
        .into();
    let tickets: Vec<_> = clients
        .iter()
        .map(|client| {
            let input = filled(client, &f32s(&[1.0; 1000]));
            client.submit(sum(1000), Some(input), PATIENCE).unwrap()
        })
        .collect();
    doomed.kill();
    let killed = Instant::now();
    let texts: Vec<String> = clients
        .iter()
        .zip(tickets)
        .map(|(client, ticket)| {
            let (kind, text) = failure(client.wait(ticket, PATIENCE));
            assert_eq!(kind, FailureKind::Broken);
            text
        })
        .collect();
    limits::keep(
        "a process is killed: all ranks learn who it was",
        KILLED,
        killed,
    );
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    assert!(
        texts[0].contains("rank 3") && texts[0].contains("worker-1"),
        "{}",
        texts[0]
    );
}

/// The word that makes this program a rank.
const RANK: &str = "rank";

/// A rank: attaches, says so, and waits for its end.
fn rank(socket: &Path, local_rank: u32) -> ExitCode {
    let client = Client::attach(socket, local_rank, PATIENCE).unwrap();
    println!("attached");
    std::io::stdin().read_line(&mut String::new()).ok();
    drop(client);
    ExitCode::SUCCESS
}

/// A rank that is a process of its own.
struct Process(Child);

impl Process {
    fn start(socket: &Path, local_rank: u32) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .arg(RANK)
            .arg(socket)
            .arg(local_rank.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut process = Self(child);
        let said = process.0.stdout.take().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(said), &mut line).unwrap();
        assert_eq!(line.trim(), "attached");
        process
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
