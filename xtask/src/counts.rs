//! What simulations and fuzzing have counted so far: `docs/measurements/runs.csv`, a row for each commit, suite and thing
//! that is counted. Runs of one commit add up; a run counts only when all of it ended well.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::r#gen::root;

/// The table, from the repository's root.
pub(crate) const TABLE: &str = "docs/measurements/runs.csv";
const HEADER: &str = "commit,suite,what,count";

/// (commit, suite, what) and how often.
pub(crate) type Counts = BTreeMap<(String, String, String), u64>;

/// Runs a program, shows what it says and adds the lines `counted N WHAT` to a suite's rows, when it succeeds and the code
/// that it ran is committed. `code` is where that code is. Returns whether it succeeded.
pub(crate) fn run_and_add(command: &mut Command, suite: &str, code: &[&str]) -> Result<bool> {
    let version = version(code)?;
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .context("failed to start cargo")?;
    let mut counted = Vec::new();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line.context("failed to read what the tests say")?;
            println!("{line}");
            counted.extend(parse(&line));
        }
    }
    if !child.wait().context("failed to wait for cargo")?.success() {
        return Ok(false);
    }
    let Some(commit) = version else {
        println!(
            "not added to {TABLE}: {} differ from what is committed",
            code.join(", ")
        );
        return Ok(true);
    };
    let mut counts = read()?;
    for (count, what) in counted {
        *counts
            .entry((commit.clone(), suite.to_owned(), what))
            .or_default() += count;
    }
    fs::write(root().join(TABLE), text(&counts))
        .with_context(|| format!("failed to write {TABLE}"))?;
    println!("added to {TABLE}");
    Ok(true)
}

/// All rows.
pub(crate) fn read() -> Result<Counts> {
    let path = root().join(TABLE);
    if !path.exists() {
        return Ok(Counts::new());
    }
    let text = fs::read_to_string(path).with_context(|| format!("failed to read {TABLE}"))?;
    let mut counts = Counts::new();
    for line in text.lines().skip(1) {
        let [commit, suite, what, count] = line.split(',').collect::<Vec<_>>()[..] else {
            bail!("{TABLE} has a row that is not {HEADER}: {line}");
        };
        let count: u64 = count
            .parse()
            .with_context(|| format!("{TABLE} has a row without a count: {line}"))?;
        let key = (commit.to_owned(), suite.to_owned(), what.to_owned());
        *counts.entry(key).or_default() += count;
    }
    Ok(counts)
}

fn text(counts: &Counts) -> String {
    let mut text = format!("{HEADER}\n");
    for ((commit, suite, what), count) in counts {
        let _ = writeln!(text, "{commit},{suite},{what},{count}");
    }
    text
}

/// `counted 12 some words`, which may stand behind what a test runner says.
fn parse(line: &str) -> Option<(u64, String)> {
    let (_, counted) = line.split_once("counted ")?;
    let (count, what) = counted.split_once(' ')?;
    Some((count.parse().ok()?, what.replace(',', ";")))
}

/// The last commit that changed the code; none when there are changes that are not committed.
fn version(code: &[&str]) -> Result<Option<String>> {
    let git = |words: &[&str]| -> Result<String> {
        let output = Command::new("git")
            .args(words)
            .arg("--")
            .args(code)
            .current_dir(root())
            .output()
            .context("failed to start git")?;
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    if !git(&["status", "--porcelain"])?.is_empty() {
        return Ok(None);
    }
    let commit = git(&["log", "-1", "--format=%h", "--abbrev=10"])?;
    Ok(Some(commit).filter(|commit| !commit.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::{Counts, parse, text};

    #[test]
    fn a_count_is_found_in_what_a_test_says() {
        let counted = parse("test x ... counted 12 Trainer MidUp");
        assert_eq!(counted, Some((12, "Trainer MidUp".to_owned())));
        assert_eq!(parse("test result: ok. 1 passed"), None);
    }

    #[test]
    fn rows_are_in_order_below_the_header() {
        let row = |suite: &str| ("a1".to_owned(), suite.to_owned(), "runs".to_owned());
        let counts = Counts::from([(row("z"), 1), (row("b"), 2)]);
        assert_eq!(
            text(&counts),
            "commit,suite,what,count\na1,b,runs,2\na1,z,runs,1\n"
        );
    }
}
