//! `cargo xtask gpu`: the archive of GPU checks. Owns what is in it and how it is packed; how its parts are built is in
//! `parts`, what a run without a GPU has to show in `stand_in`. The checks themselves are in `python/gpu`.

mod parts;
mod stand_in;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use ::cluster::{StepOutcome, command, prerequisites};
use anyhow::{Context as _, Result};
use serde_json::json;

use crate::args::Args;
use crate::r#gen::root;
use crate::{Verb, cluster, report};

pub(crate) const VERB: Verb = Verb {
    name: "gpu",
    about: "Pack the checks for a machine with a GPU, or run them on a stand-in",
    usage: "
Usage: cargo xtask gpu [--check]

Builds target/gpu/fireflyer-gpu-ARCHITECTURE.tar.gz: a static sidecar, the wheel for glibc 2.28 and later, the checks and a
command `run`. It needs no compiler, no network and no root where it is unpacked. See python/gpu/README.md.

  --check  unpack it in the trainer's root and run it there, on a stand-in for the driver and on the CPU. Needs root",
    run,
};

/// The checks, and what is beside them in the archive.
const CHECKS: &str = "python/gpu";

fn run(mut args: Args) -> Result<ExitCode> {
    let check = args.switch("--check");
    args.finish()?;
    if check && !prerequisites::is_root() {
        return Ok(cluster::ask_for_root(
            "The archive is tried in the trainer's root, which only root may enter.",
        ));
    }
    let folder = folder();
    fs::create_dir_all(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let archive = pack(&folder)?;
    println!("{}", archive.display());
    if check {
        stand_in::check(&folder, &archive)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Where all of it is built.
fn folder() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| root().join("target")).join("gpu")
}

/// Builds the parts and packs them.
fn pack(folder: &Path) -> Result<PathBuf> {
    let name = format!("fireflyer-gpu-{}", env::consts::ARCH);
    let stage = folder.join(&name);
    if stage.exists() {
        fs::remove_dir_all(&stage).context("failed to remove the last archive's files")?;
    }
    fs::create_dir(&stage).context("failed to make a folder for the archive")?;
    let copy = |from: &Path| -> Result<()> {
        let file = from.file_name().context("a part without a name")?;
        fs::copy(from, stage.join(file))
            .with_context(|| format!("failed to copy {}", from.display()))?;
        Ok(())
    };
    copy(&parts::sidecar(folder)?)?;
    copy(&parts::wheel(folder)?)?;
    fs::write(stage.join("kernels.ptx"), parts::kernels()?)
        .context("failed to write the kernels' text")?;
    let start = Instant::now();
    let about = json!({
        "architecture": env::consts::ARCH,
        "commit": commit()?,
        "version": env!("CARGO_PKG_VERSION"),
    });
    fs::write(stage.join("archive.json"), format!("{about}\n"))
        .context("failed to write what the archive is")?;
    let archive = folder.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--file"]).arg(&archive);
    // The same files give the same bytes.
    tar.args([
        "--sort=name",
        "--mtime=@0",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
    ]);
    tar.args(["--mode=u=rwX,go=rX", "--exclude=__pycache__"]);
    tar.arg("--directory").arg(folder).arg(&name);
    // The checks come from the clone, under the archive's name.
    tar.arg(format!("--transform=s,^\\./,{name}/,"));
    tar.arg("--directory").arg(root().join(CHECKS));
    tar.args(["./run", "./README.md", "./gpu_checks"]);
    command::run(&mut tar)?;
    report::line("gpu archive", StepOutcome::Built, start.elapsed());
    Ok(archive)
}

/// The commit that the archive is made of, with a word if files differ from it.
fn commit() -> Result<String> {
    let git = |words: &[&str]| command::run(Command::new("git").args(words).current_dir(root()));
    let hash = git(&["rev-parse", "--short=10", "HEAD"])?;
    let changed = !git(&["status", "--porcelain"])?.trim().is_empty();
    let mark = if changed { ", changed" } else { "" };
    Ok(format!("{}{mark}", hash.trim()))
}
