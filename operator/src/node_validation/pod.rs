//! Builds the pod that validates a node. Pure: the same arguments, the same pod.

use contract::validation::PORT;
use crds::{NodeValidation, names};
use scheduler::{JobKey, JobKind};
use serde_json::{Value, json};

use super::GRACE_SECONDS;
use super::partner::Role;
use crate::training_job::pod::{PRIORITY_CLASS, Settings, pinned_to};
use crate::workload::owner_reference;

/// Where the attempt's ConfigMap is mounted.
const ATTEMPT_PATH: &str = "/etc/fireflyer/attempt";
/// Where checks of the disk write.
const SCRATCH_PATH: &str = "/scratch";
/// Where the claim of the run is mounted.
const CLAIM_PATH: &str = "/claim";
/// The validator image's user: it needs no right that root has.
const USER: u32 = 65_532;
/// Beyond the deadline of its checks: pulling the image, writing the report.
const MARGIN_SECONDS: u32 = 120;

/// The whole pod, as it is sent to the API server. It asks for nothing but the node itself, so that
/// one that has lost devices admits it, and tolerates whatever keeps others away.
pub fn build(
    key: &JobKey,
    validation: &NodeValidation,
    settings: &Settings,
    attempt: u32,
    node: &str,
    role: Option<&Role>,
) -> Value {
    let name = &*key.name;
    let deadline = validation.spec.deadline_seconds + MARGIN_SECONDS;
    let mut spec = json!({
        "restartPolicy": "Never",
        "enableServiceLinks": false,
        "automountServiceAccountToken": false,
        "priorityClassName": PRIORITY_CLASS,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "activeDeadlineSeconds": deadline,
        "affinity": pinned_to(node),
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{
            "name": names::CONTAINER_VALIDATOR,
            "image": settings.validator_image,
            "imagePullPolicy": settings.sidecar_pull_policy,
            "resources": {"limits": {names::RESOURCE_NODE: "1"}},
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": true,
            },
            "volumeMounts": [
                {"name": "attempt", "mountPath": ATTEMPT_PATH, "readOnly": true},
                {"name": "scratch", "mountPath": SCRATCH_PATH},
            ],
        }],
        "volumes": [
            {"name": "attempt", "configMap": {"name": names::attempt_name(name, attempt)}},
            {"name": "scratch", "emptyDir": {}},
        ],
    });
    let container = &mut spec["containers"][0];
    let mut args: Vec<String> = Vec::new();
    match role {
        Some(Role::Listen) => {
            let ip = json!({"fieldRef": {"fieldPath": "status.podIP"}});
            container["env"] = json!([{"name": "POD_IP", "valueFrom": ip}]);
            container["ports"] = json!([{"name": "network", "containerPort": PORT}]);
            args.extend(["--listen", "$(POD_IP)"].map(str::to_owned));
        }
        Some(Role::Dial { ip, run }) => {
            args.extend(["--partner", &ip.to_string(), "--partner-run", run].map(str::to_owned));
        }
        None => {}
    }
    if let Some(claim) = &validation.spec.claim_name {
        args.extend(["--claim", CLAIM_PATH].map(str::to_owned));
        push(
            &mut container["volumeMounts"],
            json!({"name": "claim", "mountPath": CLAIM_PATH}),
        );
        let volume = json!({"name": "claim", "persistentVolumeClaim": {"claimName": claim}});
        push(&mut spec["volumes"], volume);
    }
    if !args.is_empty() {
        spec["containers"][0]["args"] = json!(args);
    }
    if !settings.pull_secrets.is_empty() {
        let secrets = settings
            .pull_secrets
            .iter()
            .map(|name| json!({"name": name}));
        spec["imagePullSecrets"] = secrets.collect();
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": names::pod_name(name, attempt, 0),
            "namespace": &*key.namespace,
            "labels": {
                names::LABEL_JOB: name,
                names::LABEL_JOB_UID: &*key.uid,
                names::LABEL_ATTEMPT: attempt.to_string(),
                names::LABEL_RANK: "0",
            },
            "finalizers": [names::FINALIZER],
            "ownerReferences": [owner_reference(JobKind::NodeValidation.as_str(), &validation.metadata)],
        },
        "spec": spec,
    })
}

fn push(list: &mut Value, one: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(one);
    }
}
