//! One process of the file system, and where it runs.

use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

/// The first port that is given out in namespaces, below those that kernels give out.
const FIRST_PORT: u16 = 20_000;

/// Where a process runs, and where the others reach it.
#[derive(Clone, Debug)]
pub struct ProcessPlace {
    /// Words before its program; they become the program.
    words: Vec<OsString>,
    address: IpAddr,
}

impl ProcessPlace {
    /// This process's own namespaces.
    #[must_use]
    pub fn loopback() -> Self {
        Self {
            words: Vec::new(),
            address: Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// A network namespace that nobody else uses, which these words enter, such as `nsenter --net=FILE`.
    #[must_use]
    pub fn namespace(words: Vec<OsString>, address: IpAddr) -> Self {
        Self { words, address }
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// An address at which nobody listens.
    pub(crate) fn free(&self) -> SocketAddr {
        static PORTS: AtomicU16 = AtomicU16::new(FIRST_PORT);
        if self.words.is_empty() {
            // Nobody else on this machine asks for a port by number.
            let listener = TcpListener::bind((self.address, 0)).unwrap();
            return listener.local_addr().unwrap();
        }
        SocketAddr::new(self.address, PORTS.fetch_add(1, Ordering::Relaxed))
    }
}

/// A process that is killed at the end, and when the thread that started it ends.
#[derive(Debug)]
pub struct CellProcess {
    words: Vec<OsString>,
    log: PathBuf,
    child: Option<Child>,
}

impl CellProcess {
    /// Starts a program with these words, which logs into a file of the folder.
    pub(crate) fn start(
        place: &ProcessPlace,
        program: &Path,
        words: Vec<OsString>,
        log: PathBuf,
    ) -> Self {
        let mut all: Vec<OsString> = ["--pdeathsig", "KILL"].map(OsString::from).into();
        all.extend(place.words.iter().cloned());
        all.push(program.into());
        all.extend(words);
        let mut process = Self {
            words: all,
            log,
            child: None,
        };
        process.start_again();
        process
    }

    /// Starts it as before.
    pub fn start_again(&mut self) {
        // setpriv becomes the program, so that the child's number is the program's.
        let mut command = Command::new("setpriv");
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log);
        let log = log.unwrap();
        command.env("NO_COLOR", "1").env("RUST_BACKTRACE", "0");
        command
            .args(&self.words)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    /// Ends it as a power cut ends a process, if it runs.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Its number, while it runs.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// An error if it has ended by itself: how, and what it said.
    pub(crate) fn check(&mut self) {
        let ended = self
            .child
            .as_mut()
            .and_then(|child| child.try_wait().unwrap());
        if let Some(status) = ended {
            panic!(
                "{} ended with {status}: {}",
                self.log.display(),
                self.said()
            );
        }
    }

    fn said(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let tail: Vec<&str> = text.lines().rev().take(15).collect();
        tail.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for CellProcess {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("{}: {}", self.log.display(), self.said());
        }
    }
}
