//! Tests of `pod`: one golden file shows everything that is added, the others vary one thing.

use std::path::Path;

use crds::fabric::Share;
use crds::training_job::{Nvlink, TemplateMetadata};

use super::volumes::half;
use super::*;

const JOB: &str = "
apiVersion: fireflyer.dev/v1alpha1
kind: TrainingJob
metadata: {name: digits, namespace: team, uid: u-1}
spec:
  nodes: 2
  procsPerNode: 2
  checkpoint: {claimName: shared, intervalSeconds: 60}
  template:
    metadata: {labels: {team: vision}}
    spec:
      tolerations: [{key: spot, operator: Exists}]
      volumes: [{name: data, emptyDir: {}}]
      initContainers: [{name: fetch, image: 'busybox:1'}]
      containers:
        - name: trainer
          image: trainer:1
          command: [python3, train.py]
          args: ['--epochs', '3']
          env: [{name: SEED, value: '7'}]
          resources: {limits: {memory: 8Gi}}
          volumeMounts: [{name: data, mountPath: /data}]
        - name: tensorboard
          image: tensorboard:1
";

/// A job with its template.
struct Whole {
    view: JobView,
    template: PodTemplate,
}

fn job(text: &str) -> Whole {
    let value: Value = serde_yaml::from_str(text).unwrap();
    Whole {
        template: serde_json::from_value(value["spec"]["template"].clone()).unwrap(),
        view: serde_json::from_value(value).unwrap(),
    }
}

fn class() -> NodeClass {
    NodeClass {
        name: "a100".to_owned(),
        default: false,
        gpus: 8,
        rdma: 1,
        trainer: Share {
            cpu: "48".to_owned(),
            memory: "400Gi".to_owned(),
        },
        sidecar: Share {
            cpu: "8".to_owned(),
            memory: "16Gi".to_owned(),
        },
        shared_memory: None,
        start_progress_deadline_seconds: 7200,
        floors: Vec::new(),
    }
}

fn settings() -> Settings {
    Settings {
        sidecar_image: "localhost/fireflyer/hfreduce-sidecar:0.1.0".to_owned(),
        validator_image: "localhost/fireflyer/validator:0.1.0".to_owned(),
        rendezvous: "10.96.0.7:9443".to_owned(),
        sidecar_numa: "auto".to_owned(),
        sidecar_env: Vec::new(),
        sidecar_pull_policy: "IfNotPresent".to_owned(),
        pull_secrets: Vec::new(),
        taints: TaintRules {
            dedicated: vec!["nvidia.com/gpu".to_owned()],
            ..TaintRules::default()
        },
    }
}

fn pod_of(job: &Whole, class: &NodeClass, settings: &Settings, rank: Rank<'_>) -> Value {
    build(&job.view, &job.template, class, settings, rank)
}

fn built(job: &Whole, class: &NodeClass) -> Value {
    let resume = CheckpointRef {
        attempt: 1,
        step: 120,
        digest: "ab".to_owned(),
    };
    let rank = Rank {
        attempt: 2,
        key_name: "digits-2-0123456789",
        rank: 0,
        node: "n7",
        finalizer: true,
        crossing: false,
        resume: Some(&resume),
    };
    pod_of(job, class, &settings(), rank)
}

/// Another pod, which resumes from nowhere in particular.
fn rank() -> Rank<'static> {
    Rank {
        attempt: 1,
        key_name: "digits-1-0123456789",
        rank: 1,
        node: "n8",
        finalizer: false,
        crossing: false,
        resume: None,
    }
}

fn trainer_of(pod: &Value) -> &Value {
    &pod["spec"]["containers"][0]
}

#[test]
fn the_pod_is_the_one_in_the_golden_file() {
    let pod = built(&job(JOB), &class());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pod.yaml");
    let rendered = serde_yaml::to_string(&pod).unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &rendered).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        rendered, golden,
        "run the test with UPDATE_GOLDEN=1 and review the difference"
    );
}

