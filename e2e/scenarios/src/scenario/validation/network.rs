//! The network between nodes: two runs measure it together, and of two nodes with a slow link the
//! one fails that others show to be the cause.

use anyhow::{Context as _, Result, ensure};
use crds::node_validation::{NodeValidationStatus, ValidationVerdict};
use crds::{NodeValidation, names};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use super::{enforce, forget, quarantined, set_floors, validations, verdict};
use crate::context::Context;

/// A link of 1 Gbit/s, as people buy none for training, moves 0.12 GB/s.
const SLOW_MBIT: u32 = 100;
/// In GB/s: a quarter of what a test machine moves between two nodes, and four times what the slow
/// link does.
const FLOOR: f64 = 0.05;

pub async fn slow_link_fails_the_node_that_is_the_cause(context: Context) -> Result<()> {
    let nodes: Vec<_> = context.cluster.nodes().take(3).collect();
    let [one, other, slow] = &nodes[..] else {
        anyhow::bail!("three nodes are needed");
    };
    enforce(&context).await?;
    let zones = [
        zone(&context, one.name()).await?,
        zone(&context, slow.name()).await?,
    ];
    set_zone(&context, slow.name(), &zones[0]).await?;
    set_floors(&context, json!([{"check": "Network", "value": FLOOR}])).await?;

    slow.limit_network(Some(SLOW_MBIT))?;
    let found = measure_slow(&context, [one.name(), other.name(), slow.name()]).await;
    slow.limit_network(None)?;
    found?;
    let [found, _] = pair(&context, ["repaired", "partner"], [slow.name(), one.name()]).await?;
    expect(&found, ValidationVerdict::Pass, "")?;
    quarantined(&context, slow.name(), None).await?;

    set_floors(&context, json!([])).await?;
    set_zone(&context, slow.name(), &zones[1]).await?;
    let runs = [
        "good-one",
        "good-other",
        "slow-one",
        "one",
        "slow-other",
        "other",
        "repaired",
        "partner",
    ];
    forget(&context, &runs).await
}

/// Slow with one node, which may be that one's fault, then with a second, while these two are good
/// with each other.
async fn measure_slow(context: &Context, [one, other, slow]: [&str; 3]) -> Result<()> {
    let both = pair(context, ["slow-one", "one"], [slow, one]).await?;
    for (found, partner) in both.iter().zip([one, slow]) {
        let says = format!("with {partner}, and either node may be the cause");
        expect(found, ValidationVerdict::Warn, &says)?;
    }
    quarantined(context, slow, None).await?;
    let [found, _] = pair(context, ["good-one", "good-other"], [one, other]).await?;
    expect(&found, ValidationVerdict::Pass, "")?;
    let [found, of_partner] = pair(context, ["slow-other", "other"], [slow, other]).await?;
    expect(
        &found,
        ValidationVerdict::Fail,
        "which are as good as others elsewhere",
    )?;
    expect(
        &of_partner,
        ValidationVerdict::Warn,
        "either node may be the cause",
    )?;
    quarantined(context, slow, Some("slow-other")).await
}

fn expect(found: &NodeValidationStatus, verdict: ValidationVerdict, says: &str) -> Result<()> {
    let rates = found.results.iter().filter(|one| one.value.is_some());
    ensure!(
        found.verdict == Some(verdict)
            && found.message.as_deref().unwrap_or_default().contains(says)
            && rates.count() == 2,
        "expected {verdict:?} and {says:?}: {found:?}"
    );
    Ok(())
}

/// Two runs of two nodes that name each other.
async fn pair(
    context: &Context,
    names: [&str; 2],
    nodes: [&str; 2],
) -> Result<[NodeValidationStatus; 2]> {
    for (at, name) in names.iter().enumerate() {
        let object = json!({
            "apiVersion": names::API_VERSION,
            "kind": "NodeValidation",
            "metadata": {"name": name},
            "spec": {
                "nodeName": nodes[at],
                "partnerNodeName": nodes[1 - at],
                "checks": ["Network"],
                "deadlineSeconds": 45,
            },
        });
        let object: NodeValidation = serde_json::from_value(object)?;
        validations(context)
            .create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("failed to create NodeValidation {name}"))?;
    }
    Ok([
        verdict(context, names[0]).await?,
        verdict(context, names[1]).await?,
    ])
}

async fn zone(context: &Context, node: &str) -> Result<String> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let mut labels = nodes.get(node).await?.metadata.labels.unwrap_or_default();
    labels
        .remove(names::LABEL_ZONE)
        .context("a node without a zone")
}

async fn set_zone(context: &Context, node: &str, zone: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let patch = Patch::Merge(json!({"metadata": {"labels": {names::LABEL_ZONE: zone}}}));
    nodes.patch(node, &PatchParams::default(), &patch).await?;
    Ok(())
}
