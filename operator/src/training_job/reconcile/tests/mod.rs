//! The loop against an API server in memory: what happens side by side, and what a killed operator
//! leaves to the next.

mod absence;
mod api;
mod dry_runs;
mod forged;
mod members;
mod policies;
mod templates;
mod validations;

use std::collections::BTreeSet;
use std::sync::Arc;

use daemon::Registry;
use prometheus::core::Collector;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::leader::Role;
use crate::training_job::mirrored_job::MirroredJob;
use crate::training_job::pod::Settings;
use crate::training_job::translate::TaintRules;
use crate::training_job::write::{IN_FLIGHT, Writer};
use api::{Api, State};

/// A cluster of so many nodes with a Fabric, and no jobs.
/// What every node calls its present boot.
const BOOT: &str = "boot-1";

fn cluster(nodes: usize) -> Api {
    let api = Api::new();
    for index in 0..nodes {
        let name = format!("n{index:03}");
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"fireflyer.dev/node-class": "a100"}},
            "status": {
                "nodeInfo": {"bootID": BOOT},
                "conditions": [{"type": "Ready", "status": "True"}],
                "allocatable": {"fireflyer.dev/node": "1", "nvidia.com/gpu": "8", "fireflyer.dev/rdma": "64"},
            },
        });
        api.submit(&format!("/api/v1/nodes/{name}"), node);
    }
    let fabric = json!({
        "apiVersion": "fireflyer.dev/v1alpha1", "kind": "Fabric",
        "metadata": {"name": "default"},
        "spec": bootstrap::default_fabric(None).unwrap(),
    });
    api.submit("/apis/fireflyer.dev/v1alpha1/fabrics/default", fabric);
    api
}

fn path(job: &str) -> String {
    format!("/apis/fireflyer.dev/v1alpha1/namespaces/team/trainingjobs/{job}")
}

fn submit(api: &Api, job: &str, nodes: usize) {
    let object = json!({
        "apiVersion": "fireflyer.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {
            "name": job, "namespace": "team", "uid": format!("uid-{job}"),
            "creationTimestamp": "2026-01-02T03:04:05Z",
        },
        "spec": {"nodes": nodes, "template": {"spec": {"containers": [
            {"name": "trainer", "image": "i", "command": ["train"]}]}}},
    });
    api.submit(&path(job), object);
}

/// An operator that has listed everything and leads.
struct Leader {
    cluster: Arc<SharedCluster>,
    leading: tokio::task::JoinHandle<()>,
    reports: watch::Sender<Reports>,
    gone: watch::Receiver<Vec<Gone>>,
}

/// A loop that has listed everything.
struct Ready {
    cluster: Arc<SharedCluster>,
    reconciler: Reconciler,
    metrics: Metrics,
    reports: watch::Sender<Reports>,
    gone: watch::Receiver<Vec<Gone>>,
}

/// What writes, over mirrors that have listed everything.
fn applier(api: &Api, metrics: &Metrics) -> Arc<Applier> {
    Arc::new(Applier {
        writer: Writer::new(api.client(), metrics.writes.clone()),
        cluster: Arc::new(api.listed()),
        settings: Settings {
            sidecar_image: "sidecar:1".to_owned(),
            validator_image: "validator:1".to_owned(),
            sidecar_numa: "auto".to_owned(),
            sidecar_env: Vec::new(),
            sidecar_pull_policy: "IfNotPresent".to_owned(),
            pull_secrets: Vec::new(),
            rendezvous: "10.0.0.1:9443".to_owned(),
            taints: TaintRules::default(),
        },
        masters: Arc::new(api::masters()),
        instance: "operator-0".to_owned(),
        templates: apply::Templates::default(),
    })
}

