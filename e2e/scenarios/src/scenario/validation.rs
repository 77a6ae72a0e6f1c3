//! NodeValidations: real checks on a real node, and a verdict with figures.

pub mod network;

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crds::node_validation::{
    NodeValidationStatus, ValidationPhase, ValidationResult, ValidationVerdict,
};
use crds::training_job::Phase;
use crds::{Fabric, NodeValidation, NodeValidationPolicy, names};
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::context::Context;
use crate::jobs::{COUNTS, RUNS_UNTIL_ASKED, TestJob};
use crate::scenario::START;

/// A Quick run on an idle node takes up to 20 s; ten times that is the limit.
const QUICK: Duration = Duration::from_secs(200);
/// A kubelet gives a changed ConfigMap to its pods within a minute and a half.
const MOUNTED: Duration = Duration::from_secs(200);
/// The ConfigMap with the hardware that agents show.
const FIXTURE: &str = "fireflyer-node-fixture";
const ENFORCING: &str = "enforcing";
const ALL_CORES: &str = "all cores";
const LOST_GPU: &str = "GPU-00000000-0000-4000-a100-000000000003";

pub async fn node_that_lost_a_gpu_is_in_quarantine_until_it_passes(context: Context) -> Result<()> {
    let mut nodes = context.cluster.nodes().map(|node| node.name().to_owned());
    let (broken, whole) = (nodes.next(), nodes.next());
    let (broken, whole) = (broken.context("no node")?, whole.context("no node")?);

    enforce(&context).await?;
    lose_gpu(&context, &broken, true).await?;
    gpus(&context, &broken, "7").await?;
    validate(&context, "broken", &broken).await?;
    validate(&context, "whole", &whole).await?;
    let found = verdict(&context, "broken").await?;
    ensure!(
        found.verdict == Some(ValidationVerdict::Fail),
        "a node with 7 of 8 GPUs: {found:?}"
    );
    let message = found.message.unwrap_or_default();
    ensure!(
        message.contains(names::RESOURCE_GPU) && message.contains("validate again"),
        "the message names neither the resource nor the remedy: {message}"
    );
    quarantined(&context, &broken, Some("broken")).await?;
    let found = verdict(&context, "whole").await?;
    ensure!(
        found.verdict == Some(ValidationVerdict::Pass),
        "a whole node: {found:?}"
    );
    let measured = found.results.iter().filter(|one| one.value.is_some());
    ensure!(
        measured.count() >= 4 && found.fingerprint.is_some(),
        "too few figures: {:?}",
        found.results
    );

    lose_gpu(&context, &broken, false).await?;
    gpus(&context, &broken, "8").await?;
    // It offers all its GPUs, and no job gets it: it has not passed yet. What the job could have is
    // every other node.
    let others = 1..context.cluster.nodes().count();
    let names: Vec<String> = others.map(|other| format!("other-{other}")).collect();
    for name in &names {
        let job = TestJob::shell(name, 1, RUNS_UNTIL_ASKED);
        context.submit(&job).await?;
    }
    for name in &names {
        context.reaches(name, Phase::Running, START).await?;
        let node = context.node_of(name, 0).await?;
        ensure!(node != broken, "a job got a node in quarantine");
    }
    for name in &names {
        context.delete(name).await?;
    }
    // A job on the node is not disturbed: the validation waits for its end.
    let job = TestJob::shell("busy", 1, RUNS_UNTIL_ASKED);
    context.start(&job).await?;
    let busy = context.node_of("busy", 0).await?;
    validate(&context, "later", &busy).await?;
    waits(&context, "later", "NodeInUse").await?;
    let job = context.job("busy").await?.status.unwrap_or_default();
    ensure!(
        job.phase == Phase::Running && job.attempt == 1,
        "the validation disturbed the job: {job:?}"
    );
    context.delete("busy").await?;
    let found = verdict(&context, "later").await?;
    ensure!(
        found.verdict == Some(ValidationVerdict::Pass),
        "the node of a job that ended: {found:?}"
    );

    let began = Instant::now();
    validate(&context, "repaired", &broken).await?;
    let found = verdict(&context, "repaired").await?;
    ensure!(
        found.verdict == Some(ValidationVerdict::Pass),
        "the repaired node: {found:?}"
    );
    quarantined(&context, &broken, None).await?;
    println!(
        "    a verdict of Quick after {:.1} s",
        began.elapsed().as_secs_f64()
    );
    forget(&context, &["broken", "whole", "later", "repaired"]).await?;
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), names::VALIDATION_NAMESPACE);
    context
        .eventually("no pod of a validation is left", START, || async {
            let left = pods.list(&ListParams::default()).await?.items;
            Ok(left.is_empty().then_some(()))
        })
        .await
}

