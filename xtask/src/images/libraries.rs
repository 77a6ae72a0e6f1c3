//! What the dynamic programs find in their image: the loader and the libraries that they are linked with, of this machine,
//! and those that they load where there is RDMA, from Debian packages that are unpacked into the cache and never
//! installed. Where there is no Debian mirror the image has none of the latter: its programs say so and do without.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use cluster::image::{Entry, short_key};
use cluster::prerequisites::found;
use cluster::{StepOutcome, command, paths};

use super::table::VERBS_PACKAGES;
use crate::{packages, report};

/// Where the library of verbs keeps its list of providers, and beside which folder of libraries they are.
const PROVIDER_LIST: &str = "etc/libibverbs.d";
const PROVIDERS: &str = "libibverbs";
/// The libraries themselves, as programs name them.
const LIBRARIES: [&str; 3] = ["libibverbs.so.1", "libnl-3.so.200", "libnl-route-3.so.200"];

/// What the program needs at the places where it looks.
pub(crate) fn of(program: &Path) -> anyhow::Result<Vec<Entry>> {
    let mut entries: Vec<Entry> = linked(program)?
        .into_iter()
        .map(|source| file(&source, &source))
        .collect();
    ensure!(
        !entries.is_empty(),
        "{} is linked with no library: it cannot load any",
        program.display()
    );
    if ["apt-get", "dpkg-deb"].into_iter().all(found) {
        let root = verbs()?;
        verbs_in(&root, &root, &mut entries)?;
    } else {
        println!("  without apt-get the image has no RDMA libraries: its programs use TCP");
    }
    Ok(entries)
}

fn file(path: &Path, source: &Path) -> Entry {
    Entry::File {
        path: path.display().to_string(),
        source: source.to_owned(),
        mode: 0o755,
    }
}

/// The libraries that a program is linked with, and its loader.
pub(crate) fn linked(program: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    Ok(paths_in(&command::run(Command::new("ldd").arg(program))?))
}

/// `libc.so.6 => /lib/libc.so.6 (0x7f…)`, or for the loader a path alone.
fn paths_in(ldd: &str) -> BTreeSet<PathBuf> {
    let words = ldd
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    words.map(PathBuf::from).collect()
}

/// The unpacked packages.
fn verbs() -> anyhow::Result<PathBuf> {
    let start = Instant::now();
    report::begin("RDMA libraries");
    let base = paths::cache()?.join("verbs");
    fs::create_dir_all(&base).context("failed to make the cache of RDMA libraries")?;
    // One at a time: another would only make the same.
    let lock = File::open(&base).context("failed to open the cache of RDMA libraries")?;
    lock.lock()
        .context("failed to lock the cache of RDMA libraries")?;
    let root = base.join(short_key(format!("{VERBS_PACKAGES:?}").as_bytes())?);
    let outcome = if root.exists() {
        StepOutcome::Cached
    } else {
        let (archives, fresh) = (base.join("archives"), base.join("new"));
        for folder in [&archives, &fresh] {
            if folder.exists() {
                fs::remove_dir_all(folder).context("failed to remove a broken download")?;
            }
            fs::create_dir(folder).context("failed to make a folder for the download")?;
        }
        packages::unpack(&VERBS_PACKAGES, &archives, &fresh)?;
        fs::remove_dir_all(&archives).context("failed to remove the packages")?;
        fs::rename(&fresh, &root).context("failed to keep the RDMA libraries")?;
        StepOutcome::Built
    };
    report::line("RDMA libraries", outcome, start.elapsed());
    Ok(root)
}

/// What of the packages is needed, below a folder of theirs.
fn verbs_in(root: &Path, folder: &Path, entries: &mut Vec<Entry>) -> anyhow::Result<()> {
    for source in packages::list(folder)? {
        let name = source.file_name().unwrap_or_default().to_string_lossy();
        let beside = folder.file_name().unwrap_or_default();
        let is_provider = beside == PROVIDERS && name.contains(".so");
        let is_listed = folder.ends_with(PROVIDER_LIST);
        if source.is_dir() && !source.is_symlink() {
            verbs_in(root, &source, entries)?;
        } else if LIBRARIES.contains(&&*name) || is_provider || is_listed {
            let below = source.strip_prefix(root).unwrap_or(&source);
            entries.push(file(&Path::new("/").join(below), &source));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::paths_in;

    #[test]
    fn libraries_and_the_loader_are_found_and_what_has_no_file_is_not() {
        let ldd = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f)\n\t/lib64/ld.so.2 (0x00007f)\n";
        let paths = ["/lib/libc.so.6", "/lib64/ld.so.2"].map(PathBuf::from);
        assert_eq!(paths_in(ldd), BTreeSet::from(paths));
        assert_eq!(paths_in("\tstatically linked\n"), BTreeSet::new());
    }
}
