//! The parts of Kubernetes objects that the operator reads. A pod is 8 KB of JSON of which twenty
//! fields matter: 10,000 of them cost 17 MB decoded into these types and 890 MB into the full ones.

mod guarded;
mod metadata;

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use serde::Deserialize;
use serde::de::IgnoredAny;

pub use guarded::{Guarded, Unreadable};
pub(crate) use metadata::slim;
use metadata::with_labels;

/// A Pod.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = "k8s_openapi::api::core::v1::Pod")]
pub struct PodView {
    /// Standard metadata.
    #[serde(deserialize_with = "slim")]
    pub metadata: ObjectMeta,
    /// Desired state.
    #[serde(default)]
    pub spec: PodSpecView,
    /// Observed state.
    #[serde(default)]
    pub status: PodStatusView,
}

/// What is read of a PodSpec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpecView {
    /// The node it is bound to.
    pub node_name: Option<String>,
    /// The node it is pinned to is in here.
    pub affinity: Option<AffinityView>,
    /// Its init containers, native sidecars among them, in the order in which they run.
    #[serde(default)]
    pub init_containers: Vec<ContainerView>,
    /// Its containers.
    #[serde(default)]
    pub containers: Vec<ContainerView>,
}

/// What is read of a Container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerView {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// `Always` makes a native sidecar of an init container.
    pub restart_policy: Option<String>,
    #[serde(default)]
    resources: ResourcesView,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ResourcesView {
    #[serde(default)]
    limits: BTreeMap<String, IgnoredAny>,
}

/// What is read of an Affinity.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AffinityView {
    node_affinity: Option<NodeAffinityView>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeAffinityView {
    required_during_scheduling_ignored_during_execution: Option<NodeSelectorView>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeSelectorView {
    #[serde(default)]
    node_selector_terms: Vec<NodeSelectorTermView>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeSelectorTermView {
    #[serde(default)]
    match_fields: Vec<RequirementView>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct RequirementView {
    key: String,
    #[serde(default)]
    values: Vec<String>,
}

impl PodSpecView {
    /// The node it is bound to, else the one it is pinned to.
    pub fn node(&self) -> Option<&str> {
        self.node_name.as_deref().or_else(|| self.pinned())
    }

    /// Whether a container asks for one of a resource that has no requests apart from limits.
    pub fn asks_for(&self, resource: &str) -> bool {
        let mut containers = self.containers.iter();
        containers.any(|container| container.resources.limits.contains_key(resource))
    }

    fn pinned(&self) -> Option<&str> {
        let node = self.affinity.as_ref()?.node_affinity.as_ref()?;
        let selector = node
            .required_during_scheduling_ignored_during_execution
            .as_ref()?;
        let mut fields = selector
            .node_selector_terms
            .iter()
            .flat_map(|term| &term.match_fields);
        let field = fields.find(|field| field.key == "metadata.name")?;
        field.values.first().map(String::as_str)
    }
}

/// What is read of a PodStatus.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodStatusView {
    /// Pending, Running, Succeeded, Failed or Unknown.
    #[serde(default)]
    pub phase: String,
    /// Why the pod as a whole is in its phase.
    pub reason: Option<String>,
    /// The same for people.
    pub message: Option<String>,
    /// Its address in the network of pods.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<String>,
    /// Its conditions.
    #[serde(default)]
    pub conditions: Vec<PodConditionView>,
    /// Init containers, native sidecars among them.
    #[serde(default)]
    pub init_container_statuses: Vec<ContainerStatusView>,
    /// Containers.
    #[serde(default)]
    pub container_statuses: Vec<ContainerStatusView>,
}

/// The part of a PodCondition that is read.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PodConditionView {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    #[serde(default)]
    pub status: String,
    /// CamelCase word.
    pub reason: Option<String>,
    /// One sentence.
    pub message: Option<String>,
}

/// What is read of a ContainerStatus.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatusView {
    /// The container.
    pub name: String,
    /// Its image, as the kubelet reports it.
    #[serde(default)]
    pub image: String,
    /// True once its startup probe has passed.
    #[serde(default)]
    pub started: bool,
    /// How often it was started again.
    #[serde(default)]
    pub restart_count: u32,
    /// What it does now.
    #[serde(default)]
    pub state: ContainerStateView,
}

/// What a container does: at most one is set.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ContainerStateView {
    /// It waits to start.
    pub waiting: Option<WaitingView>,
    /// It runs.
    pub running: Option<RunningView>,
    /// It ended.
    pub terminated: Option<TerminatedView>,
}

/// A container that waits.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct WaitingView {
    /// CamelCase word.
    #[serde(default)]
    pub reason: String,
}

/// A container that runs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningView {
    /// Since when.
    pub started_at: Option<Time>,
}

/// A container that ended.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminatedView {
    /// Its exit code.
    #[serde(default)]
    pub exit_code: i32,
    /// CamelCase word.
    #[serde(default)]
    pub reason: String,
    /// The termination message.
    #[serde(default)]
    pub message: String,
    /// When it ended.
    pub finished_at: Option<Time>,
}

/// A Node.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = "k8s_openapi::api::core::v1::Node")]
pub struct NodeView {
    /// Standard metadata.
    #[serde(deserialize_with = "with_labels")]
    pub metadata: ObjectMeta,
    /// Desired state.
    #[serde(default)]
    pub spec: NodeSpecView,
    /// Observed state.
    #[serde(default)]
    pub status: NodeStatusView,
}

/// What is read of a NodeSpec.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct NodeSpecView {
    /// Whether somebody cordoned it.
    #[serde(default)]
    pub unschedulable: bool,
    /// Its taints.
    #[serde(default)]
    pub taints: Vec<TaintView>,
}

/// What is read of a Taint.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct TaintView {
    /// Its key.
    pub key: String,
    /// NoSchedule, PreferNoSchedule or NoExecute.
    pub effect: String,
    /// Its value.
    #[serde(default)]
    pub value: String,
}

/// What is read of a NodeStatus.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatusView {
    /// Its conditions.
    #[serde(default)]
    pub conditions: Vec<NodeConditionView>,
    /// What pods may ask it for.
    #[serde(default)]
    pub allocatable: BTreeMap<String, Quantity>,
    /// What it consists of.
    #[serde(default)]
    pub node_info: NodeInfoView,
}

/// What is read of a NodeSystemInfo.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct NodeInfoView {
    /// Identifies its present boot.
    #[serde(default, rename = "bootID")]
    pub boot_id: String,
}

/// What is read of a NodeCondition.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct NodeConditionView {
    /// Its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// True, False or Unknown.
    pub status: String,
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = "k8s_openapi::api::core::v1::PersistentVolumeClaim")]
pub struct ClaimView {
    /// Standard metadata.
    #[serde(deserialize_with = "slim")]
    pub metadata: ObjectMeta,
    /// Desired state.
    #[serde(default)]
    pub spec: ClaimSpecView,
}

/// What is read of a PersistentVolumeClaimSpec.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimSpecView {
    /// How it may be mounted.
    #[serde(default)]
    pub access_modes: Vec<String>,
}

/// The ConfigMap of an attempt.
#[derive(Clone, Debug, Deserialize, Resource)]
#[resource(inherit = "k8s_openapi::api::core::v1::ConfigMap")]
#[serde(rename_all = "camelCase")]
pub struct AttemptView {
    /// Standard metadata.
    #[serde(deserialize_with = "slim")]
    pub metadata: ObjectMeta,
    /// Its files.
    #[serde(default)]
    pub binary_data: BTreeMap<String, ByteString>,
}
