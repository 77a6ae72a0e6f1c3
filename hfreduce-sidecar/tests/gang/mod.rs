//! A gang of nodes inside the test process: real sidecar threads, real sockets on the loopback address,
//! real clients. Each test file uses the part it needs.
#![allow(dead_code, reason = "each test file uses its own part of the harness")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

pub(crate) mod descriptors;
pub(crate) mod grouped;
pub(crate) mod leader;
pub(crate) mod limits;
pub(crate) mod pods;
pub(crate) mod processes;
pub(crate) mod rdma;
pub(crate) mod restarted;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use collective::membership::encoding::Peer;
use contract::identity::JobId;
use hfreduce_client::client::{Client, Error, InputBuffer, Output};
use hfreduce_client::entry::{FailureKind, input_bytes};
use hfreduce_client::{Call, DType, ReduceOp};
use hfreduce_sidecar::background::Before;
use hfreduce_sidecar::member::{Member, MemberLocation, MemberOptions, RosterSource};
use hfreduce_sidecar::metrics::Metrics;
use hfreduce_sidecar::node::{self, SidecarNode};
use hfreduce_sidecar::stop::Stop;
use hfreduce_sidecar::workers::WorkerOptions;
use link::handshake::Key;
use topology::OnPeerLoss;

/// Longer than anything takes here; what must be fast asserts its own time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const UID: &str = "0f9c6b1e-test";

pub(crate) fn key() -> Key {
    Key::derive(b"a test's master secret", UID, 1)
}

/// One node of the gang.
pub(crate) struct Running {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) stop: Stop,
    pub(crate) registry: daemon::Registry,
    pub(crate) thread: Option<JoinHandle<Result<(), node::Error>>>,
}

impl Running {
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join(contract::run_dir::SOCKET)
    }
}

pub(crate) struct Gang {
    pub(crate) nodes: Vec<Running>,
    pub(crate) procs: u32,
}

pub(crate) fn member(rank: u32, nodes: usize, procs: u32) -> Member {
    Member {
        job: JobId::new(UID),
        attempt: 1,
        key: key(),
        rank,
        procs_per_node: procs,
        nodes: (0..nodes)
            .map(|node| MemberLocation {
                name: format!("worker-{node}"),
                zone: if 2 * node < nodes { "a" } else { "b" }.to_owned(),
            })
            .collect(),
        master_port: 29_400,
        on_peer_loss: OnPeerLoss::Restart,
    }
}

impl Gang {
    /// Starts `nodes` nodes of `procs` processes and waits until they joined.
    pub(crate) fn start(nodes: usize, procs: u32) -> Self {
        Self::with(nodes, procs, |options| options)
    }

    pub(crate) fn with(
        nodes: usize,
        procs: u32,
        options: impl Fn(MemberOptions) -> MemberOptions,
    ) -> Self {
        Self::over(nodes, procs, |own, _| options(own), |_| {})
    }

    /// With options for each rank, and with changes to where the nodes believe the others to be.
    pub(crate) fn over(
        nodes: usize,
        procs: u32,
        options: impl Fn(MemberOptions, u32) -> MemberOptions,
        mut changes: impl FnMut(&mut [Peer]),
    ) -> Self {
        let listeners: Vec<TcpListener> = (0..nodes)
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
            .collect();
        let mut peers: Vec<Peer> = listeners
            .iter()
            .zip(0..)
            .map(|(l, rank)| peer(l, rank))
            .collect();
        changes(&mut peers);
        let nodes: Vec<Running> = listeners
            .into_iter()
            .zip(0..)
            .map(|(listener, rank)| {
                let dir = tempfile::tempdir().unwrap();
                let address = listener.local_addr().unwrap();
                let stop = Stop::new().unwrap();
                let registry = daemon::Registry::new("test").unwrap();
                let own = MemberOptions {
                    workers: workers_of(rank),
                    ..MemberOptions::new(dir.path().to_owned())
                };
                let node = SidecarNode::new(
                    member(rank, nodes, procs),
                    options(own, rank),
                    listener,
                    &daemon::Readiness::default(),
                    Metrics::new(&registry).unwrap(),
                    stop.clone(),
                )
                .unwrap();
                let source = RosterSource::List(peers.clone());
                let thread = Some(thread::spawn(move || node.serve(source)));
                Running {
                    dir,
                    address,
                    stop,
                    registry,
                    thread,
                }
            })
            .collect();
        for running in &nodes {
            wait_until(|| node::not_ready(running.dir.path()).is_none());
        }
        Self { nodes, procs }
    }

    pub(crate) fn world(&self) -> u32 {
        self.nodes.len() as u32 * self.procs
    }

    pub(crate) fn client(&self, rank: u32) -> Client {
        let node = &self.nodes[(rank / self.procs) as usize];
        Client::attach(&node.socket(), rank % self.procs, PATIENCE).unwrap()
    }

    /// The sum of a series over all nodes.
    pub(crate) fn counted(&self, series: &str) -> u64 {
        let of = |node: &Running| counter(&node.registry.text().unwrap(), series);
        self.nodes.iter().map(of).sum()
    }

    /// Runs a closure as every rank at once.
    pub(crate) fn each<T: Send>(&self, work: impl Fn(Client) -> T + Sync) -> Vec<T> {
        let work = &work;
        thread::scope(|scope| {
            let ranks: Vec<_> = (0..self.world())
                .map(|rank| scope.spawn(move || work(self.client(rank))))
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        })
    }
}

