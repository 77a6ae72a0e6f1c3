//! `docs/protocol/faults.md`: which faults the simulation of recovery causes in which phases, from the code that causes them,
//! and how often each was survived so far, from the counts of its runs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::counts::{self, Counts};
use crate::r#gen::root;

const PAGE: &str = "docs/protocol/faults.md";
/// Where the faults and phases are declared.
const SOURCE: &str = "core/collective/tests/gang/faults.rs";
/// Where those of one epoch are.
const MISFORTUNES: &str = "core/collective/tests/gang/misfortune.rs";

/// What every suite counts, beside what it draws.
const RUNS: &str = "runs";
const SECONDS: &str = "seconds";
/// Suites whose names begin so give hostile bytes to something.
const FUZZ: &str = "fuzz ";

/// A variant of an enumeration, and its documentation.
type Variant = (String, String);

/// Writes the page, or with `check` compares it.
pub(crate) fn page(check: bool) -> Result<()> {
    let text = text(&counts::read()?)?;
    let path = root().join(PAGE);
    if fs::read_to_string(&path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    if check {
        bail!("{PAGE} is stale: run `cargo xtask gen`");
    }
    fs::write(&path, text).with_context(|| format!("failed to write {PAGE}"))?;
    println!("wrote {PAGE}");
    Ok(())
}

fn text(counts: &Counts) -> Result<String> {
    let read = |file| {
        fs::read_to_string(root().join(file)).with_context(|| format!("failed to read {file}"))
    };
    let (recovery, simulation) = (read(SOURCE)?, read(MISFORTUNES)?);
    let faults = variants(&recovery, "Fault")?;
    let phases = variants(&recovery, "Phase")?;
    let lives = variants(&recovery, "Life")?;
    let misfortunes = variants(&simulation, "Misfortune")?;
    let hits_of = |suite: &str, what: &str| -> u64 {
        let rows = counts.iter();
        let of = rows.filter(|((_, of, counted), _)| of == suite && counted == what);
        of.map(|(_, count)| count).sum()
    };
    let mut text = format!(
        "# Faults\n\nMade by `cargo xtask gen` from [faults.rs](../../{SOURCE}), [misfortune.rs](../../{MISFORTUNES}) and \
         [the counts of the runs](../measurements/runs.csv). Do not edit.\n\n\
         Each number is how often the simulation let this fault happen in this phase of an operation, in a gang of any size, with any\n\
         calls, and found all rules of [recovery.md](recovery.md) kept. `cargo xtask sim recovery --minutes M` adds to it.\n\n"
    );
    let hits = |what: &str| hits_of("recovery", what);
    let world: Vec<String> = phases.iter().map(|(phase, _)| phase.clone()).collect();
    text += &table(&faults, &world, |fault, phase| hits(&cell(fault, phase)));
    text += "\nOf operations of a group of some ranks, in gangs with one to three groups beside the world, and of the group itself:\n\n";
    let of_group = lives.iter().chain(&phases).map(|(name, _)| name.clone());
    let columns: Vec<String> = of_group.collect();
    text += &table(&faults, &columns, |fault, column| {
        let is_life = lives.iter().any(|(life, _)| life == column);
        hits(&if is_life {
            cell(fault, column)
        } else {
            cell_in_group(fault, column)
        })
    });
    for (title, variants) in [
        ("Fault", &faults),
        ("Phase", &phases),
        ("Of a group", &lives),
    ] {
        let _ = writeln!(text, "\n| {title} | What it is |\n| --- | --- |");
        for (name, about) in variants {
            let _ = writeln!(text, "| {name} | {about} |");
        }
    }
    text += "\nWithin one epoch, where everything ends at the first loss (`cargo xtask sim collective`):\n\n\
             | Misfortune | Runs | What it is |\n| --- | ---: | --- |\n";
    for (name, about) in &misfortunes {
        let _ = writeln!(
            text,
            "| {name} | {} | {about} |",
            hits_of("collective", name)
        );
    }
    text += "\n| Suite | Commits | Runs |\n| --- | ---: | ---: |\n";
    let (fuzzed, simulated): (Vec<_>, Vec<_>) = sums(counts)
        .into_iter()
        .partition(|(suite, _)| suite.starts_with(FUZZ));
    for (suite, sum) in &simulated {
        let _ = writeln!(text, "| {suite} | {} | {} |", sum.commits, sum.runs);
    }
    let all: u64 = simulated.iter().map(|(_, sum)| sum.runs).sum();
    let _ = writeln!(text, "| all | | {all} |");
    text += "\nHostile bytes (`cargo xtask fuzz`); of older runs the time was not counted:\n\n\
             | Target | Runs | Seconds |\n| --- | ---: | ---: |\n";
    for (suite, sum) in &fuzzed {
        let target = suite.trim_start_matches(FUZZ);
        let _ = writeln!(text, "| {target} | {} | {} |", sum.runs, sum.seconds);
    }
    let all: u64 = fuzzed.iter().map(|(_, sum)| sum.seconds).sum();
    let _ = writeln!(text, "| all | | {all} |");
    Ok(text)
}

/// Of one suite, over all commits.
#[derive(Default)]
struct Sum {
    commits: u64,
    runs: u64,
    seconds: u64,
}

fn sums(counts: &Counts) -> BTreeMap<&str, Sum> {
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    for ((_, suite, what), count) in counts {
        let sum = sums.entry(suite).or_default();
        match what.as_str() {
            RUNS => {
                sum.commits += 1;
                sum.runs += count;
            }
            SECONDS => sum.seconds += count,
            _ => {}
        }
    }
    sums
}

/// How the simulation counts a fault in a phase of an operation of the world, or while something is done with a group.
fn cell(fault: &str, when: &str) -> String {
    format!("{fault} {when}")
}

/// The same of an operation of a group.
fn cell_in_group(fault: &str, phase: &str) -> String {
    format!("{fault} {phase} in a group")
}

/// A row for each fault.
fn table(faults: &[Variant], columns: &[String], hits: impl Fn(&str, &str) -> u64) -> String {
    let mut text = format!(
        "| | {} |\n| --- |{}\n",
        columns.join(" | "),
        " ---: |".repeat(columns.len())
    );
    for (fault, _) in faults {
        let counts: Vec<String> = columns
            .iter()
            .map(|column| hits(fault, column).to_string())
            .collect();
        let _ = writeln!(text, "| {fault} | {} |", counts.join(" | "));
    }
    text
}

/// The variants of an enumeration in a source.
fn variants(source: &str, name: &str) -> Result<Vec<Variant>> {
    let start = source
        .find(&format!("enum {name} {{"))
        .with_context(|| format!("failed to find the enumeration {name}"))?;
    let mut variants = Vec::new();
    let mut about: Vec<&str> = Vec::new();
    for line in source[start..].lines().skip(1).map(str::trim) {
        if line == "}" {
            return Ok(variants);
        }
        if let Some(line) = line.strip_prefix("///") {
            about.push(line.trim());
        } else if let Some(name) = line.strip_suffix(',') {
            variants.push((name.to_owned(), about.join(" ")));
            about.clear();
        }
    }
    bail!("failed to find the end of the enumeration {name}")
}

#[cfg(test)]
mod tests {
    use super::{RUNS, SECONDS, SOURCE, cell, cell_in_group, variants};
    use crate::counts;
    use crate::r#gen::root;
    use std::fs;

    /// What a long run has to have hit each cell.
    const LEAST: u64 = 100;

    #[test]
    fn every_fault_was_survived_in_every_phase_and_no_other_is_counted() {
        let source = fs::read_to_string(root().join(SOURCE)).unwrap();
        let (faults, phases) = (
            variants(&source, "Fault").unwrap(),
            variants(&source, "Phase").unwrap(),
        );
        assert!(faults.len() >= 8 && phases.len() >= 10);
        let lives = variants(&source, "Life").unwrap();
        let mut all = Vec::new();
        for (fault, _) in &faults {
            for (phase, _) in &phases {
                all.extend([cell(fault, phase), cell_in_group(fault, phase)]);
            }
            all.extend(lives.iter().map(|(life, _)| cell(fault, life)));
        }
        let counts = counts::read().unwrap();
        let of_suite = || {
            counts.iter().filter(|((_, suite, what), _)| {
                suite == "recovery" && what != RUNS && what != SECONDS
            })
        };
        for cell in &all {
            let hits: u64 = of_suite()
                .filter(|((.., what), _)| what == cell)
                .map(|(_, hits)| hits)
                .sum();
            assert!(
                hits >= LEAST,
                "{cell}: {hits}; run `cargo xtask sim recovery --minutes 5` and commit the counts"
            );
        }
        for ((.., what), _) in of_suite() {
            assert!(
                all.contains(what),
                "{what} is counted and in no enumeration of {SOURCE}"
            );
        }
    }

    #[test]
    fn variants_come_with_what_is_said_of_them() {
        let source = "enum Duck {\n    /// It is\n    /// there.\n    Quacks,\n    Swims,\n}\n";
        let found = variants(source, "Duck").unwrap();
        assert_eq!(
            found,
            [
                ("Quacks".into(), "It is there.".into()),
                ("Swims".into(), String::new())
            ]
        );
        assert!(variants(source, "Goose").is_err());
    }
}
