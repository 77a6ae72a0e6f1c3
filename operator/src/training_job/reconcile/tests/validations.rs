//! NodeValidations in the leader's loop: a node that nobody uses is given to the validator, what it
//! reports becomes a verdict, and the node is free again.

use health::{Check, CheckResult, Fingerprint, Outcome, Report};

use super::*;
use crate::node_validation;

const POD: &str = "/api/v1/namespaces/fireflyer-validation/pods/check-1-0";

pub(super) fn validation(name: &str) -> String {
    format!("/apis/fireflyer.dev/v1alpha1/nodevalidations/{name}")
}

pub(super) fn ask(api: &Api, name: &str, node: &str) {
    let object = json!({
        "apiVersion": "fireflyer.dev/v1alpha1", "kind": "NodeValidation",
        "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": 1},
        "spec": {"nodeName": node, "checks": ["Offer", "CpuStress"], "ttlSecondsAfterFinished": 600},
    });
    api.submit(&validation(name), object);
}

pub(super) fn status(state: &State, name: &str) -> Value {
    let found = state.objects.get(&validation(name));
    found.map_or(Value::Null, |found| found["status"].clone())
}

fn is_in(state: &State, name: &str, phase: &str) -> bool {
    status(state, name)["phase"] == phase
}

fn report(uid: &str, stress: Outcome) -> Vec<u8> {
    let result = |check, device: &str, outcome| CheckResult {
        check,
        device: device.to_owned(),
        outcome,
    };
    let gpus = Outcome::Measured {
        value: 7.0,
        runs: 1,
    };
    let report = Report {
        validation: uid.to_owned(),
        boot: BOOT.to_owned(),
        fingerprint: Fingerprint {
            kernel: "6.18".to_owned(),
            ..Fingerprint::default()
        },
        results: vec![
            result(Check::Offer, "nvidia.com/gpu", gpus),
            result(Check::CpuStress, "", stress),
        ],
    };
    report.encode()
}

fn fast() -> Outcome {
    Outcome::Measured {
        value: 99.0,
        runs: 1,
    }
}

/// Gives the loop what has changed.
async fn until(api: &Api, leader: &Leader, what: &str, holds: impl Fn(&State) -> bool) {
    api.deliver(&leader.cluster);
    api.until(what, holds).await;
    api.deliver(&leader.cluster);
}

#[tokio::test]
async fn a_report_becomes_a_verdict_with_figures_and_the_node_is_free_again() {
    let api = cluster(1);
    ask(&api, "check", "n000");
    let leader = lead(&api);
    until(&api, &leader, "its pod is there", |state| {
        state.objects.contains_key(POD) && is_in(state, "check", "Starting")
    })
    .await;
    let pod = api.state().objects[POD].clone();
    let limits = &pod["spec"]["containers"][0]["resources"];
    assert_eq!(*limits, json!({"limits": {"fireflyer.dev/node": "1"}}));
    let task = "/api/v1/namespaces/fireflyer-validation/configmaps/check-1";
    let task = api.state().objects[task]["data"]["validation.json"].clone();
    let task = contract::validation::ValidationTask::from_json(task.as_str().unwrap().as_bytes());
    let task = task.unwrap();
    let gpus = task
        .offers
        .iter()
        .find(|one| one.resource == "nvidia.com/gpu");
    assert_eq!(
        gpus.map(|one| (one.offered, one.expected)),
        Some((8.0, 8.0))
    );
    assert_eq!(api.state().of("secrets").len(), 0, "nobody needs a key");

    submit(&api, "train", 1);
    let running = json!({"phase": "Running",
        "containerStatuses": [{"name": "validator", "state": {"running": {}}}]});
    api.change(|state| state.says(POD, running));
    until(&api, &leader, "it runs, and the job waits", |state| {
        is_in(state, "check", "Running") && phase(state, "train") == "Queued"
    })
    .await;
    api.change(|state| state.reports(POD, &report("uid-check", fast())));
    until(
        &api,
        &leader,
        "it is finished, and the job has the node",
        |state| is_in(state, "check", "Finished") && pods(state, "train") == 1,
    )
    .await;
    let status = status(&api.state(), "check");
    assert_eq!(status["verdict"], "Fail", "{status:#}");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("nvidia.com/gpu"), "{message}");
    let offer = &status["results"][0];
    assert_eq!(
        (&offer["check"], &offer["value"], &offer["floor"]),
        (&json!("Offer"), &json!(7.0), &json!(8.0))
    );
    assert_eq!(status["nodeClass"], "a100");
    assert_eq!(status["fingerprint"]["kernel"], "6.18");
    let says_so = |event: &&Value| {
        let note = event["note"].as_str().unwrap_or_default();
        event["type"] == "Warning" && note.starts_with("Fail: Offer")
    };
    until(&api, &leader, "an Event has the verdict", |state| {
        let path = "/apis/events.k8s.io/v1/namespaces/default/events/";
        let events = state.of("events");
        state.objects.keys().any(|key| key.starts_with(path)) && events.iter().any(says_so)
    })
    .await;
    until(&api, &leader, "it lets its pod and itself go", |state| {
        let free = |object: &Value| {
            let finalizers = object["metadata"]["finalizers"].as_array();
            finalizers.is_none_or(Vec::is_empty)
        };
        free(&state.objects[&validation("check")]) && state.objects.get(POD).is_none_or(free)
    })
    .await;
}

