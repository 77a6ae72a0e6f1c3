//! Tests of `apply` against an API server that answers from a script and notes what it was asked.

mod pods;

use std::convert::Infallible;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use daemon::Registry;
use http::Request;
use kube::Client;
use kube::client::Body;
use scheduler::{JobEvent, JobPhase, JobStatus, NewAttempt, PlacedNode, Timestamp};
use serde_json::{Value, json};

use super::*;
use crate::fence::WriteFence;
use crate::metrics::Metrics;
use crate::proof::{Masters, Signer};
use crate::testing::{failure, response};
use crate::training_job::job_view::JobView;
use crate::training_job::mirrored_job::MirroredJob;
use crate::training_job::translate::{self, AttemptProof};
use crate::training_job::write::{TIMEOUT, WritePurpose};
use crate::views::PodView;

/// How the server answers: `METHOD path?query` to status code and body.
type Script = fn(&str) -> (u16, Value);

struct World {
    applier: Applier,
    asked: Arc<Mutex<Vec<String>>>,
    /// Content types of the requests that had one.
    content_types: Arc<Mutex<Vec<String>>>,
    job: Arc<JobView>,
    key: JobKey,
}

/// A world with one job, `team/digits`, whose listed version is 5.
fn world(script: Script) -> World {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let content_types: Arc<Mutex<Vec<String>>> = Arc::default();
    let (noted, noted_types) = (Arc::clone(&asked), Arc::clone(&content_types));
    let service = tower::service_fn(move |request: Request<Body>| {
        let line = format!("{} {}", request.method(), request.uri());
        let answer = response(script(&line));
        noted.lock().unwrap().push(line);
        if let Some(content_type) = request.headers().get(http::header::CONTENT_TYPE) {
            let content_type = content_type.to_str().unwrap().to_owned();
            noted_types.lock().unwrap().push(content_type);
        }
        async move { Ok::<_, Infallible>(answer) }
    });
    let metrics = Metrics::new(&Registry::new("0").unwrap()).unwrap();
    let job: JobView = serde_json::from_value(job_json(5)).unwrap();
    let job = Arc::new(job);
    let cluster = Arc::new(SharedCluster::default());
    let at = ("team".to_owned(), "digits".to_owned());
    cluster.mirrors().jobs.created(
        at,
        5,
        MirroredJob::new(Workload::Training(Arc::clone(&job))),
        Instant::now(),
    );
    let settings = Settings {
        sidecar_image: "sidecar:1".to_owned(),
        validator_image: "validator:1".to_owned(),
        sidecar_numa: "auto".to_owned(),
        sidecar_env: Vec::new(),
        sidecar_pull_policy: "IfNotPresent".to_owned(),
        pull_secrets: Vec::new(),
        rendezvous: "10.0.0.1:9443".to_owned(),
        taints: translate::TaintRules::default(),
    };
    let writer = Writer::new(Client::new(service, "team"), metrics.writes);
    let masters = Arc::new(Masters::new([7; 32], None));
    let instance = "operator-0".to_owned();
    let applier = Applier {
        writer,
        cluster,
        settings,
        masters,
        instance,
        templates: Templates::default(),
    };
    let key = Workload::Training(Arc::clone(&job)).key().unwrap();
    World {
        applier,
        asked,
        content_types,
        job,
        key,
    }
}

fn job_json(version: u64) -> Value {
    json!({
        "apiVersion": "fireflyer.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "digits", "namespace": "team", "uid": "u-1", "resourceVersion": version.to_string()},
        "spec": {"nodes": 3, "template": {"spec": {"containers": [
            {"name": "trainer", "image": "i", "command": ["train"]}]}}},
    })
}

fn pod_json(rank: u32, owner: &str, version: u64) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("digits-1-{rank}"), "namespace": "team",
            "uid": format!("pod-{rank}"), "resourceVersion": version.to_string(),
            "labels": {"fireflyer.dev/job": "digits", "fireflyer.dev/job-uid": owner, "fireflyer.dev/attempt": "1", "fireflyer.dev/rank": rank.to_string()},
            "ownerReferences": [{"apiVersion": "fireflyer.dev/v1alpha1", "kind": "TrainingJob", "name": "digits", "uid": owner}],
        },
        "spec": {
            "nodeName": format!("n{rank}"),
            "containers": [{"name": "trainer", "resources": {"limits": {"fireflyer.dev/node": "1"}}}],
        },
        "status": {"phase": "Running"},
    })
}

