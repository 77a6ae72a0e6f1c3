//! `cargo xtask posix`: what others test file systems with, on a volume of three services. Installs the programs; what
//! they have to say is judged in `storage-csi/tests/etcd`.

use std::process::ExitCode;

use anyhow::{Context as _, Result};
use cluster::paths;

use crate::args::Args;
use crate::r#gen::root;
use crate::{Verb, cargo, child};

pub(crate) const VERB: Verb = Verb {
    name: "posix",
    about: "Run pjdfstest and fsx on a mounted volume, without a cluster",
    usage: "
Usage: cargo xtask posix

Installs pjdfstest and fsx into the cache, starts a file system of processes on the loopback, and runs both on a mounted
volume. Needs root, and etcd: cargo xtask cluster tools. The first run compiles for some minutes.",
    run,
};

/// The programs at the versions whose findings are known.
const PROGRAMS: [&str; 2] = ["pjdfstest@0.2.2", "fsx@0.3.2"];

fn run(args: Args) -> Result<ExitCode> {
    args.finish()?;
    let folder = paths::cache()?.join("posix");
    let mut install = child::command(env!("CARGO"));
    install.args(["install", "--locked", "--root"]).arg(folder);
    cargo::run("pjdfstest, fsx", install.args(PROGRAMS))?;
    let words = [
        "test",
        "--package",
        "storage-csi",
        "--test",
        "etcd",
        "--",
        "posix_",
    ];
    let status = child::command(env!("CARGO"))
        .args(words)
        .current_dir(root())
        .status();
    match status.context("failed to start cargo")?.success() {
        true => Ok(ExitCode::SUCCESS),
        false => Ok(ExitCode::FAILURE),
    }
}
