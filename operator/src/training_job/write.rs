//! One write to the API server: bounded in number and time, counted, and its failures kept apart
//! into what the caller has to do about it.

use std::sync::Arc;
use std::time::Duration;

use daemon::chain;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Request};
use kube::core::Status;
use kube::{Client, Resource};
use prometheus::IntCounterVec;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use crate::fence::WriteFence;

/// Requests in flight that give nodes to jobs: enough for some 120 pods a second at the API
/// server's 0.5 s under load, few enough that priority and fairness does not queue other clients
/// behind us.
pub const IN_FLIGHT: usize = 64;
/// Beside those, requests for what somebody waits for, and for notes.
const URGENT: usize = 16;
const NOTES: usize = 4;
const DRY_RUNS: usize = 8;
/// Pod templates that are read at once.
const TEMPLATES: usize = 8;
/// Requests for storage: a node that is lost changes thousands of chains.
pub const STORAGE_IN_FLIGHT: usize = 8;
/// Verb of a creation that stores nothing.
const DRY_RUN: &str = "dry_run";
/// Within which a request must be answered. With it a write is sent only while the Lease was
/// renewed less than 7 s ago (15 s that it lasts, less this).
pub const TIMEOUT: Duration = Duration::from_secs(8);

/// Why a write did not happen, as far as the caller must know.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It exists already.
    #[error("failed to {what}: it exists already")]
    Exists { what: String },
    /// It changed in the meantime, or is another object of the same name.
    #[error("failed to {what}: it has changed in the meantime")]
    Conflict { what: String },
    /// It does not exist.
    #[error("failed to {what}: it does not exist")]
    Missing { what: String },
    /// The API server will not have it, however often it is asked.
    #[error("failed to {what}: {reason}")]
    Refused { what: String, reason: String },
    /// This replica may not lead any more.
    #[error("failed to {what}: the Lease was not renewed in time")]
    Deposed { what: String },
    /// Whether it happened is not known.
    #[error("failed to {what}: {reason}")]
    Unknown { what: String, reason: String },
}

/// What a write is for: each kind has requests of its own, so that none queues behind another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WritePurpose {
    /// Commits of gangs that go on, interruptions, releases: somebody waits until then.
    #[default]
    Urgent,
    /// Giving nodes to jobs.
    Admission,
    /// Saying why a job waits.
    Note,
    /// Asking what the API server would refuse.
    DryRun,
    /// Pools and chains of storage.
    Storage,
    /// Reading the template from which pods are built.
    Template,
}

/// An object that is to be created, as text.
#[derive(Clone, Debug)]
pub struct NewObject {
    name: String,
    json: Vec<u8>,
}

impl From<&Value> for NewObject {
    fn from(object: &Value) -> Self {
        let name = object["metadata"]["name"].as_str().unwrap_or("(generated)");
        Self {
            name: name.to_owned(),
            json: object.to_string().into_bytes(),
        }
    }
}

