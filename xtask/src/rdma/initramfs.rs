//! The guest's file system: this machine's busybox and iproute2, the modules and libraries, and the tests under the
//! very paths that they were built at, so that they find the programs of their packages.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use ::cluster::command;
use ::cluster::prerequisites::path_of;
use anyhow::{Context as _, Result};

use super::Program;
use super::parts::Parts;
use crate::images::libraries::linked;
use crate::packages;

const INIT: &str = include_str!("init.sh");
/// Where the verbs library looks for its providers, beside where the loader looks for libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const PROVIDERS: &str = "usr/lib/x86_64-linux-gnu/libibverbs";
const PROVIDER_LIST: &str = "etc/libibverbs.d";

/// Packs the archive that the kernel unpacks into its memory. Not compressed: the guest would take longer to
/// undo that than to read it.
pub(super) fn pack(
    parts: &Parts,
    programs: &[Program],
    tests: &[(PathBuf, String)],
    folder: &Path,
) -> Result<PathBuf> {
    let root = folder.join("root");
    for below in [
        "bin",
        "sbin",
        "dev",
        "proc",
        "sys",
        "tmp",
        "modules",
        LIBRARIES,
        PROVIDERS,
        PROVIDER_LIST,
    ] {
        make(&root.join(below))?;
    }
    let busybox = path_of("busybox").context("there is no busybox")?;
    copy(&busybox, &root.join("bin/busybox"))?;
    let mut needed = BTreeSet::new();
    for tool in ["ip", "rdma"] {
        let path = path_of(tool).with_context(|| format!("there is no {tool}"))?;
        copy(&path, &root.join("sbin").join(tool))?;
        needed.extend(linked(&path)?);
    }
    for Program { path, .. } in programs {
        let place = below(&root, path);
        make(place.parent().unwrap_or(&root))?;
        // What debuggers need is most of it, and the guest has to read all.
        let mut strip = Command::new("strip");
        strip.arg("--strip-debug").arg(path).arg("-o").arg(&place);
        command::run(&mut strip)?;
        needed.extend(linked(path)?);
    }
    // The loader itself is among them, at the path that programs name it by.
    for library in &needed {
        let place = below(&root, library);
        make(place.parent().unwrap_or(&root))?;
        copy(library, &place)?;
    }
    for module in packages::list(&parts.modules)? {
        copy(
            &module,
            &root
                .join("modules")
                .join(module.file_name().unwrap_or_default()),
        )?;
    }
    for library in packages::list(&parts.libraries)? {
        let name = library.file_name().unwrap_or_default();
        let is_provider = name.to_string_lossy().starts_with("librxe");
        let place = if is_provider { PROVIDERS } else { LIBRARIES };
        copy(&library, &root.join(place).join(name))?;
    }
    write(&root.join(PROVIDER_LIST).join("rxe.driver"), "driver rxe\n")?;
    let line = |(program, name): &(PathBuf, String)| format!("{} {name}\n", program.display());
    write(
        &root.join("tests"),
        &tests.iter().map(line).collect::<String>(),
    )?;
    write(&root.join("init"), INIT)?;
    fs::set_permissions(root.join("init"), Permissions::from_mode(0o755))
        .context("failed to make the guest's init a program")?;
    let archive = folder.join("initramfs");
    let mut cpio = Command::new("sh");
    cpio.args([
        "-c",
        r#"cd "$1" && find . | busybox cpio -o -H newc > "$2""#,
        "pack",
    ]);
    command::run(cpio.arg(&root).arg(&archive))?;
    Ok(archive)
}

/// A path of this machine's, below another root.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(|_| ())
        .with_context(|| format!("failed to copy {} into the guest", from.display()))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("failed to write {}", path.display()))
}
