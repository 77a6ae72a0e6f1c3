//! TrainingJob: a gang of whole nodes that trains one model, across all its attempts.
#![expect(
    unreachable_pub,
    reason = "the schema derive copies each struct into a function"
)]

use crate::schema;
pub use crate::template::{PodTemplate, PodTemplateBody, TemplateContainer, TemplateMetadata};
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
    category = "fireflyer",
    namespaced,
    status = "TrainingJobStatus",
    derive = "PartialEq",
    doc = "A distributed training that runs on whole nodes, survives interruptions and node failures, and resumes from its last durable checkpoint.",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", description = "Where the job is, in one word"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason", description = "Why it is there, or what it waits for, in one word"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".spec.nodes", description = "Whole nodes the job asks for"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyNodes", description = "Nodes whose trainer runs in the current attempt"),
    printcolumn(name = "Class", type_ = "string", json_path = ".status.nodeClass", description = "Class of the nodes that the job runs on"),
    printcolumn(name = "Restarts", type_ = "integer", json_path = ".status.restarts", description = "Failures that count against maxRestarts"),
    printcolumn(name = "Zone", type_ = "string", json_path = ".status.zones", description = "Zone of the current attempt, two when it crosses"),
    printcolumn(name = "Attempt", type_ = "integer", json_path = ".status.attempt", description = "Number of the current attempt", priority = 1),
    printcolumn(name = "Step", type_ = "integer", json_path = ".status.lastCheckpoint.step", description = "Step of the last durable checkpoint", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    selectable = ".spec.nodeClass",
    selectable = ".status.phase",
    validation = Rule::new("size(self.metadata.name) <= 50").message(
        "metadata.name must have at most 50 characters, because pods are called <name>-<attempt>-<rank>: shorten it"
    ),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message(
        "metadata.name must start with a letter and hold only lower-case letters, digits and dashes: rename the job"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.nodes == oldSelf.nodes")
    .message("nodes cannot change once the job exists: delete the job and create it again")
    .field_path(".nodes"))]
#[x_kube(validation = Rule::new("self.template == oldSelf.template")
    .message("template cannot change once the job exists: delete the job and create it again")
    .field_path(".template"))]
#[x_kube(validation = Rule::new("self.zonePolicy == oldSelf.zonePolicy")
    .message("zonePolicy cannot change once the job exists: delete the job and create it again")
    .field_path(".zonePolicy"))]
#[x_kube(validation = Rule::new("self.communication == oldSelf.communication")
    .message("communication cannot change once the job exists: delete the job and create it again")
    .field_path(".communication"))]
#[x_kube(validation = Rule::new("!has(self.failurePolicy.minNodes) || self.failurePolicy.minNodes <= self.nodes")
    .message("failurePolicy.minNodes is more than nodes: the gang could never go on after a loss, lower it")
    .field_path(".failurePolicy.minNodes"))]
#[x_kube(validation = Rule::new(
    "has(self.procsPerNode) == has(oldSelf.procsPerNode) && (!has(self.procsPerNode) || self.procsPerNode == oldSelf.procsPerNode)"
)
.message("procsPerNode cannot change once the job exists: delete the job and create it again")
.field_path(".procsPerNode"))]
#[x_kube(validation = Rule::new(
    "has(self.nodeClass) == has(oldSelf.nodeClass) && (!has(self.nodeClass) || self.nodeClass == oldSelf.nodeClass)"
)
.message("nodeClass cannot change once the job exists: delete the job and create it again")
.field_path(".nodeClass"))]
#[x_kube(validation = Rule::new(
    "has(self.checkpoint) == has(oldSelf.checkpoint) && (!has(self.checkpoint) || self.checkpoint == oldSelf.checkpoint)"
)
.message("checkpoint cannot change once the job exists: delete the job and create it again")
.field_path(".checkpoint"))]
pub struct TrainingJobSpec {
    /// How many whole nodes the job needs, 1 to 4096. All of them start together, or none does.
    #[schemars(range(min = 1, max = 4096))]
    pub nodes: u32,
    /// Processes (ranks) started on each node, 1 to 64. Defaults to the node class's GPU count,
    /// or 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub procs_per_node: Option<u32>,
    /// Node class to run on, one of the Fabric's classes. Defaults to the first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub node_class: Option<String>,
    /// The pod of each node. One container must be called `trainer` and have a `command`. With a
    /// spec of more than 64 KiB as JSON the job gets no nodes.
    pub template: PodTemplate,
    /// Whether the nodes may be in different zones. `PreferSingle` (the default): the job gets
    /// nodes of one zone. It crosses zones only when no zone has enough healthy nodes of the class
    /// in total. `Single`: the job never crosses zones; it waits.
    #[serde(default)]
    pub zone_policy: ZonePolicy,
    /// How long a lossless interruption may take. The operator asks the job to leave, the job
    /// saves, and its nodes become free. A change takes effect with the next attempt.
    #[serde(default)]
    pub interruption: Interruption,
    /// Where checkpoints are saved. Without it the job restarts from the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// How the ranks talk to each other. Defaults to HFReduce.
    #[serde(default)]
    pub communication: Communication,
    /// The rules for a failure. A change of stallSeconds takes effect at once, of maxRestarts at
    /// the next failure, any other change with the next attempt.
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// True asks the job to save, release its nodes and wait. False (the default) lets it run.
    #[serde(default)]
    pub suspend: bool,
    /// Seconds after which a finished job is deleted, 0 to 315360000 (ten years). Without it the
    /// job is never deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315_360_000))]
    pub ttl_seconds_after_finished: Option<u32>,
}

