//! Debian packages that a task needs: installed when they are missing and we may, named when we may
//! not.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};
use cluster::command;
use cluster::prerequisites::{Requirement, found, is_root};

use crate::report;

/// What `apt-get` is given; people type the same.
const INSTALL: [&str; 3] = ["install", "--yes", "--no-install-recommends"];

/// Packages are missing and we are not root: `main` exits with 2.
#[derive(Debug)]
pub(crate) struct NeedsRoot {
    packages: String,
}

impl fmt::Display for NeedsRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (packages, install) = (&self.packages, INSTALL.join(" "));
        write!(
            f,
            "packages are missing, which only root may install. Run:\n\n  sudo apt-get {install} {packages}\n"
        )
    }
}

impl std::error::Error for NeedsRoot {}

/// Installs what is missing with apt-get, saying so first.
pub(crate) fn install(missing: &[Requirement]) -> anyhow::Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let mut packages: Vec<_> = missing.iter().map(|need| need.package).collect();
    packages.sort_unstable();
    packages.dedup();
    let list = packages.join(" ");
    if !found("apt-get") {
        bail!("there is no apt-get: install what this system calls {list}");
    }
    if !is_root() {
        return Err(NeedsRoot { packages: list }.into());
    }
    let mut programs: Vec<_> = missing.iter().map(|need| need.program).collect();
    programs.sort_unstable();
    programs.dedup();
    println!(
        "  missing here: {}; installing the packages {list} with apt-get",
        programs.join(", ")
    );
    let started = Instant::now();
    report::begin("packages");
    let done = apt_get(&packages);
    let how = if done.is_ok() { "installed" } else { "failed" };
    report::line("packages", how, started.elapsed());
    done.with_context(|| format!("failed to install {list}"))
}

/// The package that another depends on and whose name begins so.
pub(crate) fn dependency(package: &str, prefix: &str) -> anyhow::Result<String> {
    let dependencies =
        with_fresh_lists(|| command::run(Command::new("apt-cache").args(["depends", package])))?;
    let mut names = dependencies
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "));
    names
        .find(|name| name.starts_with(prefix))
        .map(str::to_owned)
        .with_context(|| format!("{package} depends on no {prefix}*"))
}

/// Downloads packages into a folder, without installing them.
fn download(packages: &[&str], folder: &Path) -> anyhow::Result<()> {
    with_fresh_lists(|| {
        let mut apt = Command::new("apt-get");
        command::run(apt.current_dir(folder).arg("download").args(packages))
    })
    .map(|_| ())
    .with_context(|| format!("failed to download {}", packages.join(" ")))
}

/// Downloads packages into one folder and unpacks them into another, without installing them.
pub(crate) fn unpack(packages: &[&str], archives: &Path, into: &Path) -> anyhow::Result<()> {
    download(packages, archives)?;
    for archive in list(archives)? {
        let mut extract = Command::new("dpkg-deb");
        command::run(extract.arg("--extract").arg(archive).arg(into))?;
    }
    Ok(())
}

/// What is in a folder, in the order of the names.
pub(crate) fn list(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

fn apt_get(packages: &[&str]) -> anyhow::Result<()> {
    with_fresh_lists(|| {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        command::run(apt.args(INSTALL).args(packages))
    })
    .map(|_| ())
}

/// The package lists of a fresh machine are empty or old: look again only when it fails.
fn with_fresh_lists(work: impl Fn() -> cluster::Result<String>) -> anyhow::Result<String> {
    match work() {
        Ok(said) => Ok(said),
        Err(_) => {
            command::run(Command::new("apt-get").arg("update"))
                .context("failed to update the package lists")?;
            Ok(work()?)
        }
    }
}
