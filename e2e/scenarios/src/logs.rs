//! What a failing scenario leaves behind: one folder with what its containers said from the start, because the pods
//! of earlier attempts are gone by then, and with what the cluster looked like at the end. It lies beside the clusters,
//! so that taking one down does not take the logs away.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cluster::Cluster;
use futures::{AsyncReadExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::LogParams;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, ResourceExt as _};
use tokio::task::{JoinHandle, JoinSet};

/// Bytes of a log that are copied at once.
const BUFFER_BYTES: usize = 16 << 10;

/// The logs of one scenario, which are copied while it runs.
#[derive(Debug)]
pub struct Logs {
    namespace: String,
    folder: PathBuf,
    copier: JoinHandle<()>,
}

/// The folder of all scenarios that fail on this cluster.
fn failures(cluster: &Cluster) -> Result<PathBuf> {
    let clusters = cluster::paths::clusters()?;
    Ok(clusters.with_file_name("failures").join(cluster.name()))
}

/// Removes what the last run on a cluster of this name left.
pub fn forget(cluster: &Cluster) -> Result<()> {
    remove(&failures(cluster)?)
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", folder.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

impl Logs {
    /// Begins to copy what the containers of a namespace say.
    pub fn follow(client: Client, cluster: &Cluster, namespace: &str) -> Result<Self> {
        let folder = failures(cluster)?.join(namespace);
        let containers = folder.join("containers");
        fs::create_dir_all(&containers).context("failed to make a folder for logs")?;
        let pods = Api::namespaced(client, namespace);
        // Containers on simulated nodes say nothing.
        let nodes = cluster.nodes().map(|node| node.name().to_owned()).collect();
        let copier = tokio::spawn(copy_all(pods, nodes, containers));
        Ok(Self {
            namespace: namespace.to_owned(),
            folder,
            copier,
        })
    }

    /// The scenario held: nobody needs its logs.
    pub async fn discard(self) -> Result<()> {
        let (_, folder) = self.stop().await;
        remove(&folder)
    }

    /// The scenario failed: adds objects, Events and logs of the namespace and of our own pods, and the logs of the
    /// cluster itself. `ask` answers as kubectl does.
    pub async fn keep(
        self,
        ask: impl Fn(&str) -> Result<Vec<u8>>,
        cluster_logs: &Path,
    ) -> Result<PathBuf> {
        let (namespace, folder) = self.stop().await;
        let keep = |file: &str, question: &str| -> Result<()> {
            let answer = ask(question).unwrap_or_else(|error| format!("{error:#}").into_bytes());
            fs::write(folder.join(file), answer).with_context(|| format!("failed to write {file}"))
        };
        let system = crds::names::SYSTEM_NAMESPACE;
        keep(
            "jobs.yaml",
            &format!("get trainingjobs,configmaps -o yaml -n {namespace}"),
        )?;
        keep("pods.yaml", &format!("get pods -o yaml -n {namespace}"))?;
        keep("events.txt", &format!("get events -n {namespace}"))?;
        keep("nodes.yaml", "get nodes -o yaml")?;
        keep("system.txt", &format!("get all -o wide -n {system}"))?;
        for namespace in [namespace.as_str(), system] {
            let names = ask(&format!("get pods -o name -n {namespace}")).unwrap_or_default();
            for pod in String::from_utf8_lossy(&names).lines() {
                let question = format!("logs {pod} -n {namespace} --all-containers --prefix");
                let file = pod.replace('/', "-");
                keep(&format!("{file}.log"), &question)?;
                if namespace == system {
                    // Of what was started again, the life before. Most have none.
                    let question = format!("{question} --previous");
                    keep(&format!("{file}.previous.log"), &question)?;
                }
            }
        }
        share(cluster_logs, &folder.join("cluster"))?;
        Ok(folder)
    }

    /// Stops copying; namespace and folder are what is left.
    async fn stop(self) -> (String, PathBuf) {
        self.copier.abort();
        // The only error is that it was stopped.
        let _ = self.copier.await;
        (self.namespace, self.folder)
    }
}

/// Gives the files of a folder a second name each, which costs no space and stays when the first one goes.
fn share(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("failed to keep {}", from.display());
    fs::create_dir_all(to).with_context(failed)?;
    for entry in fs::read_dir(from).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let (file, copy) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().with_context(failed)?.is_dir() {
            share(&file, &copy)?;
        } else if fs::hard_link(&file, &copy).is_err() {
            fs::copy(&file, &copy).with_context(failed)?;
        }
    }
    Ok(())
}

