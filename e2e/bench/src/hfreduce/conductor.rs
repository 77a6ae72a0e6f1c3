//! The beginning of a gang: a socket, the processes, and the ranks that connect and say who they are.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::hfreduce::gang::Gang;
use crate::process::{Folder, Process};

/// A gang that needs longer to come up never does: 32 times PyTorch on two cores takes a while.
const START: Duration = Duration::from_secs(180);
/// Longest silence of a rank: the slowest call, thirty times over.
const SILENCE: Duration = Duration::from_secs(60);

/// A rank that has connected.
#[derive(Debug)]
pub(crate) struct Rank {
    pub(crate) stream: BufReader<UnixStream>,
    pub(crate) process: u32,
}

impl Rank {
    pub(crate) fn say(&mut self, words: &str) -> Result<()> {
        self.stream
            .get_mut()
            .write_all(format!("{words}\n").as_bytes())
            .context("failed to reach a rank")
    }
}

/// A socket that ranks are about to connect to, and the folder that it is in.
#[derive(Debug)]
pub(crate) struct Conductor {
    listener: UnixListener,
    processes: Vec<Process>,
    pub(crate) folder: Folder,
}

impl Conductor {
    pub(crate) fn new() -> Result<Self> {
        let folder = Folder::new()?;
        let listener =
            UnixListener::bind(folder.socket()).context("failed to make the conductor's socket")?;
        listener
            .set_nonblocking(true)
            .context("failed to set up the conductor's socket")?;
        Ok(Self {
            listener,
            processes: Vec::new(),
            folder,
        })
    }

    /// Starts a process of the gang, which ends with it.
    pub(crate) fn start(&mut self, command: &Command) -> Result<u32> {
        let number = self.processes.len();
        let process = Process::start(command, self.folder.path.join(format!("{number}.log")))?;
        let id = process.child.id();
        self.processes.push(process);
        Ok(id)
    }

    /// Waits until `done`, or one of the processes has ended.
    pub(crate) fn wait(&mut self, what: &str, mut done: impl FnMut() -> bool) -> Result<()> {
        let start = Instant::now();
        while !done() {
            for process in &mut self.processes {
                if let Ok(Some(status)) = process.child.try_wait() {
                    bail!("{what}: a process ended with {status}: {}", process.said());
                }
            }
            ensure!(start.elapsed() < START, "{what}: not after {START:?}");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What a process has said so far; they are numbered as they were started.
    pub(crate) fn log(&self, number: usize) -> Result<String> {
        let process = self.processes.get(number).context("no such process")?;
        fs::read_to_string(&process.log).context("failed to read a log")
    }

    /// Waits for all ranks. `sidecars` are those of its processes that serve them.
    pub(crate) fn gather(mut self, world: usize, sidecars: BTreeSet<u32>) -> Result<Gang> {
        let mut seats: Vec<Option<Rank>> = (0..world).map(|_| None).collect();
        let listener = self
            .listener
            .try_clone()
            .context("failed to share a socket")?;
        let mut broken = None;
        self.wait("the ranks come up", || {
            while let Some(stream) = accept(&listener) {
                match greet(stream) {
                    Ok((rank, seated)) => {
                        if let Some(seat) = seats.get_mut(rank) {
                            *seat = Some(seated);
                        }
                    }
                    Err(error) => broken = Some(error),
                }
            }
            broken.is_some() || seats.iter().all(Option::is_some)
        })?;
        if let Some(error) = broken {
            return Err(error);
        }
        Ok(Gang::new(
            seats.into_iter().flatten().collect(),
            sidecars,
            self.processes,
            self.folder,
        ))
    }
}

fn accept(listener: &UnixListener) -> Option<UnixStream> {
    match listener.accept() {
        Ok((stream, _)) => Some(stream),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        // The next look will show it.
        Err(_) => None,
    }
}

fn greet(stream: UnixStream) -> Result<(usize, Rank)> {
    stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(SILENCE)))
        .context("failed to set up a rank's socket")?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream
        .read_line(&mut line)
        .context("failed to read a rank's answer")?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let (["rank", rank, process], true) = (&words[..], words.len() == 3) else {
        bail!("a rank introduced itself with {line:?}");
    };
    let process = process.parse().context("a rank is no process")?;
    Ok((
        rank.parse().context("a rank has no number")?,
        Rank { stream, process },
    ))
}
