//! One child process: what it says on its standard output, and how it ends. Both are bounded: one
//! that takes too long, or says too much, is killed with all that it started.

use std::io::{self, Read as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::limits::OUTPUT_BYTES;

/// How often is looked whether a child is gone, which its output need not tell.
const TICK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};
/// How long a killed child may take to go. One that waits for a device in the kernel never does.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With an exit code.
    Code(i32),
    /// By a signal that nobody here sent.
    Signal(i32),
    /// It was killed after its time.
    Late(Duration),
    /// It was killed after its time, and is still there.
    Stuck(Duration),
    /// It was killed because it said too much.
    Talkative,
    /// It was killed because the whole run has to end.
    Interrupted,
}

/// What a child said, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) output: Vec<u8>,
    pub(crate) ending: Ending,
}

/// Runs a child to its end, which comes after `limit` at the latest, or once `stop` is set.
pub(crate) fn run(command: &mut Command, limit: Duration, stop: &AtomicBool) -> io::Result<Said> {
    let deadline = Instant::now() + limit;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let Some(mut stdout) = child.stdout.take() else {
        return Err(io::Error::other("the child has no pipe"));
    };
    let mut output = Vec::new();
    let mut open = true;
    let ending = loop {
        if let Some(status) = child.try_wait()? {
            // What it said before it went; others may hold the pipe open.
            while open && output.len() <= OUTPUT_BYTES && ready(&stdout, Some(&Timespec::default()))
            {
                open = read(&mut stdout, &mut output)?;
            }
            break match (status.code(), status.signal()) {
                _ if output.len() > OUTPUT_BYTES => Ending::Talkative,
                (Some(code), _) => Ending::Code(code),
                (None, signal) => Ending::Signal(signal.unwrap_or_default()),
            };
        }
        if stop.load(Ordering::Relaxed) {
            break Ending::Interrupted;
        }
        if Instant::now() >= deadline {
            break Ending::Late(limit);
        }
        if output.len() > OUTPUT_BYTES {
            break Ending::Talkative;
        }
        if open && ready(&stdout, Some(&TICK)) {
            open = read(&mut stdout, &mut output)?;
        } else if !open {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let stuck = !end(&mut child)? && ending == Ending::Late(limit);
    output.truncate(OUTPUT_BYTES);
    let ending = if stuck { Ending::Stuck(limit) } else { ending };
    Ok(Said { output, ending })
}

/// Whether there is something to read, or the end of it.
fn ready(stdout: &ChildStdout, timeout: Option<&Timespec>) -> bool {
    let mut fds = [PollFd::new(stdout, PollFlags::IN)];
    // A signal interrupts; then it is looked again.
    poll(&mut fds, timeout).is_ok_and(|count| count > 0)
}

/// Reads what is there; false at the end.
fn read(stdout: &mut ChildStdout, output: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    let count = stdout.read(&mut buffer)?;
    output.extend_from_slice(&buffer[..count]);
    Ok(count > 0)
}

/// Kills the child, if it is there, and all that it started; says whether it is gone.
fn end(child: &mut Child) -> io::Result<bool> {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _gone = kill_process_group(group, Signal::KILL);
    }
    let deadline = Instant::now() + KILL_PATIENCE;
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(script: &str, limit: Duration) -> Said {
        let mut command = Command::new("sh");
        run(command.args(["-c", script]), limit, &AtomicBool::default()).unwrap()
    }

    #[test]
    fn output_and_ending_of_a_child_are_known() {
        let long = Duration::from_secs(20);
        let well = said("echo a; echo b; exit 3", long);
        assert_eq!(
            (well.output.as_slice(), well.ending),
            (b"a\nb\n".as_slice(), Ending::Code(3))
        );
        assert_eq!(said("kill -SEGV $$", long).ending, Ending::Signal(11));
        // Its own child holds the pipe, which keeps nobody.
        assert_eq!(said("sleep 1000 & exit 0", long).ending, Ending::Code(0));
        // One that closes its output is waited for all the same.
        assert_eq!(said("exec >&-; exit 4", long).ending, Ending::Code(4));
    }

    #[test]
    fn a_child_that_hangs_or_talks_for_ever_is_killed() {
        let limit = Duration::from_millis(50);
        let late = said("echo before; sleep 1000", limit);
        assert_eq!(late.ending, Ending::Late(limit));
        let talk = said(
            "while :; do echo abcdefghijklmnopq; done",
            Duration::from_secs(20),
        );
        assert_eq!(talk.ending, Ending::Talkative);
        assert_eq!(talk.output.len(), OUTPUT_BYTES);
    }

    #[test]
    fn a_child_may_say_32_kib_and_is_killed_for_a_byte_more() {
        let long = Duration::from_secs(20);
        let most = said("head -c 32768 /dev/zero", long);
        assert_eq!((most.output.len(), most.ending), (32768, Ending::Code(0)));
        let more = said("head -c 32769 /dev/zero; sleep 1000", long);
        assert_eq!((more.output.len(), more.ending), (32768, Ending::Talkative));
    }

    #[test]
    fn a_stop_ends_the_child() {
        let mut command = Command::new("sleep");
        let said = run(
            command.arg("1000"),
            Duration::from_secs(1000),
            &AtomicBool::new(true),
        );
        assert_eq!(said.unwrap().ending, Ending::Interrupted);
    }
}
