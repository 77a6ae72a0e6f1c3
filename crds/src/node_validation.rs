//! NodeValidation: one run of checks on one node, and its verdict with figures. What a check does
//! is the validator's business, how its figure is judged that of `core/health`.
#![expect(
    unreachable_pub,
    reason = "the schema derive copies each struct into a function"
)]

use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One run of checks on one node. The run waits until no job uses the node, has the node to itself,
/// and ends with a verdict. It stops a job only where whenBusy asks for it, and then by an
/// interruption that loses nothing. A run of a NodeValidationPolicy has the label
/// fireflyer.dev/validation-policy with the policy's name, and an owner reference to the policy,
/// with which it is deleted.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "fireflyer.dev",
    version = "v1alpha1",
    kind = "NodeValidation",
    plural = "nodevalidations",
    shortname = "nv",
    category = "fireflyer",
    status = "NodeValidationStatus",
    derive = "PartialEq",
    doc = "One run of checks on one node. The run waits until no job uses the node, has the node to itself, and ends with a verdict. It stops a job only where whenBusy asks for it, and then by an interruption that loses nothing. A run of a NodeValidationPolicy has the label fireflyer.dev/validation-policy with the policy's name, and an owner reference to the policy, with which it is deleted.",
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName", description = "The node that is checked"),
    printcolumn(name = "Level", type_ = "string", json_path = ".spec.level", description = "How thorough the run is, unless spec.checks names the checks"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", description = "Where the run is, in one word"),
    printcolumn(name = "Verdict", type_ = "string", json_path = ".status.verdict", description = "The worst verdict of its checks, once it is finished"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason", description = "Why it is there, or what it waits for, in one word"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", description = "What was found, and what to do", priority = 1),
    selectable = ".spec.nodeName",
    selectable = ".status.phase",
    selectable = ".status.verdict",
    validation = Rule::new("size(self.metadata.name) <= 50").message(
        "metadata.name must have at most 50 characters, because its pod is called <name>-<attempt>-<rank>: shorten it"
    ),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message(
        "metadata.name must start with a letter and hold only lower-case letters, digits and dashes: rename the validation"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.nodeName == oldSelf.nodeName")
    .message("nodeName cannot change once the validation exists: create another NodeValidation")
    .field_path(".nodeName"))]
#[x_kube(validation = Rule::new("self.level == oldSelf.level")
    .message("level cannot change once the validation exists: create another NodeValidation")
    .field_path(".level"))]
#[x_kube(validation = Rule::new(
    "has(self.checks) == has(oldSelf.checks) && (!has(self.checks) || self.checks == oldSelf.checks)"
)
.message("checks cannot change once the validation exists: create another NodeValidation")
.field_path(".checks"))]
#[x_kube(validation = Rule::new("self.deadlineSeconds == oldSelf.deadlineSeconds")
    .message("deadlineSeconds cannot change once the validation exists: create another NodeValidation")
    .field_path(".deadlineSeconds"))]
