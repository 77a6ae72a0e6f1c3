//! StoragePool: which targets keep the replicas of what is stored, and how they are spread. Which
//! targets make a chain is decided by `core/chain-placement`, what is in the chain table by the
//! chain manager.
#![expect(
    unreachable_pub,
    reason = "the schema derive copies each struct into a function"
)]

use crate::fabric::LABEL_KEY;
use crate::node_validation_policy::node_selector;
use crate::schema;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Targets whose chains keep volumes. A target is a folder or a disk of a node that a storage
/// service has. A chain has one target for each replica, no two of them in one failure domain. The
/// pool makes chains for new targets and never changes or deletes one: deleting a pool deletes no
/// data.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "fireflyer.dev",
    version = "v1alpha1",
    kind = "StoragePool",
    plural = "storagepools",
    shortname = "sp",
    category = "fireflyer",
    status = "StoragePoolStatus",
    derive = "PartialEq",
    doc = "Targets whose chains keep volumes. A target is a folder or a disk of a node that a storage service has. A chain has one target for each replica, no two of them in one failure domain. The pool makes chains for new targets and never changes or deletes one: deleting a pool deletes no data.",
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".spec.replicas", description = "Replicas of what is stored"),
    printcolumn(name = "Targets", type_ = "integer", json_path = ".status.targetCount", description = "Targets that the pool has"),
    printcolumn(name = "Offline", type_ = "integer", json_path = ".status.offlineCount", description = "Those that do not serve"),
    printcolumn(name = "Chains", type_ = "integer", json_path = ".status.chainCount", description = "Chains of these targets"),
    printcolumn(name = "Serving", type_ = "integer", json_path = ".status.servingCount", description = "Chains that take reads and writes"),
    printcolumn(name = "Used", type_ = "string", json_path = ".status.used", description = "Bytes that are used on all targets"),
    printcolumn(name = "Capacity", type_ = "string", json_path = ".status.capacity", description = "Bytes of all targets"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason", description = "What is wrong, or Ready, in one word"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", description = "What is wrong, and what to do", priority = 1),
    selectable = ".status.reason",
    validation = Rule::new("size(self.metadata.name) <= 50").message(
        "metadata.name must have at most 50 characters, because its chains are called <pool>-<number>: shorten it"
    ),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message(
        "metadata.name must start with a letter and hold only lower-case letters, digits and dashes: rename the pool"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.targets) != has(self.paths)")
    .message("a pool has either targets or paths: name each target, or give the paths of all nodes that nodeSelector selects"))]
#[x_kube(validation = Rule::new("!has(self.nodeSelector) || has(self.paths)")
    .message("nodeSelector selects nodes for paths: set paths, or leave nodeSelector out")
    .field_path(".nodeSelector"))]
#[x_kube(validation = Rule::new("!has(self.targets) || size(self.targets) >= self.replicas")
    .message("a chain needs a target for each replica: name more targets, or ask for fewer replicas")
    .field_path(".targets"))]
#[x_kube(validation = Rule::new("self.replicas == oldSelf.replicas")
    .message("replicas cannot change once the pool exists, because chains keep their targets: create another pool")
    .field_path(".replicas"))]
#[x_kube(validation = Rule::new("self.failureDomain == oldSelf.failureDomain")
    .message("failureDomain cannot change once the pool exists, because chains keep their targets: create another pool")
    .field_path(".failureDomain"))]
pub struct StoragePoolSpec {
    /// How many targets keep each chunk, 1 to 8; 3 by default. It cannot change. With one replica a
    /// lost disk is lost data.
    #[serde(default = "default_replicas")]
    #[schemars(range(min = 1, max = 8))]
    pub replicas: u32,
    /// The pool's targets one by one, 1 to 1024. Without it they are the `paths` of nodes. A target
    /// that is taken out of the list keeps its chains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["nodeName".to_owned(), "path".to_owned()]))]
    pub targets: Option<Vec<StorageTarget>>,
    /// Labels that a node must have, all of them with these values, at most 16, for its `paths` to
    /// be targets of the pool. Without any all nodes with a storage service are selected.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "node_selector")]
    #[x_kube(validation = Rule::new(
        format!("self.all(key, size(key) <= 316 && key.matches('{LABEL_KEY}'))")
    )
    .message("a key of nodeSelector must be that of a label, for example kubernetes.io/os: see kubectl get nodes --show-labels"))]
    pub node_selector: BTreeMap<String, String>,
    /// Paths of targets on each node that is selected, 1 to 32, each once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), inner(length(min = 2, max = 1024), regex(pattern = PATH)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub paths: Option<Vec<String>>,
    /// Node label whose value says what a node is lost with, `kubernetes.io/hostname` by default:
    /// no two replicas are on nodes with the same value. It cannot change. A node without the label
    /// has no targets of the pool.
    #[serde(default = "default_failure_domain")]
    #[schemars(length(min = 1, max = 316), regex(pattern = LABEL_KEY))]
    pub failure_domain: String,
    /// Chains of each target, at most, 1 to 64; 8 by default, and fewer where the pool would have
    /// more than 4096 in all. More chains spread the load of a lost target wider. When it grows,
    /// chains are added; when it shrinks, none goes.
    #[serde(default = "default_chains_per_target")]
    #[schemars(range(min = 1, max = 64))]
    pub chains_per_target: u32,
}

