//! What the planner sees: nodes, jobs, attempts and pods at one moment, as plain values.
//!
//! A snapshot must contain everything that its own leader has written so far (read your own
//! writes). It may lag behind other writers: what they wrote shows up as a conflict when the plan
//! is applied.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use topology::{CheckpointRef, Class, Leaf, NodeName, Zone};

use crate::node::{GangLiveness, Ready, Wish};
use crate::plan::JobPlan;
use crate::stall::GangProgress;
use crate::status::JobStatus;
use crate::time::Timestamp;

/// The cluster at one moment. The order of the lists does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// All nodes of the cluster: one that is missing here and confirmed to be absent is lost,
    /// unless its sidecar sends heartbeats.
    pub nodes: Vec<Node>,
    /// All TrainingJobs and NodeValidations.
    pub jobs: Vec<Job>,
    /// The ConfigMap of every attempt that still has one. One whose content cannot be trusted or
    /// read is among [`Snapshot::doubtful`], and here only if its nodes are known by other means.
    pub attempts: Vec<Attempt>,
    /// Attempts whose ConfigMap does not decide anything by itself.
    pub doubtful: Vec<Doubtful>,
    /// Every pod of ours, also of voided attempts and of jobs that are gone.
    pub pods: Vec<Pod>,
    /// Pods that ended well and are gone, until their job's status says so. May be empty: then less
    /// is known.
    pub departed: Vec<CollectedPod>,
    /// Newest durable checkpoint that a gang reported to the rendezvous service. May be empty:
    /// then less is known, nothing breaks.
    pub reports: Vec<CheckpointReport>,
    /// Gangs of which the rendezvous service knows that they cannot go on, though nodes were to be
    /// done without.
    pub stuck: Vec<Stuck>,
    /// What the rendezvous service knows of the nodes of each gang.
    pub liveness: BTreeMap<(JobKey, u32), Arc<GangLiveness>>,
    /// Since when no sidecar is heard on a node whose Lease ran out, or whose object is gone.
    /// Filled in by [`crate::Sights`].
    pub unheard_since: BTreeMap<NodeName, Timestamp>,
    /// The progress of each gang, as far as it knows. One that is not here is not heard.
    pub progress: BTreeMap<(JobKey, u32), GangProgress>,
    /// Until then a sidecar that has not connected to this operator counts as alive: it may only
    /// have just started. Filled in by [`crate::Sights`].
    pub heartbeats_known_at: Timestamp,
    /// What a read of the API server did not find just now, of what the last plan named.
    pub absent: BTreeSet<Absent>,
    /// Up to when the pods are known to be complete, if not up to now: nobody's patience ends
    /// later.
    pub pods_as_of: Option<Timestamp>,
    /// Whether some kind is so old that nothing is given away: what looks free may not be.
    pub is_stale: bool,
    /// Jobs that this release cannot read. They are left alone, with all that they hold.
    pub unreadable: Vec<JobKey>,
    /// Plans that are being written at this moment. Nothing more is planned for their jobs, and the
    /// nodes that they name are taken, until they are written to the end or have failed.
    pub under_way: Vec<Arc<JobPlan>>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name of the Node object.
    pub name: NodeName,
    /// Value of the class label; empty without one, and then no job is placed there.
    pub class: Class,
    /// Value of the zone label.
    pub zone: Zone,
    /// Value of the leaf label.
    pub leaf: Leaf,
    /// Its condition `Ready`.
    pub ready: Ready,
    /// Since when it is not Ready, if it is not. Filled in by [`crate::Sights`].
    pub unready_since: Timestamp,
    /// One of Kubernetes' own taints, such as `node.kubernetes.io/disk-pressure`: its kubelet takes
    /// no pods.
    pub taint: Option<Arc<str>>,
    /// A foreign taint that keeps new pods away and asks nobody to leave, such as that of an agent
    /// that restarts. Validations tolerate it.
    pub foreign_taint: Option<Arc<str>>,
    /// What its quarantine names, if it is in one: the validation that failed.
    pub quarantine: Option<Arc<str>>,
    /// The wishes to empty it, and since when. [`crate::Sights`] fills in the times, and the wishes
    /// to validate it.
    pub wishes: BTreeMap<Wish, Timestamp>,
    /// What it offers less of than its class asks for, such as `7 of 8 nvidia.com/gpu`.
    pub short: Option<Arc<str>>,
    /// Peers reported it dead or silent: no new work until then.
    pub suspect_until: Option<Timestamp>,
}

