//! Ranks in PyTorch: processes in the trainer's root, in the same namespaces as our nodes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::case::Shape;
use crate::conductor::Conductor;
use crate::network::{INTERFACE, Namespace, Network};

/// Mounts what the root needs, then starts the ranks in it. Arguments: root, folder of installed wheels or nothing,
/// conductor's folder, program, and the program's. Processes keep their numbers, by which their processor time is found.
const ENTER: &str = r#"
set -e
root=$1 site=$2 folder=$3; shift 3
for mount in dev proc tmp opt/site; do mkdir -p "$root/$mount"; done
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mkdir "$root/tmp/bench"; mount --bind "$folder" "$root/tmp/bench"
if [ -n "$site" ]; then mount --bind "$site" "$root/opt/site"; fi
cd "$root"
exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 OMP_NUM_THREADS=1 \
  PYTHONPATH=/opt/site PYTHONDONTWRITEBYTECODE=1 python3 "$@"
"#;

/// A program for the ranks: its name, its text, and the arguments before those that all have.
pub(crate) struct Program<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    pub(crate) arguments: &'a [&'a str],
}

/// Starts the process that forks the ranks.
pub(crate) fn start(
    conductor: &mut Conductor,
    (root, site): (&Path, Option<&Path>),
    network: &Network,
    shape: Shape,
    program: &Program<'_>,
) -> Result<()> {
    let nodes = network.nodes.get(..shape.nodes).context("too few nodes")?;
    let first = nodes.first().context("no nodes")?;
    let folder = &conductor.folder;
    folder.write(program.name, program.text)?;
    folder.write("ranks.py", include_str!("programs/ranks.py"))?;
    let mut ranks = Command::new("unshare");
    ranks
        .args(["--mount", "bash", "-c", ENTER, "ranks"])
        .arg(root);
    ranks.arg(site.unwrap_or(Path::new(""))).arg(&folder.path);
    ranks.arg(format!("/tmp/bench/{}", program.name));
    ranks
        .args(program.arguments)
        .arg("/tmp/bench/conductor.sock");
    ranks.arg(format!("{}:{}", first.address, network.port()));
    ranks.arg(INTERFACE);
    ranks.arg(shape.procs.to_string());
    ranks.args(nodes.iter().map(Namespace::file));
    conductor.start(&ranks).map(drop)
}
