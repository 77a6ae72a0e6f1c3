//! Keeps the labels of this agent's own Node object true: applies those that it has facts for,
//! writes only when one is missing or wrong, and leaves alone what somebody else has decided.
//!
//! The agent may get and patch nodes; that it patches no node but its own, and no label but those
//! of [`KEYS`], is for the API server to enforce: a ValidatingAdmissionPolicy compares the request
//! with `authentication.kubernetes.io/node-name` of the agent's token.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::names::{LABEL_LEAF, LABEL_NODE_CLASS, LABEL_ZONE};
use daemon::{CancellationToken, chain};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use kube::core::PartialObjectMetaExt as _;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::backend::{Inventory, NodeLocation};
use crate::metrics::Metrics;

/// Field manager of our applies.
pub const FIELD_MANAGER: &str = "fireflyer-device-plugin";
/// Product of the node's GPUs, for example `NVIDIA-A100-PCIE-40GB`.
pub const LABEL_GPU_PRODUCT: &str = "fireflyer.dev/gpu-product";
/// How many GPUs the node has.
pub const LABEL_GPU_COUNT: &str = "fireflyer.dev/gpu-count";
/// Memory of one GPU.
pub const LABEL_GPU_MEMORY: &str = "fireflyer.dev/gpu-memory-mib";
/// How many NVLink bridges the node has.
pub const LABEL_NVLINK_PAIRS: &str = "fireflyer.dev/nvlink-pairs";
/// Rate of the node's fastest adapter port.
pub const LABEL_RDMA_RATE: &str = "fireflyer.dev/rdma-rate-gbps";
/// Every label that this agent may write.
pub const KEYS: [&str; 8] = [
    LABEL_NODE_CLASS,
    LABEL_ZONE,
    LABEL_LEAF,
    LABEL_GPU_PRODUCT,
    LABEL_GPU_COUNT,
    LABEL_GPU_MEMORY,
    LABEL_NVLINK_PAIRS,
    LABEL_RDMA_RATE,
];

/// How often the labels are looked at when nothing changes: the Node may have been deleted and made
/// anew. 1,250 agents then read four times a second together.
const LOOK_AGAIN: Duration = Duration::from_secs(300);
/// First wait after the API server failed us; it doubles with each failure in a row.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Longest wait after a failure.
const RETRY_LONGEST: Duration = Duration::from_secs(60);

/// Why text cannot be a label's value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{given}` is no label value; use 1 to 63 of the characters A-Z a-z 0-9 - _ . with a letter \
     or digit at both ends"
)]
pub struct ValueError {
    given: String,
}

/// Checks a label's value.
pub fn value(text: &str) -> Result<String, ValueError> {
    let bytes = text.as_bytes();
    let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let inside = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    if bytes.len() <= 63 && end(bytes.first()) && end(bytes.last()) && bytes.iter().all(inside) {
        Ok(text.to_owned())
    } else {
        Err(ValueError {
            given: text.escape_default().to_string(),
        })
    }
}

/// The labels that the facts call for.
pub fn wanted(inventory: &Inventory) -> BTreeMap<String, String> {
    let Inventory { node, place, .. } = inventory;
    let NodeLocation {
        node_class,
        zone,
        leaf,
    } = place.clone();
    let model = node.gpu_model();
    let some = |count: usize| (count > 0).then(|| count.to_string());
    let rate = node.hcas().iter().map(|hca| hca.rate_gbps).max();
    [
        (LABEL_NODE_CLASS, node_class),
        (LABEL_ZONE, zone),
        (LABEL_LEAF, leaf),
        (LABEL_GPU_PRODUCT, model.map(|model| model.product.clone())),
        (LABEL_GPU_COUNT, some(node.gpus().len())),
        (
            LABEL_GPU_MEMORY,
            model.map(|model| model.memory_mib.to_string()),
        ),
        (LABEL_NVLINK_PAIRS, some(node.nvlinks().len())),
        (LABEL_RDMA_RATE, rate.map(|rate| rate.to_string())),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key.to_owned(), value?)))
    .collect()
}

/// The labels that a Node has, and which of them we applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    labels: BTreeMap<String, String>,
    ours: BTreeSet<String>,
}

