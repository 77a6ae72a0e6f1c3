//! What a CSI driver relies on: mounts that a pod makes reach the node and its other pods.

use anyhow::{Context as _, Result, ensure};
use cluster::image;
use serde_json::json;

use crate::context::Context;
use crate::pods::Pods;

/// What the file system of `storage-csi/fuse/examples/greeting.rs` holds.
const FILE: &str = "greeting";
const TEXT: &str = "served by another pod\n";
/// Where nodes see the folder that they share.
const SHARED: &str = "/var/lib/demo-shared";

/// A driver's pod mounts below the kubelet's folder. A pod that was there before sees the mount, one that comes later gets
/// it as a volume, and an unmount on the node ends the one who serves.
pub async fn fuse_mount_of_one_pod_serves_others(context: Context) -> Result<()> {
    // Pods have no library, so the program is a static one.
    let program = image::release_folder()?.join("examples").join(FILE);
    let shared = context.cluster.shared().join(FILE);
    std::fs::copy(&program, &shared)
        .with_context(|| format!("failed to copy {} to the nodes", program.display()))?;

    let folder = format!("/var/lib/kubelet/plugins/{}", context.namespace);
    let volume = format!("{folder}/volume");
    let waits = format!("until cat /mounts/volume/{FILE}; do sleep 0.2; done");
    let early = json!([{
        "name": "mounts", "mountPath": "/mounts", "mountPropagation": "HostToContainer",
    }]);
    let early = Pods::shell("early", &waits, early, &[("mounts", &folder)]);
    let pods = Pods::of(&context);
    pods.create(early).await?;
    pods.reaches("early", "Running").await?;
    let node = pods.node_of("early").await?;

    let mounts = json!([
        {"name": "mounts", "mountPath": "/mounts", "mountPropagation": "Bidirectional"},
        {"name": "shared", "mountPath": "/shared", "readOnly": true},
    ]);
    let serve = format!("exec /shared/{FILE} /mounts/volume");
    let volumes = [("mounts", folder.as_str()), ("shared", SHARED)];
    let mut driver = Pods::shell("driver", &serve, mounts, &volumes);
    driver["spec"]["nodeName"] = json!(node);
    driver["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
    pods.create(driver).await?;
    pods.reaches("early", "Succeeded").await?;

    let reads = format!("cat /data/{FILE}");
    let mounts = json!([{"name": "data", "mountPath": "/data"}]);
    let mut late = Pods::shell("late", &reads, mounts, &[("data", &volume)]);
    late["spec"]["nodeName"] = json!(node);
    pods.create(late).await?;
    pods.reaches("late", "Succeeded").await?;
    for reader in ["early", "late"] {
        let log = pods.log(reader).await?;
        ensure!(log.ends_with(TEXT), "the pod {reader} read {log:?}");
    }

    context.cluster.node(&node)?.run(&["umount", &volume])?;
    pods.reaches("driver", "Succeeded").await
}