/// Whether a job may span zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ZonePolicy {
    /// The nodes are in one zone. The job waits for such nodes.
    Single,
    /// The nodes are in one zone, unless no zone has enough healthy nodes of the class in total.
    #[default]
    PreferSingle,
}

/// Time limits of a lossless interruption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Interruption {
    /// Seconds in which the program notices the request, 1 to 600; 10 by default. A program checks
    /// once a step, so give more than the longest step takes. Only the sum with saveSeconds has an
    /// effect.
    #[serde(default = "default_ack_seconds")]
    #[schemars(range(min = 1, max = 600))]
    pub ack_seconds: u32,
    /// Seconds in which the program then saves the checkpoint, 1 to 3600; 60 by default. A pod that
    /// still runs after ackSeconds, saveSeconds and 10 more seconds is killed.
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
        Self {
            ack_seconds: default_ack_seconds(),
            save_seconds: default_save_seconds(),
        }
    }
}

/// Where and how often checkpoints are saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// PersistentVolumeClaim in the job's namespace. It must be ReadWriteMany when the job has
    /// several nodes.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub claim_name: String,
    /// Folder inside the claim, relative to its root. Defaults to the job's name. A new job resumes
    /// from the checkpoint that it finds there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[-A-Za-z0-9._/]+$"))]
    #[x_kube(validation = Rule::new("!self.startsWith('/')")
        .message("path is relative to the claim's root: remove the leading slash"))]
    #[x_kube(validation = Rule::new("!self.split('/').exists(part, part == '..')")
        .message("path must stay inside the claim: remove the .. parts"))]
    pub path: Option<String>,
    /// Seconds between periodic checkpoints, 1 to 86400; 300 by default. The paper saves every 5
    /// minutes (section VII-A).
    #[serde(default = "default_interval_seconds")]
    #[schemars(range(min = 1, max = 86400))]
    pub interval_seconds: u32,
    /// How many durable checkpoints are kept, 1 to 1000; 3 by default.
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
    /// Who performs collectives. `HFReduce` (the default): the sidecar, on the CPU (paper, section
    /// IV). `None`: the program's own library (gloo, NCCL). The sidecar then only joins the gang.
    #[serde(default)]
    pub backend: Backend,
    /// How HFReduce rounds sums of floats. A process group can choose another way. `Fast` (the
    /// default): it rounds to the elements' type on every level of the tree between nodes.
    /// `Precise`: it rounds once. Until then 16-bit floats travel as twice, 8-bit floats as four
    /// times as many bytes. `Bitwise`: it rounds once and always adds in the same order, over one
    /// of the two trees. The bits then depend neither on how tensors are cut or joined nor on the
    /// size of chunks. In each way all ranks get the same bits.
    #[serde(default)]
    pub numerics: Numerics,
    /// Alpha, not run on GPUs yet. Whether HFReduce adds up tensors of two GPUs that share an
    /// NVLink before it copies them to the host. A process group can choose another way. `Never`
    /// (the default): every GPU copies its own tensors to the host. `Auto`: HFReduce uses pairs
    /// where every rank of a group has one.
    #[serde(default)]
    pub nvlink: Nvlink,
}

/// Whether tensors of GPUs that share an NVLink are added up in pairs. Not `Off`: unquoted, that is
/// a boolean in YAML.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Nvlink {
    /// Every GPU copies its own tensors to the host.
    #[default]
    Never,
    /// Where every rank of a group has such a pair.
    Auto,
}

/// How HFReduce rounds sums of floats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Numerics {
    /// On every level of the tree between nodes.
    #[default]
    Fast,
    /// Once.
    Precise,
    /// Once, and added up in one order.
    Bitwise,
}

/// Who performs collectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Backend {
    /// The HFReduce sidecar (paper, section IV).
    #[default]
    HFReduce,
    /// The program's own library (gloo, NCCL). The sidecar only joins the gang.
    None,
}

