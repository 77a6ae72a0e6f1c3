//! `serve`: reads what the operator left for this attempt, starts the node on threads of its own, and
//! keeps a small runtime for health and metrics. Ends on request, or when the data path cannot go on.

use std::fs;
use std::io::Read;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use collective::machine::Timing;
use collective::membership::encoding::Peer;
use contract::assignment::{self, Assignment};
use contract::identity::JobId;
use contract::run_dir;
use daemon::endpoints::{Endpoints, Unavailable};
use daemon::{Readiness, Registry, logs, shutdown};
use link::handshake::{KEY_BYTES, Key};
use serde::Deserialize;
use topology::OnPeerLoss;
use tracing::info;

use crate::args::{Fabric, Serve};
use crate::inspect::{Inspector, Ops};
use crate::limits::ASSIGNMENT_LIMIT_BYTES;
use crate::member::{Member, MemberLocation, MemberOptions, RosterSource};
use crate::metrics::Metrics;
use crate::node::SidecarNode;
use crate::numa::{self, NumaAdapter};
use crate::stop::Stop;

/// The port of health and metrics.
const METRICS_PORT: u16 = 9402;
/// A traffic class as a type-of-service byte: the class selector of its number.
const CLASS_SELECTOR: u8 = 1 << 5;
/// Largest roster file.
const ROSTER_LIMIT_BYTES: u64 = run_dir::ROSTER_LIMIT_BYTES;

/// A list of members, for benches and tests without a cluster.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RosterFile {
    #[serde(default = "one")]
    procs_per_node: u32,
    #[serde(default = "one")]
    attempt: u32,
    /// Whether results wait until they cannot be lost. Nobody orders the survivors to go on here.
    #[serde(default)]
    on_peer_loss: OnPeerLoss,
    nodes: Vec<RosterEntry>,
}

#[derive(Debug, Deserialize)]
struct RosterEntry {
    rank: u32,
    address: IpAddr,
    port: u16,
    #[serde(default)]
    name: String,
    #[serde(default)]
    zone: String,
}

const fn one() -> u32 {
    1
}

/// Runs the command.
pub fn run(args: &Serve) -> anyhow::Result<()> {
    logs::init(&args.daemon)?;
    info!(?args, "starting");
    daemon::descriptors::raise_limit();
    let Start {
        member,
        source,
        listen,
        address,
        fabric,
    } = match &args.roster {
        Some(roster) => from_roster(args, roster)?,
        None => from_operator(args)?,
    };
    put_launcher(&args.launcher, &args.run_dir)?;
    let registry = Registry::new(env!("CARGO_PKG_VERSION"))?;
    let metrics = Metrics::new(&registry)?;
    let stop = Stop::new().context("failed to create a wake descriptor")?;
    let listener = TcpListener::bind(listen)
        .with_context(|| format!("failed to listen on {listen} for peers"))?;
    let adapter = NumaAdapter {
        address,
        rdma: args.rdma.rdma_device.clone(),
        uses_rdma: args.transport.uses_rdma(),
    };
    let places = numa::settle(args.numa, &adapter);
    metrics.placed(&places.report);
    let options = MemberOptions {
        places,
        workers: args.workers.options(),
        limit_bytes: args.limit_mib << 20,
        chunk_bytes: args.chunk_bytes,
        transport: args.transport,
        checksum: args.checksum,
        rdma: args.rdma.resolve(address, fabric),
        traffic_class: args.traffic_class.unwrap_or(fabric.class * CLASS_SELECTOR),
        ..MemberOptions::new(args.run_dir.clone())
    };
    let readiness = Readiness::default();
    let node = SidecarNode::new(member, options, listener, &readiness, metrics, stop.clone())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime of the endpoints")?;
    let address = args.daemon.metrics_address(METRICS_PORT);
    runtime.block_on(async {
        let inspector = node.inspector();
        let endpoints = Endpoints::bind(address, registry, readiness).await?;
        let endpoints = endpoints.with_json("/ops", move || {
            let inspector = inspector.clone();
            async move { ops(inspector).await }
        });
        serve(node, source, stop, endpoints).await
    })
}

