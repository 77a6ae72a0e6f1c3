//! `cargo xtask images`: builds the container images without a container engine and gives them to a cluster. What is in an
//! image says `images/table.rs`, from which the Containerfiles derive as well.

pub(crate) mod binaries;
mod containerfile;
pub(crate) mod libraries;
mod table;
pub(crate) mod trainer;

use std::collections::BTreeSet;
use std::fs;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use ::cluster::image::{self, release_folder};
use ::cluster::tools::Tools;
use ::cluster::{Cluster, Name, StepOutcome, prerequisites};
use anyhow::{Context, ensure};

use crate::args::{Args, Usage};
use crate::{Verb, cluster, packages, report};

pub(crate) use containerfile::write_all as containerfiles;
pub(crate) use table::VERBS_PACKAGES;
use table::{IMAGES, PUBLISHED};

pub(crate) const VERB: Verb = Verb {
    name: "images",
    about: "Build the container images, without a container engine",
    usage: USAGE,
    run,
};

const USAGE: &str = "
Usage: cargo xtask images [--only A,B,..] [--cluster NAME]
       cargo xtask images --base
       cargo xtask images --containerfiles [--check]

Builds release binaries, packs each with the libraries it needs into an image archive, and prints the
archives' sizes. An image whose content is in the cache is not built again. busybox and pause, for
smoke jobs and the cluster itself, are built too, and so are images that others publish, from programs
of `e2e/tools`.

  --only A,B,..     these images (all): operator, hfreduce-sidecar, device-plugin, validator, storage-csi, trainer,
                    etcd, csi-provisioner, busybox, pause
  --cluster NAME    give them to the nodes of that cluster
  --base            only the Debian root that the trainer's image is made of
  --containerfiles  write FOLDER/Containerfile of every image instead, for Docker and buildah
  --check           compare the Containerfiles, write nothing
";

/// What busybox weighs, which images of a shell alone hold, and some room.
const SHELL_MAX_MEGABYTES: u64 = 4;

/// An image in a file.
#[derive(Debug)]
pub(crate) struct Archive {
    pub(crate) path: PathBuf,
    bytes: u64,
}

fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    if args.switch("--containerfiles") {
        let check = args.switch("--check");
        args.finish()?;
        return containerfile::write_all(check);
    }
    let only = args.option("--only")?;
    let cluster = args.option("--cluster")?;
    let base = args.switch("--base");
    args.finish()?;
    let names: Vec<String> = match only {
        Some(only) => only.split(',').map(str::to_owned).collect(),
        None => all(),
    };
    if let Some(unknown) = names.iter().find(|name| !all().contains(name)) {
        return Err(Usage(format!("there is no image {unknown:?}")).into());
    }
    if cluster.is_some()
        && let Some(status) = cluster::refuse_without_root()
    {
        return Ok(status);
    }
    if !prerequisites::is_root() && (base || names.iter().any(|name| name == "trainer")) {
        return Ok(cluster::ask_for_root(
            "The trainer's image is a Debian root, which only root can make.",
        ));
    }
    if base {
        trainer::base()?;
        return Ok(ExitCode::SUCCESS);
    }
    let archives = build(&names)?;
    if let Some(cluster) = cluster {
        let cluster = Cluster::attach(&Name::new(&cluster)?)?;
        let paths: Vec<_> = archives.into_iter().map(|archive| archive.path).collect();
        cluster.import(&paths, &report::step)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The names of all images.
pub(crate) fn all() -> Vec<String> {
    let ours = IMAGES.iter().map(|image| image.name);
    let published = PUBLISHED.iter().map(|image| image.program.name());
    ours.chain(published)
        .chain(["trainer", "busybox", "pause"])
        .map(str::to_owned)
        .collect()
}

/// Builds these images, or finds them in the cache, and prints each with its size.
pub(crate) fn build(names: &[String]) -> anyhow::Result<Vec<Archive>> {
    let wanted = |name: &str| names.iter().any(|other| other == name);
    let recipes: Vec<_> = IMAGES.iter().filter(|image| wanted(image.name)).collect();
    let published = PUBLISHED.iter();
    let published: Vec<_> = published
        .filter(|image| wanted(image.program.name()))
        .collect();
    let mut missing = prerequisites::missing_for_images();
    if wanted("trainer") {
        missing.extend(prerequisites::missing_for_trainer());
    }
    packages::install(&missing)?;

    // The trainer's base waits for the network while the compiler works.
    let (folder, base) = thread::scope(|scope| {
        let base = wanted("trainer").then(|| scope.spawn(trainer::base));
        let folder = if recipes.is_empty() {
            release_folder().map_err(Into::into)
        } else {
            programs()
        };
        let base = base.map(|base| base.join().unwrap_or_else(|panic| resume_unwind(panic)));
        anyhow::Ok((folder?, base.transpose()?))
    })?;
    let mut images = Vec::new();
    for recipe in recipes {
        let libraries = match recipe.dynamic() {
            Some(binary) => libraries::of(&folder.join(binary.package))?,
            None => Vec::new(),
        };
        images.push((recipe.image(&folder, &libraries), recipe.max_megabytes));
    }
    if !published.is_empty() {
        let programs: Vec<_> = published.iter().map(|image| image.program).collect();
        let tools = Tools::build(&programs, &report::step)?;
        for recipe in published {
            images.push((recipe.image(&tools)?, recipe.max_megabytes));
        }
    }
    if wanted("busybox") {
        images.push((image::busybox()?, SHELL_MAX_MEGABYTES));
    }
    if wanted("pause") {
        images.push((image::pause()?, SHELL_MAX_MEGABYTES));
    }
    let mut archives = Vec::new();
    for (image, max_megabytes) in images {
        let archive = pack(image.name(), || Ok(image.build()?))?;
        ensure!(
            archive.bytes <= max_megabytes * 1_000_000,
            "{} weighs {} bytes, more than the {max_megabytes} MB of that image",
            image.name(),
            archive.bytes
        );
        archives.push(archive);
    }
    if let Some(base) = base {
        archives.push(pack("trainer", || trainer::build(&base))?);
    }
    Ok(archives)
}

/// Builds the programs of all images and returns their folder. Always all of them: cargo builds
/// shared dependencies once per set of packages.
pub(crate) fn programs() -> anyhow::Result<PathBuf> {
    let packages: BTreeSet<_> = IMAGES
        .iter()
        .flat_map(|image| image.binaries)
        .map(|b| b.package)
        .collect();
    binaries::build(&packages.into_iter().collect::<Vec<_>>())
}

/// Builds one program alone, as it is in its image, for who measures it and needs no other.
pub(crate) fn program(name: &str) -> anyhow::Result<PathBuf> {
    Ok(binaries::build(&[name])?.join(name))
}

/// Makes an archive and prints what became of it, how long it took and what it weighs.
fn pack(
    name: &str,
    make: impl FnOnce() -> anyhow::Result<(PathBuf, StepOutcome)>,
) -> anyhow::Result<Archive> {
    let start = Instant::now();
    let step = format!("image {name}");
    report::begin(&step);
    let (path, outcome) = make().with_context(|| format!("failed to build the {step}"))?;
    let bytes = fs::metadata(&path)
        .context("failed to look at the archive")?
        .len();
    report::line(&step, outcome, start.elapsed());
    println!(
        "  {:<34} {:>6.1} MiB",
        "",
        bytes as f64 / f64::from(1 << 20)
    );
    Ok(Archive { path, bytes })
}
