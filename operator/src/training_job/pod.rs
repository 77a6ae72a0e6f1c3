//! Builds the pod of one node rank from the job's template. Pure: the same arguments, the same pod.

mod containers;
mod template;
mod volumes;

use contract::CheckpointRef;
use crds::fabric::NodeClass;
use crds::names;
use crds::template::{PodTemplate, PodTemplateBody};
use scheduler::JobKind;
use serde_json::{Map, Value, json};

use containers::{plain, sidecar, trainer};
pub use template::{claims, template_problem};
use volumes::volumes_of;

use crate::training_job::job_view::JobView;
use crate::training_job::translate::TaintRules;
use crate::workload::owner_reference;

/// Where the checkpoint's claim is mounted in the trainer.
const CHECKPOINT_PATH: &str = "/checkpoint";
const ATTEMPT_PATH: &str = "/etc/fireflyer/attempt";
const KEY_PATH: &str = "/etc/fireflyer/key";
const VOLUME_RUN: &str = "fireflyer-run";
const VOLUME_ATTEMPT: &str = "fireflyer-attempt";
const VOLUME_KEY: &str = "fireflyer-key";
const VOLUME_SHARED_MEMORY: &str = "fireflyer-shm";
const VOLUME_CHECKPOINT: &str = "fireflyer-checkpoint";
/// From the chart; it does not preempt, so a job never pushes out another by priority.
pub(crate) const PRIORITY_CLASS: &str = "fireflyer-training";
/// A node is neither consolidated nor renewed under a pod that trains: the first is read by
/// Karpenter, the second by the cluster autoscaler. A template may say otherwise.
const STAYS: [(&str, &str); 2] = [
    ("karpenter.sh/do-not-disrupt", "true"),
    ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
];
/// On top of acknowledging and saving: signals, the sidecar's end, the report.
const GRACE_MARGIN_SECONDS: u32 = 10;

/// What all pods of the cluster have in common; from the operator's flags.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Image of the sidecar.
    pub sidecar_image: String,
    /// Image of the validator.
    pub validator_image: String,
    /// When the kubelet pulls these images.
    pub sidecar_pull_policy: String,
    /// Names of Secrets with registry credentials, expected in the namespace of each job.
    pub pull_secrets: Vec<String>,
    /// Where sidecars find the adapter: `auto`, `off`, or the number of its NUMA node.
    pub sidecar_numa: String,
    /// Other variables of the sidecar.
    pub sidecar_env: Vec<(String, String)>,
    /// `host:port` that sidecars dial.
    pub rendezvous: String,
    /// Meaning of taints; pods tolerate those by which nodes are dedicated to us.
    pub taints: TaintRules,
}

/// One pod of a gang.
#[derive(Clone, Copy, Debug)]
pub struct Rank<'a> {
    /// The attempt.
    pub attempt: u32,
    /// The Secret with the attempt's key.
    pub key_name: &'a str,
    /// Node rank.
    pub rank: u32,
    /// The node it is pinned to.
    pub node: &'a str,
    /// Whether it stays until the operator has read its end.
    pub finalizer: bool,
    /// True if the attempt crosses zones. The pod says so: it may outlive whatever else does.
    pub crossing: bool,
    /// The checkpoint to resume from, when that is pinned.
    pub resume: Option<&'a CheckpointRef>,
}

/// How long a pod may take to save and leave.
pub fn grace_seconds(job: &JobView) -> u32 {
    let interruption = job.spec.interruption;
    let saves = interruption
        .ack_seconds
        .saturating_add(interruption.save_seconds);
    saves.saturating_add(GRACE_MARGIN_SECONDS)
}

/// Processes of each node: what the job asks for, else what its class gave when the job was first
/// looked at.
pub fn procs_per_node(job: &JobView, class: &NodeClass) -> u32 {
    let given = || job.status.as_ref()?.procs_per_node;
    let named = job.spec.procs_per_node.or_else(given);
    named.unwrap_or_else(|| class.gpus.max(1))
}

/// Folder of the job's checkpoints inside its claim.
pub fn checkpoint_folder(job: &JobView) -> Option<&str> {
    let checkpoint = job.spec.checkpoint.as_ref()?;
    checkpoint.path.as_deref().or(job.metadata.name.as_deref())
}

