//! A job's ordinary life: starts, waits, saves, resumes, ends, is deleted.

use std::time::Duration;

use anyhow::{Result, ensure};
use crds::training_job::Phase;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::context::Context;
use crate::jobs::{ENDS_WELL, RUNS_UNTIL_ASKED, TestJob};
use crate::scenario::START;

/// The Events of a job that was suspended once.
const LIFE: [&str; 7] = [
    "Assigned",
    "Running",
    "Interrupting",
    "Suspended",
    "Resumed",
    "Assigned",
    "Running",
];

/// SAVE-1: what was acknowledged is what the next attempt starts from.
pub async fn suspended_job_saves_and_resumes_from_there(context: Context) -> Result<()> {
    context.claim("store", "ReadWriteMany").await?;
    let job = TestJob::shell("pausing", 2, RUNS_UNTIL_ASKED).checkpoint("store", 300);
    context.start(&job).await?;

    context.change("pausing", json!({"suspend": true})).await?;
    let suspended = context.reaches("pausing", Phase::Suspended, START).await?;
    let saved = suspended.status.and_then(|status| status.last_checkpoint);
    let saved = saved.ok_or_else(|| anyhow::anyhow!("no checkpoint was recorded"))?;
    ensure!(
        (saved.attempt, saved.step) == (1, 7),
        "recorded {saved:?}, saved attempt 1 step 7"
    );
    let durable = context
        .condition("pausing", "CheckpointDurable", "True")
        .await?;
    ensure!(
        durable.is_some(),
        "CheckpointDurable is not True after an acknowledged save"
    );
    // Its nodes were free when the phase said so; the objects follow at once.
    context
        .eventually("a suspended job has no pods", START, || async {
            Ok(context.pods("pausing").await?.is_empty().then_some(()))
        })
        .await?;

    context.change("pausing", json!({"suspend": false})).await?;
    context.reaches("pausing", Phase::Running, START).await?;
    let log = context
        .eventually(
            "the second attempt says where it resumed",
            START,
            || async {
                let log = context.log("pausing", 2, 0).await?;
                Ok(log.contains("running").then_some(log))
            },
        )
        .await?;
    ensure!(
        log.contains("attempt 2"),
        "the resumed attempt is not number 2: {log}"
    );
    ensure!(
        log.contains("resume=attempt-1/step-7"),
        "not resumed from the save: {log}"
    );

    // Each transition has one Event; how long it queued depends on the other scenarios.
    let events = context.events("pausing").await?;
    let life: Vec<_> = events
        .iter()
        .filter(|reason| LIFE.contains(&reason.as_str()))
        .collect();
    ensure!(life == LIFE, "the job's Events are {events:?}");

    context.delete("pausing").await?;
    context.is_gone("pausing", Duration::from_secs(120)).await
}

pub async fn second_job_waits_for_the_first(context: Context) -> Result<()> {
    // Two zones, of the three that there are.
    context
        .start(&TestJob::shell("first", 4, RUNS_UNTIL_ASKED))
        .await?;
    context
        .submit(&TestJob::shell("second", 4, ENDS_WELL))
        .await?;
    let waits = context.eventually("the second job is seen to wait", START, || async {
        context.condition("second", "Assigned", "False").await
    });
    let why = waits.await?;
    ensure!(
        !why.is_empty(),
        "a waiting job says nothing about what it waits for"
    );
    ensure!(
        context.pods("second").await?.is_empty(),
        "a waiting job has pods"
    );
    context.delete("first").await?;
    context
        .reaches("second", Phase::Succeeded, START * 2)
        .await?;
    Ok(())
}

pub async fn job_deleted_while_starting_leaves_nothing(context: Context) -> Result<()> {
    // It never comes to train, so it is still starting however late this looks. A shell that is its container's first
    // process ignores SIGTERM: it takes all the time that the job has to save.
    let starting = |name: &str| {
        TestJob::shell(name, 2, RUNS_UNTIL_ASKED)
            .init("while :; do sleep 1; done")
            .with("interruption", json!({"ackSeconds": 1, "saveSeconds": 1}))
    };
    context.submit(&starting("early")).await?;
    context
        .eventually("a pod of the job exists", START, || async {
            Ok((!context.pods("early").await?.is_empty()).then_some(()))
        })
        .await?;
    delete_before_it_trains(&context, "early").await?;

    context.submit(&starting("late")).await?;
    context
        .eventually(
            "both pods wait for their init containers",
            START,
            || async {
                let pods = context.pods("late").await?;
                Ok((pods.iter().filter(|pod| initializes(pod)).count() == 2).then_some(()))
            },
        )
        .await?;
    delete_before_it_trains(&context, "late").await
}

