//! Cargo as a step of something longer: how many crates are compiled of how many, and its own lines only when it fails, or
//! with `--verbose`.

use std::env;
use std::process::Command;
use std::time::Instant;

use ::cluster::{StepOutcome, command};
use anyhow::{Context as _, Result, bail};

use crate::r#gen::root;
use crate::{child, report};

/// Set by `--verbose`: compilers print what they print.
pub(crate) const VERBOSE: &str = "FIREFLYER_VERBOSE";

/// Builds, as a step of its own, into the folder that this program is in.
pub(crate) fn build(step: &str, words: &[&str]) -> Result<()> {
    let started = Instant::now();
    report::begin(step);
    let mut build = child::command(env!("CARGO"));
    build.arg("build").args(words).current_dir(root());
    run(step, &mut build)?;
    report::line(step, StepOutcome::Built, started.elapsed());
    Ok(())
}

/// Runs cargo, or what runs cargo, as part of the step.
pub(crate) fn run(step: &str, cargo: &mut Command) -> Result<()> {
    if env::var_os(VERBOSE).is_some() {
        let status = cargo.status().context("failed to start cargo")?;
        if !status.success() {
            bail!("{} failed", cargo.get_program().display());
        }
        return Ok(());
    }
    // Cargo prints its progress to terminals alone, unless asked.
    cargo.env("CARGO_TERM_PROGRESS_WHEN", "always");
    cargo.env("CARGO_TERM_PROGRESS_WIDTH", "80");
    cargo.env("CARGO_TERM_COLOR", "never");
    command::watch(cargo, |line| {
        if let Some((done, all)) = progress(line) {
            report::at(step, done, all);
        }
    })?;
    Ok(())
}

/// `Building [====>    ] 45/241: serde, tokio` is 45 of 241.
fn progress(line: &str) -> Option<(usize, usize)> {
    let (_, counts) = line
        .trim_start()
        .strip_prefix("Building [")?
        .split_once("] ")?;
    let (done, rest) = counts.split_once('/')?;
    let all = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((done.trim().parse().ok()?, all.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::progress;

    #[test]
    fn only_lines_of_progress_count() {
        let line = "    Building [=====>                   ]  45/241: serde, tokio(build)";
        assert_eq!(progress(line), Some((45, 241)));
        assert_eq!(progress("   Building [====] 7/9"), Some((7, 9)));
        assert_eq!(progress("   Compiling serde v1.0.0"), None);
        assert_eq!(progress("error: Building [ 3/x"), None);
    }
}
