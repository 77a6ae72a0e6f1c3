//! The programs in the archive: each runs where nothing but the kernel, a C library of 2018 or later and Python is given.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use ::cluster::image::host;
use ::cluster::{StepOutcome, command, paths};
use anyhow::{Context as _, Result, ensure};

use crate::r#gen::root;
use crate::images::{binaries, trainer};
use crate::python::{made_once, remove_partial};
use crate::{cargo, child, packages, report};

/// A C compiler that links for old C libraries, at the version that was tried.
const ZIG: &str = "ziglang==0.15.2";
/// What the wheel is made for, and the C library that has.
const COMPATIBILITY: &str = "manylinux_2_28";
const GLIBC: (u32, u32) = (2, 28);

/// The sidecar as a program that loads no library. In a folder of its own: images have one that loads RDMA's.
pub(super) fn sidecar(folder: &Path) -> Result<PathBuf> {
    const STEP: &str = "gpu sidecar";
    let start = Instant::now();
    report::begin(STEP);
    let target = folder.join("static");
    let mut build = child::command(env!("CARGO"));
    build.current_dir(root());
    build.args([
        "build",
        "--release",
        "--locked",
        "--package",
        "hfreduce-sidecar",
    ]);
    build.arg("--target-dir").arg(&target);
    binaries::link_statically(&mut build)?;
    cargo::run(STEP, &mut build)?;
    let program = target.join(host()?).join("release/hfreduce-sidecar");
    let headers = command::run(
        Command::new("readelf")
            .args(["--program-headers", "--wide"])
            .arg(&program),
    )?;
    ensure!(
        !headers.contains(" INTERP "),
        "{} is not static: it asks for a loader",
        program.display()
    );
    report::line(STEP, StepOutcome::Built, start.elapsed());
    Ok(program)
}

/// The wheel, which asks for no function that is younger than [`GLIBC`].
pub(super) fn wheel(folder: &Path) -> Result<PathBuf> {
    const STEP: &str = "gpu wheel";
    let maturin = trainer::pip()?.with_file_name("maturin");
    let zig = zig()?;
    let start = Instant::now();
    report::begin(STEP);
    let out = folder.join("wheel");
    remove_partial(&out)?;
    let mut build = child::command(maturin);
    build.current_dir(root());
    let path = env::var("PATH").unwrap_or_default();
    build.env("PATH", format!("{}:{path}", zig.display()));
    build.args([
        "build",
        "--release",
        "--locked",
        "--manifest-path",
        "python/Cargo.toml",
    ]);
    build.args([
        "--zig",
        "--compatibility",
        COMPATIBILITY,
        "--target",
        &host()?,
    ]);
    build.arg("--target-dir").arg(folder.join("old-libraries"));
    build.arg("--out").arg(&out);
    cargo::run(STEP, &mut build)?;
    let wheels = packages::list(&out)?;
    let [wheel] = wheels.as_slice() else {
        anyhow::bail!("maturin built {} wheels", wheels.len());
    };
    let name = wheel.file_name().unwrap_or_default().to_string_lossy();
    ensure!(
        name.contains("-abi3-") && name.contains(COMPATIBILITY),
        "maturin built {name}: not for every Python and {COMPATIBILITY}"
    );
    check_glibc(wheel, folder)?;
    report::line(STEP, StepOutcome::Built, start.elapsed());
    Ok(wheel.clone())
}

/// The text of our kernels.
pub(super) fn kernels() -> Result<String> {
    let example = ["--package", "hfreduce-client", "--example", "kernels"];
    cargo::build("gpu kernels", &example)?;
    let own = env::current_exe().context("failed to find this program's own path")?;
    Ok(command::run(&mut Command::new(
        own.with_file_name("examples").join("kernels"),
    ))?)
}

/// The folder that the compiler is in; installed the first time.
fn zig() -> Result<PathBuf> {
    let folder = paths::cache()?.join("zig").join(ZIG.replace("==", "-"));
    made_once("zig", &folder, |partial| {
        let mut install = Command::new(trainer::pip()?);
        install.args(["install", "--quiet", "--no-deps", "--only-binary=:all:"]);
        command::run(install.arg("--target").arg(partial).arg(ZIG))?;
        Ok(())
    })?;
    Ok(folder.join("ziglang"))
}

/// Refuses a wheel whose native module asks for a younger C library.
fn check_glibc(wheel: &Path, folder: &Path) -> Result<()> {
    let unpacked = folder.join("wheel.unpacked");
    remove_partial(&unpacked)?;
    let mut unpack = Command::new("python3");
    unpack.args(["-m", "zipfile", "--extract"]).arg(wheel);
    command::run(unpack.arg(&unpacked))?;
    let module = unpacked.join("fireflyer/_native.abi3.so");
    let symbols = command::run(
        Command::new("readelf")
            .args(["--dyn-syms", "--wide"])
            .arg(&module),
    )?;
    remove_partial(&unpacked)?;
    let newest = newest_glibc(&symbols);
    ensure!(
        newest.is_some_and(|newest| newest <= GLIBC),
        "the native module asks for glibc {newest:?}, which is not at most {GLIBC:?}"
    );
    Ok(())
}

/// The youngest version of glibc that functions are asked for with, such as `memcpy@GLIBC_2.14`.
fn newest_glibc(symbols: &str) -> Option<(u32, u32)> {
    symbols
        .split_whitespace()
        .filter_map(|word| {
            let (_, version) = word.split_once("@GLIBC_")?;
            let mut numbers = version.split('.').map(|number| number.parse().ok());
            Some((numbers.next()??, numbers.next()??))
        })
        .max()
}

#[cfg(test)]
mod tests {
    use super::newest_glibc;

    #[test]
    fn the_youngest_function_decides_which_glibc_a_library_needs() {
        let symbols = "
     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND memcpy@GLIBC_2.14 (2)
     2: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND gnu_get_libc_version@GLIBC_2.2.5 (3)
     3: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND PyInit@@PYTHON_3
     4: 0000000000000000     0 FUNC    WEAK   DEFAULT  UND statx@GLIBC_2.28 (4)";
        assert_eq!(newest_glibc(symbols), Some((2, 28)));
        assert_eq!(newest_glibc("no symbols"), None);
    }
}
