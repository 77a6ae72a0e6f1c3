//! A node of a cluster that is up, and what can be done to it: the same words whoever runs the nodes.

use std::path::PathBuf;

use crate::cgroup;
use crate::cluster::Cluster;
use crate::command;
use crate::error::Result;
use crate::image;
use crate::kind;
use crate::network;
use crate::node::NativeNode;
use crate::progress::{ProgressFn, StepOutcome, step};
use crate::state::NodeEngine;

/// A node by name.
#[derive(Debug, Clone, Copy)]
pub struct NodeHandle<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) index: usize,
}

impl<'a> NodeHandle<'a> {
    /// Its Kubernetes name.
    pub fn name(&self) -> &'a str {
        self.cluster
            .nodes
            .get(self.index)
            .map_or("", |node| node.name.as_str())
    }

    /// False between [`NodeHandle::kill`] and [`NodeHandle::restart`].
    pub fn alive(&self) -> Result<bool> {
        match self.cluster.engine {
            NodeEngine::Native => self.native().alive(),
            NodeEngine::Kind => kind::alive(self.name()),
        }
    }

    /// Ends it as a power cut would: everything on it dies at once, without a word.
    pub fn kill(&self) -> Result<()> {
        match self.cluster.engine {
            NodeEngine::Native => self.native().kill(),
            NodeEngine::Kind => kind::kill(self.name()),
        }
    }

    /// Starts it again over the disk that it had, killing it first when it lives. Does not wait for
    /// Ready.
    pub fn restart(&self) -> Result<()> {
        self.kill()?;
        match self.cluster.engine {
            NodeEngine::Native => self.native().start(),
            NodeEngine::Kind => kind::start(self.name()),
        }
    }

    /// Pulls its network cable: what runs on it runs on, unseen.
    pub fn partition(&self) -> Result<()> {
        match self.cluster.engine {
            NodeEngine::Native => network::connect(&self.cluster.layout, self.index + 1, false),
            NodeEngine::Kind => kind::connect(self.name(), false),
        }
    }

    /// Plugs the cable in again.
    pub fn heal(&self) -> Result<()> {
        match self.cluster.engine {
            NodeEngine::Native => network::connect(&self.cluster.layout, self.index + 1, true),
            NodeEngine::Kind => kind::connect(self.name(), true),
        }
    }

    /// Lets everything on it together have so many hundredths of a processor; none takes the limit
    /// away.
    pub fn limit_cpu(&self, percent: Option<u32>) -> Result<()> {
        match self.cluster.engine {
            NodeEngine::Native => {
                let folder = self.cluster.layout.node_namespace(self.index + 1);
                cgroup::limit_cpu(&folder, percent)
            }
            NodeEngine::Kind => kind::limit_cpu(self.name(), percent),
        }
    }

    /// Lets it send so many megabits a second; none takes the limit away.
    pub fn limit_network(&self, mbit: Option<u32>) -> Result<()> {
        let rate = mbit.map(|mbit| format!("{mbit}mbit"));
        let words = match &rate {
            Some(rate) => {
                let limit = ["tbf", "rate", rate, "burst", "256kb", "latency", "50ms"];
                [&["replace", "dev", network::INTERFACE, "root"][..], &limit].concat()
            }
            None => vec!["del", "dev", network::INTERFACE, "root"],
        };
        let words = [&["tc", "qdisc"][..], &words].concat();
        self.run(&words).map(|_| ())
    }

    /// Kills the kubelet; it is started again within a second or two.
    pub fn restart_kubelet(&self) -> Result<()> {
        match self.cluster.engine {
            NodeEngine::Native => self.signal("kubelet", "KILL"),
            NodeEngine::Kind => {
                kind::inside(self.name(), &["systemctl", "restart", "kubelet"]).map(|_| ())
            }
        }
    }

    /// Restarts containerd as an upgrade of it does; containers run on.
    pub fn restart_runtime(&self) -> Result<()> {
        match self.cluster.engine {
            NodeEngine::Native => self.signal("containerd", "TERM"),
            NodeEngine::Kind => {
                kind::inside(self.name(), &["systemctl", "restart", "containerd"]).map(|_| ())
            }
        }
    }

    /// Sends a signal, such as `STOP`, to every process of a program, those in pods too. None is an
    /// error.
    pub fn signal(&self, program: &str, signal: &str) -> Result<()> {
        self.run(&["pkill", &format!("-{signal}"), "-x", program])
            .map(|_| ())
    }

    /// Runs a program inside the node, with its file systems and its network, and returns what it
    /// prints.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        match self.cluster.engine {
            NodeEngine::Native => command::run(self.native().inside()?.args(arguments)),
            NodeEngine::Kind => kind::inside(self.name(), arguments),
        }
    }

    pub(crate) fn import(&self, archives: &[PathBuf], progress: ProgressFn<'_>) -> Result<()> {
        if !self.alive()? {
            return Ok(());
        }
        for archive in archives {
            let name = format!("import {} {}", self.name(), image::of_archive(archive));
            step(progress, &name, || {
                let new = match self.cluster.engine {
                    NodeEngine::Native => self.native().import(archive)?,
                    NodeEngine::Kind => kind::import(self.cluster.name(), self.name(), archive)?,
                };
                Ok((
                    (),
                    if new {
                        StepOutcome::Done
                    } else {
                        StepOutcome::Cached
                    },
                ))
            })?;
        }
        Ok(())
    }

    fn native(&self) -> NativeNode<'a> {
        self.cluster.native(self.index)
    }
}
