//! `cargo xtask bench storage`: gets what the bench needs of this machine, then starts it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::cluster::paths;
use ::cluster::prerequisites::{self, is_root};
use ::cluster::tools::Tools;
use anyhow::{Context as _, Result, anyhow};

use crate::args::Args;
use crate::images::{self, trainer};
use crate::{child, cluster, packages, python};

/// The kernel gives mounts away there.
const FUSE: &str = "/dev/fuse";
/// The word of `--only` that needs the trainer's root.
const SAVES: &str = "torch.save";

pub(super) fn run(mut args: Args) -> Result<ExitCode> {
    let scratch = args.option("--scratch")?.map(PathBuf::from);
    let scratch =
        scratch.map_or_else(|| Ok(paths::cache()?.join("bench")), Ok::<_, anyhow::Error>)?;
    let only = args.clone().option("--only")?;
    let saves = only.is_none_or(|only| only.split(',').any(|word| word.trim() == SAVES));
    if !is_root() {
        return Ok(cluster::ask_for_root(
            "The nodes are network namespaces, which only root may make.",
        ));
    }
    let etcd = Tools::built().and_then(|tools| tools.program("etcd"));
    let etcd = match etcd {
        Ok(etcd) if Path::new(FUSE).exists() => etcd,
        Ok(_) => {
            println!("not run: {FUSE} is not here; load the module fuse");
            return Ok(ExitCode::SUCCESS);
        }
        Err(why) => {
            println!("not run: {why}");
            return Ok(ExitCode::SUCCESS);
        }
    };
    // Both as they are shipped or optimised: the bench's own programs are what ours are compared with.
    let storage_csi = images::program("storage-csi")?;
    let mut bench = child::command(images::program("bench")?);
    bench.arg("storage").args(args.rest());
    bench.arg("--scratch").arg(scratch);
    bench.arg("--storage-csi").arg(storage_csi);
    bench.arg("--etcd").arg(etcd);
    let trainer = match saves {
        true => trainer_root(),
        false => Err(anyhow!("not in this run")),
    };
    // What cannot be prepared is left out, with the reason.
    let trainer = match trainer {
        Ok(root) => root.display().to_string(),
        Err(why) => format!("!{why:#}"),
    };
    bench.arg(format!("--trainer={trainer}"));
    let status = bench.status().context("failed to start the bench")?;
    Ok(child::exit_code(status))
}

fn trainer_root() -> Result<PathBuf> {
    packages::install(&prerequisites::missing_for_images())?;
    packages::install(&prerequisites::missing_for_trainer())?;
    python::unpacked(&trainer::base()?)
}