/// The whole pod, as it is sent to the API server.
pub fn build(
    job: &JobView,
    template: &PodTemplate,
    class: &NodeClass,
    settings: &Settings,
    rank: Rank<'_>,
) -> Value {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let mut metadata = json!({
        "name": names::pod_name(name, rank.attempt, rank.rank),
        "namespace": job.metadata.namespace,
        "labels": {},
        "ownerReferences": [owner_reference(JobKind::TrainingJob.as_str(), &job.metadata)],
    });
    metadata["annotations"] = STAYS
        .map(|(key, value)| (key, json!(value)))
        .into_iter()
        .collect();
    if let Some(given) = &template.metadata {
        metadata["labels"] = json!(given.labels);
        for (key, value) in &given.annotations {
            metadata["annotations"][key] = json!(value);
        }
    }
    metadata["labels"][names::LABEL_JOB] = json!(name);
    metadata["labels"][names::LABEL_JOB_UID] = json!(job.metadata.uid);
    metadata["labels"][names::LABEL_ATTEMPT] = json!(rank.attempt.to_string());
    metadata["labels"][names::LABEL_RANK] = json!(rank.rank.to_string());
    if rank.crossing {
        metadata["labels"][names::LABEL_CROSSING] = json!("true");
    }
    if rank.finalizer {
        metadata["finalizers"] = json!([names::FINALIZER]);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec(job, &template.spec, class, settings, rank),
    })
}

fn spec(
    job: &JobView,
    body: &PodTemplateBody,
    class: &NodeClass,
    settings: &Settings,
    rank: Rank<'_>,
) -> Value {
    let mut spec = body.rest.clone();
    let default = |spec: &mut Map<String, Value>, name: &str, value: Value| {
        spec.entry(name).or_insert(value);
    };
    default(&mut spec, "enableServiceLinks", json!(false));
    default(&mut spec, "automountServiceAccountToken", json!(false));
    spec.insert("restartPolicy".to_owned(), json!("Never"));
    spec.insert("priorityClassName".to_owned(), json!(PRIORITY_CLASS));
    spec.insert(
        "terminationGracePeriodSeconds".to_owned(),
        json!(grace_seconds(job)),
    );
    spec.insert("affinity".to_owned(), pinned_to(rank.node));

    let mut tolerations = array(&body.rest, "tolerations").to_vec();
    tolerations.extend(
        settings
            .taints
            .dedicated
            .iter()
            .map(|key| json!({"key": key, "operator": "Exists", "effect": "NoSchedule"})),
    );
    // Who gets no job is the planner's to say. One that had got its node just before goes on.
    tolerations.push(
        json!({"key": names::TAINT_QUARANTINE, "operator": "Exists", "effect": "NoSchedule"}),
    );
    // When a node is lost is the planner's to say: left to itself Kubernetes deletes pods of a node
    // whose Lease ran out after five minutes, also those that go on training.
    tolerations.extend(
        ["not-ready", "unreachable"]
            .map(|name| json!({"key": format!("node.kubernetes.io/{name}"), "operator": "Exists", "effect": "NoExecute"})),
    );
    spec.insert("tolerations".to_owned(), Value::Array(tolerations));

    let mut secrets = array(&body.rest, "imagePullSecrets").to_vec();
    let ours = settings.pull_secrets.iter();
    let missing = ours.filter(|name| !secrets.iter().any(|given| given["name"] == **name));
    let missing: Vec<Value> = missing.map(|name| json!({"name": name})).collect();
    secrets.extend(missing);
    if !secrets.is_empty() {
        spec.insert("imagePullSecrets".to_owned(), Value::Array(secrets));
    }

    let mut volumes = array(&body.rest, "volumes").to_vec();
    volumes.extend(volumes_of(job, class, rank));
    spec.insert("volumes".to_owned(), Value::Array(volumes));

    let mut init = vec![sidecar(job, class, settings, rank)];
    init.extend_from_slice(array(&body.rest, "initContainers"));
    spec.insert("initContainers".to_owned(), Value::Array(init));

    let containers = body.containers.iter().map(|container| {
        if container.name == names::CONTAINER_TRAINER {
            trainer(container, job, class, rank)
        } else {
            plain(container)
        }
    });
    spec.insert("containers".to_owned(), containers.collect());
    Value::Object(spec)
}

pub(crate) fn pinned_to(node: &str) -> Value {
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
}

fn array<'a>(fields: &'a Map<String, Value>, name: &str) -> &'a [Value] {
    fields
        .get(name)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

#[cfg(test)]
#[path = "pod_tests.rs"]
mod tests;
