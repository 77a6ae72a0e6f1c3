//! Runs scenarios: as many at once as the cluster has nodes for, the destructive ones alone; has
//! the logs of each that fails kept and says where.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result};
use cluster::Cluster;
use futures::future::BoxFuture;
use kube::Client;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::context::Context;
use crate::logs::Logs;

/// A claim about the product that can be seen to hold on a cluster.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// The claim, as a name.
    pub name: &'static str,
    /// How many real nodes it needs at most; what it may share the cluster with follows from that.
    pub needs: Needs,
    /// The claim, as a program.
    pub run: fn(Context) -> BoxFuture<'static, Result<()>>,
}

impl Scenario {
    /// The claim without the module that it is in.
    fn short_name(&self) -> &'static str {
        self.name.rsplit("::").next().unwrap_or(self.name).trim()
    }
}

impl std::fmt::Debug for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scenario")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What a scenario takes of the cluster while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// This many real nodes; others may use the rest.
    Nodes(u32),
    /// Kills nodes or replaces the operator: nothing else may run.
    Everything,
}

/// What came of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScenarioOutcome {
    /// Scenarios that held.
    pub passed: usize,
    /// Scenarios that did not.
    pub failed: usize,
    /// Scenarios that cannot run here.
    pub skipped: usize,
}

impl ScenarioOutcome {
    /// Adds what came of another run.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Makes a [`Scenario`] from an async function over a `Context`.
#[macro_export]
macro_rules! scenario {
    ($needs:expr, $function:path) => {
        $crate::runner::Scenario {
            name: stringify!($function),
            needs: $needs,
            run: |context| Box::pin($function(context)),
        }
    };
}

/// Whether `filter` picks a scenario of these.
pub fn any(scenarios: &[Scenario], filter: &str) -> bool {
    scenarios.iter().any(|scenario| picks(filter, scenario))
}

/// A filter is parts of names, with commas between them; one has to fit.
fn picks(filter: &str, scenario: &Scenario) -> bool {
    let mut parts = filter.split(',');
    parts.any(|part| scenario.name.contains(part))
}

/// Counts all scenarios that `filter` picks as not run, and says why.
pub fn skip(scenarios: &[Scenario], filter: &str, why: &str) -> ScenarioOutcome {
    let mut outcome = ScenarioOutcome::default();
    for scenario in scenarios.iter().filter(|scenario| picks(filter, scenario)) {
        println!("test {} ... not run: {why}", scenario.short_name());
        outcome.skipped += 1;
    }
    outcome
}

/// Runs all scenarios that `filter` picks.
pub async fn run(
    client: Client,
    cluster: Arc<Cluster>,
    scenarios: &[Scenario],
    filter: &str,
) -> Result<ScenarioOutcome> {
    let total = u32::try_from(cluster.nodes().count()).context("too many nodes")?;
    let free = Arc::new(Semaphore::new(total as usize));
    let mut running = JoinSet::new();
    let mut outcome = ScenarioOutcome::default();
    let mut chosen: Vec<Scenario> = scenarios
        .iter()
        .filter(|scenario| picks(filter, scenario))
        .copied()
        .collect();
    // Shared ones first; the sort is stable, so the list's order says which is worth starting early.
    chosen.sort_by_key(|scenario| scenario.needs == Needs::Everything);
    for scenario in chosen {
        let permits = match scenario.needs {
            Needs::Nodes(nodes) => nodes.min(total),
            Needs::Everything => total,
        };
        let permit = Arc::clone(&free).acquire_many_owned(permits).await?;
        let client = client.clone();
        let cluster = Arc::clone(&cluster);
        running.spawn(async move {
            let held = report(scenario, client, cluster).await;
            drop(permit);
            held
        });
    }
    while let Some(held) = running.join_next().await {
        if held.unwrap_or(false) {
            outcome.passed += 1;
        } else {
            outcome.failed += 1;
        }
    }
    Ok(outcome)
}

async fn report(scenario: Scenario, client: Client, cluster: Arc<Cluster>) -> bool {
    let started = Instant::now();
    let short = scenario.short_name();
    // Namespaces are DNS labels of at most 63 characters; a cluster may see several runs.
    let mut namespace = short.replace('_', "-");
    namespace.truncate(50);
    let namespace = format!("{}-{}", namespace.trim_end_matches('-'), std::process::id());
    let logs = match Logs::follow(client.clone(), &cluster, &namespace) {
        Ok(logs) => logs,
        Err(error) => {
            println!("test {short} ... FAILED\n    {error:#}");
            return false;
        }
    };
    let result = match Context::new(client, Arc::clone(&cluster), &namespace).await {
        // Its own task, so that a panic is one scenario's failure and not the run's.
        Ok(context) => match tokio::spawn((scenario.run)(context)).await {
            Ok(result) => result,
            Err(panic) => Err(anyhow::anyhow!("panicked: {panic}")),
        },
        Err(error) => Err(error),
    };
    let seconds = started.elapsed().as_secs_f64();
    match result {
        Ok(()) => {
            println!("test {short} ... ok ({seconds:.1} s)");
            if let Err(error) = logs.discard().await {
                println!("    {error:#}");
            }
            clear(&cluster, &namespace, "--wait=false");
            true
        }
        Err(error) => {
            println!("test {short} ... FAILED ({seconds:.1} s)\n    {error:#}");
            let ask = |question: &str| {
                let output = cluster.kubectl(question.split(' '))?.output()?;
                Ok([output.stdout, output.stderr].concat())
            };
            match logs.keep(ask, &cluster.logs()).await {
                Ok(folder) => println!("    everything about it is in {}", folder.display()),
                Err(error) => println!("    its logs could not be kept: {error:#}"),
            }
            // What it left must not hold the nodes of those that follow.
            clear(&cluster, &namespace, "--timeout=90s");
            false
        }
    }
}

/// Deletes the scenario's namespace and all that is in it.
fn clear(cluster: &Cluster, namespace: &str, how: &str) {
    let deleted = cluster
        .kubectl(["delete", "namespace", namespace, how])
        .and_then(|mut kubectl| cluster::command::run(&mut kubectl));
    if let Err(error) = deleted {
        println!("    namespace {namespace} was not deleted: {error}");
    }
}
