//! An API server in memory: objects by path with versions, writes one after the other. It can hold
//! back answers, and die after a write.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use contract::termination::TerminationMessage;
use crds::NodeValidation;
use http::{Method, Request, Response};
use k8s_openapi::jiff;
use kube::Client;
use kube::client::Body;
use scheduler::JobKind;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cluster::{SharedCluster, key_of, now, version_of};
use crate::mirror::{Mirror, Mirrored};
use crate::proof::Masters;
use crate::testing::{failure, merge, response};
use crate::training_job::job_view::JobView;
use crate::training_job::mirrored_job::MirroredJob;
use crate::training_job::translate;
use crate::watch as watches;

/// Longer than anything here takes.
const DEADLINE: Duration = Duration::from_secs(20);

/// The operator's keys in these tests.
pub(super) fn masters() -> Masters {
    Masters::new([7; 32], None)
}

#[derive(Default)]
pub(super) struct State {
    pub(super) objects: BTreeMap<String, Value>,
    /// `METHOD path` of every write that was carried out.
    pub(super) writes: Vec<String>,
    /// Path of every object that was read.
    pub(super) reads: Vec<String>,
    /// Requests whose path contains this are held back before they are carried out.
    pub(super) held: Option<&'static str>,
    /// The same of reads alone.
    pub(super) held_reads: Option<&'static str>,
    /// How many are held back.
    pub(super) waiting: usize,
    /// A write whose path contains this is refused.
    pub(super) refused: Option<&'static str>,
    /// What admission says of a dry run of a pod; it takes everything if nothing is said here.
    pub(super) admission: Option<(u16, &'static str)>,
    /// Whether dry runs are held back.
    pub(super) dry_runs_hang: bool,
    /// Path and query of every dry run.
    pub(super) dry_runs: Vec<String>,
    /// The server dies after so many writes: the answer to the last does not come.
    pub(super) dies_after: Option<usize>,
    version: u64,
}

impl State {
    pub(super) fn is_dead(&self) -> bool {
        self.dies_after
            .is_some_and(|limit| self.writes.len() >= limit)
    }

    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    /// Objects of a kind, by the end of their collection's path.
    pub(super) fn of(&self, plural: &str) -> Vec<&Value> {
        let inside = format!("/{plural}/");
        self.objects
            .iter()
            .filter(|(path, _)| path.contains(&inside))
            .map(|(_, object)| object)
            .collect()
    }

    pub(super) fn delete(&mut self, path: &str) {
        if let Some(mut object) = self.objects.get(path).cloned() {
            object["metadata"]["deletionTimestamp"] = json!(jiff::Timestamp::now().to_string());
            self.put(path, object);
            self.collect(path);
        }
    }

    /// Removes an object that is being deleted when neither a finalizer nor a kubelet holds it.
    fn collect(&mut self, path: &str) {
        let is_over = |object: &Value| {
            let finalizers = object["metadata"]["finalizers"].as_array();
            let runs = object["kind"] == "Pod" && object["status"]["phase"] == "Running";
            let deleted = !object["metadata"]["deletionTimestamp"].is_null();
            deleted && !runs && finalizers.is_none_or(Vec::is_empty)
        };
        if self.objects.get(path).is_some_and(is_over) {
            self.objects.remove(path);
        }
    }

    /// The kubelet reports how the trainer of a pod ended, and that nothing of it runs any more.
    pub(super) fn ends(&mut self, path: &str, message: &TerminationMessage) {
        let text = String::from_utf8(message.encode()).unwrap();
        let ended = json!({"terminated": {"exitCode": 0, "message": text}});
        let mut pod = self.objects[path].clone();
        pod["status"] = json!({"phase": "Succeeded",
            "containerStatuses": [{"name": "trainer", "state": ended}]});
        self.put(path, pod);
        self.collect(path);
    }

    /// The kubelet reports that the validator of a pod has ended, and its report.
    pub(super) fn reports(&mut self, path: &str, report: &[u8]) {
        let text = String::from_utf8(report.to_vec()).unwrap();
        let ended = json!({"terminated": {"exitCode": 0, "message": text}});
        let mut pod = self.objects[path].clone();
        pod["status"] = json!({"phase": "Succeeded",
            "containerStatuses": [{"name": "validator", "state": ended}]});
        self.put(path, pod);
    }

