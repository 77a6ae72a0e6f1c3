//! The transport against the real kernel: a small file system in memory is mounted in a mount
//! namespace of this program's own, so that no mount outlives it. Needs root, `/dev/fuse` and
//! `unshare`; where they are not, every test counts as ignored, with the reason.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "test harness, and its own runner"
)]

mod caches;
mod content;
mod memory;
mod mounted;
mod names;
mod processes;
mod rates;
mod tree;

use std::process::{Child, Command, ExitCode};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal};

type Test = (&'static str, fn());

/// Names a list of tests as the functions are called.
macro_rules! tests {
    ($($module:ident::$name:ident),* $(,)?) => {
        [$((stringify!($name), $module::$name as fn())),*]
    };
}

const TESTS: [Test; 19] = tests![
    content::files_of_any_size_and_offset_read_back_what_was_written,
    content::a_write_comes_whole_up_to_the_limit,
    content::readers_see_what_writers_have_written,
    content::a_file_is_cut_off_and_filled_up,
    content::a_file_without_a_name_is_there_until_it_is_closed,
    names::names_that_are_there_and_are_not_get_their_errors,
    names::a_rename_replaces_exchanges_or_refuses,
    names::links_lead_where_they_were_made,
    names::a_list_of_ten_thousand_names_is_complete,
    names::statfs_tells_what_the_file_system_says,
    caches::a_notification_makes_a_change_elsewhere_visible,
    caches::a_file_that_is_opened_again_shows_a_change_elsewhere,
    processes::a_panic_or_a_dropped_request_is_eio_and_the_mount_goes_on,
    processes::an_interrupt_names_the_request_that_a_program_waits_for,
    processes::a_mount_whose_process_died_is_dead_and_can_be_detached,
    processes::a_successor_answers_what_was_read_and_programs_see_no_error,
    processes::processes_that_are_killed_again_and_again_are_not_noticed,
    processes::a_mount_is_told_from_nothing_and_from_somebody_elses,
    rates::rates,
];

/// Where the kernel shows connections, and lets them be aborted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// Ten times what all tests take.
const LIMIT: Duration = Duration::from_secs(240);
/// Set for this program in its own mount namespace.
const NAMESPACE: &str = "FUSE_TEST_NAMESPACE";

fn main() -> ExitCode {
    if let Some(role) = processes::role() {
        return role;
    }
    let inside = std::env::var_os(NAMESPACE).is_some();
    match missing() {
        Some(missing) => {
            let ignored = |(name, _): Test| (name.to_owned(), Err::<fn(), _>(missing.clone()));
            sim::run_tests(TESTS.map(ignored))
        }
        None if inside => {
            std::fs::create_dir_all(CONNECTIONS).ok();
            let no_flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount("fusectl", CONNECTIONS, "fusectl", no_flags, None).unwrap();
            // Nobody waits for the results any more then.
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
            sim::run_tests(TESTS.map(|(name, test)| (name.to_owned(), Ok(test))))
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