impl Drop for Gang {
    fn drop(&mut self) {
        for node in &self.nodes {
            node.stop.stop();
        }
        for node in &mut self.nodes {
            let thread = node.thread.take();
            let served = thread.map(JoinHandle::join);
            if !thread::panicking() {
                served.unwrap().unwrap().unwrap();
            }
        }
    }
}

/// Every second node has workers, which compute all: what holds for a gang holds with them, without them and side by side.
fn workers_of(rank: u32) -> WorkerOptions {
    WorkerOptions {
        threads: Some(threads_of(rank)),
        from_bytes: 0,
        ..WorkerOptions::default()
    }
}

/// Workers that say when they begin with a piece of work, and wait until they may.
pub(crate) fn held_workers() -> (WorkerOptions, Receiver<()>, Sender<()>) {
    let (begun, begins) = channel();
    let (allow, allowed) = channel::<()>();
    let both = Mutex::new((begun, allowed));
    let before = Before::call(move || {
        let both = both.lock().unwrap();
        both.0.send(()).ok();
        both.1.recv().ok();
    });
    let options = WorkerOptions {
        threads: Some(2),
        from_bytes: 0,
        before,
        pace: None,
    };
    (options, begins, allow)
}

/// Threads beside the engine of a node.
pub(crate) const fn threads_of(rank: u32) -> usize {
    if rank.is_multiple_of(2) { 2 } else { 0 }
}

pub(crate) fn peer(listener: &TcpListener, rank: u32) -> Peer {
    let address = listener.local_addr().unwrap();
    Peer {
        rank,
        address: address.ip(),
        port: address.port(),
    }
}

pub(crate) fn wait_until(condition: impl Fn() -> bool) {
    wait_until_some(|| condition().then_some(()));
}

pub(crate) fn wait_until_some<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(start.elapsed() < PATIENCE, "waited too long");
        // Who is waited for needs the processor too.
        thread::sleep(Duration::from_millis(1));
    }
}

/// The value of a series on `/metrics`; 0 where nothing was counted.
pub(crate) fn counter(metrics: &str, series: &str) -> u64 {
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    value.unwrap_or(0)
}

pub(crate) fn filled(client: &Client, bytes: &[u8]) -> InputBuffer {
    let mut buffer = client.buffer(bytes.len(), PATIENCE).unwrap();
    buffer.copy_from_slice(bytes);
    buffer
}

/// Calls one operation and waits for it. Its result is out of place: the input comes back as it was.
pub(crate) fn run(client: &Client, call: Call, input: &[u8]) -> Result<Output, Error> {
    let world = client.world();
    let reads = input_bytes(&call, world.rank, world.size) != Some(0);
    let buffer = reads.then(|| filled(client, input));
    let ticket = client.submit(call, buffer, PATIENCE)?;
    let output = client.wait(ticket, PATIENCE)?;
    let returned = output.input.as_deref();
    // Not shown: it may be megabytes.
    assert!(
        returned == reads.then_some(input),
        "{call} changed its input"
    );
    Ok(output)
}

/// A sum of this many numbers over all ranks.
pub(crate) fn sum(count: u64) -> Call {
    Call::all_reduce(DType::F32, ReduceOp::Sum, count)
}

/// How an operation failed.
pub(crate) fn failure(result: Result<impl Sized, Error>) -> (FailureKind, String) {
    match result {
        Err(Error::Operation { kind, text, .. }) => (kind, text),
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("it succeeded"),
    }
}

pub(crate) fn f32s(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

pub(crate) fn to_f32s(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

/// Free of the numbers' own rounding: small integers in every type, in those of 8 bits some of them.
pub(crate) fn encode(dtype: DType, values: impl Iterator<Item = i64>) -> Vec<u8> {
    values
        .flat_map(|value| match dtype {
            DType::F64 => (value as f64).to_le_bytes().to_vec(),
            DType::F32 => (value as f32).to_le_bytes().to_vec(),
            DType::F16 => half::f16::from_f32(value as f32).to_le_bytes().to_vec(),
            DType::Bf16 => half::bf16::from_f32(value as f32).to_le_bytes().to_vec(),
            DType::E4m3 => vec![e4m3(value)],
            DType::E5m2 => vec![half::f16::from_f32(value as f32).to_le_bytes()[1]],
            DType::U8 | DType::I8 => vec![value as u8],
            DType::I32 => (value as i32).to_le_bytes().to_vec(),
            DType::I64 => value.to_le_bytes().to_vec(),
        })
        .collect()
}

/// One of the numbers that e4m3 holds exactly.
fn e4m3(value: i64) -> u8 {
    let mut all = (0..0x7fu8).map(|bits| {
        let (exponent, fraction) = (i32::from(bits >> 3), f64::from(bits & 7) / 8.0);
        let number = match exponent {
            0 => fraction / 64.0,
            _ => (1.0 + fraction) * 2f64.powi(exponent - 7),
        };
        (bits, number)
    });
    let magnitude = value.unsigned_abs() as f64;
    let bits = all.find(|(_, number)| *number == magnitude);
    let sign = if value < 0 { 0x80 } else { 0 };
    bits.map(|(bits, _)| sign | bits).unwrap()
}

pub(crate) fn run_dir(gang: &Gang, node: usize) -> &Path {
    gang.nodes[node].dir.path()
}
