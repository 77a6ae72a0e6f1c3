//! Our own parts are replaced under running jobs.

use std::time::Duration;

use anyhow::{Result, ensure};
use crds::training_job::Phase;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::context::Context;
use crate::jobs::{Job, RUNS_UNTIL_ASKED};

const START: Duration = Duration::from_secs(60);
const ROLLOUT: Duration = Duration::from_secs(300);

pub async fn operator_upgrade_interrupts_no_job(context: Context) -> Result<()> {
    context.submit(&Job::shell("untouched", 2, RUNS_UNTIL_ASKED)).await?;
    context.reaches("untouched", Phase::Running, START).await?;
    let before = context.pod_uids("untouched").await?;

    let deployments: Api<Deployment> =
        Api::namespaced(context.client.clone(), crds::names::SYSTEM_NAMESPACE);
    let patch = json!({"spec": {"template": {"metadata": {"annotations": {
        "fireflyer.dev/rolled-by": context.namespace,
    }}}}});
    let params = PatchParams::default();
    deployments.patch("fireflyer-operator", &params, &Patch::Merge(&patch)).await?;
    context
        .eventually("the new operator replaced the old one", ROLLOUT, || async {
            let deployment = deployments.get("fireflyer-operator").await?;
            let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas);
            let generation = deployment.metadata.generation;
            let status = deployment.status.unwrap_or_default();
            let done = status.observed_generation == generation
                && status.updated_replicas == wanted
                && status.available_replicas == wanted
                && status.replicas == wanted;
            Ok(done.then_some(()))
        })
        .await?;

    let job = context.job("untouched").await?.status.unwrap_or_default();
    ensure!(job.phase == Phase::Running, "the job is {:?} after the upgrade", job.phase);
    ensure!(job.attempt == 1, "the upgrade cost the job an attempt");
    ensure!(before == context.pod_uids("untouched").await?, "pods changed with the operator");
    // The new leader is at work: it suspends the job, and the job's own save is recorded.
    context.change("untouched", json!({"suspend": true})).await?;
    context.reaches("untouched", Phase::Suspended, ROLLOUT).await?;
    context.delete("untouched").await?;
    context.is_gone("untouched", START).await
}
