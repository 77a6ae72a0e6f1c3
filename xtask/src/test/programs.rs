//! `cargo xtask test --programs`: builds the workspace's test programs and runs those that the plan chooses, several at
//! once: many of them wait most of their time. What one prints comes out in one piece when it has ended.

use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::plan::Plan;
use super::{change, ledger};
use crate::r#gen::root;
use crate::tidy::edges::{self, Package};
use crate::{cargo, child, report};

/// Those that measure what they test, and are disturbed by others.
const ALONE: &[&str] = &[
    "hfreduce_sidecar tests/namespaces/main.rs",
    "operator tests/rendezvous_scale.rs",
];
/// How those end that a stage of their own runs, once the program that they need is built.
const LATER: &str = " tests/etcd/main.rs";
/// What no program reaches by itself.
const LIMIT: Duration = Duration::from_secs(600);
/// How long the children of a program that was killed may hold on to its output.
const GRACE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);
/// What one is taken to need of which no time is recorded.
const UNKNOWN: f64 = 5.0;
/// The tests in comments, which cargo itself runs.
const DOCUMENTATION: &str = "documentation";

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    unit: String,
    package: String,
    folder: PathBuf,
    path: PathBuf,
}

pub(crate) fn run(plan: &Plan) -> Result<ExitCode> {
    let packages = edges::packages()?;
    let units = packages.iter().flat_map(Package::units);
    let units = units.filter(|unit| !unit.ends_with(LATER)).collect();
    let choice = plan.choose("unit", units);
    println!("{}", plan.describe());
    choice.print();
    let targets = if choice.left_out.is_empty() {
        Vec::new()
    } else {
        targets(&packages, &choice.run)
    };
    // `cargo test` builds them only where no target is named.
    cargo::build("fake libraries", &["--workspace", "--examples"])?;
    let mut programs = build(&packages, &targets)?;
    programs.retain(|program| choice.run.contains(&program.unit));
    if programs.is_empty() {
        bail!("cargo built no test program");
    }
    run_all(&programs)
}

/// What cargo has to build for these units: all small ones, and of the others those that run.
fn targets(packages: &[Package], units: &[String]) -> Vec<String> {
    let mut words: Vec<String> = ["--lib", "--bins"].map(str::to_owned).into();
    for package in packages {
        for target in package.integration_tests() {
            if units.contains(&package.unit(target)) {
                words.extend(["--test".to_owned(), target.name.clone()]);
            }
        }
    }
    words
}

/// Not by package: all stages share the features that the workspace has together.
fn build(packages: &[Package], targets: &[String]) -> Result<Vec<Program>> {
    let mut cargo = child::command("cargo");
    cargo.args(["test", "--workspace", "--no-run"]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    let output = cargo
        .args(targets)
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .context("failed to start cargo")?;
    if !output.status.success() {
        bail!("failed to build the tests");
    }
    let text = String::from_utf8(output.stdout).context("cargo did not print text")?;
    let read = |line| Program::read(line, packages);
    Ok(text.lines().filter_map(read).collect())
}

impl Program {
    /// The test program that a line of cargo's speaks of, if it speaks of one.
    fn read(line: &str, packages: &[Package]) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        if !message.pointer("/profile/test")?.as_bool()? {
            return None;
        }
        let path = message.get("executable")?.as_str()?.into();
        let manifest = Path::new(message.get("manifest_path")?.as_str()?);
        let source = Path::new(message.pointer("/target/src_path")?.as_str()?);
        let folder = manifest.parent()?;
        let package = packages
            .iter()
            .find(|package| root().join(&package.folder) == folder)?;
        let source = source.strip_prefix(folder).ok()?.to_string_lossy();
        Some(Self {
            unit: edges::unit(&package.name, &source),
            package: package.name.clone(),
            folder: folder.to_owned(),
            path,
        })
    }

    /// As cargo starts it.
    fn command(&self, commit: Option<&str>) -> Command {
        let mut command = child::command(&self.path);
        command.envs(commit.map(|commit| ("SIM_COMMIT", commit)));
        command
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env("CARGO_PKG_NAME", &self.package);
        command
    }
}

/// What is run: a program, or cargo for what it runs itself.
struct Job {
    name: String,
    command: Command,
}

