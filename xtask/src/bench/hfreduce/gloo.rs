//! The rival Gloo: PyTorch in the trainer's root, a process a rank, in the same namespaces as our nodes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use ::cluster::prerequisites;
use anyhow::{Context as _, Result};

use super::case::Shape;
use super::conductor::Conductor;
use super::gang::Gang;
use super::network::{INTERFACE, Network};
use crate::images::trainer;
use crate::{packages, python};

/// Mounts what the root needs, then starts the ranks in it. Arguments: root, conductor's folder, program, and the
/// program's. Processes keep their numbers, by which their processor time is found.
const ENTER: &str = r#"
set -e
root=$1 folder=$2 program=$3; shift 3
for mount in dev proc tmp; do mkdir -p "$root/$mount"; done
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mkdir "$root/tmp/bench"; mount --bind "$folder" "$root/tmp/bench"
exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 OMP_NUM_THREADS=1 \
  PYTHONDONTWRITEBYTECODE=1 python3 "/tmp/bench/$program" /tmp/bench/conductor.sock "$@"
"#;

/// The trainer's root, made where it is missing.
pub(super) fn root() -> Result<PathBuf> {
    packages::install(&prerequisites::missing_for_images())?;
    packages::install(&prerequisites::missing_for_trainer())?;
    python::unpacked(&trainer::base()?)
}

pub(super) fn start(root: &Path, network: &Network, shape: Shape) -> Result<Gang> {
    let mut conductor = Conductor::new()?;
    let nodes = network.nodes.get(..shape.nodes).context("too few nodes")?;
    let first = nodes.first().context("no nodes")?;
    conductor
        .folder
        .write("gloo.py", include_str!("programs/gloo.py"))?;
    let mut ranks = Command::new("unshare");
    ranks
        .args(["--mount", "bash", "-c", ENTER, "gloo"])
        .arg(root);
    ranks.arg(&conductor.folder.path).arg("gloo.py");
    ranks.arg(format!("{}:29400", first.address)).arg(INTERFACE);
    ranks.arg(shape.procs.to_string());
    ranks.args(nodes.iter().map(super::network::Namespace::file));
    conductor.start(&ranks)?;
    conductor.gather(shape.world(), BTreeSet::new())
}
