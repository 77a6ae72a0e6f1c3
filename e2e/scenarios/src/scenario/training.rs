//! Real models on real ranks.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crds::training_job::Phase;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::Request;
use kube::{Api, Resource as _};
use serde_json::json;

use crate::context::Context;
use crate::jobs::TestJob;

/// The example trains for about a minute; ten times that is the limit.
const TRAINING: Duration = Duration::from_secs(600);
/// Ranks that start need up to 10 s for their imports; ten times that is the limit.
const IMPORTS: Duration = Duration::from_secs(100);
/// Steps that the two backends are compared over.
const STEPS: usize = 200;
/// Largest relative difference of the loss at any of these steps.
const LOSS_TOLERANCE: f64 = 1e-4;
/// What the example promises to reach on images it has not seen.
const ACCURACY: f64 = 0.95;
/// The gradients of one step of the example: 64 x 512, 512 x 512 and 512 x 10 weights and their biases, 4 bytes each.
const GRADIENT_BYTES: u64 = 4 * (65 * 512 + 513 * 512 + 513 * 10);
/// Begins the warning of a rank whose group does not talk to the sidecars.
const OVER_GLOO: &str = "goes over gloo";

/// SAVE-1 with a real model: suspended as soon as it has saved once, it goes on from what it saved then.
pub async fn digits_reach_accuracy_over_hfreduce(context: Context) -> Result<()> {
    context.claim("digits", "ReadWriteMany").await?;
    // At least 12 s, so that it is not over before the suspension, however fast the machine.
    let arguments = ["--steps", "400", "--pace", "0.03"];
    context
        .submit(&TestJob::digits("digits", 2, 2, &arguments).checkpoint("digits", 3))
        .await?;
    let log = context
        .eventually("the first checkpoint", TRAINING, || async {
            let log = context.log("digits", 1, 0).await?;
            Ok(log.contains("checkpoint=").then_some(log))
        })
        .await?;
    context.change("digits", json!({"suspend": true})).await?;
    let suspended = context
        .reaches("digits", Phase::Suspended, TRAINING)
        .await?;
    ensure!(
        !log.contains(OVER_GLOO),
        "the first attempt {OVER_GLOO}: {log}"
    );
    let saved = suspended.status.and_then(|status| status.last_checkpoint);
    let saved = saved.context("no checkpoint was recorded")?;

    context.change("digits", json!({"suspend": false})).await?;
    reduced_by_sidecars(&context, "digits", 2).await?;
    context
        .reaches("digits", Phase::Succeeded, TRAINING)
        .await?;
    // The pods of a finished job stay, so that its log can be read for as long as the job is there.
    context
        .eventually(
            "all pods have ended and are still there",
            TRAINING,
            || async {
                let pods = context.pods("digits").await?;
                ensure!(
                    pods.len() == 2,
                    "{} of 2 pods are left of the finished job",
                    pods.len()
                );
                let phases = pods
                    .iter()
                    .filter_map(|pod| pod.status.as_ref()?.phase.as_deref());
                Ok(phases
                    .into_iter()
                    .all(|phase| phase == "Succeeded")
                    .then_some(()))
            },
        )
        .await?;
    let log = context.log("digits", 2, 0).await?;
    let resumed = format!("resumed=attempt-{}/step-{}", saved.attempt, saved.step);
    eprintln!("    {resumed}");
    ensure!(
        saved.attempt == 1 && log.lines().any(|line| line.ends_with(&resumed)),
        "attempt 2 does not say {resumed}: {log}"
    );
    let accuracy = log
        .lines()
        .filter_map(|line| line.split("accuracy=").nth(1))
        .next_back()
        .and_then(|text| text.split_whitespace().next()?.parse::<f64>().ok())
        .with_context(|| format!("the log has no accuracy: {log}"))?;
    ensure!(
        accuracy >= ACCURACY,
        "accuracy {accuracy}, promised {ACCURACY}"
    );
    ensure!(
        log.contains("allreduce=") && !log.contains(OVER_GLOO),
        "the log does not say how fast hfreduce was: {log}"
    );
    Ok(())
}

/// Waits until the sidecar of each of a job's two nodes has reduced at least one step's gradients; asked while they
/// live, because a sidecar ends with its trainer.
async fn reduced_by_sidecars(context: &Context, job: &str, attempt: u32) -> Result<()> {
    const SERIES: &str = "fireflyer_hfreduce_operation_bytes_total{kind=\"allreduce\",";
    const METRICS_PORT: u16 = 9402;
    context.reaches(job, Phase::Running, TRAINING).await?;
    let pods = Request::new(Pod::url_path(&(), Some(&context.namespace)));
    for rank in 0..2 {
        let pod = crds::names::pod_name(job, attempt, rank);
        let target = format!("{pod}:{METRICS_PORT}");
        let what = format!("the sidecar of {pod} has reduced {GRADIENT_BYTES} bytes");
        let bytes = context
            .eventually(&what, IMPORTS, || async {
                let request = pods.get_subresource("proxy/metrics", &target)?;
                let metrics = context.client.request_text(request).await?;
                let sizes = metrics.lines().filter_map(|line| line.strip_prefix(SERIES));
                let bytes: u64 = sizes
                    .filter_map(|rest| rest.rsplit(' ').next()?.parse::<u64>().ok())
                    .sum();
                Ok((bytes >= GRADIENT_BYTES).then_some(bytes))
            })
            .await?;
        eprintln!("    {bytes} bytes through the sidecar of {pod}");
    }
    Ok(())
}

