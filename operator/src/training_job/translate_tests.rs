//! Tests of `translate`: each starts from the JSON that an API server sends.

use serde_json::{Value, json};

use scheduler::{Exit, Pod, PodState, ProgramCause};

use super::*;
use crate::labels::LabelPool;

fn node(view: NodeView, rules: &TaintRules) -> Option<MirroredNode> {
    super::node(view, rules, &LabelPool::default())
}

fn view(spec: Value, status: Value, deleting: bool) -> PodView {
    let mut pod = json!({
        "metadata": {
            "name": "digits-2-1", "namespace": "team",
            "labels": {"fireflyer.dev/job": "digits", "fireflyer.dev/attempt": "2", "fireflyer.dev/rank": "1"},
            "ownerReferences": [{"apiVersion": "fireflyer.dev/v1alpha1", "kind": "TrainingJob",
                                 "name": "digits", "uid": "u-1", "controller": true}],
            "finalizers": ["fireflyer.dev/release-nodes"],
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "managedFields": [{"manager": "kubelet"}]
        },
        "spec": spec, "status": status
    });
    if deleting {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-02T04:00:00Z");
    }
    serde_json::from_value(pod).unwrap()
}

fn bound() -> Value {
    json!({"nodeName": "n7", "containers": containers()})
}

fn containers() -> Value {
    json!([{"name": "trainer", "resources": {"limits": {"fireflyer.dev/node": "1"}}}])
}

fn trainer(state: Value) -> Value {
    json!({"phase": "Running", "containerStatuses": [{"name": "trainer", "image": "i", "state": state}]})
}

fn ended(code: i32, reason: &str, message: &str) -> Value {
    trainer(
        json!({"terminated": {"exitCode": code, "reason": reason, "message": message,
                                  "finishedAt": "2026-01-02T03:05:00Z"}}),
    )
}

fn state(status: Value) -> PodState {
    pod(view(bound(), status, false)).unwrap().pod.state
}

#[test]
fn labels_owner_and_pinned_node_are_read() {
    let spec = json!({"containers": containers(), "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n9"]}]}]}}}});
    let read = pod(view(spec, json!({"phase": "Pending"}), true))
        .unwrap()
        .pod;
    assert_eq!((read.attempt, read.rank, read.node.as_str()), (2, 1, "n9"));
    assert_eq!(
        (&*read.job.namespace, &*read.job.name, &*read.job.uid),
        ("team", "digits", "u-1")
    );
    assert_eq!((read.state, read.finalizer), (PodState::Unbound, true));
    assert!(read.delete_by.is_some());
}

#[test]
fn a_pod_that_does_not_ask_for_its_node_takes_none() {
    let mut pending = view(bound(), json!({"phase": "Pending"}), false);
    pending.spec.containers.clear();
    assert_eq!(pod(pending), None);
}

#[test]
fn an_owner_of_a_kind_or_group_like_ours_owns_nothing() {
    let like_ours = [
        ("fireflyer.development/v1", "TrainingJob"),
        ("fireflyer.devil/v1", "TrainingJob"),
        ("fireflyer.dev/v2", "TrainingJob"),
        ("fireflyer.dev/v1alpha1", "TrainingJobs"),
    ];
    for (version, kind) in like_ours {
        let mut other = view(bound(), json!({}), false);
        let mut owners = other.metadata.owner_references.take().unwrap();
        owners[0].api_version = version.to_owned();
        owners[0].kind = kind.to_owned();
        other.metadata.owner_references = Some(owners);
        assert_eq!(owner(&other.metadata), None, "{version} {kind}");
        assert!(pod(other).unwrap().pod.unowned);
    }
}

#[test]
fn a_pod_that_lost_its_owner_or_its_labels_numbers_still_takes_its_node() {
    let mut orphan = view(bound(), json!({"phase": "Running"}), false);
    orphan.metadata.owner_references = None;
    let labels = orphan.metadata.labels.as_mut().unwrap();
    labels.insert("fireflyer.dev/job-uid".to_owned(), "u-1".to_owned());
    labels.remove("fireflyer.dev/rank");
    labels.insert("fireflyer.dev/attempt".to_owned(), "9".to_owned());
    let read = pod(orphan.clone()).unwrap().pod;
    assert_eq!((&*read.job.uid, read.attempt, read.rank), ("u-1", 2, 1));
    assert!(read.unowned && !read.terminal);
    assert_eq!(read.node.as_str(), "n7");

    // An older release did not write the uid: then it belongs to a job that is gone.
    let labels = orphan.metadata.labels.as_mut().unwrap();
    labels.remove("fireflyer.dev/job-uid");
    assert_eq!(&*pod(orphan).unwrap().pod.job.uid, "");
}