impl World {
    async fn apply(&self, actions: Vec<Action>) -> Result<(), Stopped> {
        let fabric = crate::bootstrap::default_fabric(None).unwrap();
        let plan = JobPlan {
            job: self.key.clone(),
            actions,
        };
        let job = Some(Workload::Training(Arc::clone(&self.job)));
        let cancelled = CancellationToken::new();
        self.applier
            .apply(&plan, WritePurpose::Urgent, job, &fabric, &cancelled)
            .await
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// Three running pods, seen.
    fn with_pods(self) -> Self {
        for rank in 0..3 {
            let view: PodView = serde_json::from_value(pod_json(rank, "u-1", 10)).unwrap();
            self.applier.saw_pod(view);
        }
        self
    }

    /// The first attempt's ConfigMap, seen.
    fn with_attempt(self) -> Self {
        let attempt = scheduler::Attempt {
            job: self.key.clone(),
            number: 1,
            nodes: Vec::new(),
            crossing: false,
            created: Timestamp::default(),
            seen: Timestamp::default(),
        };
        let attempt = translate::MirroredAttempt {
            attempt,
            resume: None,
            terms: None,
            standing: AttemptProof::Proved(Signer::Current),
            uid: "map-1".into(),
        };
        let at = ("team".to_owned(), "digits-1".to_owned());
        self.applier
            .cluster
            .mirrors()
            .attempts
            .created(at, 5, attempt, Instant::now());
        self
    }

    fn delete_by(&self, rank: u32) -> Option<Timestamp> {
        let mirrors = self.applier.cluster.mirrors();
        mirrors
            .pods
            .get("team", &format!("digits-1-{rank}"))?
            .pod
            .delete_by
    }
}

fn record(phase: JobPhase) -> Action {
    let status = JobStatus {
        phase,
        attempt: 1,
        ..JobStatus::default()
    };
    Action::Record {
        status: Box::new(status),
        event: None,
    }
}

fn new_attempt() -> Action {
    let place = |node: &str| PlacedNode {
        node: node.into(),
        zone: "a".into(),
        leaf: "".into(),
    };
    let nodes = ["n0", "n1", "n2"].map(place).to_vec();
    Action::CreateAttempt(NewAttempt {
        number: 1,
        nodes,
        crossing: false,
        resume: None,
    })
}

fn deletions(ranks: &[u32]) -> Vec<Action> {
    let grace = Duration::from_secs(30);
    ranks
        .iter()
        .map(|&rank| Action::DeletePod {
            attempt: 1,
            rank,
            grace,
        })
        .collect()
}

#[tokio::test]
async fn without_a_fresh_lease_nothing_is_written() {
    let mut world = world(|line| match line {
        line if line.starts_with("GET") => (200, job_json(5)),
        line => panic!("written: {line}"),
    })
    .with_pods();
    let fence = WriteFence::default();
    world.applier.writer = world.applier.writer.fenced(fence.clone());
    // Renewed, but so long ago that a write could outlive it.
    fence.open_until(tokio::time::Instant::now() + TIMEOUT - Duration::from_millis(1));
    for actions in [
        vec![record(JobPhase::Running)],
        deletions(&[1, 2]),
        vec![new_attempt()],
    ] {
        let stopped = world.apply(actions).await.unwrap_err();
        assert_eq!(stopped.wait, Wait::Retry, "{}", stopped.error);
        assert!(
            stopped.error.to_string().contains("Lease"),
            "{}",
            stopped.error
        );
    }
}

#[tokio::test]
async fn a_status_that_somebody_else_changed_stops_the_job() {
    let world = world(|line| match line {
        line if line.starts_with("PATCH") => failure(409, "Conflict"),
        _ => (200, job_json(8)),
    });
    let stopped = world
        .apply(vec![record(JobPhase::Assigned), new_attempt()])
        .await
        .unwrap_err();
    assert_eq!(stopped.wait, Wait::Look, "{}", stopped.error);
    let asked = world.asked();
    assert_eq!(
        asked.len(),
        2,
        "nothing after the conflict but a look: {asked:?}"
    );
    let mirrors = world.applier.cluster.mirrors();
    let seen = mirrors
        .jobs
        .get("team", "digits")
        .unwrap()
        .whole()
        .unwrap()
        .metadata()
        .resource_version
        .clone();
    assert_eq!(
        seen.as_deref(),
        Some("8"),
        "the next plan starts from what is there"
    );
}

#[tokio::test]
async fn what_was_written_is_seen_before_the_watch_tells() {
    let world = world(|line| match line {
        line if line.starts_with("PATCH") => {
            let mut job = job_json(6);
            job["status"] = json!({"phase": "Assigned", "attempt": 1});
            (200, job)
        }
        _ => failure(500, "InternalError"),
    });
    world.apply(vec![record(JobPhase::Assigned)]).await.unwrap();
    let mirrors = world.applier.cluster.mirrors();
    let status = mirrors
        .jobs
        .get("team", "digits")
        .unwrap()
        .whole()
        .unwrap()
        .status()
        .unwrap();
    assert_eq!(status.attempt, 1);
}

#[tokio::test]
async fn a_status_is_written_as_its_changes_so_that_what_a_newer_release_wrote_survives() {
    let world = world(|_| (200, job_json(6)));
    world.apply(vec![record(JobPhase::Assigned)]).await.unwrap();
    assert_eq!(
        *world.content_types.lock().unwrap(),
        ["application/merge-patch+json"]
    );
    let asked = world.asked();
    let [line] = &asked[..] else {
        panic!("not one request: {asked:?}")
    };
    let (path, parameters) = line.split_once('?').unwrap();
    assert_eq!(
        path,
        "PATCH /apis/fireflyer.dev/v1alpha1/namespaces/team/trainingjobs/digits/status"
    );
    let parameters: Vec<&str> = parameters.split('&').collect();
    assert!(
        parameters.contains(&"fieldManager=fireflyer-operator"),
        "{line}"
    );
}

#[tokio::test]
async fn whatever_is_created_or_patched_carries_our_field_manager() {
    let world = world(|line| match line {
        line if line.contains("/configmaps") => (201, config_map(Some("u-1"))),
        line if line.contains("/pods") => (201, pod_json(1, "u-1", 10)),
        line if line.contains("/trainingjobs") => (200, job_json(6)),
        _ => (201, json!({})),
    })
    .with_attempt();
    let event = JobEvent {
        warning: false,
        reason: "Assigned",
        message: "3 nodes".to_owned(),
    };
    let actions = vec![
        Action::AddFinalizer,
        Action::Record {
            status: Box::default(),
            event: Some(event),
        },
        new_attempt(),
        Action::CreateKey { attempt: 1 },
        Action::CreatePod {
            attempt: 1,
            rank: 1,
            node: "n1".into(),
            finalizer: false,
        },
    ];
    world.apply(actions).await.unwrap();
    let asked = world.asked();
    let count = |verb: &str| asked.iter().filter(|line| line.starts_with(verb)).count();
    assert_eq!((count("PATCH"), count("POST")), (2, 4), "{asked:?}");
    for line in asked.iter().filter(|line| !line.starts_with("GET")) {
        assert!(line.contains("fieldManager=fireflyer-operator"), "{line}");
    }
}

fn config_map(owner: Option<&str>) -> Value {
    let owner = owner.map(|uid| {
        json!({"apiVersion": "fireflyer.dev/v1alpha1", "kind": "TrainingJob", "name": "digits", "uid": uid})
    });
    let owners: Vec<Value> = owner.into_iter().collect();
    let labels = json!({"fireflyer.dev/job": "digits", "fireflyer.dev/attempt": "1"});
    let metadata = json!({"name": "digits-1", "namespace": "team", "ownerReferences": owners, "labels": labels});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
}

/// What an existing ConfigMap leads to.
async fn wait_for(script: Script) -> Wait {
    let world = world(script);
    let wait = world.apply(vec![new_attempt()]).await.unwrap_err().wait;
    let posts: Vec<_> = world
        .asked()
        .into_iter()
        .filter(|line| line.starts_with("POST"))
        .collect();
    assert!(
        posts.len() == 1 && posts[0].contains("/configmaps"),
        "no key for an attempt that is not decided: {posts:?}"
    );
    wait
}

#[tokio::test]
async fn whose_an_existing_attempt_is_decides_what_helps() {
    let ours = wait_for(|line| match line {
        line if line.starts_with("POST") => failure(409, "AlreadyExists"),
        line if line.contains("configmaps") => (200, config_map(Some("u-1"))),
        _ => (200, job_json(5)),
    });
    assert_eq!(ours.await, Wait::Look);
    let earlier = wait_for(|line| match line {
        line if line.starts_with("POST") => failure(409, "AlreadyExists"),
        line if line.contains("configmaps") => (200, config_map(Some("u-0"))),
        _ => (200, job_json(5)),
    });
    assert_eq!(earlier.await, Wait::Retry);
    // It points to our job, but the operator did not write it.
    let planted = wait_for(|line| match line {
        line if line.starts_with("POST") => failure(409, "AlreadyExists"),
        line if line.contains("configmaps") => {
            let mut planted = config_map(Some("u-1"));
            planted["metadata"]["labels"] = Value::Null;
            (200, planted)
        }
        _ => (200, job_json(5)),
    });
    let Wait::Refused(why) = planted.await else {
        panic!("only somebody can help")
    };
    assert!(why.contains("exists and belongs to"), "{why}");
    let foreign = wait_for(|line| match line {
        line if line.starts_with("POST") => failure(409, "AlreadyExists"),
        line if line.contains("configmaps") => (200, config_map(None)),
        _ => (200, job_json(5)),
    });
    let Wait::Refused(why) = foreign.await else {
        panic!("only somebody can help")
    };
    assert_eq!(
        why,
        "ConfigMap digits-1 exists and belongs to somebody in namespace team: delete it or give the job another name"
    );
}

#[tokio::test]
async fn a_users_secret_named_like_the_attempt_is_neither_used_nor_removed() {
    // Somebody has a Secret digits-1.
    let world = world(|line| match line {
        line if line.ends_with("/secrets/digits-1") => panic!("touched: {line}"),
        line if line.starts_with("DELETE") => failure(404, "NotFound"),
        _ => (201, json!({})),
    });
    let (create, delete) = (
        Action::CreateKey { attempt: 1 },
        Action::DeleteAttempt { attempt: 1 },
    );
    world.apply(vec![create]).await.unwrap();
    let world = world.with_attempt();
    let name = world.applier.key_name(&world.key, 1, Signer::Current);
    assert!(
        name.starts_with("digits-1-") && name.len() > "digits-1-".len(),
        "{name}"
    );
    world.asked();
    world.apply(vec![delete]).await.unwrap();
    let asked = world.asked();
    assert!(
        asked[0].ends_with(&format!("/secrets/{name}?")),
        "{asked:?}"
    );
    assert!(
        asked[1].contains("/configmaps/digits-1"),
        "the Secret first: {asked:?}"
    );

    let again = JobKey {
        uid: "u-2".into(),
        ..world.key.clone()
    };
    assert_ne!(world.applier.key_name(&again, 1, Signer::Current), name);
    assert_ne!(world.applier.key_name(&world.key, 2, Signer::Current), name);
}

#[tokio::test]
async fn what_the_api_server_will_never_create_is_reported_and_other_refusals_are_tried_again() {
    let world = world(|line| match line {
        line if line.starts_with("GET") => (200, job_json(5)),
        _ => failure(422, "Invalid"),
    });
    let stopped = world.apply(vec![new_attempt()]).await.unwrap_err();
    assert!(
        matches!(&stopped.wait, Wait::Refused(why) if why.contains("Invalid")),
        "{stopped:?}"
    );
    // A status that is refused cannot be reported in the status.
    let stopped = world
        .apply(vec![record(JobPhase::Queued)])
        .await
        .unwrap_err();
    assert_eq!(stopped.wait, Wait::Retry);
}
