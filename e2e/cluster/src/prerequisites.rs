//! What the machine must have: the programs of Debian packages that the native cluster and the
//! images are made with. Only looks; installing is the caller's decision.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::forwarder;
use crate::kind;
use crate::state::NodeEngine;

/// A program and the Debian package that brings it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requirement {
    /// What is looked for in `$PATH` and in the folders of system programs.
    pub program: &'static str,
    /// What to install.
    pub package: &'static str,
}

const fn requirement(program: &'static str, package: &'static str) -> Requirement {
    Requirement { program, package }
}

const NATIVE: &[Requirement] = &[
    requirement("nsenter", "util-linux"),
    requirement("ip", "iproute2"),
    requirement("nft", "nftables"),
    requirement("runc", "runc"),
    requirement("openssl", "openssl"),
    requirement("sha256sum", "coreutils"),
    requirement("mount", "mount"),
    requirement("tar", "tar"),
];
const BUSYBOX: Requirement = requirement("busybox", "busybox-static");
const FORWARDER: Requirement = requirement("systemd-socket-proxyd", "systemd");

/// The packages that a cluster needs here and that are missing.
pub fn missing_for_cluster() -> Vec<Requirement> {
    if NodeEngine::here() == NodeEngine::Kind {
        return Vec::new();
    }
    let mut missing: Vec<_> = NATIVE
        .iter()
        .copied()
        .filter(|need| !found(need.program))
        .collect();
    if !found(BUSYBOX.program) {
        missing.push(BUSYBOX);
    }
    if forwarder::program().is_err() {
        missing.push(FORWARDER);
    }
    missing
}

/// The packages that images are made with and that are missing.
pub fn missing_for_images() -> Vec<Requirement> {
    [
        BUSYBOX,
        requirement("tar", "tar"),
        requirement("sha256sum", "coreutils"),
    ]
    .into_iter()
    .filter(|need| !found(need.program))
    .collect()
}

/// The packages that the trainer's image is made with besides, and that are missing.
pub fn missing_for_trainer() -> Vec<Requirement> {
    let mut missing: Vec<_> = [
        requirement("mmdebstrap", "mmdebstrap"),
        requirement("python3", "python3"),
    ]
    .into_iter()
    .filter(|need| !found(need.program))
    .collect();
    if !makes_environments() {
        missing.push(requirement("python3 -m venv", "python3-venv"));
    }
    // Other systems than Debian do not know its keys by themselves.
    if !Path::new("/usr/share/keyrings/debian-archive-keyring.gpg").exists() {
        missing.push(requirement(
            "debian-archive-keyring.gpg",
            "debian-archive-keyring",
        ));
    }
    missing
}

/// The packages that the guest with RDMA devices is made and run with, and that are missing.
pub fn missing_for_rdma() -> Vec<Requirement> {
    [
        BUSYBOX,
        requirement("ip", "iproute2"),
        requirement("rdma", "iproute2"),
        requirement("qemu-system-x86_64", "qemu-system-x86"),
        requirement("strip", "binutils"),
        requirement("sha256sum", "coreutils"),
    ]
    .into_iter()
    .filter(|need| !found(need.program))
    .collect()
}

/// The package that checks the spelling, if it is missing.
pub fn missing_for_lint() -> Vec<Requirement> {
    let codespell = requirement("codespell", "codespell");
    let missing = (!found(codespell.program)).then_some(codespell);
    missing.into_iter().collect()
}

/// Debian's python3 comes without what a virtual environment gets its pip from.
fn makes_environments() -> bool {
    Command::new("python3")
        .args(["-c", "import ensurepip, venv"])
        .output()
        .is_ok_and(|output| output.status.success())
}

/// True when bringing a cluster up needs root and we are not.
pub fn needs_root() -> bool {
    NodeEngine::here() == NodeEngine::Native && !is_root()
}

/// True when Docker answers and only kind is missing for a cluster of kind's.
pub fn lacks_only_kind() -> bool {
    !found("kind") && kind::docker_answers()
}

/// True when this process may make namespaces and mounts.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

/// True when `program` can be run.
pub fn found(program: &str) -> bool {
    path_of(program).is_some()
}

/// Where `program` is, in `$PATH` or the folders of system programs.
pub fn path_of(program: &str) -> Option<PathBuf> {
    let path = env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin"])
        .map(|folder| Path::new(folder).join(program))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::found;

    #[test]
    fn a_program_is_found_in_the_path() {
        assert!(found("sh"));
        assert!(!found("no-such-program"));
    }
}
