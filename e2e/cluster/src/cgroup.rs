//! The cgroup folders of a node's pods: on cgroup v1 one in each hierarchy, on v2 one. They are
//! made before the kubelet starts and must be gone before it starts again, or it spends three
//! seconds on each leftover.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{ErrorContext, Result};

const ROOT: &str = "/sys/fs/cgroup";
/// A folder stays busy until the last process in it is reaped.
const REMOVE_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);
/// The kernel's default.
pub(crate) const PERIOD_US: u32 = 100_000;

/// Which cgroups this machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V2,
}

/// v2 shows its controllers in the root folder; v1 has a folder for each hierarchy instead.
pub(crate) fn version() -> Version {
    if Path::new(ROOT).join("cgroup.controllers").exists() {
        Version::V2
    } else {
        Version::V1
    }
}

/// Makes the folder `name` in every hierarchy that a kubelet looks at.
pub(crate) fn create(name: &str) -> Result<()> {
    match version() {
        Version::V1 => create_v1(name),
        Version::V2 => create_v2(name),
    }
}

fn create_v1(name: &str) -> Result<()> {
    for hierarchy in [
        "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd",
    ] {
        let parent = Path::new(ROOT).join(hierarchy);
        if !parent.is_dir() {
            continue;
        }
        let folder = parent.join(name);
        make(&folder)?;
        // A cpuset takes no process while it is empty.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if hierarchy == "cpuset" {
                let whole = fs::read(parent.join(file));
                whole
                    .and_then(|whole| fs::write(folder.join(file), whole))
                    .context(|| format!("failed to copy {file} to {}", folder.display()))?;
            }
        }
    }
    Ok(())
}

fn create_v2(name: &str) -> Result<()> {
    let root = Path::new(ROOT);
    make(&root.join(name))?;
    // One by one, because one that the machine lacks would refuse the others. The kubelet names
    // what it misses.
    for controller in ["cpu", "cpuset", "memory", "pids", "io", "hugetlb"] {
        for folder in [root.to_path_buf(), root.join(name)] {
            let _ = fs::write(
                folder.join("cgroup.subtree_control"),
                format!("+{controller}"),
            );
        }
    }
    Ok(())
}

fn make(folder: &Path) -> Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(error).context(|| format!("failed to make the cgroup {}", folder.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Lets all that is below the folder have so many hundredths of a processor, or all.
pub(crate) fn limit_cpu(name: &str, percent: Option<u32>) -> Result<()> {
    let root = Path::new(ROOT);
    let quota = percent.map(|percent| percent * PERIOD_US / 100);
    let (file, text) = match version() {
        Version::V1 => (
            root.join("cpu").join(name).join("cpu.cfs_quota_us"),
            quota.map_or("-1".to_owned(), |quota| quota.to_string()),
        ),
        Version::V2 => (
            root.join(name).join("cpu.max"),
            quota.map_or("max".to_owned(), |quota| format!("{quota} {PERIOD_US}")),
        ),
    };
    fs::write(&file, text).context(|| format!("failed to write {}", file.display()))
}

/// Removes the folders whose name satisfies `ours`, with all below them, from every hierarchy.
/// Their processes must be dead.
pub(crate) fn remove(ours: impl Fn(&str) -> bool) -> Result<()> {
    let deadline = Instant::now() + REMOVE_LIMIT;
    // On v1 each hierarchy is a folder below the root (runc also uses `unified`); on v2 the root is
    // the hierarchy.
    let mut hierarchies = vec![PathBuf::from(ROOT)];
    hierarchies.extend(folders(Path::new(ROOT)));
    for hierarchy in hierarchies {
        for folder in folders(&hierarchy) {
            let name = folder
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            if name.is_some_and(|name| ours(&name)) {
                remove_tree(&folder, deadline)?;
            }
        }
    }
    Ok(())
}

fn remove_tree(folder: &Path, deadline: Instant) -> Result<()> {
    for child in folders(folder) {
        remove_tree(&child, deadline)?;
    }
    loop {
        match fs::remove_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) if Instant::now() < deadline => thread::sleep(POLL),
            result => {
                return result
                    .context(|| format!("failed to remove the cgroup {}", folder.display()));
            }
        }
    }
}

fn folders(parent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).collect()
}
