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
/// What the nodes need: our programs, the trainer of the examples, and a shell for small jobs.
pub const IMAGES: [&str; 6] = [
    "operator",
    "hfreduce-sidecar",
    "device-plugin",
    "validator",
    TRAINER,
    "busybox",
];

/// Gives the nodes our images, installs the chart or upgrades it, and waits until it is at work.
pub fn install(cluster: &Cluster, progress: ProgressFn<'_>) -> Result<()> {
    let with_class = cluster.nodes_with(NODE_CLASS)?;
    let is_trainer = |archive: &PathBuf| image::of_archive(archive) == TRAINER;
    let (trainer, others): (Vec<_>, Vec<_>) = archives()?.into_iter().partition(is_trainer);
    cluster.import(&others, progress)?;
    cluster.import_to(
        |node| with_class.iter().any(|other| other == node),
        &trainer,
        progress,
    )?;
    step(progress, "chart", || {
        upgrade(cluster, &[])?;
        Ok(((), StepOutcome::Done))
    })
}

/// Installs the chart or upgrades it to other values (`operator.logLevel=debug`), and waits until
/// all of it is at work.
pub fn upgrade(cluster: &Cluster, values: &[&str]) -> Result<()> {
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
    for value in values {
        helm.args(["--set", value]);
    }
    command::run(&mut helm).map(|_| ())
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
