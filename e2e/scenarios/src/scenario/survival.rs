//! What must not end a healthy gang: a runtime that restarts, a node that is called not ready, a
//! leader that was stopped in mid-write, idle connections, a long preparation, an agent's taint. And how a gang leaves nodes that somebody empties.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crds::training_job::Phase;
use crds::{Fabric, names};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::context::{Context, leader, leader_node};
use crate::jobs::{ENDS_WELL, RUNS_UNTIL_ASKED, TestJob};
use crate::scenario::{NODE_LOSS, START};

/// Where the operator listens: the rendezvous, and metrics with probes.
const PORTS: [u16; 2] = [9443, 9400];
const IDLE: usize = 1_000;
/// Connections made on each port before it counts as crowded: all were renewed once.
const CROWDED: usize = 2 * IDLE;

/// Seconds without progress after which a start is ended: longer than the minute after which gangs leave a node, and than
/// the starts of other scenarios may take.
const DEADLINE: u32 = 65;
/// The taint that the network agent of a node sets while it restarts.
const AGENT_TAINT: &str = "example.com/agent-not-ready";

/// Keeps a Node object after its deletion, as node provisioners do while they drain it.
const HOLD: &str = "example.com/hold";

pub async fn restarted_runtime_and_patched_readiness_end_no_gang(context: Context) -> Result<()> {
    context
        .start(&TestJob::shell("blinking", 2, RUNS_UNTIL_ASKED))
        .await?;
    let before = context.pod_uids("blinking").await?;
    let node = context.node_of("blinking", 1).await?;

    restart_runtime(&context, &node).await?;
    context.node_ready(&node, true, NODE_LOSS).await?;
    // The kubelet writes the truth again within ten seconds.
    call_not_ready(&context, &node).await?;
    context.node_ready(&node, true, NODE_LOSS).await?;

    unharmed(&context, "blinking", &before).await?;
    suspends(&context, "blinking").await
}

/// Restarts a node's runtime, and waits until the new one answers and the kubelet has gone on with it: a kubelet that
/// ends a pod before that tries again when the pod's grace is over.
async fn restart_runtime(context: &Context, node: &str) -> Result<()> {
    let machine = context.cluster.node(node)?;
    let process = || machine.run(&["pgrep", "-x", "containerd"]);
    let before = process()?;
    machine.restart_runtime()?;
    context
        .eventually("the new runtime answers", NODE_LOSS, || async {
            let is_new = process().is_ok_and(|now| now != before);
            let answers = is_new && machine.run(&["ctr", "version"]).is_ok();
            Ok(answers.then_some(()))
        })
        .await?;
    let renewed = context.lease_renewed(node).await?;
    context
        .eventually(
            "the kubelet goes on with its new runtime",
            NODE_LOSS,
            || async { Ok((context.lease_renewed(node).await? > renewed).then_some(())) },
        )
        .await
}

/// What somebody with the right to write a Node's status can say of it.
async fn call_not_ready(context: &Context, node: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let patch = json!({"status": {"conditions": [{
        "type": "Ready",
        "status": "False",
        "reason": "KubeletNotReady",
        "message": "container runtime is down",
    }]}});
    nodes
        .patch_status(node, &PatchParams::default(), &Patch::Strategic(&patch))
        .await
        .with_context(|| format!("failed to call {node} not ready"))?;
    Ok(())
}

pub async fn leader_that_is_stopped_in_mid_write_changes_nothing_when_it_wakes_up(
    context: Context,
) -> Result<()> {
    let stopped = leader_node(&context).await?;
    let (pod, _) = leader(&context.client).await?;
    context
        .start(&TestJob::shell("steady", 1, RUNS_UNTIL_ASKED))
        .await?;
    let before = context.pod_uids("steady").await?;
    // It has begun to write when the first of these jobs has an attempt.
    context
        .submit(&TestJob::shell("renewed", 1, RUNS_UNTIL_ASKED))
        .await?;
    context
        .submit(&TestJob::shell("written", 1, RUNS_UNTIL_ASKED))
        .await?;
    context
        .eventually("the leader writes", START, || async {
            let job = context.job("renewed").await?;
            Ok(job.status.filter(|status| status.attempt == 1).map(|_| ()))
        })
        .await?;
    let node = context.cluster.node(&stopped)?;
    node.signal("operator", "STOP")?;
    let followed = follows(&context, &pod).await;
    node.signal("operator", "CONT")?;
    let renewed = followed?;

    // The next leader carries a whole interruption out while the first one is awake again.
    suspends(&context, "written").await?;
    unharmed(&context, "steady", &before).await?;
    unharmed(&context, "renewed", &renewed).await?;
    for job in ["steady", "renewed"] {
        context.delete(job).await?;
        context.is_gone(job, START * 2).await?;
    }
    Ok(())
}

