//! Builds the pod of one node rank from the job's template: what the operator adds, and what of the
//! template it refuses because it would break the gang. Pure: the same arguments, the same pod.

use crds::fabric::{NodeClass, Share};
use crds::names;
use crds::template::{PodTemplateBody, TemplateContainer};
use crds::training_job::{Backend, TrainingJob};
use serde_json::{Map, Value, json};
use wire::run_dir::CheckpointRef;

/// Where the checkpoint's claim is mounted in the trainer.
const CHECKPOINT_PATH: &str = "/checkpoint";
const ATTEMPT_PATH: &str = "/etc/fireflyer/attempt";
const KEY_PATH: &str = "/etc/fireflyer/key";
const SHARED_MEMORY_PATH: &str = "/dev/shm";
const VOLUME_RUN: &str = "fireflyer-run";
const VOLUME_ATTEMPT: &str = "fireflyer-attempt";
const VOLUME_KEY: &str = "fireflyer-key";
const VOLUME_SHARED_MEMORY: &str = "fireflyer-shm";
const VOLUME_CHECKPOINT: &str = "fireflyer-checkpoint";
/// From the chart; it does not preempt, so a job never pushes out another by priority.
const PRIORITY_CLASS: &str = "fireflyer-training";
const SIDECAR: &str = "/usr/bin/hfreduce-sidecar";
/// The sidecar image's user: it needs no right that root has.
const SIDECAR_USER: u32 = 65_532;
/// The startup probe gives a gang ten minutes to join before the kubelet restarts a sidecar.
const JOIN_PROBES: u32 = 600;
/// On top of acknowledging and saving: signals, the sidecar's farewell, the report.
const GRACE_MARGIN_SECONDS: u32 = 10;

/// What all pods of the cluster have in common; from the operator's flags.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Image of the sidecar.
    pub sidecar_image: String,
    /// `host:port` that sidecars dial.
    pub rendezvous: String,
    /// Taints by which nodes are dedicated to us; pods tolerate them.
    pub dedicated_taints: Vec<String>,
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
    /// The checkpoint to resume from, when that is pinned.
    pub resume: Option<&'a CheckpointRef>,
}

/// How long a pod may take to save and leave.
pub fn grace_seconds(job: &TrainingJob) -> u32 {
    let interruption = job.spec.interruption;
    interruption.ack_seconds + interruption.save_seconds + GRACE_MARGIN_SECONDS
}

/// Processes of each node.
pub fn procs_per_node(job: &TrainingJob, class: &NodeClass) -> u32 {
    job.spec.procs_per_node.unwrap_or_else(|| class.gpus.max(1))
}

/// Folder of the job's checkpoints inside its claim.
pub fn checkpoint_folder(job: &TrainingJob) -> Option<&str> {
    let checkpoint = job.spec.checkpoint.as_ref()?;
    checkpoint.path.as_deref().or(job.metadata.name.as_deref())
}

/// Why the template cannot be used, in one sentence that says what to change.
pub fn template_problem(body: &PodTemplateBody) -> Option<String> {
    let ours = [wire::run_dir::PATH, ATTEMPT_PATH, KEY_PATH, CHECKPOINT_PATH];
    for container in body.containers.iter() {
        let mounts = array(&container.rest, "volumeMounts");
        let paths = mounts
            .iter()
            .filter_map(|mount| mount["mountPath"].as_str());
        if let Some(path) = paths
            .into_iter()
            .find(|path| ours.contains(&path.trim_end_matches('/')))
        {
            return Some(format!(
                "container {} mounts a volume at {path}, which belongs to the operator: use another path",
                container.name
            ));
        }
        let variables = array(&container.rest, "env");
        let names = variables
            .iter()
            .filter_map(|variable| variable["name"].as_str());
        if let Some(name) = names.into_iter().find(|name| RESERVED.contains(name)) {
            return Some(format!(
                "container {} sets {name}, which belongs to the operator: leave it out",
                container.name
            ));
        }
    }
    None
}

const RESERVED: [&str; 12] = [
    "FIREFLYER_JOB",
    "FIREFLYER_NAMESPACE",
    "FIREFLYER_ATTEMPT",
    "FIREFLYER_NODE_RANK",
    "FIREFLYER_NODES",
    "FIREFLYER_PROCS_PER_NODE",
    "FIREFLYER_BACKEND",
    "FIREFLYER_CHECKPOINT_DIR",
    "FIREFLYER_CHECKPOINT_INTERVAL_SECONDS",
    "FIREFLYER_CHECKPOINT_KEEP_LAST",
    "FIREFLYER_RESUME",
    "FIREFLYER_RUN_DIR",
];

