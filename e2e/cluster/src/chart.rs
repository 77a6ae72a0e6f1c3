//! Our own chart on a cluster: the images into its nodes, then helm. What is in the chart is not known here, except that a
//! machine without GPUs needs `e2e/values.yaml` and the node fixture.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::cluster::Cluster;
use crate::command;
use crate::error::{Error, ErrorContext, Result};
use crate::image;
use crate::node::NODE_CLASS;
use crate::paths;
use crate::progress::{ProgressFn, StepOutcome, step};
use crate::tools::Tools;

/// The release, as the chart's documentation calls it.
const RELEASE: &str = "fireflyer";
/// The namespace, as the chart's documentation calls it.
const NAMESPACE: &str = "fireflyer-system";
/// How long helm waits for all pods of the chart to be Ready; a fresh cluster needs about 10 s.
const WAIT: &str = "3m";

/// By far the largest image, which only nodes with a class need.
const TRAINER: &str = "trainer";
/// Images of others, which only the node with the metadata of volumes needs.
const BESIDE_METADATA: [&str; 2] = ["etcd", "csi-provisioner"];
/// Replicas of volumes, each on a node of its own: with fewer nodes there is no storage.
const REPLICAS: usize = 3;
/// The labels by which the chart finds nodes with disks for volumes, and the one with their metadata.
const STORAGE_LABELS: [&str; 2] = [
    "storage.fireflyer.dev/targets=true",
    "storage.fireflyer.dev/meta=true",
];
/// What the nodes need: our programs and those of others that storage needs, the trainer of the examples, and a shell for small
/// jobs.
pub const IMAGES: [&str; 9] = [
    "operator",
    "hfreduce-sidecar",
    "device-plugin",
    "validator",
    "storage-csi",
    "etcd",
    "csi-provisioner",
    TRAINER,
    "busybox",
];

/// Gives the nodes our images, installs the chart or upgrades it, and waits until it is at work.
pub fn install(cluster: &Cluster, progress: ProgressFn<'_>) -> Result<()> {
    let with_class = cluster.nodes_with(NODE_CLASS)?;
    let storage = storage_nodes(cluster);
    let is_trainer = |archive: &PathBuf| image::of_archive(archive) == TRAINER;
    let is_beside =
        |archive: &PathBuf| BESIDE_METADATA.contains(&image::of_archive(archive).as_str());
    let (trainer, others): (Vec<_>, Vec<_>) = archives()?.into_iter().partition(is_trainer);
    let (beside, others): (Vec<_>, Vec<_>) = others.into_iter().partition(is_beside);
    cluster.import(&others, progress)?;
    cluster.import_to(|node| storage.first() == Some(&node), &beside, progress)?;
    cluster.import_to(
        |node| with_class.iter().any(|other| other == node),
        &trainer,
        progress,
    )?;
    let [targets, meta] = STORAGE_LABELS;
    for (nodes, label) in [
        (&storage[..], targets),
        (storage.get(..1).unwrap_or_default(), meta),
    ] {
        if !nodes.is_empty() {
            let words = [&["label", "node", "--overwrite"][..], nodes, &[label]].concat();
            command::run(&mut cluster.kubectl(words)?)?;
        }
    }
    step(progress, "chart", || {
        upgrade(cluster, &[])?;
        if !storage.is_empty() {
            let ready = [
                "wait",
                "--for=condition=Ready",
                "storagepool/default",
                "--timeout",
                WAIT,
            ];
            command::run(&mut cluster.kubectl(ready)?)?;
        }
        Ok(((), StepOutcome::Done))
    })
}

/// Nodes that keep replicas of volumes, the first of them their metadata, too: spread over the zones.
fn storage_nodes(cluster: &Cluster) -> Vec<&str> {
    let names: Vec<_> = cluster
        .nodes
        .iter()
        .map(|node| node.name.as_str())
        .collect();
    let apart = names.len() / REPLICAS;
    if apart == 0 {
        return Vec::new();
    }
    names.into_iter().step_by(apart).take(REPLICAS).collect()
}

/// Installs the chart or upgrades it to other values (`operator.logLevel=debug`), and waits until
/// all of it is at work.
pub fn upgrade(cluster: &Cluster, values: &[&str]) -> Result<()> {
    command::run(&mut upgrading(cluster, values)?).map(|_| ())
}

/// Asks the cluster whether it takes that upgrade, and changes nothing.
pub fn try_upgrade(cluster: &Cluster, values: &[&str]) -> Result<()> {
    command::run(upgrading(cluster, values)?.arg("--dry-run=server")).map(|_| ())
}

fn upgrading(cluster: &Cluster, values: &[&str]) -> Result<Command> {
    let repository = paths::repository();
    let fixture = repository.join("e2e/fixtures/node-a100.yaml");
    let mut helm = helm(cluster)?;
    helm.args(["upgrade", "--install", RELEASE])
        .arg(repository.join("helm/fireflyer"))
        .args(["--namespace", NAMESPACE, "--create-namespace"])
        .args(["--wait", "--timeout", WAIT, "--values"])
        .arg(repository.join("e2e/values.yaml"))
        .arg(format!(
            "--set-file=devicePlugin.fixture={}",
            fixture.display()
        ));
    if storage_nodes(cluster).is_empty() {
        helm.args(["--set", "storage.enabled=false"]);
    }
    for value in values {
        helm.args(["--set", value]);
    }
    Ok(helm)
}

/// Whether the cluster has a release of the chart.
pub fn is_installed(cluster: &Cluster) -> Result<bool> {
    let mut helm = helm(cluster)?;
    helm.args(["list", "--short", "--namespace", NAMESPACE]);
    let releases = command::run(&mut helm)?;
    Ok(releases.lines().any(|name| name.trim() == RELEASE))
}

/// Uninstalls the chart and waits until its pods are gone. Jobs and their definitions stay.
pub fn uninstall(cluster: &Cluster) -> Result<()> {
    let mut helm = helm(cluster)?;
    helm.args([
        "uninstall",
        RELEASE,
        "--namespace",
        NAMESPACE,
        "--wait",
        "--timeout",
        WAIT,
    ]);
    command::run(&mut helm).map(|_| ())
}

fn helm(cluster: &Cluster) -> Result<Command> {
    let mut command = Command::new(program()?);
    command.env("KUBECONFIG", cluster.kubeconfig());
    Ok(command)
}

fn program() -> Result<PathBuf> {
    Tools::built()?.program("helm")
}

/// The archive of each image, as `cargo xtask images` left it.
fn archives() -> Result<Vec<PathBuf>> {
    let folder = image::images_folder()?;
    let listed =
        fs::read_dir(&folder).context(|| format!("failed to list {}", folder.display()))?;
    let files: Vec<_> = listed.flatten().map(|entry| entry.path()).collect();
    let find = |name: &str| {
        let found = files.iter().find(|path| image::of_archive(path) == name);
        let found = found.cloned();
        found.ok_or_else(|| {
            Error::new(format!(
                "there is no image {name}: run `cargo xtask images`"
            ))
        })
    };
    IMAGES.into_iter().map(find).collect()
}