#[x_kube(validation = Rule::new(
    "has(self.claimName) == has(oldSelf.claimName) && (!has(self.claimName) || self.claimName == oldSelf.claimName)"
)
.message("claimName cannot change once the validation exists: create another NodeValidation")
.field_path(".claimName"))]
#[x_kube(validation = Rule::new(
    "has(self.partnerNodeName) == has(oldSelf.partnerNodeName) && (!has(self.partnerNodeName) || self.partnerNodeName == oldSelf.partnerNodeName)"
)
.message("partnerNodeName cannot change once the validation exists: create another NodeValidation")
.field_path(".partnerNodeName"))]
#[x_kube(validation = Rule::new(
    "!has(self.partnerNodeName) || self.partnerNodeName != self.nodeName"
)
.message("partnerNodeName must be another node than nodeName: between a node and itself there is no network")
.field_path(".partnerNodeName"))]
pub struct NodeValidationSpec {
    /// The node to check, as `kubectl get nodes` calls it. It needs our agent.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub node_name: String,
    /// How thorough the run is. `Quick` (the default): Offer, CpuFrequency, CpuStress and
    /// LockedMemory. `Standard`: also MemoryBandwidth, MemoryPattern, AllReduce, Disk and Gpu.
    /// `Full`: also Network, which needs `partnerNodeName`. Of no effect where `checks` is set.
    #[serde(default)]
    pub level: ValidationLevel,
    /// The checks to run instead of the level's, 1 to 16, each once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub checks: Option<Vec<ValidationCheck>>,
    /// What happens while a job uses the node. `Wait` (the default): the run waits until nobody
    /// does, and until the node is kept for no waiting job. `Next`: it gets the node as soon as the
    /// job ends or pauses, before jobs that wait. `Interrupt`: within a minute or so the job is
    /// also asked to save and to leave its nodes; it goes on from there once it has nodes again,
    /// usually the same. No job is killed for it. It may change until the run has its node.
    #[serde(default)]
    pub when_busy: WhenBusy,
    /// A PersistentVolumeClaim in the namespace `fireflyer-validation` that the check Disk writes
    /// to and reads, besides the node's own disk: so a node is found that is slow on shared
    /// storage. It is a file of at most 1 GiB, which goes with the check. A claim that is not
    /// ReadWriteMany does for runs on one node at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub claim_name: Option<String>,
    /// The node with which the check Network measures the network. A run of that node must exist
    /// that names this one, and both nodes must be of one class and zone. The two runs measure
    /// together, and each reports what it sent and received. Whoever has its node first waits for
    /// the other for two minutes; then Network is Skipped. Policies with the level `Full` pair
    /// nodes by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub partner_node_name: Option<String>,
    /// Seconds that all checks together may take once the run has the node, 30 to 7200; 600 by
    /// default. Each check gets a share of them. One that does not end in time is an Error, and the
    /// others go on.
    #[serde(default = "default_deadline_seconds")]
    #[schemars(range(min = 30, max = 7200))]
    pub deadline_seconds: u32,
    /// Seconds after which a finished validation is deleted, 0 to 315360000 (ten years). Without it
    /// the validation is kept for ever. One that brought its node into quarantine is kept until the
    /// node is out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315_360_000))]
    pub ttl_seconds_after_finished: Option<u32>,
}

fn default_deadline_seconds() -> u32 {
    600
}

/// How thorough a run is. Each level runs the checks of the level before it, too.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum ValidationLevel {
    /// Seconds: Offer, CpuFrequency, CpuStress and LockedMemory.
    #[default]
    Quick,
    /// Minutes: also MemoryBandwidth, MemoryPattern, AllReduce, Disk and Gpu.
    Standard,
    /// Everything: also Network, which needs another node.
    Full,
}

impl ValidationLevel {
    /// All levels, the quickest first.
    pub const ALL: [Self; 3] = [Self::Quick, Self::Standard, Self::Full];

    /// The API's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Quick => "Quick",
            Self::Standard => "Standard",
            Self::Full => "Full",
        }
    }
}

/// What happens while a job uses the node of a run.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum WhenBusy {
    /// The run waits until the node is free and kept for nobody.
    #[default]
    Wait,
    /// It is the next that gets the node.
    Next,
    /// The job is asked to save and to leave its nodes.
    Interrupt,
}

/// Something that is measured or tried on a node.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum ValidationCheck {
    /// Whether the node offers as much of each resource as its class asks for.
    Offer,
    /// How fast the cores run.
    CpuFrequency,
    /// Whether every core computes known answers under load, and none is slow.
    CpuStress,
    /// How fast each NUMA node reads and writes its memory.
    MemoryBandwidth,
    /// Whether memory holds what was written to it.
    MemoryPattern,
    /// Whether an all-reduce inside the node gives the right sums, and how fast.
    AllReduce,
    /// How fast the node's disk is, and whether it returns what was written.
    Disk,
    /// Whether pods may lock memory, as RDMA needs it.
    LockedMemory,
    /// Whether the GPUs work. Skipped so far.
    Gpu,
    /// How fast data goes to a partner node and comes from it, and whether it arrives as it was
    /// sent. Skipped without a partner.
    Network,
}

