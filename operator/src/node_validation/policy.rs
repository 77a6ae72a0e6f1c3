//! Keeps NodeValidationPolicies while this replica leads: creates the runs that are due, deletes
//! those that others took the place of, and shows what came of it. When a node is due is decided by
//! `health`; when a run gets its node, by `scheduler`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::fabric::FabricSpec;
use crds::node_validation_policy::{NodeValidationPolicy, NodeValidationPolicyStatus};
use crds::{NodeValidation, names};
use daemon::CancellationToken;
use health::{DueNode, DuePlan, DuePolicy, NewRun, PolicySummary};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use k8s_openapi::jiff;
use kube::api::{DeleteParams, Patch, Preconditions};
use scheduler::{JobKind, Ready};
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{info, warn};

use super::finished;
use crate::clock;
use crate::cluster::{Mirrors, SharedCluster};
use crate::fabric::FabricObservation;
use crate::training_job::mirrored_job::MirroredJob;
use crate::training_job::translate::MirroredNode;
use crate::training_job::write::{self, WritePurpose, Writer};
use crate::workload::{Workload, owner_reference};

/// How often is looked what is due.
const PERIOD: Duration = Duration::from_secs(10);
/// Runs that are created, and deleted, in one look: the rest follows.
const WRITES: usize = 32;
/// Failed nodes that a status names.
const NAMED: usize = 16;

/// What one look found.
struct Look {
    plan: DuePlan,
    policies: BTreeMap<String, NodeValidationPolicy>,
    /// The uid of each run that is to be deleted.
    uids: BTreeMap<String, String>,
}

/// Keeps the policies for ever. None is seen while another replica leads.
pub async fn keep(
    cluster: Arc<SharedCluster>,
    writer: Writer,
    seen: watch::Receiver<Option<FabricObservation>>,
    shutdown: CancellationToken,
) {
    let writer = writer.for_purpose(WritePurpose::Note);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
        let seen = seen.borrow().clone();
        if let Some(seen) = seen {
            step(&cluster, &writer, seen.held(), seen.suspects()).await;
        }
    }
}

/// Does what is to be done now, where some nodes are held and some suspect.
pub async fn step(
    cluster: &SharedCluster,
    writer: &Writer,
    held: &BTreeSet<Arc<str>>,
    suspects: &BTreeSet<Arc<str>>,
) {
    let found = look(&cluster.mirrors(), held, suspects);
    if let Some(found) = found {
        carry_out(cluster, writer, found).await;
    }
}

/// What is due; none before everything was listed once, or without a policy.
fn look(
    mirrors: &Mirrors,
    held: &BTreeSet<Arc<str>>,
    suspects: &BTreeSet<Arc<str>>,
) -> Option<Look> {
    let is_known = mirrors.is_synced() && mirrors.policies.is_synced();
    if !is_known || mirrors.policies.is_empty() {
        return None;
    }
    let fabric = &mirrors.fabric()?.spec;
    let policies: Vec<&NodeValidationPolicy> = mirrors.policies.values().collect();
    let views: Vec<DuePolicy> = policies
        .iter()
        .map(|policy| view(policy, mirrors, fabric))
        .collect();
    let nodes: Vec<DueNode> = mirrors
        .nodes
        .values()
        .map(|node| DueNode {
            name: node.name.to_string(),
            created: seconds(node.created.as_millis()),
            idle: node.ready == Ready::True && !held.contains(node.name.as_str()),
            suspect: suspects.contains(node.name.as_str()),
        })
        .collect();
    let runs: Vec<_> = mirrors
        .validations
        .values()
        .chain(mirrors.validations.resting())
        .filter_map(|mirrored| match mirrored {
            MirroredJob::Whole(Workload::Validation(one)) => Some(finished::Run::of(one)),
            MirroredJob::Over(over) => over.run.as_deref().cloned(),
            MirroredJob::Whole(Workload::Training(_)) | MirroredJob::Unreadable(_) => None,
        })
        .collect();
    let run_views: Vec<_> = runs.iter().map(finished::Run::view).collect();
    let now = seconds(clock::now().as_millis());
    let plan = health::plan(&views, &nodes, &run_views, now);
    let doomed: BTreeSet<&str> = plan.delete.iter().map(String::as_str).collect();
    let uids = runs
        .iter()
        .filter(|run| doomed.contains(run.name.as_str()))
        .map(|run| (run.name.clone(), run.uid.clone()))
        .collect();
    let policies = policies.into_iter().map(|policy| {
        let name = policy.metadata.name.clone().unwrap_or_default();
        (name, policy.clone())
    });
    Some(Look {
        plan,
        policies: policies.collect(),
        uids,
    })
}

