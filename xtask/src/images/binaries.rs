//! Release builds of our programs, as the images hold them: static ones, that need no library at run time, and those that
//! load libraries and are dynamic for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Context;
use cluster::StepOutcome;
use cluster::image::{host, release_folder};

use super::table::{IMAGES, Linking};
use crate::r#gen::root;
use crate::{cargo, child, report};

/// What people read of it.
const STEP: &str = "release binaries";

/// Builds packages of the workspace and returns the folder that their programs are in.
pub(crate) fn build(packages: &[&str]) -> anyhow::Result<PathBuf> {
    let folder = release_folder()?;
    if packages.is_empty() {
        return Ok(folder);
    }
    let start = Instant::now();
    report::begin(STEP);
    let stamps = || {
        let stamp = |package: &&str| modified(&folder.join(package));
        packages.iter().map(stamp).collect::<Vec<_>>()
    };
    let before = stamps();
    let is_dynamic = |package: &&&str| {
        let mut binaries = IMAGES.iter().flat_map(|image| image.binaries);
        let known = binaries.find(|binary| binary.package == **package);
        known.is_some_and(|binary| binary.linking == Linking::Dynamic)
    };
    let (dynamic, fixed): (Vec<&str>, Vec<&str>) =
        packages.iter().partition(|package| is_dynamic(package));
    compile(Linking::Static, &fixed, None)?;
    compile(Linking::Dynamic, &dynamic, None)?;
    // Cargo keeps programs of the two kinds apart; whoever asks for the images' programs finds them in one place.
    let host_folder = folder
        .ancestors()
        .nth(2)
        .context("the target folder has no parent")?
        .join("release");
    for package in dynamic {
        take_over(&host_folder.join(package), &folder.join(package))?;
    }
    let outcome = if stamps() == before {
        StepOutcome::Cached
    } else {
        StepOutcome::Built
    };
    report::line(STEP, outcome, start.elapsed());
    Ok(folder)
}

/// Builds an example of a package as programs in images are built: a scenario runs it in a pod.
pub(crate) fn example(package: &str, name: &str) -> anyhow::Result<()> {
    compile(Linking::Static, &[package], Some(name))
}

fn modified(path: &Path) -> Option<std::time::SystemTime> {
    fs::metadata(path).and_then(|file| file.modified()).ok()
}

/// Copies a program that is newer than the copy. Aside first: the old one may be running.
fn take_over(from: &Path, to: &Path) -> anyhow::Result<()> {
    if modified(to) > modified(from) {
        return Ok(());
    }
    let fresh = to.with_extension("new");
    fs::create_dir_all(to.parent().unwrap_or(to))
        .and_then(|()| fs::copy(from, &fresh))
        .and_then(|_| fs::rename(&fresh, to))
        .with_context(|| format!("failed to copy {}", from.display()))
}

/// Has cargo build programs that need no library of the machine that they run on.
pub(crate) fn link_statically(build: &mut Command) -> anyhow::Result<()> {
    let target = host()?;
    let variable = format!(
        "CARGO_TARGET_{}_RUSTFLAGS",
        target.to_uppercase().replace('-', "_")
    );
    // An explicit target keeps build scripts and procedural macros, which are dynamic, out of the
    // flags' reach.
    build.env(variable, "-C target-feature=+crt-static");
    build.args(["--target", &target]);
    Ok(())
}

fn compile(linking: Linking, packages: &[&str], example: Option<&str>) -> anyhow::Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let mut build = child::command("cargo");
    build
        .current_dir(root())
        .args(["build", "--release", "--locked"]);
    if linking == Linking::Static {
        link_statically(&mut build)?;
    }
    for package in packages {
        build.args(["--package", package]);
    }
    if let Some(example) = example {
        build.args(["--example", example]);
    }
    cargo::run(STEP, &mut build).with_context(|| format!("failed to build {}", packages.join(", ")))
}
