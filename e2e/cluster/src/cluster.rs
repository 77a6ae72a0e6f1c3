//! A cluster that is up: where its files are, how to talk to it, and what can be done to its nodes.
//! How it gets up and down is in `up` and `down`.

use std::ffi::OsStr;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::command;
use crate::control;
use crate::error::{Error, Result};
use crate::fake;
use crate::kind;
use crate::layout::{Layout, Name};
use crate::network;
use crate::node::{NativeNode, Site};
use crate::paths;
use crate::pki::Pki;
use crate::progress::{Outcome, Progress};
use crate::state::{Engine, NodeState, State};
use crate::tools::{Module, Tools};
use crate::wait::until;
use crate::{down, up};

/// What to bring up.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) name: Name,
    pub(crate) nodes: usize,
    pub(crate) zones: Vec<String>,
    pub(crate) fake_nodes: usize,
}

impl Options {
    /// Two nodes in one zone, no fake ones.
    pub fn new(name: Name) -> Self {
        Self {
            name,
            nodes: 2,
            zones: vec!["a".to_owned()],
            fake_nodes: 0,
        }
    }

    /// How many real nodes.
    #[must_use]
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// The zone of each node; when there are fewer zones than nodes, they start over.
    #[must_use]
    pub fn zones(mut self, zones: &[impl AsRef<str>]) -> Self {
        self.zones = zones.iter().map(|zone| zone.as_ref().to_owned()).collect();
        self
    }

    /// How many simulated nodes, of class `simulated`, besides.
    #[must_use]
    pub fn fake_nodes(mut self, fake_nodes: usize) -> Self {
        self.fake_nodes = fake_nodes;
        self
    }
}

/// A cluster on this machine.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) layout: Layout,
    pub(crate) folder: PathBuf,
    pub(crate) engine: Engine,
    pub(crate) nodes: Vec<NodeState>,
    pub(crate) tools: Tools,
    pub(crate) pki: Pki,
    pub(crate) port: Option<u16>,
}

/// A node by name.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    cluster: &'a Cluster,
    index: usize,
}

/// What `status` tells of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// Who runs the nodes.
    pub engine: Engine,
    /// It came up whole once, and was not taken down since.
    pub ready: bool,
    /// What belongs to it and has died.
    pub dead: Vec<String>,
    /// Where its kubeconfig is.
    pub kubeconfig: PathBuf,
}