/// The whole pod, as it is sent to the API server.
pub fn build(job: &TrainingJob, class: &NodeClass, settings: &Settings, rank: Rank<'_>) -> Value {
    let name = job.metadata.name.as_deref().unwrap_or_default();
    let template = &job.spec.template;
    let mut metadata = json!({
        "name": names::pod_name(name, rank.attempt, rank.rank),
        "namespace": job.metadata.namespace,
        "labels": {},
        "ownerReferences": [owner_reference(job)],
    });
    if let Some(given) = &template.metadata {
        metadata["labels"] = json!(given.labels);
        if !given.annotations.is_empty() {
            metadata["annotations"] = json!(given.annotations);
        }
    }
    metadata["labels"][names::LABEL_JOB] = json!(name);
    metadata["labels"][names::LABEL_ATTEMPT] = json!(rank.attempt.to_string());
    metadata["labels"][names::LABEL_RANK] = json!(rank.rank.to_string());
    if rank.rank == 0 {
        // Rank 0 acknowledges for the gang: its pod stays until that is recorded.
        metadata["finalizers"] = json!([names::FINALIZER]);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec(job, class, settings, rank),
    })
}

/// Makes the garbage collector remove an object with its job.
pub fn owner_reference(job: &TrainingJob) -> Value {
    json!({
        "apiVersion": format!("{}/v1alpha1", names::GROUP),
        "kind": "TrainingJob",
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

fn spec(job: &TrainingJob, class: &NodeClass, settings: &Settings, rank: Rank<'_>) -> Value {
    let body = &job.spec.template.spec;
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
            .dedicated_taints
            .iter()
            .map(|key| json!({"key": key, "operator": "Exists", "effect": "NoSchedule"})),
    );
    if !tolerations.is_empty() {
        spec.insert("tolerations".to_owned(), Value::Array(tolerations));
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

fn pinned_to(node: &str) -> Value {
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
}

fn volumes_of(job: &TrainingJob, class: &NodeClass, rank: Rank<'_>) -> Vec<Value> {
    let job_name = job.metadata.name.as_deref().unwrap_or_default();
    let attempt_name = names::attempt_name(job_name, rank.attempt);
    let mut shared_memory = json!({"medium": "Memory"});
    if let Some(size) = class
        .shared_memory
        .clone()
        .or_else(|| half(&class.trainer.memory))
    {
        shared_memory["sizeLimit"] = json!(size);
    }
    let mut volumes = vec![
        json!({"name": VOLUME_RUN, "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}),
        json!({"name": VOLUME_ATTEMPT, "configMap": {"name": attempt_name}}),
        json!({"name": VOLUME_KEY, "secret": {"secretName": rank.key_name}}),
        json!({"name": VOLUME_SHARED_MEMORY, "emptyDir": shared_memory}),
    ];
    if let Some(checkpoint) = &job.spec.checkpoint {
        let claim = json!({"claimName": checkpoint.claim_name});
        volumes.push(json!({"name": VOLUME_CHECKPOINT, "persistentVolumeClaim": claim}));
    }
    volumes
}

fn sidecar(job: &TrainingJob, class: &NodeClass, settings: &Settings, rank: Rank<'_>) -> Value {
    let Share { cpu, memory } = &class.sidecar;
    let mut resources = json!({"requests": {"cpu": cpu, "memory": memory}});
    if class.rdma > 0 {
        resources["limits"] = json!({names::RESOURCE_RDMA: class.rdma.to_string()});
    }
    let mut env = vec![
        json!({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}),
        json!({"name": "FIREFLYER_RENDEZVOUS", "value": settings.rendezvous}),
    ];
    env.extend(place(job, class, rank));
    json!({
        "name": names::CONTAINER_HFREDUCE,
        "image": settings.sidecar_image,
        "imagePullPolicy": "IfNotPresent",
        "restartPolicy": "Always",
        "env": env,
        "ports": [{"name": "hfr-metrics", "containerPort": 9402}],
        "resources": resources,
        "startupProbe": {
            "exec": {"command": [SIDECAR, "ready"]},
            "periodSeconds": 1,
            "failureThreshold": JOIN_PROBES,
        },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "runAsUser": SIDECAR_USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": VOLUME_RUN, "mountPath": wire::run_dir::PATH},
            {"name": VOLUME_ATTEMPT, "mountPath": ATTEMPT_PATH, "readOnly": true},
            {"name": VOLUME_KEY, "mountPath": KEY_PATH, "readOnly": true},
        ],
    })
}

fn trainer(
    container: &TemplateContainer,
    job: &TrainingJob,
    class: &NodeClass,
    rank: Rank<'_>,
) -> Value {
    let mut trainer = plain(container);
    let launcher = format!("{}/{}", wire::run_dir::PATH, wire::run_dir::LAUNCHER);
    let mut command = vec![launcher, "--".to_owned()];
    command.extend(container.command.clone().unwrap_or_default());
    trainer["command"] = json!(command);

    let mut env = array(&container.rest, "env").to_vec();
    env.extend(place(job, class, rank));
    env.extend(training(job, rank));
    trainer["env"] = Value::Array(env);

    let mut mounts = array(&container.rest, "volumeMounts").to_vec();
    let own_shared_memory = mounts
        .iter()
        .any(|mount| mount["mountPath"] == SHARED_MEMORY_PATH);
    mounts.push(json!({"name": VOLUME_RUN, "mountPath": wire::run_dir::PATH}));
    mounts.push(json!({"name": VOLUME_ATTEMPT, "mountPath": ATTEMPT_PATH, "readOnly": true}));
    if !own_shared_memory {
        mounts.push(json!({"name": VOLUME_SHARED_MEMORY, "mountPath": SHARED_MEMORY_PATH}));
    }
    if job.spec.checkpoint.is_some() {
        mounts.push(json!({"name": VOLUME_CHECKPOINT, "mountPath": CHECKPOINT_PATH}));
    }
    trainer["volumeMounts"] = Value::Array(mounts);

    trainer["resources"] = resources(&container.rest, class);
    trainer
}

/// The template's resources with what makes the node ours, and the class's share where the
/// template asks for nothing itself.
fn resources(given: &Map<String, Value>, class: &NodeClass) -> Value {
    let mut resources = given.get("resources").cloned().unwrap_or_else(|| json!({}));
    resources["limits"][names::RESOURCE_NODE] = json!("1");
    if class.gpus > 0 {
        resources["limits"][names::RESOURCE_GPU] = json!(class.gpus.to_string());
    }
    for (name, share) in [
        ("cpu", &class.trainer.cpu),
        ("memory", &class.trainer.memory),
    ] {
        // A limit alone is a request as well.
        if resources["limits"][name].is_null() && resources["requests"][name].is_null() {
            resources["requests"][name] = json!(share);
        }
    }
    prune(&mut resources);
    resources
}

/// Looking at an absent entry through an index leaves a null behind.
fn prune(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|_, field| !field.is_null());
        fields.values_mut().for_each(prune);
    }
}

fn place(job: &TrainingJob, class: &NodeClass, rank: Rank<'_>) -> Vec<Value> {
    vec![
        variable(
            "FIREFLYER_JOB",
            job.metadata.name.as_deref().unwrap_or_default(),
        ),
        variable(
            "FIREFLYER_NAMESPACE",
            job.metadata.namespace.as_deref().unwrap_or_default(),
        ),
        variable("FIREFLYER_ATTEMPT", &rank.attempt.to_string()),
        variable("FIREFLYER_NODE_RANK", &rank.rank.to_string()),
        variable("FIREFLYER_NODES", &job.spec.nodes.to_string()),
        variable(
            "FIREFLYER_PROCS_PER_NODE",
            &procs_per_node(job, class).to_string(),
        ),
    ]
}

fn training(job: &TrainingJob, rank: Rank<'_>) -> Vec<Value> {
    let backend = match job.spec.communication.backend {
        Backend::HFReduce => "HFReduce",
        Backend::None => "None",
    };
    let mut env = vec![variable("FIREFLYER_BACKEND", backend)];
    if let (Some(checkpoint), Some(folder)) = (&job.spec.checkpoint, checkpoint_folder(job)) {
        let interval = checkpoint.interval_seconds.to_string();
        let keep_last = checkpoint.keep_last.to_string();
        env.push(variable(
            "FIREFLYER_CHECKPOINT_DIR",
            &format!("{CHECKPOINT_PATH}/{folder}"),
        ));
        env.push(variable("FIREFLYER_CHECKPOINT_INTERVAL_SECONDS", &interval));
        env.push(variable("FIREFLYER_CHECKPOINT_KEEP_LAST", &keep_last));
    }
    if let Some(resume) = rank.resume {
        let name = format!("attempt-{}/step-{}", resume.attempt, resume.step);
        env.push(variable("FIREFLYER_RESUME", &name));
    }
    env
}

fn variable(name: &str, value: &str) -> Value {
    json!({"name": name, "value": value})
}

/// Half of a memory quantity, in bytes; none for forms that people do not use for memory.
fn half(quantity: &str) -> Option<String> {
    const UNITS: [(&str, u64); 9] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("", 1),
    ];
    let (number, unit) = UNITS
        .iter()
        .find_map(|&(suffix, unit)| Some((quantity.strip_suffix(suffix)?, unit)))?;
    let bytes = number.parse::<u64>().ok()?.checked_mul(unit)?;
    Some((bytes / 2).to_string())
}

fn plain(container: &TemplateContainer) -> Value {
    let mut fields = container.rest.clone();
    fields.insert("name".to_owned(), json!(container.name));
    if let Some(command) = &container.command {
        fields.insert("command".to_owned(), json!(command));
    }
    Value::Object(fields)
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
