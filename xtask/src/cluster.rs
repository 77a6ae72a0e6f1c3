//! `cargo xtask cluster`: the test cluster from the command line. How it is made is the crate `cluster`; here are the
//! arguments, the machine's prerequisites and what people read.

use std::env;
use std::process::ExitCode;
use std::time::Instant;

use ::cluster::tools::{self, Tools};
use ::cluster::{Cluster, ClusterOptions, ENGINE, Name, NodeEngine, list, prerequisites};

use crate::args::{Args, Usage};
use crate::{EXIT_USAGE, Verb, packages, report};

pub(crate) const VERB: Verb = Verb {
    name: "cluster",
    about: "Create or delete a Kubernetes cluster on this machine",
    usage: USAGE,
    run,
};

/// The cluster that is meant when none is named.
pub(crate) const DEFAULT_NAME: &str = "fireflyer";

const USAGE: &str = "
Usage: cargo xtask cluster up [--name NAME] [--nodes N] [--zones A,B,..] [--fake-nodes M]
       cargo xtask cluster down [--name NAME]
       cargo xtask cluster status
       cargo xtask cluster tools [--csi]

A real Kubernetes cluster on this machine: kind's where kind is installed and `docker info` succeeds,
otherwise the real programs in namespaces of their own, which needs root. Several clusters live side
by side under different names. On kind the nodes are called NAME-worker, NAME-worker2... and there are
no simulated ones: --fake-nodes is refused.

  --name NAME      what it is called (fireflyer); its nodes are NAME-1, NAME-2...
  --nodes N        real nodes (2)
  --zones A,B,..   the zone of each node, starting over when there are fewer zones (a)
  --fake-nodes M   simulated nodes besides, of class `simulated` (0)

`up` replaces a cluster of the same name, prints how to reach it, and cleans up after a run that
crashed. `down` leaves no trace. `tools` only builds the programs of the cluster and of the tests, or
with --csi those that stand beside a CSI driver and test one.
State is in
$XDG_STATE_HOME/fireflyer (~/.local/state), tools in $XDG_CACHE_HOME/fireflyer (~/.cache).
";

fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    match args.positional().as_deref() {
        Some("up") => up(args),
        Some("down") => down(args),
        Some("status") => {
            args.finish()?;
            status()
        }
        Some("tools") => {
            let csi = args.switch("--csi");
            args.finish()?;
            let programs = if csi {
                tools::of_csi()
            } else {
                packages::install(&prerequisites::missing_for_cluster())?;
                tools::of_tests(NodeEngine::here())
            };
            Tools::build(&programs, &report::step)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(other) => Err(Usage(format!("there is no action {other:?}")).into()),
        None => Err(Usage("say what to do: up, down, status or tools".to_owned()).into()),
    }
}

fn up(mut args: Args) -> anyhow::Result<ExitCode> {
    let name = name(&mut args)?;
    let nodes = args.parsed("--nodes")?.unwrap_or(2);
    let zones = args.option("--zones")?.unwrap_or_else(|| "a".to_owned());
    let fake_nodes = args.parsed("--fake-nodes")?.unwrap_or(0);
    args.finish()?;
    if let Some(status) = refuse_without_root() {
        return Ok(status);
    }
    announce_engine();
    packages::install(&prerequisites::missing_for_cluster())?;

    let start = Instant::now();
    let zones: Vec<_> = zones.split(',').collect();
    let options = ClusterOptions::new(name)
        .nodes(nodes)
        .zones(&zones)
        .fake_nodes(fake_nodes);
    let cluster = Cluster::up(&options, &report::step)?;
    report::line("cluster", "ready", start.elapsed());
    println!(
        "\n{} is up, {}. To use it:\n",
        cluster.name(),
        made_of(cluster.engine())
    );
    println!("  export KUBECONFIG={}", cluster.kubeconfig().display());
    if !prerequisites::found("kubectl") {
        println!("  export PATH=\"$PATH:{}\"", cluster.programs().display());
    }
    Ok(ExitCode::SUCCESS)
}

fn down(mut args: Args) -> anyhow::Result<ExitCode> {
    let name = name(&mut args)?;
    args.finish()?;
    if let Some(status) = refuse_without_root() {
        return Ok(status);
    }
    let start = Instant::now();
    let how = if Cluster::down(&name)? {
        "removed"
    } else {
        "not there"
    };
    report::line(name.as_str(), how, start.elapsed());
    Ok(ExitCode::SUCCESS)
}

fn status() -> anyhow::Result<ExitCode> {
    let clusters = list()?;
    if clusters.is_empty() {
        println!("no cluster is up");
    }
    for cluster in clusters {
        let state = if cluster.ready { "up" } else { "not whole" };
        println!("{}: {state}, {}", cluster.name, made_of(cluster.engine));
        println!("  KUBECONFIG={}", cluster.kubeconfig.display());
        if !cluster.dead.is_empty() {
            println!("  dead: {}", cluster.dead.join(", "));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Says how to do it as root, and with which exit status to leave, when a cluster needs root and we
/// are not.
pub(crate) fn refuse_without_root() -> Option<ExitCode> {
    if !prerequisites::needs_root() {
        return None;
    }
    let status = ask_for_root("This makes network namespaces and mounts, which only root may.");
    eprintln!("(With Docker and kind, the cluster is one of kind's and needs no root.)");
    Some(status)
}

/// Says why root is needed and how to do it, and with which exit status to leave.
pub(crate) fn ask_for_root(why: &str) -> ExitCode {
    let mut arguments: Vec<_> = env::args().skip(1).collect();
    if let Ok(engine) = env::var(ENGINE) {
        arguments.push(format!("--engine {engine}"));
    }
    eprintln!("{why} Run:\n");
    eprintln!(
        "  sudo -E env \"PATH=$PATH\" \"HOME=$HOME\" cargo xtask {}\n",
        arguments.join(" ")
    );
    ExitCode::from(EXIT_USAGE)
}

fn name(args: &mut Args) -> anyhow::Result<Name> {
    let text = args
        .option("--name")?
        .unwrap_or_else(|| DEFAULT_NAME.to_owned());
    Name::new(&text).map_err(|error| Usage(error.to_string()).into())
}

/// Says who will run the nodes of a new cluster here: before the first step, because it decides what all
/// of them do.
pub(crate) fn announce_engine() {
    println!("the cluster will be {}", made_of(NodeEngine::here()));
    if prerequisites::lacks_only_kind() {
        println!(
            "(Docker answers, but kind is not installed: with both, it would be one of kind's.)"
        );
    }
}

fn made_of(engine: NodeEngine) -> &'static str {
    match engine {
        NodeEngine::Native => "made of processes of this machine",
        NodeEngine::Kind => "made by kind",
    }
}
