//! Which units of a stage run: those that always do, those that a change affects, and a share of the rest, which the
//! number of commits turns over.

use std::collections::BTreeMap;

use anyhow::Result;

use super::change::Change;
use super::classes::{self, When};
use crate::tidy::edges;

/// How a line begins that says what does not run; `counts` counts them.
pub(crate) const LEFT_OUT: &str = "left out: ";

/// How a run chooses.
pub(crate) struct Plan {
    change: Change,
    /// The folders whose change affects a package: its own and those of the packages below it.
    folders: BTreeMap<String, Vec<String>>,
}

/// The units of a stage, divided.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) run: Vec<String>,
    /// And in how many commits it is their turn.
    pub(crate) left_out: Vec<(String, usize)>,
}

impl Plan {
    /// Everything when `all` says so or nothing is known of changes.
    pub(crate) fn new(all: bool, base: Option<&str>) -> Result<Self> {
        let change = if all {
            Change::Everything("--all".to_owned())
        } else {
            Change::since(base)?
        };
        let folders = edges::folders(&edges::packages()?);
        Ok(Self { change, folders })
    }

    /// What this run looks at, for people.
    pub(crate) fn describe(&self) -> String {
        match &self.change {
            Change::Everything(why) => format!("all tests run: {why}"),
            Change::Since { base, paths, .. } => format!(
                "{} files changed since {base}: what they affect runs, what must always run, and a share of the rest",
                paths.len()
            ),
        }
    }

    /// Divides the units of a stage. The order in which they are named does not matter.
    pub(crate) fn choose(&self, stage: &str, mut units: Vec<String>) -> Choice {
        let limits = classes::stage(stage).filter(|limits| limits.turns > 0);
        let (Change::Since { paths, commits, .. }, Some(limits)) = (&self.change, limits) else {
            return Choice {
                run: units,
                left_out: Vec::new(),
            };
        };
        units.sort();
        let for_all = [classes::EVERYTHING, limits.all].concat();
        let mut choice = Choice::default();
        let mut rest = 0;
        for unit in units {
            let when = classes::when(stage, &unit).unwrap_or(When::On(&[]));
            let When::On(own) = when else {
                choice.run.push(unit);
                continue;
            };
            // Whose turn it is must not depend on what has changed.
            let wait = (rest + limits.turns - commits % limits.turns) % limits.turns;
            rest += 1;
            let package = unit.split(' ').next().unwrap_or_default();
            let package = self.folders.get(package).into_iter().flatten();
            let affected = package
                .map(String::as_str)
                .chain(for_all.iter().chain(own).copied())
                .any(|start| paths.iter().any(|path| path.starts_with(start)));
            if affected || wait == 0 {
                choice.run.push(unit);
            } else {
                choice.left_out.push((unit, wait));
            }
        }
        choice
    }
}

impl Choice {
    /// One line for each unit that does not run.
    pub(crate) fn print(&self) {
        for (unit, wait) in &self.left_out {
            let commits = if *wait == 1 { "commit" } else { "commits" };
            println!(
                "{LEFT_OUT}{unit}: nothing that it tests has changed; its turn is in {wait} {commits}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Change, Choice, Plan};

    const UNITS: [&str; 5] = [
        "cluster src/lib.rs",
        "scheduler src/lib.rs",
        "link tests/a.rs",
        "link tests/b.rs",
        "link tests/c.rs",
    ];

    fn choose(commits: usize, paths: &[&str]) -> Choice {
        let plan = Plan {
            change: Change::Since {
                base: "0a1b".into(),
                paths: paths.iter().map(|path| (*path).to_owned()).collect(),
                commits,
            },
            folders: [
                ("cluster", &["e2e/cluster/"][..]),
                ("scheduler", &["core/scheduler/"]),
                ("link", &["link/", "core/sim/"]),
            ]
            .into_iter()
            .map(|(name, folders)| (name.into(), folders.iter().map(|f| (*f).into()).collect()))
            .collect(),
        };
        plan.choose("unit", UNITS.map(str::to_owned).to_vec())
    }

    #[test]
    fn a_test_without_a_row_runs_when_its_package_or_one_below_changes() {
        assert!(
            choose(0, &["link/src/lib.rs"])
                .run
                .contains(&UNITS[3].to_owned())
        );
        assert!(
            choose(0, &["core/sim/src/rng.rs"])
                .run
                .contains(&UNITS[3].to_owned())
        );
        let other = choose(0, &["linked/a", "docs/a.md"]);
        assert!(other.left_out.iter().any(|(unit, _)| unit == UNITS[3]));
    }

    #[test]
    fn what_must_always_run_and_what_all_depends_on_leave_nothing_out() {
        assert!(choose(0, &[]).run.contains(&UNITS[1].to_owned()));
        let run = choose(0, &["Cargo.lock"]).run;
        assert_eq!(run.len(), UNITS.len(), "{run:?}");
    }

    #[test]
    fn each_of_the_rest_has_its_turn_once_in_a_round() {
        for unit in [UNITS[0], UNITS[2], UNITS[3], UNITS[4]] {
            let ran =
                (7..10).filter(|commits| choose(*commits, &[]).run.contains(&unit.to_owned()));
            assert_eq!(ran.count(), 1, "{unit}");
        }
    }

    #[test]
    fn the_turn_comes_when_it_is_announced() {
        for (unit, wait) in choose(7, &[]).left_out {
            assert!(!choose(7 + wait - 1, &[]).run.contains(&unit), "{unit}");
            assert!(choose(7 + wait, &[]).run.contains(&unit), "{unit}");
        }
    }
}
