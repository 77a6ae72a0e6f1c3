//! `bench protocol`: what the engine's own thread costs where others compute and links move payload. It is the engine that
//! ships, with real processes' rings and a link to another one; but workers take their time and compute nothing, and links
//! carry no payload. So a machine of two cores shows what a thread needs that serves twelve. What is not in it: system calls
//! of sockets, which are counted where sums are measured, and caches that sums have emptied.

pub(crate) mod link;

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use collective::machine::{Config, DEFAULT_CHUNK_BYTES, DEFAULT_SLOTS, Fence, Recovery, Timing};
use collective::{DoubleTree, Layout};
use hfreduce_client::attach::Listener;
use hfreduce_client::client::{Arena, CallTicket, Client};
use hfreduce_client::{Call, DType, ReduceOp};

use super::PATIENCE;
use crate::args::BenchProtocol;
use crate::background::Before;
use crate::engine::{self, Engine, EngineSetup, Epoch};
use crate::frame::Link;
use crate::inspect::Inspector;
use crate::member::MemberOptions;
use crate::metrics::Metrics;
use crate::numa::Places;
use crate::rendezvous::Reporter;
use crate::stop::Stop;
use crate::workers::WorkerOptions;

/// Bytes of a call: DistributedDataParallel's buckets have as many.
const CALL_BYTES: usize = 25 << 20;
/// Calls of each process in flight, so that the next is there when one ends.
const IN_FLIGHT: usize = 4;
/// Calls before the first that counts.
const WARM_UP: usize = 20;
/// What the thread may use of a processor at 20,000 chunks a second, which are 10 GB/s.
const BAR: (f64, f64) = (0.6, 20_000.0);

/// Runs the command.
pub(super) fn run(args: &BenchProtocol) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let BenchProtocol {
        procs,
        workers,
        rate,
        ..
    } = *args;
    writeln!(
        out,
        "load     allreduce(sum, f32), {IN_FLIGHT} x {} MiB in chunks of {} KiB, {procs} processes a node, {} slots of an edge filled; \
         {workers} workers that could do {rate} chunks a second",
        CALL_BYTES >> 20,
        DEFAULT_CHUNK_BYTES >> 10,
        options(1, args).window(),
    )?;
    for nodes in [1, 2] {
        let Measured { chunks, used } = measure(nodes, args)?;
        let (bar, at) = BAR;
        let each = used / chunks;
        let held = if each * at <= bar { "held" } else { "missed" };
        writeln!(
            out,
            "{nodes} x {procs:<4} {chunks:>6.0} chunks a second, {used:.2} s of processor a second: {:.1} us a chunk; at {at} a second \
             {:.2} s, <= {bar} s: {held}",
            each * 1e6,
            each * at,
        )?;
    }
    Ok(())
}

/// Of each second, and of the node that used most.
#[derive(Debug)]
struct Measured {
    chunks: f64,
    /// Seconds that the engine's thread ran.
    used: f64,
}

fn measure(nodes: usize, args: &BenchProtocol) -> anyhow::Result<Measured> {
    let nodes = start(nodes, args)?;
    let clients = nodes.iter().flat_map(|node| &node.clients);
    let mut ranks = clients.map(Rank::new).collect::<anyhow::Result<Vec<_>>>()?;
    for _ in 0..IN_FLIGHT {
        ranks.iter_mut().try_for_each(Rank::call)?;
    }
    let mut round = || ranks.iter_mut().try_for_each(Rank::take_and_call);
    for _ in 0..WARM_UP {
        round()?;
    }
    let used = || nodes.iter().map(Node::used).collect::<io::Result<Vec<_>>>();
    let (before, start, mut calls) = (used()?, Instant::now(), 0);
    while start.elapsed() < Duration::from_secs_f64(args.seconds) {
        round()?;
        calls += 1;
    }
    let (after, elapsed) = (used()?, start.elapsed().as_secs_f64());
    let each = after
        .iter()
        .zip(before)
        .map(|(after, before)| *after - before);
    let most = each.max().unwrap_or_default();
    for rank in &mut ranks {
        rank.take_all()?;
    }
    let chunks = CALL_BYTES.div_ceil(DEFAULT_CHUNK_BYTES as usize);
    Ok(Measured {
        chunks: (calls * chunks) as f64 / elapsed,
        used: most.as_secs_f64() / elapsed,
    })
}

