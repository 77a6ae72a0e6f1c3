//! Many jobs on many simulated nodes: nothing booked twice, nothing written without need.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use crds::training_job::Phase;
use crds::{Fabric, TrainingJob};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use crate::audit;
use crate::context::{Context, has_ended};
use crate::jobs::{ENDS_WELL, TestJob};

/// Node class of simulated nodes.
pub const SIMULATED_CLASS: &str = "simulated";
/// Annotation that says to the simulated member of a pod after how many seconds it ends well.
pub const RUN_SECONDS: &str = "simulation.fireflyer.dev/run-seconds";

/// 100 jobs of 1 to 8 nodes need about 40 s here; ten times that is the limit.
const ALL_FINISH: Duration = Duration::from_secs(400);
/// How long nothing may be written while jobs run.
const QUIET: Duration = Duration::from_secs(60);
/// Writes on a pod over its life: created, deleted, and a finalizer on one in eight at most.
const WRITES_PER_POD: f64 = 2.2;

/// A job on simulated nodes.
fn simulated(name: &str, nodes: u32, run_seconds: u32) -> TestJob {
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
    TestJob::shell(name, nodes, ENDS_WELL)
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

/// GANG-1 under load, and NODE-1: without a quarantine the operator writes nothing of Nodes.
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
    let most = AtomicUsize::new(0);
    context
        .eventually(
            "all jobs end well and no node is booked twice",
            ALL_FINISH,
            || async {
                let living = never_booked_twice(&pods.list(&ListParams::default()).await?.items)?;
                most.fetch_max(living, Ordering::Relaxed);
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
    context.no_pods_are_left(ALL_FINISH).await?;
    let writes = audit::writes_since(&log, start)?;
    let nodes: Vec<_> = writes
        .iter()
        .filter(|write| {
            write.account == "fireflyer-operator" && write.resource.starts_with("nodes")
        })
        .collect();
    ensure!(nodes.is_empty(), "the operator changed Nodes: {nodes:?}");
    let per_pod = writes_per_pod(&writes, &context.namespace, pods_made)?;
    let (all, most) = (
        writes.len() as f64 / f64::from(pods_made),
        most.into_inner(),
    );
    eprintln!(
        "    {per_pod:.2} writes on a pod over its life, {all:.2} of any kind per pod; \
         {most} pods at once at most"
    );
    ensure!(most > 0, "nobody looked while pods held nodes");
    ensure!(
        per_pod <= WRITES_PER_POD,
        "{per_pod:.2} writes a pod, allowed {WRITES_PER_POD}"
    );
    Ok(())
}

/// Writes on each pod of a namespace, of which there were at least so many: fewer mean that the log was not understood,
/// more that a busy machine was late to keep simulated nodes alive.
fn writes_per_pod(writes: &[audit::AuditedWrite], namespace: &str, at_least: u32) -> Result<f64> {
    let on_pods: Vec<_> = audit::on_pods(writes, namespace).collect();
    let created: BTreeSet<&str> = on_pods
        .iter()
        .filter(|write| write.verb == "create")
        .map(|write| write.name.as_str())
        .collect();
    ensure!(
        created.len() >= at_least as usize,
        "the audit log knows of {} pods, {at_least} were made",
        created.len()
    );
    Ok(on_pods.len() as f64 / created.len() as f64)
}

/// No two living pods are meant for one node; returns how many live. What they are pinned to counts: of two that are
/// meant for the same node, the stock scheduler binds only one.
fn never_booked_twice(pods: &[Pod]) -> Result<usize> {
    let mut holders = BTreeMap::new();
    for pod in pods.iter().filter(|pod| !has_ended(pod)) {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let Some(node) = pinned_to(pod) else {
            bail!("pod {name} ended as meant for no node");
        };
        if let Some(other) = holders.insert(node, name) {
            bail!("node {node} ended as booked twice: by {other} and {name}");
        }
    }
    Ok(holders.len())
}

/// The node that the operator chose for a pod.
fn pinned_to(pod: &Pod) -> Option<&str> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?;
    let required = affinity
        .node_affinity
        .as_ref()?
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let fields = required
        .node_selector_terms
        .first()?
        .match_fields
        .as_ref()?;
    Some(fields.first()?.values.as_ref()?.first()?)
}

/// API-1: running jobs, checkpoints and heartbeats cause no write at all.
pub async fn quiet_minute_has_no_writes(context: Context) -> Result<()> {
    const JOBS: u32 = 10;
    const NODES: u32 = 2;
    know_simulated_nodes(context.client.clone()).await?;
    let log = context.cluster.audit_log();
    let born = audit::mark(&log)?;
    let names: Vec<String> = (0..JOBS).map(|index| format!("calm-{index}")).collect();
    for name in &names {
        context.submit(&simulated(name, NODES, 3600)).await?;
    }
    let mut first = Vec::new();
    for name in &names {
        context.reaches(name, Phase::Running, ALL_FINISH).await?;
        // A job's first checkpoint is a transition and is written; the later ones are not.
        context
            .eventually("the first checkpoint is durable", ALL_FINISH, || async {
                context.condition(name, "CheckpointDurable", "True").await
            })
            .await?;
        first.push(saved_step(&context, name).await?);
    }
    let start = audit::mark(&log)?;
    writes_per_pod(
        &audit::writes_since(&log, born)?,
        &context.namespace,
        JOBS * NODES,
    )?;
    // Not synchronisation: the claim is about a span of time.
    tokio::time::sleep(QUIET).await;
    let writes = audit::writes_since(&log, start)?;
    ensure!(
        writes.is_empty(),
        "{} writes in a quiet minute: {writes:?}",
        writes.len()
    );

    for name in &names {
        context.change(name, json!({"suspend": true})).await?;
    }
    for (name, first) in names.iter().zip(first) {
        context.reaches(name, Phase::Suspended, ALL_FINISH).await?;
        // What was reported last is written now. A step takes a second, so it shows that the minute was
        // quiet although the jobs saved all the while.
        let last = saved_step(&context, name).await?;
        ensure!(
            last >= first + QUIET.as_secs() * 2 / 3,
            "{name} reported step {first} before the quiet minute and only step {last} after it"
        );
    }
    context.no_pods_are_left(ALL_FINISH).await?;
    let writes = audit::writes_since(&log, born)?;
    let per_pod = writes_per_pod(&writes, &context.namespace, JOBS * NODES)?;
    eprintln!("    {per_pod:.2} writes on a pod that was suspended");
    ensure!(
        per_pod <= WRITES_PER_POD,
        "{per_pod:.2} writes a pod, allowed {WRITES_PER_POD}"
    );
    for name in &names {
        context.delete(name).await?;
    }
    Ok(())
}

/// Step of the checkpoint in the job's status.
async fn saved_step(context: &Context, name: &str) -> Result<u64> {
    let status = context.job(name).await?.status.unwrap_or_default();
    let saved = status
        .last_checkpoint
        .context("no checkpoint is on record")?;
    Ok(saved.step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: Option<&str>, phase: &str) -> Pod {
        let terms = node.map(|node| {
            json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}])
        });
        let required = json!({"nodeSelectorTerms": terms.unwrap_or(json!([{}]))});
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"containers": [], "affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": required,
            }}},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    #[test]
    fn two_unbound_pods_that_are_meant_for_one_node_are_found() {
        let (one, two) = (
            pod("one", Some("n1"), "Running"),
            pod("two", Some("n1"), "Pending"),
        );
        let error = never_booked_twice(&[one.clone(), two]).unwrap_err();
        assert!(error.to_string().contains("booked twice: by one and two"));
        let (over, beside) = (
            pod("over", Some("n1"), "Succeeded"),
            pod("beside", Some("n2"), "Pending"),
        );
        assert_eq!(never_booked_twice(&[over, one, beside]).unwrap(), 2);
    }

    #[test]
    fn a_pod_that_is_pinned_to_nothing_is_found() {
        let error = never_booked_twice(&[pod("lost", None, "Pending")]).unwrap_err();
        assert!(error.to_string().contains("lost"));
    }

    #[test]
    fn a_log_without_the_creations_is_not_taken_for_none() {
        let write = |verb: &str, name: &str| audit::AuditedWrite {
            account: "fireflyer-operator".to_owned(),
            verb: verb.to_owned(),
            resource: "pods".to_owned(),
            namespace: "n".to_owned(),
            name: name.to_owned(),
        };
        let twice = [write("create", "one"), write("create", "one")];
        for (writes, namespace) in [(&[][..], "n"), (&twice[..], "n"), (&twice[..], "other")] {
            assert!(writes_per_pod(writes, namespace, 2).is_err());
        }
        let writes = [
            write("create", "one"),
            write("create", "two"),
            write("deletecollection", ""),
        ];
        assert_eq!(writes_per_pod(&writes, "n", 2).unwrap(), 1.5);
    }
}
