//! Programs in the trainer's root: what is mounted there for them. Who starts them says what they do.

use std::path::Path;
use std::process::Command;

/// Mounts what the root needs, then starts Python in it. Arguments: root, folder of installed wheels or nothing, a folder of
/// the bench, and Python's. Processes keep their numbers, by which their processor time is found.
const ENTER: &str = r#"
set -e
root=$1 site=$2 folder=$3; shift 3
for mount in dev proc tmp opt/site; do mkdir -p "$root/$mount"; done
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mkdir "$root/tmp/bench"; mount --rbind "$folder" "$root/tmp/bench"
if [ -n "$site" ]; then mount --bind "$site" "$root/opt/site"; fi
cd "$root"
exec chroot "$root" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 OMP_NUM_THREADS=1 \
  PYTHONPATH=/opt/site PYTHONDONTWRITEBYTECODE=1 python3 "$@"
"#;

/// Where a program finds the folder of the bench.
pub(crate) const FOLDER: &str = "/tmp/bench";

/// Python in a root, with the folder at [`FOLDER`]. Its arguments are the caller's to add.
pub(crate) fn python(root: &Path, site: Option<&Path>, folder: &Path) -> Command {
    let mut python = Command::new("unshare");
    python.args(["--mount", "bash", "-c", ENTER, "trainer"]);
    python.arg(root).arg(site.unwrap_or(Path::new("")));
    python.arg(folder);
    python
}
