//! Runs scenarios side by side, as far as what each needs and breaks permits; has the logs of each that fails kept and
//! says where.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cluster::Cluster;
use futures::future::BoxFuture;
use kube::Client;
use tokio::task::{Id, JoinSet};

use crate::context::Context;
use crate::logs::Logs;
use crate::scenario::ZONE_NODES;

/// A claim about the product that can be seen to hold on a cluster.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// The claim, as a name.
    pub name: &'static str,
    /// What it takes of the cluster; which others may run beside it follows from that.
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

/// More nodes than there are: all.
pub const ALL: u32 = u32::MAX;

/// What a scenario takes of the cluster while it runs: so many real nodes at most, and what others must not rely on
/// meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// It holds while others lose nodes of theirs and the operator's leader changes.
    Nodes(u32),
    /// It breaks nothing, and counts nodes or Events: no node may be lost and the leader may not change.
    Intact(u32),
    /// The leader, or a node of its own, is not there for a while.
    Breaks(u32),
    /// A node of its own is lost without a word, and perhaps the leader with it.
    LosesNodes(u32),
    /// It replaces parts of the chart, counts the writes of everybody, or depends on an idle machine.
    Alone(u32),
}

impl Needs {
    /// Zones that its jobs may touch. A gang of two is in one zone, one of three in two.
    fn zones(self, total: u32) -> u32 {
        let (Self::Nodes(nodes)
        | Self::Intact(nodes)
        | Self::Breaks(nodes)
        | Self::LosesNodes(nodes)
        | Self::Alone(nodes)) = self;
        nodes.div_ceil(ZONE_NODES).min(total)
    }

    /// Whether both may run at once, if there are nodes for both.
    fn agrees(self, other: Self) -> bool {
        use Needs::{Alone, Breaks, Intact, LosesNodes, Nodes};
        match (self, other) {
            (Alone(_), _) | (_, Alone(_)) => false,
            (Nodes(_), _) | (_, Nodes(_)) | (Intact(_), Intact(_)) => true,
            (Intact(_) | Breaks(_) | LosesNodes(_), _) => false,
        }
    }

    /// Whether it may begin beside those that run, with so many zones that nobody may use.
    fn fits(self, running: impl Iterator<Item = Self> + Clone, closed: u32, total: u32) -> bool {
        let taken: u32 = running.clone().map(|other| other.zones(total)).sum();
        let free = total.saturating_sub(taken + closed);
        self.zones(total) <= free && running.into_iter().all(|other| self.agrees(other))
    }
}

/// The operator gives nobody a node that was lost less than this ago: nor does the runner give its zone.
const SUSPICION: Duration = Duration::from_secs(60);

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
    let nodes = u32::try_from(cluster.nodes().count()).context("too many nodes")?;
    let zones = nodes / ZONE_NODES;
    let mut outcome = ScenarioOutcome::default();
    let mut waiting: Vec<Scenario> = scenarios
        .iter()
        .filter(|scenario| picks(filter, scenario))
        .copied()
        .collect();
    let mut tasks = JoinSet::new();
    let mut running: HashMap<Id, Needs> = HashMap::new();
    // When nodes were lost; one zone of each loss is closed for a while.
    let mut losses: Vec<Instant> = Vec::new();
    loop {
        losses.retain(|loss| loss.elapsed() < SUSPICION);
        let closed = u32::try_from(losses.len()).unwrap_or(zones);
        // The list's order says which is worth starting early.
        let next = waiting.iter().position(|scenario| {
            let others = running.values().copied();
            scenario.needs.fits(others, closed, zones)
        });
        if let Some(next) = next {
            let scenario = waiting.remove(next);
            let task = tasks.spawn(report(scenario, client.clone(), Arc::clone(&cluster)));
            running.insert(task.id(), scenario.needs);
            continue;
        }
        let reopens = losses.first().map(|loss| *loss + SUSPICION);
        tokio::select! {
            Some(ended) = tasks.join_next_with_id() => {
                let (id, held) = match ended {
                    Ok((id, held)) => (id, held),
                    Err(panic) => (panic.id(), false),
                };
                if let Some(Needs::LosesNodes(_)) = running.remove(&id) {
                    losses.push(Instant::now());
                }
                outcome.passed += usize::from(held);
                outcome.failed += usize::from(!held);
            }
            () = sleep_until(reopens), if reopens.is_some() && !waiting.is_empty() => {}
            else => return Ok(outcome),
        }
    }
}

async fn sleep_until(time: Option<Instant>) {
    if let Some(time) = time {
        tokio::time::sleep_until(time.into()).await;
    }
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

#[cfg(test)]
mod tests {
    use super::ALL;
    use super::Needs::{self, Alone, Breaks, Intact, LosesNodes, Nodes};
    use crate::scenario::{BESIDE, REAL, ROUTED, ZONES};

    fn fits(needs: Needs, running: &[Needs], closed: u32) -> bool {
        needs.fits(running.iter().copied(), closed, 3)
    }

    #[test]
    fn scenarios_share_the_cluster_as_long_as_there_are_zones() {
        assert!(fits(Nodes(2), &[Nodes(2), Nodes(1)], 0));
        assert!(!fits(Nodes(1), &[Nodes(2), Nodes(1), Nodes(2)], 0));
        assert!(fits(Nodes(0), &[Nodes(ALL)], 0));
        assert!(!fits(Nodes(3), &[Nodes(2), Nodes(1)], 0));
        assert!(!fits(Nodes(2), &[Nodes(2), Nodes(2)], 1));
    }

    #[test]
    fn only_one_breaks_something_and_only_beside_those_that_do_not_mind() {
        for breaks in [Breaks(2), LosesNodes(2)] {
            assert!(fits(breaks, &[Nodes(2), Nodes(0)], 0));
            assert!(fits(Nodes(2), &[breaks], 0));
            for other in [Intact(0), Breaks(2), LosesNodes(2)] {
                assert!(!fits(breaks, &[other], 0), "{breaks:?} beside {other:?}");
                assert!(!fits(other, &[breaks], 0), "{other:?} beside {breaks:?}");
            }
        }
        assert!(fits(Intact(2), &[Intact(2), Nodes(2)], 0));
    }

    #[test]
    fn alone_means_beside_nobody_even_without_nodes() {
        assert!(fits(Alone(2), &[], 2));
        assert!(!fits(Alone(0), &[Nodes(0)], 0));
        assert!(!fits(Nodes(0), &[Alone(0)], 0));
    }

    #[test]
    fn every_scenario_fits_an_idle_cluster() {
        let zones = u32::try_from(ZONES.len()).unwrap() / crate::scenario::ZONE_NODES;
        for scenario in REAL.iter().chain(ROUTED).chain(BESIDE) {
            let needs = scenario.needs;
            assert!(needs.fits(std::iter::empty(), 0, zones), "{scenario:?}");
        }
    }
}