async fn serve(
    node: SidecarNode,
    source: RosterSource,
    stop: Stop,
    endpoints: Endpoints,
) -> anyhow::Result<()> {
    let token = shutdown::token().context("failed to watch for signals")?;
    tokio::spawn(endpoints.serve(token.clone()));
    let (ended, end) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("node".to_owned())
        .spawn(move || {
            // Nobody listens only when the process is ending anyway.
            ended.send(node.serve(source)).ok();
        })
        .context("failed to start the node's thread")?;
    tokio::pin!(end);
    let served = tokio::select! {
        served = &mut end => served,
        () = token.cancelled() => {
            stop.stop();
            end.await
        }
    };
    served.context("the node's thread ended without a word")??;
    info!("left");
    Ok(())
}

/// What the engine is doing, or why it does not say.
async fn ops(inspector: Inspector) -> Result<Ops, Unavailable> {
    let asked = tokio::task::spawn_blocking(move || inspector.ask());
    let answered = asked
        .await
        .map_err(|error| Unavailable(error.to_string()))?;
    answered.map(Arc::unwrap_or_clone).map_err(Unavailable)
}

/// What the operator, or a file, says of this node.
struct Start {
    member: Member,
    source: RosterSource,
    listen: SocketAddr,
    /// Where peers reach it.
    address: IpAddr,
    /// What is said of the network.
    fabric: Fabric,
}

fn from_operator(args: &Serve) -> anyhow::Result<Start> {
    let service = args.rendezvous.clone().context(
        "failed to start: neither --rendezvous (FIREFLYER_RENDEZVOUS) nor --roster is given",
    )?;
    let address = args
        .address
        .context("failed to start: --address (POD_IP) is not given")?;
    let rank = args
        .rank
        .context("failed to start: --rank (FIREFLYER_NODE_RANK) is not given")?;
    let packed = read(&args.assignment, ASSIGNMENT_LIMIT_BYTES)?;
    let assignment = Assignment::from_gz(&packed, assignment::ASSIGNMENT_LIMIT_BYTES)
        .with_context(|| format!("failed to read {}", args.assignment.display()))?;
    ensure!(
        (rank as usize) < assignment.nodes.len(),
        "failed to start: rank {rank} is not one of the {} nodes of the attempt",
        assignment.nodes.len()
    );
    let member = Member {
        job: JobId::new(&assignment.job.uid),
        attempt: assignment.attempt,
        key: key(&args.key)?,
        rank,
        procs_per_node: assignment.procs_per_node,
        nodes: assignment
            .nodes
            .into_iter()
            .map(|node| MemberLocation {
                name: node.name,
                zone: node.zone,
            })
            .collect(),
        master_port: assignment.master_port,
        on_peer_loss: assignment.on_peer_loss,
    };
    Ok(Start {
        member,
        source: RosterSource::Operator { service, address },
        listen: args.listen(address),
        address,
        fabric: Fabric {
            class: assignment.traffic_class,
            relaxed_ordering: assignment.relaxed_ordering,
            patience: patience(assignment.on_peer_loss, assignment.peer_loss_seconds),
        },
    })
}

/// How long a peer may be silent before it is lost, as the sidecars or the operator measure it.
fn patience(on_peer_loss: OnPeerLoss, peer_loss_seconds: u32) -> Duration {
    match on_peer_loss {
        OnPeerLoss::Restart => Timing::default().lost,
        OnPeerLoss::Shrink => Duration::from_secs(peer_loss_seconds.into()),
    }
}

fn from_roster(args: &Serve, path: &Path) -> anyhow::Result<Start> {
    let roster: RosterFile = serde_json::from_slice(&read(path, ROSTER_LIMIT_BYTES)?)
        .with_context(|| format!("failed to parse {}", path.display()))?;
    let rank = args
        .rank
        .context("failed to start: --rank (FIREFLYER_NODE_RANK) is not given")?;
    let Some(own) = roster.nodes.iter().find(|node| node.rank == rank) else {
        bail!("failed to start: {} lists no rank {rank}", path.display());
    };
    let listen = SocketAddr::new(own.address, own.port);
    // Without a cluster there is no secret to share: the key then only keeps out bytes of other programs.
    let key = if args.key.exists() {
        key(&args.key)?
    } else {
        Key::derive(b"roster file", "", roster.attempt)
    };
    let mut nodes = roster.nodes;
    nodes.sort_by_key(|node| node.rank);
    let peers = nodes.iter().map(|node| Peer {
        rank: node.rank,
        address: node.address,
        port: node.port,
    });
    let source = RosterSource::List(peers.collect());
    let member = Member {
        job: JobId::new(""),
        attempt: roster.attempt,
        key,
        rank,
        procs_per_node: roster.procs_per_node,
        nodes: nodes
            .into_iter()
            .map(|node| MemberLocation {
                name: node.name,
                zone: node.zone,
            })
            .collect(),
        master_port: 29_400,
        on_peer_loss: roster.on_peer_loss,
    };
    Ok(Start {
        member,
        source,
        listen,
        address: listen.ip(),
        fabric: Fabric::default(),
    })
}