#[test]
fn a_trainer_learns_which_checkpoint_the_jobs_status_has() {
    let value = |job: &Whole| {
        let pod = pod_of(job, &class(), &settings(), rank());
        let env = trainer_of(&pod)["env"].as_array().unwrap().clone();
        let mut named = env.into_iter();
        let found = named.find(|one| one["name"] == "FIREFLYER_LAST_CHECKPOINT");
        found.map(|one| one["value"].clone())
    };
    let mut job = job(JOB);
    assert_eq!(value(&job), None);
    let status = "
        phase: Restarting
        lastCheckpoint: {attempt: 1, step: 120, digest: ab}";
    job.view.status = Some(serde_yaml::from_str(status).unwrap());
    assert_eq!(value(&job), Some(json!("attempt-1/step-120")));
}

#[test]
fn the_api_knows_every_field_of_the_pod() {
    let pod = built(&job(JOB), &class());
    let typed: k8s_openapi::api::core::v1::Pod = serde_json::from_value(pod.clone()).unwrap();
    assert_eq!(serde_json::to_value(typed).unwrap(), pod);
}

#[test]
fn a_pod_carries_the_finalizer_where_the_plan_says_so() {
    let pod = pod_of(&job(JOB), &class(), &settings(), rank());
    assert!(pod["metadata"]["finalizers"].is_null());
    assert_eq!(
        built(&job(JOB), &class())["metadata"]["finalizers"][0],
        names::FINALIZER
    );
}

#[test]
fn a_request_of_the_template_is_kept_and_a_missing_one_comes_from_the_class() {
    let mut job = job(JOB);
    let trainer = &mut job.template.spec.containers[0];
    trainer
        .rest
        .insert("resources".to_owned(), json!({"requests": {"cpu": "1"}}));
    let pod = built(
        &job,
        &NodeClass {
            gpus: 0,
            rdma: 0,
            ..class()
        },
    );
    let expected = json!({
        "limits": {"fireflyer.dev/node": "1"},
        "requests": {"cpu": "1", "memory": "400Gi"},
    });
    assert_eq!(trainer_of(&pod)["resources"], expected);
    assert!(pod["spec"]["initContainers"][0]["resources"]["limits"].is_null());
}

#[test]
fn a_template_with_its_own_shared_memory_keeps_it() {
    let mut job = job(JOB);
    let mount = json!([{"name": "data", "mountPath": "/dev/shm"}]);
    job.template.spec.containers[0]
        .rest
        .insert("volumeMounts".to_owned(), mount);
    let pod = built(&job, &class());
    let mounts = trainer_of(&pod)["volumeMounts"].as_array().unwrap();
    assert_eq!(
        mounts
            .iter()
            .filter(|mount| mount["mountPath"] == "/dev/shm")
            .count(),
        1
    );
}

#[test]
fn what_belongs_to_the_operator_is_refused_with_the_name() {
    let problem = |field: &str, value: Value| {
        let mut job = job(JOB);
        job.template.spec.containers[0]
            .rest
            .insert(field.to_owned(), value);
        template_problem(&job.template.spec)
    };
    let mounts = json!([{"name": "data", "mountPath": "/run/fireflyer/"}]);
    assert!(problem("volumeMounts", mounts).is_some_and(|text| text.contains("/run/fireflyer")));
    let variables = json!([{"name": "FIREFLYER_NODES", "value": "9"}]);
    assert!(problem("env", variables).is_some_and(|text| text.contains("FIREFLYER_NODES")));
    let variables = json!([{"name": "FIREFLYER_NVLINK", "value": "Auto"}]);
    let reason = problem("env", variables).unwrap();
    assert!(
        reason.ends_with("set spec.communication.nvlink instead"),
        "{reason}"
    );
    let path = json!("/tmp/last-word");
    let reason = problem("terminationMessagePath", path);
    assert!(reason.is_some_and(|text| text.contains("belongs to the launcher")));
    assert_eq!(template_problem(&job(JOB).template.spec), None);
}

// The API refuses such a template as well; its pods would take the node for no trainer.
#[test]
fn a_template_has_exactly_one_trainer() {
    for names in [["first", "second"], ["trainer", "trainer"]] {
        let mut job = job(JOB);
        for (container, name) in job.template.spec.containers.iter_mut().zip(names) {
            container.name = name.to_owned();
        }
        let reason = template_problem(&job.template.spec).unwrap();
        assert!(reason.contains("exactly one container"), "{reason}");
    }
}

