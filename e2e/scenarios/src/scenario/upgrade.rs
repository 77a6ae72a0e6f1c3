//! Our own parts are replaced under running jobs.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crds::training_job::Phase;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::context::Context;
use crate::jobs::{ENDS_WHEN_RESUMED, RUNS_UNTIL_ASKED, TestJob, VERSION};
use crate::scenario::START;

const ROLLOUT: Duration = Duration::from_secs(300);
/// Each of two attempts: assigned, ConfigMap, Secret, two pods, starting, running, its end, and what goes with it. 26
/// were seen.
const WRITES_OF_A_LIFE: usize = 20;
/// What the chart runs, by the label of its pods.
const COMPONENTS: [&str; 5] = [
    "operator",
    "device-plugin",
    "storage",
    "storage-meta",
    "storage-controller",
];
/// What no upgrade replaces: mounts end with it.
const MOUNTS: &str = "storage-node";
/// Before [`RUNS_UNTIL_ASKED`]: writes to the job's volume all the while, and says when a write is durable or has failed.
const WRITES: &str = r#"(i=0; while :; do
  i=$((i+1))
  if echo $i | dd of=/checkpoint/written-$RANK conv=fsync 2> /dev/null; then echo wrote $i; else echo failed to write $i; fi
  sleep 0.2
done) &"#;

pub async fn chart_upgrade_interrupts_no_job(context: Context) -> Result<()> {
    context.volume("untouched").await?;
    let writes = format!("{WRITES}\n{RUNS_UNTIL_ASKED}");
    context
        .start(&TestJob::shell("untouched", 2, &writes).checkpoint("untouched", 300))
        .await?;
    let before = context.pod_uids("untouched").await?;
    let mounts = context.pods_of(MOUNTS).await?;

    let events = context.events("untouched").await?;
    let columns = printer_columns(&context).await?;
    // As of an older chart.
    let older = r#"[{"op": "remove", "path": "/spec/versions/0/additionalPrinterColumns/0"}]"#;
    context
        .kubectl(&["patch", "crd", JOBS, "--type=json", "--patch", older])
        .await?;
    ensure!(
        printer_columns(&context).await? != columns,
        "no printer column was removed"
    );
    let old = parts(&context).await?;

    // Both the operator and the nodes' agents are replaced by other values.
    helm_upgrade(
        &context,
        &[
            "operator.logLevel=debug",
            "devicePlugin.logLevel=debug",
            "storage.logLevel=debug",
        ],
    )
    .await?;
    let new = parts(&context).await?;
    for ((component, old), new) in COMPONENTS.iter().zip(&old).zip(&new) {
        ensure!(
            !old.is_empty() && old.len() == new.len() && old.is_disjoint(new),
            "the upgrade did not replace all pods of the {component}: {old:?} before, {new:?} after"
        );
    }
    ensure!(
        uids(&mounts) == uids(&context.pods_of(MOUNTS).await?),
        "the upgrade replaced what serves the mounts"
    );
    writes_go_on(&context, "untouched").await?;
    ensure!(
        printer_columns(&context).await? == columns,
        "the upgrade did not reach the definition of jobs"
    );
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
        events == context.events("untouched").await?,
        "the new operator emitted the job's Events again"
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

/// Values that lack storage would end every mount of the cluster. Nothing is changed here: Helm asks, and does no more.
pub async fn upgrade_that_forgets_storage_is_refused_while_there_are_volumes(
    context: Context,
) -> Result<()> {
    context.volume("kept").await?;
    let volume = "jsonpath={.spec.volumeName}";
    let claim = ["get", "pvc", "kept", "-n", &context.namespace, "-o", volume];
    let look = || async { Ok((!context.kubectl(&claim).await?.is_empty()).then_some(())) };
    context
        .eventually("the claim has a volume", START, look)
        .await?;
    let cluster = std::sync::Arc::clone(&context.cluster);
    let tried = |values: &'static [&'static str]| {
        let cluster = std::sync::Arc::clone(&cluster);
        tokio::task::spawn_blocking(move || cluster::chart::try_upgrade(&cluster, values))
    };
    let refused = tried(&["storage.enabled=false"]).await?;
    let said = refused.err().context("an upgrade turned storage off")?;
    let said = format!("{:#}", anyhow::Error::from(said));
    for words in [
        "StoragePool default",
        "PersistentVolume ",
        "Set storage.enabled to true",
        "storage.remove to true",
    ] {
        ensure!(
            said.contains(words),
            "the refusal does not say {words:?}: {said}"
        );
    }
    tried(&["storage.enabled=false", "storage.remove=true"]).await??;
    tried(&[]).await??;
    Ok(())
}

/// The definition of jobs.
const JOBS: &str = "trainingjobs.fireflyer.dev";

/// What `kubectl get trainingjobs` shows.
async fn printer_columns(context: &Context) -> Result<String> {
    let path = "jsonpath={.spec.versions[0].additionalPrinterColumns[*].name}";
    context.kubectl(&["get", "crd", JOBS, "-o", path]).await
}

/// Uids of the pods of each of our components, without those on their way out.
async fn parts(context: &Context) -> Result<Vec<BTreeSet<String>>> {
    let mut parts = Vec::new();
    for component in COMPONENTS {
        let pods = context.pods_of(component).await?;
        let stays = pods
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none());
        parts.push(stays.filter_map(|pod| pod.uid()).collect());
    }
    Ok(parts)
}