fn view(policy: &NodeValidationPolicy, mirrors: &Mirrors, fabric: &FabricSpec) -> DuePolicy {
    let ObjectMeta {
        name,
        uid,
        creation_timestamp,
        ..
    } = &policy.metadata;
    let spec = &policy.spec;
    let selects = |node: &&MirroredNode| {
        let label = |key: &str| {
            let mut labels = node.labels.iter();
            labels.find_map(|(other, value)| (**other == *key).then_some(&**value))
        };
        match spec.node_selector.is_empty() {
            true => label(&fabric.class_label).is_some_and(|class| !class.is_empty()),
            false => {
                let mut wanted = spec.node_selector.iter();
                wanted.all(|(key, value)| label(key) == Some(value.as_str()))
            }
        }
    };
    let nodes = mirrors.nodes.values().filter(selects);
    DuePolicy {
        name: name.clone().unwrap_or_default(),
        created: creation_timestamp.as_ref().map_or(0, |at| at.0.as_second()),
        uid: uid.clone().unwrap_or_default(),
        interval: i64::from(spec.interval_hours) * 3600,
        level: super::level(spec.level),
        new_nodes: spec.new_nodes,
        suspect_nodes: spec.suspect_nodes,
        max_concurrent: usize::try_from(spec.max_concurrent).unwrap_or(usize::MAX),
        suspend: spec.suspend || policy.metadata.deletion_timestamp.is_some(),
        nodes: nodes.map(|node| node.name.to_string()).collect(),
    }
}

async fn carry_out(cluster: &SharedCluster, writer: &Writer, look: Look) {
    let Look {
        plan,
        policies,
        uids,
    } = look;
    for run in plan.create.iter().take(WRITES) {
        let Some(policy) = policies.get(&run.policy) else {
            continue;
        };
        match writer
            .create::<NodeValidation>("", &object(run, policy))
            .await
        {
            Ok(created) => {
                info!(policy = run.policy, node = run.node, run = run.name, reason = ?run.reason, "created a validation");
                let (key, version) = (
                    crate::cluster::key_of(&created),
                    crate::cluster::version_of(&created),
                );
                let mirrored = MirroredJob::new(Workload::from(created).slim());
                let now = crate::cluster::now();
                let mut mirrors = cluster.mirrors();
                mirrors.validations.created(key, version, mirrored, now);
                drop(mirrors);
                cluster.notify();
            }
            // An earlier leader has created it; the watch will show it.
            Err(write::Error::Exists { .. }) => {}
            Err(error) => {
                warn!(policy = run.policy, node = run.node, %error, "failed to create a validation, trying again");
            }
        }
    }
    for name in plan.delete.iter().take(WRITES) {
        let params = DeleteParams::background().preconditions(Preconditions {
            uid: uids.get(name).cloned(),
            resource_version: None,
        });
        if let Err(error) = writer.delete::<NodeValidation>("", name, &params).await {
            warn!(run = name, %error, "failed to delete a validation, trying again");
        }
    }
    for (name, policy) in &policies {
        let summary = plan.policies.get(name);
        let Some(status) = summary.and_then(|summary| news(policy, summary)) else {
            continue;
        };
        let patch = Patch::Merge(json!({"status": status}));
        let written = writer.patch::<NodeValidationPolicy>("", name, Some("status"), &patch);
        if let Err(error) = written.await {
            warn!(policy = name, %error, "failed to write the policy's status, trying again");
        }
    }
}

/// The run of a policy, as it is created.
fn object(run: &NewRun, policy: &NodeValidationPolicy) -> Value {
    json!({
        "apiVersion": names::API_VERSION,
        "kind": JobKind::NodeValidation.as_str(),
        "metadata": {
            "name": run.name,
            "labels": {names::LABEL_VALIDATION_POLICY: run.policy},
            "ownerReferences": [owner_reference("NodeValidationPolicy", &policy.metadata)],
        },
        "spec": {
            "nodeName": run.node,
            "level": run.level,
            "deadlineSeconds": policy.spec.deadline_seconds,
        },
    })
}

/// The status, if it is not what the policy shows.
fn news(
    policy: &NodeValidationPolicy,
    summary: &PolicySummary,
) -> Option<NodeValidationPolicyStatus> {
    let shown = policy.status.clone().unwrap_or_default();
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let time = |at: Option<i64>| {
        at.and_then(|at| jiff::Timestamp::from_second(at).ok())
            .map(Time)
    };
    let status = NodeValidationPolicyStatus {
        conditions: vec![overlapped(&shown, summary.overlapped_by.as_deref())],
        nodes: count(summary.nodes),
        due: count(summary.due),
        running: count(summary.running),
        failed: count(summary.failed.len()),
        failed_nodes: summary.failed.iter().take(NAMED).cloned().collect(),
        last_run_time: time(summary.last),
        next_run_time: time(summary.next),
        observed_generation: policy.metadata.generation,
    };
    (status != shown).then_some(status)
}

fn overlapped(shown: &NodeValidationPolicyStatus, by: Option<&str>) -> Condition {
    let (status, reason, message) = match by {
        Some(by) => (
            "True",
            "OlderPolicy",
            format!(
                "The older policy {by} selects some of the same nodes, which are its: change a nodeSelector"
            ),
        ),
        None => (
            "False",
            "Alone",
            "No older policy selects nodes of this one".to_owned(),
        ),
    };
    let before = shown.conditions.iter().find(|one| one.status == status);
    let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second());
    Condition {
        type_: "Overlapped".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: before.map_or_else(
            || Time(now.unwrap_or_default()),
            |one| one.last_transition_time.clone(),
        ),
        observed_generation: None,
    }
}

fn seconds(millis: u64) -> i64 {
    i64::try_from(millis / 1000).unwrap_or(i64::MAX)
}
