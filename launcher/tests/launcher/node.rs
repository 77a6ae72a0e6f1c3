//! A node without a cluster: the folder that trainer and sidecar share, and the real launcher in
//! it.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use contract::OnPeerLoss;
use contract::run_dir::{Roster, RosterNode};
use contract::termination::{TERMINATION_LIMIT_BYTES, TerminationMessage};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(20);

/// A folder in place of `/run/fireflyer`, and the launcher that uses it.
pub(crate) struct Node {
    pub(crate) dir: TempDir,
    procs: u32,
    variables: Vec<(&'static str, &'static str)>,
}

impl Node {
    pub(crate) fn new(procs: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = |rank: u32| RosterNode {
            rank,
            name: format!("n{rank}"),
            zone: "a".to_owned(),
            address: "127.0.0.1".parse().unwrap(),
            port: 9404,
        };
        let roster = Roster {
            attempt: 1,
            epoch: 1,
            nodes: vec![node(0), node(1)],
            master_port: 29_500,
            on_peer_loss: OnPeerLoss::Restart,
        };
        roster.write(dir.path()).unwrap();
        Self {
            dir,
            procs,
            variables: Vec::new(),
        }
    }

    /// With this in the container's environment.
    pub(crate) fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts the launcher as the second node of two, with a shell script as the program.
    pub(crate) fn start(&self, script: &str) -> Running {
        self.start_program(&["sh", "-c", script])
    }

    pub(crate) fn start_program(&self, program: &[&str]) -> Running {
        let child = Command::new(env!("CARGO_BIN_EXE_launcher"))
            .arg("--run-dir")
            .arg(self.dir.path())
            .arg("--termination-log")
            .arg(self.path("termination-log"))
            .arg("--")
            .args(program)
            .env("FIREFLYER_ATTEMPT", "1")
            .env("FIREFLYER_NODES", "2")
            .env("FIREFLYER_NODE_RANK", "1")
            .env("FIREFLYER_PROCS_PER_NODE", self.procs.to_string())
            .env("DIR", self.dir.path())
            .envs(self.variables.iter().copied())
            .env_remove("OMP_NUM_THREADS")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Running {
            child,
            started: Instant::now(),
        }
    }

    pub(crate) fn message(&self) -> TerminationMessage {
        let bytes = fs::read(self.path("termination-log")).unwrap();
        assert!(
            bytes.len() <= TERMINATION_LIMIT_BYTES,
            "{} bytes",
            bytes.len()
        );
        TerminationMessage::parse(&bytes).unwrap()
    }

    pub(crate) fn wait_for(&self, name: &str) {
        wait_until(name, || self.path(name).exists());
    }
}

/// A launcher at work.
pub(crate) struct Running {
    pub(crate) child: Child,
    started: Instant,
}

impl Running {
    pub(crate) fn signal(&self, signal: Signal) {
        send(&self.child, signal);
    }

    pub(crate) fn end(self) -> (i32, Output, Duration) {
        let output = self.child.wait_with_output().unwrap();
        (
            output.status.code().unwrap(),
            output,
            self.started.elapsed(),
        )
    }
}

/// Waits for a condition, with a deadline.
pub(crate) fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(
            Instant::now() < deadline,
            "{what} did not happen within {DEADLINE:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal to a child.
pub(crate) fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Waits until no signal to a child is lost: until the thread runs that turns them into messages.
/// The kernel says a moment earlier that SIGTERM is caught, and the handler of that moment has
/// nobody to tell of it.
pub(crate) fn wait_until_it_listens(child: &Child) {
    let threads = format!("/proc/{}/task", child.id());
    wait_until("a thread `signals` is there", || {
        fs::read_dir(&threads).unwrap().flatten().any(|thread| {
            fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name == "signals\n")
        })
    });
}

/// A process as the kernel sees it: its id, its state, its parent.
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) state: char,
    pub(crate) parent: u32,
}

/// All processes.
pub(crate) fn processes() -> Vec<Process> {
    let process = |text: &str| {
        let (head, tail) = text.rsplit_once(") ")?;
        let mut fields = tail.split(' ');
        Some(Process {
            pid: head.split(' ').next()?.parse().ok()?,
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
        })
    };
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read_to_string(entry.unwrap().path().join("stat")).ok())
        .filter_map(|text| process(&text))
        .collect()
}
