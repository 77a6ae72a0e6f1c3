//! From what Kubernetes says to what the planner reasons about. Pure: one object in, one value out.

mod pod_state;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use contract::assignment::{ASSIGNMENT_LIMIT_BYTES, Assignment};
use crds::names;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use scheduler::{JobKey, JobKind, PodState, Ready, Timestamp, Wish};
use topology::{CheckpointRef, NodeName, OnPeerLoss};

use pod_state::{ended, pod_state, preparation};

use crate::labels::{Label, LabelPool};
use crate::mirror::{Mirrored, ObjectKey};
use crate::proof::{Masters, Signer};
use crate::quantity;
use crate::views::{AttemptView, ClaimView, NodeView, PodView, TaintView};

/// File of the attempt's ConfigMap.
pub const ASSIGNMENT_FILE: &str = "assignment.json.gz";

/// What is kept of a Node. Which label means what is the Fabric's to say, so all are kept.
#[derive(Clone, Debug, PartialEq)]
pub struct MirroredNode {
    /// Its name.
    pub name: NodeName,
    /// When it was created.
    pub created: Timestamp,
    /// Its labels.
    pub labels: Vec<Arc<Label>>,
    /// Its condition `Ready`.
    pub ready: Ready,
    /// One of Kubernetes' own taints.
    pub taint: Option<Arc<str>>,
    /// A foreign taint that keeps new pods away.
    pub foreign_taint: Option<Arc<str>>,
    /// The value of its taint `fireflyer.dev/quarantine`, if it has one.
    pub quarantine: Option<Arc<str>>,
    /// Identifies its present boot. Empty: the kubelet has not said.
    pub boot: Arc<str>,
    /// The wishes to empty it.
    pub wishes: BTreeSet<Wish>,
    /// What it offers of the resources that classes ask for.
    pub offers: Vec<Amount>,
}

impl MirroredNode {
    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        let mut labels = self.labels.iter();
        labels.find_map(|label| (*label.key == *key).then_some(&*label.value))
    }
}

/// So much of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amount {
    /// Name of the resource.
    pub resource: &'static str,
    /// As the API server says it.
    pub text: Arc<str>,
    /// The same in thousandths.
    pub milli: u128,
}

/// What is kept of a PersistentVolumeClaim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirroredClaim {
    /// Whether pods on several nodes may mount it and write.
    pub shared: bool,
    /// Whether they may mount it, if only to read.
    pub readable: bool,
}

/// The switch of the API as everybody else has it.
pub const fn on_peer_loss(asked: crds::training_job::OnPeerLoss) -> OnPeerLoss {
    match asked {
        crds::training_job::OnPeerLoss::Restart => OnPeerLoss::Restart,
        crds::training_job::OnPeerLoss::Shrink => OnPeerLoss::Shrink,
    }
}

/// What an attempt runs with, whatever its job asks for by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long its pods may take to save and leave.
    pub grace: Duration,
    /// The rule for the others when a node is lost.
    pub on_peer_loss: OnPeerLoss,
    /// How long a silent node is waited for.
    pub peer_loss: Duration,
    /// With fewer nodes than this the others do not go on.
    pub min_nodes: Option<u32>,
}

/// What is kept of the ConfigMap of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct MirroredAttempt {
    /// For the planner.
    pub attempt: scheduler::Attempt,
    /// Where the attempt resumes, when that is pinned.
    pub resume: Option<CheckpointRef>,
    /// What it runs with; none where an older operator did not say, and then it is what the job
    /// asks for.
    pub terms: Option<Terms>,
    /// What its content is worth.
    pub standing: AttemptProof,
    /// Uid of the ConfigMap.
    pub uid: Arc<str>,
}

/// What the content of an attempt's ConfigMap is worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptProof {
    /// The operator wrote it, by this key.
    Proved(Signer),
    /// The operator wrote it, by this key; this version cannot read it, and for this reason. Its
    /// nodes are known if there are some.
    Unreadable(Signer, Arc<str>),
    /// Nothing proves that the operator wrote it: nothing is read of it.
    Unproved,
}

impl MirroredAttempt {
    /// The master key from which the attempt's key is made.
    pub fn signer(&self) -> Signer {
        match &self.standing {
            AttemptProof::Proved(signer) | AttemptProof::Unreadable(signer, _) => *signer,
            AttemptProof::Unproved => Signer::Current,
        }
    }
}