pub async fn policy_validates_all_nodes_and_a_job_goes_on(context: Context) -> Result<()> {
    context.claim("store", "ReadWriteMany").await?;
    // It writes a line a second; a pause or a restart would show.
    let job = TestJob::shell("counting", 2, COUNTS).checkpoint("store", 300);
    context.start(&job).await?;
    let busy = [
        context.node_of("counting", 0).await?,
        context.node_of("counting", 1).await?,
    ];
    let nodes: BTreeSet<String> = context
        .cluster
        .nodes()
        .map(|node| node.name().to_owned())
        .collect();
    let policies = policies(&context);
    let object = json!({
        "apiVersion": names::API_VERSION,
        "kind": "NodeValidationPolicy",
        "metadata": {"name": "weekly"},
        "spec": {"level": "Quick"},
    });
    let object: NodeValidationPolicy = serde_json::from_value(object)?;
    policies.create(&PostParams::default(), &object).await?;
    let validated = |all: bool| {
        let (context, busy, nodes) = (&context, &busy, &nodes);
        async move {
            let mut passed = BTreeSet::new();
            for run in validations(context).list(&ListParams::default()).await? {
                let status = run.status.unwrap_or_default();
                ensure!(
                    all || !busy.contains(&run.spec.node_name)
                        || status.phase == ValidationPhase::Pending,
                    "the node of a job is validated: {}",
                    run.spec.node_name
                );
                if status.phase == ValidationPhase::Finished {
                    ensure!(
                        status.verdict == Some(ValidationVerdict::Pass),
                        "node {}: {:?}",
                        run.spec.node_name,
                        status.message
                    );
                    passed.insert(run.spec.node_name);
                }
            }
            let missing = nodes.iter().filter(|node| !passed.contains(*node));
            let missing = missing.filter(|node| all || !busy.contains(node)).count();
            Ok((missing == 0).then_some(()))
        }
    };
    context
        .eventually("all idle nodes are validated", QUICK, || validated(false))
        .await?;
    let status = context.job("counting").await?.status.unwrap_or_default();
    ensure!(
        status.phase == Phase::Running && status.attempt == 1,
        "the policy disturbed the job: {status:?}"
    );
    ensure!(
        steps(&context, 1).await?.start == 0,
        "the job did not begin at step 0"
    );

    // Its nodes are overdue: one run asks, and both nodes are validated before it goes on.
    let waiting = validations(&context).list(&ListParams::default()).await?;
    let mut waiting = waiting.into_iter();
    let waiting = waiting.find(|run| run.spec.node_name == busy[0]);
    let waiting = waiting.context("no run waits for the job")?;
    let overdue = Patch::Merge(json!({"spec": {"whenBusy": "Interrupt"}}));
    let name = waiting.metadata.name.unwrap_or_default();
    validations(&context)
        .patch(&name, &PatchParams::default(), &overdue)
        .await?;
    context
        .eventually("all nodes are validated", QUICK, || validated(true))
        .await?;
    let resumed = context.eventually("the job goes on", START, || async {
        let status = context.job("counting").await?.status.unwrap_or_default();
        let runs = status.phase == Phase::Running && status.attempt == 2;
        Ok(runs.then_some(status))
    });
    let saved = resumed.await?.last_checkpoint;
    let saved = saved.context("the job left without a checkpoint")?;
    let again = steps(&context, 2).await?;
    ensure!(
        again.start == saved.step + 1,
        "the job saved step {} and resumed at {}",
        saved.step,
        again.start
    );
    context.delete("counting").await?;
    let shown = context.eventually("the policy shows it", START, || async {
        let status = policies.get("weekly").await?.status.unwrap_or_default();
        let count = usize::try_from(status.nodes)?;
        let rests = (status.due, status.running, status.waiting, status.failed) == (0, 0, 0, 0)
            && count == nodes.len();
        Ok(rests.then_some(()))
    });
    shown.await?;
    policies.delete("weekly", &DeleteParams::default()).await?;
    context
        .eventually("its runs go with the policy", START, || async {
            let left = validations(&context).list(&ListParams::default()).await?;
            Ok(left.items.is_empty().then_some(()))
        })
        .await
}

