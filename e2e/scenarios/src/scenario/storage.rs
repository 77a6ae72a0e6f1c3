//! What a CSI driver relies on: mounts that a pod makes reach the node and its other pods.

use anyhow::{Context as _, Result, ensure};
use cluster::image;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{LogParams, PostParams};
use serde_json::{Value, json};

use crate::context::Context;
use crate::jobs::VERSION;
use crate::scenario::START;

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

/// Pods of the scenario that belong to no job.
struct Pods<'a> {
    context: &'a Context,
    api: Api<Pod>,
}

impl<'a> Pods<'a> {
    fn of(context: &'a Context) -> Self {
        let api = Api::namespaced(context.client.clone(), &context.namespace);
        Self { context, api }
    }

    /// A pod that runs a script once, with folders of its node.
    fn shell(name: &str, script: &str, mounts: Value, folders: &[(&str, &str)]) -> Value {
        let volume = |(name, path): &(&str, &str)| json!({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}});
        json!({
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "containers": [{
                    "name": "shell",
                    "image": format!("localhost/fireflyer/busybox:{VERSION}"),
                    "command": ["/bin/sh", "-c", script],
                    "volumeMounts": mounts,
                }],
                "volumes": folders.iter().map(volume).collect::<Vec<_>>(),
            },
        })
    }

    async fn create(&self, pod: Value) -> Result<()> {
        let pod: Pod = serde_json::from_value(pod)?;
        self.api
            .create(&PostParams::default(), &pod)
            .await
            .with_context(|| format!("failed to create the pod {:?}", pod.metadata.name))?;
        Ok(())
    }

    async fn reaches(&self, name: &str, wanted: &str) -> Result<()> {
        let look = || async {
            let status = self.api.get(name).await?.status;
            let phase = status.and_then(|status| status.phase);
            Ok((phase.as_deref() == Some(wanted)).then_some(()))
        };
        let what = format!("the pod {name} is {wanted}");
        self.context.eventually(&what, START, look).await
    }

    async fn node_of(&self, name: &str) -> Result<String> {
        let spec = self.api.get(name).await?.spec;
        spec.and_then(|spec| spec.node_name)
            .with_context(|| format!("the pod {name} has no node"))
    }

    async fn log(&self, name: &str) -> Result<String> {
        let log = self.api.logs(name, &LogParams::default()).await;
        log.with_context(|| format!("there is no log of the pod {name}"))
    }
}
