//! An etcd of one member for tests: on loopback, in a folder of its own, which outlives kills and is gone at the end.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

/// How long one start may take on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// The program that e2e/tools pins, or why it is not here.
pub(crate) fn program() -> Result<PathBuf, String> {
    let found = cluster::tools::Tools::built().and_then(|tools| tools.program("etcd"));
    found.map_err(|error| error.to_string())
}

/// A server. It is killed when this is dropped, and when the test's process dies.
pub(crate) struct Etcd {
    folder: TempDir,
    words: Vec<OsString>,
    /// Where it answers, on loopback.
    pub(crate) port: u16,
    child: Option<Child>,
}

impl Etcd {
    /// Starts one with these flags besides, and waits until it answers.
    pub(crate) fn start(program: &Path, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Both are free now; nobody else on this machine asks for a port by number.
        let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let [port, peers] = [free(), free()].map(|free| free.local_addr().unwrap().port());
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut words: Vec<OsString> = vec!["--pdeathsig".into(), "KILL".into(), program.into()];
        for (flag, value) in [
            ("--listen-client-urls", url(port)),
            ("--advertise-client-urls", url(port)),
            ("--listen-peer-urls", url(peers)),
            ("--initial-advertise-peer-urls", url(peers)),
            ("--initial-cluster", format!("default={}", url(peers))),
            ("--log-level", "error".to_owned()),
        ] {
            words.extend([flag.into(), value.into()]);
        }
        words.extend(["--data-dir".into(), folder.path().join("etcd").into()]);
        words.extend(flags.iter().map(OsString::from));
        let mut etcd = Self {
            folder,
            words,
            port,
            child: None,
        };
        etcd.start_again();
        etcd
    }

    /// Ends it as a power cut ends a process, if it runs.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts it over its folder, and waits until it answers.
    pub(crate) fn start_again(&mut self) {
        // setpriv becomes etcd, so that the child's number is etcd's.
        let mut command = Command::new("setpriv");
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        command
            .args(&self.words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        self.child = Some(command.spawn().unwrap());
        let answers = || {
            let child = self.child.as_mut().unwrap();
            if let Some(status) = child.try_wait().unwrap() {
                let log = std::fs::read_to_string(self.folder.path().join("log"));
                panic!("etcd ended with {status}: {}", log.unwrap_or_default());
            }
            let health = ask(self.port, "GET", "/health", "");
            Ok(health
                .is_some_and(|health| health.contains("\"true\""))
                .then_some(()))
        };
        cluster::until("etcd answers", START_LIMIT, answers).unwrap();
    }

    /// Where it answers.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Asks over etcd's own gateway: the answer's text, with its header.
pub(crate) fn ask(port: u16, verb: &str, path: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    let length = body.len();
    let request = format!(
        "{verb} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}
