//! The forwarder that makes the API reachable from the machine's own network: systemd's socket proxy in the control
//! plane's namespace.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::control::{API_PORT, record};
use crate::error::{Error, ErrorContext, Result};
use crate::network;
use crate::node::Site;

/// Enough for every test at once; the program's own default is 256.
const CONNECTIONS: u16 = 2048;
/// `systemd-socket-proxyd` is in no one's PATH.
const FOLDERS: [&str; 2] = ["/usr/lib/systemd", "/lib/systemd"];
/// Gives the program its listener the way systemd does, and what else services get there. The signal of a broken pipe is
/// ignored: otherwise the first server or client that hangs up while the other one still sends ends the forwarder, without
/// a word. And a connection takes six descriptors, of which a shell's processes may have few.
const START: &str = "trap '' PIPE; ulimit -n \"$(ulimit -H -n)\"; exec 3<&0 </dev/null; \
                     exec env LISTEN_FDS=1 LISTEN_PID=$$ \"$@\"";

/// Forwards a free loopback port of the machine to the API server, and returns the port.
///
/// The listener is made here, in the machine's network, and handed down; the proxy itself runs in the control plane's
/// namespace. So the port is never anybody else's.
pub(crate) fn start(site: Site<'_>) -> Result<u16> {
    let doing = || "failed to listen on a loopback port".to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").context(doing)?;
    let port = listener.local_addr().context(doing)?.port();
    let inside = network::inside(&site.layout.control_namespace());
    let target = format!("127.0.0.1:{API_PORT}");
    let command = to(inside, &program()?, &target);
    record(
        site,
        "forwarder",
        &command,
        Stdio::from(OwnedFd::from(listener)),
    )?;
    Ok(port)
}

/// The program; in Debian's package `systemd`, but it needs no systemd to run.
pub(crate) fn program() -> Result<PathBuf> {
    FOLDERS
        .map(|folder| Path::new(folder).join("systemd-socket-proxyd"))
        .into_iter()
        .find(|path| path.exists())
        .ok_or_else(|| Error::new("there is no systemd-socket-proxyd: install the package systemd"))
}

/// A command that forwards the listener on its stdin, as a single process. `inside` runs what is added to it where the target can
/// be reached.
fn to(inside: Command, program: &Path, target: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", START, "sh"]);
    shell.arg(inside.get_program()).args(inside.get_args());
    shell.arg(program);
    shell.args([&format!("--connections-max={CONNECTIONS}"), target]);
    shell
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind, Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::process::Child;
    use std::time::Duration;

    use super::{Command, OwnedFd, Path, TcpListener, program, to};
    use crate::process::Process;

    /// Longer than anything here takes.
    const LIMIT: Duration = Duration::from_secs(20);

    /// A forwarder, its own address, and what it forwards to.
    struct Forwarder {
        child: Child,
        front: SocketAddr,
        behind: TcpListener,
    }

    impl Forwarder {
        fn start(program: &Path) -> Self {
            let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
            let (listener, behind) = (listen(), listen());
            let front = listener.local_addr().unwrap();
            let target = behind.local_addr().unwrap().to_string();
            let mut command = to(Command::new("env"), program, &target);
            let child = command.stdin(OwnedFd::from(listener)).spawn().unwrap();
            Self {
                child,
                front,
                behind,
            }
        }

        /// Both ends of a connection through it, which have exchanged a byte.
        fn connection(&self) -> (TcpStream, TcpStream) {
            let mut client = TcpStream::connect(self.front).unwrap();
            client.set_read_timeout(Some(LIMIT)).unwrap();
            client.write_all(b"?").unwrap();
            let (mut server, _) = self.behind.accept().unwrap();
            server.set_read_timeout(Some(LIMIT)).unwrap();
            let mut byte = [0];
            server.read_exact(&mut byte).unwrap();
            server.write_all(b"!").unwrap();
            client.read_exact(&mut byte).unwrap();
            (client, server)
        }
    }

    impl Drop for Forwarder {
        fn drop(&mut self) {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }

    // When a node dies the API server ends what it passed on to that node's kubelet.
    #[test]
    fn a_server_that_hangs_up_while_its_client_still_sends_does_not_end_the_forwarder() {
        let Ok(program) = program() else {
            eprintln!("not run: there is no systemd-socket-proxyd");
            return;
        };
        let mut forwarder = Forwarder::start(&program);
        let (mut client, server) = forwarder.connection();
        // It finds both at once: a server that has gone, and more for it than goes in one piece.
        let process = Process::of(forwarder.child.id()).unwrap();
        process.signal("STOP").unwrap();
        drop(server);
        client.set_nonblocking(true).unwrap();
        while client.write(&[0; 1 << 16]).is_ok() {}
        client.set_nonblocking(false).unwrap();
        process.signal("CONT").unwrap();
        // It hangs up on the client as well.
        let end = client.read(&mut [0; 1]);
        let reset = |error: Error| error.kind() == ErrorKind::ConnectionReset;
        assert!(end.map_or_else(reset, |count| count == 0));
        forwarder.connection();
        assert_eq!(forwarder.child.try_wait().unwrap(), None);
    }
}
