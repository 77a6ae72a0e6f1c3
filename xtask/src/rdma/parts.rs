//! What the guest is made of: a kernel with its modules and the verbs libraries, from Debian packages that are
//! unpacked into the cache and never installed. Kept until the lists here change.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use ::cluster::image::short_key;
use ::cluster::{StepOutcome, paths};
use anyhow::{Context as _, Result};

use crate::images::VERBS_PACKAGES;
use crate::packages::list;
use crate::{packages, report};

/// Names the kernel's own package in its dependencies.
const KERNEL: &str = "linux-image-amd64";
/// In this order. Without crc32_generic no rxe device can be made: its driver asks for the checksum by name.
const MODULES: [&str; 10] = [
    "net/llc/llc",
    "net/802/stp",
    "net/bridge/bridge",
    "drivers/net/veth",
    "crypto/crc32_generic",
    "net/ipv4/udp_tunnel",
    "net/ipv6/ip6_udp_tunnel",
    "drivers/infiniband/core/ib_core",
    "drivers/infiniband/core/ib_uverbs",
    "drivers/infiniband/sw/rxe/rdma_rxe",
];
/// The files of the libraries, whatever their version and folder.
const FILES: [&str; 4] = [
    "libibverbs.so.1",
    "libnl-3.so.200",
    "libnl-route-3.so.200",
    "librxe-",
];

/// The parts, in the cache.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) kernel: PathBuf,
    /// A folder of modules, to be loaded in the order of their names.
    pub(super) modules: PathBuf,
    /// A folder of libraries.
    pub(super) libraries: PathBuf,
}

/// Downloads and unpacks what is not in the cache.
pub(super) fn make() -> Result<Parts> {
    let started = Instant::now();
    report::begin("guest's parts");
    let base = paths::cache()?.join("rdma");
    fs::create_dir_all(&base).context("failed to make the guest's cache")?;
    // One at a time: another would only make the same.
    let lock = File::open(&base).context("failed to open the guest's cache")?;
    lock.lock().context("failed to lock the guest's cache")?;
    let recipe = format!("{KERNEL} {VERBS_PACKAGES:?} {MODULES:?} {FILES:?}");
    let folder = base.join(short_key(recipe.as_bytes())?);
    let outcome = if folder.exists() {
        StepOutcome::Cached
    } else {
        // Made aside and moved when whole.
        let fresh = base.join("new");
        if fresh.exists() {
            fs::remove_dir_all(&fresh).context("failed to remove a broken download")?;
        }
        fs::create_dir_all(&fresh).context("failed to make a folder for the download")?;
        fill(&fresh)?;
        fs::rename(&fresh, &folder).context("failed to keep the guest's parts")?;
        StepOutcome::Built
    };
    report::line("guest's parts", outcome, started.elapsed());
    Ok(Parts {
        kernel: folder.join("vmlinuz"),
        modules: folder.join("modules"),
        libraries: folder.join("libraries"),
    })
}

fn fill(folder: &Path) -> Result<()> {
    let kernel = packages::dependency(KERNEL, "linux-image-")?;
    let packages: Vec<_> = VERBS_PACKAGES
        .into_iter()
        .chain([kernel.as_str()])
        .collect();
    let (archives, whole) = (folder.join("archives"), folder.join("whole"));
    fs::create_dir(&archives).context("failed to make a folder for packages")?;
    packages::unpack(&packages, &archives, &whole)?;
    let release = kernel.trim_start_matches("linux-image-");
    keep(
        &whole.join(format!("boot/vmlinuz-{release}")),
        &folder.join("vmlinuz"),
    )?;
    let modules = folder.join("modules");
    fs::create_dir(&modules).context("failed to make a folder for modules")?;
    for (number, module) in MODULES.iter().enumerate() {
        let from = whole.join(format!("lib/modules/{release}/kernel/{module}.ko"));
        let name = module.rsplit('/').next().unwrap_or(module);
        keep(&from, &modules.join(format!("{number:02}-{name}.ko")))?;
    }
    let libraries = folder.join("libraries");
    fs::create_dir(&libraries).context("failed to make a folder for libraries")?;
    for name in FILES {
        let found = find(&whole, name)?
            .with_context(|| format!("there is no {name}* in {}", VERBS_PACKAGES.join(", ")))?;
        let own = found.file_name().unwrap_or_default();
        keep(&found, &libraries.join(own))?;
    }
    for rest in [archives, whole] {
        fs::remove_dir_all(rest).context("failed to remove what is not needed of the packages")?;
    }
    Ok(())
}

/// Copies a file out of the packages, following links.
fn keep(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(|_| ())
        .with_context(|| format!("failed to keep {} of the packages", from.display()))
}

/// A file below a folder whose name begins so.
fn find(folder: &Path, name: &str) -> Result<Option<PathBuf>> {
    for path in list(folder)? {
        let own = path.file_name().unwrap_or_default().to_string_lossy();
        if own.starts_with(name) && own.contains(".so") {
            return Ok(Some(path));
        }
        if path.is_dir()
            && !path.is_symlink()
            && let Some(found) = find(&path, name)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
