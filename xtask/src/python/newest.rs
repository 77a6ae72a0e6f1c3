//! The newest PyTorch that the wheel is tested with, beside the trainer's own.
//!
//! PyTorch's wheel is made for CUDA, and does not load without CUDA's libraries, which take several GB. Nothing calls them where there
//! is no GPU. So libraries of the same names take their place, whose functions do nothing but fail.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ::cluster::{command, paths};
use anyhow::{Context as _, Result, ensure};

use crate::images::trainer;

/// PyTorch and what it imports, at the versions that were tested.
const PACKAGES: [&str; 11] = [
    "torch==2.15.0",
    "filelock==4.3.1",
    "fsspec==2026.9.0",
    "jinja2==3.1.6",
    "MarkupSafe==3.0.4",
    "mpmath==1.4.1",
    "networkx==3.6.1",
    "numpy==2.4.6",
    "setuptools==84.2.1",
    "sympy==1.14.0",
    "typing-extensions==4.16.0",
];
/// For the Python of the trainer's root, whatever this machine's is.
const TARGET: [&str; 8] = [
    "--python-version",
    "3.13",
    "--platform",
    "manylinux_2_28_x86_64",
    "--platform",
    "manylinux2014_x86_64",
    "--platform",
    "any",
];
/// The folder beside the packages that has the libraries.
pub(super) const LIBRARIES: &str = "cuda";
/// How CUDA's libraries and the functions of each begin; the first that fits counts.
const CUDA: [(&str, &str); 15] = [
    ("libcublasLt.", "cublasLt"),
    ("libcublas.", "cublas"),
    ("libcudnn.", "cudnn"),
    ("libcufft.", "cufft"),
    ("libcufile.", "cuFile"),
    ("libcupti.", "cupti"),
    ("libcusolver.", "cusolver"),
    ("libcusparseLt.", "cusparseLt"),
    ("libcusparse.", "cusparse"),
    ("libnccl.", "nccl"),
    ("libnvrtc.", "nvrtc"),
    ("libnvshmem", "nvshmem"),
    ("libcudart.", "__cuda"),
    ("libcudart.", "cuda"),
    ("libcuda.", "cu"),
];

/// Functions by library and by the version that they are asked for with, which may be empty.
type Functions = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// The folder that Python finds PyTorch in; installed the first time.
pub(super) fn installed() -> Result<PathBuf> {
    let version = PACKAGES[0].replace("==", "-");
    let folder = paths::cache()?.join("trainer").join(version);
    super::made_once("newest pytorch", &folder, |partial| {
        let mut install = Command::new(trainer::pip()?);
        install.args(["install", "--quiet", "--no-deps", "--only-binary=:all:"]);
        install.args(TARGET).arg("--target").arg(partial);
        command::run(install.args(PACKAGES))?;
        replace_cuda(partial)
    })?;
    Ok(folder)
}

/// Makes the libraries that those of PyTorch look for.
fn replace_cuda(site: &Path) -> Result<()> {
    let folder = site.join("torch/lib");
    let (mut needed, mut undefined) = (BTreeSet::new(), BTreeSet::new());
    let entries = fs::read_dir(&folder).context("failed to list PyTorch's libraries")?;
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_library = path
            .file_name()
            .is_some_and(|name| name.to_string_lossy().contains(".so"));
        if !is_library {
            continue;
        }
        let dynamic = command::run(
            Command::new("readelf")
                .args(["--dynamic", "--wide"])
                .arg(&path),
        )?;
        needed.extend(dynamic.lines().filter_map(needed_in).map(str::to_owned));
        let arguments = ["--dynamic", "--undefined-only", "--with-symbol-versions"];
        let symbols = command::run(Command::new("nm").args(arguments).arg(&path))?;
        let last = symbols
            .lines()
            .filter_map(|line| line.split_whitespace().last());
        undefined.extend(last.map(str::to_owned));
    }
    let functions = assigned(&needed, &undefined);
    ensure!(
        !functions.is_empty(),
        "PyTorch's libraries need none of CUDA's"
    );
    let out = site.join(LIBRARIES);
    fs::create_dir(&out).context("failed to make a folder for libraries")?;
    for (library, by_version) in &functions {
        make(&out, library, by_version)?;
    }
    Ok(())
}

