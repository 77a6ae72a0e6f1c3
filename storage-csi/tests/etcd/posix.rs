//! What others test file systems with. `cargo xtask posix` installs both programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::start_cell;

/// What is offered beyond what POSIX asks of everybody. posix_fallocate(3) is not: the C library writes zeros instead.
const FEATURES: &str = "[features]\nutimensat = {}\nutime_now = {}\n";
/// Users of every Debian, and how long a clock takes to go on.
const SETTINGS: &str = "[settings]\nnaptime = 0.01\nallow_remount = false\n\
    [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n";
/// One file of 5 MB, in pieces of up to 300 KB.
const FSX: &str = "flen = 5000000\n[opsize]\nmax = 300000\n";

/// A program that `cargo xtask posix` installs, or why it is not here.
pub(crate) fn program(name: &str) -> Result<PathBuf, String> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let path = cache.or_else(home).unwrap_or_default();
    let path = path.join("fireflyer/posix/bin").join(name);
    let missing = || format!("{name} is not installed: run `cargo xtask posix`");
    path.is_file().then_some(path).ok_or_else(missing)
}

/// Names, permissions, links, times and errors, as POSIX has them.
pub(crate) fn posix_pjdfstest_is_clean_for_what_is_offered(etcd: &Path) {
    let cell = start_cell(etcd);
    let mounted = cell.mount("one", "volume");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("pjdfstest.toml");
    std::fs::write(&config, format!("{FEATURES}{SETTINGS}")).unwrap();
    let mut command = Command::new(program("pjdfstest").unwrap());
    command
        .env("RUST_BACKTRACE", "0")
        .arg("-c")
        .arg(&config)
        .arg("-p")
        .arg(&mounted.at);
    let output = command.current_dir("/").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let failed: Vec<&str> = text
        .lines()
        .filter(|line| line.ends_with("FAILED"))
        .collect();
    let summary = text
        .lines()
        .find(|line| line.starts_with("Summary"))
        .unwrap_or_default();
    eprintln!("pjdfstest: {summary}");
    assert!(
        summary.contains(" 0 failed"),
        "{summary}\n{}",
        failed.join("\n")
    );
}

/// Random reads, writes, truncations and maps of one file, which is read back each time.
pub(crate) fn posix_fsx_finds_no_wrong_byte(etcd: &Path) {
    let cell = start_cell(etcd);
    let mounted = cell.mount("one", "volume");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("fsx.toml");
    std::fs::write(&config, FSX).unwrap();
    for seed in ["1", "2", "3"] {
        let mut command = Command::new(program("fsx").unwrap());
        command
            .args(["-N", "1000", "-S", seed, "-f"])
            .arg(&config)
            .arg("-P")
            .arg(folder.path());
        command
            .arg(mounted.at.join(format!("file-{seed}")))
            .current_dir("/");
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "seed {seed}: {text}");
    }
}