fn ready(api: &Api) -> Ready {
    let metrics = Metrics::new(&Registry::new("0").unwrap()).unwrap();
    let applier = applier(api, &metrics);
    let cluster = Arc::clone(&applier.cluster);
    let fabric = bootstrap::default_fabric(None).unwrap();
    let (sender, reports) = watch::channel(Reports::default());
    let (gone_sender, gone) = watch::channel(Vec::new());
    let (stalled_sender, _stalled) = watch::channel(Vec::new());
    Ready {
        reconciler: Reconciler::new(
            Arc::clone(&cluster),
            applier,
            fabric,
            reports,
            gone_sender,
            stalled_sender,
            metrics.clone(),
        ),
        cluster,
        metrics,
        reports: sender,
        gone,
    }
}

fn lead(api: &Api) -> Leader {
    let Ready {
        cluster,
        mut reconciler,
        metrics: _,
        reports,
        gone,
    } = ready(api);
    let (listing, mirrored) = (api.clone(), Arc::clone(&cluster));
    let leading = tokio::spawn(async move {
        let token = CancellationToken::new();
        tokio::select! {
            () = reconciler.lead(&token) => {}
            () = listing.lists(&mirrored) => {}
        }
    });
    Leader {
        cluster,
        leading,
        reports,
        gone,
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.leading.abort();
    }
}

/// So many seconds, in which the watches go on.
async fn pass(api: &Api, leader: &Leader, seconds: usize) {
    for _ in 0..seconds {
        tokio::time::sleep(Duration::from_secs(1)).await;
        api.deliver(&leader.cluster);
    }
}

fn phase(state: &State, job: &str) -> String {
    let job = state.objects.get(&path(job));
    job.and_then(|job| job["status"]["phase"].as_str())
        .unwrap_or_default()
        .to_owned()
}

fn pods(state: &State, job: &str) -> usize {
    let of = |pod: &&&Value| pod["metadata"]["labels"]["fireflyer.dev/job"] == job;
    state.of("pods").iter().filter(of).count()
}

#[tokio::test]
async fn others_are_decided_and_written_while_a_gang_is_being_created() {
    let big = IN_FLIGHT + 6;
    let api = cluster(big + 2);
    submit(&api, "big", big);
    api.change(|state| state.held = Some("/pods/big-"));
    let leader = lead(&api);
    // A gang does not take every request that may be in flight.
    let most = IN_FLIGHT * 3 / 4;
    api.until("pods of the gang are on their way", |state| {
        state.waiting == most
    })
    .await;
    submit(&api, "one", 1);
    submit(&api, "two", 2);
    api.deliver(&leader.cluster);
    api.until("the small job has its pod", |state| pods(state, "one") == 1)
        .await;
    api.until("the other one waits", |state| {
        phase(state, "two") == "Queued"
    })
    .await;
    api.change(|state| {
        assert_eq!((state.waiting, pods(state, "big")), (most, 0));
        state.held = None;
    });
    api.until("the gang is whole", |state| {
        phase(state, "big") == "Starting"
    })
    .await;
    let state = api.state();
    assert_eq!(pods(&state, "big"), big);
    let creations: Vec<_> = state
        .writes
        .iter()
        .filter(|line| line.starts_with("POST"))
        .collect();
    let distinct: BTreeSet<_> = creations.iter().collect();
    assert_eq!(distinct.len(), creations.len(), "nothing is created twice");
}

#[tokio::test]
async fn after_a_refused_pod_no_more_are_tried_and_the_job_says_why() {
    let api = cluster(200);
    submit(&api, "big", 200);
    api.change(|state| state.refused = Some("/pods/big-1-7"));
    let leader = lead(&api);
    api.until("the refusal ends the attempt", |state| {
        phase(state, "big") == "Restarting"
    })
    .await;
    api.until("its pods are gone", |state| pods(state, "big") == 0)
        .await;
    api.deliver(&leader.cluster);
    let is_reported = |state: &State| {
        let conditions = &state.objects[&path("big")]["status"]["conditions"];
        let is_told = |one: &Value| one["type"] == "Assigned" && one["reason"] == "Refused";
        conditions
            .as_array()
            .is_some_and(|all| all.iter().any(is_told))
    };
    api.until("the refusal is reported", is_reported).await;
    let state = api.state();
    let created = state
        .writes
        .iter()
        .filter(|line| line.contains("POST") && line.contains("/pods/"));
    assert!(created.count() < 200);
    assert_eq!(state.of("configmaps").len() + state.of("secrets").len(), 0);
}

