//! What volumes cost while nobody else does anything: the time until a claim can be used, and processors when all rests.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster::processors::processor_seconds;
use crds::names::SYSTEM_NAMESPACE;
use k8s_openapi::jiff::{Timestamp, Unit};

use super::{in_data, storage_is_ready};
use crate::context::Context;
use crate::pods::Pods;
use crate::scenario::START;

/// Ten times what it may take on a machine that does nothing else: 2 s.
const CLAIM: Duration = Duration::from_secs(20);
const CLAIMS: usize = 5;
/// Ten times the share of a core that all of ours may take at rest.
const REST: f64 = 0.3;
/// Long enough for a share: the kernel counts hundredths of a second.
const WATCHED: Duration = Duration::from_secs(10);

/// From the claim to the answer of NodePublish, where the image is on the node.
pub async fn claims_can_be_used_soon(context: Context) -> Result<()> {
    let node = context.cluster.nodes().last().context("no node")?.name();
    let pods = Pods::of(&context);
    let mut took = Vec::new();
    for number in 0..CLAIMS {
        let name = format!("soon-{number}");
        let claimed = Timestamp::now();
        context.volume(&name).await?;
        let writes = in_data("echo used > file");
        pods.runs(Pods::on_claim(&name, &writes, &name, node), START)
            .await?;
        let volume = ["get", "pvc", &name, "-n", &context.namespace, "-o"];
        let volume = [&volume[..], &["jsonpath={.spec.volumeName}"]].concat();
        let volume = context.kubectl(&volume).await?;
        let published = published(&context, &volume).await?;
        took.push((published - claimed).total(Unit::Second)?);
    }
    took.sort_by(f64::total_cmp);
    let [shortest, .., longest] = took[..] else {
        anyhow::bail!("no claim was used");
    };
    let median = took[CLAIMS / 2];
    eprintln!(
        "    {median:.2} s from a claim to the answer of NodePublish, median of {CLAIMS} from {shortest:.2} to {longest:.2} s"
    );
    ensure!(
        median < CLAIM.as_secs_f64(),
        "a claim could be used after {median:.1} s"
    );
    Ok(())
}

/// When a volume's first pod had it.
async fn published(context: &Context, volume: &str) -> Result<Timestamp> {
    let of_nodes = "app.kubernetes.io/component=storage-node";
    let words = ["logs", "-n", SYSTEM_NAMESPACE, "-l", of_nodes];
    let words = [&words[..], &["--tail=-1", "--timestamps"]].concat();
    let log = context.kubectl(&words).await?;
    let is_it = |line: &&str| line.contains("\"published a volume\"") && line.contains(volume);
    let line = log.lines().find(is_it);
    let line = line.with_context(|| format!("no node has published {volume}"))?;
    let at = line.split(' ').next().unwrap_or_default();
    at.parse()
        .with_context(|| format!("failed to read the time of {line:?}"))
}

pub async fn storage_at_rest_takes_little(context: Context) -> Result<()> {
    storage_is_ready(&context).await?;
    let all = [
        ("service", "^/usr/bin/storage-csi .* service "),
        ("node", "^/usr/bin/storage-csi .* node "),
        ("manager", "^/usr/bin/storage-csi .* manager "),
        ("meta", "^/usr/bin/storage-csi .* meta "),
        ("controller", "^/usr/bin/storage-csi .* controller "),
        ("etcd", "^/usr/local/bin/etcd .*--name=fireflyer"),
        ("csi-provisioner", "^/csi-provisioner "),
    ];
    let mut before = Vec::new();
    for (name, pattern) in all {
        let processes = processes(pattern)?;
        ensure!(!processes.is_empty(), "no process is a {name}");
        before.push((name, processor_seconds(&processes).total(), processes));
    }
    // Not synchronisation: the claim is about a span of time.
    tokio::time::sleep(WATCHED).await;
    let mut ours = 0.0;
    let mut said = Vec::new();
    for (name, before, processes) in before {
        let share = (processor_seconds(&processes).total() - before) / WATCHED.as_secs_f64();
        let count = processes.len();
        said.push(format!("{count} x {name} {:.2} %", share * 100.0));
        // On a cluster of three nodes there is a mount daemon for each service.
        ours += match name {
            "node" => share * 3.0 / count as f64,
            "etcd" | "csi-provisioner" => 0.0,
            _ => share,
        };
    }
    eprintln!(
        "    ours on three nodes {:.2} % of a core: {}",
        ours * 100.0,
        said.join(", ")
    );
    ensure!(ours <= REST, "at rest storage takes {ours:.2} of a core");
    Ok(())
}

/// On all nodes: they are processes of this machine.
fn processes(pattern: &str) -> Result<BTreeSet<u32>> {
    let output = Command::new("pgrep").args(["-f", pattern]).output();
    let output = output.context("failed to start pgrep")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers = text.lines().filter_map(|line| line.trim().parse().ok());
    Ok(numbers.collect())
}