// The API refuses such a template; one that was stored before it did must not end the operator.
#[test]
fn resources_of_another_shape_are_taken_for_none() {
    for odd in [
        json!([1]),
        json!("much"),
        json!({"limits": [], "requests": 3}),
    ] {
        let mut job = job(JOB);
        let rest = &mut job.template.spec.containers[0].rest;
        rest.insert("resources".to_owned(), odd);
        let pod = built(&job, &class());
        let resources = &trainer_of(&pod)["resources"];
        assert_eq!(resources["limits"]["fireflyer.dev/node"], "1");
        assert_eq!(resources["requests"]["cpu"], "48");
    }
}

// The key is for the sidecar alone.
#[test]
fn a_volume_of_the_operator_is_refused_wherever_a_template_mounts_it() {
    let problem = |vary: &dyn Fn(&mut Whole)| {
        let mut job = job(JOB);
        vary(&mut job);
        template_problem(&job.template.spec)
    };
    let mount = json!([{"name": "fireflyer-key", "mountPath": "/stolen"}]);
    let raw = json!([{"name": "fireflyer-checkpoint", "devicePath": "/dev/stolen"}]);
    for (index, container) in ["trainer", "tensorboard"].into_iter().enumerate() {
        let reason = problem(&|job| {
            let rest = &mut job.template.spec.containers[index].rest;
            rest.insert("volumeMounts".to_owned(), mount.clone());
        });
        let expected = format!(
            "container {container} mounts the volume fireflyer-key, which belongs to the operator: \
             remove that entry of volumeMounts"
        );
        assert_eq!(reason, Some(expected));
    }
    let reason = problem(&|job| {
        let rest = &mut job.template.spec.containers[1].rest;
        rest.insert("volumeDevices".to_owned(), raw.clone());
    });
    assert!(reason.is_some_and(|text| text.contains("volumeDevices")));
    let reason = problem(&|job| {
        let init = json!([{"name": "fetch", "volumeMounts": mount}]);
        let rest = &mut job.template.spec.rest;
        rest.insert("initContainers".to_owned(), init);
    });
    assert!(reason.is_some_and(|text| text.contains("container fetch mounts")));
}

#[test]
fn the_grace_covers_acknowledging_saving_and_leaving() {
    let mut job = job(JOB);
    job.view.spec.interruption.ack_seconds = 5;
    job.view.spec.interruption.save_seconds = 20;
    assert_eq!(grace_seconds(&job.view), 35);
    assert_eq!(
        built(&job, &class())["spec"]["terminationGracePeriodSeconds"],
        35
    );
}

fn value_of<'a>(container: &'a Value, variable: &str) -> &'a Value {
    let env = container["env"].as_array().unwrap();
    let mut all = env.iter().filter(|entry| entry["name"] == variable);
    let found = all.next().unwrap_or(&Value::Null);
    assert!(all.next().is_none(), "{variable} is set twice");
    &found["value"]
}

#[test]
fn ranks_use_nvlink_only_where_the_job_asks_for_it() {
    let mut job = job(JOB);
    let variable = |job: &Whole| {
        let pod = built(job, &class());
        value_of(trainer_of(&pod), "FIREFLYER_NVLINK").clone()
    };
    assert_eq!(variable(&job), "Never");
    job.view.spec.communication.nvlink = Nvlink::Auto;
    assert_eq!(variable(&job), "Auto");
}

#[test]
fn the_launcher_gives_survivors_what_the_job_says() {
    let mut job = job(JOB);
    let variable = |job: &Whole| {
        let pod = built(job, &class());
        value_of(trainer_of(&pod), "FIREFLYER_EXIT_SECONDS").clone()
    };
    assert_eq!(variable(&job), "1");
    job.view.spec.failure_policy.exit_seconds = 30;
    assert_eq!(variable(&job), "30");
}

#[test]
fn sidecars_get_their_adapter_and_their_flags() {
    let settings = Settings {
        sidecar_numa: "1".to_owned(),
        sidecar_env: vec![("FIREFLYER_HFREDUCE_TRANSPORT".to_owned(), "tcp".to_owned())],
        ..settings()
    };
    let pod = pod_of(&job(JOB), &class(), &settings, rank());
    let sidecar = &pod["spec"]["initContainers"][0];
    assert_eq!(value_of(sidecar, "FIREFLYER_HFREDUCE_NUMA"), "1");
    assert_eq!(value_of(sidecar, "FIREFLYER_HFREDUCE_TRANSPORT"), "tcp");
    let trainer = trainer_of(&pod);
    for name in ["FIREFLYER_HFREDUCE_NUMA", "FIREFLYER_HFREDUCE_TRANSPORT"] {
        assert!(value_of(trainer, name).is_null());
    }
}

