//! Objects as the API server hands them out, damaged in a few places: what tenants, kubelets and
//! older releases have written into them. Nothing panics, and what is taken means what it says.
//! `cargo xtask fuzz objects --minutes M` goes on for longer.

use crds::fabric::{Fabric, NodeClass};
use crds::template::PodTemplate;
use crds::{NodeValidation, names};
use operator::labels::LabelPool;
use operator::proof::Masters;
use operator::training_job::job_view::JobView;
use operator::training_job::observe;
use operator::training_job::pod::{self, Rank, Settings};
use operator::training_job::translate::{self, MirroredPod, TaintRules};
use operator::views::{AttemptView, ClaimView, NodeView, PodView};
use operator::workload::Workload;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sim::{Rng, damage, explore};

const UID: &str = "00000000-0000-0000-0000-000000000001";

fn owned(kind: &str) -> Value {
    json!([{"apiVersion": "fireflyer.dev/v1alpha1", "kind": kind, "name": "digits", "uid": UID, "controller": true}])
}

fn the_pod() -> Value {
    let labels = json!({
        "fireflyer.dev/job": "digits", "fireflyer.dev/job-uid": UID, "fireflyer.dev/attempt": "1", "fireflyer.dev/rank": "0",
    });
    json!({
        "metadata": {
            "name": "digits-1-0", "namespace": "team", "uid": "p-1", "labels": labels,
            "creationTimestamp": "2026-11-01T10:00:00Z", "deletionTimestamp": "2026-11-01T11:00:00Z",
            "deletionGracePeriodSeconds": 70, "finalizers": ["fireflyer.dev/release-nodes"],
            "ownerReferences": owned("TrainingJob"),
        },
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "trainer", "resources": {"limits": {"fireflyer.dev/node": "1"}}}],
        },
        "status": {
            "phase": "Failed", "podIP": "10.0.0.7",
            "containerStatuses": [
                {"name": "trainer", "state": {"terminated": {
                    "exitCode": 1, "reason": "Error", "finishedAt": "2026-11-01T10:59:00Z",
                    "message": r#"{"version":1,"outcome":"Failed","rank":3}"#,
                }}},
                {"name": "hfreduce", "state": {"waiting": {"reason": "ImagePullBackOff"}}},
            ],
        },
    })
}

fn the_node() -> Value {
    json!({
        "metadata": {
            "name": "node-1", "creationTimestamp": "2026-11-01T10:00:00Z",
            "labels": {"fireflyer.dev/node-class": "a100", "topology.fireflyer.dev/zone": "a"},
        },
        "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule", "value": "x"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"nvidia.com/gpu": "8", "fireflyer.dev/rdma": "1k", "cpu": "127500m", "memory": "1.5Ti"},
            "nodeInfo": {"bootID": "b-1"},
        },
    })
}

fn the_attempt() -> Value {
    json!({
        "metadata": {
            "name": "digits-1", "namespace": "team", "uid": "c-1",
            "labels": {"fireflyer.dev/job": "digits", "fireflyer.dev/attempt": "1"},
            "annotations": {"fireflyer.dev/proof": "ab"}, "ownerReferences": owned("TrainingJob"),
        },
        "binaryData": {"assignment.json.gz": "H4sIAAAAAAAAAw=="},
    })
}

fn the_job() -> Value {
    json!({
        "apiVersion": "fireflyer.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": "digits", "namespace": "team", "uid": UID, "creationTimestamp": "2026-11-01T10:00:00Z"},
        "spec": {
            "nodes": 2, "procsPerNode": 2, "ttlSecondsAfterFinished": 60,
            "interruption": {"ackSeconds": 5, "saveSeconds": 60},
            "checkpoint": {"claimName": "shared", "intervalSeconds": 60, "keepLast": 2},
            "template": {"spec": {
                "volumes": [{"name": "data", "emptyDir": {}}],
                "containers": [{
                    "name": "trainer", "image": "trainer:1", "command": ["python3", "train.py"],
                    "env": [{"name": "SEED", "value": "7"}],
                    "resources": {"limits": {"memory": "8Gi"}, "requests": {"cpu": "1500m"}},
                }],
            }},
        },
        // As the release before this one wrote it, and as a newer one may.
        "status": {
            "phase": "Running", "attempt": 2, "procsPerNode": 2, "nodeClass": "a100", "startTime": "2026-11-01T10:00:00Z",
            "checkpoint": {"attempt": 1, "step": 120, "digest": "ab".repeat(32)},
            "conditions": [{
                "type": "Assigned", "status": "True", "reason": "Assigned", "message": "on two nodes",
                "lastTransitionTime": "2026-11-01T10:00:00Z",
            }],
            "ofALaterRelease": {"a": [1, null, "x"]},
        },
    })
}