/// The steps that an attempt of the counting job wrote, which are some and without a gap.
async fn steps(context: &Context, attempt: u32) -> Result<Range<u64>> {
    context
        .eventually("the job takes steps", START, || async {
            let log = context.log("counting", attempt, 0).await?;
            let steps = log.lines().filter_map(|line| line.strip_prefix("step "));
            let steps: Vec<u64> = steps.filter_map(|step| step.parse().ok()).collect();
            let (Some(first), Some(last)) = (steps.first(), steps.last()) else {
                return Ok(None);
            };
            let found = *first..last + 1;
            ensure!(
                steps.iter().copied().eq(found.clone()),
                "the job's steps are not consecutive: {steps:?}"
            );
            Ok((steps.len() > 5).then_some(found))
        })
        .await
}

pub async fn throttled_node_is_below_its_floor_and_in_quarantine(context: Context) -> Result<()> {
    let node = context.cluster.nodes().next().context("no node")?;
    let name = node.name().to_owned();
    let fast = all_cores(&context, "fast", &name).await?;
    ensure!(
        fast.verdict == ValidationVerdict::Pass,
        "a node without a floor: {fast:?}"
    );
    let value = fast.value.context("no clock was measured")?;
    enforce(&context).await?;

    // Half of what the node can: what neighbours of the machine do costs less, the limit more.
    let floor = json!([{"check": "CpuFrequency", "device": ALL_CORES, "value": value / 2.0}]);
    set_floors(&context, floor).await?;
    node.limit_cpu(Some(20))?;
    let slow = all_cores(&context, "slow", &name).await;
    node.limit_cpu(None)?;
    let slow = slow?;
    ensure!(
        slow.verdict == ValidationVerdict::Fail && slow.floor.is_some(),
        "a throttled node: {slow:?}"
    );
    quarantined(&context, &name, Some("slow")).await?;
    let found = all_cores(&context, "repaired", &name).await?;
    ensure!(
        found.verdict == ValidationVerdict::Pass,
        "a node that is not throttled any more: {found:?}"
    );
    quarantined(&context, &name, None).await?;
    set_floors(&context, json!([])).await?;
    forget(&context, &["fast", "slow", "repaired"]).await
}

pub async fn claim_is_measured_beside_the_disk(context: Context) -> Result<()> {
    let node = context.cluster.nodes().next().context("no node")?;
    let object = json!({
        "apiVersion": names::API_VERSION,
        "kind": "NodeValidation",
        "metadata": {"name": "storage"},
        "spec": {"nodeName": node.name(), "checks": ["Disk"], "claimName": "measured"},
    });
    let object: NodeValidation = serde_json::from_value(object)?;
    validations(&context)
        .create(&PostParams::default(), &object)
        .await?;
    waits(&context, "storage", "ClaimUnusable").await?;
    let namespace = names::VALIDATION_NAMESPACE;
    context
        .claim_in(namespace, "measured", "ReadWriteMany")
        .await?;
    let status = verdict(&context, "storage").await?;
    let devices = status.results.iter().map(|one| one.device.as_deref());
    let devices: Vec<_> = devices.map(Option::unwrap_or_default).collect();
    ensure!(
        status.verdict == Some(ValidationVerdict::Pass)
            && devices == ["write", "read", "claim write", "claim read"],
        "the disk and the claim: {status:?}"
    );
    validations(&context)
        .delete("storage", &DeleteParams::default())
        .await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    claims.delete("measured", &DeleteParams::default()).await?;
    Ok(())
}

/// A policy that keeps nodes that fail from jobs, and creates no runs.
async fn enforce(context: &Context) -> Result<()> {
    let object = json!({
        "apiVersion": names::API_VERSION,
        "kind": "NodeValidationPolicy",
        "metadata": {"name": ENFORCING},
        "spec": {"quarantine": "Enforce", "suspend": true},
    });
    let object: NodeValidationPolicy = serde_json::from_value(object)?;
    let created = policies(context)
        .create(&PostParams::default(), &object)
        .await;
    created.context("failed to create the policy")?;
    Ok(())
}