#[tokio::test]
async fn two_runs_that_name_each_other_meet_and_share_what_is_slow() {
    let api = cluster(2);
    api.change(|state| {
        let path = "/apis/fireflyer.dev/v1alpha1/fabrics/default";
        let mut fabric = state.objects[path].clone();
        let floors = json!([{"check": "Network", "value": 10.0}]);
        fabric["spec"]["classes"][0]["floors"] = floors;
        state.replace(path, fabric);
    });
    for (name, node, partner) in [("dials", "n001", "n000"), ("listens", "n000", "n001")] {
        ask(&api, name, node);
        api.change(|state| {
            let mut run = state.objects[&validation(name)].clone();
            run["spec"]["checks"] = json!(["Network"]);
            run["spec"]["partnerNodeName"] = json!(partner);
            state.replace(&validation(name), run);
        });
    }
    let pod = |name: &str| format!("/api/v1/namespaces/fireflyer-validation/pods/{name}-1-0");
    let (listens, dials) = (pod("listens"), pod("dials"));
    let leader = lead(&api);
    until(&api, &leader, "one listens, the other waits", |state| {
        state.objects.contains_key(&listens)
            && status(state, "dials")["reason"] == "WaitingForPartner"
    })
    .await;
    assert!(!api.state().objects.contains_key(&dials));
    let container = |path: &str| api.state().objects[path]["spec"]["containers"][0].clone();
    let args = json!(["--listen", "$(POD_IP)"]);
    assert_eq!(container(&listens)["args"], args);
    let running = json!({"phase": "Running", "podIP": "10.0.0.7",
        "containerStatuses": [{"name": "validator", "state": {"running": {}}}]});
    api.change(|state| state.says(&listens, running));
    until(&api, &leader, "the other dials it", |state| {
        state.objects.contains_key(&dials)
    })
    .await;
    let args = json!(["--partner", "10.0.0.7", "--partner-run", "uid-listens"]);
    assert_eq!(container(&dials)["args"], args);
    let slow = |uid: &str| {
        let result = CheckResult {
            check: Check::Network,
            device: "send".to_owned(),
            outcome: Outcome::Measured {
                value: 5.0,
                runs: 4,
            },
        };
        let results = vec![result];
        Report {
            validation: uid.to_owned(),
            boot: BOOT.to_owned(),
            fingerprint: Fingerprint::default(),
            results,
        }
        .encode()
    };
    api.change(|state| {
        state.reports(&listens, &slow("uid-listens"));
        state.reports(&dials, &slow("uid-dials"));
    });
    until(&api, &leader, "both are finished", |state| {
        is_in(state, "listens", "Finished") && is_in(state, "dials", "Finished")
    })
    .await;
    for (name, partner) in [("listens", "n001"), ("dials", "n000")] {
        let status = status(&api.state(), name);
        assert_eq!(status["verdict"], "Warn", "{status:#}");
        let message = status["message"].as_str().unwrap();
        let says = format!("with {partner}, and either node may be the cause");
        assert!(message.contains(&says), "{message}");
    }
}

#[tokio::test]
async fn a_report_that_is_cut_or_of_another_run_is_an_error_and_says_why() {
    let mut cut = report("uid-check", fast());
    cut.truncate(80);
    for (message, why) in [
        (cut, "failed to parse the report"),
        (report("uid-other", fast()), "of another run"),
        (Vec::new(), "failed to parse the report"),
    ] {
        let api = cluster(1);
        ask(&api, "check", "n000");
        let leader = lead(&api);
        let created = |state: &State| is_in(state, "check", "Starting");
        until(&api, &leader, "its pod is there", created).await;
        api.change(|state| state.reports(POD, &message));
        let finished = |state: &State| is_in(state, "check", "Finished");
        until(&api, &leader, "it is finished", finished).await;
        let status = status(&api.state(), "check");
        assert_eq!(status["verdict"], "Error");
        assert_eq!(status["reason"], "ReportUnusable");
        assert!(
            status["message"].as_str().unwrap().contains(why),
            "{status:#}"
        );
    }
}