#[test]
fn a_pod_of_somebody_else_is_none_of_ours() {
    let mut other = view(bound(), json!({}), false);
    other.metadata.owner_references = None;
    other.metadata.labels = None;
    assert_eq!(pod(other), None);
    let mut named = view(bound(), json!({}), false);
    named.metadata.name = Some("digits-02-1".to_owned());
    assert_eq!(pod(named), None);
}

#[test]
fn the_launchers_word_decides() {
    assert_eq!(
        state(ended(0, "Completed", r#"{"outcome":"Succeeded"}"#)),
        PodState::Succeeded
    );
    let acked = r#"{"outcome":"Interrupted","ack":{"attempt":2,"step":7,"digest":"ab"}}"#;
    let saved = CheckpointRef {
        attempt: 2,
        step: 7,
        digest: "ab".to_owned(),
    };
    assert_eq!(
        state(ended(143, "Error", acked)),
        PodState::Interrupted { ack: Some(saved) }
    );
    let failed = r#"{"outcome":"Failed","rank":5,"signal":9,"log":"bye"}"#;
    let PodState::Failed(exit) = state(ended(137, "OOMKilled", failed)) else {
        panic!("not failed")
    };
    assert_eq!(
        (exit.rank, exit.code, exit.signal),
        (Some(5), None, Some(9))
    );
    assert_eq!(
        (exit.reason.as_deref(), exit.log.as_deref()),
        (Some("OOMKilled"), Some("bye"))
    );
    assert!(exit.finished.is_some());
}

#[test]
fn why_a_program_could_not_go_on_reaches_the_planner() {
    let failed = r#"{"outcome":"Failed","rank":0,"exitCode":1,
        "cause":{"kind":"NoUsableCheckpoint","message":"none loads"}}"#;
    let PodState::Failed(exit) = state(ended(1, "Error", failed)) else {
        panic!("not failed")
    };
    let cause = ProgramCause::NoUsableCheckpoint("none loads".to_owned());
    assert_eq!(exit.cause, Some(cause));
}

#[test]
fn without_a_word_the_exit_code_and_the_circumstances_decide() {
    assert_eq!(state(ended(0, "Completed", "")), PodState::Succeeded);
    assert_eq!(
        state(ended(255, "Unknown", "")),
        PodState::Refused("the node restarted".to_owned())
    );
    assert!(matches!(
        state(ended(2, "Error", "usage: ...")),
        PodState::Failed(Exit { code: Some(2), .. })
    ));
    let killed = pod(view(bound(), ended(137, "Error", ""), true))
        .unwrap()
        .pod
        .state;
    assert_eq!(killed, PodState::Interrupted { ack: None });
    let oom = pod(view(bound(), ended(137, "OOMKilled", ""), true))
        .unwrap()
        .pod
        .state;
    assert!(matches!(
        oom,
        PodState::Failed(Exit {
            reason: Some(_),
            ..
        })
    ));
}

#[test]
fn what_the_kubelet_refuses_is_no_failure_of_the_program() {
    let refused =
        json!({"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device"});
    assert_eq!(
        state(refused),
        PodState::Refused("UnexpectedAdmissionError: no device".to_owned())
    );
    let init = json!({"phase": "Failed", "initContainerStatuses": [
        {"name": "hfreduce", "state": {"terminated": {"exitCode": 1}}},
        {"name": "fetch", "state": {"terminated": {"exitCode": 4, "message": "no such file"}}}]});
    assert!(
        matches!(state(init), PodState::Failed(Exit { code: Some(4), reason: Some(reason), .. })
        if reason.contains("fetch"))
    );
}

// API-1: a missing image is one state, however often the kubelet tries.
#[test]
fn a_pod_that_is_marked_failed_while_its_trainer_ran_says_by_whom_and_why() {
    // What the garbage collector of pods leaves of a pod whose Node is gone: no kubelet reports.
    let failed = |conditions: Value, reason: Value| {
        let mut status = trainer(json!({"running": {"startedAt": "2026-01-02T03:04:05Z"}}));
        status["phase"] = json!("Failed");
        status["conditions"] = conditions;
        status["reason"] = reason;
        state(status)
    };
    let disrupted = json!([
        {"type": "Ready", "status": "True"},
        {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
         "message": "PodGC: node no longer exists"},
    ]);
    let refused = |why: &str| PodState::Refused(why.to_owned());
    assert_eq!(
        failed(disrupted.clone(), Value::Null),
        refused("DeletionByPodGC: PodGC: node no longer exists")
    );
    assert_eq!(failed(disrupted, json!("Evicted")), refused("Evicted"));
    assert_eq!(
        failed(json!([]), Value::Null),
        refused("somebody marked it Failed while its trainer ran, and did not say why")
    );
    // How its trainer ended counts more.
    let mut ended = ended(0, "Completed", r#"{"outcome":"Succeeded"}"#);
    ended["phase"] = json!("Failed");
    ended["reason"] = json!("UnexpectedAdmissionError");
    assert_eq!(state(ended), PodState::Succeeded);
}

#[test]
fn an_image_that_cannot_be_had_is_named() {
    let status = json!({"phase": "Pending",
        "initContainerStatuses": [{"name": "hfreduce", "state": {"running": {}}}],
        "containerStatuses": [{"name": "trainer", "image": "nowhere/at-all:1",
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}}]});
    let PodState::Blocked(problem) = state(status.clone()) else {
        panic!("no image error")
    };
    assert_eq!(
        (problem.reason, problem.message.as_str()),
        (
            "ImageError",
            "image nowhere/at-all:1 of container trainer cannot be pulled"
        )
    );
    let mut again = status;
    again["containerStatuses"][0]["state"]["waiting"]["reason"] = json!("ErrImagePull");
    assert_eq!(
        state(again),
        PodState::Blocked(problem),
        "the kubelet alternates"
    );
    let backs_off = |reason| {
        let states = || json!({"state": {"waiting": {}}});
        let failed = json!({"state": {"waiting": {"reason": reason}}});
        let pod = preparing(json!([]), [states(), states(), states(), failed, states()]);
        pod.preparation.unwrap().backs_off
    };
    assert_eq!(
        ["ImagePullBackOff", "ErrImagePull", "InvalidImageName"].map(backs_off),
        [true, false, false]
    );
    let refers = trainer(
        json!({"waiting": {"reason": "CreateContainerConfigError", "message": "secret \"s\" not found"}}),
    );
    let PodState::Blocked(problem) = state(refers) else {
        panic!("no container error")
    };
    assert_eq!(problem.reason, "ContainerError");
    assert!(problem.message.contains("trainer"), "{problem:?}");
    let creating = trainer(json!({"waiting": {"reason": "PodInitializing"}}));
    assert_eq!(state(creating), PodState::Starting);
    assert_eq!(
        state(trainer(
            json!({"running": {"startedAt": "2026-01-02T03:04:05Z"}})
        )),
        PodState::Running
    );
}

fn node_view(spec: Value, ready: &str) -> NodeView {
    serde_json::from_value(json!({
        "metadata": {"name": "n1", "labels": {"fireflyer.dev/node-class": "a100"}},
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": ready}], "allocatable": {"fireflyer.dev/node": "1"}}
    }))
    .unwrap()
}

fn tainted(key: &str, effect: &str) -> Value {
    json!({"taints": [{"key": key, "effect": effect}]})
}

fn rules() -> TaintRules {
    TaintRules {
        dedicated: vec!["nvidia.com/gpu".to_owned()],
        leave: vec!["karpenter.sh/disrupted".to_owned()],
    }
}

#[test]
fn a_foreign_taint_that_only_keeps_new_pods_away_is_nobodys_wish() {
    // A network agent sets it while it restarts.
    let key = "node.cilium.io/agent-not-ready";
    let read = |effect| node(node_view(tainted(key, effect), "True"), &rules()).unwrap();
    let no_schedule = read("NoSchedule");
    assert_eq!(
        (
            no_schedule.wishes.len(),
            no_schedule.foreign_taint.as_deref()
        ),
        (0, Some(key))
    );
    let no_execute = read("NoExecute");
    assert_eq!(no_execute.wishes, [Wish::Tainted(key.into())].into());
    let preferred = read("PreferNoSchedule");
    assert_eq!((preferred.wishes.len(), preferred.foreign_taint), (0, None));
}

#[test]
fn a_node_that_an_autoscaler_is_about_to_take_away_is_left() {
    let key = "karpenter.sh/disrupted";
    let read = |spec| {
        node(node_view(spec, "True"), &rules())
            .unwrap()
            .wishes
            .pop_first()
    };
    assert_eq!(read(json!({})), None);
    assert_eq!(
        read(tainted(key, "NoSchedule")),
        Some(Wish::Tainted(key.into()))
    );
    assert_eq!(read(json!({"unschedulable": true})), Some(Wish::Cordoned));
    // Another one before it does not hide it.
    let both = json!({"taints": [
        {"key": "example.com/agent-not-ready", "effect": "NoSchedule"},
        {"key": key, "effect": "NoSchedule"},
    ]});
    assert_eq!(read(both), Some(Wish::Tainted(key.into())));
}

#[test]
fn a_taint_that_dedicates_the_node_to_us_keeps_nothing_away() {
    for effect in ["NoSchedule", "NoExecute"] {
        let node = node(
            node_view(tainted("nvidia.com/gpu", effect), "True"),
            &rules(),
        )
        .unwrap();
        assert_eq!(
            (node.wishes.len(), node.foreign_taint),
            (0, None),
            "{effect}"
        );
    }
}

#[test]
fn what_kubernetes_finds_out_about_a_node_is_nobodys_wish() {
    for name in [
        "memory-pressure",
        "disk-pressure",
        "pid-pressure",
        "network-unavailable",
        "not-ready",
        "unreachable",
    ] {
        let key = format!("node.kubernetes.io/{name}");
        let spec = json!({"taints": [{"key": key, "effect": "NoSchedule"}]});
        let node = node(node_view(spec, "True"), &TaintRules::default()).unwrap();
        assert_eq!(node.taint.as_deref(), Some(&*key));
        assert!(node.wishes.is_empty(), "{key}");
    }
}

/// The node lifecycle controller adds the taint to each Node with `spec.unschedulable`.
#[test]
fn a_cordon_is_no_obstacle_for_a_validation() {
    let spec = json!({"unschedulable": true, "taints": [
        {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
    ]});
    let node = node(node_view(spec, "True"), &TaintRules::default()).unwrap();
    assert_eq!(node.wishes, [Wish::Cordoned].into());
    let obstacle = scheduler::validation_obstacle(node.ready, node.taint.as_ref(), false);
    assert_eq!((obstacle, node.foreign_taint), (None, None));
}

#[test]
fn a_node_that_is_being_deleted_is_still_there_to_be_left() {
    let mut view = node_view(json!({"unschedulable": true}), "True");
    view.metadata.deletion_timestamp =
        Some(serde_json::from_value(json!("2026-01-02T03:04:05Z")).unwrap());
    let node = node(view, &TaintRules::default()).unwrap();
    assert_eq!(node.ready, Ready::True);
    assert_eq!(node.wishes, [Wish::Cordoned, Wish::Deleted].into());
}

#[test]
fn a_lease_that_ran_out_is_separate_from_a_kubelet_that_is_not_ready() {
    let ready = |status| {
        node(node_view(json!({}), status), &TaintRules::default())
            .unwrap()
            .ready
    };
    assert_eq!(
        (ready("True"), ready("False"), ready("Unknown")),
        (Ready::True, Ready::False, Ready::Unknown)
    );
    let mut new = node_view(json!({}), "True");
    new.status.conditions.clear();
    assert_eq!(
        node(new, &TaintRules::default()).unwrap().ready,
        Ready::False
    );
}

/// The ConfigMap of attempt 2 of `digits`, signed by these keys, with a file of this version.
fn config_map(signed_by: &Masters, version: u64) -> Value {
    let file = json!({
        "version": version, "algorithm": contract::assignment::ALGORITHM, "attempt": 2, "procsPerNode": 1,
        "job": {"namespace": "team", "name": "digits", "uid": "u-1"},
        "nodes": [{"name": "n7", "zone": "a"}, {"name": "n8", "zone": "b"}], "crossing": true,
        "masterPort": 29500, "trafficClass": 1,
    });
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packer, file.to_string().as_bytes()).unwrap();
    let packed = packer.finish().unwrap();
    json!({
        "metadata": {
            "name": "digits-2", "namespace": "team", "uid": "map-2",
            "labels": {"fireflyer.dev/job": "digits", "fireflyer.dev/attempt": "2"},
            "annotations": {"fireflyer.dev/assignment-proof": signed_by.prove("u-1", 2, &packed)},
            "ownerReferences": [{"apiVersion": "fireflyer.dev/v1alpha1", "kind": "TrainingJob",
                                 "name": "digits", "uid": "u-1", "controller": true}],
        },
        "binaryData": {"assignment.json.gz": k8s_openapi::ByteString(packed)},
    })
}

fn read_attempt(map: &Value, masters: &Masters) -> Option<MirroredAttempt> {
    attempt(&serde_json::from_value(map.clone()).unwrap(), masters)
}

#[test]
fn only_what_the_operator_signed_says_where_an_attempt_runs() {
    let masters = Masters::new([7; 32], None);
    let map = config_map(&masters, 1);
    let read = read_attempt(&map, &masters).unwrap();
    assert_eq!(read.standing, AttemptProof::Proved(Signer::Current));
    assert_eq!((read.attempt.number, read.attempt.nodes.len()), (2, 2));

    let forgeries: [fn(&mut Value); 5] = [
        |map| map["metadata"]["annotations"] = json!({}),
        |map| map["metadata"]["annotations"]["fireflyer.dev/assignment-proof"] = json!("00:11"),
        |map| map["binaryData"]["assignment.json.gz"] = json!("H4sIAAAAAAAA"),
        |map| map["binaryData"] = json!({}),
        // Of the next job of this name.
        |map| map["metadata"]["ownerReferences"][0]["uid"] = json!("u-2"),
    ];
    for forge in forgeries {
        let mut forged = map.clone();
        forge(&mut forged);
        let read = read_attempt(&forged, &masters).unwrap();
        assert_eq!(read.standing, AttemptProof::Unproved, "{forged}");
        assert_eq!(read.attempt.nodes, []);
    }
    let none_of_ours: [fn(&mut Value); 5] = [
        |map| map["metadata"]["name"] = json!("aaa"),
        |map| map["metadata"]["labels"]["fireflyer.dev/attempt"] = json!("1"),
        |map| map["metadata"]["labels"]["fireflyer.dev/job"] = json!("other"),
        |map| map["metadata"]["ownerReferences"] = json!([]),
        |map| {
            map["metadata"]["ownerReferences"][0]["apiVersion"] = json!("fireflyer.development/v1");
        },
    ];
    for forge in none_of_ours {
        let mut forged = map.clone();
        forge(&mut forged);
        assert_eq!(read_attempt(&forged, &masters), None, "{forged}");
    }
}

#[test]
fn an_attempt_stays_proved_while_its_key_is_replaced() {
    let before = Masters::new([7; 32], None);
    let map = config_map(&before, 1);
    let rotated = Masters::new([8; 32], Some([7; 32]));
    let read = read_attempt(&map, &rotated).unwrap();
    assert_eq!(read.standing, AttemptProof::Proved(Signer::Previous));
    assert_eq!(read.signer(), Signer::Previous);
    let lost = read_attempt(&map, &Masters::new([8; 32], None)).unwrap();
    assert_eq!(lost.standing, AttemptProof::Unproved);
}

#[test]
fn an_attempt_of_another_release_keeps_its_nodes() {
    let masters = Masters::new([7; 32], None);
    let reads = contract::assignment::VERSIONS;
    for version in reads.clone() {
        let read = read_attempt(&config_map(&masters, version.into()), &masters).unwrap();
        assert_eq!(read.standing, AttemptProof::Proved(Signer::Current));
    }
    for (version, release) in [(reads.start() - 1, "an older"), (99, "a newer")] {
        let read = read_attempt(&config_map(&masters, version.into()), &masters).unwrap();
        let AttemptProof::Unreadable(Signer::Current, why) = &read.standing else {
            panic!("{:?}", read.standing)
        };
        let expected = format!("made by {release} release: version {version}, this release reads");
        assert!(why.contains(&expected), "{why}");
        let nodes: Vec<_> = read.attempt.nodes.iter().map(NodeName::as_str).collect();
        assert_eq!((nodes, read.attempt.crossing), (vec!["n7", "n8"], true));
    }
}

/// A pod of which the sidecar, two init containers, the trainer and a container beside it are in
/// these states.
fn preparing(conditions: Value, states: [Value; 5]) -> Pod {
    let names = ["hfreduce", "model", "warm", "trainer", "board"];
    let spec = json!({
        "nodeName": "n7",
        "initContainers": [
            {"name": "hfreduce", "restartPolicy": "Always"},
            {"name": "model"},
            {"name": "warm", "restartPolicy": "Always"},
        ],
        "containers": [
            {"name": "trainer", "resources": {"limits": {"fireflyer.dev/node": "1"}}},
            {"name": "board"},
        ],
    });
    let all = names.into_iter().zip(states);
    let mut all: Vec<Value> = all
        .map(|(name, mut status)| {
            status["name"] = json!(name);
            status["image"] = json!(format!("{name}:1"));
            status
        })
        .collect();
    let mut containers = all.split_off(3);
    // The kubelet sorts them by name.
    containers.reverse();
    let status = json!({
        "phase": "Pending", "conditions": conditions,
        "initContainerStatuses": all, "containerStatuses": containers,
    });
    pod(view(spec, status, false)).unwrap().pod
}

#[test]
fn each_container_that_starts_or_ends_is_a_step_towards_the_trainer() {
    let waits = || json!({"state": {"waiting": {"reason": "PodInitializing"}}});
    let runs = |started: bool| {
        let since = json!({"running": {"startedAt": "2026-11-27T09:10:00Z"}});
        json!({"started": started, "state": since})
    };
    let ended = |code: i32| json!({"state": {"terminated": {"exitCode": code}}});
    let back_off = || json!({"state": {"waiting": {"reason": "CrashLoopBackOff"}}});
    let no = json!([{"type": "PodReadyToStartContainers", "status": "False"}]);
    let yes = json!([{"type": "PodReadyToStartContainers", "status": "True"}]);
    let (volumes, sidecar) = (
        "its volumes are mounted and its network is set up",
        "its sidecar waits for those of the other nodes",
    );
    let model = "init container model runs since 2026-11-27T09:10:00Z";
    let image = |name: &str| format!("image {name}:1 of container {name} is pulled, or waited for");
    let life = [
        (
            &no,
            [waits(), waits(), waits(), waits(), waits()],
            volumes.to_owned(),
        ),
        (
            &yes,
            [waits(), waits(), waits(), waits(), waits()],
            image("hfreduce"),
        ),
        (
            &yes,
            [runs(false), waits(), waits(), waits(), waits()],
            sidecar.to_owned(),
        ),
        (
            &yes,
            [runs(true), waits(), waits(), waits(), waits()],
            image("model"),
        ),
        (
            &yes,
            [runs(true), runs(true), waits(), waits(), waits()],
            model.to_owned(),
        ),
        (
            &yes,
            [runs(true), ended(0), waits(), waits(), waits()],
            image("warm"),
        ),
        (
            &yes,
            [runs(true), ended(0), runs(true), waits(), waits()],
            image("trainer"),
        ),
    ];
    let mut steps = None;
    for (conditions, states, at) in life {
        let pod = preparing(conditions.clone(), states);
        assert_eq!(pod.state, PodState::Starting);
        let preparation = pod.preparation.unwrap();
        assert_eq!(preparation.at, at);
        assert_eq!(preparation.joins, at == sidecar);
        assert!(Some(preparation.steps) > steps, "{at}");
        steps = Some(preparation.steps);
    }
    // One that starts again and again gets no further than it was.
    let restarts = preparing(yes, [runs(true), ended(0), back_off(), waits(), waits()]);
    let preparation = restarts.preparation.unwrap();
    assert_eq!(
        preparation.at,
        "container warm ended and waits to be started again"
    );
    assert!(Some(preparation.steps) < steps);
    let restarted = preparing(json!([]), [back_off(), waits(), waits(), waits(), waits()]);
    assert!(restarted.preparation.unwrap().joins);
    let again = json!({"restartCount": 1, "state": {"waiting": {}}});
    let restarts = preparing(json!([]), [again, waits(), waits(), waits(), waits()]);
    assert!(
        restarts.preparation.unwrap().joins,
        "for a moment it neither runs nor waits for a reason"
    );
    let trains = view(bound(), trainer(json!({"running": {}})), false);
    assert_eq!(pod(trains).unwrap().pod.preparation, None);
}
