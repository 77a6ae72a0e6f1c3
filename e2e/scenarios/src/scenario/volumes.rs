//! Volumes of the chart's own storage: claimed, shared, refused. What breaks them is in `faults`, what they cost in `costs`.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use kube::Api;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::context::Context;
use crate::pods::{DATA, Pods};
use crate::scenario::START;

pub mod costs;
pub mod faults;
mod writer;

/// By which the chart finds the nodes with replicas.
const TARGETS: &str = "storage.fireflyer.dev/targets";
/// A killed process runs again at once, or after the kubelet's back-off of some 10 s; ten times that is the limit.
const RESTART: Duration = Duration::from_secs(100);

fn in_data(script: &str) -> String {
    format!("cd {DATA} && {script}")
}

pub async fn claim_is_bound_and_pods_on_two_nodes_share_a_file(context: Context) -> Result<()> {
    let nodes: Vec<_> = context.cluster.nodes().map(|node| node.name()).collect();
    let [one, .., other] = nodes[..] else {
        anyhow::bail!("the cluster has one node");
    };
    let pods = Pods::of(&context);
    let started = Instant::now();
    context.volume("shared").await?;
    let writes = "echo written on one node > file.part && mv file.part file";
    pods.runs(
        Pods::on_claim("writer", &in_data(writes), "shared", one),
        START,
    )
    .await?;
    eprintln!(
        "    a pod had used its volume {:.1} s after the claim",
        started.elapsed().as_secs_f64()
    );
    let reads = "cat file && echo and on another >> file";
    let read = Pods::on_claim("reader", &in_data(reads), "shared", other);
    let read = pods.runs(read, START).await?;
    ensure!(
        read == "written on one node\n",
        "the other node read {read:?}"
    );
    let again = Pods::on_claim("again", &in_data("cat file"), "shared", one);
    let again = pods.runs(again, START).await?;
    ensure!(
        again.ends_with("and on another\n"),
        "the first node read {again:?}"
    );

    // Where replicas lie can be seen.
    let chains = context.kubectl(&["get", "storagechains"]).await?;
    for node in with_label(&context, TARGETS).await? {
        ensure!(chains.contains(&node), "no chain names {node}: {chains}");
    }
    ensure!(chains.contains("Serving"), "no chain serves: {chains}");
    let pools = context.kubectl(&["get", "storagepools"]).await?;
    ensure!(pools.contains("Ready"), "the pool is not ready: {pools}");

    // What was claimed goes with the claim.
    for pod in ["writer", "reader", "again"] {
        pods.delete(pod).await?;
    }
    let path = "jsonpath={.spec.volumeName}";
    let claim = ["get", "pvc", "shared", "-n", &context.namespace, "-o", path];
    let volume = context.kubectl(&claim).await?;
    let claim = ["delete", "pvc", "shared", "-n", &context.namespace];
    context.kubectl(&claim).await?;
    let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
    let look = || async { Ok(volumes.get_opt(&volume).await?.is_none().then_some(())) };
    context
        .eventually("the volume is deleted", START, look)
        .await
}

pub async fn claims_that_cannot_be_served_say_why(context: Context) -> Result<()> {
    let class = format!("odd-{}", std::process::id());
    let odd = format!(
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {{name: {class}}}\n\
         provisioner: csi.fireflyer.dev\nparameters: {{replicas: \"2\"}}\n"
    );
    context.cluster.apply(&odd)?;
    let claim = |class: &str, bytes: &str, mode: &str| {
        json!({
            "accessModes": ["ReadWriteMany"],
            "storageClassName": class,
            "volumeMode": mode,
            "resources": {"requests": {"storage": bytes}},
        })
    };
    let refused = [
        (
            "unknown",
            claim(&class, "1Gi", "Filesystem"),
            "known are mode, uid, gid",
        ),
        (
            "block",
            claim("fireflyer", "1Gi", "Block"),
            "block volumes are not offered",
        ),
        (
            "huge",
            claim("fireflyer", "1Pi", "Filesystem"),
            "bytes are left",
        ),
    ];
    for (name, spec, _) in &refused {
        context
            .claim_with(&context.namespace, name, spec.clone())
            .await?;
    }
    for (name, _, why) in &refused {
        let look = || async {
            let describe = ["describe", "pvc", name, "-n", &context.namespace];
            let said = context.kubectl(&describe).await?;
            Ok(said.contains(why).then_some(()))
        };
        let what = format!("the claim {name} says {why:?}");
        context.eventually(&what, START, look).await?;
    }
    context.kubectl(&["delete", "storageclass", &class]).await?;
    Ok(())
}

/// Names of the nodes that have a label.
async fn with_label(context: &Context, label: &str) -> Result<Vec<String>> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let nodes = nodes
        .list(&ListParams::default().labels(label))
        .await?
        .items;
    ensure!(!nodes.is_empty(), "no node has the label {label}");
    Ok(nodes.iter().map(|node| node.name_any()).collect())
}

/// Waits until all chains are complete and all of storage's pods are ready.
async fn storage_is_ready(context: &Context) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), crds::names::SYSTEM_NAMESPACE);
    let labels =
        "app.kubernetes.io/component in (storage, storage-meta, storage-controller, storage-node)";
    let params = ListParams::default().labels(labels);
    let look = || async {
        let pods = pods.list(&params).await?.items;
        Ok((!pods.is_empty() && pods.iter().all(is_ready)).then_some(()))
    };
    context.eventually("storage is ready", RESTART, look).await
}

fn is_ready(pod: &Pod) -> bool {
    let status = serde_json::to_value(&pod.status).unwrap_or_default();
    let conditions = status["conditions"].as_array();
    let is_true = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
    conditions.is_some_and(|conditions| conditions.iter().any(is_true))
}
