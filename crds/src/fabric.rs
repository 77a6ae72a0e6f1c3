//! Fabric: the cluster singleton that says which labels mean what, and what a node class is.
#![expect(
    unreachable_pub,
    reason = "the schema derive copies each struct into a function"
)]

use crate::node_validation::ValidationCheck;
use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A qualified label key: an optional DNS prefix with a slash, then a name of at most 63
/// characters.
pub(crate) const LABEL_KEY: &str =
    "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";

/// How the cluster is wired: the labels for zone, leaf and class, the node classes, and how many
/// jobs may cross zones. A node class says which share of a node a job's pod gets. There is one
/// Fabric, called `default`.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "fireflyer.dev",
    version = "v1alpha1",
    kind = "Fabric",
    plural = "fabrics",
    category = "fireflyer",
    status = "FabricStatus",
    derive = "PartialEq",
    doc = "How the cluster is wired: labels for zone, leaf and class, node classes with the share of a node that a job's pod gets, and how many jobs may cross zones. There is one, called default.",
    printcolumn(name = "Crossing", type_ = "integer", json_path = ".spec.maxCrossZoneJobs", description = "Jobs that may cross zones at once"),
    printcolumn(name = "Classes", type_ = "string", json_path = ".spec.classes[*].name", description = "Node classes that jobs may ask for"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes", description = "Nodes with a class"),
    printcolumn(name = "Free", type_ = "integer", json_path = ".status.free", description = "Usable ones that no job holds; some may be promised or avoided"),
    printcolumn(name = "Unusable", type_ = "integer", json_path = ".status.unusable", description = "Those that no job could get if all were free"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name == 'default'")
        .message("a cluster has one Fabric and it is called default: edit that one")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(
        "self.zoneLabel != self.leafLabel && self.zoneLabel != self.classLabel && self.leafLabel != self.classLabel"
    )
    .message("zoneLabel, leafLabel and classLabel must be three different labels: give each its own"))]
#[x_kube(validation = Rule::new("self.classes.filter(class, has(class.default) && class.default).size() <= 1")
    .message("one class at most can be the default: keep default: true on that one only")
    .field_path(".classes"))]
pub struct FabricSpec {
    /// Node label whose value is the zone; `topology.fireflyer.dev/zone` by default.
    #[serde(default = "default_zone_label")]
    #[schemars(length(min = 1, max = 316), regex(pattern = LABEL_KEY))]
    pub zone_label: String,
    /// Node label whose value is the leaf switch; `topology.fireflyer.dev/leaf` by default.
    #[serde(default = "default_leaf_label")]
    #[schemars(length(min = 1, max = 316), regex(pattern = LABEL_KEY))]
    pub leaf_label: String,
    /// Node label whose value is the node class; `fireflyer.dev/node-class` by default.
    #[serde(default = "default_class_label")]
    #[schemars(length(min = 1, max = 316), regex(pattern = LABEL_KEY))]
    pub class_label: String,
    /// How many jobs may cross zones at once, 0 to 64; 1 by default (paper, section III-B).
    #[serde(default = "default_max_cross_zone_jobs")]
    #[schemars(range(min = 0, max = 64))]
    pub max_cross_zone_jobs: u32,
    /// The network's traffic class of each kind of traffic.
    #[serde(default)]
    pub traffic_classes: TrafficClasses,
    /// How sidecars use RDMA, where they have it.
    #[serde(default)]
    pub rdma: Rdma,
    /// Node classes that jobs may ask for. A job that asks for none gets the class with `default:
    /// true`, else the first.
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".to_owned()]))]
    pub classes: Vec<NodeClass>,
}

/// Classes of traffic, 0 to 7: InfiniBand's service level; over Ethernet the class selector of IP
/// packets (DSCP 8 times the class).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct TrafficClasses {
    /// Class of HFReduce's data, 0 to 7; 1 by default, so that other traffic (0) has a class of its
    /// own.
    #[serde(default = "default_hfreduce_class")]
    #[schemars(range(min = 0, max = 7))]
    pub hfreduce: u8,
}

impl Default for TrafficClasses {
    fn default() -> Self {
        Self {
            hfreduce: default_hfreduce_class(),
        }
    }
}

/// How sidecars use RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rdma {
    /// Whether an adapter may write payload to a node's memory in any order (PCIe's relaxed
    /// ordering); true by default. That is faster on many platforms. Headers and counters are
    /// always written in order, after the payload that they announce. Switch it off where a
    /// platform is known to handle such writes badly, or to rule that out when sums are damaged. A
    /// change takes effect with a job's next attempt.
    #[serde(default = "default_relaxed_ordering")]
    pub relaxed_ordering: bool,
}

