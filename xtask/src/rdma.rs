//! `cargo xtask test --rdma`: the tests that need RDMA devices, in a guest whose kernel has them in software. Owns which
//! programs run there and what their results sum up to; the guest's parts, its file system and its life are below.

mod guest;
mod initramfs;
mod parts;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use ::cluster::paths;
use ::cluster::prerequisites::{self, found};
use anyhow::{Context as _, Result, bail};

use crate::test::plan::Plan;
use crate::{child, packages, report};
use guest::Verdict;

/// The integration tests that run in the guest, by name, whatever package they are in. Only their tests marked
/// `#[ignore]` do: those need devices. To add a program, add its name.
const PROGRAMS: [&str; 2] = ["rdma", "soft_roce"];

/// Runs the tests that the plan chooses, of those whose names contain `filter`.
pub(crate) fn run(plan: &Plan, filter: &str) -> Result<ExitCode> {
    if let Some(why) = cannot_run() {
        println!("test rdma ... not run: {why}");
        println!("0 passed, 0 failed, 1 skipped");
        return Ok(ExitCode::SUCCESS);
    }
    packages::install(&prerequisites::missing_for_rdma())?;
    let parts = parts::make()?;
    let programs = programs()?;
    let mut tests = tests(&programs)?;
    tests.retain(|(_, name)| name.contains(filter));
    let choice = plan.choose("rdma", tests.iter().map(|(_, name)| name.clone()).collect());
    println!("{}", plan.describe());
    choice.print();
    tests.retain(|(_, name)| choice.run.contains(name));
    let started = Instant::now();
    report::begin("guest");
    let folder = run_folder()?;
    let ended = initramfs::pack(&parts, &programs, &tests, &folder)
        .and_then(|initramfs| guest::run(&parts.kernel, &initramfs, &folder));
    fs::remove_dir_all(&folder)
        .with_context(|| format!("failed to remove {}", folder.display()))?;
    let verdict = ended?;
    report::line("guest", "ran", started.elapsed());
    Ok(close(&verdict))
}

/// A folder of this run only: its name keeps two runs apart. Those of runs that were ended go.
fn run_folder() -> Result<PathBuf> {
    let base = paths::cache()?.join("rdma");
    for old in packages::list(&base)? {
        let name = old.file_name().unwrap_or_default().to_string_lossy();
        if let Some(process) = name.strip_prefix("run-")
            && !Path::new("/proc").join(process).exists()
        {
            fs::remove_dir_all(&old)
                .with_context(|| format!("failed to remove {}", old.display()))?;
        }
    }
    let folder = base.join(format!("run-{}", std::process::id()));
    fs::create_dir_all(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
    Ok(folder)
}

/// Why there can be no guest here, if there can be none.
fn cannot_run() -> Option<&'static str> {
    if env::consts::ARCH != "x86_64" {
        return Some("the guest is an x86-64 machine, like its tests");
    }
    let debian = ["apt-get", "apt-cache", "dpkg-deb"];
    (!debian.into_iter().all(found)).then_some("its kernel comes from a Debian mirror, by apt-get")
}

/// Builds the programs, and those of their packages. Not by package: the workspace's features are those that
/// the unit tests were built with.
fn programs() -> Result<Vec<Program>> {
    let mut cargo = child::command("cargo");
    cargo.args(["test", "--no-run", "--message-format", "json"]);
    for program in PROGRAMS {
        cargo.args(["--test", program]);
    }
    let output = cargo
        .current_dir(paths::repository())
        .stderr(Stdio::inherit())
        .output()
        .context("failed to start cargo")?;
    if !output.status.success() {
        bail!("failed to build the tests");
    }
    let text = String::from_utf8(output.stdout).context("cargo did not print text")?;
    let programs: Vec<_> = text.lines().filter_map(Program::read).collect();
    if !programs.iter().any(|program| program.is_test) {
        bail!("cargo built none of the tests {}", PROGRAMS.join(", "));
    }
    Ok(programs)
}

/// The tests marked `#[ignore]` of the programs, each with its program.
fn tests(programs: &[Program]) -> Result<Vec<(PathBuf, String)>> {
    let mut tests = Vec::new();
    for Program { path, .. } in programs.iter().filter(|program| program.is_test) {
        let output = Command::new(path)
            .args(["--ignored", "--list", "--format", "terse"])
            .output()
            .with_context(|| format!("failed to start {}", path.display()))?;
        let list = String::from_utf8_lossy(&output.stdout).into_owned();
        let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
        tests.extend(names.map(|name| (path.clone(), name.to_owned())));
    }
    Ok(tests)
}

/// A program that goes into the guest: a test, or one of its package that it starts.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    path: PathBuf,
    is_test: bool,
}

impl Program {
    /// The program that a line of cargo's speaks of, if it speaks of one.
    fn read(line: &str) -> Option<Self> {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        Some(Self {
            path: message.get("executable")?.as_str()?.into(),
            is_test: message.pointer("/profile/test")?.as_bool()?,
        })
    }
}

/// The closing line that `cargo xtask test` adds up.
fn close(verdict: &Verdict) -> ExitCode {
    if let Some(broken) = &verdict.broken {
        println!("xtask test: the guest {broken}");
        for line in &verdict.console {
            println!("  guest's console: {line}");
        }
    }
    // A guest that broke down, or found no test, has not passed.
    let broken = verdict.broken.is_some() || verdict.passed + verdict.failed == 0;
    let failed = verdict.failed.max(u64::from(broken));
    println!("{} passed, {failed} failed", verdict.passed);
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::Program;

    #[test]
    fn programs_are_found_in_what_cargo_says() {
        let line = |test: bool| {
            format!(r#"{{"reason":"x","profile":{{"test":{test}}},"executable":"/t/rdma-1"}}"#)
        };
        for is_test in [true, false] {
            let path = "/t/rdma-1".into();
            assert_eq!(
                Program::read(&line(is_test)),
                Some(Program { path, is_test })
            );
        }
        let library = r#"{"reason":"x","profile":{"test":false},"executable":null}"#;
        assert_eq!(Program::read(library), None);
        assert_eq!(Program::read("warning: unused"), None);
    }
}
