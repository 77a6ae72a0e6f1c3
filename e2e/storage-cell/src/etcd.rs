//! An etcd of one member in a folder of its own, which outlives kills and is gone at the end.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::process::{CellProcess, ProcessPlace};

/// How long one start may take on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The program that e2e/tools pins, or why it is not here.
pub fn etcd_program() -> Result<PathBuf, String> {
    let found = cluster::tools::Tools::built().and_then(|tools| tools.program("etcd"));
    found.map_err(|error| error.to_string())
}

/// A server. It is killed when this is dropped, and when the process that started it dies.
#[derive(Debug)]
pub struct Etcd {
    process: CellProcess,
    address: SocketAddr,
    _folder: TempDir,
}

impl Etcd {
    /// Starts one on loopback with these flags besides, and waits until it answers.
    #[must_use]
    pub fn start(program: &Path, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::start_at(&ProcessPlace::loopback(), program, folder, flags)
    }

    /// The same at a place, over a folder.
    #[must_use]
    pub fn start_at(place: &ProcessPlace, program: &Path, folder: TempDir, flags: &[&str]) -> Self {
        let [address, peers] = [place.free(), place.free()];
        let url = |address: SocketAddr| format!("http://{address}");
        let mut words: Vec<OsString> = Vec::new();
        for (flag, value) in [
            ("--listen-client-urls", url(address)),
            ("--advertise-client-urls", url(address)),
            ("--listen-peer-urls", url(peers)),
            ("--initial-advertise-peer-urls", url(peers)),
            ("--initial-cluster", format!("default={}", url(peers))),
            ("--log-level", "error".to_owned()),
        ] {
            words.extend([flag.into(), value.into()]);
        }
        words.extend(["--data-dir".into(), folder.path().join("etcd").into()]);
        words.extend(flags.iter().map(OsString::from));
        let log = folder.path().join("log");
        let mut etcd = Self {
            process: CellProcess::start(place, program, words, log),
            address,
            _folder: folder,
        };
        etcd.wait_until_it_answers();
        etcd
    }

    /// Ends it as a power cut ends a process, if it runs.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it over its folder, and waits until it answers.
    pub fn start_again(&mut self) {
        self.process.start_again();
        self.wait_until_it_answers();
    }

    fn wait_until_it_answers(&mut self) {
        let answers = || {
            self.process.check();
            let health = ask(self.address, "GET", "/health", "");
            Ok(health
                .is_some_and(|health| health.contains("\"true\""))
                .then_some(()))
        };
        cluster::until("etcd answers", START_LIMIT, answers).unwrap();
    }

    /// Where it answers.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as clients have it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its process.
    #[must_use]
    pub fn process(&self) -> &CellProcess {
        &self.process
    }
}

/// Asks over etcd's own gateway: the answer's text, with its header.
#[must_use]
pub fn ask(address: SocketAddr, verb: &str, path: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    let length = body.len();
    let request = format!(
        "{verb} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
