//! Fabric: the cluster singleton that says which labels mean what, and what a node class is.

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the cluster is wired: labels for zone, leaf and class, node classes with the share of a
/// node that a job's pod gets, and how many jobs may cross zones. There is one, called `default`.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(group = "fireflyer.dev", version = "v1alpha1", kind = "Fabric", plural = "fabrics", derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
pub struct FabricSpec {
    /// Node label whose value is the zone.
    #[serde(default = "default_zone_label")]
    pub zone_label: String,
    /// Node label whose value is the leaf switch.
    #[serde(default = "default_leaf_label")]
    pub leaf_label: String,
    /// Node label whose value is the node class.
    #[serde(default = "default_class_label")]
    pub class_label: String,
    /// How many jobs may cross zones at once (paper, section III-B: one).
    #[serde(default = "default_max_cross_zone_jobs")]
    #[schemars(range(min = 0, max = 64))]
    pub max_cross_zone_jobs: u32,
    /// Node classes that jobs may ask for; the first is the default.
    #[schemars(length(min = 1, max = 64))]
    pub classes: Vec<NodeClass>,
}

/// A kind of node, and the share of it that a job's pod asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClass {
    /// Value of the class label.
    pub name: String,
    /// GPUs a node has; the trainer container asks for all of them.
    #[serde(default)]
    #[schemars(range(min = 0, max = 64))]
    pub gpus: u32,
    /// RDMA slots that the sidecar asks for.
    #[serde(default)]
    #[schemars(range(min = 0, max = 64))]
    pub rdma: u32,
    /// What the trainer container requests, for example `{cpu: "48", memory: 400Gi}`.
    pub trainer: Share,
    /// What the sidecar requests.
    pub sidecar: Share,
    /// Size of the memory-backed /dev/shm. Defaults to half of the trainer's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_memory: Option<String>,
}

/// CPU and memory that a container requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Share {
    /// Kubernetes quantity of CPU, for example `48` or `500m`.
    pub cpu: String,
    /// Kubernetes quantity of memory, for example `400Gi`.
    pub memory: String,
}

fn default_zone_label() -> String {
    crate::names::LABEL_ZONE.to_owned()
}
fn default_leaf_label() -> String {
    crate::names::LABEL_LEAF.to_owned()
}
fn default_class_label() -> String {
    crate::names::LABEL_NODE_CLASS.to_owned()
}
fn default_max_cross_zone_jobs() -> u32 {
    1
}
