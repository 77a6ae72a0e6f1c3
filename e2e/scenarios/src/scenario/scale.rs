//! Many jobs on many simulated nodes: nothing booked twice, nothing written without need.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crds::training_job::Phase;
use crds::{Fabric, TrainingJob};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use crate::audit;
use crate::context::Context;
use crate::jobs::{ENDS_WELL, Job};

/// Node class of simulated nodes.
pub const SIMULATED_CLASS: &str = "simulated";
/// Annotation that tells the simulated member of a pod after how many seconds it ends well.
pub const RUN_SECONDS: &str = "simulation.fireflyer.dev/run-seconds";

/// 100 jobs of 1 to 8 nodes need about 40 s here; ten times that is the limit.
const ALL_FINISH: Duration = Duration::from_secs(400);
/// How long nothing may be written while jobs run.
const QUIET: Duration = Duration::from_secs(60);
/// Writes on a pod over its life: created, deleted, and a finalizer on one in eight at most.
const WRITES_PER_POD: f64 = 2.2;

/// A job on simulated nodes.
fn simulated(name: &str, nodes: u32, run_seconds: u32) -> Job {
    let container = json!({
        "name": "trainer",
        "image": "localhost/fireflyer/busybox:0.1.0",
        "command": ["/bin/sh", "-c", ENDS_WELL],
    });
    let template = json!({
        "metadata": {"annotations": {RUN_SECONDS: run_seconds.to_string()}},
        "spec": {
            "containers": [container],
            "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
        },
    });
    Job::shell(name, nodes, ENDS_WELL)
        .with("nodeClass", json!(SIMULATED_CLASS))
        .with("template", template)
}

/// Adds the class of simulated nodes to the Fabric.
pub async fn know_simulated_nodes(client: kube::Client) -> Result<()> {
    let fabrics: Api<Fabric> = Api::all(client);
    let mut classes = fabrics.get(crds::names::FABRIC).await?.spec.classes;
    if classes.iter().any(|class| class.name == SIMULATED_CLASS) {
        return Ok(());
    }
    classes.push(serde_json::from_value(json!({
        "name": SIMULATED_CLASS,
        "trainer": {"cpu": "1", "memory": "1Gi"},
        "sidecar": {"cpu": "100m", "memory": "64Mi"},
    }))?);
    let patch = json!({"spec": {"classes": classes}});
    let params = PatchParams::default();
    fabrics
        .patch(crds::names::FABRIC, &params, &Patch::Merge(&patch))
        .await?;
    Ok(())
}

/// GANG-1 under load, and NODE-1: of Nodes the operator writes nothing.
pub async fn hundred_jobs_on_two_hundred_nodes_all_finish(context: Context) -> Result<()> {
    know_simulated_nodes(context.client.clone()).await?;
    let log = context.cluster.audit_log();
    let start = audit::mark(&log)?;
    let mut pods_made = 0;
    for index in 0..100_u32 {
        let nodes = [1, 2, 3, 5, 8][index as usize % 5];
        pods_made += nodes;
        context
            .submit(&simulated(&format!("many-{index}"), nodes, 3))
            .await?;
    }
    let jobs: Api<TrainingJob> = Api::namespaced(context.client.clone(), &context.namespace);
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &context.namespace);
    context
        .eventually(
            "all jobs end well and no node is booked twice",
            ALL_FINISH,
            || async {
                never_booked_twice(&pods).await?;
                let phases = jobs.list(&ListParams::default()).await?.items;
                let phases = phases
                    .iter()
                    .filter_map(|job| Some(job.status.as_ref()?.phase));
                let ended = phases.filter(|phase| *phase == Phase::Succeeded).count();
                Ok((ended == 100).then_some(()))
            },
        )
        .await?;
    for index in 0..100 {
        context.delete(&format!("many-{index}")).await?;
    }
    context
        .eventually("all pods are gone", ALL_FINISH, || async {
            Ok(pods
                .list(&ListParams::default())
                .await?
                .items
                .is_empty()
                .then_some(()))
        })
        .await?;
    let writes = audit::writes_since(&log, start)?;
    let nodes: Vec<_> = writes
        .iter()
        .filter(|write| {
            write.account == "fireflyer-operator" && write.resource.starts_with("nodes")
        })
        .collect();
    ensure!(nodes.is_empty(), "the operator changed Nodes: {nodes:?}");
    let on_pods = writes
        .iter()
        .filter(|write| write.resource.starts_with("pods"))
        .count();
    let per_pod = on_pods as f64 / f64::from(pods_made);
    let all = writes.len() as f64 / f64::from(pods_made);
    eprintln!("    {per_pod:.2} writes on a pod over its life, {all:.2} of any kind per pod");
    ensure!(
        per_pod <= WRITES_PER_POD,
        "{per_pod:.2} writes a pod, allowed {WRITES_PER_POD}"
    );
    Ok(())
}

/// No two living pods that hold a node may be on the same one.
async fn never_booked_twice(pods: &Api<Pod>) -> Result<()> {
    let mut holders = BTreeMap::new();
    for pod in pods.list(&ListParams::default()).await?.items {
        let phase = pod
            .status
            .and_then(|status| status.phase)
            .unwrap_or_default();
        let node = pod.spec.and_then(|spec| spec.node_name);
        let (Some(node), false) = (node, phase == "Succeeded" || phase == "Failed") else {
            continue;
        };
        let name = pod.metadata.name.unwrap_or_default();
        if let Some(other) = holders.insert(node.clone(), name.clone()) {
            anyhow::bail!("node {node} ended as booked twice: by {other} and {name}");
        }
    }
    Ok(())
}

/// API-1: running jobs, checkpoints and heartbeats cause no write at all.
pub async fn quiet_minute_has_no_writes(context: Context) -> Result<()> {
    know_simulated_nodes(context.client.clone()).await?;
    for index in 0..10 {
        context
            .submit(&simulated(&format!("calm-{index}"), 2, 3600))
            .await?;
    }
    for index in 0..10 {
        let name = format!("calm-{index}");
        context.reaches(&name, Phase::Running, ALL_FINISH).await?;
        // A job's first checkpoint is a transition and is written; the later ones are not.
        context
            .eventually("the first checkpoint is durable", ALL_FINISH, || async {
                context.condition(&name, "CheckpointDurable", "True").await
            })
            .await?;
    }
    let log = context.cluster.audit_log();
    let start = audit::mark(&log)?;
    // Not synchronisation: the claim is about a span of time.
    tokio::time::sleep(QUIET).await;
    let writes = audit::writes_since(&log, start)?;
    for index in 0..10 {
        context
            .delete(&format!("calm-{index}"))
            .await
            .context("failed to clean up")?;
    }
    ensure!(
        writes.is_empty(),
        "{} writes in a quiet minute: {writes:?}",
        writes.len()
    );
    Ok(())
}
