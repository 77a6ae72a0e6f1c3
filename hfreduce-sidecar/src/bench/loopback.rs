//! `bench` alone: all-reduce between nodes of one machine, each a sidecar with clients of its own on threads, over real
//! sockets. Prints latency and rates for sizes from 4 KiB to the paper's 186 MiB, next to what memcpy
//! reaches in the same run. "Nodes" share one machine here: compare within a run, never across machines.

use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::ValueEnum;
use clap::builder::PossibleValue;
use collective::machine::OnPeerLoss;
use daemon::Readiness;
use wire::Numerics;
use wire::client::Client;
use wire::handshake::{JobId, Key};
use wire::rendezvous::Peer;
use wire::run_dir;

use super::PATIENCE;
use super::load::{Load, Mode};
use crate::args::Bench;
use crate::member::{Member, Options, Place, Source};
use crate::metrics::Metrics;
use crate::node::{self, Node};
use crate::stop::Stop;

/// Sizes, and how many rounds each is measured.
const SIZES: [(usize, usize); 5] = [
    (4 << 10, 300),
    (64 << 10, 200),
    (1 << 20, 60),
    (16 << 20, 15),
    (186 << 20, 7),
];
/// The paper's load: 46 layers of 1024 x 1024 in single precision, each an operation of its own.
const LAYERS: (usize, usize) = (46, 4 << 20);
/// What a sum that does not depend on how tensors are cut may cost, of the time of a fast one.
const BITWISE_BAR: f64 = 2.2;

/// Runs the command.
pub(super) fn run(args: &Bench) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let transport = args.transport.to_possible_value();
    writeln!(out, "cpu      {} ({cores} threads)", cpu())?;
    writeln!(
        out,
        "load     allreduce(sum, {}, {}), {} nodes x {} processes on loopback, transport {}, chunks of {} KiB",
        args.dtype,
        args.numerics,
        args.nodes,
        args.procs,
        transport.as_ref().map_or("", PossibleValue::get_name),
        args.chunk_bytes >> 10
    )?;
    let before = memcpy_rate();
    let gang = Gang::start(args)?;
    let world = args.nodes * args.procs as usize;
    let bus = 2.0 * (world as f64 - 1.0) / world as f64;
    writeln!(
        out,
        "{:>12} {:>7} {:>12} {:>12} {:>12} {:>8}",
        "bytes", "rounds", "median us", "alg GB/s", "bus GB/s", "of fast"
    )?;
    let mut row = |name: String, bytes: usize, rounds: usize, [median, fast]: [Duration; 2]| {
        let rate = bytes as f64 / median.as_secs_f64() / 1e9;
        let of_fast = median.as_secs_f64() / fast.as_secs_f64();
        let median = median.as_secs_f64() * 1e6;
        writeln!(
            out,
            "{name:>12} {rounds:>7} {median:>12.1} {rate:>12.3} {:>12.3} {of_fast:>6.2} x",
            rate * bus
        )
    };
    for (bytes, rounds) in SIZES {
        let medians = gang.measure(args, 1, bytes, rounds)?;
        row(bytes.to_string(), bytes, rounds, medians)?;
    }
    let (layers, bytes) = LAYERS;
    let [median, fast] = gang.measure(args, layers, bytes, 7)?;
    let name = format!("{layers} x {bytes}");
    row(name, layers * bytes, 7, [median, fast])?;
    if args.numerics == Numerics::Bitwise {
        let of_fast = median.as_secs_f64() / fast.as_secs_f64();
        let held = if of_fast <= BITWISE_BAR {
            "held"
        } else {
            "missed"
        };
        writeln!(
            out,
            "bar      bitwise against fast, {layers} x {bytes}: {of_fast:.2} x, <= {BITWISE_BAR} x: {held}"
        )?;
    }
    gang.stop();
    // The two figures that the paper's validation prints, for its load.
    let rate = (layers * bytes) as f64 / median.as_secs_f64() / 1e9;
    writeln!(
        out,
        "paper    algorithm bandwidth {rate:.3} GB/s, algorithm * 2(ws-1)/ws {:.3} GB/s",
        rate * bus
    )?;
    let after = memcpy_rate();
    writeln!(
        out,
        "memcpy   {before:.1} GB/s before, {after:.1} after (2 threads, read and write counted)"
    )?;
    Ok(())
}

struct Gang {
    stops: Vec<Stop>,
    threads: Vec<thread::JoinHandle<Result<(), node::Error>>>,
    clients: Vec<Client>,
    folders: Vec<std::path::PathBuf>,
}