/// A process's calls.
struct Rank<'a> {
    client: &'a Client,
    arena: Arena,
    in_flight: VecDeque<CallTicket>,
}

impl<'a> Rank<'a> {
    fn new(client: &'a Client) -> anyhow::Result<Self> {
        Ok(Self {
            client,
            arena: client.arena(CALL_BYTES, PATIENCE)?,
            in_flight: VecDeque::new(),
        })
    }

    fn call(&mut self) -> anyhow::Result<()> {
        let (world, dtype) = (self.client.world(), DType::F32);
        let call = Call::all_reduce(dtype, ReduceOp::Sum, (CALL_BYTES / dtype.size()) as u64);
        let ticket = self
            .client
            .submit_at(world, call, &self.arena, 0, PATIENCE)?;
        self.in_flight.push_back(ticket);
        Ok(())
    }

    fn take(&mut self) -> anyhow::Result<()> {
        let ticket = self.in_flight.pop_front().context("nothing was called")?;
        self.client.wait(ticket, PATIENCE)?;
        Ok(())
    }

    fn take_and_call(&mut self) -> anyhow::Result<()> {
        self.take()?;
        self.call()
    }

    fn take_all(&mut self) -> anyhow::Result<()> {
        while !self.in_flight.is_empty() {
            self.take()?;
        }
        Ok(())
    }
}

/// A node: an engine on a thread of its own, and the clients of its processes.
struct Node {
    clients: Vec<Client>,
    stop: Stop,
    engine: Option<JoinHandle<Result<(), engine::Error>>>,
    /// The kernel's account of its thread.
    account: PathBuf,
    folder: PathBuf,
}

