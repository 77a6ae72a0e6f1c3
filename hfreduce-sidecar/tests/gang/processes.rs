//! Sidecars as processes of their own, which can be killed and frozen. A file has the members for them.
#![expect(clippy::print_stderr, reason = "the logs of a test that failed")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use hfreduce_client::client::Client;
use hfreduce_sidecar::node;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::{PATIENCE, threads_of, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_hfreduce-sidecar");
pub(crate) const METRICS_PORT: u16 = 9402;

/// Where a sidecar runs.
#[derive(Clone, Debug)]
pub(crate) struct RankSlot {
    pub(crate) address: Ipv4Addr,
    pub(crate) zone: &'static str,
    /// The network namespace to run in; the test's own where there is none.
    pub(crate) namespace: Option<PathBuf>,
}

/// Seats at loopback addresses that no other process of this machine uses.
pub(crate) fn loopback(nodes: u8) -> Vec<RankSlot> {
    // 127/8 is ours: an address by process, gang and rank is taken by nobody else.
    static GANGS: AtomicU8 = AtomicU8::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let first = GANGS.fetch_add(8, Ordering::Relaxed) + 1;
    let rank_slot = |rank| RankSlot {
        address: Ipv4Addr::new(127, high | 1, low, first + rank),
        zone: "",
        namespace: None,
    };
    (0..nodes).map(rank_slot).collect()
}

/// The sidecars of a gang, which end with the value.
pub(crate) struct Sidecars {
    dir: tempfile::TempDir,
    seats: Vec<RankSlot>,
    transport: &'static str,
    options: &'static [&'static str],
    children: Vec<Child>,
}

/// The RDMA device of a node, where the test has one for each.
pub(crate) fn device(rank: usize) -> String {
    format!("rxe{rank}")
}

impl Sidecars {
    /// Starts one on each seat, for `procs` processes each, and waits until they joined. They share files, and are
    /// machines of their own all the same.
    pub(crate) fn start(seats: Vec<RankSlot>, procs: u32) -> Self {
        Self::start_over("tcp", &[], seats, procs)
    }

