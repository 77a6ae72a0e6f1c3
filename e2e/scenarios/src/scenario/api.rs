//! What the API refuses, and what it says then.

use anyhow::{Context as _, Result, ensure};

use crate::context::Context;

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
