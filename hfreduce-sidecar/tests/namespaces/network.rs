//! Nodes as network namespaces, every two joined by a cable of their own, so that the counters of an interface
//! say what one pair of nodes exchanged. Namespaces and cables have no name outside and end with the processes
//! that hold them, so nothing is left behind, however the test ends.

use std::fs;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Nodes and the cables between them.
pub(crate) struct Network {
    namespaces: Vec<Namespace>,
}

/// A network namespace: that of a process which waits for the end of its input.
struct Namespace {
    holder: Child,
}

/// What is missing for namespaces on this machine; none if nothing is.
pub(crate) fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces need root".to_owned());
    }
    for (program, package) in [
        ("unshare", "util-linux"),
        ("nsenter", "util-linux"),
        ("ip", "iproute2"),
    ] {
        let tried = Command::new(program)
            .arg("-V")
            .stdout(Stdio::null())
            .status();
        if tried.is_err() {
            return Some(format!("there is no {program}; it comes with {package}"));
        }
    }
    let tried = Command::new("unshare").args(["--net", "true"]).output();
    match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// What is missing to throttle an interface; none if nothing is.
pub(crate) fn missing_throttle() -> Option<String> {
    let mut tried = Command::new("unshare");
    tried.args(["--net", "tc", "qdisc", "add", "dev", "lo", "root"]);
    tried.args(["tbf", "rate", "1mbit", "burst", "16kb", "latency", "1s"]);
    match tried.output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!(
            "no interface can be throttled: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

impl Network {
    /// Nodes of which every two are joined.
    pub(crate) fn mesh(nodes: usize) -> Self {
        let network = Self {
            namespaces: (0..nodes).map(|_| Namespace::new()).collect(),
        };
        for node in 0..nodes {
            let mut commands = "link set lo up\n".to_owned();
            for later in node + 1..nodes {
                let (near, far) = (cable(later), cable(node));
                let holder = network.namespaces[later].holder.id();
                commands += &format!("link add {near} type veth peer name {far} netns {holder}\n");
            }
            for other in (0..nodes).filter(|other| *other != node) {
                let (own, peer, port) = (address(node), address(other), cable(other));
                commands += &format!("addr add {own} peer {peer} dev {port}\nlink set {port} up\n");
            }
            network.ip(node, &commands);
        }
        network
    }

    /// The file that stands for a node's namespace.
    pub(crate) fn namespace(&self, node: usize) -> PathBuf {
        self.namespaces[node].file()
    }

    /// Bytes that one node has sent to another, as the interface between them counts.
    pub(crate) fn sent(&self, from: usize, to: usize) -> u64 {
        let counters = format!("/proc/{}/net/dev", self.namespaces[from].holder.id());
        let text = fs::read_to_string(counters).unwrap();
        let port = format!("{}:", cable(to));
        let line = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(&port));
        // Eight fields of what was received, then the bytes sent.
        line.and_then(|line| line.split_whitespace().nth(8))
            .unwrap()
            .parse()
            .unwrap()
    }

    /// Returns the bytes that open TCP connections of one node have carried to another, each byte
    /// once. Headers, acknowledgements and what TCP repeats depend on the machine's load.
    pub(crate) fn carried(&self, from: usize, to: usize) -> u64 {
        let mut list = Command::new("ss");
        list.args(["-tinOH", "dst", &address(to).to_string()]);
        let list = self.inside(from, || list.output()).unwrap();
        let list = String::from_utf8(list.stdout).unwrap();
        let field = |line: &str, name| -> u64 {
            let value = line
                .split_whitespace()
                .find_map(|word| word.strip_prefix(name));
            value.map_or(0, |value| value.parse().unwrap())
        };
        let of_connection = |line| field(line, "bytes_sent:") - field(line, "bytes_retrans:");
        list.lines().map(of_connection).sum()
    }

    /// Whether a process of a node has a connection to this port that the kernel takes to stand.
    pub(crate) fn is_connected(&self, node: usize, port: u16) -> bool {
        let table = format!("/proc/{}/net/tcp", self.namespaces[node].holder.id());
        let (port, established) = (format!(":{port:04X}"), "01");
        fs::read_to_string(table).unwrap().lines().any(|line| {
            let mut words = line.split_whitespace().skip(2);
            let to = words.next().is_some_and(|to| to.ends_with(&port));
            to && words.next() == Some(established)
        })
    }

    /// Pulls a cable, or plugs it in again.
    pub(crate) fn plug(&self, one: usize, other: usize, plugged: bool) {
        let port = cable(other);
        let state = if plugged { "up" } else { "down" };
        self.ip(one, &format!("link set {port} {state}\n"));
    }

    /// Lets a node send no more than so many bits in a second to any other.
    pub(crate) fn throttle(&self, node: usize, bits: u32) {
        for other in (0..self.namespaces.len()).filter(|other| *other != node) {
            let mut tc = Command::new("nsenter");
            tc.arg(format!("--net={}", self.namespace(node).display()))
                .args(["tc", "qdisc", "add", "dev", &cable(other), "root"])
                .args(["tbf", "rate", &format!("{bits}bit")])
                .args(["burst", "16kb", "latency", "400ms"]);
            assert!(tc.status().unwrap().success(), "tc refused {tc:?}");
        }
    }

    /// Works as a process of a node would.
    pub(crate) fn inside<T: Send>(&self, node: usize, work: impl FnOnce() -> T + Send) -> T {
        let namespace = fs::File::open(self.namespace(node)).unwrap();
        let enter = move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), kind).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }

    fn ip(&self, node: usize, commands: &str) {
        let mut ip = Command::new("nsenter")
            .arg(format!("--net={}", self.namespace(node).display()))
            .args(["ip", "-batch", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        ip.stdin
            .take()
            .unwrap()
            .write_all(commands.as_bytes())
            .unwrap();
        assert!(
            ip.wait().unwrap().success(),
            "ip refused one of:\n{commands}"
        );
    }
}

impl Namespace {
    fn new() -> Self {
        let mut holder = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It echoes when it is in its namespace.
        holder.stdin.as_mut().unwrap().write_all(b"?").unwrap();
        let mut echo = [0];
        holder
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut echo)
            .unwrap();
        Self { holder }
    }

    fn file(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.holder.id()))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.holder.kill().ok();
        self.holder.wait().ok();
    }
}

/// A node's address, the same on all its cables.
pub(crate) fn address(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, node as u8 + 1)
}

/// The interface on the cable to a node.
fn cable(to: usize) -> String {
    format!("to-{to}")
}
