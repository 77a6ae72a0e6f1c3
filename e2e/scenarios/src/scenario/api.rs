//! What the API refuses, and what it says then.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use crds::training_job::Phase;

use crate::context::Context;
use crate::jobs::{ENDS_WELL, TestJob};
use crate::scenario::START;
use crate::scenario::lifecycle::restrict;

pub async fn every_refusal_says_what_to_do(context: Context) -> Result<()> {
    let cluster = context.cluster;
    tokio::task::spawn_blocking(move || crate::refusals::check_all(&cluster)).await?
}

pub async fn nobody_else_takes_a_node(context: Context) -> Result<()> {
    let pod = "
apiVersion: v1
kind: Pod
metadata: {name: thief}
spec:
  containers:
  - name: main
    image: localhost/fireflyer/busybox:0.1.0
    resources: {limits: {fireflyer.dev/node: 1}}
";
    let output = crate::refusals::apply(&context.cluster, &context.namespace, pod)
        .context("failed to run kubectl")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        !output.status.success(),
        "a pod of somebody else could ask for fireflyer.dev/node"
    );
    ensure!(
        said.contains("fireflyer.dev/node"),
        "the refusal does not say why: {said}"
    );
    Ok(())
}

/// A job whose pods the namespace does not admit holds nothing and says so, and runs once it does.
pub async fn refused_pod_is_reported_before_nodes_are_given(context: Context) -> Result<()> {
    restrict(&context).await?;
    context
        .submit(&TestJob::shell("bold", 1, ENDS_WELL))
        .await?;
    let message = context
        .eventually("the refusal is a condition", START, || async {
            let message = context.condition("bold", "Assigned", "False").await?;
            Ok(message.filter(|message| message.contains("violates PodSecurity")))
        })
        .await?;
    ensure!(
        message.contains("allowPrivilegeEscalation") && message.contains(&context.namespace),
        "the refusal does not say what to change: {message}"
    );
    let status = context.job("bold").await?.status.unwrap_or_default();
    let label = format!("{}=bold", crds::names::LABEL_JOB);
    let kinds = "configmaps,secrets,pods";
    let namespace = context.namespace.as_str();
    let mut get = vec!["get", kinds, "-n", namespace, "-l", &label];
    get.extend(["-o", "name", "--ignore-not-found"]);
    let held = context.kubectl(&get).await?;
    ensure!(
        (status.phase, status.attempt, held.trim()) == (Phase::Queued, 0, ""),
        "a job whose pods are refused is {:?} in attempt {} with {held:?}",
        status.phase,
        status.attempt
    );
    let admit = "pod-security.kubernetes.io/enforce-";
    context
        .kubectl(&["label", "namespace", namespace, admit])
        .await?;
    let status = context
        .reaches("bold", Phase::Succeeded, START)
        .await?
        .status;
    let attempt = status.unwrap_or_default().attempt;
    ensure!(attempt == 1, "it took {attempt} attempts");
    Ok(())
}

/// What a node's agent may do with its token: label the Node that its pod runs on, nothing else.
pub async fn agent_labels_its_own_node_only(context: Context) -> Result<()> {
    let mut nodes = context.cluster.nodes();
    let (own, other) = (nodes.next(), nodes.next());
    let own = own.context("the cluster has no node")?.name().to_owned();
    let other = other.context("the cluster has one node")?.name().to_owned();
    let label = r#"{"metadata":{"labels":{"fireflyer.dev/tried":"yes"}}}"#;
    let tries: [(&str, &str, Option<&str>); 7] = [
        (&own, label, None),
        (&other, label, Some("may not change node")),
        (
            &own,
            r#"{"metadata":{"labels":{"kubernetes.io/role":"spy"}}}"#,
            Some("labels under fireflyer.dev/"),
        ),
        (
            &own,
            r#"{"spec":{"unschedulable":true}}"#,
            Some("and nothing else"),
        ),
        (
            &own,
            r#"{"metadata":{"annotations":{"fireflyer.dev/tried":"yes"}}}"#,
            Some("and nothing else"),
        ),
        (
            &own,
            r#"{"metadata":{"finalizers":["fireflyer.dev/tried"]}}"#,
            Some("and nothing else"),
        ),
        (
            &own,
            r#"{"metadata":{"labels":{"fireflyer.dev/tried":null}}}"#,
            None,
        ),
    ];
    let agent = || as_agent_of(&context, &own);
    for (node, patch, refusal) in tries {
        patches(agent()?, node, patch, refusal)?;
    }
    let deleted = as_agent_of(&context, &own)?
        .args(["delete", "node", &own, "--dry-run=server"])
        .output()
        .context("failed to run kubectl")?;
    ensure!(
        !deleted.status.success(),
        "the agent of {own} may delete its Node"
    );
    Ok(())
}