/// Sends writes. Cheap to clone; clones share the limits.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    limits: Arc<[Semaphore; 6]>,
    purpose: WritePurpose,
    writes: IntCounterVec,
    /// None: also without the Lease.
    fence: Option<WriteFence>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer")
            .field("lanes", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Writer {
    /// A writer that counts into `writes` (labels: verb, kind, outcome).
    pub fn new(client: Client, writes: IntCounterVec) -> Self {
        Self {
            client,
            limits: Arc::new(
                [
                    URGENT,
                    IN_FLIGHT,
                    NOTES,
                    DRY_RUNS,
                    STORAGE_IN_FLIGHT,
                    TEMPLATES,
                ]
                .map(Semaphore::new),
            ),
            purpose: WritePurpose::Urgent,
            writes,
            fence: None,
        }
    }

    /// The same, for writes of another kind.
    pub fn for_purpose(&self, purpose: WritePurpose) -> Self {
        Self {
            purpose,
            ..self.clone()
        }
    }

    /// The same, but it writes only while the Lease is surely ours.
    pub fn fenced(self, fence: WriteFence) -> Self {
        Self {
            fence: Some(fence),
            ..self
        }
    }

    /// Creates an object; the answer is read as `K`.
    pub async fn create<K>(&self, namespace: &str, object: impl Into<NewObject>) -> Result<K, Error>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let NewObject { name, json } = object.into();
        let request = Request::new(path::<K>(namespace)).create(&created_by(), json);
        self.send::<K>("create", &name, request).await
    }

    /// Asks whether an object could be created, through all of admission; nothing is stored. With
    /// `strict`, fields that the API server does not know are refused instead of dropped.
    pub async fn dry_run<K>(
        &self,
        namespace: &str,
        object: NewObject,
        strict: bool,
    ) -> Result<(), Error>
    where
        K: Resource<DynamicType = ()>,
    {
        let NewObject { name, json } = object;
        let params = PostParams {
            dry_run: true,
            ..created_by()
        };
        let mut request = Request::new(path::<K>(namespace)).create(&params, json);
        if let Ok(request) = &mut request
            && strict
            && let Ok(uri) = format!("{}&fieldValidation=Strict", request.uri()).parse()
        {
            *request.uri_mut() = uri;
        }
        self.raw::<K, IgnoredAny>(DRY_RUN, &name, request)
            .await
            .map(drop)
    }

    /// Applies a patch to an object, or to its status.
    pub async fn patch<K>(
        &self,
        namespace: &str,
        name: &str,
        subresource: Option<&str>,
        patch: &Patch<Value>,
    ) -> Result<K, Error>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let manager = PatchParams::apply(crds::names::FIELD_MANAGER);
        let params = if matches!(patch, Patch::Apply(_)) {
            manager.force()
        } else {
            manager
        };
        let request = Request::new(path::<K>(namespace));
        let request = match subresource {
            Some(subresource) => request.patch_subresource(subresource, name, &params, patch),
            None => request.patch(name, &params, patch),
        };
        self.send::<K>("patch", name, request).await
    }

    /// Deletes an object. The answer is what is left of it, if anything is.
    pub async fn delete<K>(
        &self,
        namespace: &str,
        name: &str,
        params: &DeleteParams,
    ) -> Result<Option<K>, Error>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let request = Request::new(path::<K>(namespace)).delete(name, params);
        let answer = self
            .raw::<K, Box<RawValue>>("delete", name, request)
            .await?;
        let Ok(Answer { kind }) = serde_json::from_str(answer.get()) else {
            return Ok(None);
        };
        // A Status means that nothing is left.
        let left = kind.as_deref() != Some("Status");
        Ok(left
            .then(|| serde_json::from_str(answer.get()).ok())
            .flatten())
    }

    /// Deletes all objects that a label selector names.
    pub async fn delete_all<K>(
        &self,
        namespace: &str,
        selector: &str,
        params: &DeleteParams,
    ) -> Result<(), Error>
    where
        K: Resource<DynamicType = ()>,
    {
        let selected = ListParams::default().labels(selector);
        let request = Request::new(path::<K>(namespace)).delete_collection(params, &selected);
        self.raw::<K, IgnoredAny>("delete_all", selector, request)
            .await
            .map(drop)
    }

    /// Reads an object, to learn what a write found or did.
    pub async fn get<K>(&self, namespace: &str, name: &str) -> Result<K, Error>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        let request = Request::new(path::<K>(namespace)).get(name, &Default::default());
        self.send::<K>("get", name, request).await
    }

    async fn send<K>(
        &self,
        verb: &'static str,
        name: &str,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<K, Error>
    where
        K: Resource<DynamicType = ()> + DeserializeOwned,
    {
        self.raw::<K, K>(verb, name, request).await
    }

    async fn raw<K, A>(
        &self,
        verb: &'static str,
        name: &str,
        request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<A, Error>
    where
        K: Resource<DynamicType = ()>,
        A: DeserializeOwned,
    {
        let kind = K::kind(&());
        let what = format!("{verb} {kind} {name}");
        let refused = |reason: String| Error::Refused {
            what: what.clone(),
            reason,
        };
        let request = request.map_err(|error| refused(error.to_string()))?;
        let [urgent, admission, note, dry_run, storage, template] = &*self.limits;
        let permits = match self.purpose {
            WritePurpose::Urgent => urgent,
            WritePurpose::Admission => admission,
            WritePurpose::Note => note,
            WritePurpose::DryRun => dry_run,
            WritePurpose::Storage => storage,
            WritePurpose::Template => template,
        };
        let _permit = permits
            .acquire()
            .await
            .map_err(|error| refused(error.to_string()))?;
        let may_write = self.fence.as_ref().is_none_or(|fence| fence.lets(TIMEOUT));
        if verb != "get" && !may_write {
            return Err(Error::Deposed { what });
        }
        let answer = tokio::time::timeout(TIMEOUT, self.client.request::<A>(request)).await;
        let result = match answer {
            Ok(Ok(object)) => Ok(object),
            Ok(Err(kube::Error::Api(status))) => Err(failure(&what, verb, &status)),
            Ok(Err(error)) => Err(Error::Unknown {
                what: what.clone(),
                reason: chain(&error),
            }),
            Err(_elapsed) => {
                let reason = format!("no answer within {} s", TIMEOUT.as_secs());
                Err(Error::Unknown {
                    what: what.clone(),
                    reason,
                })
            }
        };
        if verb != "get" {
            let outcome = result.as_ref().err().map_or("done", Error::outcome);
            self.writes
                .with_label_values(&[verb, &*kind, outcome])
                .inc();
        }
        result
    }
}

impl Error {
    /// Short and stable, for the metric.
    fn outcome(&self) -> &'static str {
        match self {
            Self::Exists { .. } => "exists",
            Self::Conflict { .. } => "conflict",
            Self::Missing { .. } => "missing",
            Self::Refused { .. } => "refused",
            Self::Deposed { .. } => "deposed",
            Self::Unknown { .. } => "unknown",
        }
    }
}

/// Kind of an answer.
#[derive(Deserialize)]
struct Answer {
    kind: Option<String>,
}

/// Reads the API server's answer. What it may take another time is unknown, not refused.
fn failure(what: &str, verb: &str, status: &Status) -> Error {
    let what = what.to_owned();
    let reason = status.message.clone();
    let creates = matches!(verb, "create" | DRY_RUN);
    match status.code {
        404 if !creates => Error::Missing { what },
        409 if creates && status.reason == "AlreadyExists" => Error::Exists { what },
        409 => Error::Conflict { what },
        // 404 on create: the namespace is gone.
        400 | 403 | 404 | 405 | 413 | 422 => Error::Refused { what, reason },
        _ => Error::Unknown { what, reason },
    }
}

fn path<K: Resource<DynamicType = ()>>(namespace: &str) -> String {
    K::url_path(&(), (!namespace.is_empty()).then_some(namespace))
}

fn created_by() -> PostParams {
    PostParams {
        field_manager: Some(crds::names::FIELD_MANAGER.to_owned()),
        ..PostParams::default()
    }
}
