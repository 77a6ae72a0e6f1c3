//! Ours: a sidecar in every node's namespace, and a client process for each rank. Both are the program of the image.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::hfreduce::case::{Shape, Transport};
use crate::hfreduce::conductor::Conductor;
use crate::hfreduce::gang::Gang;
use crate::network::Network;

/// Over what all nodes are linked.
const LINK: &str = "tcp";

/// The parameters of a sidecar.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    /// Threads that compute. None: one for each processor that the node has for itself.
    pub(crate) workers: Option<usize>,
    pub(crate) checksum: &'static str,
    /// The rule for the job when a node is lost; whether results have to be stable follows from it.
    pub(crate) on_peer_loss: &'static str,
    /// Gangs of all transports are there at the same time, in the same namespaces.
    pub(crate) port: u16,
    pub(crate) metrics: &'static str,
}

/// The sidecars of a gang.
pub(crate) struct Served {
    /// Their processes.
    pub(crate) sidecars: BTreeSet<u32>,
    /// Where each node's ranks find theirs.
    run_dirs: Vec<PathBuf>,
}

pub(crate) const fn words(transport: Transport) -> Words {
    match transport {
        Transport::Tcp => Words {
            workers: None,
            checksum: "auto",
            on_peer_loss: "Restart",
            port: 9404,
            metrics: "127.0.0.1:9402",
        },
        Transport::TcpUnchecked => Words {
            checksum: "off",
            port: 9424,
            metrics: "127.0.0.1:9422",
            ..words(Transport::Tcp)
        },
        Transport::TcpStable => Words {
            on_peer_loss: "Shrink",
            port: 9434,
            metrics: "127.0.0.1:9432",
            ..words(Transport::Tcp)
        },
    }
}

/// A node by itself, with so many threads that compute: one or two.
pub(crate) const fn pool(threads: usize) -> Words {
    let (port, metrics) = if threads == 1 {
        (9444, "127.0.0.1:9442")
    } else {
        (9454, "127.0.0.1:9452")
    };
    Words {
        workers: Some(threads),
        port,
        metrics,
        ..words(Transport::Tcp)
    }
}

pub(crate) fn start(
    program: &Path,
    network: &Network,
    shape: Shape,
    words: &Words,
) -> Result<Gang> {
    let mut conductor = Conductor::new()?;
    let Served { sidecars, run_dirs } = serve(&mut conductor, program, network, shape, words)?;
    for (node, run_dir) in network.nodes.iter().zip(&run_dirs) {
        for local_rank in 0..shape.procs {
            let mut rank = node.command(program);
            rank.args(["bench", "rank", "--local-rank", &local_rank.to_string()]);
            rank.arg("--run-dir").arg(run_dir);
            rank.arg("--conductor").arg(conductor.folder.socket());
            conductor.start(&rank)?;
        }
    }
    conductor.gather(shape.world(), sidecars)
}

/// Starts a sidecar in every node's namespace, with `node-N` of the conductor's folder as its run directory, and waits until
/// they have joined.
pub(crate) fn serve(
    conductor: &mut Conductor,
    program: &Path,
    network: &Network,
    shape: Shape,
    words: &Words,
) -> Result<Served> {
    let &Words {
        workers,
        checksum,
        on_peer_loss,
        port,
        metrics,
    } = words;
    let nodes = network.nodes.get(..shape.nodes).context("too few nodes")?;
    let members: Vec<_> = nodes
        .iter()
        .enumerate()
        .map(|(rank, node)| {
            let name = format!("node-{rank}");
            json!({"rank": rank, "address": node.address, "port": port, "name": name, "zone": "a"})
        })
        .collect();
    let roster = json!({
        "procsPerNode": shape.procs,
        "onPeerLoss": on_peer_loss,
        "nodes": members,
    });
    let roster = roster.to_string();
    let roster = conductor.folder.write("roster", &roster)?;
    let run_dir = |rank: usize| conductor.folder.path.join(format!("node-{rank}"));
    let run_dirs: Vec<_> = (0..shape.nodes).map(run_dir).collect();
    let mut sidecars = BTreeSet::new();
    for ((rank, node), run_dir) in nodes.iter().enumerate().zip(&run_dirs) {
        std::fs::create_dir(run_dir).context("failed to make a run directory")?;
        let mut serve = node.command(program);
        serve.arg("serve").arg("--roster").arg(&roster);
        serve.arg("--run-dir").arg(run_dir);
        serve.args(["--rank", &rank.to_string(), "--metrics-listen", metrics]);
        serve.args(["--transport", LINK, "--checksum", checksum]);
        // Nodes share this machine; on one of its own each would have all processors.
        let workers = workers.unwrap_or_else(|| network.processors_of_each(shape.nodes));
        serve.args(["--workers", &workers.to_string()]);
        sidecars.insert(conductor.start(&serve)?);
    }
    conductor.wait("the sidecars join", || {
        run_dirs.iter().all(|run_dir| {
            let mut ready = Command::new(program);
            ready.arg("ready").arg("--run-dir").arg(run_dir);
            let status = ready.stdout(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        })
    })?;
    // A node by itself has no links.
    for rank in (0..shape.nodes).filter(|_| shape.nodes > 1) {
        let log = conductor.log(rank)?;
        let said = format!("\"transport\":\"{LINK}\"");
        let mut links = log.lines().filter(|line| line.contains("\"transport\":\""));
        ensure!(
            links.all(|line| line.contains(&said)) && log.contains(&said),
            "the links of node {rank} are not {LINK}"
        );
        // As they are between machines, unless that is off.
        let has_sums = log.contains("\"checksums\":true");
        ensure!(
            has_sums == (checksum != "off"),
            "node {rank} was started with --checksum {checksum}, and payload has checksums: {has_sums}"
        );
    }
    Ok(Served { sidecars, run_dirs })
}
