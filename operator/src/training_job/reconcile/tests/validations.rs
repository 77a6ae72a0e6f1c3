//! NodeValidations in the leader's loop: a node that nobody uses is given to the validator, what it
//! reports becomes a verdict, and the node is free again.

use health::{Check, CheckResult, Fingerprint, NodeUse, Outcome, Report};

use super::*;
use crate::fabric::NodesSeen;
use crate::node_validation::{self, policy::PolicyKeeper};

const POD: &str = "/api/v1/namespaces/fireflyer-validation/pods/check-1-0";

fn validation(name: &str) -> String {
    format!("/apis/fireflyer.dev/v1alpha1/nodevalidations/{name}")
}

fn ask(api: &Api, name: &str, node: &str) {
    let object = json!({
        "apiVersion": "fireflyer.dev/v1alpha1", "kind": "NodeValidation",
        "metadata": {"name": name, "uid": format!("uid-{name}"), "generation": 1},
        "spec": {"nodeName": node, "checks": ["Offer", "CpuStress"], "ttlSecondsAfterFinished": 600},
    });
    api.submit(&validation(name), object);
}

fn keeper(api: &Api, metrics: &Metrics) -> PolicyKeeper {
    PolicyKeeper {
        cluster: Arc::new(api.listed()),
        writer: Writer::new(api.client(), metrics.writes.clone()),
        dedicated_taints: Vec::new(),
        instance: "operator-0".to_owned(),
        metrics: metrics.clone(),
    }
}