    /// The kubelet reports what a pod says in its status.
    pub(super) fn says(&mut self, path: &str, status: Value) {
        let mut pod = self.objects[path].clone();
        pod["status"] = status;
        self.put(path, pod);
    }

    /// Somebody writes an object.
    pub(super) fn replace(&mut self, path: &str, object: Value) {
        self.put(path, object);
    }

    /// Whether a creation would be admitted; nothing is stored.
    fn dry_run(&self, path: &str, body: &Value) -> (u16, Value) {
        let path = path_of(&Method::POST, path, body);
        match self.admission {
            Some((code, words)) => failure(code, words),
            None if self.refused.is_some_and(|refused| path.contains(refused)) => {
                failure(403, "Forbidden")
            }
            None if self.objects.contains_key(&path) => failure(409, "AlreadyExists"),
            None => (201, body.clone()),
        }
    }

    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (u16, Value) {
        let key = path.trim_end_matches("/status").to_owned();
        if *method != Method::GET
            && self
                .refused
                .is_some_and(|refused| path_of(method, path, body).contains(refused))
        {
            return failure(403, "Forbidden");
        }
        if *method == Method::POST {
            let path = path_of(method, path, body);
            if self.objects.contains_key(&path) {
                return failure(409, "AlreadyExists");
            }
            let mut object = body.clone();
            object["metadata"]["uid"] = json!(path);
            object["metadata"]["creationTimestamp"] = json!(jiff::Timestamp::now().to_string());
            return (201, self.put(&path, object));
        }
        if *method == Method::DELETE && path.ends_with("/pods") {
            // Of one attempt, as far as these tests go.
            let inside = format!("{path}/");
            let paths = self.objects.keys();
            let pods: Vec<_> = paths.filter(|path| path.starts_with(&inside)).collect();
            for path in pods.into_iter().cloned().collect::<Vec<_>>() {
                self.delete(&path);
            }
            return (200, json!({"kind": "PodList", "items": []}));
        }
        let Some(mut object) = self.objects.get(&key).cloned() else {
            return failure(404, "NotFound");
        };
        match *method {
            Method::PATCH => {
                let expected = &body["metadata"]["resourceVersion"];
                if !expected.is_null() && *expected != object["metadata"]["resourceVersion"] {
                    return failure(409, "Conflict");
                }
                if body.is_array() {
                    let operations: json_patch::Patch =
                        serde_json::from_value(body.clone()).unwrap();
                    if json_patch::patch(&mut object, &operations).is_err() {
                        return failure(422, "Invalid");
                    }
                } else if path == key {
                    merge(&mut object, body);
                } else {
                    merge(&mut object["status"], &body["status"]);
                }
                let object = self.put(&key, object);
                self.collect(&key);
                (200, object)
            }
            Method::DELETE => {
                let expected = &body["preconditions"]["resourceVersion"];
                if !expected.is_null() && *expected != object["metadata"]["resourceVersion"] {
                    return failure(409, "Conflict");
                }
                self.delete(&key);
                (200, json!({"kind": "Status", "status": "Success"}))
            }
            _ => (200, object),
        }
    }
}

fn path_of(method: &Method, path: &str, body: &Value) -> String {
    match (method, body["metadata"]["name"].as_str()) {
        (&Method::POST, Some(name)) => format!("{path}/{name}"),
        _ => path.to_owned(),
    }
}

#[derive(Clone)]
pub(super) struct Api {
    state: Arc<Mutex<State>>,
    changes: Arc<watch::Sender<()>>,
}

impl Api {
    pub(super) fn new() -> Self {
        Self {
            state: Arc::default(),
            changes: Arc::new(watch::Sender::default()),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Changes something from outside; requests that are held back look again.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let done = change(&mut self.state());
        self.changes.send_replace(());
        done
    }

    /// Puts an object there, as somebody else would.
    pub(super) fn submit(&self, path: &str, object: Value) {
        self.change(|state| state.put(path, object));
    }

    /// Waits until it holds.
    pub(super) async fn until(&self, what: &str, holds: impl Fn(&State) -> bool) {
        let mut changes = self.changes.subscribe();
        let waiting = async {
            while !holds(&self.state()) {
                changes.changed().await.unwrap();
            }
        };
        let met = tokio::time::timeout(DEADLINE, waiting).await;
        assert!(
            met.is_ok(),
            "never: {what}; writes: {:#?}",
            self.state().writes
        );
    }

    pub(super) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let api = api.clone();
            async move { Ok::<_, Infallible>(api.serve(request).await) }
        });
        Client::new(service, "team")
    }

    async fn serve(&self, request: Request<Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await.unwrap_or_default();
        let body: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let path = parts.uri.path().to_owned();
        let query = parts.uri.query().unwrap_or_default();
        if query.contains("dryRun=All") {
            let mut changes = self.changes.subscribe();
            self.change(|state| {
                state
                    .dry_runs
                    .push(path_of(&parts.method, &path, &body) + "?" + query);
            });
            while self.state().dry_runs_hang && changes.changed().await.is_ok() {}
            let answer = self.change(|state| state.dry_run(&path, &body));
            return response(answer);
        }
        self.pass(&parts.method, &path_of(&parts.method, &path, &body))
            .await;
        let answer = self.change(|state| {
            let answer = state.answer(&parts.method, &path, &body);
            if parts.method == Method::GET {
                state.reads.push(path.clone());
            }
            if parts.method != Method::GET && answer.0 < 300 {
                let line = format!("{} {}", parts.method, path_of(&parts.method, &path, &body));
                state.writes.push(line);
            }
            answer
        });
        if self.state().is_dead() {
            pending::<()>().await;
        }
        response(answer)
    }

    /// Waits as long as the path is held back; for ever when the server is dead.
    async fn pass(&self, method: &Method, path: &str) {
        let mut changes = self.changes.subscribe();
        let held = |state: &State| {
            let reads = state.held_reads.filter(|_| method == Method::GET);
            let mut parts = state.held.into_iter().chain(reads);
            parts.any(|held| path.contains(held))
        };
        if held(&self.state()) {
            self.change(|state| state.waiting += 1);
        }
        loop {
            let wait = {
                let state = self.state();
                held(&state) || state.is_dead()
            };
            if !wait || changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Lists everything whenever that is asked for.
    pub(super) async fn lists(&self, cluster: &SharedCluster) {
        let mut asked = cluster.listings();
        asked.mark_changed();
        while asked.changed().await.is_ok() {
            self.deliver(cluster);
        }
    }

    /// Everything as a new operator lists it.
    pub(super) fn listed(&self) -> SharedCluster {
        let cluster = SharedCluster::default();
        self.deliver(&cluster);
        cluster
    }

    /// A new listing of everything.
    pub(super) fn deliver(&self, cluster: &SharedCluster) {
        let state = self.state();
        let request = *cluster.listings().borrow();
        let mut mirrors = cluster.mirrors();
        list(&state, request, "nodes", &mut mirrors.nodes, |view| {
            translate::node(view, &translate::TaintRules::default(), &cluster.labels)
        });
        list(&state, request, "trainingjobs", &mut mirrors.jobs, |job| {
            MirroredJob::guarded::<JobView>(job, JobKind::TrainingJob)
        });
        list(
            &state,
            request,
            "nodevalidations",
            &mut mirrors.validations,
            |job| MirroredJob::guarded::<NodeValidation>(job, JobKind::NodeValidation),
        );
        list(
            &state,
            request,
            "configmaps",
            &mut mirrors.attempts,
            |view| watches::attempt(&view, &masters()),
        );
        list(&state, request, "pods", &mut mirrors.pods, translate::pod);
        list(
            &state,
            request,
            "persistentvolumeclaims",
            &mut mirrors.claims,
            |view| Some(translate::claim(&view)),
        );
        list(&state, request, "fabrics", &mut mirrors.fabrics, Some);
        list(
            &state,
            request,
            "nodevalidationpolicies",
            &mut mirrors.policies,
            Some,
        );
        drop(mirrors);
        cluster.notify();
    }
}

fn list<K, T>(
    state: &State,
    request: u64,
    plural: &str,
    mirror: &mut Mirror<T>,
    translate: impl Fn(K) -> Option<T>,
) where
    K: kube::ResourceExt + DeserializeOwned,
    T: Mirrored,
{
    mirror.listing(request, now());
    for object in state.of(plural) {
        let object: K = serde_json::from_value(object.clone()).unwrap();
        let (key, version) = (key_of(&object), version_of(&object));
        if let Some(value) = translate(object) {
            mirror.listed(key, version, value);
        }
    }
    mirror.listing_done();
}