    /// The same, over this transport and with these options.
    pub(crate) fn start_over(
        transport: &'static str,
        options: &'static [&'static str],
        seats: Vec<RankSlot>,
        procs: u32,
    ) -> Self {
        let mut sidecars = Self {
            dir: tempfile::tempdir().unwrap(),
            seats,
            transport,
            options,
            children: Vec::new(),
        };
        let nodes: Vec<_> = (0..)
            .zip(&sidecars.seats)
            .map(|(rank, seat): (u32, _)| {
                serde_json::json!({
                    "rank": rank,
                    "address": seat.address,
                    "port": 9404,
                    "name": format!("worker-{rank}"),
                    "zone": seat.zone,
                })
            })
            .collect();
        let roster = serde_json::json!({"procsPerNode": procs, "nodes": nodes});
        fs::write(sidecars.dir.path().join("roster"), roster.to_string()).unwrap();
        for rank in 0..sidecars.seats.len() {
            let child = sidecars.spawn(rank);
            sidecars.children.push(child);
        }
        for rank in 0..sidecars.seats.len() {
            let dir = sidecars.run_dir(rank);
            wait_until(|| node::not_ready(&dir).is_none());
            let mut ready = Command::new(PROGRAM);
            ready.args(["ready", "--run-dir"]).arg(&dir);
            assert!(ready.status().unwrap().success());
        }
        sidecars
    }

    fn spawn(&self, rank: usize) -> Child {
        fs::create_dir(self.run_dir(rank)).unwrap();
        let rank_slot = &self.seats[rank];
        let mut command = match &rank_slot.namespace {
            // It becomes the sidecar, so the child's number is the sidecar's.
            Some(namespace) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={}", namespace.display()));
                command.arg(PROGRAM);
                command
            }
            None => Command::new(PROGRAM),
        };
        command
            .args(["serve", "--transport", self.transport])
            .args(["--rdma-device", &device(rank)])
            .args(["--workers", &threads_of(rank as u32).to_string()])
            .args(self.options)
            .args(["--rank", &rank.to_string(), "--metrics-listen"])
            .arg(SocketAddr::from((rank_slot.address, METRICS_PORT)).to_string())
            .arg("--roster")
            .arg(self.dir.path().join("roster"))
            .arg("--run-dir")
            .arg(self.run_dir(rank))
            .stderr(File::create(self.log_file(rank)).unwrap())
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    }

    pub(crate) fn run_dir(&self, rank: usize) -> PathBuf {
        self.dir.path().join(rank.to_string())
    }

    fn log_file(&self, rank: usize) -> PathBuf {
        self.dir.path().join(format!("{rank}.log"))
    }

    pub(crate) fn socket(&self, node: usize) -> PathBuf {
        self.run_dir(node).join(contract::run_dir::SOCKET)
    }

    pub(crate) fn client(&self, node: usize, local_rank: u32) -> Client {
        Client::attach(&self.socket(node), local_rank, PATIENCE).unwrap()
    }

    /// What a sidecar has logged so far.
    pub(crate) fn log(&self, rank: usize) -> String {
        fs::read_to_string(self.log_file(rank)).unwrap()
    }

    /// How long a node had been silent, by a sidecar's own clock, when it warned of it; none before.
    pub(crate) fn silence(&self, by: usize, suspect: usize) -> Option<Duration> {
        let log = self.log(by);
        let mut lines = log
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let silent = lines.find_map(|line: serde_json::Value| {
            let named = line["name"] == format!("worker-{suspect}");
            line["silent"].as_str().filter(|_| named).map(str::to_owned)
        })?;
        // A suspect has been silent for more than a second, which is how it is written.
        let seconds = silent.strip_suffix('s')?.parse().ok()?;
        Some(Duration::from_secs_f64(seconds))
    }

    /// Where a sidecar serves its metrics.
    pub(crate) fn metrics_address(&self, rank: usize) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.seats[rank].address), METRICS_PORT)
    }

    /// The number of a sidecar's process.
    pub(crate) fn process(&self, rank: usize) -> u32 {
        self.children[rank].id()
    }

    pub(crate) fn signal(&self, rank: usize, signal: Signal) {
        signal_to(&self.children[rank], signal);
    }

    /// Waits until all have ended by themselves, in good order.
    pub(crate) fn await_end(mut self) {
        for child in &mut self.children {
            assert!(child.wait().unwrap().success());
        }
    }
}

impl Drop for Sidecars {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
        if std::thread::panicking() {
            for rank in 0..self.children.len() {
                eprintln!("log of sidecar {rank}:\n{}", self.log(rank));
            }
        }
    }
}

/// Signals a sidecar. A stopped one stands still afterwards, with all its threads.
pub(crate) fn signal_to(child: &Child, signal: Signal) {
    let process = Pid::from_child(child);
    kill_process(process, signal).unwrap();
    if signal == Signal::STOP {
        waitid(WaitId::Pid(process), WaitIdOptions::STOPPED).unwrap();
    }
}

/// The transports of a sidecar's links, by the neighbours' ranks.
pub(crate) fn transports(metrics: &str) -> BTreeMap<String, String> {
    let links = metrics.lines().filter_map(|line| {
        let labels = line.strip_prefix("fireflyer_hfreduce_link{")?;
        let mut values = labels.strip_suffix("} 1")?.split('"').skip(1).step_by(2);
        let (_, rank, transport) = (values.next()?, values.next()?, values.next()?);
        Some((rank.to_owned(), transport.to_owned()))
    });
    links.collect()
}

/// What a sidecar answers at its address for health and metrics.
pub(crate) fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// What a sidecar reports about a neighbour: whether it is a suspect.
pub(crate) fn suspects(address: SocketAddr, rank: u32) -> bool {
    let name =
        format!("fireflyer_hfreduce_suspect{{node=\"worker-{rank}\",node_rank=\"{rank}\"}} ");
    let metrics = get(address, "/metrics");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
    value.unwrap() == "1"
}