fn status(state: &State, name: &str) -> Value {
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
async fn a_policy_validates_each_node_once_and_asks_the_job_of_an_overdue_one() {
    let api = cluster(3);
    api.change(|state| {
        let path = "/api/v1/nodes/n001";
        let mut node = state.objects[path].clone();
        node["metadata"]["creationTimestamp"] = json!("2026-01-02T03:04:05Z");
        state.replace(path, node);
    });
    let policies = "/apis/fireflyer.dev/v1alpha1/nodevalidationpolicies";
    let policy = |name: &str, created: &str, spec: Value| {
        let object = json!({
            "apiVersion": "fireflyer.dev/v1alpha1", "kind": "NodeValidationPolicy",
            "metadata": {"name": name, "uid": format!("uid-{name}"), "creationTimestamp": created},
            "spec": spec,
        });
        api.submit(&format!("{policies}/{name}"), object);
    };
    let spec = json!({"level": "Quick", "interruptAfterDays": 14});
    policy("weekly", "2026-01-02T03:04:05Z", spec);
    policy(
        "daily",
        "2026-01-03T03:04:05Z",
        json!({"intervalHours": 24}),
    );
    let metrics = Metrics::new(&Registry::new("0").unwrap()).unwrap();
    let keeper = keeper(&api, &metrics);
    let seen = |since: i64| {
        let job = "team-a/train".to_owned();
        NodesSeen {
            held: [Arc::from("n001")].into(),
            uses: [(Arc::from("n001"), NodeUse { job, since })].into(),
            ..NodesSeen::default()
        }
    };
    let now = k8s_openapi::jiff::Timestamp::now().as_second();
    let step_at = |seen: NodesSeen| {
        let (api, keeper) = (&api, &keeper);
        async move {
            api.deliver(&keeper.cluster);
            keeper.step(&seen).await;
        }
    };
    let step = || step_at(seen(now));
    step().await;
    step().await;
    let nodes: Vec<_> = {
        let state = api.state();
        let runs = state.of("nodevalidations");
        let of_policy = |run: &&&Value| {
            let owner = &run["metadata"]["ownerReferences"][0];
            let label = &run["metadata"]["labels"]["fireflyer.dev/validation-policy"];
            (&owner["name"], &owner["kind"], label)
                == (
                    &json!("weekly"),
                    &json!("NodeValidationPolicy"),
                    &json!("weekly"),
                )
        };
        assert!(runs.iter().all(|run| of_policy(&run)), "{runs:#?}");
        let mut runs = runs.into_iter().map(|run| run["spec"].clone());
        runs.by_ref()
            .map(|spec| ["nodeName", "level", "whenBusy"].map(|field| spec[field].clone()))
            .collect()
    };
    let quick = |node: &str, when_busy: &str| [json!(node), json!("Quick"), json!(when_busy)];
    let each_node_once = [
        quick("n000", "Wait"),
        quick("n001", "Next"),
        quick("n002", "Wait"),
    ];
    assert_eq!(nodes, each_node_once);
    let status = |name: &str| api.state().objects[&format!("{policies}/{name}")]["status"].clone();
    let weekly = status("weekly");
    assert_eq!(
        ["nodes", "running", "waiting", "due"].map(|field| weekly[field].clone()),
        [3, 2, 1, 0].map(|count| json!(count))
    );
    let overlapped = &status("daily")["conditions"][0];
    assert_eq!(
        (&overlapped["type"], &overlapped["status"]),
        (&json!("Overlapped"), &json!("True"))
    );
    let writes = api.state().writes.len();
    step().await;
    assert_eq!(
        api.state().writes.len(),
        writes,
        "nothing changes, nothing is written"
    );

    api.change(|state| {
        let path = state
            .objects
            .keys()
            .find(|path| path.contains("weekly-n000"))
            .unwrap();
        let path = path.clone();
        let mut run = state.objects[&path].clone();
        run["status"] = json!({"phase": "Finished", "attempt": 1, "verdict": "Fail",
            "completionTime": jiff_now(), "conditions": []});
        state.replace(&path, run);
    });
    step().await;
    let weekly = status("weekly");
    assert_eq!(weekly["failedNodes"], json!(["n000"]));
    assert_eq!(weekly["running"], json!(1));

    // A job that has had the node since long ago is asked, by the run that waits.
    step_at(seen(now - 8 * 24 * 3600)).await;
    let asking = {
        let state = api.state();
        let runs = state.of("nodevalidations");
        let asks = |run: &&&Value| run["spec"]["whenBusy"] == "Interrupt";
        let asking = runs.iter().filter(asks);
        let asking: Vec<_> = asking.map(|run| run["spec"]["nodeName"].clone()).collect();
        asking
    };
    assert_eq!(asking, ["n001"]);
    let writes = api.state().writes.len();
    step_at(seen(now - 8 * 24 * 3600)).await;
    assert_eq!(api.state().writes.len(), writes, "it is asked once");
}

/// A run of node n000 that ended so a moment ago.
fn finished(api: &Api, name: &str, started: i64, verdict: &str, boot: &str) {
    ask(api, name, "n000");
    let at = |seconds| {
        let at = k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap();
        json!(at.to_string())
    };
    api.change(|state| {
        let path = validation(name);
        let mut run = state.objects[&path].clone();
        run["status"] = json!({"phase": "Finished", "attempt": 1, "verdict": verdict,
            "startTime": at(started), "completionTime": at(started + 10), "bootId": boot,
            "observedGeneration": 1,
            "results": [{"check": "CpuStress", "device": "core 1", "verdict": verdict}]});
        state.replace(&path, run);
    });
}

#[tokio::test]
async fn a_node_that_fails_is_kept_from_jobs_until_it_passes() {
    let api = cluster(2);
    let node = "/api/v1/nodes/n000";
    let other = json!({"key": "team/pool", "effect": "PreferNoSchedule"});
    api.change(|state| {
        let mut object = state.objects[node].clone();
        object["spec"] = json!({"taints": [other]});
        state.replace(node, object);
    });
    let policy = "/apis/fireflyer.dev/v1alpha1/nodevalidationpolicies/weekly";
    let spec = json!({"quarantine": "Enforce", "suspend": true});
    let object = json!({
        "apiVersion": "fireflyer.dev/v1alpha1", "kind": "NodeValidationPolicy",
        "metadata": {"name": "weekly", "uid": "uid-weekly"}, "spec": spec,
    });
    api.submit(policy, object);
    let metrics = Metrics::new(&Registry::new("0").unwrap()).unwrap();
    let keeper = keeper(&api, &metrics);
    let step = || async {
        api.deliver(&keeper.cluster);
        keeper.step(&NodesSeen::default()).await;
    };
    let taints = || api.state().objects[node]["spec"]["taints"].clone();
    let in_quarantine = json!([other,
        {"key": "fireflyer.dev/quarantine", "value": "bad", "effect": "NoSchedule"}]);

    finished(&api, "bad", 1000, "Fail", BOOT);
    step().await;
    assert_eq!(taints(), in_quarantine);
    let gauge = metrics.quarantined.with_label_values(&["weekly", "in"]);
    assert_eq!(gauge.get(), 1);
    let events = api.state().of("events").len();
    assert_eq!(events, 1);
    step().await;
    assert!(status(&api.state(), "bad")["quarantineTime"].is_string());
    let shown = api.state().objects[policy]["status"]["quarantined"].clone();
    assert_eq!(shown, json!(1));
    let writes = api.state().writes.len();
    step().await;
    assert_eq!(api.state().writes.len(), writes, "it settles");

    // A run of an earlier boot lets nobody out, one of this boot does.
    finished(&api, "earlier", 2000, "Pass", "boot-0");
    step().await;
    assert_eq!(taints(), in_quarantine);
    finished(&api, "now", 3000, "Pass", BOOT);
    step().await;
    assert_eq!(taints(), json!([other]));

    // Who lets a node out by hand is not overruled by the same run.
    finished(&api, "again", 4000, "Fail", BOOT);
    step().await;
    step().await;
    assert_ne!(taints(), json!([other]));
    api.change(|state| {
        let mut object = state.objects[node].clone();
        object["spec"] = json!({"taints": [other]});
        state.replace(node, object);
    });
    step().await;
    assert_eq!(taints(), json!([other]));
}

#[tokio::test]
async fn a_failed_run_outlives_its_time_while_its_node_is_in_quarantine() {
    let api = cluster(1);
    finished(&api, "bad", 1000, "Fail", BOOT);
    let taint = |taints: Value| {
        api.change(|state| {
            let path = "/api/v1/nodes/n000";
            let mut node = state.objects[path].clone();
            node["spec"] = json!({"taints": taints});
            state.replace(path, node);
        });
    };
    let is_expired = || {
        let cluster = api.listed();
        let later = Timestamp::from_millis(u64::MAX / 2);
        let found = observe::expired(&cluster.mirrors(), &Policy::default(), later);
        !found.0.is_empty()
    };
    assert!(is_expired());
    taint(json!([{"key": "fireflyer.dev/quarantine", "value": "bad", "effect": "NoSchedule"}]));
    assert!(!is_expired());
    taint(json!([]));
    assert!(is_expired());
}

fn jiff_now() -> String {
    k8s_openapi::jiff::Timestamp::now().to_string()
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