/// An absolute path without a slash at its end.
const PATH: &str = "^(/[-A-Za-z0-9_.]+)+$";

fn default_replicas() -> u32 {
    3
}
fn default_failure_domain() -> String {
    "kubernetes.io/hostname".to_owned()
}
fn default_chains_per_target() -> u32 {
    8
}

/// A place on a node that keeps replicas.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageTarget {
    /// The node, as `kubectl get nodes` calls it.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
    )]
    pub node_name: String,
    /// Where it is on the node, absolute, as the storage service is given it.
    #[schemars(length(min = 2, max = 1024), regex(pattern = PATH))]
    pub path: String,
}

/// What the leading operator sees of the pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StoragePoolStatus {
    /// What is wrong, or `Ready`, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What is wrong and what to do, in at most 1024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// Ready: every chain that the targets allow exists and serves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Targets that the pool has.
    #[serde(default)]
    pub target_count: u32,
    /// Those that do not serve.
    #[serde(default)]
    pub offline_count: u32,
    /// Chains of the pool.
    #[serde(default)]
    pub chain_count: u32,
    /// Those that take reads and writes.
    #[serde(default)]
    pub serving_count: u32,
    /// Bytes that are used on all targets, for example `12Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
    /// Bytes of all targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<String>,
    /// The targets, at most 256: those first that do not serve.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub targets: Vec<StorageTargetStatus>,
    /// Generation of the spec that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// What is known of a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageTargetStatus {
    /// Its node.
    pub node_name: String,
    /// Where it is on the node.
    pub path: String,
    /// Its UUID; absent while no service has brought it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Whether it serves.
    pub state: StorageTargetState,
    /// What is wrong and what to do, in at most 512 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub message: Option<String>,
    /// Chains that it is in.
    #[serde(default)]
    pub chains: u32,
    /// Bytes that are used on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<String>,
    /// Its bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<String>,
}

/// Whether a target serves.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum StorageTargetState {
    /// No storage service has brought it: none runs on its node, or none with this path.
    Missing,
    /// A service knows it and does not serve it, or has not been heard of.
    Offline,
    /// It serves.
    Online,
}

#[cfg(test)]
mod tests {
    use super::{StoragePool, StoragePoolSpec};
    use serde_json::json;

    #[test]
    fn a_spec_of_paths_alone_has_three_replicas_on_different_hosts() {
        let spec: StoragePoolSpec =
            serde_json::from_value(json!({ "paths": ["/data"] })).expect("the smallest spec");
        assert_eq!((spec.replicas, spec.chains_per_target), (3, 8));
        assert_eq!(spec.failure_domain, "kubernetes.io/hostname");
        assert!(spec.node_selector.is_empty() && spec.targets.is_none());
    }

    #[test]
    fn a_stored_pool_is_read_and_written_without_a_loss() {
        let stored = json!({
            "apiVersion": "fireflyer.dev/v1alpha1",
            "kind": "StoragePool",
            "metadata": { "name": "fast" },
            "spec": {
                "replicas": 2,
                "targets": [
                    { "nodeName": "node-1", "path": "/data/0" },
                    { "nodeName": "node-2", "path": "/data/0" },
                ],
                "failureDomain": "topology.fireflyer.dev/zone",
                "chainsPerTarget": 4,
            },
            "status": {
                "reason": "TargetsOffline",
                "message": "1 of 2 targets does not serve: /data/0 of node-2",
                "conditions": [{
                    "type": "Ready",
                    "status": "False",
                    "reason": "TargetsOffline",
                    "message": "1 of 2 targets does not serve: /data/0 of node-2",
                    "lastTransitionTime": "2026-11-25T16:00:09Z",
                }],
                "targetCount": 2,
                "offlineCount": 1,
                "chainCount": 4,
                "servingCount": 0,
                "used": "12Gi",
                "capacity": "3Ti",
                "targets": [{
                    "nodeName": "node-2",
                    "path": "/data/0",
                    "target": "0123456789abcdef0123456789abcdef",
                    "state": "Offline",
                    "message": "its service has not been heard of for 30 s",
                    "chains": 4,
                    "used": "6Gi",
                    "capacity": "1536Gi",
                }],
                "observedGeneration": 2,
            },
        });
        let read: StoragePool = serde_json::from_value(stored.clone()).expect("it is read");
        assert_eq!(serde_json::to_value(read).expect("a pool renders"), stored);
    }
}