/// What is kept of a Pod.
#[derive(Clone, Debug, PartialEq)]
pub struct MirroredPod {
    /// For the planner.
    pub pod: scheduler::Pod,
    /// Its uid: a later pod may have the same name.
    pub uid: Arc<str>,
    /// Whether the uid of its job is on its label, so that a selector finds it.
    pub is_labelled: bool,
    /// Its address, while it has one.
    pub ip: Option<IpAddr>,
    /// What its validator said at its end.
    pub report: Option<Arc<str>>,
}

impl Mirrored for MirroredPod {
    type Derived = ();

    /// One that has ended and is not held back stays for its log.
    fn rests_with(&self) -> Option<ObjectKey> {
        let rests = self.pod.terminal && !self.pod.finalizer;
        rests.then(|| name_of(&self.pod.job))
    }

    /// That a rank ended well must not be forgotten with its pod.
    fn is_remembered(&self) -> bool {
        self.pod.state == PodState::Succeeded
    }
}

/// A job by its name, as mirrors index what rests with it.
pub fn name_of(job: &JobKey) -> ObjectKey {
    (job.namespace.to_string(), job.name.to_string())
}

impl Mirrored for MirroredNode {
    type Derived = ();
}
impl Mirrored for MirroredClaim {
    type Derived = ();
}
impl Mirrored for MirroredAttempt {
    type Derived = ();

    fn rests_with(&self) -> Option<ObjectKey> {
        Some(name_of(&self.attempt.job))
    }
}

/// A point in time as the planner counts it.
pub fn timestamp(time: &Time) -> Timestamp {
    Timestamp::from_millis(u64::try_from(time.0.as_millisecond()).unwrap_or(0))
}

/// When an object was created.
pub fn created(metadata: &ObjectMeta) -> Timestamp {
    metadata
        .creation_timestamp
        .as_ref()
        .map(timestamp)
        .unwrap_or_default()
}

/// The kind of job that has its pods in a namespace.
fn kind_in(namespace: &str) -> JobKind {
    match namespace == names::VALIDATION_NAMESPACE {
        true => JobKind::NodeValidation,
        false => JobKind::TrainingJob,
    }
}

/// The job that owns an object.
pub fn owner(metadata: &ObjectMeta) -> Option<JobKey> {
    let namespace = metadata.namespace.as_deref()?;
    let kind = kind_in(namespace);
    let owners = metadata.owner_references.as_ref()?;
    let is_ours = |owner: &&OwnerReference| {
        owner.kind == kind.as_str() && owner.api_version == names::API_VERSION
    };
    let owner = owners.iter().find(is_ours)?;
    Some(JobKey {
        kind,
        namespace: namespace.into(),
        name: owner.name.as_str().into(),
        uid: owner.uid.as_str().into(),
    })
}

/// Taints of Kubernetes' own: what it found out about the node, and nobody's wish.
const OWN_TAINTS: &str = "node.kubernetes.io/";
/// Taint that Kubernetes adds to each cordoned node. It says what `spec.unschedulable` says.
const CORDON_TAINT: &str = "node.kubernetes.io/unschedulable";
/// What classes ask for.
const RESOURCES: [&str; 5] = [
    names::RESOURCE_NODE,
    names::RESOURCE_GPU,
    names::RESOURCE_RDMA,
    "cpu",
    "memory",
];

/// The job that a pod belongs to. One that lost its ownerReference, because its job was deleted
/// with `--cascade=orphan`, still has labels, which nobody but the operator may set.
pub fn job_of(metadata: &ObjectMeta) -> Option<JobKey> {
    owner(metadata).or_else(|| {
        let labels = metadata.labels.as_ref()?;
        let uid = labels.get(names::LABEL_JOB_UID);
        let namespace = metadata.namespace.as_deref()?;
        Some(JobKey {
            kind: kind_in(namespace),
            namespace: namespace.into(),
            name: labels.get(names::LABEL_JOB)?.as_str().into(),
            uid: uid.map(String::as_str).unwrap_or_default().into(),
        })
    })
}

/// Attempt and rank of a pod, which its name says: that cannot be changed.
fn place_in(job: &str, metadata: &ObjectMeta) -> Option<(u32, u32)> {
    let name = metadata.name.as_deref()?;
    let (attempt, rank) = name.strip_prefix(job)?.strip_prefix('-')?.split_once('-')?;
    let (attempt, rank) = (attempt.parse().ok()?, rank.parse().ok()?);
    (names::pod_name(job, attempt, rank) == name).then_some((attempt, rank))
}

