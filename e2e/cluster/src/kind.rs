//! The same cluster by kind, where Docker answers. Nodes are containers, so killing a node is
//! killing its container.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use crate::cgroup::PERIOD_US;
use crate::cluster::{Cluster, kubeconfig};
use crate::command;
use crate::control::audit_log;
use crate::error::{Error, ErrorContext, Result};
use crate::layout::Name;
use crate::node::LEASE_SECONDS;
use crate::paths;
use crate::prerequisites::found;
use crate::progress::{ProgressFn, StepOutcome, step};
use crate::template::{self, AUDIT, render};

/// Names the image of kind's nodes, by tag or digest. Unset: the one that this version of kind is made for.
pub const NODE_IMAGE: &str = "FIREFLYER_NODE_IMAGE";
/// Where nodes see the folder of the class `demo-shared`.
const SHARED: &str = "/var/lib/demo-shared";
/// The network that kind puts its nodes into.
const NETWORK: &str = "kind";

/// True when Docker has a daemon that answers and kind is installed.
pub(crate) fn available() -> bool {
    found("kind") && docker_answers()
}

/// True when Docker has a daemon that answers.
pub(crate) fn docker_answers() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    let ask = || found("docker") && docker(&["info"]).is_ok();
    *ANSWER.get_or_init(ask)
}

/// kind's name for worker `number`: the first has no number.
pub(crate) fn node_name(name: &Name, number: usize) -> String {
    match number {
        0 | 1 => format!("{name}-worker"),
        number => format!("{name}-worker{number}"),
    }
}

/// Creates the cluster from `e2e/kind.yaml`.
pub(crate) fn create(cluster: &Cluster, progress: ProgressFn<'_>) -> Result<()> {
    let folder = &cluster.folder;
    let template_path = paths::repository().join("e2e/kind.yaml");
    let template = fs::read_to_string(&template_path)
        .context(|| format!("failed to read {}", template_path.display()))?;
    let (head, worker) = template
        .split_once("# One for each node:\n")
        .ok_or_else(|| Error::new("e2e/kind.yaml has no line \"# One for each node:\""))?;
    let (state, lease) = (folder.display().to_string(), LEASE_SECONDS.to_string());
    let mut config = render(head, &[("STATE", &state), ("LEASE_SECONDS", &lease)]);
    for node in &cluster.nodes {
        config += &render(worker, &[("STATE", &state), ("ZONE", &node.zone)]);
    }
    template::write(&folder.join("audit.yaml"), AUDIT)?;
    // The API server would make it readable for root alone, and root in a container is not us.
    template::write(&audit_log(folder), "")?;
    let path = folder.join("kind.yaml");
    template::write(&path, &config)?;
    step(progress, "kind create cluster", || {
        let mut kind = Command::new("kind");
        kind.args([
            "create",
            "cluster",
            "--name",
            cluster.name(),
            "--wait",
            "120s",
        ]);
        if let Ok(image) = env::var(NODE_IMAGE) {
            kind.args(["--image", &image]);
        }
        kind.arg("--config")
            .arg(&path)
            .arg("--kubeconfig")
            .arg(kubeconfig(folder));
        Ok((command::run(&mut kind).map(|_| ())?, StepOutcome::Done))
    })
}

/// Deletes the cluster; one that is not there is as good.
pub(crate) fn delete(name: &Name, folder: &Path) -> Result<()> {
    // Pods write as users whose files only root may remove; root in a node is at hand. Where the
    // node is gone, removing the folder says what is left.
    let empty = ["find", SHARED, "-mindepth", "1", "-delete"];
    let _ = inside(&format!("{name}-control-plane"), &empty);
    let mut kind = Command::new("kind");
    kind.args(["delete", "cluster", "--name", name.as_str()]);
    // Without it kind would tidy the user's own kubeconfig.
    kind.arg("--kubeconfig").arg(kubeconfig(folder));
    command::run(&mut kind).map(|_| ())
}

pub(crate) fn alive(node: &str) -> Result<bool> {
    let running = docker(&["inspect", "--format", "{{.State.Running}}", node])?;
    Ok(running.trim() == "true")
}

pub(crate) fn kill(node: &str) -> Result<()> {
    if alive(node)? {
        docker(&["kill", node]).map(|_| ())
    } else {
        Ok(())
    }
}

pub(crate) fn start(node: &str) -> Result<()> {
    docker(&["start", node]).map(|_| ())
}

pub(crate) fn connect(node: &str, connected: bool) -> Result<()> {
    let verb = if connected { "connect" } else { "disconnect" };
    docker(&["network", verb, NETWORK, node]).map(|_| ())
}

/// Lets a node have so many hundredths of a processor, or all.
pub(crate) fn limit_cpu(node: &str, percent: Option<u32>) -> Result<()> {
    let period = format!("--cpu-period={PERIOD_US}");
    let quota = percent.map_or("-1".to_owned(), |percent| {
        (percent * PERIOD_US / 100).to_string()
    });
    let quota = format!("--cpu-quota={quota}");
    docker(&["update", &period, &quota, node]).map(|_| ())
}

/// Runs a program inside a node.
pub(crate) fn inside(node: &str, arguments: &[&str]) -> Result<String> {
    command::run(Command::new("docker").args(["exec", node]).args(arguments))
}

/// Gives a node an image. kind compares what the node has by itself, so this always counts as new.
pub(crate) fn import(cluster: &str, node: &str, archive: &Path) -> Result<bool> {
    let mut load = Command::new("kind");
    load.args(["load", "image-archive", "--name", cluster, "--nodes", node])
        .arg(archive);
    command::run(&mut load).map(|_| true)
}

fn docker(arguments: &[&str]) -> Result<String> {
    command::run(Command::new("docker").args(arguments))
}
