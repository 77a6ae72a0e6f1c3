//! Our own parts are replaced under running jobs.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crds::training_job::Phase;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::context::Context;
use crate::jobs::{ENDS_WHEN_RESUMED, Job, RUNS_UNTIL_ASKED, VERSION};
use crate::scenario::START;

const ROLLOUT: Duration = Duration::from_secs(300);

pub async fn chart_upgrade_interrupts_no_job(context: Context) -> Result<()> {
    context
        .start(&Job::shell("untouched", 2, RUNS_UNTIL_ASKED))
        .await?;
    let before = context.pod_uids("untouched").await?;

    let told = context.events("untouched").await?;

    // Both the operator and the nodes' agents are replaced by other values.
    helm_upgrade(
        &context,
        &["operator.logLevel=debug", "devicePlugin.logLevel=debug"],
    )
    .await?;
    let job = context.job("untouched").await?.status.unwrap_or_default();
    ensure!(
        job.phase == Phase::Running,
        "the job is {:?} after the upgrade",
        job.phase
    );
    ensure!(job.attempt == 1, "the upgrade cost the job an attempt");
    ensure!(
        before == context.pod_uids("untouched").await?,
        "pods changed with the operator"
    );
    ensure!(
        told == context.events("untouched").await?,
        "the new operator told the job's story again"
    );
    // The new leader is at work: it suspends the job, and the job's own save is recorded.
    context
        .change("untouched", json!({"suspend": true}))
        .await?;
    context
        .reaches("untouched", Phase::Suspended, ROLLOUT)
        .await?;
    context.delete("untouched").await?;
    context.is_gone("untouched", START).await?;
    helm_upgrade(&context, &[]).await
}

/// `helm upgrade` to these values; returns when all that changed is Ready.
async fn helm_upgrade(context: &Context, values: &'static [&'static str]) -> Result<()> {
    let cluster = std::sync::Arc::clone(&context.cluster);
    Ok(tokio::task::spawn_blocking(move || cluster::chart::upgrade(&cluster, values)).await??)
}

fn deployments(context: &Context) -> Api<Deployment> {
    Api::namespaced(context.client.clone(), crds::names::SYSTEM_NAMESPACE)
}

/// Every operator lives for one write; a job must start, save, resume and end all the same.
pub async fn operator_killed_after_every_write_finishes_the_job(context: Context) -> Result<()> {
    let deployments = deployments(&context);
    let replicas = |count: u32| json!({"spec": {"replicas": count}});
    let params = PatchParams::default();
    deployments
        .patch("fireflyer-operator", &params, &Patch::Merge(&replicas(0)))
        .await?;
    let crashing = Crashing::start(&context)?;
    let ended = life_of_a_job(&context).await;
    let writes = crashing.stop()?;
    deployments
        .patch("fireflyer-operator", &params, &Patch::Merge(&replicas(2)))
        .await?;
    ended.with_context(|| format!("after {} writes:\n{}", writes.len(), writes.join("\n")))?;
    // Assigned, ConfigMap, Secret, two pods, twice, and the transitions between: at least these.
    ensure!(
        writes.len() >= 12,
        "only {} writes were made: {writes:?}",
        writes.len()
    );
    Ok(())
}

async fn life_of_a_job(context: &Context) -> Result<()> {
    /// A start of an operator costs some 0.2 s, a life some 40 of them; ten times that is the limit.
    const LIFE: Duration = Duration::from_secs(80);
    context.claim("life", "ReadWriteMany").await?;
    let job = Job::shell("life", 2, ENDS_WHEN_RESUMED).checkpoint("life", 300);
    context.submit(&job).await?;
    context.reaches("life", Phase::Running, LIFE).await?;
    context.change("life", json!({"suspend": true})).await?;
    context.reaches("life", Phase::Suspended, LIFE).await?;
    context.change("life", json!({"suspend": false})).await?;
    let ended = context.reaches("life", Phase::Succeeded, LIFE).await?;
    let attempt = ended.status.map_or(0, |status| status.attempt);
    ensure!(
        attempt == 2,
        "one suspension and no failure, yet attempt {attempt}"
    );
    context.delete("life").await?;
    context.is_gone("life", LIFE).await
}

/// The process that keeps killing operators, beside the control plane.
struct Crashing {
    child: Child,
    log: PathBuf,
}

impl Crashing {
    fn start(context: &Context) -> Result<Self> {
        let cluster = &context.cluster;
        let address = cluster.control_plane_address();
        let log = cluster.logs().join("crashing-operator.log");
        let file = File::create(&log).context("failed to create the log of the operators")?;
        let this = std::env::current_exe()?;
        let rendezvous = format!("{address}:9443");
        let operator = cluster::image::binary("operator")?;
        let mut command = cluster.in_control_plane(&this)?;
        command
            .arg("crash")
            .arg(cluster.control_plane_kubeconfig())
            .arg(operator)
            .args(["--namespace", crds::names::SYSTEM_NAMESPACE])
            .args(["--pod-name", "crashing", "--pod-ip", &address.to_string()])
            .args(["--rendezvous-service", &rendezvous])
            .args([
                "--rendezvous-listen",
                &rendezvous,
                "--metrics-listen",
                "127.0.0.1:9400",
            ])
            .args([
                "--sidecar-image",
                &format!("localhost/fireflyer/hfreduce-sidecar:{VERSION}"),
            ])
            .stdin(Stdio::piped())
            .stderr(file.try_clone()?)
            .stdout(file);
        let child = command
            .spawn()
            .context("failed to start the crashing operator")?;
        Ok(Self { child, log })
    }

    /// Ends it and tells which writes were made.
    fn stop(mut self) -> Result<Vec<String>> {
        drop(self.child.stdin.take());
        self.child
            .wait()
            .context("failed to wait for the crashing operator")?;
        let text = std::fs::read_to_string(&self.log)?;
        Ok(text
            .lines()
            .filter(|line| line.starts_with("write "))
            .map(str::to_owned)
            .collect())
    }
}

/// Uninstalling takes our programs away, and neither the users' jobs nor what defines them.
pub async fn uninstall_keeps_jobs_and_reinstall_goes_on(context: Context) -> Result<()> {
    context
        .start(&Job::shell("orphan", 2, RUNS_UNTIL_ASKED))
        .await?;
    let before = context.pod_uids("orphan").await?;
    let cluster = std::sync::Arc::clone(&context.cluster);
    tokio::task::spawn_blocking(move || cluster::chart::uninstall(&cluster)).await??;
    let deployment = deployments(&context).get_opt("fireflyer-operator").await?;
    ensure!(deployment.is_none(), "the operator is still deployed");
    // The definition was kept, and so was the job; its pods do not need the operator.
    let job = context.job("orphan").await?;
    ensure!(
        job.metadata.deletion_timestamp.is_none(),
        "the job is being deleted"
    );
    ensure!(
        before == context.pod_uids("orphan").await?,
        "pods went with the operator"
    );

    helm_upgrade(&context, &[]).await?;
    context.change("orphan", json!({"suspend": true})).await?;
    context.reaches("orphan", Phase::Suspended, ROLLOUT).await?;
    context.delete("orphan").await?;
    context.is_gone("orphan", START).await
}