/// Taints that mean something else than that new pods are to stay away, by their keys.
#[derive(Clone, Debug, Default)]
pub struct TaintRules {
    /// Taints that dedicate nodes to training; pods tolerate them.
    pub dedicated: Vec<String>,
    /// Taints by which somebody wants the node emptied, whatever the effect says.
    pub leave: Vec<String>,
}

impl TaintRules {
    /// Returns true if a taint asks gangs to leave. NoSchedule by itself says nothing about pods
    /// that run.
    fn asks_to_leave(&self, taint: &TaintView) -> bool {
        let is_foreign = !self.is_known(&taint.key);
        self.leave.contains(&taint.key) || is_foreign && taint.effect == "NoExecute"
    }

    /// Returns true if the taint has a meaning of its own: it is Kubernetes', the quarantine, or
    /// dedicates nodes.
    fn is_known(&self, key: &String) -> bool {
        key.starts_with(OWN_TAINTS)
            || key == names::TAINT_QUARANTINE
            || self.dedicated.contains(key)
    }
}

/// A node.
pub fn node(view: NodeView, rules: &TaintRules, pool: &LabelPool) -> Option<MirroredNode> {
    let NodeView {
        metadata,
        spec,
        status,
    } = view;
    let keeps_away =
        |taint: &&TaintView| taint.effect == "NoSchedule" || taint.effect == "NoExecute";
    let taints = || spec.taints.iter().filter(keeps_away);
    let leave = taints().find(|taint| rules.asks_to_leave(taint));
    let foreign = taints().find(|taint| !rules.is_known(&taint.key));
    let quarantine = taints().find(|taint| taint.key == names::TAINT_QUARANTINE);
    let is_own = |key: &str| key.starts_with(OWN_TAINTS) && key != CORDON_TAINT;
    let own = taints().find(|taint| is_own(&taint.key));
    let deleted = metadata.deletion_timestamp.is_some();
    let wishes = [
        spec.unschedulable.then_some(Wish::Cordoned),
        leave.map(|taint| Wish::Tainted(taint.key.as_str().into())),
        deleted.then_some(Wish::Deleted),
    ];
    let ready = status
        .conditions
        .iter()
        .find(|condition| condition.kind == "Ready")
        .map_or("", |condition| &condition.status);
    let offer = |resource: &'static str| {
        let text = &status.allocatable.get(resource)?.0;
        Some(Amount {
            resource,
            text: text.as_str().into(),
            milli: quantity::milli(text).unwrap_or(0),
        })
    };
    let created = created(&metadata);
    let labels = metadata.labels.unwrap_or_default();
    Some(MirroredNode {
        created,
        name: metadata.name?.into(),
        labels: pool.share(labels),
        ready: match ready {
            "True" => Ready::True,
            "Unknown" => Ready::Unknown,
            _ => Ready::False,
        },
        taint: own.map(|taint| taint.key.as_str().into()),
        foreign_taint: foreign.map(|taint| taint.key.as_str().into()),
        quarantine: quarantine.map(|taint| taint.value.as_str().into()),
        boot: status.node_info.boot_id.into(),
        wishes: wishes.into_iter().flatten().collect(),
        offers: RESOURCES.into_iter().filter_map(offer).collect(),
    })
}

/// A claim.
pub fn claim(view: &ClaimView) -> MirroredClaim {
    let offers = |mode: &str| view.spec.access_modes.iter().any(|other| other == mode);
    let shared = offers("ReadWriteMany");
    MirroredClaim {
        shared,
        readable: shared || offers("ReadOnlyMany"),
    }
}

/// An attempt; none when the ConfigMap has not the name, the owner and the labels of one of ours.
pub fn attempt(view: &AttemptView, masters: &Masters) -> Option<MirroredAttempt> {
    let metadata = &view.metadata;
    let job = owner(metadata)?;
    let labels = metadata.labels.as_ref()?;
    let number = labels.get(names::LABEL_ATTEMPT)?.parse().ok()?;
    let named = metadata.name.as_deref() == Some(&names::attempt_name(&job.name, number));
    if !named || labels.get(names::LABEL_JOB).map(String::as_str) != Some(&*job.name) {
        return None;
    }
    let mut attempt = MirroredAttempt {
        attempt: scheduler::Attempt {
            job,
            number,
            nodes: Vec::new(),
            crossing: false,
            created: created(metadata),
            seen: Timestamp::default(),
        },
        resume: None,
        terms: None,
        standing: AttemptProof::Unproved,
        uid: metadata.uid.as_deref().unwrap_or_default().into(),
    };
    let file = view.binary_data.get(ASSIGNMENT_FILE);
    let annotations = metadata.annotations.as_ref();
    let proof = annotations.and_then(|annotations| annotations.get(names::ANNOTATION_PROOF));
    let (Some(file), Some(proof)) = (file, proof) else {
        return Some(attempt);
    };
    let uid = &attempt.attempt.job.uid;
    let Some(signer) = masters.signer(uid, number, &file.0, proof) else {
        return Some(attempt);
    };
    attempt.standing = read(&mut attempt, &file.0).map_or_else(
        |error| AttemptProof::Unreadable(signer, error.to_string().into()),
        |()| AttemptProof::Proved(signer),
    );
    Some(attempt)
}