impl Node {
    /// How long its engine's thread has run.
    fn used(&self) -> io::Result<Duration> {
        let text = std::fs::read_to_string(&self.account)?;
        let nanoseconds = text.split(' ').next().and_then(|first| first.parse().ok());
        nanoseconds
            .map(Duration::from_nanos)
            .ok_or_else(|| io::Error::other(format!("{} has no times", self.account.display())))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.clients.clear();
        self.stop.stop();
        if let Some(engine) = self.engine.take() {
            // What went wrong has shown before.
            engine.join().ok();
        }
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

fn start(nodes: usize, args: &BenchProtocol) -> anyhow::Result<Vec<Node>> {
    let mut links: Vec<BTreeMap<usize, Link>> = (0..nodes).map(|_| BTreeMap::new()).collect();
    if let [first, second] = &mut links[..] {
        let [one, other] = link::pair(DEFAULT_CHUNK_BYTES)?;
        first.insert(1, Box::new(one));
        second.insert(0, Box::new(other));
    }
    let registry = daemon::Registry::new(env!("CARGO_PKG_VERSION"))?;
    let metrics = Metrics::new(&registry)?;
    let started = links.into_iter().enumerate().map(|(node, own)| {
        let name = format!("hfreduce-protocol-{}-{nodes}-{node}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("failed to create {}", folder.display()))?;
        start_node((node, nodes), own, (args, metrics.clone()), folder)
    });
    started.collect()
}

fn start_node(
    (node, nodes): (usize, usize),
    links: BTreeMap<usize, Link>,
    (args, metrics): (&BenchProtocol, Metrics),
    folder: PathBuf,
) -> anyhow::Result<Node> {
    let options = options(nodes, args);
    let config = Config {
        node,
        layout: Layout::uniform(nodes, args.procs).context("no such gang")?,
        trees: DoubleTree::build(&vec![""; nodes]),
        fence: Fence {
            attempt: 1,
            epoch: 1,
        },
        chunk_bytes: DEFAULT_CHUNK_BYTES,
        slots: DEFAULT_SLOTS,
        window: options.window(),
        timing: Timing::default(),
        recovery: Recovery::default(),
    };
    let socket = folder.join("socket");
    let (commands, notices) = (channel(), channel());
    let setup = EngineSetup {
        epoch: Epoch {
            config,
            members: (0..nodes as u32).collect(),
            links,
            linker: None,
            resume: None,
        },
        names: vec![String::new(); nodes],
        listener: Listener::bind(&socket)?,
        limit_bytes: options.limit_bytes,
        places: Places::default(),
        before_memory: Before::default(),
        workers: options.workers,
        attached_ranks: None,
        found: None,
        commands: commands.1,
        notices: notices.0,
        snapshots: Inspector::new().1,
        flight: folder.join("flight.json"),
    };
    let stop = Stop::new()?;
    let asked = stop.clone();
    let (says, said) = channel();
    let engine = thread::Builder::new()
        .name(format!("engine-{node}"))
        .spawn(move || {
            says.send(rustix::thread::gettid().as_raw_nonzero()).ok();
            let reporter = Reporter::nowhere().map_err(engine::Error::Poll)?;
            Engine::new(setup, asked, metrics, reporter)?.run()
        })?;
    let thread = said
        .recv()
        .map_err(|_| anyhow!("an engine did not start"))?;
    let mut started = Node {
        clients: Vec::new(),
        stop,
        engine: Some(engine),
        account: format!("/proc/self/task/{thread}/schedstat").into(),
        folder,
    };
    for local_rank in 0..args.procs {
        let client = Client::attach(&socket, local_rank, PATIENCE)?;
        started.clients.push(client);
    }
    Ok(started)
}

/// How each node works.
fn options(nodes: usize, args: &BenchProtocol) -> MemberOptions {
    MemberOptions {
        window: args.window,
        workers: WorkerOptions {
            threads: Some(usize::from(args.workers)),
            pace: Some(pace(nodes, args)),
            ..WorkerOptions::default()
        },
        ..MemberOptions::new(PathBuf::new())
    }
}

/// Bytes a second of each worker, read and written, with which all of them together can do as many chunks a second as the
/// command asks for.
fn pace(nodes: usize, args: &BenchProtocol) -> f64 {
    // Each chunk is read from every process and written once. Of two nodes one adds what the other has sent, which copies the
    // sum out of the memory of the link: each for half of the chunks.
    let between = if nodes > 1 { 1.0 + 2.0 } else { 0.0 } / 2.0;
    let moved = f64::from(args.procs) + 1.0 + between;
    f64::from(args.rate) * moved * f64::from(DEFAULT_CHUNK_BYTES) / f64::from(args.workers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_engines_that_compute_nothing_end_calls_and_account_for_their_threads() {
        let args = BenchProtocol {
            procs: 2,
            workers: 2,
            rate: 100_000,
            window: None,
            seconds: 0.1,
        };
        for nodes in [1, 2] {
            let Measured { chunks, used } = measure(nodes, &args).unwrap();
            assert!(chunks > 0.0 && used > 0.0 && used < 1.1, "{chunks}, {used}");
        }
    }

    #[test]
    fn workers_take_as_long_as_the_chunks_of_a_second_are_many() {
        let args = BenchProtocol {
            procs: 8,
            workers: 8,
            rate: 20_000,
            window: None,
            seconds: 1.0,
        };
        let chunk = f64::from(DEFAULT_CHUNK_BYTES);
        assert_eq!(pace(1, &args), 20_000.0 * 9.0 * chunk / 8.0);
        assert_eq!(pace(2, &args), 20_000.0 * 10.5 * chunk / 8.0);
    }
}