/// Copies the log of each container as soon as it has one, until it is stopped.
async fn copy_all(pods: Api<Pod>, nodes: BTreeSet<String>, folder: PathBuf) {
    let mut copies = JoinSet::new();
    let mut known = BTreeSet::new();
    let events = watcher::watcher(pods.clone(), watcher::Config::default()).default_backoff();
    let mut events = std::pin::pin!(events);
    while let Some(event) = events.next().await {
        // What fails is tried again by the watcher.
        let Ok(Event::Apply(pod) | Event::InitApply(pod)) = event else {
            continue;
        };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        if !node.is_some_and(|node| nodes.contains(node)) {
            continue;
        }
        for status in started(&pod) {
            let ContainerStatus {
                name,
                restart_count,
                ..
            } = status;
            if known.insert((pod.uid(), name.clone(), *restart_count)) {
                let file = format!("{}.{name}.{restart_count}.log", pod.name_any());
                let copy = copy(
                    pods.clone(),
                    pod.name_any(),
                    name.clone(),
                    folder.join(file),
                );
                copies.spawn(copy);
            }
        }
    }
}

/// Containers of the pod that have a log.
fn started(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    init.into_iter()
        .chain(containers)
        .flatten()
        .filter(|container| {
            container
                .state
                .as_ref()
                .is_some_and(|state| state.running.is_some() || state.terminated.is_some())
        })
}

/// Copies a container's log to its end. If it cannot be read, the file says so.
async fn copy(pods: Api<Pod>, pod: String, container: String, file: PathBuf) -> Result<()> {
    let mut file = File::options().create(true).append(true).open(file)?;
    let params = LogParams {
        container: Some(container),
        follow: true,
        ..LogParams::default()
    };
    let mut buffer = vec![0; BUFFER_BYTES];
    let copied = async {
        let mut log = std::pin::pin!(pods.log_stream(&pod, &params).await?);
        loop {
            match log.read(&mut buffer).await? {
                0 => return anyhow::Ok(()),
                read => file.write_all(&buffer[..read])?,
            }
        }
    };
    if let Err(error) = copied.await {
        writeln!(file, "the log ends here: {error:#}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logs of a scenario whose container has said something, and a folder of the cluster's own.
    fn logs(name: &str) -> (Logs, PathBuf, PathBuf) {
        let root = std::env::temp_dir().join(format!("logs-{name}-{}", std::process::id()));
        let (folder, cluster) = (root.join("failures/some-scenario"), root.join("cluster"));
        fs::create_dir_all(folder.join("containers")).unwrap();
        fs::create_dir_all(cluster.join("node-1")).unwrap();
        fs::write(folder.join("containers/job-1-0.trainer.0.log"), "step=1").unwrap();
        fs::write(cluster.join("node-1/kubelet.log"), "started").unwrap();
        let copier = tokio::spawn(std::future::pending());
        let logs = Logs {
            namespace: "some-namespace".to_owned(),
            folder,
            copier,
        };
        (logs, cluster, root)
    }

    #[tokio::test]
    async fn what_a_failing_scenario_left_outlives_its_cluster() {
        let (logs, cluster, root) = logs("failed");
        let answer = |question: &str| match question {
            "get pods -o name -n some-namespace" => Ok(b"pod/job-2-0\n".to_vec()),
            _ => Ok(question.as_bytes().to_vec()),
        };
        let folder = logs.keep(answer, &cluster).await.unwrap();
        fs::remove_dir_all(cluster).unwrap();
        let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap();
        assert_eq!(read("containers/job-1-0.trainer.0.log"), "step=1");
        assert!(read("pods.yaml").contains("-n some-namespace"));
        assert!(read("pod-job-2-0.log").starts_with("logs pod/job-2-0 -n some-namespace"));
        assert_eq!(read("cluster/node-1/kubelet.log"), "started");
        fs::remove_dir_all(root).unwrap();
    }

    #[tokio::test]
    async fn logs_are_kept_when_nobody_answers() {
        let (logs, cluster, root) = logs("silent");
        let silent = |_: &str| Err(anyhow::anyhow!("no API server"));
        let folder = logs.keep(silent, &cluster).await.unwrap();
        let text = fs::read_to_string(folder.join("events.txt")).unwrap();
        assert_eq!(text, "no API server");
        assert!(folder.join("cluster/node-1/kubelet.log").exists());
        fs::remove_dir_all(root).unwrap();
    }

    #[tokio::test]
    async fn a_scenario_that_holds_leaves_nothing() {
        let (logs, _, root) = logs("held");
        let folder = logs.folder.clone();
        logs.discard().await.unwrap();
        assert!(!folder.exists());
        fs::remove_dir_all(root).unwrap();
    }
}
