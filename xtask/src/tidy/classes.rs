//! The table of test classes against the tree: its rows name what exists, what must always run holds every invariant, and
//! fits into the budgets by the times that were recorded last.

use super::edges::Package;
use super::{File, Findings, invariants};
use crate::test::classes::{self, EVERYTHING, STAGES, UNITS, When};
use crate::test::{ledger, scenarios};
use std::collections::{BTreeMap, BTreeSet};

const TABLE: &str = "xtask/src/test/classes.rs";
const SCENARIOS: &str = "e2e/scenarios/src/scenario.rs";
/// Where the guest's tests are.
const GUEST: [&str; 2] = ["link/tests/rdma/", "hfreduce-sidecar/tests/soft_roce"];

pub(super) fn check(
    files: &[File],
    packages: &[Package],
    seconds: impl Fn(&str) -> BTreeMap<String, f64>,
    findings: &mut Findings,
) {
    let units = units(files, packages);
    let mut say = |text: String| findings.errors.push(format!("{TABLE}: {text}"));
    for (stage, beginning, _) in UNITS {
        let mut of = units.iter().filter(|(of, _)| of == stage);
        if !of.any(|(_, unit)| unit.starts_with(beginning)) {
            say(format!("nothing in {stage} is called {beginning:?}"));
        }
    }
    for (_, unit) in units.iter().filter(|(stage, _)| *stage == "cluster") {
        if classes::when("cluster", unit).is_none() {
            say(format!("{unit} needs a row for itself or its module"));
        }
    }
    for path in paths() {
        if !files.iter().any(|file| file.path.starts_with(path)) {
            say(format!("no file's path begins with {path}"));
        }
    }
    for id in held(files, packages) {
        say(format!(
            "no test that names {id} is among those that always run"
        ));
    }
    for stage in STAGES {
        let needed = always(stage.name, stage.turns > 0, &seconds(stage.name));
        if needed > f64::from(stage.budget) {
            say(format!(
                "what must always run in {} takes {needed:.0} s by the recorded times, and has {} s: make it \
                 faster, or let some of it run in turns",
                stage.name, stage.budget
            ));
        }
    }
}

/// What the ledger recorded; nothing where there is none.
pub(super) fn recorded(stage: &str) -> BTreeMap<String, f64> {
    ledger::recorded(stage).unwrap_or_default()
}

/// All units with their stages.
fn units(files: &[File], packages: &[Package]) -> BTreeSet<(&'static str, String)> {
    let programs = packages.iter().flat_map(Package::units);
    let mut units: BTreeSet<_> = programs.map(|unit| ("unit", unit)).collect();
    for file in files {
        if file.path == SCENARIOS {
            units.extend(
                scenarios::names(&file.text)
                    .into_iter()
                    .map(|name| ("cluster", name)),
            );
        }
        if GUEST.iter().any(|folder| file.path.starts_with(folder)) {
            units.extend(functions(&file.text).map(|name| ("rdma", name.to_owned())));
        }
    }
    units
}

fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.split("fn ")
        .skip(1)
        .filter_map(|rest| rest.split('(').next())
}

fn paths() -> impl Iterator<Item = &'static str> {
    let rows = UNITS.iter().flat_map(|(_, _, when)| match when {
        When::On(paths) => paths.iter(),
        When::Always => [].iter(),
    });
    let stages = STAGES.iter().flat_map(|stage| stage.all);
    rows.chain(stages).chain(EVERYTHING).copied()
}

/// Invariants that nothing holds in every run.
fn held(files: &[File], packages: &[Package]) -> Vec<String> {
    let mut listed = invariants::listed(files);
    for file in files {
        let Some(text) = invariants::tests(file) else {
            continue;
        };
        listed.retain(|id| !invariants::names(text, id) || !holds(file, text, id, packages));
    }
    listed.into_iter().collect()
}

/// Whether the test of this file that names the invariant always runs.
fn holds(file: &File, text: &str, id: &str, packages: &[Package]) -> bool {
    if let Some(module) = file.path.strip_prefix("e2e/scenarios/src/scenario/") {
        let module = module.trim_end_matches(".rs");
        let scenario = text
            .split_once(id)
            .and_then(|(_, rest)| functions(rest).next());
        return scenario.is_some_and(|name| {
            classes::when("cluster", &format!("{module}::{name}")) == Some(When::Always)
        });
    }
    packages.iter().any(|package| {
        file.path.strip_prefix(&package.folder).is_some_and(|path| {
            package.units().any(|unit| {
                let source = unit.split_once(' ').map_or("", |(_, source)| source);
                // All files of a program are beside or below its root.
                let stem = source
                    .trim_end_matches("main.rs")
                    .trim_end_matches("lib.rs");
                path.starts_with(stem) && classes::when("unit", &unit) == Some(When::Always)
            })
        })
    })
}

/// Seconds of what always runs in a stage: of all that was recorded in it, without what may be left out.
fn always(stage: &str, in_parts: bool, recorded: &BTreeMap<String, f64>) -> f64 {
    if !in_parts {
        return recorded.get(ledger::WHOLE).copied().unwrap_or_default();
    }
    let modules: BTreeSet<&str> = UNITS
        .iter()
        .filter(|(of, _, _)| *of == stage)
        .filter_map(|(_, beginning, _)| beginning.split_once("::"))
        .map(|(module, _)| module)
        .collect();
    let runs = |name: &str| {
        // The ledger knows scenarios without their modules.
        let mut names = modules.iter().map(|module| format!("{module}::{name}"));
        classes::when(stage, name) == Some(When::Always)
            || names.any(|name| classes::when(stage, &name) == Some(When::Always))
            || name == "cargo build"
    };
    let seconds = recorded.iter().filter(|(name, _)| runs(name));
    seconds.map(|(_, seconds)| seconds).sum()
}

#[cfg(test)]
mod tests {
    use super::{Findings, always, check};
    use crate::tidy::edges;

    #[test]
    fn what_must_always_run_is_counted_and_nothing_else() {
        let recorded = [
            ("all", 900.0),
            ("cargo build", 10.0),
            ("digits_reach_accuracy_over_hfreduce", 100.0),
            ("hfreduce_and_gloo_train_the_same_model", 150.0),
        ];
        let recorded = recorded.map(|(name, time)| (name.to_owned(), time)).into();
        assert!((always("cluster", true, &recorded) - 110.0).abs() < 0.01);
        assert!((always("images", false, &recorded) - 900.0).abs() < 0.01);
    }

    #[test]
    fn a_stage_that_takes_longer_than_its_budget_is_refused() {
        let files = super::super::files().unwrap();
        let packages = edges::packages().unwrap();
        let errors = |seconds: f64| {
            let mut findings = Findings::default();
            let recorded = |_: &str| [("all".to_owned(), seconds)].into();
            check(&files, &packages, recorded, &mut findings);
            findings.errors
        };
        assert!(errors(1.0).is_empty(), "{:?}", errors(1.0));
        let slow = errors(10_000.0);
        assert!(
            slow.iter()
                .any(|error| error.contains("in lint takes 10000 s")),
            "{slow:?}"
        );
    }

    #[test]
    fn an_invariant_that_nothing_always_holds_is_refused() {
        let mut files = super::super::files().unwrap();
        files.retain(|file| !file.path.starts_with("core/") || !file.text.contains("REC-6"));
        let packages = edges::packages().unwrap();
        let mut findings = Findings::default();
        check(&files, &packages, |_| [].into(), &mut findings);
        let found = &findings.errors;
        assert!(
            found.iter().any(|error| error.contains("REC-6")),
            "{found:?}"
        );
    }
}