#[tokio::test]
async fn a_new_leader_plans_nothing_before_it_has_listed_what_the_last_one_wrote() {
    let api = cluster(1);
    // What it has listed as a standby is of before the job.
    let Ready {
        cluster: stale,
        mut reconciler,
        ..
    } = ready(&api);
    submit(&api, "one", 1);
    let token = CancellationToken::new();
    let leading = reconciler.lead(&token);
    let listed = async {
        let mut asked = stale.listings();
        asked.wait_for(|asked| *asked > 0).await.unwrap();
        stale.notify();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(api.state().writes.is_empty(), "planned on what is old");
        api.deliver(&stale);
        api.until("the job starts", |state| phase(state, "one") == "Starting")
            .await;
        token.cancel();
    };
    tokio::join!(leading, listed);
}

#[tokio::test]
async fn a_job_that_is_deleted_while_its_gang_is_created_gets_no_more_pods() {
    let big = IN_FLIGHT * 2;
    let api = cluster(big);
    submit(&api, "big", big);
    api.change(|state| state.held = Some("/pods/big-"));
    let leader = lead(&api);
    let most = IN_FLIGHT * 3 / 4;
    api.until("pods of the gang are on their way", |state| {
        state.waiting == most
    })
    .await;
    let mut job = api.state().objects[&path("big")].clone();
    job["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:05:05Z");
    api.submit(&path("big"), job);
    // A pass that has seen this one has seen the deletion too.
    submit(&api, "one", 1);
    api.deliver(&leader.cluster);
    api.until("the next pass has been made", |state| {
        !phase(state, "one").is_empty()
    })
    .await;
    api.change(|state| state.held = None);
    api.until("what was created is deleted", |state| {
        state.writes.iter().any(|line| line.starts_with("DELETE"))
    })
    .await;
    let state = api.state();
    let created = |line: &&String| line.starts_with("POST") && line.contains("/pods/big-");
    let created = state.writes.iter().filter(created).count();
    assert!(created <= most, "{created} of {big}");
}

#[test]
fn a_backlog_of_jobs_that_are_over_costs_a_pass_nothing() {
    let api = cluster(200);
    for index in 0..300 {
        submit(&api, &format!("job-{index:03}"), 1 + index % 7);
    }
    let (without, with) = (api.listed(), api.listed());
    let over = kept_over();
    for index in 0..50_000 {
        let mut over = over.clone();
        let name = format!("over-{index:05}");
        if let MirroredJob::Over(over) = &mut over {
            over.key.name = name.as_str().into();
        }
        let at = ("team".to_owned(), name);
        with.mirrors().jobs.applied(at, 1, Some(over));
    }
    let timed = |cluster: &SharedCluster| {
        let began = std::time::Instant::now();
        let snapshot = observe::snapshot(&cluster.mirrors(), &Reports::default(), &[]).unwrap();
        let plan = scheduler::plan(&snapshot, &Policy::default(), Timestamp::default());
        (began.elapsed(), plan.jobs.len())
    };
    // By turns, so that other load meets both.
    let tries = (0..15).map(|_| (timed(&without), timed(&with)));
    let (without, with): (Vec<_>, Vec<_>) = tries.unzip();
    let ((without, jobs), (with, same)) = (
        without.into_iter().min().unwrap(),
        with.into_iter().min().unwrap(),
    );
    println!("{without:?} without, {with:?} with 50,000 jobs that are over");
    assert_eq!(jobs, same);
    // The goal is 1.1; other tests run at the same time.
    assert!(with < without * 2, "{with:?} instead of {without:?}");
}

