//! What breaks, and what the job does then.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crds::training_job::Phase;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::json;

use crate::context::{Context, has_ended, leader_node, victim};
use crate::jobs::{HANGS_ONCE, NEVER_LEAVES, RUNS_UNTIL_ASKED, SAVES_AT_ONCE, TestJob};
use crate::scenario::{NODE_LOSS, START};

/// Survivors that cannot save are gone within 5 s; ten times that is the limit.
const SURVIVORS: Duration = Duration::from_secs(50);

pub async fn dead_rank_restarts_the_whole_gang(context: Context) -> Result<()> {
    starts_and_saves(&context, "fragile").await?;
    // Pid 1 is the launcher; the trainer's rank is its child.
    let kill = "for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p -gt 1 ] && [ $p -ne $$ ] && kill -9 $p; done; true";
    context.exec("fragile-1-1", kill).await?;

    let ended = context
        .reaches("fragile", Phase::Succeeded, START * 2)
        .await?;
    let status = ended.status.unwrap_or_default();
    ensure!(
        status.attempt == 2,
        "ended in attempt {}, not 2",
        status.attempt
    );
    let failure = status.failure.context("status does not say what failed")?;
    ensure!(
        failure.rank == Some(1),
        "status blames rank {:?}, not 1",
        failure.rank
    );
    resumed(&context, "fragile", 2).await
}

/// Submits a job of two nodes that saves step 5 and works on; returns when the save is on record.
async fn starts_and_saves(context: &Context, name: &str) -> Result<()> {
    context.claim(name, "ReadWriteMany").await?;
    let job = TestJob::shell(name, 2, SAVES_AT_ONCE).checkpoint(name, 300);
    context.start(&job).await?;
    context
        .eventually("the job's save is on record", START, || async {
            let status = context.job(name).await?.status.unwrap_or_default();
            let saved = status.last_checkpoint;
            Ok(saved.filter(|saved| saved.step == 5).map(|_| ()))
        })
        .await
}

/// An attempt must have gone on from what [`starts_and_saves`] saved.
async fn resumed(context: &Context, name: &str, attempt: u32) -> Result<()> {
    let log = context.log(name, attempt, 0).await?;
    ensure!(
        log.contains("goes on from step 5"),
        "attempt {attempt} did not go on from the save: {log}"
    );
    Ok(())
}

pub async fn survivors_that_cannot_save_are_removed_at_once(context: Context) -> Result<()> {
    // Far more than the limit, so that what an ordinary interruption would give them shows.
    let job = TestJob::shell("stubborn", 2, NEVER_LEAVES)
        .with("procsPerNode", json!(2))
        .with("interruption", json!({"saveSeconds": 300}));
    context.start(&job).await?;
    let killed = context
        .eventually("a rank is killed", START, || async {
            let before = Instant::now();
            let kill = "kill -9 $(cat /dev/shm/rank-1)";
            context.exec("stubborn-1-1", kill).await?;
            Ok(Some(before))
        })
        .await?;
    context
        .eventually("no pod of the first attempt lives", SURVIVORS, || async {
            let pods = context.pods("stubborn").await?;
            let is_first = |pod: &Pod| {
                let attempt = pod.labels().get(crds::names::LABEL_ATTEMPT);
                attempt.is_some_and(|attempt| attempt == "1")
            };
            let lives = pods.iter().any(|pod| is_first(pod) && !has_ended(pod));
            Ok((!lives).then_some(()))
        })
        .await?;
    eprintln!(
        "    survivors were gone {:.1} s after the kill",
        killed.elapsed().as_secs_f64()
    );
    let ended = context
        .reaches("stubborn", Phase::Succeeded, START * 2)
        .await?;
    let status = ended.status.unwrap_or_default();
    ensure!(
        (status.attempt, status.restarts) == (2, 1),
        "attempt {} after {} restarts, not 2 after 1",
        status.attempt,
        status.restarts
    );
    Ok(())
}