/// The clusters of this user on this machine.
pub fn list() -> Result<Vec<Status>> {
    let entries = fs::read_dir(paths::clusters()?)
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.filter_map(|entry| Name::new(&entry.file_name().to_string_lossy()).ok());
    let mut found = Vec::new();
    for name in names {
        let folder = paths::clusters()?.join(name.as_str());
        // A state that cannot be read is told of, not fatal: `down` and `up` can do without.
        let state = match State::read(&folder) {
            Ok(Some(state)) => state,
            Ok(None) => continue,
            Err(_) => State::new(0, Engine::Native),
        };
        let processes = state.processes.iter();
        let dead = processes.filter(|(_, process)| !process.alive());
        found.push(Status {
            name: name.to_string(),
            engine: state.engine,
            ready: state.ready,
            dead: dead.map(|(role, _)| role.clone()).collect(),
            kubeconfig: kubeconfig(&folder),
        });
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

impl Cluster {
    /// Brings a cluster up. What a crashed run of the same name left is removed first; a running
    /// one is replaced.
    pub fn up(options: &Options, progress: Progress<'_>) -> Result<Self> {
        up::up(options, progress)
    }

    /// The cluster of that name, when it is up.
    pub fn attach(name: &Name) -> Result<Self> {
        let folder = paths::clusters()?.join(name.as_str());
        let state = State::read(&folder)?.filter(|state| state.ready);
        let Some(state) = state else {
            return Err(Error::new(format!(
                "there is no cluster {name}: `cargo xtask cluster up --name {name}`"
            )));
        };
        let tools = match state.engine {
            Engine::Native => Tools::built(&Module::REAL_NODES)?,
            Engine::Kind => Tools::built(&[Module::Kubectl])?,
        };
        Ok(Self {
            layout: Layout::new(name.clone(), state.index)?,
            pki: Pki::open(folder.join("pki")),
            folder,
            engine: state.engine,
            nodes: state.nodes,
            tools,
            port: state.port,
        })
    }

    /// Removes every trace of a cluster, also of one that never came up. Says whether there was
    /// any.
    pub fn down(name: &Name) -> Result<bool> {
        down::down(name)
    }

    /// The cluster's name.
    pub fn name(&self) -> &str {
        self.layout.name.as_str()
    }

    /// Who runs the nodes.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The administrator's kubeconfig; it works from anywhere on this machine.
    pub fn kubeconfig(&self) -> PathBuf {
        kubeconfig(&self.folder)
    }

    /// The logs of the control plane, and a folder of logs for each node.
    pub fn logs(&self) -> PathBuf {
        self.folder.join("logs")
    }

    /// Every write to the API server, one JSON object a line (audit.k8s.io/v1, level Metadata).
    pub fn audit_log(&self) -> PathBuf {
        control::audit_log(&self.folder)
    }

    /// The folder that every node sees as `/var/lib/demo-shared`: volume N of class `demo-shared`
    /// is its folder `NN`.
    pub fn shared(&self) -> PathBuf {
        self.folder.join("shared")
    }

    /// `kubectl` with this cluster's kubeconfig.
    pub fn kubectl<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Command> {
        let mut command = Command::new(self.tools.program("kubectl")?);
        command.env("KUBECONFIG", self.kubeconfig()).args(arguments);
        Ok(command)
    }

    /// The folder with this cluster's `kubectl`.
    pub fn programs(&self) -> Result<PathBuf> {
        let kubectl = self.tools.program("kubectl")?;
        Ok(kubectl.parent().map(Path::to_path_buf).unwrap_or_default())
    }

    /// Applies YAML text.
    pub fn apply(&self, yaml: &str) -> Result<()> {
        let mut command = self.kubectl(["apply", "--server-side", "-f", "-"])?;
        command::run_with_input(&mut command, yaml.as_bytes()).map(|_| ())
    }

    /// The API server's address inside the cluster's network, where simulated nodes and their
    /// agents live.
    pub fn control_plane_address(&self) -> Ipv4Addr {
        self.layout.control_address()
    }

    /// The administrator's kubeconfig for programs inside the cluster's network.
    pub fn control_plane_kubeconfig(&self) -> PathBuf {
        self.pki.path("admin.kubeconfig")
    }

    /// A command that runs a program inside the control plane's network. On kind there is no such
    /// place.
    pub fn in_control_plane(&self, program: impl AsRef<OsStr>) -> Result<Command> {
        match self.engine {
            Engine::Native => {
                let mut command = network::inside(&self.layout.control_namespace());
                command.arg(program);
                Ok(command)
            }
            Engine::Kind => Err(Error::new(
                "a cluster of kind has no network namespace of its own",
            )),
        }
    }

    /// All real nodes, dead ones too.
    pub fn nodes(&self) -> impl Iterator<Item = Node<'_>> {
        (0..self.nodes.len()).map(|index| Node {
            cluster: self,
            index,
        })
    }

    /// A real node by its Kubernetes name.
    pub fn node(&self, name: &str) -> Result<Node<'_>> {
        match self.nodes.iter().position(|node| node.name == name) {
            Some(index) => Ok(Node {
                cluster: self,
                index,
            }),
            None => Err(Error::new(format!(
                "the cluster {} has no node {name:?}",
                self.name()
            ))),
        }
    }

    /// Waits until all real nodes that run are Ready.
    pub fn wait_ready(&self, limit: Duration) -> Result<()> {
        let alive = self
            .nodes()
            .map(|node| Ok((node.name(), node.alive()?)))
            .collect::<Result<Vec<_>>>()?;
        let wanted: Vec<_> = alive
            .iter()
            .filter(|(_, alive)| *alive)
            .map(|(name, _)| *name)
            .collect();
        until("all nodes Ready", limit, || {
            let ready = self.ready_nodes()?;
            let missing = wanted
                .iter()
                .find(|name| !ready.iter().any(|node| node == *name));
            match missing {
                None => Ok(Some(())),
                Some(name) => Err(Error::new(format!("{name} is not Ready"))),
            }
        })
    }

    /// Gives images to all nodes that run, at once. A node that has an archive already is left
    /// alone.
    pub fn import(&self, archives: &[PathBuf], progress: Progress<'_>) -> Result<()> {
        thread::scope(|scope| {
            let workers: Vec<_> = self
                .nodes()
                .map(|node| scope.spawn(move || node.import(archives, progress)))
                .collect();
            workers
                .into_iter()
                .try_for_each(|worker| match worker.join() {
                    Ok(result) => result,
                    Err(_) => Err(Error::new("an import thread panicked")),
                })
        })
    }

    /// Adds simulated nodes `fake-1`..=`fake-N` in these zones, 40 to a leaf, and waits until they
    /// are Ready.
    pub fn add_fake_nodes(&self, count: usize, zones: &[String]) -> Result<()> {
        fake::add(self, count, zones)
    }

    pub(crate) fn ready_nodes(&self) -> Result<Vec<String>> {
        let conditions = r#"{.status.conditions[?(@.type=="Ready")].status}"#;
        let path = format!("jsonpath={{range .items[*]}}{{.metadata.name}}={conditions} {{end}}");
        let listed = command::run(&mut self.kubectl(["get", "nodes", "-o", &path])?)?;
        let ready = listed
            .split_whitespace()
            .filter_map(|node| node.strip_suffix("=True"));
        Ok(ready.map(str::to_owned).collect())
    }

    pub(crate) fn site(&self) -> Site<'_> {
        Site {
            layout: &self.layout,
            folder: &self.folder,
            pki: &self.pki,
            tools: &self.tools,
        }
    }

    pub(crate) fn native(&self, index: usize) -> NativeNode<'_> {
        let zone = self.nodes.get(index).map_or("", |node| node.zone.as_str());
        NativeNode {
            site: self.site(),
            number: index + 1,
            zone,
        }
    }
}