/// The job's writes are durable now, and none has failed.
async fn writes_go_on(context: &Context, job: &str) -> Result<()> {
    let wrote = || async {
        let log = context.log(job, 1, 0).await?;
        ensure!(!log.contains("failed to write"), "a write failed: {log}");
        Ok(log
            .lines()
            .filter(|line| line.starts_with("wrote "))
            .count())
    };
    let before = wrote().await?;
    let look = || async { Ok((wrote().await? > before + 1).then_some(())) };
    context.eventually("writes go on", ROLLOUT, look).await
}

/// Uids of pods.
fn uids(pods: &[Pod]) -> BTreeSet<String> {
    pods.iter().filter_map(|pod| pod.uid()).collect()
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
    let lived = lives_of_a_write(&context).await;
    deployments
        .patch("fireflyer-operator", &params, &Patch::Merge(&replicas(2)))
        .await?;
    let Crashed { writes, kills } = lived?;
    eprintln!(
        "    {kills} operators were killed after {} writes",
        writes.len()
    );
    // The last write is seen by whoever waits for the job's end before its kill is done.
    ensure!(
        kills + 1 >= writes.len() && kills >= WRITES_OF_A_LIFE,
        "{kills} kills for {} writes: {writes:#?}",
        writes.len()
    );
    let pods = writes.iter().filter(|write| write.ends_with("/pods"));
    let created = pods.filter(|write| write.contains(": POST ")).count();
    ensure!(
        created == 4,
        "{created} creations of a pod, not one for each of two nodes and two attempts: {writes:#?}"
    );
    Ok(())
}

async fn lives_of_a_write(context: &Context) -> Result<Crashed> {
    context
        .eventually("no other operator runs", START, || async {
            let left = context.pods_of("operator").await?;
            Ok(left.is_empty().then_some(()))
        })
        .await?;
    let crashing = Crashing::start(context)?;
    let ended = life_of_a_job(context).await;
    let crashed = crashing.stop()?;
    ended.with_context(|| format!("after these writes: {:#?}", crashed.writes))?;
    Ok(crashed)
}

async fn life_of_a_job(context: &Context) -> Result<()> {
    /// A start of an operator costs some 0.2 s, a life some 40 of them; ten times that is the limit.
    const LIFE: Duration = Duration::from_secs(80);
    context.claim("life", "ReadWriteMany").await?;
    let job = TestJob::shell("life", 2, ENDS_WHEN_RESUMED).checkpoint("life", 300);
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

/// What came of it.
struct Crashed {
    /// The writes that were carried out.
    writes: Vec<String>,
    /// How many operators were killed.
    kills: usize,
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

    /// Ends it and returns what it did. It fails when an operator ended by itself.
    fn stop(mut self) -> Result<Crashed> {
        drop(self.child.stdin.take());
        let status = self
            .child
            .wait()
            .context("failed to wait for the crashing operator")?;
        let text = std::fs::read_to_string(&self.log)?;
        let last = text.lines().next_back().unwrap_or_default();
        ensure!(
            status.success(),
            "the crashing operator ended with {status}: {last}"
        );
        let of = |kind: &'static str| text.lines().filter(move |line| line.starts_with(kind));
        Ok(Crashed {
            writes: of("write ").map(str::to_owned).collect(),
            kills: of("killed ").count(),
        })
    }
}

/// Uninstalling takes our programs away, and neither the users' jobs nor what defines them.
pub async fn uninstall_keeps_jobs_and_reinstall_goes_on(context: Context) -> Result<()> {
    context
        .start(&TestJob::shell("orphan", 2, RUNS_UNTIL_ASKED))
        .await?;
    let before = context.pod_uids("orphan").await?;
    let installed = of_the_chart(&context).await?;
    ensure!(
        ["deployment.apps/", "daemonset.apps/", "clusterrole.rbac"]
            .iter()
            .all(|kind| installed.iter().any(|object| object.starts_with(kind))),
        "what the chart installed is not found: {installed:?}"
    );
    let cluster = std::sync::Arc::clone(&context.cluster);
    tokio::task::spawn_blocking(move || cluster::chart::uninstall(&cluster)).await??;
    let deployment = deployments(&context).get_opt("fireflyer-operator").await?;
    ensure!(deployment.is_none(), "the operator is still deployed");
    // Pods and the like go with their owners a little later.
    let gone = context.eventually("nothing of the chart is left", START, || async {
        let left = of_the_chart(&context).await?;
        ensure!(left.is_empty(), "the uninstall left {left:?}");
        Ok(Some(()))
    });
    gone.await?;
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

/// All objects of any kind that bear the release's label, except what an uninstall keeps: the definitions of kinds, the
/// namespace of validations, and by what volumes are found again.
async fn of_the_chart(context: &Context) -> Result<Vec<String>> {
    let kinds = context
        .kubectl(&["api-resources", "--verbs=list", "-o", "name"])
        .await?;
    let kinds = kinds.lines().collect::<Vec<_>>().join(",");
    let label = "app.kubernetes.io/instance=fireflyer";
    let kept = [
        format!("namespace/{}", crds::names::VALIDATION_NAMESPACE),
        "secret/fireflyer-storage".to_owned(),
        "storagepool.fireflyer.dev/default".to_owned(),
    ];
    let found = context
        .kubectl(&["get", &kinds, "-A", "-l", label, "-o", "name"])
        .await?;
    let objects = found
        .lines()
        .filter(|line| line.contains('/') && !line.starts_with("Warning:"))
        .filter(|object| !object.starts_with("customresourcedefinition."))
        .filter(|object| kept.iter().all(|kept| kept != object));
    Ok(objects.map(str::to_owned).collect())
}