impl ValidationCheck {
    /// All checks, in the order in which they run.
    pub const ALL: [Self; 10] = [
        Self::Offer,
        Self::CpuFrequency,
        Self::CpuStress,
        Self::MemoryBandwidth,
        Self::MemoryPattern,
        Self::AllReduce,
        Self::Disk,
        Self::LockedMemory,
        Self::Gpu,
        Self::Network,
    ];

    /// The API's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Offer => "Offer",
            Self::CpuFrequency => "CpuFrequency",
            Self::CpuStress => "CpuStress",
            Self::MemoryBandwidth => "MemoryBandwidth",
            Self::MemoryPattern => "MemoryPattern",
            Self::AllReduce => "AllReduce",
            Self::Disk => "Disk",
            Self::LockedMemory => "LockedMemory",
            Self::Gpu => "Gpu",
            Self::Network => "Network",
        }
    }
}

/// What the operator last saw, and what the checks found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeValidationStatus {
    /// One word for where the run is.
    #[serde(default)]
    pub phase: ValidationPhase,
    /// The worst verdict of the checks: Fail before Error, Warn, Pass and Skipped. Absent until the
    /// run is finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    // Of an optional enum the schema would show the enum's own description.
    #[schemars(with = "ValidationVerdict")]
    pub verdict: Option<ValidationVerdict>,
    /// Why the run is in this phase, or what it waits for, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What was found and what to do, in at most 1024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// What is true of the run, one condition for each claim.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Number of the attempt; 0 before the run has the node. A run is not tried again.
    #[serde(default)]
    pub attempt: u32,
    /// Class of the node when the run got it. Floors and medians are those of this class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_class: Option<String>,
    /// When the run got the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub start_time: Option<Time>,
    /// When the run was finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub completion_time: Option<Time>,
    /// What each check found, at most 32 results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub results: Vec<ValidationResult>,
    /// What the node was made of. Only figures of nodes with the same fingerprint are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<ValidationFingerprint>,
    /// Identifies the boot of the node that the run was on; absent without a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub boot_id: Option<String>,
    /// When the operator noted that the node is in quarantine after this run failed. A run brings
    /// its node there once: where the taint is gone since, somebody removed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub quarantine_time: Option<Time>,
    /// Generation of the spec that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// What one check found on the node, or on one of its devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValidationResult {
    /// The check.
    pub check: ValidationCheck,
    /// What was checked, for example `core 3`, `numa 1` or a resource. Absent: the node as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its verdict.
    pub verdict: ValidationVerdict,
    /// What was measured, in `unit`. More is better.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Unit of value, floor and median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// A value below this is a Fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor: Option<f64>,
    /// Median of the nodes with the same class and fingerprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median: Option<f64>,
    /// How often it was measured. A value that looks bad is measured again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<u32>,
    /// What is wrong and what to do, in at most 512 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
}

/// What a node is made of, as far as it decides how fast it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValidationFingerprint {
    /// Release of the kernel.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kernel: String,
    /// Model of the CPU.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cpu: String,
    /// Version of the GPUs' driver; absent where there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub driver: String,
    /// Version of the machine's firmware; absent where it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub firmware: String,
    /// Version of the validator.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub validator: String,
}

/// One word for where a run is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ValidationPhase {
    /// The run waits for its node.
    #[default]
    Pending,
    /// The run has its node; its pod is being created.
    Assigned,
    /// The pod exists and does not run yet.
    Starting,
    /// The checks run.
    Running,
    /// The verdict is known; the node is free again.
    Finished,
}

