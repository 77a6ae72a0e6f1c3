//! What a scenario has in its hands: a namespace of its own on the cluster under test, and the
//! few questions that scenarios ask about it.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use cluster::Cluster;
use crds::TrainingJob;
use crds::training_job::Phase;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, PersistentVolumeClaim, Pod, Secret, ServiceAccount,
};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::jobs::TestJob;
use crate::scenario::START;

/// How often a condition is looked at while waiting for it.
const POLL: Duration = Duration::from_millis(250);

/// One scenario's view of the cluster.
#[derive(Clone)]
pub struct Context {
    /// Client with the administrator's rights.
    pub client: Client,
    /// The cluster, for what no API offers: killing nodes, restarting kubelets.
    pub cluster: Arc<Cluster>,
    /// Namespace that belongs to this scenario alone.
    pub namespace: String,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Context {
    /// Makes the namespace, ready for pods to be created in it.
    pub async fn new(client: Client, cluster: Arc<Cluster>, namespace: &str) -> Result<Self> {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let object = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        namespaces
            .create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("failed to create namespace {namespace}"))?;
        // Pods are refused before it is there, and its controller comes in its own time.
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
        let account = serde_json::from_value(json!({"metadata": {"name": "default"}}))?;
        match accounts.create(&PostParams::default(), &account).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error).context("failed to create the service account"),
        }
        Ok(Self {
            client,
            cluster,
            namespace: namespace.to_owned(),
        })
    }

    fn jobs(&self) -> Api<TrainingJob> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn pod_api(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates a job.
    pub async fn submit(&self, job: &TestJob) -> Result<()> {
        let object: TrainingJob = serde_json::from_value(job.object())?;
        self.jobs()
            .create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("failed to create job {}", job.name()))?;
        Ok(())
    }

    /// Creates a job and waits until it trains.
    pub async fn start(&self, job: &TestJob) -> Result<()> {
        self.submit(job).await?;
        self.reaches(job.name(), Phase::Running, START).await?;
        Ok(())
    }

    /// Reads a job.
    pub async fn job(&self, name: &str) -> Result<TrainingJob> {
        self.jobs()
            .get(name)
            .await
            .with_context(|| format!("failed to read job {name}"))
    }

    /// Merges a change into a job's spec.
    pub async fn change(&self, name: &str, spec: Value) -> Result<()> {
        let patch = json!({"spec": spec});
        self.jobs()
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .with_context(|| format!("failed to change job {name}"))?;
        Ok(())
    }

    /// Deletes a job without waiting for its pods.
    pub async fn delete(&self, name: &str) -> Result<()> {
        self.jobs()
            .delete(name, &DeleteParams::default())
            .await
            .with_context(|| format!("failed to delete job {name}"))?;
        Ok(())
    }

    /// Waits until the job is in `phase`; a terminal phase that is not the wanted one ends it.
    pub async fn reaches(&self, name: &str, phase: Phase, limit: Duration) -> Result<TrainingJob> {
        self.eventually(&format!("job {name} reaches {phase:?}"), limit, || async {
            let job = self.job(name).await?;
            let now = job
                .status
                .as_ref()
                .map(|status| status.phase)
                .unwrap_or_default();
            if now == phase {
                return Ok(Some(job));
            }
            if matches!(now, Phase::Succeeded | Phase::Failed) {
                let status = serde_json::to_string(&job.status)?;
                bail!("job {name} ended as {now:?} instead of {phase:?}: {status}");
            }
            Ok(None)
        })
        .await
    }

    /// Waits until `look` gives something, or fails with what was awaited.
    pub async fn eventually<T, F, Fut>(&self, what: &str, limit: Duration, look: F) -> Result<T>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<Option<T>>>,
    {
        let started = Instant::now();
        loop {
            match look().await {
                Ok(Some(found)) => return Ok(found),
                Ok(None) => {}
                Err(error) if started.elapsed() > limit => return Err(error),
                Err(error) if is_final(&error) => return Err(error),
                Err(_) => {}
            }
            if started.elapsed() > limit {
                bail!("waited {:.0?} in vain: {what}", limit);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Runs kubectl and returns what it said, warnings included; a failure of it carries the same.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let mut command = tokio::process::Command::from(self.cluster.kubectl(arguments)?);
        let output = command.output().await.context("failed to start kubectl")?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        if !output.status.success() {
            bail!("kubectl {}: {}", arguments.join(" "), said.trim());
        }
        Ok(said)
    }

    /// Runs a shell script in the trainer's container of a pod.
    pub async fn exec(&self, pod: &str, script: &str) -> Result<String> {
        let namespace = self.namespace.as_str();
        let container = ["-c", crds::names::CONTAINER_TRAINER];
        let shell = ["--", "/bin/sh", "-c", script];
        let words = [&["exec", "-n", namespace, pod][..], &container, &shell].concat();
        self.kubectl(&words).await
    }

    /// Waits until no pod is left in the namespace.
    pub async fn no_pods_are_left(&self, limit: Duration) -> Result<()> {
        self.eventually("all pods are gone", limit, || async {
            let left = self.pod_api().list(&ListParams::default()).await?.items;
            Ok(left.is_empty().then_some(()))
        })
        .await
    }

    /// Pods of a job, by name.
    pub async fn pods(&self, job: &str) -> Result<Vec<Pod>> {
        let selector = ListParams::default().labels(&format!("{}={job}", crds::names::LABEL_JOB));
        Ok(self.pod_api().list(&selector).await?.items)
    }

    /// Name of the node that runs a rank of the job's current attempt.
    pub async fn node_of(&self, job: &str, rank: u32) -> Result<String> {
        let attempt = self
            .job(job)
            .await?
            .status
            .map_or(0, |status| status.attempt);
        let pod = self
            .pod_api()
            .get(&crds::names::pod_name(job, attempt, rank))
            .await?;
        pod.spec
            .and_then(|spec| spec.node_name)
            .ok_or_else(|| anyhow!("rank {rank} of {job} has no node yet"))
    }

    /// The trainer's log of one rank of one attempt.
    pub async fn log(&self, job: &str, attempt: u32, rank: u32) -> Result<String> {
        let params = LogParams {
            container: Some(crds::names::CONTAINER_TRAINER.to_owned()),
            ..LogParams::default()
        };
        let pod = crds::names::pod_name(job, attempt, rank);
        self.pod_api()
            .logs(&pod, &params)
            .await
            .with_context(|| format!("no log of pod {pod}"))
    }

    /// The message of a condition that is in the wanted state.
    pub async fn condition(&self, job: &str, kind: &str, status: &str) -> Result<Option<String>> {
        let job = self.job(job).await?;
        let conditions = job
            .status
            .map(|status| status.conditions)
            .unwrap_or_default();
        let found = conditions
            .into_iter()
            .find(|c| c.type_ == kind && c.status == status);
        Ok(found.map(|condition| condition.message))
    }

    /// Reasons of the job's Events, oldest first.
    pub async fn events(&self, job: &str) -> Result<Vec<String>> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut events = events.list(&ListParams::default()).await?.items;
        events.retain(|event| {
            let about = event.regarding.as_ref();
            about.is_some_and(|object| {
                object.kind.as_deref() == Some("TrainingJob") && object.name.as_deref() == Some(job)
            })
        });
        events.sort_by_key(|event| event.event_time.clone());
        Ok(events
            .into_iter()
            .filter_map(|event| event.reason)
            .collect())
    }

    /// How often kubelets began to pull an image for a pod of this namespace.
    pub async fn pulls(&self) -> Result<i32> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let events = events.list(&ListParams::default()).await?.items;
        let pulling = events
            .iter()
            .filter(|event| event.reason.as_deref() == Some("Pulling"));
        Ok(pulling
            .map(|event| event.deprecated_count.unwrap_or(1))
            .sum())
    }

    /// Makes a claim of the shared class.
    pub async fn claim(&self, name: &str, mode: &str) -> Result<()> {
        self.claim_in(&self.namespace, name, mode).await
    }

    /// Creates a claim in a namespace that is not the scenario's.
    pub async fn claim_in(&self, namespace: &str, name: &str, mode: &str) -> Result<()> {
        let spec = json!({
            "accessModes": [mode],
            "storageClassName": "demo-shared",
            "resources": {"requests": {"storage": "1Gi"}},
        });
        self.claim_with(namespace, name, spec).await
    }

    /// Makes a claim of the chart's own storage, for pods of all nodes.
    pub async fn volume(&self, name: &str) -> Result<()> {
        let spec = json!({
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "fireflyer",
            "resources": {"requests": {"storage": "100Mi"}},
        });
        self.claim_with(&self.namespace, name, spec).await
    }

    /// Pods of a component of the chart.
    pub async fn pods_of(&self, component: &str) -> Result<Vec<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), crds::names::SYSTEM_NAMESPACE);
        let labels = format!("app.kubernetes.io/component={component}");
        let listed = pods.list(&ListParams::default().labels(&labels)).await?;
        Ok(listed.items)
    }

    /// Creates a claim.
    pub async fn claim_with(&self, namespace: &str, name: &str, spec: Value) -> Result<()> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let claim = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
        claims
            .create(&PostParams::default(), &claim)
            .await
            .context("failed to create a claim")?;
        Ok(())
    }

    /// Nothing of the job is left: no object, pod, ConfigMap or Secret.
    pub async fn is_gone(&self, job: &str, limit: Duration) -> Result<()> {
        let selector = ListParams::default().labels(&format!("{}={job}", crds::names::LABEL_JOB));
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        self.eventually(
            &format!("job {job} leaves nothing behind"),
            limit,
            || async {
                let left = usize::from(self.jobs().get_opt(job).await?.is_some())
                    + self.pods(job).await?.len()
                    + maps.list(&selector).await?.items.len()
                    + secrets.list(&selector).await?.items.len();
                Ok((left == 0).then_some(()))
            },
        )
        .await
    }

    /// Waits until a node's Ready condition is (or is no longer) True.
    pub async fn node_ready(&self, node: &str, ready: bool, limit: Duration) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let what = format!(
            "node {node} is {}",
            if ready { "Ready" } else { "not Ready" }
        );
        self.eventually(&what, limit, || async {
            let conditions = nodes.get(node).await?.status.and_then(|s| s.conditions);
            let is_ready = conditions
                .unwrap_or_default()
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True");
            Ok((is_ready == ready).then_some(()))
        })
        .await
    }

    /// When the node's kubelet renewed its lease for the last time.
    pub async fn lease_renewed(&self, node: &str) -> Result<Option<MicroTime>> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), "kube-node-lease");
        let lease = leases
            .get(node)
            .await
            .with_context(|| format!("failed to read the lease of {node}"))?;
        Ok(lease.spec.and_then(|spec| spec.renew_time))
    }

    /// Sets or clears a node's cordon.
    pub async fn cordon(&self, node: &str, unschedulable: bool) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = json!({"spec": {"unschedulable": unschedulable}});
        nodes
            .patch(node, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(())
    }

    /// Uids of the job's pods, to separate the same pods from pods of the same name.
    pub async fn pod_uids(&self, job: &str) -> Result<Vec<String>> {
        let mut uids: Vec<_> = self
            .pods(job)
            .await?
            .iter()
            .filter_map(ResourceExt::uid)
            .collect();
        uids.sort();
        Ok(uids)
    }
}