fn kept_over() -> MirroredJob {
    let job = json!({
        "apiVersion": "fireflyer.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": "over", "namespace": "team", "uid": "u-0", "resourceVersion": "1"},
        "spec": {"nodes": 1, "template": {"spec": {"containers": [
            {"name": "trainer", "image": "i", "command": ["train"]}]}}},
        "status": {"phase": "Succeeded", "attempt": 1, "completionTime": "2026-01-02T03:04:05Z"},
    });
    let mirrored = MirroredJob::new(Workload::Training(Arc::new(
        serde_json::from_value(job).unwrap(),
    )));
    assert!(mirrored.whole().is_none());
    mirrored
}

/// Both gangs are whole, once each.
fn started(state: &State) -> bool {
    ["a", "b"].iter().all(|job| phase(state, job) == "Starting")
}

#[tokio::test]
async fn whatever_write_an_operator_dies_after_the_next_one_starts_the_same_gangs() {
    let mut written = usize::MAX;
    let mut dies_after = 0;
    while dies_after < written {
        dies_after += 1;
        let api = cluster(5);
        submit(&api, "a", 3);
        submit(&api, "b", 2);
        api.change(|state| state.dies_after = Some(dies_after));
        let first = lead(&api);
        api.until("the operator is dead, or done", |state| {
            state.is_dead() || started(state)
        })
        .await;
        drop(first);
        api.change(|state| state.dies_after = None);
        let _second = lead(&api);
        api.until("both gangs start", started).await;

        let state = api.state();
        let nodes: BTreeSet<String> = state
            .of("pods")
            .iter()
            .map(|pod| pod["spec"]["affinity"].to_string())
            .collect();
        assert_eq!(
            (state.of("pods").len(), nodes.len()),
            (5, 5),
            "{dies_after}"
        );
        assert_eq!(state.of("configmaps").len(), 2, "{dies_after}");
        assert_eq!(state.of("secrets").len(), 2, "{dies_after}");
        for job in ["a", "b"] {
            assert_eq!(
                state.objects[&path(job)]["status"]["attempt"],
                1,
                "{dies_after}"
            );
        }
        written = state.writes.len();
    }
    // Finalizer, two records, ConfigMap, Secret, pods and an Event for each.
    assert!(dies_after >= 2 * 6 + 5, "only {dies_after} writes");
}

#[tokio::test]
async fn a_replica_that_lost_the_lead_shows_no_jobs_and_no_nodes() {
    let api = cluster(1);
    submit(&api, "one", 1);
    let Ready {
        cluster,
        reconciler,
        metrics,
        reports: _open,
        gone: _,
    } = ready(&api);
    let (role, follows) = watch::channel(Role::Leading);
    let shutdown = CancellationToken::new();
    let shown = metrics.clone();
    let listing = api.lists(&cluster);
    let leading = crate::run::lead(reconciler, follows, &metrics, &shutdown);
    let leading = async {
        tokio::select! {
            () = leading => {}
            () = listing => {}
        }
    };
    let deposed = async {
        api.until("the job starts", |state| phase(state, "one") == "Starting")
            .await;
        let series = || {
            let families = [shown.jobs.collect(), shown.nodes.collect()];
            families.map(|family| family[0].get_metric().len())
        };
        assert_eq!(
            series(),
            [9, 1],
            "a series for each phase, and one for the node"
        );
        role.send_replace(Role::Standby { leader: None });
        while shown.leader.get() == 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(series(), [0, 0]);
        shutdown.cancel();
    };
    let both = async { tokio::join!(leading, deposed) };
    tokio::time::timeout(Duration::from_secs(60), Box::pin(both))
        .await
        .unwrap();
}
