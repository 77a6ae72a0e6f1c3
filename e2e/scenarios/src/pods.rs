//! Pods of a scenario that belong to no job: a shell script each, with folders of the node or claims.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, LogParams, PostParams};
use serde_json::{Value, json};

use crate::context::Context;
use crate::jobs::VERSION;
use crate::scenario::START;

/// The container of each.
const CONTAINER: &str = "shell";
/// Where [`Pods::on_claim`] has the claim.
pub const DATA: &str = "/data";

/// The pods of a scenario.
#[derive(Debug)]
pub struct Pods<'a> {
    context: &'a Context,
    api: Api<Pod>,
}

impl<'a> Pods<'a> {
    /// Those of a scenario's namespace.
    pub fn of(context: &'a Context) -> Self {
        let api = Api::namespaced(context.client.clone(), &context.namespace);
        Self { context, api }
    }

    /// A pod that runs a script once, with folders of its node.
    pub fn shell(name: &str, script: &str, mounts: Value, folders: &[(&str, &str)]) -> Value {
        let volume = |(name, path): &(&str, &str)| json!({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}});
        let volumes: Vec<_> = folders.iter().map(volume).collect();
        Self::with(name, script, mounts, json!(volumes))
    }

    /// A pod that runs a script once on a node, with a claim at [`DATA`]. The scheduler puts it there when the claim is bound,
    /// whatever taints the node has: a kubelet that finds it unbound tries again after 10 to 15 s.
    pub fn on_claim(name: &str, script: &str, claim: &str, node: &str) -> Value {
        let mounts = json!([{"name": "data", "mountPath": DATA}]);
        let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
        let mut pod = Self::with(name, script, mounts, volumes);
        pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
        pod["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
        pod
    }

    fn with(name: &str, script: &str, mounts: Value, volumes: Value) -> Value {
        json!({
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": CONTAINER,
                    "image": format!("localhost/fireflyer/busybox:{VERSION}"),
                    "command": ["/bin/sh", "-c", script],
                    "volumeMounts": mounts,
                }],
                "volumes": volumes,
            },
        })
    }

    /// Creates one.
    pub async fn create(&self, pod: Value) -> Result<()> {
        let pod: Pod = serde_json::from_value(pod)?;
        self.api
            .create(&PostParams::default(), &pod)
            .await
            .with_context(|| format!("failed to create the pod {:?}", pod.metadata.name))?;
        Ok(())
    }

    /// Creates one and returns what it printed when it has ended well.
    pub async fn runs(&self, pod: Value, limit: Duration) -> Result<String> {
        let name = pod["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        self.create(pod).await?;
        self.ends_well(&name, limit).await
    }

    /// Waits until it has ended well, and returns what it printed.
    pub async fn ends_well(&self, name: &str, limit: Duration) -> Result<String> {
        let look = || async {
            let phase = self.phase(name).await?;
            Ok(["Succeeded", "Failed"]
                .contains(&phase.as_str())
                .then_some(phase))
        };
        let what = format!("the pod {name} ends");
        let phase = self.context.eventually(&what, limit, look).await?;
        let log = self.log(name).await?;
        ensure!(
            phase == "Succeeded",
            "the pod {name} has failed, its log is {log:?}"
        );
        Ok(log)
    }

    /// Waits for a phase.
    pub async fn reaches(&self, name: &str, wanted: &str) -> Result<()> {
        let look = || async { Ok((self.phase(name).await? == wanted).then_some(())) };
        let what = format!("the pod {name} is {wanted}");
        self.context.eventually(&what, START, look).await
    }

    async fn phase(&self, name: &str) -> Result<String> {
        let status = self.api.get(name).await?.status;
        Ok(status.and_then(|status| status.phase).unwrap_or_default())
    }

    /// The node that it is on.
    pub async fn node_of(&self, name: &str) -> Result<String> {
        let spec = self.api.get(name).await?.spec;
        spec.and_then(|spec| spec.node_name)
            .with_context(|| format!("the pod {name} has no node"))
    }

    /// What it has printed.
    pub async fn log(&self, name: &str) -> Result<String> {
        let log = self.api.logs(name, &LogParams::default()).await;
        log.with_context(|| format!("there is no log of the pod {name}"))
    }

    /// Runs a script in one that runs.
    pub async fn exec(&self, name: &str, script: &str) -> Result<String> {
        let namespace = self.context.namespace.as_str();
        let words = ["exec", "-n", namespace, name, "--", "/bin/sh", "-c", script];
        self.context.kubectl(&words).await
    }

    /// Deletes one and waits until it is gone.
    pub async fn delete(&self, name: &str) -> Result<()> {
        self.api.delete(name, &DeleteParams::default()).await?;
        let look = || async { Ok(self.api.get_opt(name).await?.is_none().then_some(())) };
        let what = format!("the pod {name} is gone");
        self.context.eventually(&what, START, look).await
    }
}