#[tokio::test]
async fn a_pod_that_is_killed_is_an_error_and_a_new_leader_writes_nothing_more() {
    let api = cluster(1);
    ask(&api, "check", "n000");
    let leader = lead(&api);
    let created = |state: &State| is_in(state, "check", "Starting");
    until(&api, &leader, "its pod is there", created).await;
    let killed = json!({"phase": "Failed", "reason": "DeadlineExceeded", "message": "too slow"});
    api.change(|state| state.says(POD, killed));
    let free = |state: &State| {
        let finalizers = &state.objects[&validation("check")]["metadata"]["finalizers"];
        let held = finalizers.as_array().is_some_and(|all| !all.is_empty());
        is_in(state, "check", "Finished") && !held
    };
    until(&api, &leader, "it is finished and holds nothing", free).await;
    let found = status(&api.state(), "check");
    assert_eq!(
        (&found["verdict"], &found["reason"]),
        (&json!("Error"), &json!("PodEnded"))
    );
    assert!(
        found["message"]
            .as_str()
            .unwrap()
            .contains("DeadlineExceeded"),
        "{found:#}"
    );
    drop(leader);
    let writes = api.state().writes.len();
    let next = lead(&api);
    submit(&api, "train", 1);
    until(&api, &next, "the job has the node", |state| {
        pods(state, "train") == 1
    })
    .await;
    let about = |line: &&String| line.contains("nodevalidations");
    let again = api.state().writes[writes..].iter().filter(about).count();
    assert_eq!(again, 0);
}

#[tokio::test]
async fn nodes_are_counted_by_the_verdict_of_their_newest_validation() {
    let api = cluster(2);
    for (name, node, verdict, at) in [
        ("old", "n000", "Fail", "2026-01-02T03:04:05Z"),
        ("new", "n000", "Pass", "2026-01-02T03:04:06Z"),
        ("other", "n001", "Fail", "2026-01-02T03:04:05Z"),
    ] {
        ask(&api, name, node);
        api.change(|state| {
            let path = validation(name);
            let mut run = state.objects[&path].clone();
            run["status"] = json!({"phase": "Finished", "attempt": 1, "verdict": verdict,
                "completionTime": at, "observedGeneration": 1});
            state.replace(&path, run);
        });
    }
    let cluster = api.listed();
    let counts = node_validation::verdicts(&cluster.mirrors());
    let (pass, fail) = (health::Verdict::Pass, health::Verdict::Fail);
    assert_eq!(counts, [(pass, 1), (fail, 1)].into());
}

#[tokio::test]
async fn what_a_validation_lacks_is_said_with_what_to_do() {
    let api = cluster(1);
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "bare"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    api.submit("/api/v1/nodes/bare", node);
    // The kubelet started anew, and the agent has not registered yet.
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "back"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}],
            "allocatable": {"fireflyer.dev/node": "0", "nvidia.com/gpu": "0"}},
    });
    api.submit("/api/v1/nodes/back", node);
    ask(&api, "one", "bare");
    ask(&api, "back", "back");
    ask(&api, "two", "n999");
    ask(&api, "three", "n000");
    api.change(|state| {
        let mut run = state.objects[&validation("three")].clone();
        run["spec"]["claimName"] = json!("shared");
        state.replace(&validation("three"), run);
    });
    let leader = lead(&api);
    for (name, reason, text) in [
        ("one", "NoAgent", "the node agent"),
        ("back", "NoAgent", "the node agent"),
        ("two", "NodeUnknown", "another nodeName"),
        ("three", "ClaimUnusable", "create it there"),
    ] {
        until(&api, &leader, reason, |state| {
            status(state, name)["reason"] == reason
        })
        .await;
        let found = status(&api.state(), name);
        assert_eq!(found["phase"], "Pending");
        assert!(
            found["message"].as_str().unwrap().contains(text),
            "{found:#}"
        );
    }
}

#[tokio::test]
async fn a_finished_validation_is_deleted_after_its_ttl() {
    let api = cluster(1);
    ask(&api, "check", "n000");
    api.change(|state| {
        let mut run = state.objects[&validation("check")].clone();
        run["spec"]["ttlSecondsAfterFinished"] = json!(0);
        run["status"] = json!({"phase": "Finished", "attempt": 1, "verdict": "Pass",
            "completionTime": "2026-01-02T03:04:05Z", "observedGeneration": 1});
        state.replace(&validation("check"), run);
    });
    let leader = lead(&api);
    until(&api, &leader, "it is deleted", |state| {
        !state.objects.contains_key(&validation("check"))
    })
    .await;
}