/// An object that is not in the snapshot where one is expected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Absent {
    /// A node that an attempt holds or a pod is pinned to.
    Node(NodeName),
    /// A job whose pods are still there.
    Job(JobKey),
    /// The ConfigMap of an attempt that holds nodes.
    Attempt {
        /// The job.
        job: JobKey,
        /// The attempt.
        number: u32,
    },
    /// A pod of an attempt that holds nodes.
    Pod {
        /// The job.
        job: JobKey,
        /// The attempt.
        attempt: u32,
        /// The node rank.
        rank: u32,
    },
}

/// As what kind of object a job stands in the API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobKind {
    /// A gang that trains.
    #[default]
    TrainingJob,
    /// One run of checks on one node.
    NodeValidation,
}

impl JobKind {
    /// The kind's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TrainingJob => "TrainingJob",
            Self::NodeValidation => "NodeValidation",
        }
    }
}

/// Identity of a job. The uid separates a job from an earlier one of the same name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey {
    /// Kind of its object.
    pub kind: JobKind,
    /// Namespace of its pods.
    pub namespace: Arc<str>,
    /// Name of its object.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Arc<str>,
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

impl fmt::Debug for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}#{}", self.namespace, self.name, self.uid)
    }
}

/// Whether the nodes of a job may be in different zones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZonePolicy {
    /// Only ever inside one zone.
    Single,
    /// Inside one zone; crosses only when no zone has enough healthy nodes of the class in total.
    #[default]
    PreferSingle,
}

/// What is wrong with a job, and not with the cluster: an unusable claim, an unknown class, objects
/// that the API server refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// CamelCase word.
    pub reason: &'static str,
    /// One sentence that names what has to be changed.
    pub message: String,
}

/// Whether the API server takes the job's first pod, as its spec is now. Only a job of which that
/// is known gets nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DryRun {
    /// It was not asked yet, or gave no answer. The job keeps its turn meanwhile.
    #[default]
    Unknown,
    /// It takes it.
    Accepted,
    /// It refuses it. The sentence says why, and what has to be changed.
    Refused(String),
}

/// What happens while others use the node of a pinned job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenBusy {
    /// It waits until the node is free, and kept for nobody.
    #[default]
    Wait,
    /// It gets the node as soon as nobody uses it, before jobs that wait and whatever was promised
    /// to them.
    Next,
    /// It also asks the job there to leave.
    Interrupt,
}

/// A TrainingJob or a NodeValidation, reduced to what decides its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Who it is.
    pub key: JobKey,
    /// `metadata.creationTimestamp`: the order of the queue.
    pub created: Timestamp,
    /// Whole nodes it needs; at least 1.
    pub nodes: u32,
    /// The one node on which it runs, to validate it: as soon as nobody holds that node, whatever
    /// its class, and also if no other work may go there. It is tried once. None for a job that
    /// trains.
    pub pin: Option<NodeName>,
    /// Of a pinned job: what happens while others use its node.
    pub when_busy: WhenBusy,
    /// Class of its nodes, the default already filled in.
    pub class: Class,
    /// Processes on each node; none while its class is not known.
    pub procs_per_node: Option<u32>,
    /// Whether it may cross zones.
    pub zone_policy: ZonePolicy,
    /// Whether it should release its nodes and wait.
    pub suspend: bool,
    /// ack + save + 10 s: how long its pods may take to save and leave.
    pub grace: Duration,
    /// How long its processes may take to end once one has failed.
    pub exit: Duration,
    /// A gang that makes no progress for so long is ended, if any.
    pub stall: Option<Duration>,
    /// Failures of the program that are forgiven.
    pub max_restarts: u32,
    /// Whether its gang, once it runs, goes on without nodes that are lost.
    pub shrinks: bool,
    /// How long it is kept after its end; for ever if absent.
    pub ttl: Option<Duration>,
    /// Whether it has a deletionTimestamp.
    pub deleting: bool,
    /// Whether it carries our finalizer.
    pub finalizer: bool,
    /// Whether what was recorded answers its spec as it is now.
    pub observed: bool,
    /// Why it can get no pods, whatever nodes are free. It holds none as long as this is set,
    /// unless all its pods exist.
    pub problem: Option<Problem>,
    /// How long after it got its nodes its pods are not created yet: they need to know something
    /// that is not known. None: they are created at once.
    pub hold: Option<Duration>,
    /// What a dry run of its first pod has shown.
    pub dry_run: DryRun,
    /// What was recorded about it.
    pub status: JobStatus,
    /// Since when it is in its phase. Filled in by [`crate::Sights`], unless it is set and earlier.
    pub seen: Timestamp,
}