impl<'a> Node<'a> {
    /// Its Kubernetes name.
    pub fn name(&self) -> &'a str {
        self.cluster
            .nodes
            .get(self.index)
            .map_or("", |node| node.name.as_str())
    }

    /// False between [`Node::kill`] and [`Node::restart`].
    pub fn alive(&self) -> Result<bool> {
        match self.cluster.engine {
            Engine::Native => self.native().alive(),
            Engine::Kind => kind::alive(self.name()),
        }
    }

    /// Ends it as a power cut would: everything on it dies at once, nobody is told.
    pub fn kill(&self) -> Result<()> {
        match self.cluster.engine {
            Engine::Native => self.native().kill(),
            Engine::Kind => kind::kill(self.name()),
        }
    }

    /// Starts it again over the disk that it had, killing it first when it lives. Does not wait for
    /// Ready.
    pub fn restart(&self) -> Result<()> {
        self.kill()?;
        match self.cluster.engine {
            Engine::Native => self.native().start(),
            Engine::Kind => kind::start(self.name()),
        }
    }

    /// Pulls its network cable: what runs on it runs on, unseen.
    pub fn partition(&self) -> Result<()> {
        match self.cluster.engine {
            Engine::Native => network::connect(&self.cluster.layout, self.index + 1, false),
            Engine::Kind => kind::connect(self.name(), false),
        }
    }

    /// Plugs the cable in again.
    pub fn heal(&self) -> Result<()> {
        match self.cluster.engine {
            Engine::Native => network::connect(&self.cluster.layout, self.index + 1, true),
            Engine::Kind => kind::connect(self.name(), true),
        }
    }

    /// Kills the kubelet; it is started again within a second or two.
    pub fn restart_kubelet(&self) -> Result<()> {
        match self.cluster.engine {
            Engine::Native => self.native().signal("kubelet", "KILL"),
            Engine::Kind => {
                kind::inside(self.name(), &["systemctl", "restart", "kubelet"]).map(|_| ())
            }
        }
    }

    /// Runs a program inside the node, with its file systems and its network, and returns what it
    /// prints.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        match self.cluster.engine {
            Engine::Native => command::run(self.native().inside()?.args(arguments)),
            Engine::Kind => kind::inside(self.name(), arguments),
        }
    }

    fn import(&self, archives: &[PathBuf], progress: Progress<'_>) -> Result<()> {
        if !self.alive()? {
            return Ok(());
        }
        for archive in archives {
            let name = format!("import {} {}", self.name(), archive_name(archive));
            crate::step(progress, &name, || {
                let new = match self.cluster.engine {
                    Engine::Native => self.native().import(archive)?,
                    Engine::Kind => kind::import(self.cluster.name(), self.name(), archive)?,
                };
                Ok(((), if new { Outcome::Done } else { Outcome::Cached }))
            })?;
        }
        Ok(())
    }

    fn native(&self) -> NativeNode<'a> {
        self.cluster.native(self.index)
    }
}

pub(crate) fn kubeconfig(folder: &Path) -> PathBuf {
    folder.join("kubeconfig")
}

/// `trainer` of `.../trainer-0123456789abcdef.tar`.
fn archive_name(archive: &Path) -> String {
    let stem = archive
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default();
    stem.rsplit_once('-')
        .map_or(stem.clone(), |(name, _)| name.to_owned())
}
