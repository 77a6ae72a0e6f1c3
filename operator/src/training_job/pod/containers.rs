//! The containers: our sidecar, the trainer with our launcher as its first process, the user's
//! others.

use crds::fabric::{NodeClass, Share};
use crds::names;
use crds::template::TemplateContainer;
use crds::training_job::{Backend, Numerics, Nvlink};
use serde_json::{Map, Value, json};

use super::{
    ATTEMPT_PATH, CHECKPOINT_PATH, KEY_PATH, Rank, Settings, VOLUME_ATTEMPT, VOLUME_CHECKPOINT,
    VOLUME_KEY, VOLUME_RUN, VOLUME_SHARED_MEMORY, array, checkpoint_folder, procs_per_node,
};

use crate::training_job::job_view::JobView;

const SHARED_MEMORY_PATH: &str = "/dev/shm";
const SIDECAR: &str = "/usr/bin/hfreduce-sidecar";
/// The sidecar image's user: it needs no right that root has.
const SIDECAR_USER: u32 = 65_532;
/// How many threads compute in a sidecar.
const WORKERS: &str = "FIREFLYER_HFREDUCE_WORKERS";
/// The startup probe gives a gang ten minutes to join before the kubelet restarts a sidecar.
const JOIN_PROBES: u32 = 600;

pub(super) fn sidecar(
    job: &JobView,
    class: &NodeClass,
    settings: &Settings,
    rank: Rank<'_>,
) -> Value {
    let Share { cpu, memory } = &class.sidecar;
    let mut resources = json!({"requests": {"cpu": cpu, "memory": memory}});
    if class.rdma > 0 {
        resources["limits"] = json!({names::RESOURCE_RDMA: class.rdma.to_string()});
    }
    let mut env = vec![
        json!({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}),
        variable("FIREFLYER_RENDEZVOUS", &settings.rendezvous),
        variable("FIREFLYER_HFREDUCE_NUMA", &settings.sidecar_numa),
    ];
    env.extend(place(job, class, rank));
    let flags = settings.sidecar_env.iter();
    if !flags.clone().any(|(name, _)| name == WORKERS) {
        // Nothing limits its processors: it takes as many as it requests.
        let requested = json!({"resourceFieldRef": {"resource": "requests.cpu"}});
        env.push(json!({"name": WORKERS, "valueFrom": requested}));
    }
    env.extend(flags.map(|(name, value)| variable(name, value)));
    json!({
        "name": names::CONTAINER_HFREDUCE,
        "image": settings.sidecar_image,
        "imagePullPolicy": settings.sidecar_pull_policy,
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
            {"name": VOLUME_RUN, "mountPath": contract::run_dir::PATH},
            {"name": VOLUME_ATTEMPT, "mountPath": ATTEMPT_PATH, "readOnly": true},
            {"name": VOLUME_KEY, "mountPath": KEY_PATH, "readOnly": true},
        ],
    })
}

pub(super) fn trainer(
    container: &TemplateContainer,
    job: &JobView,
    class: &NodeClass,
    rank: Rank<'_>,
) -> Value {
    let mut trainer = plain(container);
    let launcher = format!(
        "{}/{}",
        contract::run_dir::PATH,
        contract::run_dir::LAUNCHER
    );
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
    mounts.push(json!({"name": VOLUME_RUN, "mountPath": contract::run_dir::PATH}));
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
    let mut resources = object(given, "resources");
    let mut limits = object(&resources, "limits");
    let mut requests = object(&resources, "requests");
    limits.insert(names::RESOURCE_NODE.to_owned(), json!("1"));
    if class.gpus > 0 {
        limits.insert(
            names::RESOURCE_GPU.to_owned(),
            json!(class.gpus.to_string()),
        );
    }
    for (name, share) in [
        ("cpu", &class.trainer.cpu),
        ("memory", &class.trainer.memory),
    ] {
        // A limit alone is a request as well.
        if !limits.contains_key(name) && !requests.contains_key(name) {
            requests.insert(name.to_owned(), json!(share));
        }
    }
    resources.insert("limits".to_owned(), Value::Object(limits));
    if !requests.is_empty() {
        resources.insert("requests".to_owned(), Value::Object(requests));
    }
    Value::Object(resources)
}

/// A field that is an object; empty when it is absent.
fn object(fields: &Map<String, Value>, name: &str) -> Map<String, Value> {
    let found = fields.get(name).and_then(Value::as_object);
    found.cloned().unwrap_or_default()
}

fn place(job: &JobView, class: &NodeClass, rank: Rank<'_>) -> Vec<Value> {
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

fn training(job: &JobView, rank: Rank<'_>) -> Vec<Value> {
    let backend = match job.spec.communication.backend {
        Backend::HFReduce => "HFReduce",
        Backend::None => "None",
    };
    let numerics = match job.spec.communication.numerics {
        Numerics::Fast => "Fast",
        Numerics::Precise => "Precise",
        Numerics::Bitwise => "Bitwise",
    };
    let nvlink = match job.spec.communication.nvlink {
        Nvlink::Never => "Never",
        Nvlink::Auto => "Auto",
    };
    let mut env = vec![
        variable("FIREFLYER_BACKEND", backend),
        variable("FIREFLYER_NUMERICS", numerics),
        variable("FIREFLYER_NVLINK", nvlink),
        variable(
            "FIREFLYER_EXIT_SECONDS",
            &job.spec.failure_policy.exit_seconds.to_string(),
        ),
    ];
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
    let name = |attempt: u32, step: u64| format!("attempt-{attempt}/step-{step}");
    if let Some(resume) = rank.resume {
        env.push(variable(
            "FIREFLYER_RESUME",
            &name(resume.attempt, resume.step),
        ));
    }
    // A folder without any is not the job's, or not yet.
    let status = job.status.as_ref();
    if let Some(last) = status.and_then(|status| status.last_checkpoint.as_ref()) {
        let name = name(last.attempt, last.step);
        env.push(variable("FIREFLYER_LAST_CHECKPOINT", &name));
    }
    env
}

fn variable(name: &str, value: &str) -> Value {
    json!({"name": name, "value": value})
}

pub(super) fn plain(container: &TemplateContainer) -> Value {
    let mut fields = container.rest.clone();
    fields.insert("name".to_owned(), json!(container.name));
    if let Some(command) = &container.command {
        fields.insert("command".to_owned(), json!(command));
    }
    Value::Object(fields)
}