/// The library in a line such as ` 0x01 (NEEDED)  Shared library: [libcudart.so.13]`.
fn needed_in(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("(NEEDED)")?;
    let (_, name) = rest.split_once('[')?;
    name.strip_suffix(']')
}

/// Which of CUDA's libraries have to be there, with which functions.
fn assigned(needed: &BTreeSet<String>, undefined: &BTreeSet<String>) -> Functions {
    let is_cuda = |name: &&String| CUDA.iter().any(|(library, _)| name.starts_with(library));
    let mut functions: Functions = needed
        .iter()
        .filter(is_cuda)
        .map(|name| (name.clone(), BTreeMap::new()))
        .collect();
    for symbol in undefined {
        let (name, version) = symbol.split_once('@').unwrap_or((symbol, ""));
        let by_name = || {
            let (library, _) = CUDA.iter().find(|(_, start)| name.starts_with(start))?;
            needed
                .iter()
                .find(|needed| needed.starts_with(library))
                .cloned()
        };
        // Most libraries version their functions with their own names.
        let library = match functions.contains_key(version) {
            true => Some(version.to_owned()),
            false => by_name(),
        };
        let versions = library.and_then(|library| functions.get_mut(&library));
        if let Some(versions) = versions {
            let names = versions.entry(version.to_owned()).or_default();
            names.insert(name.to_owned());
        }
    }
    functions
}

/// Links one library.
fn make(out: &Path, library: &str, by_version: &BTreeMap<String, BTreeSet<String>>) -> Result<()> {
    // An error of every one of CUDA's interfaces. The first line: the stack is not executable.
    let mut code = ".section .note.GNU-stack,\"\",@progbits\n.text\n".to_owned();
    let mut versions = String::new();
    for (version, names) in by_version {
        for name in names {
            writeln!(
                code,
                ".globl {name}\n.type {name},@function\n{name}: mov $100,%eax\nret"
            )?;
        }
        if !version.is_empty() {
            let names: Vec<_> = names.iter().map(String::as_str).collect();
            writeln!(versions, "{version} {{ global: {}; }};", names.join("; "))?;
        }
    }
    let (source, script) = (out.join("library.s"), out.join("library.map"));
    fs::write(&source, code).context("failed to write a library's code")?;
    fs::write(&script, &versions).context("failed to write a library's versions")?;
    let mut link = Command::new("gcc");
    link.args(["-shared", "-nostdlib", "-fPIC"]);
    link.arg(format!("-Wl,-soname,{library}"));
    if !versions.is_empty() {
        link.arg(format!("-Wl,--version-script={}", script.display()));
    }
    command::run(link.arg("-o").arg(out.join(library)).arg(&source))?;
    fs::remove_file(source)
        .and_then(|()| fs::remove_file(script))
        .context("failed to clean up")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{assigned, needed_in};

    fn set(words: &[&str]) -> BTreeSet<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn functions_go_to_the_library_that_their_version_or_else_their_name_says() {
        let needed = set(&[
            "libc.so.6",
            "libcublas.so.13",
            "libcublasLt.so.13",
            "libcuda.so.1",
            "libnvshmem_host.so.3",
        ]);
        let undefined = set(&[
            "malloc@GLIBC_2.2.5",
            "cublasCreate@libcublas.so.13",
            "cublasLtCreate",
            "cuInit",
            "nvshmem_init@NVSHMEM",
            "cudnnCreate",
        ]);
        let functions = assigned(&needed, &undefined);
        let one = |library: &str, version: &str| {
            functions[library].get(version).cloned().unwrap_or_default()
        };
        assert_eq!(functions.len(), 4);
        assert_eq!(
            one("libcublas.so.13", "libcublas.so.13"),
            set(&["cublasCreate"])
        );
        assert_eq!(one("libcublasLt.so.13", ""), set(&["cublasLtCreate"]));
        assert_eq!(one("libcuda.so.1", ""), set(&["cuInit"]));
        assert_eq!(
            one("libnvshmem_host.so.3", "NVSHMEM"),
            set(&["nvshmem_init"])
        );
    }

    #[test]
    fn the_libraries_that_one_needs_are_read() {
        let line = " 0x0000000000000001 (NEEDED)             Shared library: [libcudart.so.13]";
        assert_eq!(needed_in(line), Some("libcudart.so.13"));
        assert_eq!(
            needed_in(" 0x000000000000000e (SONAME)  Library soname: [libtorch.so]"),
            None
        );
    }
}
