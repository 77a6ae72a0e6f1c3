//! `cargo xtask tidy`: the repository's own rules, over every file that git tracks or would track.
//! A rule is a function from files to findings; what the rules look at is in the modules below.

mod bans;
mod classes;
pub(crate) mod edges;
mod invariants;
mod licences;
mod limits;
mod map;
mod markdown;
mod names;
mod text;
mod traps;

use crate::Verb;
use crate::args::Args;
use crate::r#gen::root;
use anyhow::{Context, bail};
use std::fs;
use std::process::{Command, ExitCode};

pub(crate) const VERB: Verb = Verb {
    name: "tidy",
    about: "Check the repository's own rules (headers, links, dependency edges, invariants)",
    usage: "
Usage: cargo xtask tidy

Checks every file that git tracks or would track:
  - a Rust file starts with `//!`; no blanks at line ends, tabs, leftover markers
  - no paths of one machine, no names of package registries; actions of workflows are named by commit
  - Markdown has one title, its relative links lead somewhere, the changelog parses
  - crates depend only on what ARCHITECTURE.md allows; core/ on little from outside
  - a public type's name stands for one thing: no other crate defines it
  - manifests carry the licence and take the workspace's lints; the chart's version is ours
  - dependencies have a licence of deny.toml's list, and none is banned there
  - each invariant of ARCHITECTURE.md has a test that names it, each folder a row of its map
  - the table of test classes names what exists; what must always run names each invariant, and fits into
    the budgets of the stages by docs/measurements/times.csv
  - each row of docs/protocol/traps.md and reliability.md names tests that exist, or says why not
Files over 600 lines are listed; that alone is no error.",
    run,
};

/// A tracked file: its path from the root, and its text.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    /// What comes after the last dot, or nothing.
    fn extension(&self) -> &str {
        self.path
            .rsplit('/')
            .next()
            .and_then(|name| name.rsplit_once('.'))
            .map_or("", |(_, tail)| tail)
    }
}

/// What the rules found.
#[derive(Debug, Default)]
struct Findings {
    errors: Vec<String>,
    warnings: Vec<String>,
}

fn run(args: Args) -> anyhow::Result<ExitCode> {
    args.finish()?;
    let findings = check()?;
    for warning in &findings.warnings {
        println!("warning: {warning}");
    }
    for error in &findings.errors {
        eprintln!("{error}");
    }
    println!(
        "{} findings, {} warnings",
        findings.errors.len(),
        findings.warnings.len()
    );
    Ok(if findings.errors.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn check() -> anyhow::Result<Findings> {
    let files = files()?;
    let mut findings = Findings::default();
    for file in &files {
        text::check(file, &mut findings);
    }
    markdown::check(&files, &mut findings);
    names::check(&files, &mut findings);
    invariants::check(&files, &mut findings);
    traps::check(&files, &mut findings);
    map::check(&files, &mut findings);
    limits::check(&files, &mut findings);
    let packages = edges::packages()?;
    edges::check(&packages, &mut findings);
    classes::check(&files, &packages, classes::recorded, &mut findings);
    let deny = fs::read_to_string(root().join("deny.toml")).context("failed to read deny.toml")?;
    let licences = licences::licences()?;
    licences::check(&licences, &licences::allowed(&deny)?, &mut findings);
    let packages = licences.iter().map(|(name, _)| name.as_str());
    bans::check(packages, &bans::banned(&deny), &mut findings);
    for (field, version) in crate::chart::versions()? {
        if version != env!("CARGO_PKG_VERSION") {
            let ours = env!("CARGO_PKG_VERSION");
            findings.errors.push(format!(
                "helm/fireflyer/Chart.yaml: {field} is {version}, the workspace is {ours}"
            ));
        }
    }
    Ok(findings)
}

/// Every text file that git tracks or would track. Files that are not text have no rules.
pub(crate) fn files() -> anyhow::Result<Vec<File>> {
    let output = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
            "--deduplicate",
        ])
        .current_dir(root())
        .output()
        .context("failed to start git")?;
    if !output.status.success() {
        bail!(
            "git ls-files failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let mut files = Vec::new();
    for path in String::from_utf8_lossy(&output.stdout)
        .split('\0')
        .filter(|path| !path.is_empty())
    {
        // A tracked file may be deleted in the working tree; a file may be an image.
        if let Ok(text) = fs::read_to_string(root().join(path)) {
            files.push(File {
                path: path.to_owned(),
                text,
            });
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_repository_keeps_its_own_rules() {
        let findings = super::check().expect("the rules can be checked");
        assert!(findings.errors.is_empty(), "{}", findings.errors.join("\n"));
    }
}
