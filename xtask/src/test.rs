//! `cargo xtask test`: every tier that can run here, cheapest first, one line per stage and the sum of all
//! tests at the end. What takes long and needs nothing of the others begins at once, beside them. What the stages do is in the verbs and crates that they call.

mod change;
pub(crate) mod classes;
mod counts;
pub(crate) mod ledger;
mod made;
pub(crate) mod plan;
mod programs;
pub(crate) mod scenarios;
mod stage;
mod times;
mod watchdog;

use std::collections::HashMap;
use std::env;
use std::panic::resume_unwind;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use ::cluster::tools::{self, Tools};
use ::cluster::{NodeEngine, command, prerequisites};
use anyhow::{Context as _, Result};

use crate::args::{Args, Usage};
use crate::r#gen::root;
use crate::{Verb, cluster, packages, rdma, report};
use counts::Counts;
use ledger::Row;
use plan::Plan;
use stage::Stage;
use watchdog::Watchdog;

pub(crate) const VERB: Verb = Verb {
    name: "test",
    about: "Run the tests that a change needs, cheapest first; --all runs all tests",
    usage: "
Usage: cargo xtask test [--all | --base REV] [--only STAGE] [--filter NAME] [--record]
       cargo xtask test --programs | --rdma | --scenarios [--all | --base REV] [--filter NAME]
       cargo xtask test --packages

In the stages unit, rdma and cluster, these tests run: those that always run, those that the change affects, and a share of
the others. The share depends on the number of commits. For each test that does not run there is a line `left out: ...`.
All tests run when git has no earlier commit, or only part of the history.

Stages, in this order. `tools`, `base` and `csi` start together with `tidy`:
  packages  install missing packages of this machine
  tidy      rules of the repository           gen      generated files are up to date
  lint      format, clippy, documentation     unit     T0 to T3: cargo test on all packages
  rdma      T3: a guest with RDMA devices in software
  tools     programs of the test cluster      etcd     T3: the key-value store on a real etcd
  base      the trainer image's Debian root   chart    helm lint, renders of the chart
  smoke     create a cluster, kill a node,    csi      programs beside a CSI driver
            delete it                         images   container images, no engine
  python    the wheel against real sidecars   cluster  T4 and T5: scenarios on real and simulated
  newest    python again over the newest               nodes
            PyTorch, with --all             gpu       the archive of GPU checks on
                                                      a stand-in, with --all

  --all          run all tests
  --base REV     compare with the commit where the branch left REV (default: HEAD^)
  --only STAGE   run only this stage
  --filter NAME  run all scenarios, or tests of the guest, whose name contains NAME
  --programs, --rdma, --scenarios
                 run the tests of the stages unit, rdma and cluster, without what goes before them
  --packages     install missing packages and exit
  --record       add the times of the stages and of the slowest tests to docs/measurements/times.csv

The last lines name the slowest programs and scenarios. target/test-times.csv has all times.

A run of all stages needs root and Go. It stops after 80 minutes, prints the counts so far, deletes its clusters and keeps
their logs. The exit status is 0 when every stage ran and no test failed.",
    run,
};

/// The whole run ends itself after this long, so that whoever started it still gets the counts.
const TIME_LIMIT: Duration = Duration::from_secs(80 * 60);

/// What programs, images and a cluster of six nodes take together.
const DISK_GIGABYTES: u64 = 30;

/// So many of what took longest are shown at the end.
const SHOWN: usize = 15;

/// The stage that all others wait for, the early ones too: apt-get works for one at a time.
const PACKAGES: &str = "packages";

