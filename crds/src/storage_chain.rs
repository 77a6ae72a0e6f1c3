//! StorageChain: where the replicas of a part of the data lie, and whether they serve. The chain
//! table is the chain manager's; an object shows one chain of it.
#![expect(
    unreachable_pub,
    reason = "the schema derive copies each struct into a function"
)]

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One chain: targets of a pool, each with a replica of the same data. The operator creates it, and
/// the chain manager's table decides: an object that is deleted comes back, one that differs from
/// the table says so, and no change of an object touches data.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "fireflyer.dev",
    version = "v1alpha1",
    kind = "StorageChain",
    plural = "storagechains",
    category = "fireflyer",
    status = "StorageChainStatus",
    derive = "PartialEq",
    doc = "One chain: targets of a pool, each with a replica of the same data. The operator creates it, and the chain manager's table decides: an object that is deleted comes back, one that differs from the table says so, and no change of an object touches data.",
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.pool", description = "The pool whose targets it has"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase", description = "Whether it serves, in one word"),
    printcolumn(name = "Replicas", type_ = "string", json_path = ".status.replicas", description = "Nodes of its replicas from head to tail, with what is wrong"),
    printcolumn(name = "Version", type_ = "integer", json_path = ".status.version", description = "Rises with each change of its members"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", description = "What is wrong, and what to do", priority = 1),
    selectable = ".spec.pool",
    selectable = ".status.phase",
    validation = Rule::new("self.metadata.name.startsWith(self.spec.pool + '-')").message(
        "metadata.name must be <pool>-<number>: chains are created by the operator, for the StoragePool that they belong to"
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf")
    .message("a chain keeps its pool, its number and its targets: what a pool's new chains are like is set in the StoragePool"))]
pub struct StorageChainSpec {
    /// Name of the pool.
    #[schemars(
        length(min = 1, max = 50),
        regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$")
    )]
    pub pool: String,
    /// Number of the chain, 1 to 16777215, by which services and clients know it. No other chain of
    /// any pool has it.
    #[schemars(range(min = 1, max = 16_777_215))]
    pub chain: u32,
    /// UUIDs of its targets from head to tail, 1 to 8, each once.
    #[schemars(
        length(min = 1, max = 8),
        inner(length(min = 32, max = 32), regex(pattern = "^[0-9a-f]+$"))
    )]
    #[x_kube(validation = Rule::new("self.all(target, self.exists_one(other, other == target))")
        .message("a target keeps one replica of a chain: name each target once"))]
    pub targets: Vec<String>,
}

/// What the chain table says of the chain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageChainStatus {
    /// Whether it serves, in one word.
    #[serde(default)]
    pub phase: ChainPhase,
    /// What is wrong and what to do, in at most 1024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub message: Option<String>,
    /// Nodes of its replicas from head to tail. Behind one that does not serve stands why in one
    /// word: `node-1, node-2 (Offline), node-3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<String>,
    /// Rises with each change of its members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// Its members from head to tail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub members: Vec<ChainMemberStatus>,
    /// Generation of the spec that this status answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A target in its chain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChainMemberStatus {
    /// Its UUID.
    pub target: String,
    /// Its node; absent while no service has brought it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Where it is on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Whether it serves.
    pub state: crate::storage_pool::StorageTargetState,
}

/// One word for whether a chain serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ChainPhase {
    /// It is not in the chain table yet.
    #[default]
    Pending,
    /// A member has never come: nothing is served before all have.
    Waiting,
    /// All members serve.
    Serving,
    /// A member does not serve: writes wait for it, reads go on where a replica may answer.
    Stalled,
}

#[cfg(test)]
mod tests {
    use super::StorageChain;
    use serde_json::json;

    #[test]
    fn a_stored_chain_is_read_and_written_without_a_loss() {
        let stored = json!({
            "apiVersion": "fireflyer.dev/v1alpha1",
            "kind": "StorageChain",
            "metadata": { "name": "fast-7" },
            "spec": {
                "pool": "fast",
                "chain": 7,
                "targets": ["0123456789abcdef0123456789abcdef"],
            },
            "status": {
                "phase": "Stalled",
                "message": "/data/0 of node-2 does not serve",
                "replicas": "node-2 (Offline)",
                "version": 3,
                "members": [{
                    "target": "0123456789abcdef0123456789abcdef",
                    "nodeName": "node-2",
                    "path": "/data/0",
                    "state": "Offline",
                }],
                "observedGeneration": 1,
            },
        });
        let read: StorageChain = serde_json::from_value(stored.clone()).expect("it is read");
        assert_eq!(serde_json::to_value(read).expect("a chain renders"), stored);
    }
}
