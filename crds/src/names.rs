//! Every label, resource, condition and object name that more than one program must agree on.

/// API group of all our kinds.
pub const GROUP: &str = "fireflyer.dev";
/// `apiVersion` of all our kinds.
pub const API_VERSION: &str = "fireflyer.dev/v1alpha1";
/// Name of the one Fabric object.
pub const FABRIC: &str = "default";
/// Namespace and release name that the chart's documentation uses.
pub const SYSTEM_NAMESPACE: &str = "fireflyer-system";
/// Namespace of the pods and ConfigMaps of NodeValidations; the chart makes it.
pub const VALIDATION_NAMESPACE: &str = "fireflyer-validation";
/// Field manager of every server-side apply by the operator.
pub const FIELD_MANAGER: &str = "fireflyer-operator";
/// Finalizer on a TrainingJob or NodeValidation, present only while it holds nodes; and on pods
/// whose last word is to be read.
pub const FINALIZER: &str = "fireflyer.dev/release-nodes";

/// Label on a Node: the class it belongs to, for example `a100`.
pub const LABEL_NODE_CLASS: &str = "fireflyer.dev/node-class";
/// Label on pods and ConfigMaps: the TrainingJob or NodeValidation they belong to.
pub const LABEL_JOB: &str = "fireflyer.dev/job";
/// Label on pods, ConfigMaps and Secrets: the uid of the TrainingJob or NodeValidation they belong
/// to, which no later one of its name has.
pub const LABEL_JOB_UID: &str = "fireflyer.dev/job-uid";
/// Label on pods and ConfigMaps: the attempt they belong to.
pub const LABEL_ATTEMPT: &str = "fireflyer.dev/attempt";
/// Label on pods: the node rank inside the attempt.
pub const LABEL_RANK: &str = "fireflyer.dev/rank";
/// Label of the pods of an attempt whose nodes are in two zones. Its value is `true`.
pub const LABEL_CROSSING: &str = "fireflyer.dev/crossing";
/// Label on NodeValidations that a NodeValidationPolicy creates: the policy's name.
pub const LABEL_VALIDATION_POLICY: &str = "fireflyer.dev/validation-policy";
/// Label on a Node: its zone (one fat tree).
pub const LABEL_ZONE: &str = "topology.fireflyer.dev/zone";
/// Label on a Node: its leaf switch.
pub const LABEL_LEAF: &str = "topology.fireflyer.dev/leaf";

/// Taint on a Node that failed a validation, with that validation's name as its value. Jobs get no
/// such node, and what runs there stays.
pub const TAINT_QUARANTINE: &str = "fireflyer.dev/quarantine";

/// Annotation on the ConfigMap of an attempt: the proof that the operator wrote it.
pub const ANNOTATION_PROOF: &str = "fireflyer.dev/assignment-proof";

/// Resource: one per node; every job pod asks for it, so that a node is never shared.
pub const RESOURCE_NODE: &str = "fireflyer.dev/node";
/// Resource: a slot of an RDMA adapter.
pub const RESOURCE_RDMA: &str = "fireflyer.dev/rdma";
/// Resource: a GPU.
pub const RESOURCE_GPU: &str = "nvidia.com/gpu";

/// Container that runs the user's program.
pub const CONTAINER_TRAINER: &str = "trainer";
/// Native sidecar that runs HFReduce.
pub const CONTAINER_HFREDUCE: &str = "hfreduce";
/// Container of a NodeValidation's pod, which runs the checks.
pub const CONTAINER_VALIDATOR: &str = "validator";

/// Name of the ConfigMap of one attempt: `<job>-<attempt>`. Its Secret has that and a digest.
pub fn attempt_name(job: &str, attempt: u32) -> String {
    format!("{job}-{attempt}")
}

/// Name of the pod of one node rank: `<job>-<attempt>-<rank>`.
pub fn pod_name(job: &str, attempt: u32, rank: u32) -> String {
    format!("{job}-{attempt}-{rank}")
}
