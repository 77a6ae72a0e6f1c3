//! A gang on this machine for benches: nodes, each a sidecar of its own inside this process, over loopback, with
//! processes that are threads here. Measures what they call together, and what memcpy reaches next to it.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use collective::membership::encoding::Peer;
use contract::identity::JobId;
use contract::run_dir;
use daemon::Readiness;
use hfreduce_client::client::Client;
use hfreduce_client::{DType, Numerics};
use link::handshake::Key;
use topology::OnPeerLoss;

use super::PATIENCE;
use super::load::{Load, Mode};
use crate::member::{Member, MemberLocation, MemberOptions, RosterSource};
use crate::metrics::Metrics;
use crate::node::{self, SidecarNode};
use crate::stop::Stop;

/// Rounds before the first that counts.
const WARM_UP: usize = 3;

/// What every process calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calls {
    /// Tensors that are called at once, and bytes of each.
    pub(super) size: (usize, usize),
    pub(super) dtype: DType,
    pub(super) numerics: Numerics,
    /// How often all of them are called and timed.
    pub(super) rounds: usize,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Measured {
    /// From a barrier of all processes to the next, shortest first.
    pub(super) times: Vec<Duration>,
    /// What went wrong, by rank; sums that are wrong are among it.
    pub(super) failures: Vec<anyhow::Error>,
}

impl Measured {
    /// The time in the middle, or what went wrong first.
    pub(super) fn median(self) -> anyhow::Result<Duration> {
        if let Some(failure) = self.failures.into_iter().next() {
            return Err(failure);
        }
        let middle = self.times.get(self.times.len() / 2);
        middle.copied().context("no rounds")
    }
}

/// Nodes that have joined, and a client for each process.
pub(super) struct Gang {
    stops: Vec<Stop>,
    threads: Vec<thread::JoinHandle<Result<(), node::Error>>>,
    pub(super) clients: Vec<Client>,
    folders: Vec<PathBuf>,
}

impl Gang {
    /// Starts `nodes` nodes of `procs` processes each. What `options` says of a run directory is replaced.
    pub(super) fn start(nodes: usize, procs: u32, options: &MemberOptions) -> anyhow::Result<Self> {
        static GANGS: AtomicU64 = AtomicU64::new(0);
        let number = GANGS.fetch_add(1, Ordering::Relaxed);
        let listeners = (0..nodes)
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
            let name = format!("hfreduce-bench-{}-{number}-{rank}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("failed to create {}", folder.display()))?;
            let member = Member {
                job: JobId::new("bench"),
                attempt: 1,
                key: Key::derive(b"bench", "bench", 1),
                rank,
                procs_per_node: procs,
                nodes: vec![MemberLocation::default(); nodes],
                master_port: 0,
                on_peer_loss: OnPeerLoss::Restart,
            };
            let options = MemberOptions {
                run_dir: folder.clone(),
                ..options.clone()
            };
            let stop = Stop::new()?;
            let readiness = Readiness::default();
            let metrics = metrics.clone();
            let node =
                SidecarNode::new(member, options, listener, &readiness, metrics, stop.clone())?;
            let source = RosterSource::List(peers.clone());
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
            for local_rank in 0..procs {
                let socket = folder.join(run_dir::SOCKET);
                gang.clients
                    .push(Client::attach(&socket, local_rank, PATIENCE)?);
            }
        }
        Ok(gang)
    }

    /// Checks every element on every rank, measures, and checks again: what is wrong now and then, or when it gets warm,
    /// has more than one chance to show.
    pub(super) fn measure(&self, calls: Calls) -> Measured {
        let barrier = Barrier::new(self.clients.len());
        let times = Mutex::new(Vec::new());
        let has_failed = AtomicBool::new(false);
        let rank = |client: &Client| -> anyhow::Result<()> {
            // Nobody calls what another rank does not: that would wait for its whole patience. All look at the same word
            // behind the same barrier, and it changes only after the next one.
            let agree = |is_well: bool| {
                if !is_well {
                    has_failed.store(true, Ordering::SeqCst);
                }
                barrier.wait();
                let go_on = !has_failed.load(Ordering::SeqCst);
                barrier.wait();
                go_on
            };
            let what = (calls.dtype, calls.numerics);
            let load = Load::new(client, calls.size, what, Mode::Segment);
            let go_on = agree(load.is_ok());
            let mut load = load?;
            if !go_on {
                return Ok(());
            }
            let checked = load.check();
            if !agree(checked.is_ok()) {
                return checked;
            }
            for round in 0..WARM_UP + calls.rounds {
                barrier.wait();
                let start = Instant::now();
                let done = load.run();
                barrier.wait();
                if client.standing().rank == 0 && round >= WARM_UP {
                    let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
                    times.push(start.elapsed());
                }
                if !agree(done.is_ok()) {
                    return done;
                }
            }
            load.check()
        };
        let ended: Vec<anyhow::Result<()>> = thread::scope(|scope| {
            let rank = &rank;
            let ranks: Vec<_> = self
                .clients
                .iter()
                .map(|client| scope.spawn(move || rank(client)))
                .collect();
            let joined = |rank: thread::ScopedJoinHandle<'_, _>| {
                rank.join()
                    .unwrap_or_else(|_| Err(anyhow!("a process's thread panicked")))
            };
            ranks.into_iter().map(joined).collect()
        });
        let mut times = times.into_inner().unwrap_or_else(PoisonError::into_inner);
        times.sort_unstable();
        Measured {
            times,
            failures: ended.into_iter().filter_map(Result::err).collect(),
        }
    }

    /// Ends all nodes.
    pub(super) fn stop(self) {
        drop(self);
    }
}

impl Drop for Gang {
    fn drop(&mut self) {
        self.clients.clear();
        for stop in &self.stops {
            stop.stop();
        }
        for thread in self.threads.drain(..) {
            thread.join().ok();
        }
        for folder in &self.folders {
            std::fs::remove_dir_all(folder).ok();
        }
    }
}

/// What a thread of memcpy reads from, and what it writes to.
pub(super) const MEMCPY_BYTES: usize = 128 << 20;

/// What so many threads of memcpy reach, each on memory of its own, best of three: bytes read and written a second.
pub(super) fn memcpy_rate(threads: usize) -> f64 {
    const BYTES: usize = MEMCPY_BYTES;
    const ROUNDS: usize = 3;
    let barrier = Barrier::new(threads);
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
    let slowest = thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(copy)).collect();
        let times = all
            .into_iter()
            .map(|one| one.join().unwrap_or(Duration::MAX));
        times.max().unwrap_or(Duration::MAX)
    });
    (2 * threads * BYTES) as f64 / slowest.as_secs_f64()
}

/// Model of the processor: figures of different ones cannot be compared.
pub(super) fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split_once(':'));
    name.map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned())
}