impl Default for Rdma {
    fn default() -> Self {
        Self {
            relaxed_ordering: default_relaxed_ordering(),
        }
    }
}

/// A kind of node, and the share of it that a job's pod asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeClass {
    /// Value of the class label.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub name: String,
    /// Whether jobs that name no class get this class. A job keeps the class that it got first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
    /// GPUs a node has, 0 (the default) to 64; the trainer container asks for all of them.
    #[serde(default)]
    #[schemars(range(min = 0, max = 64))]
    pub gpus: u32,
    /// RDMA slots that the sidecar asks for, 0 (the default) to 64.
    #[serde(default)]
    #[schemars(range(min = 0, max = 64))]
    pub rdma: u32,
    /// What the trainer container requests, for example `{cpu: "48", memory: 400Gi}`.
    pub trainer: Share,
    /// What the sidecar requests.
    pub sidecar: Share,
    /// Size of the memory-backed /dev/shm. Defaults to half of the trainer's memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))")
        .message("sharedMemory must be a Kubernetes quantity above zero, for example 64Gi"))]
    pub shared_memory: Option<String>,
    /// Seconds for which a pod that is starting may make no progress, 10 to 604800 (a week); 7200
    /// (two hours) by default. Progress is that a container of it starts or ends: an image that is
    /// pulled and an init container that runs may take that long each. Then the attempt ends, does
    /// not count against maxRestarts, and says what the pod was at. Raise it where an image or a
    /// model takes longer to arrive.
    #[serde(default = "default_start_progress_deadline")]
    #[schemars(range(min = 10, max = 604_800))]
    pub start_progress_deadline_seconds: u32,
    /// What validations must measure on nodes of the class, at most 64 floors: a node below one
    /// fails. `Offer` needs none: its floors are the shares above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub floors: Vec<CheckFloor>,
}

/// The least that a check must measure on a node of a class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
pub struct CheckFloor {
    /// The check.
    pub check: ValidationCheck,
    /// What is checked, as results name it: `numa 0`, `write`. Without it the floor is for all that
    /// have none of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 160))]
    pub device: Option<String>,
    /// The floor, in the check's unit, 0 or more.
    #[schemars(range(min = 0.0))]
    pub value: f64,
}

/// CPU and memory that a container requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Share {
    /// Kubernetes quantity of CPU, for example `48` or `500m`.
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))")
        .message("cpu must be a Kubernetes quantity above zero, in quotes, for example \"48\" or 500m"))]
    pub cpu: String,
    /// Kubernetes quantity of memory, for example `400Gi`.
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))")
        .message("memory must be a Kubernetes quantity above zero, for example 400Gi"))]
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
fn default_hfreduce_class() -> u8 {
    1
}
fn default_start_progress_deadline() -> u32 {
    7200
}
fn default_relaxed_ordering() -> bool {
    true
}

impl FabricSpec {
    /// The class of jobs that name none.
    pub fn default_class(&self) -> Option<&NodeClass> {
        let marked = self.classes.iter().find(|class| class.default);
        marked.or_else(|| self.classes.first())
    }
}

/// What the leading operator sees of the cluster; written when it changes, at most once in ten
/// seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FabricStatus {
    /// Drifted, ManyNodesNotReady.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Nodes with a class.
    #[serde(default)]
    pub nodes: u32,
    /// Usable nodes without an attempt and without a pod of ours. Some may be reserved for a job
    /// that restarts, or avoided.
    #[serde(default)]
    pub free: u32,
    /// Nodes that no job could get even if all were free.
    #[serde(default)]
    pub unusable: u32,
    /// The same numbers by class and zone; the first 128.
    #[serde(default)]
    #[schemars(length(max = 128))]
    pub capacity: Vec<CapacityStatus>,
}

/// The nodes of one class in one zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CapacityStatus {
    /// The class.
    pub class: String,
    /// The zone; empty where nodes have none.
    pub zone: String,
    /// All nodes of the class in the zone.
    pub nodes: u32,
    /// Usable nodes without an attempt and without a pod of ours. Some may be reserved for a job
    /// that restarts, or avoided.
    pub free: u32,
    /// Nodes that no job could get even if all were free.
    pub unusable: u32,
    /// Why they are unusable, in one word each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub reasons: Vec<UnusableStatus>,
}

/// How many nodes are unusable for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct UnusableStatus {
    /// NotReady, NoAgent or Cordoned.
    pub reason: String,
    /// How many.
    pub nodes: u32,
}
