//! NodeValidationPolicies beside the leader's loop: which runs they create, and which nodes come
//! into quarantine and out of it.

use std::sync::Mutex;

use health::NodeUse;

use super::validations::{ask, status, validation};
use super::*;
use crate::fabric::NodesSeen;
use crate::node_validation::policy::PolicyKeeper;

fn keeper(api: &Api, metrics: &Metrics) -> PolicyKeeper {
    PolicyKeeper {
        cluster: Arc::new(api.listed()),
        writer: Writer::new(api.client(), metrics.writes.clone()),
        taints: TaintRules::default(),
        instance: "operator-0".to_owned(),
        metrics: metrics.clone(),
        waits: Mutex::default(),
    }
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

#[tokio::test]
async fn a_run_that_does_not_start_is_withdrawn_and_its_policy_says_why() {
    let api = cluster(2);
    ask(&api, "by-hand", "n000");
    let policy = "/apis/fireflyer.dev/v1alpha1/nodevalidationpolicies/weekly";
    let object = json!({
        "apiVersion": "fireflyer.dev/v1alpha1", "kind": "NodeValidationPolicy",
        "metadata": {"name": "weekly", "uid": "uid-weekly"}, "spec": {},
    });
    api.submit(policy, object);
    let metrics = Metrics::new(&Registry::new("0").unwrap()).unwrap();
    let keeper = keeper(&api, &metrics);
    let began = k8s_openapi::jiff::Timestamp::now().as_second();
    let step = |seconds: i64| {
        let (api, keeper) = (&api, &keeper);
        async move {
            api.deliver(&keeper.cluster);
            keeper.step_at(&NodesSeen::default(), began + seconds).await;
        }
    };
    let runs = || {
        let state = api.state();
        let runs = state.of("nodevalidations").into_iter();
        let nodes = runs.map(|run| run["spec"]["nodeName"].as_str().unwrap().to_owned());
        nodes.collect::<Vec<_>>()
    };
    step(0).await;
    assert_eq!(runs(), ["n000", "n001"]);
    let path = {
        let state = api.state();
        let mut paths = state.objects.keys();
        let path = paths.find(|path| path.contains("weekly-n001")).unwrap();
        path.clone()
    };
    let say = |status: Value| {
        api.change(|state| {
            let mut run = state.objects[&path].clone();
            run["status"] = status;
            state.replace(&path, run);
        });
    };
    say(
        json!({"phase": "Pending", "reason": "NodeReserved", "conditions": [],
        "message": "node n001 is kept for job team-a/big"}),
    );
    step(10).await;
    step(125).await;
    assert_eq!(runs(), ["n000", "n001"], "it has two minutes");
    // It starts just now, which the keeper has not seen.
    say(json!({"phase": "Assigned", "attempt": 1, "conditions": [], "startTime": jiff_now()}));
    keeper.step_at(&NodesSeen::default(), began + 130).await;
    assert_eq!(runs(), ["n000", "n001"], "what has started stays");
    say(
        json!({"phase": "Pending", "reason": "NodeReserved", "conditions": [],
        "message": "node n001 is kept for job team-a/big"}),
    );
    step(140).await;
    assert_eq!(runs(), ["n000"], "what people created is theirs");
    let events = api
        .state()
        .of("events")
        .into_iter()
        .cloned()
        .collect::<Vec<_>>();
    let [event] = &events[..] else {
        panic!("not one event: {events:#?}");
    };
    let note = event["note"].as_str().unwrap();
    assert_eq!(event["reason"], "Withdrawn");
    assert_eq!(event["regarding"]["name"], "weekly");
    assert!(note.contains("n001 did not start"), "{note}");
    assert!(note.contains("kept for job team-a/big"), "{note}");
    step(150).await;
    assert_eq!(runs(), ["n000"], "it is not created again at once");
    step(140 + 3600).await;
    assert_eq!(runs(), ["n000", "n001"]);
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