/// Who holds the operator's lease: name and address of its pod.
pub async fn leader(client: &Client) -> Result<(String, String)> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), crds::names::SYSTEM_NAMESPACE);
    let lease = leases
        .get("fireflyer-operator")
        .await
        .context("failed to read the lease")?;
    let holder = lease
        .spec
        .and_then(|spec| spec.holder_identity)
        .unwrap_or_default();
    let (pod, address) = holder
        .split_once('_')
        .ok_or_else(|| anyhow!("nobody leads: the lease's holder is {holder:?}"))?;
    Ok((pod.to_owned(), address.to_owned()))
}

/// Node of the operator pod that holds the lease.
pub async fn leader_node(context: &Context) -> Result<String> {
    let (pod, _) = leader(&context.client).await?;
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), crds::names::SYSTEM_NAMESPACE);
    let object = pods
        .get(&pod)
        .await
        .with_context(|| format!("leader {pod} has no pod"))?;
    object
        .spec
        .and_then(|spec| spec.node_name)
        .context("the leader has no node")
}

/// The first of these ranks whose node can be taken away: the leader is another matter.
pub async fn victim(context: &Context, name: &str, ranks: [u32; 2]) -> Result<(u32, String)> {
    let leader = leader_node(context).await?;
    for rank in ranks {
        let node = context.node_of(name, rank).await?;
        if node != leader {
            return Ok((rank, node));
        }
    }
    bail!("ranks {ranks:?} are both on the leader's node {leader}")
}

/// Whether all that ran in the pod is over.
pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Errors of our own asserting end a wait at once; errors of the API are looked at again.
fn is_final(error: &anyhow::Error) -> bool {
    error.downcast_ref::<kube::Error>().is_none() && error.to_string().contains(" ended as ")
}
