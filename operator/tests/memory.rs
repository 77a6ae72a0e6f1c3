//! Measures what a cluster costs an operator that mirrors it, in resident memory: the real watches
//! list it from an API server that answers in pages. Each test has the process to itself: they take
//! turns.
#![expect(clippy::unwrap_used, reason = "test harness")]

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daemon::Registry;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use operator::cluster::SharedCluster;
use operator::metrics::Metrics;
use operator::proof::Masters;
use operator::training_job::translate::TaintRules;
use operator::watch;
use tokio_util::sync::CancellationToken;

/// One at a time measures the process.
static ALONE: Mutex<()> = Mutex::new(());

/// A figure of this process, in KiB.
fn memory(figure: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(figure));
    let kib = line
        .unwrap()
        .trim_matches(|letter: char| !letter.is_ascii_digit());
    kib.parse().unwrap()
}

/// Objects of one kind: how many, and each of them as JSON.
struct Kind {
    plural: &'static str,
    count: usize,
    object: fn(usize) -> String,
}

/// A page of a kind as the API server answers it, by the query of the request.
fn page(kind: Option<&Kind>, query: &str) -> String {
    let number = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let found = pairs.find(|(key, _)| *key == name);
        found.and_then(|(_, value)| value.parse::<usize>().ok())
    };
    let count = kind.map_or(0, |kind| kind.count);
    let from = number("continue").unwrap_or(0);
    let to = number("limit").map_or(count, |limit| count.min(from + limit));
    let mut text =
        r#"{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"9""#.to_owned();
    if to < count {
        text.push_str(&format!(r#","continue":"{to}""#));
    }
    text.push_str(r#"},"items":["#);
    for index in from..to {
        if index > from {
            text.push(',');
        }
        text.push_str(&(kind.unwrap().object)(index));
    }
    text.push_str("]}");
    text
}

/// Lists such a cluster into the mirrors of a new operator, and again, as one does that begins to
/// lead.
fn mirrored(kinds: &'static [Kind]) -> Arc<SharedCluster> {
    let service = tower::service_fn(move |request: Request<Body>| async move {
        let uri = request.uri();
        let query = uri.query().unwrap_or_default();
        if query.contains("watch=") {
            std::future::pending::<()>().await;
        }
        let kind = kinds.iter().find(|kind| uri.path().ends_with(kind.plural));
        let body = Body::from(page(kind, query).into_bytes());
        Ok::<_, Infallible>(Response::builder().status(200).body(body).unwrap())
    });
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(async {
        let cluster = Arc::new(SharedCluster::default());
        let ages = Metrics::new(&Registry::new("0").unwrap())
            .unwrap()
            .watch_age;
        let shutdown = CancellationToken::new();
        let masters = Arc::new(Masters::new([7; 32], None));
        let client = Client::new(service, "team");
        let mut watching = watch::start(
            &client,
            &cluster,
            TaintRules::default(),
            masters,
            ages,
            &shutdown,
        );
        while !cluster.mirrors().is_synced() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let request = cluster.list_again();
        let is_listed = || {
            let mirrors = cluster.mirrors();
            mirrors.nodes.is_listed(request)
                && mirrors.jobs.is_listed(request)
                && mirrors.pods.is_listed(request)
                && mirrors.claims.is_listed(request)
        };
        while !is_listed() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        watching.shutdown().await;
        cluster
    })
}

fn metadata(name: &str, index: usize, more: &str) -> String {
    format!(
        r#"{{"name":"{name}-{index:05}","namespace":"team","uid":"6f6c9d1e-{name}-{index:08}","resourceVersion":"{}","generation":1,"creationTimestamp":"2026-01-02T03:04:05Z"{more}}}"#,
        index + 1
    )
}

/// A job whose pod template has this beside its container.
fn job(index: usize, template: &str, status: &str) -> String {
    let metadata = metadata("job", index, "");
    format!(
        r#"{{"apiVersion":"fireflyer.dev/v1alpha1","kind":"TrainingJob","metadata":{metadata},"spec":{{"nodes":2,"zonePolicy":"PreferSingle","suspend":false,"template":{{"spec":{{"containers":[{{"name":"trainer","image":"i","command":["train"]}}]{template}}}}}}}{status}}}"#
    )
}

/// A job of 1.4 MB of the fields that cost most when they are read into a tree.
fn hostile(index: usize) -> String {
    let junk = r#"{"a":1},"#.repeat(1_400_000 / 8);
    job(index, &format!(r#","junk":[{junk}0]"#), "")
}

/// A job of 1.4 MB, whose labels have our prefix.
fn labelled(index: usize) -> String {
    let labels: Vec<String> = (0..1_400_000 / 26)
        .map(|label| format!(r#""fireflyer.dev/l{label:05}":"""#))
        .collect();
    let more = format!(r#","labels":{{{}}}"#, labels.join(","));
    let metadata = metadata("job", index, &more);
    format!(
        r#"{{"apiVersion":"fireflyer.dev/v1alpha1","kind":"TrainingJob","metadata":{metadata},"spec":{{"nodes":2,"zonePolicy":"PreferSingle","suspend":true,"template":{{"spec":{{"containers":[{{"name":"trainer","image":"i","command":["train"]}}]}}}}}}}}"#
    )
}

fn hostile_or_labelled(index: usize) -> String {
    if index.is_multiple_of(2) {
        hostile(index)
    } else {
        labelled(index)
    }
}

/// A pod of a gang whose image is a name of 60,000 letters, which no kubelet can parse: the job's
/// spec is below 64 KiB. The kubelet repeats the name in the pod's status.
fn misnamed(index: usize) -> String {
    let owner = r#"{"apiVersion":"fireflyer.dev/v1alpha1","kind":"TrainingJob","name":"job","uid":"6f6c9d1e-job"}"#;
    let image = "x".repeat(60_000);
    format!(
        r#"{{"metadata":{{"name":"job-1-{index}","namespace":"team","uid":"6f6c9d1e-pod-{index:08}","resourceVersion":"7","labels":{{"fireflyer.dev/job":"job","fireflyer.dev/job-uid":"6f6c9d1e-job","fireflyer.dev/attempt":"1","fireflyer.dev/rank":"{index}"}},"ownerReferences":[{owner}]}},"spec":{{"nodeName":"node-{index:05}","containers":[{{"name":"trainer","image":"{image}","resources":{{"limits":{{"fireflyer.dev/node":"1"}}}}}}]}},"status":{{"phase":"Pending","containerStatuses":[{{"name":"trainer","image":"{image}","state":{{"waiting":{{"reason":"InvalidImageName"}}}}}}]}}}}"#
    )
}

fn annotated(index: usize) -> String {
    let note = "x".repeat(256 * 1024);
    let more = format!(r#","annotations":{{"example.com/note":"{note}"}}"#);
    let metadata = metadata("claim", index, &more);
    format!(r#"{{"metadata":{metadata},"spec":{{"accessModes":["ReadWriteMany"]}}}}"#)
}

#[test]
fn what_a_pod_waits_for_fits_into_a_status() {
    let view = serde_json::from_str(&misnamed(0)).unwrap();
    let pod = operator::training_job::translate::pod(view).unwrap().pod;
    let scheduler::PodState::Blocked(problem) = pod.state else {
        panic!("{:?}", pod.state.clone());
    };
    assert!(
        problem.message.len() <= 1024 + 200,
        "{} bytes",
        problem.message.len()
    );
}

/// Jobs of unknown fields or of labels, a gang whose images have names of 60 KB, and notes of
/// claims.
#[test]
fn whatever_one_tenant_writes_fits_beside_everything_else() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const KINDS: &[Kind] = &[
        Kind {
            plural: "/trainingjobs",
            count: 40,
            object: hostile_or_labelled,
        },
        Kind {
            plural: "/pods",
            count: 1_250,
            object: misnamed,
        },
        Kind {
            plural: "/persistentvolumeclaims",
            count: 500,
            object: annotated,
        },
    ];
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = memory("VmRSS:");
    let cluster = mirrored(KINDS);
    let peak = memory("VmHWM:") - before;
    assert_eq!(cluster.mirrors().jobs.len(), 40);
    assert_eq!(cluster.mirrors().pods.len(), 1_250);
    assert_eq!(cluster.mirrors().claims.len(), 500);
    // The limit of the chart is 256 MiB, of which an operator of 1,250 nodes needs 64.
    assert!(peak < 64 * 1024, "{peak} KiB at once");
}

/// A node as feature discovery labels it: 125 labels that all nodes have, and five of its own.
fn node(index: usize) -> String {
    let shared = (0..125).map(|feature| {
        format!(r#""feature.node.kubernetes.io/cpu-cpuid.FEATURE{feature:03}":"true","#)
    });
    let shared: String = shared.collect();
    let own = (0..4).map(|own| format!(r#""example.com/serial-{own}":"{own}-{index:08}","#));
    let own: String = own.collect();
    let class = r#""fireflyer.dev/node-class":"a100""#;
    let more = format!(r#","labels":{{{shared}{own}{class}}}"#);
    let metadata = metadata("node", index, &more);
    format!(
        r#"{{"metadata":{metadata},"spec":{{}},"status":{{"conditions":[{{"type":"Ready","status":"True"}}],"allocatable":{{"fireflyer.dev/node":"1","nvidia.com/gpu":"8","fireflyer.dev/rdma":"64","cpu":"64","memory":"430497152Ki"}},"nodeInfo":{{"bootID":"6f6c9d1e-node-{index:08}"}}}}}}"#
    )
}

/// Jobs whose specs have 20 KB; those above the first 15,000 have ended.
fn many_jobs(index: usize) -> String {
    let variable = |number: usize| {
        let value = "x".repeat(160);
        format!(r#"{{"name":"SETTING_{number:03}","value":"{value}"}},"#)
    };
    let env: String = (0..100).map(variable).collect();
    let fetch = format!(r#","initContainers":[{{"name":"fetch","env":[{env}{{}}]}}]"#);
    let condition = |kind: &str| {
        format!(
            r#"{{"type":"{kind}","status":"True","reason":"NodesFree","message":"4 of 4 nodes","lastTransitionTime":"2026-01-02T03:04:05Z"}}"#
        )
    };
    let end = if index < 15_000 {
        r#""phase":"Running""#
    } else {
        r#""phase":"Succeeded","completionTime":"2026-01-02T03:04:05Z","observedGeneration":1"#
    };
    let status = format!(
        r#","status":{{{end},"attempt":1,"nodeClass":"a100","procsPerNode":8,"zones":["a"],"conditions":[{},{}],"attempts":[{{"number":1,"nodes":2,"nodeNames":["node-00001","node-00002"],"startTime":"2026-01-02T03:04:05Z"}}]}}"#,
        condition("Assigned"),
        condition("Running"),
    );
    job(index, &fetch, &status)
}

fn pod(index: usize) -> String {
    let (number, rank) = (index / 2, index % 2);
    let owner = format!(
        r#"{{"apiVersion":"fireflyer.dev/v1alpha1","kind":"TrainingJob","name":"job-{number:05}","uid":"6f6c9d1e-job-{number:08}"}}"#
    );
    let pad = "x".repeat(6000);
    format!(
        r#"{{"metadata":{{"name":"job-{number:05}-1-{rank}","namespace":"team","uid":"6f6c9d1e-pod-{index:08}","resourceVersion":"7","labels":{{"fireflyer.dev/job":"job-{number:05}","fireflyer.dev/job-uid":"6f6c9d1e-job-{number:08}","fireflyer.dev/attempt":"1","fireflyer.dev/rank":"{rank}"}},"ownerReferences":[{owner}]}},"spec":{{"nodeName":"node-{index:05}","containers":[{{"name":"trainer","args":["{pad}"],"resources":{{"limits":{{"fireflyer.dev/node":"1"}}}}}}]}},"status":{{"phase":"Running","podIP":"10.0.0.1","containerStatuses":[{{"name":"trainer","image":"registry.example.com/trainer:1","state":{{"running":{{}}}}}}]}}}}"#
    )
}

/// As large a cluster as one operator is for. Some minutes without optimisation.
#[test]
#[ignore = "some minutes; prints what a large cluster costs"]
fn ten_thousand_nodes_and_thirty_five_thousand_jobs_fit_into_200_megabytes() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const KINDS: &[Kind] = &[
        Kind {
            plural: "/nodes",
            count: 10_000,
            object: node,
        },
        Kind {
            plural: "/trainingjobs",
            count: 35_000,
            object: many_jobs,
        },
        Kind {
            plural: "/pods",
            count: 10_000,
            object: pod,
        },
    ];
    let before = memory("VmRSS:");
    let cluster = mirrored(KINDS);
    let (after, peak) = (memory("VmRSS:") - before, memory("VmHWM:") - before);
    let mirrors = cluster.mirrors();
    assert_eq!((mirrors.nodes.len(), mirrors.pods.len()), (10_000, 10_000));
    assert_eq!(
        (mirrors.jobs.len(), mirrors.jobs.resting_len()),
        (35_000, 20_000)
    );
    println!(
        "{} MB when listed, {} MB at once",
        after / 1000,
        peak / 1000
    );
    assert!(peak < 200 * 1000, "{peak} KB at once");
}