/// `chosen` says which tests run, in words of the command line.
fn stages(chosen: &[&str]) -> Result<Vec<Stage>> {
    let xtask = env::current_exe().context("failed to find this program's own path")?;
    let xtask = xtask.to_string_lossy().into_owned();
    let stage = |name, program: &str, words: &[&str]| Stage {
        name,
        command: std::iter::once(program)
            .chain(words.iter().copied())
            .map(str::to_owned)
            .collect(),
        clusters: &[],
        early: false,
    };
    let verb = |name, words: &[&str]| stage(name, &xtask, words);
    let cargo = |name, words: &[&str]| stage(name, "cargo", words);
    let lifecycle = ["--package", "cluster", "--test", "lifecycle"];
    // What it measures is worth seeing.
    let shown = ["--", "--ignored", "--show-output"];
    let smoke = [&["test"][..], &lifecycle, &shown].concat();
    let etcd = ["test", "--workspace", "--test", "etcd"];
    // What others test file systems with takes a minute.
    let posix: &[&str] = match chosen.contains(&"--all") {
        true => &[],
        false => &["--", "--skip", "posix_"],
    };
    let etcd = [&etcd, posix].concat();
    let tests = |name, which| verb(name, &[&["test", which], chosen].concat());
    let mut stages = vec![
        verb(PACKAGES, &["test", "--packages"]),
        verb("tidy", &["tidy"]),
        verb("gen", &["gen", "--check"]),
        verb("lint", &["lint"]),
        tests("unit", "--programs"),
        // Its programs are those that the unit tests were built with.
        tests("rdma", "--rdma"),
        Stage {
            // Compilers of two languages share the cores better than either uses them alone.
            early: true,
            ..stage("tools", "nice", &[&xtask, "cluster", "tools"])
        },
        // Not by package: all stages share the features that the workspace has together.
        cargo("etcd", &etcd),
        Stage {
            // It waits for a mirror half of its time.
            early: true,
            ..stage("base", "nice", &[&xtask, "images", "--base"])
        },
        // Again, because only now helm is certain to be there.
        verb("chart", &["lint", "--only-chart"]),
        Stage {
            // The test gives the clusters their names; the second is beside the first.
            clusters: &["lifecycle", "lifecycle-2"],
            ..cargo("smoke", &smoke)
        },
        Stage {
            // Nobody needs it before the images: it gets what the other two leave.
            early: true,
            ..stage(
                "csi",
                "nice",
                &["-n", "19", &xtask, "cluster", "tools", "--csi"],
            )
        },
        verb("images", &["images"]),
        verb("python", &["python"]),
        Stage {
            clusters: &[scenarios::CLUSTER],
            ..tests("cluster", "--scenarios")
        },
    ];
    if chosen.contains(&"--all") {
        // Another PyTorch takes 1.4 GB, and the tests once more.
        stages.push(verb("newest", &["python", "--newest"]));
        // A compiler for old C libraries takes 400 MB, and builds everything once more.
        stages.push(verb("gpu", &["gpu", "--check"]));
    }
    Ok(stages)
}

