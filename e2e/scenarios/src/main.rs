//! `scenarios run`: brings a cluster up, installs the chart, runs the scenarios and takes the
//! cluster down. `scenarios members`: plays the sidecars of pods on simulated nodes.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test runner talks to a person"
)]

use std::io::Read as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use cluster::{Cluster, ClusterOptions, Name, NodeEngine};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use scenarios::runner::{self, ScenarioOutcome};
use scenarios::scenario::ZONES;
use scenarios::{crash, logs, member, scenario};

const USAGE: &str = "
Usage: scenarios run [--filter NAME] [--cluster NAME] [--keep]
       scenarios members KUBECONFIG
       scenarios crash KUBECONFIG OPERATOR [ARGUMENT...]

  --filter NAME   run the scenarios whose name contains NAME, or one of several with commas between them
  --cluster NAME  use this name for the cluster (default e2e)
  --keep          use the cluster as it is when it is up, and leave it up afterwards";

/// Simulated nodes beside them.
const SIMULATED_NODES: usize = 200;

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ended = match words.as_slice() {
        ["run", options @ ..] => run(options).await,
        ["members", kubeconfig] => until_deserted(members(kubeconfig)).await,
        ["crash", kubeconfig, operator, arguments @ ..] => {
            until_deserted(crash::serve(kubeconfig, operator, arguments)).await
        }
        _ => {
            eprintln!("{}", USAGE.trim());
            return ExitCode::from(2);
        }
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("scenarios: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a part beside the control plane until whoever started it closes our standard input, so
/// that nothing it started outlives the run.
async fn until_deserted(part: impl Future<Output = Result<()>>) -> Result<bool> {
    let (closed, deserted) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 64];
        while std::io::stdin().read(&mut bytes).is_ok_and(|read| read > 0) {}
        // Nobody listens any more when the part ended first.
        let _ = closed.send(());
    });
    tokio::select! {
        ended = part => ended.map(|()| true),
        _ = deserted => Ok(true),
    }
}

async fn members(kubeconfig: &str) -> Result<()> {
    member::serve(client(kubeconfig.as_ref()).await?).await
}

async fn client(kubeconfig: &std::path::Path) -> Result<Client> {
    let file = Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("failed to read {}", kubeconfig.display()))?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

struct Flags {
    filter: String,
    cluster: String,
    keep: bool,
}

fn flags(words: &[&str]) -> Result<Flags> {
    let mut flags = Flags {
        filter: String::new(),
        cluster: "e2e".into(),
        keep: false,
    };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match (*word, words.as_slice().first()) {
            ("--keep", _) => flags.keep = true,
            ("--filter" | "--cluster", None) => bail!("{word} needs a value\n{USAGE}"),
            ("--filter", Some(value)) => (flags.filter, _) = ((*value).into(), words.next()),
            ("--cluster", Some(value)) => (flags.cluster, _) = ((*value).into(), words.next()),
            _ => bail!("unexpected argument {word:?}\n{USAGE}"),
        }
    }
    Ok(flags)
}

async fn run(words: &[&str]) -> Result<bool> {
    let Flags {
        filter,
        cluster: name,
        keep,
    } = flags(words)?;
    let name = Name::new(&name)?;
    let started = Instant::now();
    let cluster = match Cluster::attach(&name) {
        Ok(cluster) if keep => {
            // A cluster that nobody has installed the chart on: `cargo xtask cluster up`.
            if !cluster::chart::is_installed(&cluster)? {
                cluster::chart::install(&cluster, &progress)
                    .context("failed to install the chart")?;
            }
            cluster
        }
        Ok(_) | Err(_) => {
            // Whatever an earlier run left may be of another build.
            Cluster::down(&name).context("failed to remove the last run's cluster")?;
            bring_up(&name)?
        }
    };
    logs::forget(&cluster).context("failed to remove the last run's logs")?;
    let cluster = Arc::new(cluster);
    let client = client(&cluster.kubeconfig()).await?;
    println!(
        "cluster {name} is ready after {:.0} s",
        started.elapsed().as_secs_f64()
    );

    let mut outcome = ScenarioOutcome::default();
    let ended = all(&cluster, &client, &filter, &mut outcome).await;
    if !keep && outcome.failed == 0 && ended.is_ok() {
        Cluster::down(&name).context("failed to take the cluster down")?;
    } else {
        println!("cluster {name} is left up: cargo xtask cluster down --name {name}");
    }
    println!(
        "{} passed, {} failed, {} skipped",
        outcome.passed, outcome.failed, outcome.skipped
    );
    ended?;
    Ok(outcome.failed == 0 && outcome.passed > 0)
}

async fn all(
    cluster: &Arc<Cluster>,
    client: &Client,
    filter: &str,
    outcome: &mut ScenarioOutcome,
) -> Result<()> {
    let real = runner::run(client.clone(), Arc::clone(cluster), scenario::REAL, filter).await?;
    outcome.add(real);
    if NodeEngine::here() == NodeEngine::Native {
        let routed = runner::run(
            client.clone(),
            Arc::clone(cluster),
            scenario::ROUTED,
            filter,
        );
        outcome.add(routed.await?);
        println!("the same on a cluster of kind's:");
        outcome.add(runner::skip(
            scenario::REAL,
            filter,
            "needs Docker and kind",
        ));
    } else {
        outcome.add(runner::skip(
            scenario::ROUTED,
            filter,
            "kind gives this machine no route to its pods",
        ));
        outcome.add(runner::skip(
            scenario::BESIDE,
            filter,
            "kind has its control plane in a container",
        ));
        return Ok(());
    }
    if !runner::any(scenario::BESIDE, filter) {
        return Ok(());
    }
    // Only now: hundreds of nodes that say they are alive slow the real ones down.
    cluster.add_fake_nodes(SIMULATED_NODES, &ZONES, &progress)?;
    let members = member::Process::start(cluster)?;
    let beside = runner::run(
        client.clone(),
        Arc::clone(cluster),
        scenario::BESIDE,
        filter,
    )
    .await?;
    outcome.add(beside);
    members.stop()
}

fn bring_up(name: &Name) -> Result<Cluster> {
    let options = ClusterOptions::new(name.clone())
        .nodes(ZONES.len())
        .zones(&ZONES);
    let cluster = Cluster::up(&options, &progress).context("failed to bring the cluster up")?;
    cluster::chart::install(&cluster, &progress).context("failed to install the chart")?;
    Ok(cluster)
}

fn progress(name: &str, outcome: cluster::StepOutcome, elapsed: Duration) {
    if !matches!(
        outcome,
        cluster::StepOutcome::Begun | cluster::StepOutcome::At(..)
    ) {
        println!("  {name:<40} {outcome:<8} {:>7.1} s", elapsed.as_secs_f64());
    }
}
