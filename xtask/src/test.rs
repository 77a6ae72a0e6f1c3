//! `cargo xtask test`: every tier that can run here, cheapest first, one line per stage and the sum of all
//! tests at the end. What the stages do is in the verbs and crates that they call.

mod counts;
mod watchdog;

use std::env;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use ::cluster::{Cluster, Name};
use anyhow::{Context as _, Result, bail};

use crate::args::{Args, Usage};
use crate::{Verb, child, report};
use counts::Counts;
use watchdog::Watchdog;

pub(crate) const VERB: Verb = Verb {
    name: "test",
    about: "runs all tests, cheapest first: rules, units, simulations, wire, images, real cluster",
    usage: "
Usage: cargo xtask test [--only STAGE] [--filter NAME]

Stages, in order:
  tidy      rules of the repository           gen      generated files are fresh
  lint      format, clippy, documentation     unit     T0 to T2: cargo test on all packages
  tools     programs of the test cluster      chart    helm lint, renders of the chart
  smoke     a cluster comes up, loses a node, goes
  images    container images, no engine       python   the wheel against real sidecars
  cluster   T4 and T5: scenarios on a real cluster and on simulated nodes

  --only STAGE   run just this stage
  --filter NAME  of the cluster's scenarios, run those whose name contains NAME

It ends itself after 80 minutes. Exit status 0 when every stage ran and no test failed.",
    run,
};

/// The whole run ends itself after this long, so that whoever started it still gets the counts.
const TIME_LIMIT: Duration = Duration::from_secs(80 * 60);

/// The cluster of the scenarios.
const SCENARIOS: &str = "e2e";

struct Stage {
    name: &'static str,
    command: Vec<String>,
    /// The cluster that it brings up, whose processes are not its own.
    cluster: Option<&'static str>,
}

fn stages(filter: &str) -> Result<Vec<Stage>> {
    let xtask = env::current_exe().context("failed to find this program's own path")?;
    let xtask = xtask.to_string_lossy().into_owned();
    let stage = |name, program: &str, words: &[&str]| Stage {
        name,
        command: std::iter::once(program)
            .chain(words.iter().copied())
            .map(str::to_owned)
            .collect(),
        cluster: None,
    };
    let verb = |name, words: &[&str]| stage(name, &xtask, words);
    let cargo = |name, words: &[&str]| stage(name, "cargo", words);
    let lifecycle = ["--package", "cluster", "--test", "lifecycle"];
    let smoke = [&["test"][..], &lifecycle, &["--", "--ignored"]].concat();
    let run = ["run", "--quiet", "--package", "scenarios", "--", "run"];
    let options = ["--cluster", SCENARIOS, "--filter", filter];
    Ok(vec![
        verb("tidy", &["tidy"]),
        verb("gen", &["gen", "--check"]),
        verb("lint", &["lint"]),
        cargo("unit", &["test", "--workspace", "--no-fail-fast"]),
        verb("tools", &["cluster", "tools"]),
        // Again, because only now helm is certain to be there.
        verb("chart", &["lint", "--only-chart"]),
        Stage {
            // The test gives the cluster its own name.
            cluster: Some("lifecycle"),
            ..cargo("smoke", &smoke)
        },
        verb("images", &["images"]),
        verb("python", &["python"]),
        Stage {
            cluster: Some(SCENARIOS),
            ..cargo("cluster", &[&run[..], &options].concat())
        },
    ])
}

fn run(mut args: Args) -> Result<ExitCode> {
    let only = args.option("--only")?;
    let filter = args.option("--filter")?.unwrap_or_default();
    args.finish()?;
    let mut stages = stages(&filter)?;
    if let Some(only) = &only {
        stages.retain(|stage| stage.name == only);
        if stages.is_empty() {
            return Err(Usage(format!("there is no stage {only:?}")).into());
        }
    }
    let started = Instant::now();
    let watchdog = Watchdog::start(TIME_LIMIT)?;
    let mut counts = Counts::default();
    let mut ended: Vec<(&str, &str, Duration)> = Vec::new();
    let mut broken = false;
    for stage in &stages {
        // What comes later is built on what came before.
        if broken {
            ended.push((stage.name, "not run", Duration::ZERO));
            continue;
        }
        println!("== {}", stage.name);
        let stage_started = Instant::now();
        let result = run_stage(stage, &watchdog, &mut counts);
        let how = if result.is_ok() { "ok" } else { "FAILED" };
        ended.push((stage.name, how, stage_started.elapsed()));
        if let Err(error) = result {
            broken = true;
            println!("xtask test: {} failed: {error:#}", stage.name);
            if watchdog.over() {
                remove_cluster(stage);
            }
        }
    }
    println!("== stages");
    for (name, how, elapsed) in ended {
        report::line(name, how, elapsed);
    }
    report::line("all", "", started.elapsed());
    // A stage may fail without a test that failed: formatting, a build, the time limit.
    let failed = counts.failed.max(u64::from(broken));
    println!(
        "{} passed, {failed} failed, {} skipped",
        counts.passed, counts.not_run
    );
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Runs one stage in a process group of its own, shows what it prints and adds up what it counts.
fn run_stage(stage: &Stage, watchdog: &Watchdog, counts: &mut Counts) -> Result<()> {
    let mut child = child::command(&stage.command[0])
        .args(&stage.command[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("failed to start {}", stage.command.join(" ")))?;
    let watched = watchdog.watch(child.id());
    if let Some(output) = child.stdout.take() {
        // A line that is no text must not end the reading while the stage runs on.
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            let line = String::from_utf8_lossy(&line);
            counts.read(&line);
            println!("{line}");
        }
    }
    let status = child.wait().context("failed to wait for the stage")?;
    watched?;
    watchdog.ended()?;
    if !status.success() {
        bail!("{} ended with {status}", stage.command.join(" "));
    }
    Ok(())
}

/// The processes of a cluster outlive whoever started them, so a stage that was ended leaves it up.
fn remove_cluster(stage: &Stage) {
    let Some(cluster) = stage.cluster else { return };
    let removed = Name::new(cluster).and_then(|name| Cluster::down(&name));
    match removed {
        Ok(_) => println!("xtask test: the cluster {cluster} is removed"),
        Err(error) => println!("xtask test: the cluster {cluster} is not removed: {error}"),
    }
}
