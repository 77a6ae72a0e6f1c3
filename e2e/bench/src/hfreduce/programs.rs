//! The C programs of the bench: compiled when it runs, with the machine's own compiler, into a folder of the cache.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};
use cluster::{command, paths};

/// Compiles one of the sources and returns the program.
pub(crate) fn compile(
    compiler: &str,
    source: &str,
    name: &str,
    flags: &[String],
) -> Result<PathBuf> {
    let folder = paths::cache()?.join("bench");
    fs::create_dir_all(&folder).context("failed to make the cache of the bench")?;
    let program = folder.join(name);
    let sources = paths::repository().join("e2e/bench/src/hfreduce/programs");
    let mut compile = Command::new(compiler);
    compile.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    compile.arg(&program).arg(sources.join(source));
    command::run(compile.args(flags).arg("-lpthread"))
        .with_context(|| format!("failed to compile {source}"))?;
    Ok(program)
}
