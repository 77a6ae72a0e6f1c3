//! TrainingJob: a gang of whole nodes that trains one model, across all its attempts.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A distributed training that runs on whole nodes, survives interruptions and node failures,
/// and resumes from its last durable checkpoint.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "fireflyer.dev",
    version = "v1alpha1",
    kind = "TrainingJob",
    plural = "trainingjobs",
    shortname = "tj",
    namespaced,
    status = "TrainingJobStatus",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobSpec {
    /// How many whole nodes the job needs. All of them start together or none does.
    #[schemars(range(min = 1, max = 4096))]
    pub nodes: u32,
    /// Processes (ranks) started on each node. Defaults to the node class's GPU count, or 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub procs_per_node: Option<u32>,
    /// Node class to run on. Defaults to the Fabric's first class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_class: Option<String>,
    /// The pod of each node. One container must be called `trainer` and have a `command`.
    pub template: PodTemplate,
    /// Whether the nodes may be in different zones.
    #[serde(default)]
    pub zone_policy: ZonePolicy,
    /// Time limits of a lossless interruption.
    #[serde(default)]
    pub interruption: Interruption,
    /// Where checkpoints go. Without it the job restarts from nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// How the ranks talk to each other.
    #[serde(default)]
    pub communication: Communication,
    /// What happens after a failure.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// True asks the job to save, release its nodes and wait; false lets it go on.
    #[serde(default)]
    pub suspend: bool,
    /// Seconds that a finished job is kept before it is deleted. Without it, for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<u32>,
}

/// The pod that runs on each node: a PodTemplateSpec. Everything is passed on as written,
/// except what the operator owns (placement, restart policy).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplate {
    /// Labels and annotations for the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// The pod's spec.
    pub spec: PodTemplateBody,
}

/// Labels and annotations that are copied to each pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateMetadata {
    /// Labels for the pods.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub labels: std::collections::BTreeMap<String, String>,
    /// Annotations for the pods.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub annotations: std::collections::BTreeMap<String, String>,
}

/// The declared part is what rules look at; all other fields of a PodSpec are kept in `rest`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplateBody {
    /// Containers of the pod. One is called `trainer`.
    pub containers: Vec<TemplateContainer>,
    /// Owned by the operator: leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
    /// Owned by the operator: leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Owned by the operator: leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<serde_json::Map<String, serde_json::Value>>,
    /// Owned by the operator: leave it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Every other field of a PodSpec, unchanged.
    #[serde(flatten)]
    pub rest: serde_json::Map<String, serde_json::Value>,
}

/// A container of the template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TemplateContainer {
    /// Name of the container; `trainer` runs the training.
    pub name: String,
    /// Program and arguments. Required for `trainer`, because our launcher starts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Every other field of a Container, unchanged.
    #[serde(flatten)]
    pub rest: serde_json::Map<String, serde_json::Value>,
}

/// Whether a job may span zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ZonePolicy {
    /// Only ever inside one zone.
    Single,
    /// Inside one zone; crosses only when no zone has enough healthy nodes of the class in total.
    #[default]
    PreferSingle,
}

/// Time limits of a lossless interruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Interruption {
    /// Seconds within which the job must have noticed the request.
    #[serde(default = "default_ack_seconds")]
    #[schemars(range(min = 1, max = 600))]
    pub ack_seconds: u32,
    /// Seconds within which it must have saved its checkpoint.
    #[serde(default = "default_save_seconds")]
    #[schemars(range(min = 1, max = 3600))]
    pub save_seconds: u32,
}

fn default_ack_seconds() -> u32 {
    10
}
fn default_save_seconds() -> u32 {
    60
}

impl Default for Interruption {
    fn default() -> Self {
        Self { ack_seconds: default_ack_seconds(), save_seconds: default_save_seconds() }
    }
}

/// Where and how often checkpoints are saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// PersistentVolumeClaim in the job's namespace; ReadWriteMany when the job has several nodes.
    pub claim_name: String,
    /// Folder inside the claim. Defaults to the job's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Seconds between periodic checkpoints (the paper saves every 5 minutes, section VII-A).
    #[serde(default = "default_interval_seconds")]
    #[schemars(range(min = 1, max = 86400))]
    pub interval_seconds: u32,
    /// How many durable checkpoints are kept.
    #[serde(default = "default_keep_last")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep_last: u32,
}

fn default_interval_seconds() -> u32 {
    300
}
fn default_keep_last() -> u32 {
    3
}

/// How the ranks talk to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Communication {
    /// Who performs collectives.
    #[serde(default)]
    pub backend: Backend,
}

/// Who performs collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Backend {
    /// The HFReduce sidecar (paper, section IV).
    #[default]
    HFReduce,
    /// The program brings its own (gloo, NCCL); the sidecar only joins the gang.
    None,
}

/// What happens after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// Restarts that failures of the program may use up. Lost nodes and refusals are not charged.
    #[serde(default = "default_max_restarts")]
    #[schemars(range(min = 0, max = 1000))]
    pub max_restarts: u32,
}

fn default_max_restarts() -> u32 {
    3
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self { max_restarts: default_max_restarts() }
    }
}

/// What the operator last saw and decided.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobStatus {
    /// One word for where the job is; derived from the conditions.
    #[serde(default)]
    pub phase: Phase,
    /// Assigned, Running, CheckpointDurable, Suspended, Complete, Failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Number of the current attempt; 0 before the first.
    #[serde(default)]
    pub attempt: u32,
    /// Failures charged against maxRestarts so far.
    #[serde(default)]
    pub restarts: u32,
    /// Nodes whose trainer runs in the current attempt.
    #[serde(default)]
    pub ready: u32,
    /// ConfigMap that lists the current attempt's nodes in rank order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assignment: Option<String>,
    /// Zone of the current attempt, or both joined by `+` when it crosses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Last checkpoint known to be durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<CheckpointStatus>,
    /// When the next attempt may start, after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Time>,
    /// When the job reached Succeeded or Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// Last lines that the failed rank printed, and which rank it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureStatus>,
    /// Generation of the spec that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A durable checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CheckpointStatus {
    /// Attempt that saved it.
    pub attempt: u32,
    /// Training step that it holds.
    pub step: u64,
    /// SHA-256 of its manifest.
    pub digest: String,
    /// When the operator learned of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

/// The failure that ended the last failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailureStatus {
    /// Attempt that failed.
    pub attempt: u32,
    /// Node on which it failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Global rank that failed first, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// What happened, in one sentence.
    pub message: String,
    /// Last lines that the rank printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
}

/// One word for where a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Waits for nodes.
    #[default]
    Queued,
    /// Nodes chosen, pods being created.
    Assigned,
    /// Pods exist; the gang is joining.
    Starting,
    /// Every rank trains.
    Running,
    /// Asked to save and release.
    Interrupting,
    /// Waits for its next attempt after a failure.
    Restarting,
    /// Holds no nodes until `suspend` is false again.
    Suspended,
    /// Every rank ended well.
    Succeeded,
    /// Will not be tried again.
    Failed,
}
