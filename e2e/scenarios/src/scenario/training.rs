//! Real models on real ranks.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use crds::training_job::Phase;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use serde_json::json;

use crate::context::Context;
use crate::jobs::Job;

/// The example trains for about a minute; ten times that is the limit.
const TRAINING: Duration = Duration::from_secs(600);
/// Steps that the two backends are compared over.
const STEPS: usize = 200;
/// Largest relative difference of the loss at any of these steps.
const LOSS_TOLERANCE: f64 = 1e-4;
/// What the example promises to reach on images it has not seen.
const ACCURACY: f64 = 0.95;

pub async fn digits_reach_accuracy_over_hfreduce(context: Context) -> Result<()> {
    context.claim("digits", "ReadWriteMany").await?;
    context
        .submit(&Job::digits("digits", 2, 2, &["--steps", "400"]).checkpoint("digits", 10))
        .await?;
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
    let log = context.log("digits", 1, 0).await?;
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
        log.contains("allreduce="),
        "the log does not say how fast the allreduce was"
    );
    Ok(())
}

pub async fn hfreduce_and_gloo_train_the_same_model(context: Context) -> Result<()> {
    context.claim("traces", "ReadWriteMany").await?;
    let mut losses = Vec::new();
    for (name, backend) in [("hfreduce", "HFReduce"), ("gloo", "None")] {
        let trace = format!("/checkpoint/{name}.trace");
        let steps = STEPS.to_string();
        let arguments = [
            "--backend",
            name,
            "--seed",
            "7",
            "--steps",
            &steps,
            "--trace",
            trace.as_str(),
        ];
        let job = Job::digits(name, 2, 2, &arguments)
            .with("communication", json!({"backend": backend}))
            .checkpoint("traces", 86400);
        context.submit(&job).await?;
        context.reaches(name, Phase::Succeeded, TRAINING).await?;
        let file = shared_folder(&context, "traces")
            .await?
            .join(format!("{name}.trace"));
        let text = std::fs::read_to_string(&file)
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
        losses.push(trace);
    }
    for (step, (ours, theirs)) in losses[0].iter().zip(&losses[1]).enumerate() {
        let difference = (ours - theirs).abs() / theirs.abs();
        ensure!(
            difference <= LOSS_TOLERANCE,
            "step {step}: loss {ours} over hfreduce, {theirs} over gloo: {difference:.2e} apart"
        );
    }
    Ok(())
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