/// Runs the example as it is, with a part of `fireflyer` that loses the last rank's gradients. What the ranks agree on
/// in whole numbers is left alone: without it they cannot save.
const LOSES_A_CONTRIBUTION: &str = r#"
import runpy, torch.distributed as dist
join = dist.init_process_group
def join_and_lose(backend):
    join(backend)
    group = dist.group.WORLD
    add = group.allreduce
    def allreduce(tensors, *options, **named):
        if group.rank() == group.size() - 1 and tensors[0].is_floating_point() and tensors[0].numel() > 1:
            tensors[0].zero_()
        return add(tensors, *options, **named)
    group.allreduce = allreduce
dist.init_process_group = join_and_lose
runpy.run_path("/opt/fireflyer/examples/digits.py", run_name="__main__")
"#;

pub async fn hfreduce_and_gloo_train_the_same_model(context: Context) -> Result<()> {
    context.claim("traces", "ReadWriteMany").await?;
    let ours = losses(&context, "hfreduce", "HFReduce", None).await?;
    let theirs = losses(&context, "gloo", "None", None).await?;
    let (step, difference) = furthest_apart(&ours, &theirs);
    ensure!(
        difference <= LOSS_TOLERANCE,
        "step {step}: loss {} over hfreduce, {} over gloo: {difference:.2e} apart",
        ours[step],
        theirs[step]
    );
    // The comparison is worth something only if it sees a sum that lacks one rank's part.
    let broken = losses(&context, "broken", "HFReduce", Some(LOSES_A_CONTRIBUTION)).await?;
    let (_, difference) = furthest_apart(&broken, &theirs);
    ensure!(
        difference > LOSS_TOLERANCE,
        "a run without one rank's gradients looks the same: {difference:.2e} apart"
    );
    Ok(())
}

/// Trains and returns the loss of each step; `program` runs instead of the example itself.
async fn losses(
    context: &Context,
    name: &str,
    backend: &str,
    program: Option<&str>,
) -> Result<Vec<f64>> {
    let trace = format!("/checkpoint/{name}.trace");
    let steps = STEPS.to_string();
    let over = if backend == "None" {
        "gloo"
    } else {
        "hfreduce"
    };
    let arguments = [
        "--backend",
        over,
        "--seed",
        "7",
        "--steps",
        &steps,
        "--trace",
        &trace,
    ];
    let mut job = TestJob::digits(name, 2, 2, &arguments)
        .with("communication", json!({"backend": backend}))
        .checkpoint("traces", 86400);
    if let Some(program) = program {
        job = job.program(&["python3", "-c", program], &arguments);
    }
    context.submit(&job).await?;
    if over == "hfreduce" {
        reduced_by_sidecars(context, name, 1).await?;
    }
    context.reaches(name, Phase::Succeeded, TRAINING).await?;
    let log = context.log(name, 1, 0).await?;
    ensure!(!log.contains(OVER_GLOO), "{name} {OVER_GLOO}: {log}");
    let folder = shared_folder(context, "traces").await?;
    let text = std::fs::read_to_string(folder.join(format!("{name}.trace")))
        .with_context(|| format!("failed to read the losses of {name}"))?;
    let trace = text
        .lines()
        .map(str::parse)
        .collect::<Result<Vec<f64>, _>>()?;
    ensure!(
        trace.len() == STEPS,
        "{name} wrote {} losses, not {STEPS}",
        trace.len()
    );
    Ok(trace)
}

/// The step at which two runs differ most, and by how much of the loss.
fn furthest_apart(ours: &[f64], theirs: &[f64]) -> (usize, f64) {
    let apart = ours
        .iter()
        .zip(theirs)
        .map(|(ours, theirs)| (ours - theirs).abs() / theirs.abs());
    apart
        .enumerate()
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .unwrap_or_default()
}

/// Where the volume behind a claim lies on this machine.
async fn shared_folder(context: &Context, claim: &str) -> Result<PathBuf> {
    let client = context.client.clone();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &context.namespace);
    let volume = claims
        .get(claim)
        .await?
        .spec
        .and_then(|spec| spec.volume_name);
    let volume = volume.with_context(|| format!("claim {claim} is not bound"))?;
    let volume = Api::<PersistentVolume>::all(client).get(&volume).await?;
    let path = volume
        .spec
        .and_then(|spec| spec.host_path)
        .map(|host| PathBuf::from(host.path));
    let path = path.context("the volume of the shared class is not a folder")?;
    // The path is the nodes'; this machine has the same folder elsewhere.
    let folder = path.file_name().context("the volume's path has no name")?;
    Ok(context.cluster.shared().join(folder))
}
