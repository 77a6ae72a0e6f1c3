//! What a gang costs the operator: the rendezvous without a cluster in a process of its own,
//! members of a few lines in this one. `cargo xtask bench rendezvous` measures the release.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "test harness")]

use std::convert::Infallible;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use collective::membership::encoding::{Features, ToOperator, encode};
use contract::assignment::{ALGORITHM, AssignedNode, Assignment, JobRef, VERSION};
use contract::identity::{Identity, JobId, Party};
use link::handshake::{CHALLENGE_BYTES, Initiator, KEY_BYTES, Key, NONCE_BYTES};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use topology::OnPeerLoss;

const UID: &str = "u-1";
const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];
/// The most descriptors that runtimes leave a process with.
const SOFT_LIMIT: u32 = 1_024;
/// Members that dial at a time.
const DIALLING: usize = 64;
const DEADLINE: Duration = Duration::from_secs(120);
/// How long heartbeats are measured.
const STEADY: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;

/// The operator's process.
struct Operator {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Operator {
    /// Serves an attempt of so many nodes, with few descriptors.
    fn start(nodes: usize) -> Self {
        let folder =
            std::env::temp_dir().join(format!("rendezvous-{}-{nodes}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (assignment, key) = (folder.join("assignment"), folder.join("key"));
        fs::write(&assignment, packed(nodes)).unwrap();
        fs::write(&key, KEY).unwrap();
        let free = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let script = format!("ulimit -S -n {SOFT_LIMIT} && exec \"$@\"");
        let child = Command::new("sh")
            .args(["-c", &script, "sh", env!("CARGO_BIN_EXE_operator")])
            .args(["--log-level", "warn", "--metrics-listen", "127.0.0.1:0"])
            .args(["rendezvous", "--standalone"])
            .arg("--listen")
            .arg(address.to_string())
            .arg("--assignment")
            .arg(&assignment)
            .arg("--key")
            .arg(&key)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            address,
            folder,
        }
    }

    fn file(&self, name: &str) -> String {
        let path = Path::new("/proc").join(self.child.id().to_string());
        fs::read_to_string(path.join(name)).unwrap()
    }

    /// A line of its status, in bytes.
    fn memory(&self, of: &str) -> u64 {
        let status = self.file("status");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(of))
            .unwrap();
        let kib = line.trim_start_matches(':').trim().trim_end_matches(" kB");
        kib.parse::<u64>().unwrap() * 1024
    }

    /// The processor's time that it has used.
    fn time(&self) -> Duration {
        let stat = self.file("stat");
        let (_, after) = stat.rsplit_once(") ").unwrap();
        let ticks = |at| after.split(' ').nth(at).unwrap().parse::<u64>().unwrap();
        let per_second = rustix::param::clock_ticks_per_second();
        Duration::from_millis((ticks(11) + ticks(12)) * 1000 / per_second)
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        fs::remove_dir_all(&self.folder).ok();
    }
}

fn packed(nodes: usize) -> Vec<u8> {
    let node = |rank| AssignedNode {
        name: format!("worker-{rank:05}.cluster.example"),
        zone: "a".to_owned(),
        leaf: format!("leaf-{}", rank / 32),
    };
    let assignment = Assignment {
        version: VERSION,
        job: JobRef {
            namespace: "team".to_owned(),
            name: "train".to_owned(),
            uid: UID.to_owned(),
        },
        attempt: 1,
        algorithm: ALGORITHM,
        procs_per_node: 8,
        nodes: (0..nodes).map(node).collect(),
        crossing: false,
        master_port: 29_500,
        on_peer_loss: OnPeerLoss::Restart,
        peer_loss_seconds: 10,
        min_nodes: None,
        grace_seconds: None,
        traffic_class: 1,
        relaxed_ordering: true,
        checkpoint: None,
        resume: None,
    };
    assignment.to_gz().unwrap()
}

/// What all members share.
struct Gang {
    address: SocketAddr,
    /// Few dial at a time.
    dialling: Semaphore,
    /// How many were ordered to go.
    going: AtomicUsize,
}

/// A connection of a rank that has said hello.
async fn dial(gang: &Gang, rank: usize, joined_epoch: Option<u64>) -> io::Result<TcpStream> {
    let _turn = gang.dialling.acquire().await.map_err(io::Error::other)?;
    let mut stream = TcpStream::connect(gang.address).await?;
    stream.set_nodelay(true)?;
    let identity = Identity {
        job: JobId::new(UID),
        attempt: 1,
        party: Party::Sidecar { rank: rank as u32 },
    };
    let mut nonce = [1; NONCE_BYTES];
    nonce[..8].copy_from_slice(&(rank as u64).to_le_bytes());
    let (initiator, hello) = Initiator::new(Key::new(KEY), identity, nonce);
    stream.write_all(&hello).await?;
    let mut challenge = [0; CHALLENGE_BYTES];
    stream.read_exact(&mut challenge).await?;
    let (_, proof) = initiator.finish(&challenge).map_err(io::Error::other)?;
    stream.write_all(&proof).await?;
    let hello = ToOperator::Hello {
        version: "test".to_owned(),
        address: [10, 1, (rank / 256) as u8, (rank % 256) as u8].into(),
        port: 9404,
        joined_epoch,
        features: Features::OURS.list(),
    };
    stream.write_all(&encode(&hello).unwrap()).await?;
    Ok(stream)
}

/// The beginning of the next frame: it has the kind, and parsing thousands of rosters would take
/// the machine.
async fn beginning(stream: &mut OwnedReadHalf) -> io::Result<String> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    let mut body = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut body).await?;
    Ok(String::from_utf8_lossy(&body[..body.len().min(64)]).into_owned())
}

