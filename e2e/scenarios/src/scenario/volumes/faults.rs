//! What breaks under volumes, and what is left of what was written.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crds::names::SYSTEM_NAMESPACE;
use crds::training_job::Phase;

use super::writer::{CHECKS, WRITES, Writer};
use super::{RESTART, TARGETS, in_data, storage_is_ready, with_label};
use crate::context::Context;
use crate::jobs::TestJob;
use crate::pods::Pods;
use crate::scenario::{NODE_LOSS, START};

/// By which the chart finds the node with the metadata.
const META: &str = "storage.fireflyer.dev/meta";
/// As long as the control plane is away.
const OUTAGE: Duration = Duration::from_secs(60);

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
    let refused = waits(&context, &drain(other, "10s"), &drained).await;
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
async fn waits(context: &Context, words: &[String], first: &Result<String>) -> Result<()> {
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

pub async fn lost_storage_node_stops_writes_until_it_is_back(context: Context) -> Result<()> {
    let meta = with_label(&context, META).await?;
    let targets = with_label(&context, TARGETS).await?;
    let lost = targets.iter().find(|node| !meta.contains(*node));
    let lost = lost.context("every node with replicas has the metadata")?;
    let writer = Writer::start(&context).await?;
    let node = context.cluster.node(lost)?;
    node.kill()?;
    let away = while_it_is_away(&context, &writer, lost).await;
    node.restart()?;
    context.node_ready(lost, true, NODE_LOSS).await?;
    away?;
    writer.goes_on(RESTART).await?;
    storage_is_ready(&context).await?;
    writer.ends_with_all().await
}

async fn while_it_is_away(context: &Context, writer: &Writer<'_>, lost: &str) -> Result<()> {
    context.node_ready(lost, false, NODE_LOSS).await?;
    let stalled = || async {
        let chains = context.kubectl(&["get", "storagechains"]).await?;
        Ok((chains.contains("Stalled") && chains.contains("Offline")).then_some(()))
    };
    context
        .eventually("chains say that they are stalled", START, stalled)
        .await?;
    // What is there can be read.
    let reads = in_data("cat 1");
    let reads = Pods::on_claim("reads", &reads, "written", &writer.reader);
    let read = writer.pods.runs(reads, START).await?;
    ensure!(read.starts_with("1\n2\n3\n"), "a file reads {read:?}");
    Ok(())
}

pub async fn volumes_do_not_need_the_control_plane(context: Context) -> Result<()> {
    let writer = Writer::start(&context).await?;
    let before = writer.last().await?;
    let address = format!("{}/32", context.cluster.control_plane_address());
    let route = |verb: &str| {
        let nodes = context.cluster.nodes();
        nodes
            .map(|node| node.run(&["ip", "route", verb, "blackhole", &address]))
            .collect::<Result<Vec<_>, _>>()
    };
    // No node, and so no operator, reaches the API server.
    route("add")?;
    tokio::time::sleep(OUTAGE).await;
    route("del")?;
    for node in context.cluster.nodes() {
        context.node_ready(node.name(), true, NODE_LOSS).await?;
    }
    let after = || async { writer.last().await.map(Some) };
    let after = context
        .eventually("the log can be read", START, after)
        .await?;
    ensure!(
        after > before + OUTAGE.as_secs() / 2,
        "{} files were written in {OUTAGE:?} without the control plane",
        after - before
    );
    eprintln!("    {} files in {OUTAGE:?}", after - before);
    writer.ends_with_all().await
}

pub async fn full_disks_say_so_and_deletes_work(context: Context) -> Result<()> {
    /// Of three times 1 GiB with three replicas.
    const MORE_THAN_THERE_IS: u32 = 1100;
    let node = context.cluster.nodes().last().context("no node")?.name();
    context.volume("full").await?;
    let fills = format!(
        "echo kept > kept; dd if=/dev/zero of=large bs=1M count={MORE_THAN_THERE_IS} conv=fsync 2>&1; cat kept; rm large && \
         until dd if=/dev/zero of=small bs=1M count=8 conv=fsync 2> /dev/null; do sleep 1; done; echo room again"
    );
    let pods = Pods::of(&context);
    let fills = Pods::on_claim("fills", &in_data(&fills), "full", node);
    let said = pods.runs(fills, RESTART * 2).await?;
    for expected in ["No space left on device", "kept\n", "room again"] {
        ensure!(said.contains(expected), "no {expected:?}: {said}");
    }
    Ok(())
}

pub async fn spoiled_replica_is_never_read(context: Context) -> Result<()> {
    let mark = format!("spoil-{}", context.namespace);
    let node = context.cluster.nodes().last().context("no node")?.name();
    context.volume("spoiled").await?;
    let pods = Pods::of(&context);
    // In few writes: each is flushed on three disks.
    let writes =
        format!("(for i in $(seq 1000); do echo {mark} $i; done) | cat > file && sync file");
    pods.runs(
        Pods::on_claim("writes", &in_data(&writes), "spoiled", node),
        START,
    )
    .await?;
    // Of the replica on one node, each first mark becomes another: blocks that are free again still hold older ones.
    let targets = with_label(&context, TARGETS).await?;
    let target = targets.first().context("no node has replicas")?;
    let file = "/var/lib/fireflyer/storage/fireflyer-target";
    let spoils = format!(
        "for at in $(grep -abo '{mark} 1$' {file} | cut -d : -f 1); do \
         printf XXXXX | dd of={file} bs=1 seek=$at conv=notrunc 2> /dev/null && echo spoiled at $at; done; sync {file}"
    );
    let said = context
        .cluster
        .node(target)?
        .run(&["bash", "-c", &spoils])?;
    ensure!(said.contains("spoiled at"), "nothing was spoiled: {said}");
    // Each time from another replica; a file that is opened anew is read anew.
    let reads = "for i in $(seq 30); do md5sum < file; done | sort | uniq -c; head -n 1 file";
    for number in 0..2 {
        let name = format!("reads-{number}");
        let read = pods
            .runs(
                Pods::on_claim(&name, &in_data(reads), "spoiled", node),
                START,
            )
            .await?;
        ensure!(
            read.lines().count() == 2 && read.contains(" 30 ") && read.contains(&mark),
            "the file is read as {read}"
        );
    }
    // The replica was read, and found out.
    let services = "app.kubernetes.io/component=storage";
    let words = ["logs", "-n", SYSTEM_NAMESPACE, "-l", services, "--tail=-1"];
    let found = || async {
        let log = context.kubectl(&words).await?;
        Ok(log.contains("bytes of a chunk are damaged").then_some(()))
    };
    let what = "a storage service notices what was spoiled";
    context.eventually(what, START, found).await?;
    Ok(())
}