/// What happens after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// How many restarts failures of the program may cause, 0 to 1000; 3 by default. Lost nodes and
    /// refused pods do not count.
    #[serde(default = "default_max_restarts")]
    #[schemars(range(min = 0, max = 1000))]
    pub max_restarts: u32,
    /// What the other nodes do when a node is lost while they train. `Restart` (the default): the
    /// attempt ends, and another one resumes from the last checkpoint. `Shrink`: the other nodes
    /// finish the collectives in flight and go on without a restart, and without the state of the
    /// lost node. A process of the program that fails takes its node out in the same way. A gang
    /// never grows again; the next attempt has all nodes. Only collectives of HFReduce survive a
    /// loss.
    #[serde(default)]
    pub on_peer_loss: OnPeerLoss,
    /// Seconds that the others wait for a silent node before they go on without it, 5 to 600; 10 by
    /// default. They do not wait for a node that is known to be dead. Only for `onPeerLoss:
    /// Shrink`.
    #[serde(default = "default_peer_loss_seconds")]
    #[schemars(range(min = 5, max = 600))]
    pub peer_loss_seconds: u32,
    /// Fewest nodes with which the gang goes on, 1 to `nodes`; 2 by default. With fewer the attempt
    /// ends. Only for `onPeerLoss: Shrink`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub min_nodes: Option<u32>,
    /// Seconds between SIGTERM and SIGKILL for the other processes of an attempt that has failed, 1
    /// to 300; 1 by default, so that the next attempt starts soon. Give more if they have to write
    /// something, such as stack traces or a flight recording. It only takes that long if a process
    /// does not end.
    #[serde(default = "default_exit_seconds")]
    #[schemars(range(min = 1, max = 300))]
    pub exit_seconds: u32,
    /// Seconds without progress after which a running attempt is ended, 60 to 604800 (a week).
    /// Off by default. A collective of HFReduce that a rank finishes and a step or checkpoint
    /// that the program reports are progress; time counts from the newest. Give more than the
    /// longest pause that the program makes on purpose, such as a save, an evaluation or the
    /// first compilation. All ranks are then asked to print their stacks, and 10 s later the
    /// attempt ends with the reason `Stalled`. That counts against maxRestarts. An attempt that
    /// never gave a sign of progress is not ended, and the condition `ProgressUnknown` says so.
    /// While the operator does not hear every node of the job nothing is ended, and a new leader
    /// counts from the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 604_800))]
    pub stall_seconds: Option<u32>,
}

/// What the other nodes do when a node is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnPeerLoss {
    /// The attempt ends and another one starts.
    #[default]
    Restart,
    /// The other nodes go on.
    Shrink,
}

fn default_max_restarts() -> u32 {
    3
}
fn default_peer_loss_seconds() -> u32 {
    10
}

fn default_exit_seconds() -> u32 {
    1
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self {
            max_restarts: default_max_restarts(),
            on_peer_loss: OnPeerLoss::default(),
            peer_loss_seconds: default_peer_loss_seconds(),
            min_nodes: None,
            exit_seconds: default_exit_seconds(),
            stall_seconds: None,
        }
    }
}