pub async fn job_without_progress_says_where_it_stands_and_starts_again(
    context: Context,
) -> Result<()> {
    let stall = Duration::from_secs(60);
    let policy = json!({"stallSeconds": stall.as_secs()});
    let job = TestJob::shell("hung", 2, HANGS_ONCE).with("failurePolicy", policy);
    context.start(&job).await?;
    // Before its pods go, 10 s later.
    context
        .eventually("both ranks say where they stand", START + stall, || async {
            for rank in 0..2 {
                let log = context.log("hung", 1, rank).await?;
                if !log.contains(&format!("rank {rank} stands in a loop")) {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
        .await?;
    let ended = context.reaches("hung", Phase::Succeeded, START * 2).await?;
    let status = ended.status.unwrap_or_default();
    let reasons: Vec<_> = status.attempts.iter().map(|one| &one.reason).collect();
    ensure!(
        status.restarts == 1 && reasons.first() == Some(&&Some("Stalled".to_owned())),
        "{} restarts, attempts that ended by {reasons:?}",
        status.restarts
    );
    let failure = status
        .failure
        .context("status does not say what happened")?;
    ensure!(
        failure.message.contains("step 41"),
        "the last sign of progress is not in the status: {}",
        failure.message
    );
    Ok(())
}

pub async fn failing_program_ends_with_its_last_words(context: Context) -> Result<()> {
    let script = "echo the last words of a rank; exit 3";
    let job = TestJob::shell("doomed", 1, script).with("failurePolicy", json!({"maxRestarts": 1}));
    context.submit(&job).await?;
    let failed = context.reaches("doomed", Phase::Failed, START * 2).await?;
    let status = failed.status.unwrap_or_default();
    ensure!(
        status.attempt == 2,
        "{} attempts for one allowed restart",
        status.attempt
    );
    let log = status
        .failure
        .and_then(|failure| failure.log)
        .unwrap_or_default();
    ensure!(
        log.contains("the last words of a rank"),
        "the log's tail is not in status: {log:?}"
    );
    Ok(())
}

pub async fn killed_node_is_replaced_and_the_job_goes_on(context: Context) -> Result<()> {
    starts_and_saves(&context, "survivor").await?;
    let (_, lost) = victim(&context, "survivor", [1, 0]).await?;
    context.cluster.node(&lost)?.kill()?;
    let ended = context
        .reaches("survivor", Phase::Succeeded, NODE_LOSS + START)
        .await;
    context.cluster.node(&lost)?.restart()?;
    context.node_ready(&lost, true, NODE_LOSS).await?;
    let status = ended?.status.unwrap_or_default();
    ensure!(status.restarts == 0, "a lost node was charged to the job");
    ensure!(
        status.attempt >= 2,
        "the job did not notice that a node died"
    );
    resumed(&context, "survivor", status.attempt).await
}

pub async fn killed_leader_is_followed_without_a_restart(context: Context) -> Result<()> {
    let leader = leader_node(&context).await?;
    // One node short of all, placed away from the leader's node by cordoning it meanwhile.
    context.cordon(&leader, true).await?;
    context
        .start(&TestJob::shell("steady", 2, RUNS_UNTIL_ASKED))
        .await?;
    context.cordon(&leader, false).await?;
    let before = context.pod_uids("steady").await?;
    context.cluster.node(&leader)?.kill()?;
    let followed = context.eventually("another operator leads", NODE_LOSS, || async {
        let now = leader_node(&context).await?;
        Ok((now != leader).then_some(()))
    });
    let followed = followed.await;
    let after = context.pod_uids("steady").await?;
    // The new leader acts: it carries out a suspension.
    context.change("steady", json!({"suspend": true})).await?;
    let suspended = context.reaches("steady", Phase::Suspended, START).await;
    context.cluster.node(&leader)?.restart()?;
    context.node_ready(&leader, true, NODE_LOSS).await?;
    followed?;
    suspended?;
    ensure!(
        before == after,
        "the job's pods changed when the leader died"
    );
    context.delete("steady").await?;
    context.is_gone("steady", START).await
}
