//! Release builds of our programs that need no library at run time: they run in an empty image.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use cluster::Outcome;
use cluster::image::{host, release_folder};

use crate::r#gen::root;
use crate::{child, report};

/// Builds packages of the workspace and returns the folder that their programs are in.
pub(crate) fn build(packages: &[&str]) -> anyhow::Result<PathBuf> {
    let target = host()?;
    let folder = release_folder()?;
    if packages.is_empty() {
        return Ok(folder);
    }
    let start = Instant::now();
    report::begin("release binaries");
    let variable = format!(
        "CARGO_TARGET_{}_RUSTFLAGS",
        target.to_uppercase().replace('-', "_")
    );
    let mut cargo = child::command("cargo");
    // An explicit target keeps build scripts and procedural macros, which are dynamic, out of the
    // flags' reach.
    cargo
        .current_dir(root())
        .env(variable, "-C target-feature=+crt-static");
    cargo.args(["build", "--release", "--locked", "--target", &target]);
    for package in packages {
        cargo.args(["--package", package]);
    }
    let changed =
        |package: &&str| fs::metadata(folder.join(package)).and_then(|file| file.modified());
    let stamps = || {
        packages
            .iter()
            .map(|package| changed(package).ok())
            .collect::<Vec<_>>()
    };
    let before = stamps();
    if !cargo.status().context("failed to start cargo")?.success() {
        bail!("failed to build {}", packages.join(", "));
    }
    let outcome = if stamps() == before {
        Outcome::Cached
    } else {
        Outcome::Built
    };
    report::line("release binaries", outcome, start.elapsed());
    Ok(folder)
}
