//! What the Python code is checked with: ruff and mypy, in an environment of their own. Their settings are in
//! `python/pyproject.toml`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use cluster::{command, paths};

use crate::r#gen::root;
use crate::report;

/// The programs at the versions that everybody's code is checked with.
const PROGRAMS: [&str; 2] = ["ruff==0.17.6", "mypy==2.4.1"];
/// The settings.
const SETTINGS: &str = "python/pyproject.toml";
/// Folders with Python code.
const FOLDERS: [&str; 3] = ["python", "examples", "e2e"];

/// Checks style, formatting and types.
pub(super) fn check() -> Result<()> {
    let programs = programs()?;
    let ruff = |words: &[&str]| {
        let mut ruff = Command::new(programs.join("ruff"));
        ruff.args(words)
            .args(["--quiet", "--no-cache", "--config", SETTINGS]);
        ruff.args(FOLDERS);
        ruff
    };
    clean("python style", &mut ruff(&["check"]))?;
    clean("python format", &mut ruff(&["format", "--check"]))?;
    let mut mypy = Command::new(programs.join("mypy"));
    mypy.args([
        "--config-file",
        SETTINGS,
        "--cache-dir",
        "/dev/null",
        "python/fireflyer",
        "python/gpu/gpu_checks",
    ]);
    clean("python types", &mut mypy)
}

fn clean(what: &str, command: &mut Command) -> Result<()> {
    let start = Instant::now();
    let status = command.current_dir(root()).status();
    let status = status.with_context(|| format!("failed to check {what}"))?;
    if !status.success() {
        bail!("{what} is not clean, see above");
    }
    report::line(what, "clean", start.elapsed());
    Ok(())
}

/// The folder that the programs are in; installed the first time.
fn programs() -> Result<PathBuf> {
    let versions = PROGRAMS.join("-").replace("==", "-");
    let environment = paths::cache()?.join("lint").join(versions);
    let programs = environment.join("bin");
    let last = programs.join("mypy");
    if !last.exists() {
        command::run(
            Command::new("python3")
                .args(["-m", "venv"])
                .arg(&environment),
        )?;
        let mut install = Command::new(programs.join("pip"));
        command::run(install.args(["install", "--quiet"]).args(PROGRAMS))?;
    }
    Ok(programs)
}