/// The number behind `"epoch":`.
fn epoch(beginning: &str) -> Option<u64> {
    let (_, rest) = beginning.split_once("\"epoch\":")?;
    let digits = rest.split(|digit: char| !digit.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// Does what a sidecar does, for ever.
async fn member(gang: Arc<Gang>, rank: usize) {
    let (mut joined, mut goes) = (None, false);
    loop {
        if let Ok(stream) = dial(&gang, rank, joined).await {
            let (mut reader, mut writer) = stream.into_split();
            let (start, mut started) = mpsc::unbounded_channel();
            let read = async {
                loop {
                    let frame = beginning(&mut reader).await?;
                    if frame.contains("\"roster\"") {
                        joined = epoch(&frame);
                        start.send(joined).ok();
                    } else if frame.contains("\"go\"") && !goes {
                        goes = true;
                        gang.going.fetch_add(1, Ordering::Relaxed);
                    }
                }
            };
            let write = async {
                let beat = encode(&ToOperator::Heartbeat {
                    progress: None,
                    operations: None,
                })
                .unwrap();
                let mut second = tokio::time::interval(Duration::from_secs(1));
                loop {
                    tokio::select! {
                        _ = second.tick() => writer.write_all(&beat).await?,
                        Some(epoch) = started.recv() => {
                            let epoch = epoch.unwrap_or_default();
                            let joined = encode(&ToOperator::Joined { epoch }).unwrap();
                            writer.write_all(&joined).await?;
                        }
                    }
                }
            };
            let _ended: io::Result<Infallible> = tokio::select! {
                ended = read => ended,
                ended = write => ended,
            };
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// What it costs.
#[derive(Debug)]
struct Cost {
    /// How much more memory the operator has than before, now and at most.
    growth: u64,
    peak: u64,
    /// How long it took until all were ordered to go.
    joined: Duration,
    /// The part of a core that heartbeats take.
    core: f64,
}

/// A gang of so many nodes joins and says heartbeats for a while.
fn cost(nodes: usize, steady: Duration) -> Cost {
    daemon::descriptors::raise_limit();
    let mut operator = Operator::start(nodes);
    let gang = Arc::new(Gang {
        address: operator.address,
        dialling: Semaphore::new(DIALLING),
        going: AtomicUsize::new(0),
    });
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let cost = async {
        while TcpStream::connect(operator.address).await.is_err() {
            assert!(operator.child.try_wait().unwrap().is_none(), "it has ended");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (before, began) = (operator.memory("VmRSS"), Instant::now());
        let mut members = JoinSet::new();
        for rank in 0..nodes {
            members.spawn(member(Arc::clone(&gang), rank));
        }
        while gang.going.load(Ordering::Relaxed) < nodes {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let joined = began.elapsed();
        let (used, began) = (operator.time(), Instant::now());
        tokio::time::sleep(steady).await;
        let core = (operator.time() - used).as_secs_f64() / began.elapsed().as_secs_f64();
        Cost {
            growth: operator.memory("VmRSS").saturating_sub(before),
            peak: operator.memory("VmHWM").saturating_sub(before),
            joined,
            core,
        }
    };
    let limited = async { tokio::time::timeout(DEADLINE, cost).await.unwrap() };
    let cost = runtime.block_on(limited);
    println!(
        "{nodes} nodes: joined in {:.1} s, {} MiB more ({} MiB at most), {:.1} % of a core",
        cost.joined.as_secs_f64(),
        cost.growth / MIB,
        cost.peak / MIB,
        cost.core * 100.0,
    );
    cost
}

#[test]
fn a_gang_of_1300_nodes_joins_an_operator_that_was_left_1024_descriptors() {
    let cost = cost(1_300, Duration::from_secs(1));
    assert!(cost.peak <= 64 * MIB, "{cost:?}");
}

#[test]
#[ignore = "measures: cargo xtask bench rendezvous"]
fn a_gang_costs_as_much_as_it_has_nodes() {
    let small = cost(1_250, STEADY);
    assert!(small.peak <= 64 * MIB, "{small:?}");
    let is_debug = cfg!(debug_assertions);
    assert!(is_debug || small.core <= 0.05, "{small:?}");
    let large = cost(4_096, STEADY);
    assert!(large.peak <= 200 * MIB, "{large:?}");
    assert!(
        large.core <= 4.0 * small.core.max(0.01),
        "{large:?} of {small:?}"
    );
}