#[test]
fn a_sidecar_computes_on_as_many_processors_as_it_requests_unless_a_flag_says_otherwise() {
    let env = |settings: &Settings| {
        let pod = pod_of(&job(JOB), &class(), settings, rank());
        let mut env = pod["spec"]["initContainers"][0]["env"].clone();
        let is_it = |one: &&mut Value| one["name"] == "FIREFLYER_HFREDUCE_WORKERS";
        let all: Vec<Value> = env
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .filter(is_it)
            .map(|one| one.take())
            .collect();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].clone()
    };
    let requested = &env(&settings())["valueFrom"]["resourceFieldRef"];
    assert_eq!(requested["resource"], "requests.cpu");
    let two = ("FIREFLYER_HFREDUCE_WORKERS".to_owned(), "2".to_owned());
    let flagged = Settings {
        sidecar_env: vec![two],
        ..settings()
    };
    assert_eq!(env(&flagged)["value"], "2");
}

#[test]
fn half_of_every_quantity_is_exact() {
    for (whole, expected) in [
        ("400Gi", "214748364800"),
        ("1001", "500"),
        ("1.5Gi", "805306368"),
        ("0.5Ti", "274877906944"),
        ("2e9", "1000000000"),
        ("1.5E3", "750"),
        ("4E", "2000000000000000000"),
        ("3000000m", "1500"),
        (".5Ki", "256"),
        ("1Pi", "562949953421312"),
        ("9e99", "9223372036854775807"),
    ] {
        assert_eq!(half(whole).as_deref(), Some(expected), "{whole}");
    }
    for word in ["a lot", "", "Gi", "1.2.3", "1gi"] {
        assert_eq!(half(word), None, "{word}");
    }
}

#[test]
fn pods_get_our_pull_secrets_beside_those_of_their_template() {
    let mut job = job(JOB);
    let settings = Settings {
        sidecar_pull_policy: "Always".to_owned(),
        pull_secrets: vec!["registry".to_owned(), "theirs".to_owned()],
        ..settings()
    };
    let given = serde_json::json!([{"name": "theirs"}]);
    let rest = &mut job.template.spec.rest;
    rest.insert("imagePullSecrets".to_owned(), given);
    let pod = pod_of(&job, &class(), &settings, rank());
    let named = serde_json::json!([{"name": "theirs"}, {"name": "registry"}]);
    assert_eq!(pod["spec"]["imagePullSecrets"], named);
    assert_eq!(
        pod["spec"]["initContainers"][0]["imagePullPolicy"],
        "Always"
    );
}

#[test]
fn a_pod_of_a_gang_that_crosses_zones_says_so_and_no_other_does() {
    let label = |crossing| {
        let rank = Rank { crossing, ..rank() };
        let pod = pod_of(&job(JOB), &class(), &settings(), rank);
        pod["metadata"]["labels"]["fireflyer.dev/crossing"].clone()
    };
    assert_eq!((label(true), label(false)), (json!("true"), Value::Null));
}

#[test]
fn pods_ask_autoscalers_to_leave_their_node_unless_the_template_says_otherwise() {
    let annotations = |job: &Whole| built(job, &class())["metadata"]["annotations"].clone();
    let (karpenter, autoscaler) = (
        "karpenter.sh/do-not-disrupt",
        "cluster-autoscaler.kubernetes.io/safe-to-evict",
    );
    let plain = annotations(&job(JOB));
    assert_eq!(
        (&plain[karpenter], &plain[autoscaler]),
        (&json!("true"), &json!("false"))
    );
    let mut other = job(JOB);
    let given = [(karpenter.to_owned(), "false".to_owned())];
    other.template.metadata = Some(TemplateMetadata {
        annotations: given.into_iter().collect(),
        ..TemplateMetadata::default()
    });
    let theirs = annotations(&other);
    assert_eq!(
        (&theirs[karpenter], &theirs[autoscaler]),
        (&json!("false"), &json!("false"))
    );
}