/// What the operator may do to a Node with its token: set and remove one taint.
pub async fn operator_changes_one_taint_of_a_node_only(context: Context) -> Result<()> {
    let node = context.cluster.nodes().next();
    let node = node.context("the cluster has no node")?.name().to_owned();
    let taint =
        |key: &str, effect: &str| Some(json!({"key": key, "value": "try", "effect": effect}));
    let ours = crds::names::TAINT_QUARANTINE;
    let taints = [
        (taint(ours, "NoExecute"), Some("which moves no pod")),
        (taint(ours, "NoSchedule"), None),
        (
            taint("example.com/mine", "NoSchedule"),
            Some("no other taint"),
        ),
        (None, None),
    ];
    for (taint, refusal) in taints {
        taints_as_operator(&context, &node, taint, refusal)?;
    }
    let others = [
        json!({"spec": {"unschedulable": true}}),
        json!({"spec": {"providerID": "tried://1"}}),
        json!({"metadata": {"labels": {"fireflyer.dev/operator-tried": "yes"}}}),
        json!({"metadata": {"finalizers": ["fireflyer.dev/operator-tried"]}}),
    ];
    for patch in others {
        let kubectl = as_operator(&context)?;
        patches(kubectl, &node, &patch.to_string(), Some("and nothing else"))?;
    }
    Ok(())
}

/// The operator gives a Node this taint, or none, in place of its own. Taints of others stay, and change at any time: a
/// node that was lost has one for seconds after it is back. So a patch is of the state that was read, or is made again.
fn taints_as_operator(
    context: &Context,
    node: &str,
    taint: Option<Value>,
    refusal: Option<&str>,
) -> Result<()> {
    const TRIES: usize = 5;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let read = as_operator(context)?
            .args(["get", "node", node, "-o", "json"])
            .output()?;
        let read: Node = serde_json::from_slice(&read.stdout).context("kubectl shows no Node")?;
        let mut taints = read.spec.and_then(|spec| spec.taints).unwrap_or_default();
        taints.retain(|taint| taint.key != crds::names::TAINT_QUARANTINE);
        let mut taints: Vec<_> = taints.into_iter().map(|taint| json!(taint)).collect();
        taints.extend(taint.clone());
        let patch = json!({
            "metadata": {"resourceVersion": read.metadata.resource_version},
            "spec": {"taints": taints},
        });
        let done = patches(as_operator(context)?, node, &patch.to_string(), refusal);
        let conflict = |error: &anyhow::Error| error.to_string().contains("has been modified");
        if attempt == TRIES || !done.as_ref().is_err_and(conflict) {
            return done;
        }
    }
}

/// kubectl with the identity of the operator.
fn as_operator(context: &Context) -> Result<Command> {
    let mut kubectl = context.cluster.kubectl::<&str>([])?;
    let system = crds::names::SYSTEM_NAMESPACE;
    kubectl.arg(format!(
        "--as=system:serviceaccount:{system}:fireflyer-operator"
    ));
    Ok(kubectl)
}

/// Somebody patches a Node, which is refused for this reason, or done.
fn patches(mut kubectl: Command, node: &str, patch: &str, refusal: Option<&str>) -> Result<()> {
    let output = kubectl
        .args(["patch", "node", node, "--type", "merge", "--patch", patch])
        .output()
        .context("failed to run kubectl")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let as_expected = match refusal {
        None => output.status.success(),
        Some(why) => !output.status.success() && said.contains(why),
    };
    ensure!(
        as_expected,
        "patching {node} with {patch}: expected {refusal:?}, the answer was {said:?}"
    );
    Ok(())
}

/// Agents and the pods with storage's data need folders of the host and root, and what mounts volumes is privileged; nothing
/// else of ours needs more than the restricted level.
pub async fn only_agents_and_storage_need_more_than_restricted(context: Context) -> Result<()> {
    let said = context
        .kubectl(&[
            "label",
            "namespace",
            crds::names::SYSTEM_NAMESPACE,
            "pod-security.kubernetes.io/enforce=restricted",
            "--overwrite",
            "--dry-run=server",
        ])
        .await?;
    // Pods with the same violations share a line, which names one of them and counts the others.
    let pods: Vec<_> = said
        .lines()
        .filter_map(|line| line.strip_prefix("Warning: "))
        .filter(|warning| !warning.starts_with("existing pods in namespace"))
        .collect();
    let nodes = context.cluster.nodes().count();
    // Three services, and the metadata's etcd.
    let root = format!(
        " (and {} other pods): restricted volume types, runAsNonRoot != true, runAsUser=0",
        nodes + 3
    );
    let mounts = format!(" (and {} other pods): privileged, ", nodes - 1);
    let expected = matches!(
        pods.as_slice(),
        [agents, mount] if agents.ends_with(&root) && mount.starts_with("fireflyer-storage-node-") && mount.contains(&mounts)
    );
    ensure!(
        expected,
        "expected warnings{root:?} and{mounts:?} and no other, the answer was {said:?}"
    );
    Ok(())
}

/// kubectl with the identity that the API server reads from the token of a node's agent.
fn as_agent_of(context: &Context, node: &str) -> Result<Command> {
    let mut kubectl = context.cluster.kubectl::<&str>([])?;
    let system = crds::names::SYSTEM_NAMESPACE;
    kubectl.args([
        format!("--as=system:serviceaccount:{system}:fireflyer-device-plugin"),
        format!("--as-user-extra=authentication.kubernetes.io/node-name={node}"),
    ]);
    Ok(kubectl)
}
