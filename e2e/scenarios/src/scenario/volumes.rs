//! Volumes of the chart's own storage: claimed, shared, and what is left of what was written when something breaks.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crds::training_job::Phase;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod};
use kube::Api;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};

use crate::context::Context;
use crate::jobs::TestJob;
use crate::pods::{DATA, Pods};
use crate::scenario::{NODE_LOSS, START};

/// By which the chart finds the nodes with replicas, and the one with the metadata.
const TARGETS: &str = "storage.fireflyer.dev/targets";
const META: &str = "storage.fireflyer.dev/meta";
/// A killed process runs again at once, or after the kubelet's back-off of some 10 s; ten times that is the limit.
const RESTART: Duration = Duration::from_secs(100);

/// Writes files whose content follows from their number, and prints each number once the file is durable and has its
/// name: until there is a file `stop`.
const WRITES: &str = r#"set -e
i=0
while [ ! -e stop ]; do
  i=$((i+1))
  seq $i $((i+9999)) > /tmp/part
  dd if=/tmp/part of=new bs=16k conv=fsync 2> /dev/null
  mv new $i
  echo $i
done"#;

/// Looks whether all files up to the last one are there, whole, and no others.
const CHECKS: &str = r#"last=$(ls | grep -c '^[0-9]*$')
for i in $(seq 1 $last); do
  [ "$(seq $i $((i+9999)) | md5sum)" = "$(md5sum < $i)" ] || { echo file $i of $last is wrong; exit 1; }
done
echo $last files are right"#;

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
        ("block", claim("fireflyer", "1Gi", "Block"), "block"),
        ("huge", claim("fireflyer", "1Pi", "Filesystem"), "left"),
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

pub async fn killed_processes_of_storage_lose_no_write(context: Context) -> Result<()> {
    let targets = with_label(&context, TARGETS).await?;
    let meta = with_label(&context, META).await?;
    let on_meta = meta.first().context("no node has the metadata")?;
    let mut kills: Vec<_> = targets
        .iter()
        .map(|node| (node.as_str(), "^/usr/bin/storage-csi .* service "))
        .collect();
    kills.push((on_meta, "^/usr/bin/storage-csi .* manager "));
    kills.push((on_meta, "^/usr/bin/storage-csi .* meta "));
    kills.push((on_meta, "^/usr/local/bin/etcd .*--name=fireflyer"));

    let writer = Writer::start(&context).await?;
    for (node, process) in kills {
        let before = Instant::now();
        context
            .cluster
            .node(node)?
            .run(&["pkill", "-KILL", "-f", process])?;
        writer.goes_on(RESTART).await?;
        eprintln!(
            "    writes went on {:.1} s after the kill of {process:?}",
            before.elapsed().as_secs_f64()
        );
        storage_is_ready(&context).await?;
    }
    writer.ends_with_all().await
}

pub async fn killed_mount_daemon_serves_new_pods(context: Context) -> Result<()> {
    let node = context.cluster.nodes().last().context("no node")?.name();
    let pods = Pods::of(&context);
    context.volume("held").await?;
    let holds = in_data("echo kept > file && touch /tmp/ready && sleep 3600");
    pods.create(Pods::on_claim("holder", &holds, "held", node))
        .await?;
    let ready = || async { Ok(pods.exec("holder", "test -e /tmp/ready").await.ok()) };
    context
        .eventually("the volume is used", START, ready)
        .await?;
    context
        .cluster
        .node(node)?
        .run(&["pkill", "-KILL", "-f", "^/usr/bin/storage-csi .* node "])?;
    let look = || async {
        let said = pods
            .exec("holder", &in_data("cat file 2>&1 || true"))
            .await?;
        let is_dead = said.contains("not connected");
        ensure!(is_dead || said.contains("kept"), "the pod reads {said:?}");
        Ok(is_dead.then_some(()))
    };
    context.eventually("the mount is dead", START, look).await?;
    // The new one is made while the old one's mount is still there.
    let reads = Pods::on_claim("new", &in_data("cat file"), "held", node);
    let read = pods.runs(reads, RESTART).await?;
    ensure!(read == "kept\n", "the new pod read {read:?}");
    pods.delete("holder").await
}