/// Reads a file that the operator wrote; of a version that is not known at least its nodes.
fn read(attempt: &mut MirroredAttempt, file: &[u8]) -> Result<(), contract::assignment::Error> {
    let place = &mut attempt.attempt;
    match Assignment::from_gz(file, ASSIGNMENT_LIMIT_BYTES) {
        Ok(assignment) => {
            let seconds = |seconds: u32| Duration::from_secs(seconds.into());
            attempt.terms = assignment.grace_seconds.map(|grace| Terms {
                grace: seconds(grace),
                on_peer_loss: assignment.on_peer_loss,
                peer_loss: seconds(assignment.peer_loss_seconds),
                min_nodes: assignment.min_nodes,
            });
            let nodes = assignment.nodes.into_iter();
            place.nodes = nodes.map(|node| node.name.into()).collect();
            place.crossing = assignment.crossing;
            attempt.resume = assignment.resume;
            Ok(())
        }
        Err(error) => {
            if let Ok(outline) = Assignment::outline(file, ASSIGNMENT_LIMIT_BYTES) {
                let nodes = outline.nodes.into_iter();
                place.nodes = nodes.map(|node| node.name.into()).collect();
                place.crossing = outline.crossing;
            }
            Err(error)
        }
    }
}

/// A pod; none when it is not one of ours. Each of ours asks for the resource that represents its
/// node, which nobody but the operator may: anything else takes no node, whatever its labels say.
pub fn pod(view: PodView) -> Option<MirroredPod> {
    if !view.spec.asks_for(names::RESOURCE_NODE) {
        return None;
    }
    let job = job_of(&view.metadata)?;
    let (attempt, rank) = place_in(&job.name, &view.metadata)?;
    let unowned = owner(&view.metadata).is_none();
    let finalizers = view.metadata.finalizers.as_deref().unwrap_or_default();
    let labels = view.metadata.labels.as_ref();
    let says = |label: &str, value: &str| {
        let said = labels.and_then(|labels| labels.get(label));
        said.is_some_and(|said| said == value)
    };
    let is_labelled = says(names::LABEL_JOB_UID, &job.uid)
        && says(names::LABEL_ATTEMPT, &attempt.to_string())
        && says(names::LABEL_RANK, &rank.to_string());
    let grace = view.metadata.deletion_grace_period_seconds;
    let state = pod_state(&view);
    let is_starting = matches!(state, PodState::Starting | PodState::Blocked(_));
    let pod = scheduler::Pod {
        job,
        attempt,
        rank,
        node: view.spec.node()?.into(),
        state,
        terminal: matches!(view.status.phase.as_str(), "Succeeded" | "Failed"),
        delete_by: view.metadata.deletion_timestamp.as_ref().map(timestamp),
        grace: Duration::from_secs(grace.and_then(|grace| grace.try_into().ok()).unwrap_or(0)),
        finalizer: finalizers
            .iter()
            .any(|finalizer| finalizer == names::FINALIZER),
        unowned,
        crossing: says(names::LABEL_CROSSING, "true"),
        preparation: is_starting.then(|| Arc::new(preparation(&view))),
        since: Timestamp::default(),
    };
    Some(MirroredPod {
        pod,
        ip: view.status.pod_ip.as_ref().and_then(|ip| ip.parse().ok()),
        report: ended(&view.status.container_statuses, names::CONTAINER_VALIDATOR)
            .map(|ended| ended.message.as_str().into()),
        uid: view.metadata.uid.as_deref().unwrap_or_default().into(),
        is_labelled,
    })
}

#[cfg(test)]
#[path = "translate_tests.rs"]
mod tests;