/// Another replica leads and finishes what was begun; a job that is made again under its old name has
/// the pods that are returned.
async fn follows(context: &Context, stopped: &str) -> Result<Vec<String>> {
    context
        .eventually("another operator leads", NODE_LOSS, || async {
            let (now, _) = leader(&context.client).await?;
            Ok((now != stopped).then_some(()))
        })
        .await?;
    for job in ["renewed", "written"] {
        context.reaches(job, Phase::Running, START * 2).await?;
    }
    context.delete("renewed").await?;
    context.is_gone("renewed", START * 2).await?;
    context
        .start(&TestJob::shell("renewed", 1, RUNS_UNTIL_ASKED))
        .await?;
    context.pod_uids("renewed").await
}

/// Whoever can reach the leader holds a thousand connections to each of its ports that say nothing, and makes new ones
/// without pause.
pub async fn idle_connections_cost_neither_lease_nor_members(context: Context) -> Result<()> {
    let (holder, address) = leader(&context.client).await?;
    let address: IpAddr = address.parse().context("the leader has no IP address")?;
    let crowds = PORTS.map(|port| {
        let made = Arc::new(AtomicUsize::new(0));
        let crowd = crowd(SocketAddr::new(address, port), Arc::clone(&made));
        (tokio::spawn(crowd), made)
    });
    let suffers = async {
        let is_crowded = |made: &Arc<AtomicUsize>| made.load(Ordering::Relaxed) >= CROWDED;
        context
            .eventually("the ports are crowded", START, || async {
                let all = crowds.iter().all(|(_, made)| is_crowded(made));
                Ok(all.then_some(()))
            })
            .await?;
        let leases: Api<Lease> =
            Api::namespaced(context.client.clone(), crds::names::SYSTEM_NAMESPACE);
        let renewed = async || -> Result<_> {
            let lease = leases.get("fireflyer-operator").await?;
            Ok(lease.spec.and_then(|spec| spec.renew_time))
        };
        let before = renewed().await?;
        context
            .start(&TestJob::shell("crowded", 2, ENDS_WELL))
            .await?;
        context.reaches("crowded", Phase::Succeeded, START).await?;
        context
            .eventually("the leader renews its Lease", START, || async {
                Ok((renewed().await? > before).then_some(()))
            })
            .await?;
        // Probes came from its node meanwhile.
        let pods: Api<Pod> = Api::namespaced(context.client.clone(), crds::names::SYSTEM_NAMESPACE);
        let status = pods.get(&holder).await?.status.unwrap_or_default();
        let mut containers = status.container_statuses.into_iter().flatten();
        ensure!(
            containers.all(|container| container.ready),
            "the leader is not ready"
        );
        let (now, _) = leader(&context.client).await?;
        ensure!(now == holder, "{holder} lost its Lease to {now}");
        Ok(())
    };
    let suffers = suffers.await;
    for (crowd, _) in &crowds {
        ensure!(!crowd.is_finished(), "the crowd was over too soon");
        crowd.abort();
    }
    suffers
}

/// Holds connections that say nothing, and replaces the oldest for ever.
async fn crowd(address: SocketAddr, made: Arc<AtomicUsize>) {
    let mut held = VecDeque::new();
    loop {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                made.fetch_add(1, Ordering::Relaxed);
                held.push_back(stream);
            }
            Err(_full) => sleep(Duration::from_millis(1)).await,
        }
        if held.len() > IDLE {
            held.pop_front();
        }
    }
}

/// One node of the gang is cordoned and the Node of the other is deleted, with a finalizer of somebody's.
pub async fn cordoned_and_deleted_nodes_are_left_once_by_the_contract(
    context: Context,
) -> Result<()> {
    context
        .start(&TestJob::shell("drained", 2, RUNS_UNTIL_ASKED))
        .await?;
    let cordoned = context.node_of("drained", 0).await?;
    let deleted = context.node_of("drained", 1).await?;
    context.cordon(&cordoned, true).await?;
    finalizers(&context, &deleted, json!([HOLD])).await?;
    let nodes: Api<Node> = Api::all(context.client.clone());
    nodes.delete(&deleted, &DeleteParams::default()).await?;
    // A minute passes before a gang leaves: another Node may follow, and it should move once.
    let moved = context
        .eventually("the job runs elsewhere", START * 4, || async {
            let status = context.job("drained").await?.status.unwrap_or_default();
            Ok((status.phase == Phase::Running && status.attempt > 1).then_some(status))
        })
        .await;
    let left = async || -> Result<bool> {
        let first = context.node_of("drained", 0).await?;
        let second = context.node_of("drained", 1).await?;
        Ok([first, second]
            .iter()
            .all(|node| ![&cordoned, &deleted].contains(&node)))
    };
    let left = left().await;
    context.cordon(&cordoned, false).await?;
    finalizers(&context, &deleted, Value::Null).await?;
    // A kubelet registers its Node when it starts.
    context.cluster.node(&deleted)?.restart()?;
    context.node_ready(&deleted, true, NODE_LOSS).await?;
    let status = moved?;
    ensure!(left?, "the job went back to a node that it was to leave");
    ensure!(
        status.attempt == 2,
        "the job moved {} times",
        status.attempt - 1
    );
    ensure!(status.restarts == 0, "leaving was charged as a failure");
    let saved = status
        .last_checkpoint
        .context("the job was not asked to save before it left")?;
    ensure!(saved.step == 7, "recorded step {}, saved 7", saved.step);
    context.delete("drained").await?;
    context.is_gone("drained", START * 2).await
}

