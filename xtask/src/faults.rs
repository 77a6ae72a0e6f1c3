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
const SOURCE: &str = "core/collective/tests/recovery/faults.rs";
/// Where those of one epoch are.
const MISFORTUNES: &str = "core/collective/tests/simulation/misfortune.rs";

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
    let misfortunes = variants(&simulation, "Misfortune")?;
    let hits = |suite: &str, what: &str| -> u64 {
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
    let mut head = "| |".to_owned();
    let mut rule = "| --- |".to_owned();
    for (phase, _) in &phases {
        let _ = write!(head, " {phase} |");
        rule += " ---: |";
    }
    let _ = writeln!(text, "{head}\n{rule}");
    for (fault, _) in &faults {
        let _ = write!(text, "| {fault} |");
        for (phase, _) in &phases {
            let _ = write!(text, " {} |", hits("recovery", &format!("{fault} {phase}")));
        }
        text += "\n";
    }
    for (title, variants) in [("Fault", &faults), ("Phase", &phases)] {
        let _ = writeln!(text, "\n| {title} | What it is |\n| --- | --- |");
        for (name, about) in variants {
            let _ = writeln!(text, "| {name} | {about} |");
        }
    }
    text += "\nWithin one epoch, where everything ends at the first loss (`cargo xtask sim collective`):\n\n\
             | Misfortune | Runs | What it is |\n| --- | ---: | --- |\n";
    for (name, about) in &misfortunes {
        let _ = writeln!(text, "| {name} | {} | {about} |", hits("collective", name));
    }
    text += "\n| Suite | Commits | Runs |\n| --- | ---: | ---: |\n";
    let mut runs: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for ((_, suite, what), count) in counts {
        if what == "runs" && !suite.starts_with("fuzz") {
            let (commits, sum) = runs.entry(suite).or_default();
            *commits += 1;
            *sum += count;
        }
    }
    for (suite, (commits, sum)) in runs {
        let _ = writeln!(text, "| {suite} | {commits} | {sum} |");
    }
    Ok(text)
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
    use super::{SOURCE, variants};
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
        assert!(faults.len() >= 7 && phases.len() >= 10);
        let all: Vec<String> = faults
            .iter()
            .flat_map(|(fault, _)| {
                phases
                    .iter()
                    .map(move |(phase, _)| format!("{fault} {phase}"))
            })
            .collect();
        let counts = counts::read().unwrap();
        let of_suite = || {
            counts
                .iter()
                .filter(|((_, suite, what), _)| suite == "recovery" && what != "runs")
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
