//! Starts, signals and reaps processes. Each rank leads a process group of its own, so that all it
//! started can be ended with it.

use std::ffi::{OsStr, OsString};
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

/// Whether any process of a group is left.
pub(crate) fn group_exists(leader: Pid) -> bool {
    rustix::process::test_kill_process_group(leader) != Err(Errno::SRCH)
}