fn run(mut args: Args) -> Result<ExitCode> {
    let only = args.option("--only")?;
    let filter = args.option("--filter")?.unwrap_or_default();
    let base = args.option("--base")?;
    let all = args.switch("--all");
    let packages = args.switch("--packages");
    let [of_cargo, of_guest, of_cluster] =
        ["--programs", "--rdma", "--scenarios"].map(|name| args.switch(name));
    let record = args.switch("--record");
    args.finish()?;
    if all && base.is_some() {
        return Err(Usage("--all and --base exclude each other".to_owned()).into());
    }
    // Who names tests wants them whatever has changed.
    let plan = || Plan::new(all || !filter.is_empty(), base.as_deref());
    if of_cargo {
        return programs::run(&plan()?);
    }
    if of_guest {
        return rdma::run(&plan()?, &filter);
    }
    if of_cluster {
        return scenarios::run(&plan()?, &filter);
    }
    if packages {
        install_packages()?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut chosen = vec!["--filter", &filter];
    match &base {
        Some(base) => chosen.extend(["--base", base]),
        None if all => chosen.push("--all"),
        None => {}
    }
    let mut stages = stages(&chosen)?;
    if let Some(only) = &only {
        stages.retain(|stage| stage.name == only);
        if stages.is_empty() {
            return Err(Usage(format!("there is no stage {only:?}")).into());
        }
    } else {
        // Better said now than after minutes.
        if !prerequisites::is_root() {
            return Ok(cluster::ask_for_root(
                "The tests install packages and make file systems and namespaces, which only root may.",
            ));
        }
        Tools::can_build(&[tools::of_tests(NodeEngine::here()), tools::of_csi()].concat())?;
    }
    println!("{}", plan()?.describe());
    println!("disk: {}", disk()?);
    let started = Instant::now();
    let watchdog = Watchdog::start(TIME_LIMIT)?;
    let AllEnded {
        lines,
        counts,
        times,
        failures,
    } = run_all(&stages, &watchdog);
    println!("== what took longest");
    for row in ledger::slowest(&times, SHOWN) {
        report::line(&row.name(), "", row.elapsed());
    }
    if !failures.is_empty() {
        println!("== what failed (disk: {})", disk()?);
        failures.iter().for_each(|line| println!("  {line}"));
    }
    println!("== stages");
    for (name, how, elapsed) in lines {
        report::line(name, how, elapsed);
    }
    report::line("all", "", started.elapsed());
    if let Err(error) = ledger::keep(&times, record) {
        println!("xtask test: the times are not kept: {error:#}");
    }
    if counts.left_out > 0 {
        println!(
            "{} test programs, tests of the guest and scenarios were left out: `cargo xtask test --all` runs them",
            counts.left_out
        );
    }
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

/// Without them, tests of early stages would be counted as not run.
fn install_packages() -> Result<()> {
    let mut missing = prerequisites::missing_for_cluster();
    missing.extend(prerequisites::missing_for_images());
    missing.extend(prerequisites::missing_for_trainer());
    missing.extend(prerequisites::missing_for_rdma());
    missing.extend(prerequisites::missing_for_lint());
    packages::install(&missing)
}

/// What the summary says of a stage.
type Line = (&'static str, &'static str, Duration);

/// What came of all stages.
#[derive(Default)]
struct AllEnded {
    lines: Vec<Line>,
    counts: Counts,
    times: Vec<Row>,
    /// Why stages failed, and the last that they printed.
    failures: Vec<String>,
}

/// Runs the stages in order until one fails; the early ones begin as soon as the packages are there.
fn run_all(stages: &[Stage], watchdog: &Watchdog) -> AllEnded {
    let mut all = AllEnded::default();
    let mut broken = false;
    thread::scope(|scope| {
        let mut early = HashMap::new();
        let mut waiting: Vec<_> = stages.iter().filter(|stage| stage.early).collect();
        for stage in stages {
            if stage.name != PACKAGES && !broken {
                for stage in waiting.drain(..) {
                    println!("== {} begins, beside the others", stage.name);
                    early.insert(stage.name, scope.spawn(|| stage.run(watchdog)));
                }
            }
            let under_way = early.remove(stage.name);
            // What comes later is built on what came before.
            if broken && under_way.is_none() {
                all.lines.push((stage.name, "not run", Duration::ZERO));
                continue;
            }
            println!("== {}", stage.name);
            let ended = match under_way {
                Some(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                None => stage.run(watchdog),
            };
            all.counts += ended.counts;
            all.times.push(Row::whole(stage.name, ended.elapsed));
            let parts = ended.times.into_iter();
            all.times
                .extend(parts.map(|(program, seconds)| Row::part(stage.name, program, seconds)));
            let Err(error) = ended.result else {
                all.lines.push((stage.name, ended.made.ok(), ended.elapsed));
                continue;
            };
            println!("xtask test: {} failed: {error:#}", stage.name);
            all.failures.push(format!("{}: {error:#}", stage.name));
            all.failures
                .extend(ended.last.into_iter().map(|line| format!("| {line}")));
            all.lines.push((stage.name, "FAILED", ended.elapsed));
            broken = true;
            if watchdog.over() {
                stage.remove_clusters();
            }
            watchdog.stop(format!("{} failed", stage.name));
        }
    });
    // A stage may fail without a test that failed: formatting, a build, the time limit.
    all.counts.failed = all.counts.failed.max(u64::from(broken));
    all
}

/// What is free where the tests write most.
fn disk() -> Result<String> {
    let mut df = Command::new("df");
    let free = command::run(df.args(["--block-size=GB", "--output=avail"]).arg(root()))?;
    let free = free.lines().last().unwrap_or_default().trim();
    let gigabytes: u64 = free
        .trim_end_matches("GB")
        .parse()
        .with_context(|| format!("failed to read {free:?} of df"))?;
    let few = match gigabytes < DISK_GIGABYTES {
        true => ", which may be too few",
        false => "",
    };
    Ok(format!(
        "{gigabytes} GB are free{few}; from nothing, all tests need {DISK_GIGABYTES}"
    ))
}
