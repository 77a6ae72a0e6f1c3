//! Processes that we started, known by pid and start time, so that a pid that the kernel gave to
//! somebody else is never taken for ours. Also finds the processes of a network namespace.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::command;
use crate::error::{Error, ErrorContext, Result};

/// How often we look again while we wait for a process to go.
const POLL: Duration = Duration::from_millis(20);

/// A process; later owners of its pid differ by the time it started (field 22 of
/// `/proc/PID/stat`, in clock ticks).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) start: u64,
}

impl Process {
    /// Looks up a process that is alive now.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        match read_stat(pid) {
            Some(stat) => Ok(Self {
                pid,
                start: stat.start,
            }),
            None => Err(Error::new(format!(
                "process {pid} ended as soon as it was started"
            ))),
        }
    }

    /// True while this very process lives; a zombie does not.
    pub(crate) fn alive(self) -> bool {
        read_stat(self.pid).is_some_and(|stat| stat.start == self.start && !stat.ended)
    }

    /// Sends a signal, unless the process is gone already.
    pub(crate) fn signal(self, signal: &str) -> Result<()> {
        if !self.alive() {
            return Ok(());
        }
        // The shell's own kill: there is no other in the standard library, and no unsafe code here.
        let script = format!("kill -{signal} {}", self.pid);
        match command::run(Command::new("sh").args(["-c", &script])) {
            Err(error) if self.alive() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The processes whose parent this is.
    pub(crate) fn children(self) -> Result<Vec<Self>> {
        let all = all()?;
        Ok(all
            .into_iter()
            .filter(|(_, stat)| stat.parent == self.pid)
            .map(|(process, _)| process)
            .collect())
    }
}

/// Kills processes for good and waits until the last is gone.
pub(crate) fn kill_all(processes: &[Process], limit: Duration) -> Result<()> {
    for process in processes {
        process.signal("KILL")?;
    }
    let deadline = Instant::now() + limit;
    loop {
        let left: Vec<_> = processes.iter().filter(|process| process.alive()).collect();
        if left.is_empty() {
            return Ok(());
        }
        if Instant::now() > deadline {
            let pids: Vec<_> = left.iter().map(|process| process.pid.to_string()).collect();
            let message = format!(
                "processes {} are alive {} s after SIGKILL",
                pids.join(", "),
                limit.as_secs()
            );
            return Err(Error::new(message));
        }
        thread::sleep(POLL);
    }
}

/// All processes inside the network namespace at `path`. Empty when there is no such namespace.
pub(crate) fn in_namespace(path: &Path) -> Result<Vec<(Process, String)>> {
    use std::os::unix::fs::MetadataExt;
    let Ok(namespace) = fs::metadata(path) else {
        return Ok(Vec::new());
    };
    let inside = |process: &Process| {
        fs::metadata(format!("/proc/{}/ns/net", process.pid))
            .is_ok_and(|net| (net.dev(), net.ino()) == (namespace.dev(), namespace.ino()))
    };
    let all = all()?.into_iter();
    Ok(all
        .filter(|(process, _)| inside(process))
        .map(|(process, stat)| (process, stat.program))
        .collect())
}

fn all() -> Result<Vec<(Process, Stat)>> {
    let mut found = Vec::new();
    let entries = fs::read_dir("/proc").context(|| "failed to list /proc".to_owned())?;
    for entry in entries.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        if let Some(stat) = read_stat(pid) {
            found.push((
                Process {
                    pid,
                    start: stat.start,
                },
                stat,
            ));
        }
    }
    Ok(found)
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    program: String,
    ended: bool,
    parent: u32,
    start: u64,
}

fn read_stat(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The program's name is in parentheses and may hold spaces and parentheses itself: fields are
/// counted after the last one.
fn parse_stat(text: &str) -> Option<Stat> {
    let (head, tail) = text.rsplit_once(')')?;
    let (_, program) = head.split_once('(')?;
    let fields: Vec<&str> = tail.split_whitespace().collect();
    Some(Stat {
        program: program.to_owned(),
        ended: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::{Process, Stat, kill_all, parse_stat};

    #[test]
    fn a_program_name_with_parentheses_does_not_shift_the_fields() {
        let text = "42 (a (b) c) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 1";
        let expected = Stat {
            program: "a (b) c".into(),
            ended: false,
            parent: 7,
            start: 98765,
        };
        assert_eq!(parse_stat(text), Some(expected));
        assert_eq!(parse_stat("42 (cut off"), None);
    }

    #[test]
    fn a_reused_pid_is_somebody_else() {
        let me = Process::of(std::process::id()).unwrap();
        assert!(me.alive());
        let earlier = Process {
            start: me.start - 1,
            ..me
        };
        assert!(!earlier.alive());
        // Would end this test if the start time were not looked at.
        earlier.signal("KILL").unwrap();
    }

    #[test]
    fn a_killed_process_counts_as_gone_while_it_is_a_zombie() {
        let mut child = Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(
            Process::of(std::process::id())
                .unwrap()
                .children()
                .unwrap()
                .contains(&process)
        );
        kill_all(&[process], Duration::from_secs(10)).unwrap();
        assert!(!process.alive());
        child.wait().unwrap();
    }
}