impl From<ObjectMeta> for Carried {
    fn from(meta: ObjectMeta) -> Self {
        let applied = meta
            .managed_fields
            .into_iter()
            .flatten()
            .filter(|entry| entry.manager.as_deref() == Some(FIELD_MANAGER))
            .filter(|entry| entry.operation.as_deref() == Some("Apply"));
        let ours = applied
            .filter_map(|entry| entry.fields_v1)
            .filter_map(|fields| {
                let labels = fields.0.pointer("/f:metadata/f:labels")?.as_object()?;
                let keys = labels.keys().filter_map(|key| key.strip_prefix("f:"));
                Some(keys.map(str::to_owned).collect::<Vec<_>>())
            })
            .flatten()
            .collect();
        Self {
            labels: meta.labels.unwrap_or_default(),
            ours,
        }
    }
}

/// What to do about a Node's labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelChange {
    /// The whole set to apply, if anything is to be written: what we applied before and is not in
    /// it goes away.
    pub apply: Option<BTreeMap<String, String>>,
    /// Labels that somebody else set to another value than our facts: we leave theirs alone.
    pub overruled: BTreeSet<String>,
}

/// Compares what a Node has with what the facts call for.
pub fn plan(carried: &Carried, mut wanted: BTreeMap<String, String>) -> LabelChange {
    let overruled: BTreeSet<String> = wanted
        .iter()
        .filter(|(key, value)| {
            let theirs = carried.labels.get(*key);
            theirs.is_some_and(|theirs| theirs != *value) && !carried.ours.contains(*key)
        })
        .map(|(key, _)| key.clone())
        .collect();
    wanted.retain(|key, _| !overruled.contains(key));
    let there = wanted
        .iter()
        .all(|(key, value)| carried.labels.get(key) == Some(value));
    let left_over = carried.ours.iter().any(|key| !wanted.contains_key(key));
    LabelChange {
        apply: (!there || left_over).then_some(wanted),
        overruled,
    }
}

/// Keeps the labels of one Node.
#[derive(Debug)]
pub struct Labels {
    nodes: Api<Node>,
    node: String,
    metrics: Metrics,
    overruled: BTreeSet<String>,
}

impl Labels {
    /// For the Node of this name.
    pub fn new(client: kube::Client, node: String, metrics: Metrics) -> Self {
        Self {
            nodes: Api::all(client),
            node,
            metrics,
            overruled: BTreeSet::new(),
        }
    }

    /// Runs until shutdown. An API server that fails is tried again: devices do not wait for it.
    pub async fn run(
        mut self,
        mut inventory: watch::Receiver<Arc<Inventory>>,
        shutdown: CancellationToken,
    ) {
        let mut retry = RETRY_FIRST;
        loop {
            let labels = wanted(&inventory.borrow_and_update());
            let wait = match self.reconcile(labels).await {
                Ok(()) => {
                    retry = RETRY_FIRST;
                    LOOK_AGAIN
                }
                Err(error) => {
                    warn!(node = self.node, error = %chain(&error), "failed to label this node");
                    let wait = retry;
                    retry = (retry * 2).min(RETRY_LONGEST);
                    wait
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = inventory.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Looks at the Node once and writes if need be.
    pub async fn reconcile(&mut self, wanted: BTreeMap<String, String>) -> kube::Result<()> {
        let carried = Carried::from(self.nodes.get_metadata(&self.node).await?.metadata);
        let LabelChange { apply, overruled } = plan(&carried, wanted);
        if overruled != self.overruled {
            let labels = &overruled;
            warn!(
                node = self.node,
                ?labels,
                "labels that somebody else set differ from the hardware; they stay"
            );
            self.overruled = overruled;
        }
        let Some(labels) = apply else {
            return Ok(());
        };
        let meta = ObjectMeta {
            labels: Some(labels.clone()),
            ..ObjectMeta::default()
        };
        let written = self
            .nodes
            .patch_metadata(
                &self.node,
                &PatchParams::apply(FIELD_MANAGER),
                &Patch::Apply(meta.into_request_partial::<Node>()),
            )
            .await;
        self.metrics.labelled(written.is_ok());
        written?;
        info!(node = self.node, ?labels, "labelled this node");
        Ok(())
    }
}

#[cfg(test)]
#[path = "labels_tests.rs"]
mod tests;
