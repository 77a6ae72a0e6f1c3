//! NodeValidationPolicy: which nodes are validated, how often and how thoroughly. When a node is
//! due is decided by `core/health`; what a run does and finds is that of `node_validation`.
#![expect(
    unreachable_pub,
    reason = "the schema derive copies each struct into a function"
)]

use crate::fabric::LABEL_KEY;
use crate::node_validation::ValidationLevel;
use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Which nodes are validated, and how often. The policy creates NodeValidations for nodes that are
/// due: while they are idle, or when their job ends or pauses. It interrupts a job only with
/// interruptAfterDays, and keeps a node from jobs only during a run, or, with quarantine Enforce,
/// from a Fail until a Pass. A node that several policies select belongs to the oldest of them.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "fireflyer.dev",
    version = "v1alpha1",
    kind = "NodeValidationPolicy",
    plural = "nodevalidationpolicies",
    shortname = "nvp",
    category = "fireflyer",
    status = "NodeValidationPolicyStatus",
    derive = "PartialEq",
    doc = "Which nodes are validated, and how often. The policy creates NodeValidations for nodes that are due: while they are idle, or when their job ends or pauses. It interrupts a job only with interruptAfterDays, and keeps a node from jobs only during a run, or, with quarantine Enforce, from a Fail until a Pass. A node that several policies select belongs to the oldest of them.",
    printcolumn(name = "Level", type_ = "string", json_path = ".spec.level", description = "How thorough its runs are"),
    printcolumn(name = "Interval(hours)", type_ = "integer", json_path = ".spec.intervalHours", description = "Hours from the end of a node's run until the node is due again"),
    printcolumn(name = "Nodes", type_ = "integer", json_path = ".status.nodes", description = "Nodes that it selects"),
    printcolumn(name = "Due", type_ = "integer", json_path = ".status.due", description = "Those that are due and have no run yet"),
    printcolumn(name = "Running", type_ = "integer", json_path = ".status.running", description = "Its runs on nodes that no job uses"),
    printcolumn(name = "Waiting", type_ = "integer", json_path = ".status.waiting", description = "Its runs that wait until the job on their node ends or pauses"),
    printcolumn(name = "Failed", type_ = "integer", json_path = ".status.failed", description = "Nodes whose newest result is Fail"),
    printcolumn(name = "Quarantined", type_ = "integer", json_path = ".status.quarantined", description = "Nodes that jobs do not get until they pass"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("size(self.metadata.name) <= 30").message(
        "metadata.name must have at most 30 characters, because its runs are called <policy>-<node>-<hash>: shorten it"
    ),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message(
        "metadata.name must start with a letter and hold only lower-case letters, digits and dashes: rename the policy"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct NodeValidationPolicySpec {
    /// Labels that a node must have, all of them with these values, at most 16. Without any the
    /// policy is for every node with a class.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "node_selector")]
    #[x_kube(validation = Rule::new(
        format!("self.all(key, size(key) <= 316 && key.matches('{LABEL_KEY}'))")
    )
    .message("a key of nodeSelector must be that of a label, for example fireflyer.dev/node-class: see kubectl get nodes --show-labels"))]
    pub node_selector: BTreeMap<String, String>,
    /// How thorough the runs are: `Quick`, `Standard` (the default) or `Full`, as `kubectl explain
    /// nodevalidation.spec.level` says it. A job that is created during a run gets the node only
    /// when the run ends, within seconds for `Quick`, minutes for `Standard`. With `Full` two nodes
    /// of a class and zone are validated at once and measure the network between them.
    #[serde(default = "default_level")]
    pub level: ValidationLevel,
    /// Hours from the end of a node's newest run of the level, or of a more thorough one, until the
    /// node is due again, 1 to 8760 (a year); 168 (a week) by default. Each node has up to an
    /// eighth less, so that not all are due at once; and only an eighth after a run with the
    /// verdict Error or Skipped. Where it costs little a node is validated before it is due: from
    /// an eighth of the interval on while it is idle, and when its job ends or pauses.
    #[serde(default = "default_interval_hours")]
    #[schemars(range(min = 1, max = 8760))]
    pub interval_hours: u32,
    /// Whether a node that had no run of the level or of a more thorough one is due at once; true
    /// by default. Otherwise it is due an interval after it was created. Jobs may get a new node
    /// before its run.
    #[serde(default = "yes")]
    pub new_nodes: bool,
    /// Whether a node is due at once, though at most once an hour, while it is suspect: its peers
    /// in a job found it silent. True by default.
    #[serde(default = "yes")]
    pub suspect_nodes: bool,
    /// Number of idle nodes that may have an open run of the policy at once, 1 to 256; 4 by
    /// default. Jobs never miss more idle nodes than that because of the policy. A run that does
    /// not start within two minutes is deleted, and its node is tried again after ten minutes or
    /// more. Nodes that a job has just left have no limit: all its due nodes are validated side
    /// by side, before the next job gets them. With 1 idle nodes have no partner for the check
    /// Network.
    #[serde(default = "default_max_idle_nodes")]
    #[schemars(range(min = 1, max = 256))]
    pub max_idle_nodes: u32,
    /// Days since a node's last run after which the job that uses it is asked to save and leave
    /// its nodes, 1 to 365. The job goes on from there after the runs, usually on the same nodes.
    /// It is asked once for all its nodes, only when it has had them for a week, and not for a
    /// node on which the run could not start. Without it no job is ever asked, and the run waits
    /// for the job's next pause or end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 365))]
    pub interrupt_after_days: Option<u32>,
    /// `claimName` of its runs: a claim in the namespace `fireflyer-validation` that the check Disk
    /// writes to and reads. It must be ReadWriteMany.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub claim_name: Option<String>,
    /// `deadlineSeconds` of its runs: seconds that all checks together may take once a run has its
    /// node, 30 to 7200; 600 by default.
    #[serde(default = "default_deadline_seconds")]
    #[schemars(range(min = 30, max = 7200))]
    pub deadline_seconds: u32,
    /// The action on a node of the policy that fails. `ReportOnly` (the default): none, it is
    /// counted and named in the status. `Enforce`: the operator gives it the taint
    /// `fireflyer.dev/quarantine`, with the run's name as its value. Jobs get no such node, and a
    /// job that runs there goes on. The taint goes when a run that started later, on the present
    /// boot, passes every check that failed, or when you remove it. What a failed run of yours
    /// finds counts like a run of the policy.
    #[serde(default)]
    pub quarantine: QuarantineMode,
    /// Percent of the policy's nodes that may be in quarantine, 1 to 100, though at least one node;
    /// 2 by default. A node that fails beyond it stays open to jobs, and the condition
    /// `QuarantineHeld` names it.
    #[serde(default = "default_max_quarantined_percent")]
    #[schemars(range(min = 1, max = 100))]
    pub max_quarantined_percent: u32,
    /// Nodes of a leaf switch that may be in quarantine, 1 to 256; 1 by default. Nodes without a
    /// leaf are not limited by it.
    #[serde(default = "default_max_quarantined_per_leaf")]
    #[schemars(range(min = 1, max = 256))]
    pub max_quarantined_per_leaf: u32,
    /// Whether the policy creates no more runs; false by default. Those that it has created go on
    /// until their end, and no younger policy gets its nodes.
    #[serde(default)]
    pub suspend: bool,
}