/// What the operator last saw and decided.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobStatus {
    /// One word for where the job is.
    #[serde(default)]
    pub phase: Phase,
    /// Why the job is in this phase, or what it waits for: the reason of the most telling
    /// condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Assigned, Running, CheckpointDurable, CheckpointPassedOver, Suspended, Complete, Failed,
    /// AssignmentUnproved, Stuck, ProgressUnknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Number of the current attempt; 0 before the first.
    #[serde(default)]
    pub attempt: u32,
    /// Failures that count against maxRestarts: those of the 24 hours before the last one.
    #[serde(default)]
    pub restarts: u32,
    /// When each of these failures happened, the oldest first. A failure counts for 24 hours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::times")]
    pub restart_times: Vec<Time>,
    /// Attempts in a row that ended by no fault of the program. They lengthen the back-off. 0 again
    /// once the job runs.
    #[serde(default)]
    pub replans: u32,
    /// Attempts in a row that ended because checkpoints could not be read. They do not count
    /// against maxRestarts.
    #[serde(default)]
    pub unreadable: u32,
    /// How many of the attempts in a row ended because something that the pods need is missing,
    /// such as an image.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refusals: u32,
    /// Nodes that are reserved for the job while it restarts or moves. No other job gets them. The
    /// reservation ends by itself, a minute after the job could have used it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<PromiseStatus>,
    /// Nodes on which attempts of the job ended, at most 64. The job uses other nodes while enough
    /// others fit. All jobs avoid a node that itself ended attempts of two namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub avoided_nodes: Vec<AvoidedNodeStatus>,
    /// Since when no zone has enough healthy nodes for the job, although one has enough in total.
    /// After five minutes of that the job crosses zones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub no_zone_since: Option<Time>,
    /// Class of the nodes that the job runs on: the class that it names, or the Fabric's default
    /// when the operator first saw the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_class: Option<String>,
    /// Processes (ranks) on each node: the number that the job asks for, or the default of its
    /// class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub procs_per_node: Option<u32>,
    /// Nodes whose trainer runs in the current attempt.
    #[serde(default)]
    pub ready_nodes: u32,
    /// The members of an attempt that goes on without lost nodes (`onPeerLoss: Shrink`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membership: Option<MembershipStatus>,
    /// Ranks of the current attempt that ended well while others go on. They count as ended well
    /// also when their pods are collected or deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_ranks: Option<CompletedRanksStatus>,
    /// ConfigMap that lists the current attempt's nodes in rank order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assignment: Option<String>,
    /// Zones of the current attempt: one, or two when it crosses; none where nodes have no zone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zones: Vec<String>,
    /// Last checkpoint known to be durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_checkpoint: Option<CheckpointStatus>,
    /// When the next attempt may start, after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub next_attempt_time: Option<Time>,
    /// When the job first got nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub start_time: Option<Time>,
    /// When the job reached Succeeded or Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub completion_time: Option<Time>,
    /// Last lines that the failed rank printed, and which rank it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureStatus>,
    /// The last attempts, at most 16, the newest at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub attempts: Vec<AttemptStatus>,
    /// Generation of the spec that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// Nodes that are reserved for a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromiseStatus {
    /// The nodes of this attempt come first, as far as they are usable.
    pub attempt: u32,
    /// How many nodes in which zone.
    #[schemars(length(max = 2))]
    pub zones: Vec<PromisedZone>,
    /// Until when.
    #[schemars(schema_with = "schema::time")]
    pub until: Time,
    /// The NodeValidation that has one of the attempt's nodes, or gets it next. As long as it is
    /// named, the reservation stands, whatever `until` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delayed_by: Option<String>,
}

/// Nodes in a zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PromisedZone {
    /// The zone; empty where nodes have none.
    pub zone: String,
    /// How many.
    pub nodes: u32,
}

/// A node that a job keeps away from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AvoidedNodeStatus {
    /// Its name.
    pub node: String,
    /// Until when.
    #[schemars(schema_with = "schema::time")]
    pub until: Time,
    /// The last event on the node: NodeLost, NodeRefused, PodEnded, NotBound, Blocked,
    /// NotStarted, Silent or ProgramFailed.
    pub reason: String,
    /// How many attempts in a row ended on the node.
    pub count: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// An attempt: the time for which the job had nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AttemptStatus {
    /// Its number.
    pub number: u32,
    /// How many nodes it had.
    pub nodes: u32,
    /// The first 16 of them by name, in rank order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub node_names: Vec<String>,
    /// When it got its nodes.
    #[schemars(schema_with = "schema::time")]
    pub start_time: Time,
    /// When it ended; absent while it has its nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub end_time: Option<Time>,
    /// Why it ended, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Nodes times seconds for which it had them; set when it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_seconds: Option<u64>,
}

/// The members of an attempt. The operator writes them before they go on, so that only one side of
/// a split goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MembershipStatus {
    /// The attempt.
    pub attempt: u32,
    /// Counts the memberships of the attempt.
    pub epoch: u64,
    /// How many nodes take part.
    pub participants: u32,
    /// Node ranks that were lost. Empty when all take part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_ranks: Vec<RankRange>,
    /// The first 16 of the lost nodes by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_nodes: Vec<String>,
    /// ConfigMap with what the members resumed from, for the operator alone. Its name ends in the
    /// SHA-256 of its text. The operator writes it before this status refers to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
}

/// Node ranks that ended well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompletedRanksStatus {
    /// The attempt.
    pub attempt: u32,
    /// Their node ranks in ascending order, separated by commas. Three or more consecutive ranks
    /// are the first and the last with a dash between: `1,3-5,7`.
    #[schemars(length(max = 16384))]
    pub ranks: String,
}

/// Consecutive node ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RankRange {
    /// The lowest.
    pub first: u32,
    /// The highest.
    pub last: u32,
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
    #[schemars(schema_with = "schema::time")]
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
    /// The job waits for nodes.
    #[default]
    Queued,
    /// The job has nodes; its pods are being created.
    Assigned,
    /// The pods exist; the sidecars are joining.
    Starting,
    /// Every rank trains.
    Running,
    /// The job was asked to save and to release its nodes.
    Interrupting,
    /// The job waits for its next attempt after a failure.
    Restarting,
    /// The job has no nodes until `suspend` is false again.
    Suspended,
    /// Every rank ended well.
    Succeeded,
    /// The job will not be tried again.
    Failed,
}