fn run_all(programs: &[Program]) -> Result<ExitCode> {
    let seconds = ledger::recorded("unit").unwrap_or_default();
    let commit = change::head();
    if let Some(commit) = &commit {
        println!("seeds are drawn from the commit: SIM_COMMIT={commit}");
    }
    let mut documentation = child::command("cargo");
    documentation
        .args(["test", "--workspace", "--doc", "--no-fail-fast"])
        .current_dir(root());
    let (alone, mut beside): (Vec<_>, Vec<_>) = programs
        .iter()
        .map(|program| Job {
            name: program.unit.clone(),
            command: program.command(commit.as_deref()),
        })
        .partition(|job| ALONE.contains(&job.name.as_str()));
    beside.push(Job {
        name: DOCUMENTATION.to_owned(),
        command: documentation,
    });
    order(&mut beside, &seconds);
    let lanes = thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 8));
    let mut failed = side_by_side(beside, lanes)?;
    failed.extend(side_by_side(alone, 1)?);
    failed.sort();
    for name in &failed {
        println!("test program failed: {name}");
    }
    Ok(if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The longest come last in the list, which is taken from its end.
fn order(jobs: &mut [Job], seconds: &BTreeMap<String, f64>) {
    let of = |job: &Job| seconds.get(&job.name).copied().unwrap_or(UNKNOWN);
    jobs.sort_by(|a, b| of(a).total_cmp(&of(b)));
}

/// Runs all and says which failed.
fn side_by_side(jobs: Vec<Job>, lanes: usize) -> Result<Vec<String>> {
    let jobs = Mutex::new(jobs);
    let failed = Mutex::new(Vec::new());
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let work = || -> Result<()> {
        while let Some(mut job) = next() {
            let started = Instant::now();
            let (ended, output) = run_one(&mut job.command, LIMIT)?;
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            // Under the lock, so that one program's lines stay together.
            println!("== {}\n{}", job.name, output.trim_end());
            let how = if ended.is_ok() { "done" } else { "FAILED" };
            report::line(&job.name, how, started.elapsed());
            if let Err(why) = ended {
                println!("test program {} ... FAILED: it {why}", job.name);
                failed.push(job.name);
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..lanes).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            thread
                .join()
                .unwrap_or_else(|_| bail!("a thread panicked"))?;
        }
        anyhow::Ok(())
    })?;
    Ok(failed.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Runs to the end or the limit. What it printed, and what it did instead of ending well.
fn run_one(command: &mut Command, limit: Duration) -> Result<(Result<(), String>, String)> {
    let (output, input) = io::pipe().context("failed to make a pipe")?;
    command
        .stdin(Stdio::null())
        .stdout(input.try_clone().context("failed to share a pipe")?)
        .stderr(input);
    let mut child = command
        .spawn()
        .with_context(|| format!("failed to start {command:?}"))?;
    // Its ends of the pipe are ours, too; the output would never end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let said = Arc::new(Mutex::new(Vec::new()));
    let collected = Arc::clone(&said);
    let reader = thread::spawn(move || {
        let mut output = output;
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = output.read(&mut bytes) {
            let mut collected = collected.lock().unwrap_or_else(PoisonError::into_inner);
            collected.extend_from_slice(&bytes[..read]);
        }
    });
    let ended = match wait(&mut child, limit)? {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("ended with {status}")),
        None => Err(format!("was killed after {} s", limit.as_secs())),
    };
    let deadline = Instant::now() + GRACE;
    while !reader.is_finished() && Instant::now() < deadline {
        thread::sleep(POLL);
    }
    let said = said.lock().unwrap_or_else(PoisonError::into_inner);
    Ok((ended, String::from_utf8_lossy(&said).into_owned()))
}

/// Its status, or none after it had to be killed.
fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().context("failed to wait for a test")? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            child.kill().context("failed to kill a test")?;
            child.wait().context("failed to wait for a test")?;
            return Ok(None);
        }
        thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::{Job, Program, order, run_one, side_by_side, targets};
    use crate::r#gen::root;
    use crate::tidy::edges;

    const LONG: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn programs_are_called_as_the_plan_calls_them() {
        let packages = edges::packages().unwrap();
        let line = |test: bool| {
            let here = root().join("hfreduce-sidecar");
            format!(
                r#"{{"profile":{{"test":{test}}},"executable":"/t/groups-1","manifest_path":"{0}/Cargo.toml",
                "target":{{"src_path":"{0}/tests/groups.rs"}}}}"#,
                here.display()
            )
            .replace('\n', "")
        };
        let program = Program::read(&line(true), &packages).unwrap();
        assert_eq!(program.unit, "hfreduce_sidecar tests/groups.rs");
        let mut units = packages.iter().flat_map(edges::Package::units);
        assert!(units.any(|unit| unit == program.unit));
        assert_eq!(Program::read(&line(false), &packages), None);
        assert_eq!(Program::read("warning: unused", &packages), None);
    }

    #[test]
    fn integration_tests_that_do_not_run_are_not_built() {
        let packages = edges::packages().unwrap();
        let words = targets(
            &packages,
            &["hfreduce_client tests/fuzz/main.rs".to_owned()],
        );
        assert_eq!(words, ["--lib", "--bins", "--test", "fuzz"]);
    }

    #[test]
    fn the_longest_begins_first() {
        let job = |name: &str| Job {
            name: name.to_owned(),
            command: shell("true"),
        };
        let mut jobs = [job("short"), job("long"), job("new")];
        let seconds = [("short".to_owned(), 1.0), ("long".to_owned(), 9.0)];
        order(&mut jobs, &seconds.into());
        assert_eq!(jobs.map(|job| job.name), ["short", "new", "long"]);
    }

    #[test]
    fn a_program_fails_by_its_status_and_the_others_run_on() {
        let job = |script: &str| Job {
            name: script.to_owned(),
            command: shell(script),
        };
        let jobs = vec![job("exit 3"), job("true"), job("kill -9 $$")];
        let mut failed = side_by_side(jobs, 2).unwrap();
        failed.sort();
        assert_eq!(failed, ["exit 3", "kill -9 $$"]);
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_what_it_said_is_shown() {
        let mut hangs = shell("echo begun; exec sleep 600");
        let (ended, said) = run_one(&mut hangs, Duration::from_millis(300)).unwrap();
        assert!(ended.unwrap_err().contains("killed"));
        assert_eq!(said, "begun\n");
        let (ended, said) = run_one(&mut shell("echo one; echo two >&2"), LONG).unwrap();
        ended.unwrap();
        assert_eq!(said, "one\ntwo\n");
    }
}