fn default_level() -> ValidationLevel {
    ValidationLevel::Standard
}
fn default_interval_hours() -> u32 {
    168
}
fn default_max_idle_nodes() -> u32 {
    4
}
fn default_deadline_seconds() -> u32 {
    600
}
fn default_max_quarantined_percent() -> u32 {
    2
}
fn default_max_quarantined_per_leaf() -> u32 {
    1
}
fn yes() -> bool {
    true
}

/// The action on a node that fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum QuarantineMode {
    /// It is counted and named.
    #[default]
    ReportOnly,
    /// Jobs get it no more until it passes.
    Enforce,
}

/// Labels of a node. The schema bounds the values; a rule bounds the keys, which no schema can.
pub(crate) fn node_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 16,
        "additionalProperties": {
            "type": "string",
            "maxLength": 63,
            "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        },
    })
}

/// What the leading operator sees of the policy's nodes and runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeValidationPolicyStatus {
    /// Overlapped: an older policy selects some of the same nodes. They belong to that one.
    /// QuarantineHeld: nodes that failed stay open to jobs, as the limits leave no room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Nodes that the policy selects.
    #[serde(default)]
    pub nodes: u32,
    /// Nodes that are due and have no run yet: `maxIdleNodes` is reached, they are not Ready, their
    /// node agent is not running, or their last run did not start.
    #[serde(default)]
    pub due: u32,
    /// Runs of the policy that hold a node that no job uses, or will in a moment.
    #[serde(default)]
    pub running: u32,
    /// Runs of the policy that wait until the job on their node ends or pauses.
    #[serde(default)]
    pub waiting: u32,
    /// Nodes whose newest result is Fail. Jobs may still get those that are not in quarantine.
    #[serde(default)]
    pub failed: u32,
    /// Names of these nodes, the first 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub failed_nodes: Vec<String>,
    /// Nodes with the taint `fireflyer.dev/quarantine`, whoever set it.
    #[serde(default)]
    pub quarantined: u32,
    /// When the policy created a run last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub last_run_time: Option<Time>,
    /// When a node is due next. Absent while the policy is suspended or has no nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::time")]
    pub next_run_time: Option<Time>,
    /// Generation of the spec that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::{NodeValidationPolicy, NodeValidationPolicySpec, QuarantineMode};
    use crate::node_validation::ValidationLevel;
    use serde_json::json;

    #[test]
    fn an_empty_spec_validates_all_nodes_weekly_by_standard() {
        let spec: NodeValidationPolicySpec =
            serde_json::from_value(json!({})).expect("the smallest spec");
        assert!(spec.node_selector.is_empty());
        assert_eq!(
            (spec.level, spec.interval_hours),
            (ValidationLevel::Standard, 7 * 24)
        );
        assert!(spec.new_nodes && spec.suspect_nodes && !spec.suspend);
        assert_eq!((spec.max_idle_nodes, spec.deadline_seconds), (4, 600));
        assert_eq!(spec.interrupt_after_days, None);
        let limits = (spec.max_quarantined_percent, spec.max_quarantined_per_leaf);
        assert_eq!(
            (spec.quarantine, limits),
            (QuarantineMode::ReportOnly, (2, 1))
        );
    }

    #[test]
    fn a_stored_policy_is_read_and_written_without_a_loss() {
        let stored = json!({
            "apiVersion": "fireflyer.dev/v1alpha1",
            "kind": "NodeValidationPolicy",
            "metadata": { "name": "weekly" },
            "spec": {
                "nodeSelector": { "fireflyer.dev/node-class": "a100", "example.com/spare": "" },
                "level": "Full",
                "intervalHours": 24,
                "newNodes": false,
                "suspectNodes": false,
                "maxIdleNodes": 1,
                "interruptAfterDays": 30,
                "claimName": "shared",
                "deadlineSeconds": 7200,
                "quarantine": "Enforce",
                "maxQuarantinedPercent": 10,
                "maxQuarantinedPerLeaf": 3,
                "suspend": true,
            },
            "status": {
                "conditions": [{
                    "type": "Overlapped",
                    "status": "True",
                    "reason": "OlderPolicy",
                    "message": "1 node belongs to the older policy daily",
                    "lastTransitionTime": "2026-11-24T16:00:09Z",
                }],
                "nodes": 20,
                "due": 3,
                "running": 1,
                "waiting": 2,
                "failed": 1,
                "failedNodes": ["gpu-0007.example.com"],
                "quarantined": 1,
                "lastRunTime": "2026-11-24T16:00:00Z",
                "nextRunTime": "2026-11-24T17:00:00Z",
                "observedGeneration": 2,
            },
        });
        let read: NodeValidationPolicy =
            serde_json::from_value(stored.clone()).expect("it is read");
        assert_eq!(
            serde_json::to_value(read).expect("a policy renders"),
            stored
        );
    }
}