/// What became of a check, or of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ValidationVerdict {
    /// All is well.
    Pass,
    /// Something to look at, which says nothing certain about the node.
    Warn,
    /// The node is degraded.
    Fail,
    /// The check itself did not work. That says nothing about the node.
    Error,
    /// The check could not be made here.
    Skipped,
}

impl ValidationVerdict {
    /// All verdicts.
    pub const ALL: [Self; 5] = [
        Self::Pass,
        Self::Warn,
        Self::Fail,
        Self::Error,
        Self::Skipped,
    ];

    /// The API's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "Pass",
            Self::Warn => "Warn",
            Self::Fail => "Fail",
            Self::Error => "Error",
            Self::Skipped => "Skipped",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        NodeValidation, NodeValidationSpec, ValidationCheck, ValidationLevel, ValidationVerdict,
    };
    use serde::Serialize;
    use serde_json::json;

    fn written(word: impl Serialize) -> serde_json::Value {
        serde_json::to_value(word).expect("a word renders")
    }

    #[test]
    fn the_word_of_each_value_is_the_one_that_is_stored() {
        for check in ValidationCheck::ALL {
            assert_eq!(written(check), check.as_str());
        }
        for verdict in ValidationVerdict::ALL {
            assert_eq!(written(verdict), verdict.as_str());
        }
        for level in ValidationLevel::ALL {
            assert_eq!(written(level), level.as_str());
        }
    }

    #[test]
    fn a_spec_of_a_node_alone_is_quick_has_ten_minutes_and_is_kept() {
        let spec: NodeValidationSpec =
            serde_json::from_value(json!({ "nodeName": "node-1" })).expect("the smallest spec");
        assert_eq!((spec.level, spec.checks), (ValidationLevel::Quick, None));
        assert_eq!(
            (spec.deadline_seconds, spec.ttl_seconds_after_finished),
            (600, None)
        );
    }

    #[test]
    fn a_stored_validation_is_read_and_written_without_a_loss() {
        let stored = json!({
            "apiVersion": "fireflyer.dev/v1alpha1",
            "kind": "NodeValidation",
            "metadata": { "name": "node-1" },
            "spec": {
                "nodeName": "node-1",
                "level": "Standard",
                "checks": ["Offer", "MemoryBandwidth"],
                "whenBusy": "Interrupt",
                "deadlineSeconds": 60,
                "ttlSecondsAfterFinished": 0,
            },
            "status": {
                "phase": "Finished",
                "verdict": "Fail",
                "reason": "Offer",
                "message": "Offer: 7 of 8 nvidia.com/gpu",
                "conditions": [{
                    "type": "Finished",
                    "status": "True",
                    "reason": "Fail",
                    "message": "Offer failed",
                    "lastTransitionTime": "2026-11-24T16:00:09Z",
                }],
                "attempt": 1,
                "nodeClass": "a100",
                "startTime": "2026-11-24T16:00:00Z",
                "completionTime": "2026-11-24T16:00:09Z",
                "results": [
                    {
                        "check": "Offer",
                        "device": "nvidia.com/gpu",
                        "verdict": "Fail",
                        "value": 7.0,
                        "unit": "devices",
                        "floor": 8.0,
                        "message": "look for the missing GPU",
                    },
                    {
                        "check": "MemoryBandwidth",
                        "device": "numa 0",
                        "verdict": "Pass",
                        "value": 154.5,
                        "unit": "GB/s",
                        "median": 156.25,
                        "runs": 1,
                    },
                    { "check": "Gpu", "verdict": "Skipped" },
                ],
                "fingerprint": { "kernel": "6.12.0", "cpu": "EPYC 7302", "validator": "0.1.0" },
                "bootId": "5d0a0d5a-2a0c-4b0e-9b1e-0d4f4c1c2b3a",
                "quarantineTime": "2026-11-24T16:00:20Z",
                "observedGeneration": 1,
            },
        });
        let read: NodeValidation = serde_json::from_value(stored.clone()).expect("it is read");
        assert_eq!(written(read), stored);
    }
}
