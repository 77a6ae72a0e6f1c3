//! One node of the native cluster: a tree of processes in namespaces of its own under an init that
//! can be killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::cgroup;
use crate::command;
use crate::error::{Error, ErrorContext, Result};
use crate::image;
use crate::layout::Layout;
use crate::network;
use crate::pki::{Identity, Pki};
use crate::process::{self, Process};
use crate::state::State;
use crate::template::{self, CNI, CONTAINERD, INIT, KUBELET, render};
use crate::tools::Tools;

/// The label of nodes that jobs may get.
pub(crate) const NODE_CLASS: &str = "fireflyer.dev/node-class";

/// A node is called lost when its lease is this old. Short, so that tests of node loss need not
/// wait.
pub(crate) const LEASE_SECONDS: u32 = 8;

/// A whole node dies with its init; only what the kernel holds back takes time.
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// What all nodes of a cluster have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Site<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) folder: &'a Path,
    pub(crate) pki: &'a Pki,
    pub(crate) tools: &'a Tools,
}

/// A node by its number, from 1.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NativeNode<'a> {
    pub(crate) site: Site<'a>,
    pub(crate) number: usize,
    pub(crate) zone: &'a str,
}

impl NativeNode<'_> {
    pub(crate) fn name(&self) -> String {
        self.site.layout.node_name(self.number)
    }

    /// Its part of the cluster's folder.
    pub(crate) fn folder(&self) -> PathBuf {
        self.site.folder.join("nodes").join(self.name())
    }

    pub(crate) fn logs(&self) -> PathBuf {
        self.site.folder.join("logs").join(self.name())
    }

    /// Writes its configuration and its certificate: once, before the first start.
    pub(crate) fn prepare(&self, server: &str) -> Result<()> {
        let Site {
            layout, pki, tools, ..
        } = self.site;
        let (name, folder) = (self.name(), self.folder());
        for part in ["lib", "log", "etc", "images"] {
            let part = folder.join(part);
            fs::create_dir_all(&part).context(|| format!("failed to make {}", part.display()))?;
        }
        let logs = self.logs();
        fs::create_dir_all(&logs).context(|| format!("failed to make {}", logs.display()))?;

        let subject = format!("/O=system:nodes/CN=system:node:{name}");
        let names = format!("DNS:{name},IP:{}", layout.node_address(self.number));
        pki.issue(&Identity {
            file: &name,
            subject: &subject,
            names: &names,
        })?;
        pki.kubeconfig(&name, server)?;

        let cgroup = layout.node_namespace(self.number);
        let cgroup_v1 = match cgroup::version() {
            cgroup::Version::V1 => "failCgroupV1: false",
            cgroup::Version::V2 => "",
        };
        let kubelet = render(
            KUBELET,
            &[
                ("CGROUP", &cgroup),
                ("CGROUP_V1", cgroup_v1),
                ("PKI", &pki.folder().display().to_string()),
                ("NODE", &name),
                ("LEASE_SECONDS", &LEASE_SECONDS.to_string()),
            ],
        );
        template::write(&folder.join("etc/kubelet.yaml"), &kubelet)?;
        let plugins = tools.folder().display().to_string();
        let containerd = render(
            CONTAINERD,
            &[("PAUSE", &image::reference("pause")), ("CNI", &plugins)],
        );
        template::write(&folder.join("etc/containerd.toml"), &containerd)?;
        // Pods are routed (`ptp`) and not bridged: a Service then works between pods of one node on
        // machines without br_netfilter, too.
        let cni = render(CNI, &[("PODS", &layout.node_pods(self.number))]);
        template::write(&folder.join("etc/cni.conflist"), &cni)
    }

    /// Starts the node, over the state that an earlier life of it may have left.
    pub(crate) fn start(&self) -> Result<()> {
        let Site {
            layout,
            folder,
            pki,
            tools,
        } = self.site;
        let namespace = layout.node_namespace(self.number);
        cgroup::remove(|cgroup| cgroup == namespace)?;
        cgroup::create(&namespace)?;
        let script = self.folder().join("etc/init.sh");
        template::write(&script, INIT)?;
        let (pause, _) = image::pause()?.build()?;
        let name = self.name();
        let mut init = network::inside(&namespace);
        init.args([
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "bash",
        ])
        .arg(&script)
        .env("PATH", tools.search_path())
        .env("NODE", &name)
        .env("ADDRESS", layout.node_address(self.number).to_string())
        .env("FOLDER", self.folder())
        .env("LOGS", self.logs())
        .env("SHARED", folder.join("shared"))
        .env("PODS", layout.all_pods())
        .env("IMAGES", pause)
        .env("KUBECONFIG", pki.path(&format!("{name}.kubeconfig")))
        .env("PROXY_KUBECONFIG", pki.path("proxy.kubeconfig"))
        .env(
            "LABELS",
            format!(
                "{NODE_CLASS}=a100,topology.fireflyer.dev/zone={}",
                self.zone
            ),
        );
        let pid = command::start(&init, &self.logs().join("init.log"), Stdio::null())?;
        let process = Process::of(pid)?;
        State::update(folder, |state| {
            state.processes.insert(self.name(), process);
        })
    }

    /// Kills its init: kubelet, containerd and every pod die at once, as when the power goes.
    pub(crate) fn kill(&self) -> Result<()> {
        let Some(outer) = self.outer()?.filter(|outer| outer.alive()) else {
            return Ok(());
        };
        let mut dying = outer.children()?;
        dying.push(outer);
        let namespace = network::path(&self.site.layout.node_namespace(self.number));
        dying.extend(
            process::in_namespace(&namespace)?
                .into_iter()
                .map(|(process, _)| process),
        );
        process::kill_all(&dying, KILL_LIMIT)
    }

    pub(crate) fn alive(&self) -> Result<bool> {
        Ok(self.outer()?.is_some_and(Process::alive))
    }

    /// A command that runs a program inside the node, with its file systems and its network.
    pub(crate) fn inside(&self) -> Result<Command> {
        let init = self
            .outer()?
            .filter(|outer| outer.alive())
            .map(Process::children)
            .transpose()?;
        let Some(init) = init.and_then(|children| children.first().copied()) else {
            return Err(Error::new(format!("the node {} does not run", self.name())));
        };
        let mut command = Command::new("nsenter");
        command.args([
            "--mount",
            "--net",
            "--pid",
            &format!("--target={}", init.pid),
        ]);
        command.env("PATH", self.site.tools.search_path());
        Ok(command)
    }

    /// Gives it an image, unless it had this very archive already: their names depend on their content.
    pub(crate) fn import(&self, archive: &Path) -> Result<bool> {
        let file = archive.file_name().unwrap_or(archive.as_os_str());
        let mark = self.folder().join("images").join(file);
        if mark.exists() {
            return Ok(false);
        }
        let mut import = self.inside()?;
        // Without --local the archive's bytes go through a service in containerd, at twice the cost. A layer that is unpacked
        // takes its room once.
        import
            .args([
                "ctr",
                "--namespace",
                "k8s.io",
                "images",
                "import",
                "--local",
                "--discard-unpacked-layers",
            ])
            .arg(archive);
        command::run(&mut import)?;
        fs::write(&mark, "").context(|| format!("failed to write {}", mark.display()))?;
        Ok(true)
    }

    /// The process that we started; init is its child.
    fn outer(&self) -> Result<Option<Process>> {
        let state = State::read(self.site.folder)?;
        Ok(state.and_then(|state| state.processes.get(&self.name()).copied()))
    }
}
