//! The objects that the API must refuse, tried against the real API server.
//!
//! The cases themselves lie in `crds/cases`, beside the rules that they are about.

use std::io::Write as _;
use std::process::{Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use cluster::Cluster;
use crds::cases::{self, KubectlAnswer};

/// Runs every case; fails with all that differed.
pub fn check_all(cluster: &Cluster) -> Result<()> {
    let mut differences = Vec::new();
    let all = cases::cases()?;
    ensure!(!all.is_empty(), "there is no case to try");
    for case in &all {
        let ended = cases::run(case, |arguments, object| {
            let output = run(cluster, arguments, object)?;
            let text = [output.stdout, output.stderr].concat();
            Ok::<_, anyhow::Error>(KubectlAnswer {
                accepted: output.status.success(),
                text: String::from_utf8_lossy(&text).into_owned(),
            })
        });
        differences.extend(ended.err());
    }
    ensure!(
        differences.is_empty(),
        "{} of {} cases differ:\n    {}",
        differences.len(),
        all.len(),
        differences.join("\n    ")
    );
    Ok(())
}

/// Applies one text as an administrator would.
pub fn apply(cluster: &Cluster, namespace: &str, text: &str) -> Result<Output> {
    run(
        cluster,
        &["apply", "--namespace", namespace, "--filename", "-"],
        text,
    )
}

/// Runs kubectl with a text as its input.
pub fn run(cluster: &Cluster, arguments: &[&str], text: &str) -> Result<Output> {
    let mut child = cluster
        .kubectl(arguments)?
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("failed to start kubectl")?;
    if let Some(mut input) = child.stdin.take() {
        input
            .write_all(text.as_bytes())
            .context("failed to write to kubectl")?;
    }
    child
        .wait_with_output()
        .context("failed to wait for kubectl")
}
