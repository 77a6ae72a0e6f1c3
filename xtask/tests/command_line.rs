//! The program itself, as another user and on a machine that has never seen it.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise and says what it could not try"
)]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Output};

const XTASK: &str = env!("CARGO_BIN_EXE_xtask");

/// A folder of this test's own that everybody may look into.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("fireflyer-{name}-{}", process::id()));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        Self(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover in the folder for temporary files is no failure.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn is_root() -> bool {
    let root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        println!("not run: only root may become somebody else or take clusters down");
    }
    root
}

/// Runs the program as somebody without any rights, who finds other programs in `path`.
fn as_nobody(scratch: &Scratch, path: &Path, arguments: &[&str]) -> Output {
    // Where it was built may be closed to others.
    let program = scratch.0.join("xtask");
    if !program.exists() {
        fs::copy(XTASK, &program).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    Command::new("setpriv")
        .args(["--reuid", "65532", "--regid", "65532", "--clear-groups"])
        .args(["env", "HOME=/nonexistent"])
        .arg(format!("PATH={}", path.display()))
        .arg(program)
        .args(arguments)
        .current_dir("/")
        .output()
        .unwrap()
}

#[test]
fn without_root_it_prints_the_command_to_use_and_exits_with_2() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("nobody");
    for arguments in [
        &["cluster", "up", "--nodes", "3"][..],
        &["cluster", "down"],
        &["demo", "--kill-node"],
        &["test"],
        &["images", "--only", "trainer"],
        &["python"],
    ] {
        let output = as_nobody(&scratch, Path::new("/usr/bin:/bin"), arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        let command = format!("cargo xtask {}\n", arguments.join(" "));
        assert!(
            said.contains("  sudo -E env ") && said.contains(&command),
            "{arguments:?}: {said}"
        );
    }
}

#[test]
fn without_root_missing_packages_come_with_the_command_that_installs_them() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("packages");
    // It is enough that it is there.
    fs::write(scratch.0.join("apt-get"), "").unwrap();
    let output = as_nobody(&scratch, &scratch.0, &["test", "--packages"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let (_, list) = said
        .split_once("  sudo apt-get install --yes --no-install-recommends ")
        .unwrap_or_else(|| panic!("{said}"));
    let packages: Vec<&str> = list.split_whitespace().collect();
    assert!(
        packages.contains(&"openssl") && packages.contains(&"mmdebstrap"),
        "{said}"
    );
    // Each once.
    assert!(packages.is_sorted_by(|one, next| one < next), "{said}");
}

#[test]
fn down_of_a_cluster_that_never_was_leaves_no_folder() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new("never");
    let output = Command::new(XTASK)
        .args(["cluster", "down", "--name", "never-was"])
        .env("XDG_STATE_HOME", scratch.0.join("state"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("not there"),
        "{said}"
    );
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0);
}
