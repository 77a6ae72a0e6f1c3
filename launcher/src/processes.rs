//! Starts, signals and reaps processes. Each rank leads a process group of its own, so that all it
//! started can be ended with it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{ChildStderr, ChildStdout, Command, Stdio};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions};

use crate::gang::Ending;

/// A rank that was started.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) pid: Pid,
    pub(crate) stdout: ChildStdout,
    pub(crate) stderr: ChildStderr,
}

/// Makes orphans of this container ours to reap, also where another process is its first one.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(
        rustix::process::getpid(),
    ))?)
}

/// Starts one rank.
pub(crate) fn start(
    program: &OsStr,
    arguments: &[OsString],
    environment: &[(&'static str, String)],
) -> io::Result<Started> {
    let mut child = Command::new(program)
        .args(arguments)
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (Some(pid), Some(stdout), Some(stderr)) = (pid, child.stdout.take(), child.stderr.take())
    else {
        return Err(io::Error::other("the child has no process id or no pipes"));
    };
    Ok(Started {
        pid,
        stdout,
        stderr,
    })
}

/// One child that has ended, rank or orphan; none when nobody has.
pub(crate) fn reap() -> Option<(Pid, Ending)> {
    loop {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) => {
                if let Some(code) = status.exit_status() {
                    return Some((pid, Ending::Code(code)));
                }
                if let Some(signal) = status.terminating_signal() {
                    return Some((pid, Ending::Signal(signal)));
                }
                // Stopped or continued: still there.
            }
            Err(Errno::INTR) => {}
            Ok(None) | Err(_) => return None,
        }
    }
}

/// Sends a signal to one process. That it is gone already is no error.
pub(crate) fn signal(pid: Pid, number: i32) {
    if let Some(signal) = Signal::from_named_raw(number) {
        let _gone = rustix::process::kill_process(pid, signal);
    }
}

/// Sends a signal to a whole process group. That it is gone already is no error.
pub(crate) fn signal_group(leader: Pid, signal: Signal) {
    let _gone = rustix::process::kill_process_group(leader, signal);
}

/// The processes of some groups that have a handler for a signal, so that it does not end them, as
/// the kernel shows them at this moment.
pub(crate) fn that_catch(number: i32, leaders: &[Pid]) -> Vec<Pid> {
    let leads = |group: i32| leaders.iter().any(|leader| leader.as_raw_pid() == group);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let catch = pids.filter(|pid: &i32| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}"));
        let group = read("stat").ok().and_then(|stat| group_of(&stat));
        group.is_some_and(leads) && read("status").is_ok_and(|status| catches(&status, number))
    });
    catch.filter_map(Pid::from_raw).collect()
}

/// The process group in the text of `/proc/PID/stat`. The name before it may hold anything.
fn group_of(stat: &str) -> Option<i32> {
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(2)?.parse().ok()
}

/// Says if a signal is caught, in the text of `/proc/PID/status`.
fn catches(status: &str, number: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let bit = number
        .checked_sub(1)
        .and_then(|bit| u32::try_from(bit).ok());
    let bit = bit.and_then(|bit| 1_u64.checked_shl(bit));
    mask.zip(bit).is_some_and(|(mask, bit)| mask & bit != 0)
}

/// Whether any process of a group is left.
pub(crate) fn group_exists(leader: Pid) -> bool {
    rustix::process::test_kill_process_group(leader) != Err(Errno::SRCH)
}