/// Gives the first class these floors.
async fn set_floors(context: &Context, floors: Value) -> Result<()> {
    let fabrics: Api<Fabric> = Api::all(context.client.clone());
    let mut classes = json!(fabrics.get(names::FABRIC).await?.spec.classes);
    classes[0]["floors"] = floors;
    let patch = Patch::Merge(json!({"spec": {"classes": classes}}));
    fabrics
        .patch(names::FABRIC, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

/// Waits until a node is in quarantine for a run, or out of it.
async fn quarantined(context: &Context, node: &str, by: Option<&str>) -> Result<()> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let what = format!("node {node} is in quarantine by {by:?}");
    context
        .eventually(&what, START, || async {
            let taints = nodes.get(node).await?.spec.unwrap_or_default().taints;
            let mut taints = taints.unwrap_or_default().into_iter();
            let taint = taints.find(|taint| taint.key == names::TAINT_QUARANTINE);
            let value = taint.map(|taint| taint.value.unwrap_or_default());
            Ok((value.as_deref() == by).then_some(()))
        })
        .await
}

/// Deletes what a scenario made.
async fn forget(context: &Context, runs: &[&str]) -> Result<()> {
    policies(context)
        .delete(ENFORCING, &DeleteParams::default())
        .await?;
    for name in runs {
        validations(context)
            .delete(name, &DeleteParams::default())
            .await?;
    }
    Ok(())
}

/// Runs the check of the clock on a node, and gives what it says of all cores at once.
async fn all_cores(context: &Context, name: &str, node: &str) -> Result<ValidationResult> {
    let object = json!({
        "apiVersion": names::API_VERSION,
        "kind": "NodeValidation",
        "metadata": {"name": name},
        "spec": {"nodeName": node, "checks": ["CpuFrequency"]},
    });
    let object: NodeValidation = serde_json::from_value(object)?;
    validations(context)
        .create(&PostParams::default(), &object)
        .await?;
    let status = verdict(context, name).await?;
    let mut results = status.results.iter();
    let found = results.find(|one| one.device.as_deref() == Some(ALL_CORES));
    found
        .cloned()
        .with_context(|| format!("no result of {ALL_CORES}: {status:?}"))
}

fn policies(context: &Context) -> Api<NodeValidationPolicy> {
    Api::all(context.client.clone())
}

fn validations(context: &Context) -> Api<NodeValidation> {
    Api::all(context.client.clone())
}

async fn validate(context: &Context, name: &str, node: &str) -> Result<()> {
    let object = json!({
        "apiVersion": names::API_VERSION,
        "kind": "NodeValidation",
        "metadata": {"name": name},
        "spec": {"nodeName": node},
    });
    let object: NodeValidation = serde_json::from_value(object)?;
    let created = validations(context)
        .create(&PostParams::default(), &object)
        .await;
    created.with_context(|| format!("failed to create NodeValidation {name}"))?;
    Ok(())
}

async fn status(context: &Context, name: &str) -> Result<NodeValidationStatus> {
    let found = validations(context).get(name).await?;
    Ok(found.status.unwrap_or_default())
}

/// The status of one that is finished.
async fn verdict(context: &Context, name: &str) -> Result<NodeValidationStatus> {
    let what = format!("validation {name} is finished");
    context
        .eventually(&what, QUICK, || async {
            let status = status(context, name).await?;
            Ok((status.phase == ValidationPhase::Finished).then_some(status))
        })
        .await
}

async fn waits(context: &Context, name: &str, reason: &str) -> Result<()> {
    let what = format!("validation {name} waits because of {reason}");
    context
        .eventually(&what, START, || async {
            let status = status(context, name).await?;
            Ok((status.reason.as_deref() == Some(reason)).then_some(()))
        })
        .await
}

/// Gives a node a fixture of its own in which a GPU is lost, or takes that away again.
async fn lose_gpu(context: &Context, node: &str, lost: bool) -> Result<()> {
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), names::SYSTEM_NAMESPACE);
    let fixture = maps.get(FIXTURE).await?.data.unwrap_or_default();
    let fixture = fixture.get("node.yaml").context("there is no fixture")?;
    let fault = format!("faults: [{{device: {LOST_GPU}, reason: Xid 79}}]");
    let own = match lost {
        true => json!(fixture.replace("faults: []", &fault)),
        false => Value::Null,
    };
    let patch = Patch::Merge(json!({"data": {format!("{node}.yaml"): own}}));
    maps.patch(FIXTURE, &PatchParams::default(), &patch).await?;
    // A change of the pod makes the kubelet look at once.
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), names::SYSTEM_NAMESPACE);
    let here = ListParams::default()
        .labels("app.kubernetes.io/component=device-plugin")
        .fields(&format!("spec.nodeName={node}"));
    for agent in pods.list(&here).await? {
        let name = agent.metadata.name.unwrap_or_default();
        let seen = json!({"metadata": {"annotations": {"example.com/lost": lost.to_string()}}});
        pods.patch(&name, &PatchParams::default(), &Patch::Merge(seen))
            .await?;
    }
    Ok(())
}

async fn gpus(context: &Context, node: &str, count: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let what = format!("node {node} offers {count} GPUs");
    context
        .eventually(&what, MOUNTED, || async {
            let status = nodes.get(node).await?.status.unwrap_or_default();
            let offered = status.allocatable.unwrap_or_default();
            let offered = offered.get(names::RESOURCE_GPU);
            Ok(offered
                .is_some_and(|offered| offered.0 == count)
                .then_some(()))
        })
        .await
}
