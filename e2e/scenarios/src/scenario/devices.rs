//! What the node's agent offers, as trainers and kubelets see it.

use anyhow::{Context as _, Result, ensure};
use crds::training_job::Phase;

use crate::context::Context;
use crate::jobs::{RUNS_UNTIL_ASKED, TELLS_ITS_DEVICES, TestJob};
use crate::scenario::{NODE_LOSS, START};

/// The fixture's eight GPUs. The adapter's slot is the sidecar's.
const FILES: &str = "files: gpu0 gpu1 gpu2 gpu3 gpu4 gpu5 gpu6 gpu7\n";
/// What the fixture says of its sixth GPU, of the bridges, and of the port that two of them share.
const TOLD: [&str; 9] = [
    "index: 5",
    "uuid: GPU-00000000-0000-4000-a100-000000000005",
    "address: \"0000:a1:00.0\"",
    "minor: 5",
    "numa: 1",
    "rootPort: \"0000:a0:01.1\"",
    "nvlink: GPU-00000000-0000-4000-a100-000000000004",
    "pairs: 0-1,2-3,4-5,6-7",
    "shared: 5-6",
];

pub async fn trainer_sees_the_devices_of_its_node(context: Context) -> Result<()> {
    devices_are_given(&context, "looking", 1).await
}

pub async fn kubelet_restart_keeps_job_and_devices(context: Context) -> Result<()> {
    context
        .start(&TestJob::shell("unmoved", 2, RUNS_UNTIL_ASKED))
        .await?;
    let before = context.pod_uids("unmoved").await?;
    let node = context.node_of("unmoved", 0).await?;
    context.cluster.node(&node)?.restart_kubelet()?;
    let renewed = context.lease_renewed(&node).await?;
    context
        .eventually("the new kubelet renews its lease", NODE_LOSS, || async {
            Ok((context.lease_renewed(&node).await? > renewed).then_some(()))
        })
        .await?;
    let job = context.job("unmoved").await?.status.unwrap_or_default();
    ensure!(
        job.phase == Phase::Running && job.attempt == 1,
        "the job is {:?} in attempt {} after a kubelet restart",
        job.phase,
        job.attempt
    );
    ensure!(
        before == context.pod_uids("unmoved").await?,
        "pods changed with the kubelet"
    );
    context.delete("unmoved").await?;
    context.is_gone("unmoved", START * 2).await?;
    // The new kubelet gives nothing out before the agent has registered with it.
    let nodes = context.cluster.nodes();
    let names = nodes.map(|other| other.name().to_owned());
    let others: Vec<_> = names.filter(|other| *other != node).collect();
    for other in &others {
        context.cordon(other, true).await?;
    }
    let given = devices_are_given(&context, "after", 1).await;
    for other in &others {
        context.cordon(other, false).await?;
    }
    given
}

/// Runs a job that prints what each of its ranks sees: all that the fixture's node has.
async fn devices_are_given(context: &Context, name: &str, nodes: u32) -> Result<()> {
    context
        .submit(&TestJob::shell(name, nodes, TELLS_ITS_DEVICES))
        .await?;
    context.reaches(name, Phase::Succeeded, NODE_LOSS).await?;
    for rank in 0..nodes {
        let log = context
            .log(name, 1, rank)
            .await
            .context("the devices are in the log")?;
        let gpus = log
            .lines()
            .find_map(|line| line.split_once("visible: "))
            .map_or(0, |(_, gpus)| gpus.split(',').count());
        let missing = TOLD
            .iter()
            .find(|missing| log.lines().all(|line| line != **missing));
        ensure!(
            log.contains(FILES) && gpus == 8 && missing.is_none(),
            "rank {rank} of {name} does not see the devices of its node (line missing: {missing:?}): {log}"
        );
    }
    Ok(())
}