fn the_validation() -> Value {
    json!({
        "apiVersion": "fireflyer.dev/v1alpha1", "kind": "NodeValidation",
        "metadata": {"name": "node-1", "uid": UID, "creationTimestamp": "2026-11-01T10:00:00Z"},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Finished", "verdict": "Pass", "completionTime": "2026-11-01T10:09:00Z"},
    })
}

fn the_fabric() -> Value {
    json!({
        "apiVersion": "fireflyer.dev/v1alpha1", "kind": "Fabric", "metadata": {"name": "default"},
        "spec": {"maxCrossZoneJobs": 1, "classes": [{
            "name": "a100", "gpus": 8, "rdma": 1,
            "trainer": {"cpu": "48", "memory": "400Gi"}, "sidecar": {"cpu": "8", "memory": "64Gi"}, "sharedMemory": "1.5Gi",
        }]},
    })
}

/// The object, damaged; none where it is none of its type any more.
fn damaged<T: DeserializeOwned>(rng: &mut Rng, of: &Value) -> Option<T> {
    let mut text = of.to_string().into_bytes();
    assert!(serde_json::from_slice::<T>(&text).is_ok(), "{of}");
    let other = text.clone();
    for _ in 0..1 + rng.below(3) {
        damage::anyhow(rng, &mut text, &other);
    }
    serde_json::from_slice(&text).ok()
}

/// A job as a watch delivers it: as text.
fn read(of: &Value) -> serde_json::Result<JobView> {
    serde_json::from_str(&of.to_string())
}

fn rules() -> TaintRules {
    TaintRules {
        dedicated: vec!["nvidia.com/gpu".to_owned()],
        ..TaintRules::default()
    }
}

fn settings() -> Settings {
    Settings {
        sidecar_image: "sidecar:1".to_owned(),
        validator_image: "validator:1".to_owned(),
        rendezvous: "10.96.0.7:9443".to_owned(),
        sidecar_numa: "auto".to_owned(),
        sidecar_env: Vec::new(),
        sidecar_pull_policy: "IfNotPresent".to_owned(),
        pull_secrets: Vec::new(),
        taints: rules(),
    }
}

/// Serves a job: builds a pod of it, and looks at it.
fn serve(job: JobView, template: &PodTemplate, class: &NodeClass) {
    let key_name = "key";
    let rank = Rank {
        attempt: 2,
        key_name,
        rank: 1,
        node: "node-1",
        finalizer: true,
        crossing: false,
        resume: None,
    };
    if pod::template_problem(&template.spec).is_none() {
        let built = pod::build(&job, template, class, &settings(), rank);
        // It takes one whole node, and says whose it is.
        assert!(built.to_string().contains("fireflyer.dev/node"));
        assert_eq!(built["metadata"]["labels"]["fireflyer.dev/rank"], "1");
    }
    look(Workload::from(job));
}

fn look(workload: Workload) {
    let (key, nodes, status) = (workload.key(), workload.nodes(), workload.status());
    workload.ttl();
    workload.is_observed();
    let slim = workload.slim();
    assert_eq!(
        (slim.key(), slim.nodes(), slim.status()),
        (key, nodes, status)
    );
}

#[test]
fn objects() {
    let masters = Masters::new([7; 32], None);
    let classes: Fabric = serde_json::from_value(the_fabric()).unwrap();
    let class = &classes.spec.classes[0];
    let pool = LabelPool::default();
    let template = |of: &Value| PodTemplate::deserialize(&of["spec"]["template"]);
    let whole = template(&the_job()).unwrap();
    explore(2_000, &[16866678501019746965], |rng| {
        if let Some(view) = damaged::<PodView>(rng, &the_pod()) {
            let name = view.metadata.name.clone();
            if let Some(MirroredPod { pod, .. }) = translate::pod(view) {
                // Its name says its place.
                let place = names::pod_name(&pod.job.name, pod.attempt, pod.rank);
                assert_eq!(name, Some(place));
            }
        }
        if let Some(view) = damaged::<NodeView>(rng, &the_node()) {
            translate::node(view, &rules(), &pool);
        }
        if let Some(view) = damaged::<AttemptView>(rng, &the_attempt())
            && let Some(attempt) = translate::attempt(&view, &masters)
        {
            // None of these was signed.
            assert!(attempt.attempt.nodes.is_empty());
        }
        let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteMany"]}});
        if let Some(view) = damaged::<ClaimView>(rng, &claim) {
            translate::claim(&view);
        }
        if let Some(of) = damaged::<Value>(rng, &the_job())
            && let Ok(job) = read(&of)
        {
            serve(job, template(&of).as_ref().unwrap_or(&whole), class);
        }
        if let Some(validation) = damaged::<NodeValidation>(rng, &the_validation()) {
            look(Workload::from(validation));
        }
        if let Some(fabric) = damaged::<Fabric>(rng, &the_fabric()) {
            observe::policy(&fabric.spec);
            let job = read(&the_job()).unwrap();
            if let Some(class) = observe::class_of(&job, &fabric.spec) {
                serve(job.clone(), &whole, class);
            }
        }
    });
}
