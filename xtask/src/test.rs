//! `cargo xtask test`: every tier that can run here, cheapest first, one line per stage and the sum of all
//! tests at the end. What the stages do is in the verbs and crates that they call.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::args::{Args, Usage};
use crate::{Verb, child, report};

pub(crate) const VERB: Verb = Verb {
    name: "test",
    about: "runs all tests, cheapest first: rules, units, simulations, wire, images, real cluster",
    usage: "
Usage: cargo xtask test [--only STAGE] [--filter NAME] [--long]

Stages, in order:
  tidy      rules of the repository           gen      generated files are fresh
  lint      format, clippy, documentation     unit     T0 to T2: cargo test on all packages
  tools     programs of the test cluster      smoke    a cluster comes up, loses a node, goes
  images    container images, no engine       python   the wheel against real sidecars
  cluster   T4 and T5: scenarios on a real cluster and on simulated nodes

  --only STAGE   run just this stage
  --filter NAME  of the cluster's scenarios, run those whose name contains NAME
  --long         full lengths of what is shortened by default

It ends itself after 80 minutes. Exit status 0 when every stage ran and no test failed.",
    run,
};

/// The whole run ends itself after this long, so that whoever started it still gets the counts.
const TIME_LIMIT: Duration = Duration::from_secs(80 * 60);

/// Sum over the closing lines of all runners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    not_run: u64,
}

struct Stage {
    name: &'static str,
    command: Vec<String>,
}

fn stages(long: bool, filter: &str) -> Result<Vec<Stage>> {
    let xtask = env::current_exe().context("failed to find this program's own path")?;
    let xtask = xtask.to_string_lossy().into_owned();
    let verb = |name, words: &[&str]| Stage {
        name,
        command: std::iter::once(xtask.clone())
            .chain(words.iter().map(|w| (*w).into()))
            .collect(),
    };
    let cargo = |name, words: &[&str]| Stage {
        name,
        command: std::iter::once("cargo".into())
            .chain(words.iter().map(|w| (*w).into()))
            .collect(),
    };
    let mut scenarios = vec!["run", "--quiet", "--package", "scenarios", "--", "run"];
    scenarios.extend(["--filter", filter]);
    if long {
        scenarios.push("--long");
    }
    Ok(vec![
        verb("tidy", &["tidy"]),
        verb("gen", &["gen", "--check"]),
        verb("lint", &["lint"]),
        cargo("unit", &["test", "--workspace", "--no-fail-fast"]),
        verb("tools", &["cluster", "tools"]),
        cargo(
            "smoke",
            &[
                "test",
                "--package",
                "cluster",
                "--test",
                "lifecycle",
                "--",
                "--ignored",
            ],
        ),
        verb("images", &["images"]),
        verb("python", &["python"]),
        cargo("cluster", &scenarios),
    ])
}

fn run(mut args: Args) -> Result<ExitCode> {
    let only = args.option("--only")?;
    let filter = args.option("--filter")?.unwrap_or_default();
    let long = args.switch("--long");
    args.finish()?;
    let mut stages = stages(long, &filter)?;
    if let Some(only) = &only {
        stages.retain(|stage| stage.name == only);
        if stages.is_empty() {
            return Err(Usage(format!("there is no stage {only:?}")).into());
        }
    }
    let started = Instant::now();
    let watchdog = Watchdog::start(TIME_LIMIT);
    let mut counts = Counts::default();
    let mut broken = Vec::new();
    let mut times = Vec::new();
    for stage in &stages {
        println!("== {}", stage.name);
        let stage_started = Instant::now();
        let ended = run_stage(stage, &watchdog, &mut counts);
        times.push((stage.name, stage_started.elapsed()));
        if let Err(error) = ended {
            println!("xtask test: {} failed: {error:#}", stage.name);
            broken.push(stage.name);
            // What comes later is built on what came before.
            break;
        }
    }
    println!("== stages");
    for (name, elapsed) in times {
        report::line(
            name,
            if broken.contains(&name) {
                "FAILED"
            } else {
                "ok"
            },
            elapsed,
        );
    }
    report::line("all", "", started.elapsed());
    // A stage may fail without a test that failed: formatting, a build, the time limit.
    let failed = counts.failed.max(broken.len() as u64);
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
    watchdog.watch(child.id());
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line.context("failed to read what the stage printed")?;
            add_closing_line(&line, counts);
            println!("{line}");
        }
    }
    let status = child.wait().context("failed to wait for the stage")?;
    watchdog.watch(0);
    if watchdog.fired() {
        bail!(
            "the time limit of {} minutes is over",
            TIME_LIMIT.as_secs() / 60
        );
    }
    if !status.success() {
        bail!("{} ended with {status}", stage.command.join(" "));
    }
    Ok(())
}

