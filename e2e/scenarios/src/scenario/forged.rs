//! What somebody may write who has the role `edit` in another namespace, and that none of it decides where a
//! job runs.

use anyhow::{Context as _, Result, bail, ensure};
use contract::OnPeerLoss;
use contract::assignment::{ALGORITHM, AssignedNode, Assignment, JobRef, VERSION};
use crds::training_job::Phase;
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use crate::context::Context;
use crate::jobs::{RUNS_UNTIL_ASKED, TestJob, VERSION as TAG};
use crate::refusals;
use crate::scenario::START;

/// Who writes the forgeries.
const USER: &str = "mallory";
const LABELS: &str = "belong to the operator: use labels of your own";
const OWNER: &str = "only the operator makes objects that a TrainingJob or NodeValidation owns";
const FINALIZER: &str = "the finalizer fireflyer.dev/release-nodes belongs to the operator";

/// One object, and the words by which it is refused; without them it may be there and has no effect.
struct Forgery {
    what: &'static str,
    object: Value,
    refused: Option<&'static str>,
}

/// The other namespace, and what is known of its user's own job.
struct Other {
    context: Context,
    uid: String,
    nodes: Vec<String>,
}

pub async fn nobody_else_decides_where_a_job_runs(context: Context) -> Result<()> {
    context
        .start(&TestJob::shell("honest", 1, RUNS_UNTIL_ASKED))
        .await?;
    let honest = context.pod_uids("honest").await?;
    let other = Other::new(&context).await?;
    let mine = other.context.pod_uids("mine").await?;

    let forgeries = other.forgeries()?;
    for Forgery {
        what,
        object,
        refused,
    } in &forgeries
    {
        let said = other.write("create", object)?;
        match (refused, said) {
            (Some(why), Err(said)) if said.contains(why) => {}
            (None, Ok(())) => {}
            (_, answer) => bail!("{what}: expected {refused:?}, the answer was {answer:?}"),
        }
    }
    other.changes_nothing_of_its_own_job().await?;
    ensure!(
        other.context.pod_uids("mine").await? == mine,
        "forgeries ended the job of their own author"
    );
    other.context.delete("mine").await?;
    other.gets_no_pods_by_a_configmap_of_its_own().await?;

    // Others are placed as ever, and whoever trained trains on.
    context
        .start(&TestJob::shell("later", 1, RUNS_UNTIL_ASKED))
        .await?;
    let status = context.job("honest").await?.status.unwrap_or_default();
    ensure!(
        (status.phase, status.attempt) == (Phase::Running, 1)
            && context.pod_uids("honest").await? == honest,
        "a forgery ended somebody else's attempt: {status:?}"
    );
    eprintln!(
        "    {} forgeries and two more had no effect",
        forgeries.len()
    );
    let namespace = other.context.namespace.as_str();
    context
        .kubectl(&["delete", "namespace", namespace, "--wait=false"])
        .await?;
    Ok(())
}

impl Other {
    /// A namespace in which the user may do what the role `edit` permits, with a job that trains.
    async fn new(context: &Context) -> Result<Self> {
        let namespace = format!("{}-other", context.namespace);
        let (client, cluster) = (context.client.clone(), context.cluster.clone());
        let inside = Context::new(client, cluster, &namespace).await?;
        let user = format!("--user={USER}");
        let role = ["create", "rolebinding", USER, "--clusterrole=edit", &user];
        context
            .kubectl(&[&role[..], &["--namespace", &namespace]].concat())
            .await?;
        inside
            .start(&TestJob::shell("mine", 1, RUNS_UNTIL_ASKED))
            .await?;
        let job = inside.job("mine").await?;
        let nodes = context.cluster.nodes();
        Ok(Self {
            uid: job.metadata.uid.context("the job has no uid")?,
            nodes: nodes.map(|node| node.name().to_owned()).collect(),
            context: inside,
        })
    }