impl Job {
    /// The node that it is to have before everybody else, while it waits for it. It keeps its turn
    /// until it is known that its pod is refused.
    pub(crate) fn awaits(&self) -> Option<&NodeName> {
        let holds = self.status.phase.holds_nodes() || self.status.phase.is_terminal();
        let is_refused = matches!(self.dry_run, DryRun::Refused(_)) || self.problem.is_some();
        let waits = !is_refused && !holds && !self.deleting;
        match self.when_busy {
            WhenBusy::Next | WhenBusy::Interrupt if waits => self.pin.as_ref(),
            WhenBusy::Wait | WhenBusy::Next | WhenBusy::Interrupt => None,
        }
    }

    /// Whether the pod of this rank may acknowledge for its gang. The lowest rank does, and where
    /// nodes may be lost without a restart any can become that.
    pub(crate) fn may_acknowledge(&self, rank: u32) -> bool {
        rank == 0 || self.shrinks
    }
}

/// The ConfigMap of an attempt: whoever creates it decides the attempt's nodes, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The job it belongs to.
    pub job: JobKey,
    /// Its number, from 1.
    pub number: u32,
    /// Its nodes in rank order.
    pub nodes: Vec<NodeName>,
    /// Whether its nodes are in two zones.
    pub crossing: bool,
    /// creationTimestamp of the ConfigMap: which of two attempts is older.
    pub created: Timestamp,
    /// Since when it is there. Filled in by [`crate::Sights`].
    pub seen: Timestamp,
}

/// An attempt whose ConfigMap does not decide anything by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubtful {
    /// The job it says it belongs to.
    pub job: JobKey,
    /// Its number.
    pub number: u32,
    /// What is wrong with it.
    pub doubt: Doubt,
}

/// What is wrong with the ConfigMap of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// Nothing proves that the operator wrote it.
    Unproved,
    /// The operator wrote it, in a form that this version does not know.
    Unreadable,
}

/// A pod of ours: one node rank of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// The job it belongs to, with the uid of its ownerReference.
    pub job: JobKey,
    /// Attempt, from its label.
    pub attempt: u32,
    /// Node rank, from its label.
    pub rank: u32,
    /// The node it is pinned to.
    pub node: NodeName,
    /// What its trainer does.
    pub state: PodState,
    /// Whether its phase is Succeeded or Failed: nothing of it runs, its node is free of it.
    pub terminal: bool,
    /// If it is being deleted: when its grace is over. The API server's time until
    /// [`crate::Sights`] count it anew.
    pub delete_by: Option<Timestamp>,
    /// Its deletionGracePeriodSeconds, if it is being deleted.
    pub grace: Duration,
    /// Whether it carries our finalizer. Who may acknowledge for the gang does, until that is
    /// recorded.
    pub finalizer: bool,
    /// Whether it lost its ownerReference, so that the garbage collector will not remove it.
    pub unowned: bool,
    /// True if it says that its attempt crosses zones. Pods of earlier releases do not say it.
    pub crossing: bool,
    /// Preparation of its start, once its node has said something of it.
    pub preparation: Option<Arc<Preparation>>,
    /// Since when it is where it is: unbound, bound, blocked, running or ended. A bound pod moves
    /// on with each step of its preparation that it had not reached before, an unbound one with
    /// each pod that is bound and was there no later. Filled in by [`crate::Sights`].
    pub since: Timestamp,
}

