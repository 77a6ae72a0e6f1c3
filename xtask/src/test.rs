//! `cargo xtask test`: every tier that can run here, cheapest first, one line per stage and the sum of all
//! tests at the end. What takes long and needs nothing of the others begins at once, beside them. What the stages do is in the verbs and crates that they call.

mod counts;
mod stage;
mod watchdog;

use std::collections::HashMap;
use std::env;
use std::panic::resume_unwind;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use ::cluster::prerequisites;
use anyhow::{Context as _, Result};

use crate::args::{Args, Usage};
use crate::{Verb, packages, report};
use counts::Counts;
use stage::Stage;
use watchdog::Watchdog;

pub(crate) const VERB: Verb = Verb {
    name: "test",
    about: "runs all tests, cheapest first: rules, units, simulations, wire, images, real cluster",
    usage: "
Usage: cargo xtask test [--only STAGE] [--filter NAME]

Stages, in order; `tools` begins with the first and is waited for in its place:
  tidy      rules of the repository           gen      generated files are fresh
  lint      format, clippy, documentation     unit     T0 to T3: cargo test on all packages
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
        early: false,
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
        Stage {
            // Compilers of two languages share the cores better than either uses them alone.
            early: true,
            ..stage("tools", "nice", &[&xtask, "cluster", "tools"])
        },
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
    if only.is_none() && prerequisites::is_root() {
        // Tests of early stages would be counted as not run without them.
        packages::install(&prerequisites::missing_for_cluster())?;
        packages::install(&prerequisites::missing_for_trainer())?;
    }
    let (lines, counts) = run_all(&stages, &watchdog);
    println!("== stages");
    for (name, how, elapsed) in lines {
        report::line(name, how, elapsed);
    }
    report::line("all", "", started.elapsed());
    println!(
        "{} passed, {} failed, {} skipped",
        counts.passed, counts.failed, counts.not_run
    );
    Ok(if counts.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What the summary says of a stage.
type Line = (&'static str, &'static str, Duration);

/// Runs the stages in order until one fails; the early ones begin at once.
fn run_all(stages: &[Stage], watchdog: &Watchdog) -> (Vec<Line>, Counts) {
    let mut lines = Vec::new();
    let mut counts = Counts::default();
    let mut broken = false;
    thread::scope(|scope| {
        let mut early = HashMap::new();
        for stage in stages.iter().filter(|stage| stage.early) {
            println!("== {} begins, beside the others", stage.name);
            early.insert(stage.name, scope.spawn(|| stage.run(watchdog)));
        }
        for stage in stages {
            let under_way = early.remove(stage.name);
            // What comes later is built on what came before.
            if broken && under_way.is_none() {
                lines.push((stage.name, "not run", Duration::ZERO));
                continue;
            }
            println!("== {}", stage.name);
            let ended = match under_way {
                Some(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                None => stage.run(watchdog),
            };
            counts += ended.counts;
            let Err(error) = ended.result else {
                lines.push((stage.name, "ok", ended.elapsed));
                continue;
            };
            println!("xtask test: {} failed: {error:#}", stage.name);
            lines.push((stage.name, "FAILED", ended.elapsed));
            broken = true;
            if watchdog.over() {
                stage.remove_cluster();
            }
            watchdog.stop(format!("{} failed", stage.name));
        }
    });
    // A stage may fail without a test that failed: formatting, a build, the time limit.
    counts.failed = counts.failed.max(u64::from(broken));
    (lines, counts)
}
