//! `cargo xtask test --scenarios`: hands those scenarios that the plan chooses to the program that runs them. Their names
//! stand in that program's source: it is built only when its turn has come.

use std::env;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use super::plan::Plan;
use crate::r#gen::root;
use crate::images::binaries;
use crate::{cargo, child};

/// The cluster of the scenarios.
pub(super) const CLUSTER: &str = "e2e";
/// Where all scenarios are listed, from the repository's root.
const LIST: &str = "e2e/scenarios/src/scenario.rs";

pub(super) fn run(plan: &Plan, filter: &str) -> Result<ExitCode> {
    let choice = plan.choose("cluster", matching(filter)?);
    println!("{}", plan.describe());
    choice.print();
    let names: Vec<&str> = choice.run.iter().map(|name| short(name)).collect();
    start(&["run", "--cluster", CLUSTER, "--filter", &names.join(",")])
}

/// `module::name` of the scenarios whose name contains the filter; an error if there is none.
pub(crate) fn matching(filter: &str) -> Result<Vec<String>> {
    let text =
        fs::read_to_string(root().join(LIST)).with_context(|| format!("failed to read {LIST}"))?;
    let mut names = names(&text);
    names.retain(|name| short(name).contains(filter));
    if names.is_empty() {
        bail!(
            "there is no scenario whose name contains {filter:?}: \
             `cargo xtask scenario --list` prints the names"
        );
    }
    Ok(names)
}

/// A scenario's name as its runner has it: without the module.
pub(crate) fn short(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

/// Builds the program that runs scenarios and runs it with these words.
pub(crate) fn start(words: &[&str]) -> Result<ExitCode> {
    // Not by package: the workspace's features are those that the unit tests were built with.
    cargo::build("scenarios", &["--bin", "scenarios"])?;
    binaries::example("fuse", "greeting")?;
    // Both are built into the same folder, wherever that is.
    let program = env::current_exe()?.with_file_name("scenarios");
    let status = child::command(program)
        .args(words)
        .current_dir(root())
        .status()
        .context("failed to start the scenarios")?;
    Ok(child::exit_code(status))
}

/// `module::name` of each `scenario!(needs, module::name)`.
pub(crate) fn names(text: &str) -> Vec<String> {
    let calls = text.split("scenario!(").skip(1);
    let name = |call: &str| {
        let mut words = call.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
        let found = words
            .find(|word| word.contains("::") && word.starts_with(|c: char| c.is_ascii_lowercase()));
        found.map(str::to_owned)
    };
    calls.filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn scenarios_are_found_in_one_line_and_in_several() {
        let text = "use a::b;\nscenario!(Needs::Nodes(2), api::one),\nscenario!(\n    Needs::Alone(0),\n    scale::two\n),";
        assert_eq!(names(text), ["api::one", "scale::two"]);
    }
}