pub async fn killed_node_takes_its_mounts_along(context: Context) -> Result<()> {
    context.volume("moved").await?;
    // The second attempt looks at what the first wrote.
    let script = format!(
        "cd /checkpoint && if [ \"$FIREFLYER_ATTEMPT\" = 1 ]; then {WRITES}\nelse {CHECKS}\nfi"
    );
    context
        .start(&TestJob::shell("mover", 1, &script).checkpoint("moved", 300))
        .await?;
    let wrote = || async {
        let log = context.log("mover", 1, 0).await?;
        Ok((log.lines().count() > 3).then_some(()))
    };
    context
        .eventually("some files are written", START, wrote)
        .await?;
    let node = context.node_of("mover", 0).await?;
    let before = Instant::now();
    // It fails where the node is not gone in 20 s.
    context.cluster.node(&node)?.kill()?;
    eprintln!(
        "    the node was gone after {:.1} s",
        before.elapsed().as_secs_f64()
    );
    // Nobody can write while a replica is away: it may be this node's.
    let lost = context.node_ready(&node, false, NODE_LOSS).await;
    context.cluster.node(&node)?.restart()?;
    context.node_ready(&node, true, NODE_LOSS).await?;
    lost?;
    let ended = context
        .reaches("mover", Phase::Succeeded, NODE_LOSS + START)
        .await?;
    let attempt = ended.status.map_or(0, |status| status.attempt);
    ensure!(attempt > 1, "the job did not notice that its node died");
    let log = context.log("mover", attempt, 0).await?;
    ensure!(
        log.contains("files are right"),
        "attempt {attempt} read: {log}"
    );
    storage_is_ready(&context).await
}

pub async fn of_two_drained_storage_nodes_one_waits(context: Context) -> Result<()> {
    let targets = with_label(&context, TARGETS).await?;
    let [one, other, ..] = &targets[..] else {
        anyhow::bail!("fewer than two nodes have replicas: {targets:?}");
    };
    let writer = Writer::start(&context).await?;
    let drain = |node: &str, seconds: &str| {
        let words = [
            "drain",
            node,
            "--pod-selector=app.kubernetes.io/component=storage",
            "--timeout",
            seconds,
        ];
        words.map(str::to_owned)
    };
    let drained = drained(&context, &drain(one, "60s")).await;
    let refused = drained_both(&context, &drain(other, "10s"), &drained).await;
    for node in [one, other] {
        context.kubectl(&["uncordon", node]).await?;
    }
    drained?;
    refused?;
    storage_is_ready(&context).await?;
    writer.goes_on(RESTART).await?;
    writer.ends_with_all().await
}

async fn drained(context: &Context, words: &[String]) -> Result<String> {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    context.kubectl(&words).await
}

/// The second drain ends without a pod that went, because of the budget.
async fn drained_both(context: &Context, words: &[String], first: &Result<String>) -> Result<()> {
    if first.is_err() {
        return Ok(());
    }
    let Err(error) = drained(context, words).await else {
        anyhow::bail!("both nodes were drained at once");
    };
    let said = format!("{error:#}");
    ensure!(
        said.contains("disruption budget"),
        "the second drain says {said}"
    );
    Ok(())
}

/// A pod that writes for as long as a scenario wants.
struct Writer<'a> {
    context: &'a Context,
    pods: Pods<'a>,
    reader: String,
}

const WRITER: &str = "writer";

impl<'a> Writer<'a> {
    /// On a node without replicas where there is one.
    async fn start(context: &'a Context) -> Result<Self> {
        let targets = with_label(context, TARGETS).await?;
        let names = context.cluster.nodes().map(|node| node.name());
        let (with, without): (Vec<_>, Vec<_>) =
            names.partition(|name| targets.iter().any(|node| node == name));
        let mut nodes = without.into_iter().chain(with).cycle();
        let (Some(node), Some(reader)) = (nodes.next(), nodes.next()) else {
            anyhow::bail!("the cluster has no nodes");
        };
        context.volume("written").await?;
        let pods = Pods::of(context);
        pods.create(Pods::on_claim(WRITER, &in_data(WRITES), "written", node))
            .await?;
        let writer = Self {
            context,
            pods,
            reader: reader.to_owned(),
        };
        writer.goes_on(START).await?;
        Ok(writer)
    }

    async fn last(&self) -> Result<u64> {
        let log = self.pods.log(WRITER).await?;
        let last = log.lines().next_back().unwrap_or("0");
        last.parse()
            .with_context(|| format!("the writer printed {last:?}"))
    }

    /// Waits until three more files are written.
    async fn goes_on(&self, limit: Duration) -> Result<()> {
        let before = self.last().await.unwrap_or(0);
        let look = || async { Ok((self.last().await? >= before + 3).then_some(())) };
        self.context.eventually("writes go on", limit, look).await
    }

    /// Stops it, and looks at all that it wrote from another node.
    async fn ends_with_all(self) -> Result<()> {
        self.pods.exec(WRITER, &in_data("touch stop")).await?;
        self.pods.ends_well(WRITER, START).await?;
        let last = self.last().await?;
        let checks = Pods::on_claim("checker", &in_data(CHECKS), "written", &self.reader);
        let said = self.pods.runs(checks, START).await?;
        ensure!(
            said == format!("{last} files are right\n"),
            "{last} files were acknowledged, another node says {said:?}"
        );
        Ok(())
    }
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