impl Gang {
    fn start(args: &Bench) -> anyhow::Result<Self> {
        let listeners = (0..args.nodes)
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
            .collect::<io::Result<Vec<_>>>()
            .context("failed to listen on loopback")?;
        let peers = listeners
            .iter()
            .zip(0u32..)
            .map(|(listener, rank)| {
                let address = listener.local_addr()?;
                Ok(Peer {
                    rank,
                    address: address.ip(),
                    port: address.port(),
                })
            })
            .collect::<io::Result<Vec<_>>>()?;
        let registry = daemon::Registry::new(env!("CARGO_PKG_VERSION"))?;
        let metrics = Metrics::new(&registry)?;
        let mut gang = Self {
            stops: Vec::new(),
            threads: Vec::new(),
            clients: Vec::new(),
            folders: Vec::new(),
        };
        for (listener, rank) in listeners.into_iter().zip(0u32..) {
            let folder =
                std::env::temp_dir().join(format!("hfreduce-bench-{}-{rank}", std::process::id()));
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("failed to create {}", folder.display()))?;
            let member = Member {
                job: JobId::new("bench"),
                attempt: 1,
                key: Key::derive(b"bench", "bench", 1),
                rank,
                procs_per_node: args.procs,
                nodes: vec![Place::default(); args.nodes],
                master_port: 0,
                on_peer_loss: OnPeerLoss::Fail,
            };
            let options = Options {
                chunk_bytes: args.chunk_bytes,
                transport: args.transport,
                checksum: args.checksum,
                ..Options::new(folder.clone())
            };
            let stop = Stop::new()?;
            let readiness = Readiness::default();
            let metrics = metrics.clone();
            let node = Node::new(member, options, listener, &readiness, metrics, stop.clone())?;
            let source = Source::List(peers.clone());
            gang.threads.push(thread::spawn(move || node.serve(source)));
            gang.stops.push(stop);
            gang.folders.push(folder);
        }
        for folder in &gang.folders {
            let start = Instant::now();
            while let Some(reason) = node::not_ready(folder) {
                if start.elapsed() > PATIENCE {
                    return Err(anyhow!("the nodes did not join: {reason}"));
                }
                thread::sleep(Duration::from_millis(5));
            }
            for local_rank in 0..args.procs {
                let socket = folder.join(run_dir::SOCKET);
                gang.clients
                    .push(Client::attach(&socket, local_rank, PATIENCE)?);
            }
        }
        Ok(gang)
    }

    /// Median time of `operations` all-reduces of `bytes` each in the mode that is asked for and in the fast one.
    fn measure(
        &self,
        args: &Bench,
        operations: usize,
        bytes: usize,
        rounds: usize,
    ) -> anyhow::Result<[Duration; 2]> {
        let size = (operations, bytes);
        let fast = self.measure_in(Numerics::Fast, args, size, rounds)?;
        let own = match args.numerics {
            Numerics::Fast => fast,
            other @ (Numerics::Precise | Numerics::Bitwise) => {
                self.measure_in(other, args, size, rounds)?
            }
        };
        Ok([own, fast])
    }

    /// The same in one mode: from a barrier of all processes to the next.
    fn measure_in(
        &self,
        numerics: Numerics,
        args: &Bench,
        size: (usize, usize),
        rounds: usize,
    ) -> anyhow::Result<Duration> {
        let warm_up = 3;
        let barrier = Barrier::new(self.clients.len());
        let times = Mutex::new(Vec::new());
        let ranks: Vec<anyhow::Result<()>> = thread::scope(|scope| {
            let ranks: Vec<_> = self
                .clients
                .iter()
                .map(|client| {
                    let (barrier, times) = (&barrier, &times);
                    scope.spawn(move || {
                        let what = (args.dtype, numerics);
                        let mut load = Load::new(client, size, what, Mode::Segment)
                            .and_then(|mut load| load.check().map(|()| load));
                        for round in 0..warm_up + rounds {
                            barrier.wait();
                            let start = Instant::now();
                            load = load.and_then(|mut load| load.run().map(|()| load));
                            barrier.wait();
                            if client.standing().rank == 0 && round >= warm_up {
                                let mut times =
                                    times.lock().unwrap_or_else(PoisonError::into_inner);
                                times.push(start.elapsed());
                            }
                        }
                        load.map(drop)
                    })
                })
                .collect();
            let joined = |rank: thread::ScopedJoinHandle<'_, _>| {
                rank.join()
                    .unwrap_or_else(|_| Err(anyhow!("a process's thread panicked")))
            };
            ranks.into_iter().map(joined).collect()
        });
        ranks.into_iter().collect::<anyhow::Result<()>>()?;
        let mut times = times.into_inner().unwrap_or_else(PoisonError::into_inner);
        times.sort_unstable();
        times.get(times.len() / 2).copied().context("no rounds")
    }

    fn stop(self) {
        drop(self.clients);
        for stop in &self.stops {
            stop.stop();
        }
        for thread in self.threads {
            thread.join().ok();
        }
        for folder in &self.folders {
            std::fs::remove_dir_all(folder).ok();
        }
    }
}

/// What two threads of memcpy reach, each on 128 MiB of its own, best of three.
fn memcpy_rate() -> f64 {
    const BYTES: usize = 128 << 20;
    const ROUNDS: usize = 3;
    let barrier = Barrier::new(2);
    let copy = || {
        let (from, mut to) = (vec![1u8; BYTES], vec![2u8; BYTES]);
        (0..ROUNDS)
            .map(|_| {
                barrier.wait();
                let start = Instant::now();
                to.copy_from_slice(&from);
                std::hint::black_box(&to);
                barrier.wait();
                start.elapsed()
            })
            .min()
            .unwrap_or(Duration::MAX)
    };
    let best = thread::scope(|scope| {
        let other = scope.spawn(copy);
        let own = copy();
        other.join().map_or(own, |other| own.max(other))
    });
    4.0 * BYTES as f64 / best.as_secs_f64() / 1e9
}

fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':'));
    name.map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned())
}