/// Preparation of a bound pod: all that happens before its trainer starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preparation {
    /// Grows as its containers start and end. Falls when they are run again, which is no progress.
    pub steps: u32,
    /// True while its sidecar waits for those of the other pods.
    pub joins: bool,
    /// True while its kubelet says that it waits before it pulls an image again. It says so while
    /// it pulls it, too.
    pub backs_off: bool,
    /// Description of what the pod is at, for people:
    /// `init container model runs since 2026-11-27T09:10:00Z`.
    pub at: String,
}

impl Pod {
    /// Whether its trainer is over. The pod becomes terminal by itself once its sidecar has left,
    /// and every other container of the template.
    pub fn has_ended(&self) -> bool {
        match self.state {
            PodState::Unbound | PodState::Starting | PodState::Blocked(_) | PodState::Running => {
                self.terminal
            }
            PodState::Succeeded
            | PodState::Interrupted { .. }
            | PodState::Failed(_)
            | PodState::Refused(_) => true,
        }
    }

    /// What it saved when it was asked to stop.
    pub fn acknowledged(&self) -> Option<&CheckpointRef> {
        match &self.state {
            PodState::Interrupted { ack } => ack.as_ref(),
            PodState::Unbound
            | PodState::Starting
            | PodState::Blocked(_)
            | PodState::Running
            | PodState::Succeeded
            | PodState::Failed(_)
            | PodState::Refused(_) => None,
        }
    }
}

/// A pod that ended well and whose object is gone: collected, or deleted by somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectedPod {
    /// The job it belonged to.
    pub job: JobKey,
    /// Its attempt.
    pub attempt: u32,
    /// Its node rank.
    pub rank: u32,
    /// When that was learned.
    pub since: Timestamp,
}

/// What a pod's trainer does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodState {
    /// Not bound to its node.
    Unbound,
    /// Bound; the trainer has not started.
    Starting,
    /// Bound; something that a container needs is missing, such as its image. The sentence names
    /// it.
    Blocked(Problem),
    /// The trainer runs: its whole gang has joined.
    Running,
    /// The trainer ended with code 0 and nobody had asked it to stop.
    Succeeded,
    /// The trainer ended after it was asked to stop (launcher outcome Interrupted).
    Interrupted {
        /// What it saved, if it saved in time.
        ack: Option<CheckpointRef>,
    },
    /// The trainer failed by itself.
    Failed(Exit),
    /// The cluster ended it, by no fault of the program: UnexpectedAdmissionError, OutOf...,
    /// Evicted, NodeShutdown, preempted. The sentence says which.
    Refused(String),
}

/// How a trainer failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Global rank that failed first on that node.
    pub rank: Option<u32>,
    /// Exit code.
    pub code: Option<i32>,
    /// Signal.
    pub signal: Option<i32>,
    /// Anything else that is known, for example `OOMKilled`.
    pub reason: Option<String>,
    /// Last lines that the rank printed.
    pub log: Option<String>,
    /// Why the program could not go on, as it said itself.
    pub cause: Option<ProgramCause>,
    /// When it ended: the first failure of a gang is the cause, the others follow from it.
    pub finished: Option<Timestamp>,
}

/// Why a program could not go on, where it is not at fault itself. The sentences say which
/// checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramCause {
    /// Checkpoints exist and cannot be read now.
    CheckpointUnavailable(String),
    /// Checkpoints exist and none can be loaded.
    NoUsableCheckpoint(String),
}

/// A gang that waits to be ended: those who are left cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The job.
    pub job: JobKey,
    /// The attempt.
    pub attempt: u32,
    /// When that was found.
    pub since: Timestamp,
    /// Why, in one sentence.
    pub message: String,
}

/// What a gang reported over the rendezvous stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointReport {
    /// The job.
    pub job: JobKey,
    /// The attempt that reported it.
    pub attempt: u32,
    /// Its newest durable checkpoint.
    pub checkpoint: CheckpointRef,
    /// What the attempt has resumed from, and why from no newer checkpoint, where a newer one is
    /// damaged.
    pub passed_over: Option<String>,
}
