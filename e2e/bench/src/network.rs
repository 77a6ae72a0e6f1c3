//! Nodes as network namespaces on one bridge, with documentation addresses. Namespaces and cables have no name
//! outside and end with the processes that hold them, so nothing is left behind, however a bench ends.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};

use crate::cores::Cores;

/// The interface of every node.
pub(crate) const INTERFACE: &str = "eth0";
/// The bridge, and the address of the namespace that it is in.
pub(crate) const BRIDGE: &str = "br0";
const HUB: &str = "192.0.2.1";
/// The first port that is handed out.
const FIRST_PORT: u16 = 29400;
/// Every contender gets the same, by the nodes' routes, because not every rival has a setting for it and not every kernel lets
/// a namespace have a default of its own. Some systems have bbr, which paces and is slower on a local wire.
pub(crate) const CONGESTION_CONTROL: &str = "cubic";

/// The words before a program that runs on these processors.
pub(crate) fn on_cores(cores: Option<&str>) -> Vec<&str> {
    cores.map_or_else(Vec::new, |cores| vec!["taskset", "--cpu-list", cores])
}

/// A bridge and the nodes on it.
#[derive(Debug)]
pub(crate) struct Network {
    /// The namespace of the bridge: what belongs to no node runs there.
    pub(crate) hub: Namespace,
    pub(crate) nodes: Vec<Namespace>,
    /// The processors of each node. None: all have all.
    pub(crate) cores: Option<Cores>,
    next_port: AtomicU16,
}

/// A network namespace: that of a process which waits for the end of its input, or this process's own.
#[derive(Debug)]
pub(crate) struct Namespace {
    holder: Option<Child>,
    /// Its address on the bridge.
    pub(crate) address: String,
    /// The processors of what runs in it, in the kernel's notation. None: all.
    pub(crate) cores: Option<String>,
}

impl Network {
    /// Nodes on one bridge, which is in a namespace of its own.
    pub(crate) fn star(nodes: usize) -> Result<Self> {
        Self::around(Namespace::new(HUB.to_owned())?, nodes)
    }

    /// Nodes on one bridge, which is in the namespace of this process: it reaches them. The namespace has to be its own.
    pub(crate) fn star_here(nodes: usize) -> Result<Self> {
        let hub = Namespace {
            holder: None,
            address: HUB.to_owned(),
            cores: None,
        };
        Self::around(hub, nodes)
    }

    fn around(hub: Namespace, nodes: usize) -> Result<Self> {
        hub.ip(&format!(
            "link set lo up\nlink add {BRIDGE} type bridge\naddr add {HUB}/24 dev {BRIDGE}\nlink set {BRIDGE} up\n"
        ))?;
        let mut network = Self {
            hub,
            nodes: Vec::new(),
            cores: None,
            next_port: AtomicU16::new(FIRST_PORT),
        };
        for node in 0..nodes {
            let own = Namespace::new(format!("192.0.2.{}", 10 + node))?;
            let (port, holder) = (format!("port{node}"), own.process());
            network.hub.ip(&format!(
                "link add {port} type veth peer name {INTERFACE} netns {holder}\nlink set {port} master {BRIDGE} up\n"
            ))?;
            own.ip(&format!(
                "link set lo up\naddr add {0}/24 dev {INTERFACE}\nlink set {INTERFACE} up\n\
                 route replace 192.0.2.0/24 dev {INTERFACE} src {0} congctl {CONGESTION_CONTROL}\n",
                own.address
            ))?;
            network.nodes.push(own);
        }
        Ok(network)
    }

    /// What runs in a node from here on has its processors.
    pub(crate) fn divide(&mut self, cores: Cores) {
        for (node, own) in self.nodes.iter_mut().enumerate() {
            own.cores = Some(cores.of_node(node).to_string());
        }
        self.cores = Some(cores);
    }

    /// How many processors the first nodes have together.
    pub(crate) fn processors(&self, nodes: usize) -> usize {
        match &self.cores {
            Some(cores) => cores.of_nodes(nodes).len(),
            None => thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// How many each of so many nodes has for itself: those that it was given, or its share of all.
    pub(crate) fn processors_of_each(&self, nodes: usize) -> usize {
        match &self.cores {
            Some(cores) => cores.each,
            None => (self.processors(nodes) / nodes).max(1),
        }
    }

    /// A port that nobody else was given: gangs live side by side on the same nodes.
    pub(crate) fn port(&self) -> u16 {
        self.next_port.fetch_add(1, Ordering::Relaxed)
    }
}

impl Namespace {
    fn new(address: String) -> Result<Self> {
        let mut holder = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("failed to start unshare")?;
        // It echoes when it is in its namespace.
        if let (Some(input), Some(output)) = (&mut holder.stdin, &mut holder.stdout) {
            input.write_all(b"?").context("failed to reach unshare")?;
            let echoed = output.read_exact(&mut [0]);
            echoed.context("failed to make a network namespace")?;
        }
        Ok(Self {
            holder: Some(holder),
            address,
            cores: None,
        })
    }

    /// A process that is in it for as long as it is there.
    fn process(&self) -> u32 {
        self.holder
            .as_ref()
            .map_or_else(std::process::id, Child::id)
    }

    /// A program that runs in here; its process is the one that is started.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.command_on(self.cores.as_deref(), program)
    }

    /// The same on these processors.
    pub(crate) fn command_on(
        &self,
        cores: Option<&str>,
        program: impl AsRef<std::ffi::OsStr>,
    ) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.file().display()));
        command.args(on_cores(cores));
        command.arg(program);
        command
    }

    /// The file that stands for it.
    pub(crate) fn file(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.process()))
    }

    fn ip(&self, commands: &str) -> Result<()> {
        let mut ip = self
            .command("ip")
            .args(["-batch", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .context("failed to start ip")?;
        if let Some(mut input) = ip.stdin.take() {
            input
                .write_all(commands.as_bytes())
                .context("failed to reach ip")?;
        }
        let done = ip.wait().context("failed to wait for ip")?;
        ensure!(done.success(), "ip refused one of:\n{commands}");
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some(holder) = &mut self.holder {
            // It ends with its input anyway.
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}
