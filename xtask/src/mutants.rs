//! `cargo xtask sim mutants`: puts one bug after another into a copy of the tree and says which the tests overlook.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use crate::child;

/// The bugs, and the crate they go into.
const LIST: &str = "core/collective/mutants.txt";
const CRATE: &str = "core/collective";
/// Where the copy and its build are.
const PLACE: &str = "target/mutants";
/// A program that computes for longer, in seconds, hangs, which is noticed too: each suite needs some ten.
const LIMIT: &str = "200";
/// Every bug is built anew: it has to be built fast more than to run fast.
const PROFILE: &str = "profile.dev.package.collective.opt-level=1";
/// What is run until one fails: first what fails soonest.
const SUITES: &[&[&str]] = &[
    &["--test", "recovery", "--", "anything"],
    &["--lib", "--", "membership", "recovery", "machine", "layout"],
    &["--test", "recovery", "--", "bars"],
    &["--test", "simulation"],
    &["--test", "groups"],
];

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

/// Runs those whose first line contains `filter`.
pub(crate) fn run(filter: Option<&str>) -> Result<ExitCode> {
    let text = fs::read_to_string(LIST).with_context(|| format!("failed to read {LIST}"))?;
    let mutants = parse(&text)?;
    let copy = Path::new(PLACE).join("tree");
    let (begin, mut tried, mut overlooked) = (Instant::now(), 0, 0);
    // Tests that fail anyway notice nothing.
    copy_tree(&copy)?;
    match test(&copy)? {
        End::Overlooked => println!("without a bug the tests pass"),
        End::Noticed => bail!("the tests fail without a bug"),
        End::DoesNotCompile => bail!("the tests do not compile without a bug"),
    }
    for mutant in mutants {
        if filter.is_some_and(|filter| !mutant.breaks.contains(filter)) {
            continue;
        }
        tried += 1;
        copy_tree(&copy)?;
        mutant.apply(&copy)?;
        let start = Instant::now();
        let end = test(&copy)?;
        overlooked += usize::from(matches!(end, End::Overlooked | End::DoesNotCompile));
        println!(
            "{end:>14?} {:>4} s  {}",
            start.elapsed().as_secs(),
            mutant.breaks
        );
    }
    let minutes = begin.elapsed().as_secs() / 60;
    println!("{tried} mutants in {minutes} min, {overlooked} overlooked");
    Ok(if overlooked == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn parse(text: &str) -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    while let Some(breaks) = lines.find(|line| !line.is_empty()) {
        let mut next = || {
            let line = lines.next();
            line.with_context(|| format!("failed to read {LIST}: \"{breaks}\" lacks a line"))
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
    fn apply(&self, copy: &Path) -> Result<()> {
        let file = copy.join(CRATE).join("src").join(&self.file);
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

fn test(copy: &Path) -> Result<End> {
    if !cargo_test(copy, &["--test", "recovery", "--no-run"])? {
        return Ok(End::DoesNotCompile);
    }
    for suite in SUITES {
        if !cargo_test(copy, suite)? {
            return Ok(End::Noticed);
        }
    }
    Ok(End::Overlooked)
}

/// Whether it succeeded.
fn cargo_test(copy: &Path, what: &[&str]) -> Result<bool> {
    let place = fs::canonicalize(PLACE).context("failed to find the folder of the mutants")?;
    let mut command = child::command("sh");
    command
        .args(["-c", "ulimit -t $0 && exec \"$@\"", LIMIT])
        .args(["cargo", "test", "--quiet", "--package", "collective"])
        .args(["--config", PROFILE])
        .args(what)
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", place.join("build"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let status = command.status().context("failed to start cargo")?;
    ensure!(status.code().is_some(), "cargo was killed");
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_changes_one_place_of_the_tree() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mutants = parse(&fs::read_to_string(root.join(LIST)).unwrap()).unwrap();
        assert!(mutants.len() >= 30);
        for mutant in mutants {
            let file = root.join(CRATE).join("src").join(&mutant.file);
            let text = fs::read_to_string(file).unwrap();
            let found = text.matches(&mutant.find).count();
            assert_eq!(found, 1, "{}", mutant.breaks);
            assert_ne!(mutant.find, mutant.replace);
        }
    }
}