/// Two init containers that together take longer than one may, on a node that an agent has tainted meanwhile; and one
/// that never ends, on another.
pub async fn slow_start_is_no_hang_and_a_taint_no_cordon(context: Context) -> Result<()> {
    set_deadline(&context, DEADLINE).await?;
    let started = slow_starts(&context).await;
    set_deadline(&context, 7200).await?;
    started?;
    for job in ["patient", "hung"] {
        context.delete(job).await?;
        context.is_gone(job, START * 2).await?;
    }
    Ok(())
}

async fn slow_starts(context: &Context) -> Result<()> {
    let step = format!("sleep {}", DEADLINE * 2 / 3);
    let patient = TestJob::shell("patient", 1, RUNS_UNTIL_ASKED);
    context.submit(&patient.init(&step).init(&step)).await?;
    let hung = TestJob::shell("hung", 1, ENDS_WELL).init("sleep 100000");
    context.submit(&hung).await?;
    context
        .eventually("patient prepares", START, || async {
            let pods = context.pods("patient").await?.into_iter();
            let inits = pods.filter_map(|pod| pod.status?.init_container_statuses);
            let runs = inits.flatten().any(|container| {
                let state = container.state.unwrap_or_default();
                container.name == "init" && state.running.is_some()
            });
            Ok(runs.then_some(()))
        })
        .await?;
    let before = context.pod_uids("patient").await?;
    let node = context.node_of("patient", 0).await?;
    let (set, remove) = (
        format!("{AGENT_TAINT}=:NoSchedule"),
        format!("{AGENT_TAINT}-"),
    );
    context.kubectl(&["taint", "node", &node, &set]).await?;
    let starts = starts_or_ends(context).await;
    context.kubectl(&["taint", "node", &node, &remove]).await?;
    starts?;
    unharmed(context, "patient", &before).await
}

async fn starts_or_ends(context: &Context) -> Result<()> {
    context
        .eventually("the status says what patient does", START * 2, || async {
            let message = context.condition("patient", "Running", "False").await?;
            Ok(message.filter(|message| message.contains("init container init-1 runs since")))
        })
        .await?;
    let said = format!("made no progress for {DEADLINE} s: init container init runs since");
    context
        .eventually("the attempt that hangs is ended", START * 4, || async {
            let status = context.job("hung").await?.status.unwrap_or_default();
            Ok(status
                .failure
                .filter(|failure| failure.message.contains(&said)))
        })
        .await?;
    context
        .reaches("patient", Phase::Running, START * 2)
        .await?;
    Ok(())
}

/// Sets how long a pod that starts may make no progress, on nodes of the first class.
async fn set_deadline(context: &Context, seconds: u32) -> Result<()> {
    let fabrics: Api<Fabric> = Api::all(context.client.clone());
    let mut classes = json!(fabrics.get(names::FABRIC).await?.spec.classes);
    classes[0]["startProgressDeadlineSeconds"] = json!(seconds);
    let patch = Patch::Merge(json!({"spec": {"classes": classes}}));
    fabrics
        .patch(names::FABRIC, &PatchParams::default(), &patch)
        .await
        .context("failed to set the deadline")?;
    Ok(())
}

async fn finalizers(context: &Context, node: &str, list: Value) -> Result<()> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let patch = json!({"metadata": {"finalizers": list}});
    nodes
        .patch(node, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .with_context(|| format!("failed to set the finalizers of {node}"))?;
    Ok(())
}

/// The job still trains in its first attempt, with the pods that it had.
async fn unharmed(context: &Context, job: &str, before: &[String]) -> Result<()> {
    let status = context.job(job).await?.status.unwrap_or_default();
    ensure!(
        status.phase == Phase::Running && status.attempt == 1,
        "{job} is {:?} in attempt {}",
        status.phase,
        status.attempt
    );
    ensure!(
        before == context.pod_uids(job).await?,
        "the pods of {job} changed"
    );
    Ok(())
}

/// The job still leaves by the contract when it is asked to, and then goes.
async fn suspends(context: &Context, job: &str) -> Result<()> {
    context.change(job, json!({"suspend": true})).await?;
    let left = context.reaches(job, Phase::Suspended, START).await?;
    let saved = left.status.and_then(|status| status.last_checkpoint);
    ensure!(
        saved.is_some_and(|saved| saved.step == 7),
        "{job} left without its save"
    );
    context.delete(job).await?;
    context.is_gone(job, START).await
}
