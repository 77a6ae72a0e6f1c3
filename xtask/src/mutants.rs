//! `cargo xtask sim mutants`: puts one bug after another into a copy of the tree and says which the tests overlook.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::child;

/// A crate with a list of bugs, which is in its folder.
struct Suspect {
    folder: &'static str,
    package: &'static str,
    /// What is run until one fails: first what fails soonest.
    suites: &'static [&'static [&'static str]],
}

const SUSPECTS: &[Suspect] = &[
    Suspect {
        folder: "core/chunk-store",
        package: "chunk-store",
        suites: &[&["--lib"], &["--test", "store"]],
    },
    Suspect {
        folder: "core/collective",
        package: "collective",
        suites: &[
            &["--test", "gang", "--", "losses::"],
            &[
                "--lib",
                "--",
                "membership",
                "recovery",
                "machine",
                "session",
                "layout",
            ],
            &["--test", "gang", "--", "--skip", "losses::"],
        ],
    },
    Suspect {
        folder: "core/scheduler",
        package: "scheduler",
        suites: &[&["--lib"], &["--test", "planner"]],
    },
    Suspect {
        folder: "core/craq",
        package: "craq",
        suites: &[&["--lib"], &["--test", "chain"]],
    },
    Suspect {
        folder: "core/metadata",
        package: "metadata",
        suites: &[&["--test", "tree"]],
    },
];
/// Where the copy and its build are.
const PLACE: &str = "target/mutants";
/// A program that computes for longer, in seconds, hangs, which is noticed too.
const LIMIT: &str = "200";

#[derive(Debug, PartialEq, Eq)]
struct Mutant {
    breaks: String,
    file: String,
    find: String,
    replace: String,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Noticed,
    Overlooked,
    DoesNotCompile,
}

/// Runs those whose package or first line contains `filter`.
pub(crate) fn run(filter: Option<&str>) -> Result<ExitCode> {
    let copy = Path::new(PLACE).join("tree");
    let (begin, mut tried, mut overlooked) = (Instant::now(), 0, 0);
    for suspect in SUSPECTS {
        let mut mutants = suspect.mutants(Path::new("."))?;
        if let Some(filter) = filter.filter(|filter| !suspect.package.contains(filter)) {
            mutants.retain(|mutant| mutant.breaks.contains(filter));
        }
        if mutants.is_empty() {
            continue;
        }
        // Tests that fail anyway notice nothing.
        copy_tree(&copy)?;
        let package = suspect.package;
        match suspect.test(&copy)? {
            End::Overlooked => println!("{package}: without a bug the tests pass"),
            End::Noticed => bail!("the tests of {package} fail without a bug"),
            End::DoesNotCompile => bail!("the tests of {package} do not compile without a bug"),
        }
        for mutant in mutants {
            tried += 1;
            copy_tree(&copy)?;
            mutant.apply(&copy.join(suspect.folder))?;
            let start = Instant::now();
            let end = suspect.test(&copy)?;
            overlooked += usize::from(matches!(end, End::Overlooked | End::DoesNotCompile));
            println!(
                "{end:>14?} {:>4} s  {}",
                start.elapsed().as_secs(),
                mutant.breaks
            );
        }
    }
    let minutes = begin.elapsed().as_secs() / 60;
    println!("{tried} mutants in {minutes} min, {overlooked} overlooked");
    Ok(if overlooked == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl Suspect {
    /// Its bugs, in the tree at `root`.
    fn mutants(&self, root: &Path) -> Result<Vec<Mutant>> {
        let list = root.join(self.folder).join("mutants.txt");
        let read = || parse(&fs::read_to_string(&list)?);
        read().with_context(|| format!("failed to read {}", list.display()))
    }

    fn test(&self, copy: &Path) -> Result<End> {
        if !self.cargo_test(copy, &["--tests", "--no-run"])? {
            return Ok(End::DoesNotCompile);
        }
        for suite in self.suites {
            if !self.cargo_test(copy, suite)? {
                return Ok(End::Noticed);
            }
        }
        Ok(End::Overlooked)
    }

    /// Whether it succeeded.
    fn cargo_test(&self, copy: &Path, what: &[&str]) -> Result<bool> {
        let place = fs::canonicalize(PLACE).context("failed to find the folder of the mutants")?;
        // Every bug is built anew: it has to be built fast more than to run fast.
        let profile = format!("profile.dev.package.{}.opt-level=1", self.package);
        let mut command = child::command("sh");
        command
            .args(["-c", "ulimit -t $0 && exec \"$@\""])
            .arg(LIMIT)
            .args(["cargo", "test", "--quiet", "--package", self.package])
            .args(["--config", &profile])
            .args(what)
            .current_dir(copy)
            .env("CARGO_TARGET_DIR", place.join("build"))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let status = command.status().context("failed to start cargo")?;
        ensure!(status.code().is_some(), "cargo was killed");
        Ok(status.success())
    }
}

fn parse(text: &str) -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    while let Some(breaks) = lines.find(|line| !line.is_empty()) {
        let mut next = || {
            let line = lines.next();
            line.with_context(|| format!("\"{breaks}\" lacks a line"))
        };
        mutants.push(Mutant {
            breaks: breaks.to_owned(),
            file: next()?.to_owned(),
            find: next()?.replace("\\n", "\n"),
            replace: next()?.replace("\\n", "\n"),
        });
    }
    Ok(mutants)
}

impl Mutant {
    fn apply(&self, package: &Path) -> Result<()> {
        let file = package.join("src").join(&self.file);
        let text = fs::read_to_string(&file)
            .with_context(|| format!("failed to read {}", file.display()))?;
        let found = text.matches(&self.find).count();
        ensure!(
            found == 1,
            "failed to apply \"{}\": {} has its text {found} times, expected once",
            self.breaks,
            self.file
        );
        fs::write(&file, text.replace(&self.find, &self.replace))
            .with_context(|| format!("failed to write {}", file.display()))
    }
}

/// Copies what has changed, so that only the bug is built anew.
fn copy_tree(copy: &Path) -> Result<()> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("failed to list the files of the tree")?;
    ensure!(
        output.status.success(),
        "failed to list the files of the tree"
    );
    for name in String::from_utf8_lossy(&output.stdout).lines() {
        let (from, to) = (PathBuf::from(name), copy.join(name));
        let Ok(bytes) = fs::read(&from) else {
            continue; // Deleted, or a link.
        };
        if fs::read(&to).is_ok_and(|there| there == bytes) {
            continue;
        }
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("failed to create {}", folder.display()))?;
        }
        fs::write(&to, bytes).with_context(|| format!("failed to write {}", to.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_changes_one_place_of_the_tree() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for suspect in SUSPECTS {
            let mutants = suspect.mutants(&root).unwrap();
            assert!(mutants.len() >= 8, "{}", suspect.package);
            for mutant in mutants {
                let file = root.join(suspect.folder).join("src").join(&mutant.file);
                let text = fs::read_to_string(file).unwrap();
                let found = text.matches(&mutant.find).count();
                assert_eq!(found, 1, "{}", mutant.breaks);
                assert_ne!(mutant.find, mutant.replace);
            }
        }
    }
}