    /// Sends an object as the user; the inner error is the API server's answer.
    fn write(&self, verb: &str, object: &Value) -> Result<Result<(), String>> {
        let user = format!("--as={USER}");
        let namespace = &self.context.namespace;
        let words = [verb, &user, "--namespace", namespace, "--filename", "-"];
        let output = refusals::run(&self.context.cluster, &words, &object.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok(output.status.success().then_some(()).ok_or(said))
    }

    /// Runs kubectl as the user; the inner error is the API server's answer.
    async fn kubectl(&self, words: &[&str]) -> Result<(), String> {
        let user = format!("--as={USER}");
        let namespace = ["--namespace", &self.context.namespace, &user];
        let said = self.context.kubectl(&[words, &namespace].concat()).await;
        said.map(drop).map_err(|error| error.to_string())
    }

    fn forgeries(&self) -> Result<Vec<Forgery>> {
        let forgery = |what, object, refused| Forgery {
            what,
            object,
            refused,
        };
        let labels = json!({"fireflyer.dev/job": "mine", "fireflyer.dev/attempt": "1", "fireflyer.dev/rank": "0"});
        let ours = self.owner("fireflyer.dev/v1alpha1", "TrainingJob");
        let map = |name: &str, labels: &Value, owner: Option<&Value>| {
            self.config_map("mine", 1, name, labels, owner)
        };
        let node = self.nodes.first().context("the cluster has no node")?;
        let pod = |name: &str, metadata: Value, limits: Value| {
            let mut metadata = metadata;
            metadata["name"] = json!(name);
            let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
            let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
                "spec": {
                    "nodeSelector": {"nobody": "has-this"},
                    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
                    "containers": [{
                        "name": "trainer", "image": format!("localhost/fireflyer/busybox:{TAG}"),
                        "resources": {"limits": limits},
                    }],
                },
            })
        };
        let look_alikes = [
            self.owner("fireflyer.development/v1", "TrainingJob"),
            self.owner("fireflyer.devil/v1", "TrainingJob"),
        ];
        let secret = |metadata: Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"key": "AAAA"}});
        let none = json!({});
        Ok(vec![
            forgery(
                "a second ConfigMap of the running attempt, which names every node",
                map("aaa", &labels, Some(&ours))?,
                Some(LABELS),
            ),
            forgery(
                "the same without labels",
                map("aaa", &none, Some(&ours))?,
                Some(OWNER),
            ),
            forgery(
                "the ConfigMap of the next attempt, written beforehand",
                map("mine-2", &labels, Some(&ours))?,
                Some(LABELS),
            ),
            forgery(
                "one that a group like ours owns",
                map("alike", &none, Some(&look_alikes[0]))?,
                None,
            ),
            forgery(
                "one that another group like ours owns, with our labels",
                map("devil", &labels, Some(&look_alikes[1]))?,
                Some(LABELS),
            ),
            forgery(
                "a pending pod that names a node, with our labels",
                pod(
                    "mine-1-7",
                    json!({"labels": labels, "ownerReferences": [look_alikes[1]]}),
                    none.clone(),
                ),
                Some(LABELS),
            ),
            forgery(
                "a pending pod that names a node, with an owner like ours",
                pod(
                    "mine-1-8",
                    json!({"ownerReferences": [look_alikes[1]]}),
                    none.clone(),
                ),
                None,
            ),
            forgery(
                "a pod that our job owns",
                pod("mine-1-9", json!({"ownerReferences": [ours]}), none.clone()),
                Some(OWNER),
            ),
            forgery(
                "a pod with our finalizer",
                pod(
                    "stays",
                    json!({"finalizers": [crds::names::FINALIZER]}),
                    none.clone(),
                ),
                Some(FINALIZER),
            ),
            forgery(
                "a pod that asks for a node",
                pod("thief", none.clone(), json!({"fireflyer.dev/node": "1"})),
                Some("only TrainingJobs and NodeValidations may use fireflyer.dev/node"),
            ),
            forgery(
                "a Secret like an attempt's key, with our labels",
                secret(json!({"name": "mine-2-0123456789", "labels": labels})),
                Some(LABELS),
            ),
            forgery(
                "a Secret like an attempt's key",
                secret(json!({"name": "mine-2-0123456789"})),
                None,
            ),
        ])
    }

    /// Neither labels nor finalizers of a pod can be changed, and the attempt's ConfigMap is of no use to others.
    async fn changes_nothing_of_its_own_job(&self) -> Result<()> {
        let pod = "mine-1-0";
        let label = self
            .kubectl(&["label", "pod", pod, "fireflyer.dev/job-"])
            .await;
        let other = ["label", "pod", pod, "fireflyer.dev/rank=5", "--overwrite"];
        let rank = self.kubectl(&other).await;
        let empty = r#"{"metadata":{"finalizers":null}}"#;
        let patch = ["patch", "pod", pod, "--type=merge", "--patch", empty];
        let finalizer = self.kubectl(&patch).await;
        for (answer, why) in [(label, LABELS), (rank, LABELS), (finalizer, FINALIZER)] {
            let said = answer.err().unwrap_or_default();
            ensure!(
                said.contains(why),
                "expected {why:?}, the answer was {said:?}"
            );
        }
        // Its own, so it may be deleted; what is put there instead is not believed.
        let deleted = self.kubectl(&["delete", "configmap", "mine-1"]).await;
        ensure!(
            deleted.is_ok(),
            "the user may not delete a ConfigMap: {deleted:?}"
        );
        let again = self.config_map("mine", 1, "mine-1", &json!({}), None)?;
        let written = self.write("create", &again)?;
        ensure!(written.is_ok(), "no ConfigMap of that name: {written:?}");
        self.context
            .eventually(
                "the job says that its assignment is unproved",
                START,
                || async {
                    self.context
                        .condition("mine", "AssignmentUnproved", "True")
                        .await
                },
            )
            .await?;
        Ok(())
    }

    /// A ConfigMap of the name that the first attempt of a suspended job will have gives that attempt no nodes.
    async fn gets_no_pods_by_a_configmap_of_its_own(&self) -> Result<()> {
        let job = TestJob::shell("sly", 1, RUNS_UNTIL_ASKED).with("suspend", json!(true));
        let written = self.write("create", &job.object())?;
        ensure!(
            written.is_ok(),
            "the user may not create a job: {written:?}"
        );
        let planted = self.config_map("sly", 1, "sly-1", &json!({}), None)?;
        let written = self.write("create", &planted)?;
        ensure!(
            written.is_ok(),
            "the user may not create a ConfigMap: {written:?}"
        );
        let resume = [
            "patch",
            "trainingjob",
            "sly",
            "--type=merge",
            "--patch",
            r#"{"spec":{"suspend":false}}"#,
        ];
        let resumed = self.kubectl(&resume).await;
        ensure!(
            resumed.is_ok(),
            "the user may not resume a job: {resumed:?}"
        );
        self.context
            .eventually("the job says why it gets no nodes", START, || async {
                let reason = self.context.condition("sly", "Assigned", "False").await?;
                Ok(reason.filter(|reason| reason.contains("exists and belongs to")))
            })
            .await?;
        ensure!(
            self.context.pods("sly").await?.is_empty(),
            "a planted ConfigMap gave a job its pods"
        );
        self.context.delete("sly").await
    }

    fn owner(&self, version: &str, kind: &str) -> Value {
        json!({"apiVersion": version, "kind": kind, "name": "mine", "uid": self.uid})
    }

    /// A ConfigMap like an attempt's that names every node of the cluster.
    fn config_map(
        &self,
        job: &str,
        attempt: u32,
        name: &str,
        labels: &Value,
        owner: Option<&Value>,
    ) -> Result<Value> {
        let nodes = self.nodes.iter().map(|node| AssignedNode {
            name: node.clone(),
            zone: "a".to_owned(),
            leaf: String::new(),
        });
        let assignment = Assignment {
            version: VERSION,
            job: JobRef {
                namespace: self.context.namespace.clone(),
                name: job.to_owned(),
                uid: self.uid.clone(),
            },
            attempt,
            algorithm: ALGORITHM,
            procs_per_node: 1,
            nodes: nodes.collect(),
            crossing: true,
            master_port: 29_500,
            on_peer_loss: OnPeerLoss::Restart,
            peer_loss_seconds: 10,
            grace_seconds: None,
            min_nodes: None,
            traffic_class: 0,
            relaxed_ordering: false,
            checkpoint: None,
            resume: None,
        };
        let file = ByteString(assignment.to_gz()?);
        Ok(json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": name, "labels": labels,
                "annotations": {"fireflyer.dev/assignment-proof": format!("00000000:{}", "0".repeat(64))},
                "ownerReferences": owner.map_or_else(Vec::new, |owner| vec![owner.clone()]),
            },
            "binaryData": {"assignment.json.gz": file},
        }))
    }
}