fn key(path: &Path) -> anyhow::Result<Key> {
    let bytes = read(path, KEY_BYTES as u64)?;
    let key = <[u8; KEY_BYTES]>::try_from(bytes.as_slice())
        .ok()
        .with_context(|| {
            format!(
                "failed to read {}: it has {} bytes, a key has {KEY_BYTES}",
                path.display(),
                bytes.len()
            )
        })?;
    Ok(Key::new(key))
}

fn read(path: &Path, limit: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(limit + 1).read_to_end(&mut bytes))
        .with_context(|| format!("failed to read {}", path.display()))?;
    ensure!(
        bytes.len() as u64 <= limit,
        "failed to read {}: it is larger than {limit} bytes",
        path.display()
    );
    Ok(bytes)
}

/// Puts the launcher where every trainer image finds it, usable by every user.
fn put_launcher(launcher: &Path, run_dir: &Path) -> anyhow::Result<()> {
    if !launcher.exists() {
        info!(launcher = %launcher.display(), "no launcher to put into the run directory");
        return Ok(());
    }
    let target = run_dir.join(run_dir::LAUNCHER);
    // Whole, because a trainer of this pod may be running the old one.
    let put = fs::read(launcher).and_then(|program| run_dir::put(&target, &program, 0o755));
    put.with_context(|| format!("failed to put the launcher at {}", target.display()))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn a_roster_says_what_becomes_of_the_job_when_a_node_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("roster");
        let read = |more: &str| {
            let nodes = r#""nodes":[{"rank":0,"address":"127.0.0.1","port":9404}]"#;
            fs::write(&path, format!("{{{more}{nodes}}}")).unwrap();
            let cli = Cli::try_parse_from(["hfreduce-sidecar", "--rank", "0"]).unwrap();
            from_roster(&cli.serve, &path).map(|start| start.member.on_peer_loss)
        };
        assert_eq!(read("").unwrap(), OnPeerLoss::Restart);
        assert_eq!(
            read(r#""onPeerLoss":"Restart","#).unwrap(),
            OnPeerLoss::Restart
        );
        assert_eq!(
            read(r#""onPeerLoss":"Shrink","#).unwrap(),
            OnPeerLoss::Shrink
        );
        let refused = format!("{:#}", read(r#""onPeerLoss":"Go","#).unwrap_err());
        assert!(refused.contains("Restart"), "{refused}");
    }

    #[test]
    fn an_assignment_above_its_limit_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("assignment.json.gz");
        let size = usize::try_from(ASSIGNMENT_LIMIT_BYTES).unwrap();
        fs::write(&path, vec![0; size]).unwrap();
        assert_eq!(read(&path, ASSIGNMENT_LIMIT_BYTES).unwrap().len(), size);
        fs::write(&path, vec![0; size + 1]).unwrap();
        let refused = read(&path, ASSIGNMENT_LIMIT_BYTES).unwrap_err().to_string();
        assert!(
            refused.contains("it is larger than 1048576 bytes"),
            "{refused}"
        );
        assert!(refused.contains("assignment.json.gz"), "{refused}");
    }

    #[test]
    fn a_device_waits_for_a_silent_peer_as_long_as_the_attempt_does() {
        use OnPeerLoss::{Restart, Shrink};
        assert_eq!(patience(Restart, 60), Duration::from_secs(10));
        assert_eq!(patience(Shrink, 60), Duration::from_secs(60));
    }
}