/// Adds what a runner's closing line says; any other line adds nothing.
fn add_closing_line(line: &str, counts: &mut Counts) {
    // cargo test: "test result: ok. 3 passed; 0 failed; 1 ignored; …"
    // ours:       "3 passed, 0 failed, 1 skipped"
    // unittest and pytest print other forms; their stage translates them into ours.
    let text = line.strip_prefix("test result: ").map_or(line, |rest| {
        rest.split_once(". ").map_or(rest, |(_, numbers)| numbers)
    });
    let mut found = Counts::default();
    let mut parts = 0;
    for part in text.split([';', ',']) {
        let Some((number, word)) = part.trim().split_once(' ') else {
            continue;
        };
        let Ok(number) = number.parse::<u64>() else {
            continue;
        };
        match word {
            "passed" => found.passed = number,
            "failed" => found.failed = number,
            "ignored" | "skipped" => found.not_run = number,
            _ => continue,
        }
        parts += 1;
    }
    if parts >= 2 {
        counts.passed += found.passed;
        counts.failed += found.failed;
        counts.not_run += found.not_run;
    }
}

/// Ends the process group of the running stage when the time is over.
struct Watchdog {
    group: Arc<AtomicI32>,
    fired: Arc<AtomicBool>,
}

impl Watchdog {
    fn start(limit: Duration) -> Self {
        let group = Arc::new(AtomicI32::new(0));
        let fired = Arc::new(AtomicBool::new(false));
        let watchdog = Self {
            group: Arc::clone(&group),
            fired: Arc::clone(&fired),
        };
        thread::spawn(move || {
            thread::sleep(limit);
            fired.store(true, Ordering::SeqCst);
            let leader = group.load(Ordering::SeqCst);
            if leader > 0 {
                // SIGTERM first: the scenario runner takes its cluster down.
                let target = format!("-{leader}");
                for (signal, grace) in [("-TERM", 60), ("-KILL", 0)] {
                    let _ = Command::new("kill").args([signal, "--", &target]).status();
                    thread::sleep(Duration::from_secs(grace));
                }
            }
        });
        watchdog
    }

    fn watch(&self, leader: u32) {
        self.group
            .store(i32::try_from(leader).unwrap_or(0), Ordering::SeqCst);
    }

    fn fired(&self) -> bool {
        self.fired.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, add_closing_line};

    fn sum(lines: &[&str]) -> Counts {
        let mut counts = Counts::default();
        for line in lines {
            add_closing_line(line, &mut counts);
        }
        counts
    }

    #[test]
    fn closing_lines_of_cargo_and_of_our_runner_are_added_up() {
        let counts = sum(&[
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out",
            "5 passed, 1 failed, 2 skipped",
        ]);
        assert_eq!(
            counts,
            Counts {
                passed: 8,
                failed: 1,
                not_run: 3
            }
        );
    }

    #[test]
    fn ordinary_lines_count_nothing() {
        let counts = sum(&["test a ... ok", "2 passed the gate", "took 3 s, 4 ms", ""]);
        assert_eq!(counts, Counts::default());
    }
}
