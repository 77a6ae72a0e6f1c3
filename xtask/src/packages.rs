//! Debian packages that a task needs: installed when they are missing and we may, named when we may
//! not.

use std::process::Command;

use anyhow::{Context, bail};
use cluster::command;
use cluster::prerequisites::{Requirement, found};

/// Installs what is missing with apt-get, saying so first.
pub(crate) fn install(missing: &[Requirement]) -> anyhow::Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let mut packages: Vec<_> = missing.iter().map(|need| need.package).collect();
    packages.dedup();
    let programs: Vec<_> = missing.iter().map(|need| need.program).collect();
    let list = packages.join(" ");
    println!(
        "  missing here: {}; installing the packages {list} with apt-get",
        programs.join(", ")
    );
    if !found("apt-get") {
        bail!("there is no apt-get: install what this system calls {list}");
    }
    let install = || {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        apt.args(["install", "--yes", "--no-install-recommends"])
            .args(&packages);
        command::run(&mut apt)
    };
    // The package lists of a fresh machine are empty or old: look again only when it fails.
    if install().is_err() {
        command::run(Command::new("apt-get").arg("update"))
            .context("failed to update the package lists")?;
        install().with_context(|| format!("failed to install {list}"))?;
    }
    Ok(())
}
