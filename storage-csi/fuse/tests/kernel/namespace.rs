//! Tests that mount, in a mount namespace of the program's own: it is started again in one. Other
//! packages' tests use this file, too.

use std::process::{Child, Command, ExitCode};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal};

/// A test, or why it cannot run.
pub(crate) type NamedTest = (String, Result<fn(), String>);

/// Where the kernel shows connections, and lets them be aborted.
pub(crate) const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// Ten times what all tests take.
const LIMIT: Duration = Duration::from_secs(240);
/// Set for this program in its own mount namespace.
const NAMESPACE: &str = "FUSE_TEST_NAMESPACE";

/// Runs tests there, in the order given. Where nothing can be mounted, each counts as ignored.
pub(crate) fn run(tests: Vec<NamedTest>) -> ExitCode {
    let inside = std::env::var_os(NAMESPACE).is_some();
    match missing() {
        Some(missing) => {
            let ignored = |(name, _): NamedTest| (name, Err::<fn(), _>(missing.clone()));
            sim::run_tests(tests.into_iter().map(ignored))
        }
        None if inside => {
            std::fs::create_dir_all(CONNECTIONS).ok();
            let no_flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount("fusectl", CONNECTIONS, "fusectl", no_flags, None).unwrap();
            // Nobody waits for the results any more then.
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
            sim::run_tests(tests)
        }
        None => match unshared().args(std::env::args_os().skip(1)).spawn() {
            Ok(tests) => watch(tests),
            Err(_) => ExitCode::FAILURE,
        },
    }
}

/// Waits for the tests in their namespace. A mount that waits for itself cannot be killed, only
/// aborted: after ten times as long as all tests take, its programs get their errors.
fn watch(mut tests: Child) -> ExitCode {
    let (root, pid) = (format!("/proc/{}", tests.id()), tests.id());
    let (ended, waits) = mpsc::channel::<()>();
    let watcher = thread::spawn(move || {
        if waits.recv_timeout(LIMIT) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        println!(
            "the tests against the kernel took longer than {LIMIT:?}: their mounts are aborted"
        );
        let mounts = std::fs::read_to_string(format!("{root}/mountinfo")).unwrap_or_default();
        let ours = mounts
            .lines()
            .filter(|line| line.contains(" fuse.fireflyer "));
        let devices = ours.filter_map(|line| line.split(' ').nth(2)?.split_once(':'));
        for (_, minor) in devices {
            std::fs::write(format!("{root}/root{CONNECTIONS}/{minor}/abort"), "1").ok();
        }
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            rustix::process::kill_process(pid, Signal::KILL).ok();
        }
    });
    let status = tests.wait();
    drop(ended);
    watcher.join().ok();
    match status {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) | Err(_) => ExitCode::FAILURE,
    }
}

/// This program in a mount namespace of its own.
fn unshared() -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "--"])
        .arg(std::env::current_exe().unwrap())
        .env(NAMESPACE, "1");
    command
}

/// What is missing for that on this machine; none if nothing is.
fn missing() -> Option<String> {
    if let Err(error) = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")
    {
        return Some(format!("/dev/fuse: {error}"));
    }
    match Command::new("unshare").args(["--mount", "true"]).output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            Some(format!("no mount namespace: {}", text.trim()))
        }
        Err(error) => Some(format!("unshare: {error}")),
    }
}
