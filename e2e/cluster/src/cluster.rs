//! A cluster that is up: where its files are and how to talk to it. How it gets up and down is in
//! `up` and `down`, what can be done to its nodes in `handle`.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::command;
use crate::control;
use crate::error::{Error, Result};
use crate::handle::NodeHandle;
use crate::layout::{Layout, Name};
use crate::network;
use crate::node::{NativeNode, Site};
use crate::options::ClusterOptions;
use crate::paths;
use crate::pki::Pki;
use crate::progress::{ProgressFn, StepOutcome, step};
use crate::state::{NodeEngine, NodeState, State};
use crate::tools::{self, Tools};
use crate::wait::until;
use crate::{down, fake, up};

/// A cluster on this machine.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) layout: Layout,
    pub(crate) folder: PathBuf,
    pub(crate) engine: NodeEngine,
    pub(crate) nodes: Vec<NodeState>,
    pub(crate) tools: Tools,
    pub(crate) pki: Pki,
    pub(crate) port: Option<u16>,
}

impl Cluster {
    /// Brings a cluster up. What a crashed run of the same name left is removed first; a running
    /// one is replaced.
    pub fn up(options: &ClusterOptions, progress: ProgressFn<'_>) -> Result<Self> {
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
        let tools = Tools::built()?;
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

    /// Adds simulated nodes, divided into the zones, unless there are as many already; returns when
    /// they are Ready.
    pub fn add_fake_nodes(
        &self,
        count: usize,
        zones: &[impl AsRef<str>],
        progress: ProgressFn<'_>,
    ) -> Result<()> {
        fake::check(self.engine)?;
        Tools::build(&[tools::KWOK], progress)?;
        step(progress, "fake nodes", || {
            Ok((fake::add(self, count, zones)?, StepOutcome::Done))
        })
    }

    /// Removes every trace of a cluster, also of one that never came up. Says whether there was
    /// any.
    pub fn down(name: &Name) -> Result<bool> {
        down::down(name)
    }

    /// Removes a cluster but keeps its logs: they may say why it had to go. Returns the folder that they are in
    /// until the next [`Cluster::down`]; none when there was no cluster.
    pub fn down_but_logs(name: &Name) -> Result<Option<PathBuf>> {
        down::down_but_logs(name)
    }

    /// The cluster's name.
    pub fn name(&self) -> &str {
        self.layout.name.as_str()
    }

    /// Who runs the nodes.
    pub fn engine(&self) -> NodeEngine {
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
    pub fn programs(&self) -> &Path {
        self.tools.folder()
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
            NodeEngine::Native => {
                let mut command = network::inside(&self.layout.control_namespace());
                command.arg(program);
                Ok(command)
            }
            NodeEngine::Kind => Err(Error::new(
                "a cluster of kind has no network namespace of its own",
            )),
        }
    }

    /// All real nodes, dead ones too.
    pub fn nodes(&self) -> impl Iterator<Item = NodeHandle<'_>> {
        (0..self.nodes.len()).map(|index| NodeHandle {
            cluster: self,
            index,
        })
    }

    /// A real node by its Kubernetes name.
    pub fn node(&self, name: &str) -> Result<NodeHandle<'_>> {
        match self.nodes.iter().position(|node| node.name == name) {
            Some(index) => Ok(NodeHandle {
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
    pub fn import(&self, archives: &[PathBuf], progress: ProgressFn<'_>) -> Result<()> {
        self.import_to(|_| true, archives, progress)
    }

    /// Gives images to those of the nodes whose name is `wanted`.
    pub(crate) fn import_to(
        &self,
        wanted: impl Fn(&str) -> bool,
        archives: &[PathBuf],
        progress: ProgressFn<'_>,
    ) -> Result<()> {
        thread::scope(|scope| {
            let workers: Vec<_> = self
                .nodes()
                .filter(|node| wanted(node.name()))
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

    /// Names of the nodes that have a label, whatever its value.
    pub(crate) fn nodes_with(&self, label: &str) -> Result<Vec<String>> {
        let path = "jsonpath={.items[*].metadata.name}";
        let mut get = self.kubectl(["get", "nodes", "--selector", label, "-o", path])?;
        let names = command::run(&mut get)?;
        Ok(names.split_whitespace().map(str::to_owned).collect())
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

pub(crate) fn kubeconfig(folder: &Path) -> PathBuf {
    folder.join("kubeconfig")
}