async fn delete_before_it_trains(context: &Context, name: &str) -> Result<()> {
    let status = context.job(name).await?.status.unwrap_or_default();
    ensure!(
        matches!(status.phase, Phase::Assigned | Phase::Starting),
        "job {name} is {:?}: too late to see it deleted while it starts",
        status.phase
    );
    context.delete(name).await?;
    context.is_gone(name, START * 2).await
}

/// Whether the pod's own init container runs.
fn initializes(pod: &Pod) -> bool {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.init_container_statuses.as_ref());
    statuses.into_iter().flatten().any(|container| {
        let running = container
            .state
            .as_ref()
            .and_then(|state| state.running.as_ref());
        container.name == "init" && running.is_some()
    })
}

pub async fn gang_that_cannot_fit_says_why(context: Context) -> Result<()> {
    context
        .submit(&TestJob::shell("giant", 400, ENDS_WELL))
        .await?;
    let has = context.cluster.nodes().count();
    context
        .eventually("the job says why it can never fit", START, || async {
            let message = context.condition("giant", "Assigned", "False").await?;
            let wanted = format!("needs 400 nodes of class a100, the cluster has {has}");
            Ok(message.filter(|message| message.contains(&wanted)))
        })
        .await?;
    ensure!(
        context.pods("giant").await?.is_empty(),
        "pods were made for a gang that cannot fit"
    );
    context.delete("giant").await?;
    context.is_gone("giant", START).await
}

pub async fn missing_image_is_a_condition_and_no_storm(context: Context) -> Result<()> {
    let job = TestJob::shell("imageless", 1, ENDS_WELL).image("localhost/fireflyer/absent:0.1.0");
    context.submit(&job).await?;
    context
        .eventually("a condition names the image", START * 2, || async {
            let message = context.condition("imageless", "Running", "False").await?;
            Ok(message.filter(|message| message.contains("localhost/fireflyer/absent:0.1.0")))
        })
        .await?;
    let before = context.pod_uids("imageless").await?;
    // A storm would come with the kubelet's tries.
    context
        .eventually("the kubelet has tried three times", START * 2, || async {
            Ok((context.pulls().await? >= 3).then_some(()))
        })
        .await?;
    let job = context.job("imageless").await?;
    let status = job.status.unwrap_or_default();
    let tried = (status.attempt, status.restarts, status.replans);
    ensure!(
        tried == (1, 0, 0) && before == context.pod_uids("imageless").await?,
        "attempt, restarts and replans are {tried:?} for an image that cannot be pulled"
    );
    context.delete("imageless").await?;
    context.is_gone("imageless", START * 2).await
}

pub async fn claim_of_one_node_is_refused_for_two(context: Context) -> Result<()> {
    context.claim("lonely", "ReadWriteOnce").await?;
    context
        .submit(&TestJob::shell("sharing", 2, ENDS_WELL).checkpoint("lonely", 300))
        .await?;
    let message = context
        .eventually("the claim is refused in a condition", START, || async {
            let message = context.condition("sharing", "Assigned", "False").await?;
            Ok(message.filter(|message| message.contains("ReadWriteMany")))
        })
        .await?;
    ensure!(
        message.contains("lonely"),
        "the refusal does not name the claim: {message}"
    );
    context.delete("sharing").await?;
    context.is_gone("sharing", START).await
}

pub async fn finished_job_is_deleted_after_its_ttl(context: Context) -> Result<()> {
    let job = TestJob::shell("brief", 1, ENDS_WELL).with("ttlSecondsAfterFinished", json!(1));
    context.submit(&job).await?;
    context.is_gone("brief", START * 2).await
}

pub async fn compliant_job_runs_in_a_restricted_namespace(context: Context) -> Result<()> {
    restrict(&context).await?;
    // What the operator adds to the pod must comply as well.
    let job = TestJob::shell("modest", 1, ENDS_WELL).restricted();
    context.submit(&job).await?;
    context.reaches("modest", Phase::Succeeded, START).await?;
    Ok(())
}

/// Lets the namespace admit only pods of the restricted level, and waits until it does.
pub(super) async fn restrict(context: &Context) -> Result<()> {
    let namespace = context.namespace.as_str();
    context
        .kubectl(&[
            "label",
            "namespace",
            namespace,
            "pod-security.kubernetes.io/enforce=restricted",
        ])
        .await?;
    let bare = [
        "run",
        "bare",
        "--image=none",
        "--dry-run=server",
        "-n",
        namespace,
    ];
    context
        .eventually("a pod that does not comply is refused", START, || async {
            let refusal = context.kubectl(&bare).await.err();
            Ok(refusal.filter(|refusal| refusal.to_string().contains("violates PodSecurity")))
        })
        .await?;
    Ok(())
}
