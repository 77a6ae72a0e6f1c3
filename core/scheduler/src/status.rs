//! What is recorded about a job: the only memory the planner has. A new leader continues from it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use topology::{CheckpointRef, Class, NodeName, Zone};

use crate::avoid::Avoided;
use crate::promise::Promise;
use crate::time::Timestamp;

/// One word for where a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobPhase {
    /// Waits for nodes.
    #[default]
    Queued,
    /// An attempt is decided; its ConfigMap, key and pods are being created.
    Assigned,
    /// All pods exist; the gang is joining.
    Starting,
    /// Every rank trains.
    Running,
    /// Asked to save and release.
    Interrupting,
    /// The attempt is void; the next one starts at `retry_at`.
    Restarting,
    /// Holds no nodes until `suspend` is false again.
    Suspended,
    /// Every rank ended well.
    Succeeded,
    /// Will not be tried again.
    Failed,
}

impl JobPhase {
    /// Whether the current attempt owns its nodes.
    pub fn holds_nodes(self) -> bool {
        match self {
            Self::Assigned | Self::Starting | Self::Running | Self::Interrupting => true,
            Self::Queued | Self::Restarting | Self::Suspended | Self::Succeeded | Self::Failed => {
                false
            }
        }
    }

    /// Whether nothing but time to live changes any more.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// The conditions of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConditionKind {
    /// The current attempt has nodes. False says why not.
    Assigned,
    /// Every rank trains. False says what is missing.
    Running,
    /// A checkpoint of the job is known to be durable.
    CheckpointDurable,
    /// The attempt resumed from an older checkpoint, because a newer one is damaged.
    CheckpointPassedOver,
    /// The job released its nodes because its spec asks for it.
    Suspended,
    /// Every rank ended well.
    Complete,
    /// The job was given up.
    Failed,
    /// Nothing proves that the operator wrote the assignment of the attempt that holds nodes.
    AssignmentUnproved,
    /// Several attempts in a row ended before the job ran. The message says what to do.
    Stuck,
    /// The attempt has trained for as long as it may without progress, and never gave a sign of it.
    ProgressUnknown,
}

impl ConditionKind {
    /// The condition's `type` in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Assigned => "Assigned",
            Self::Running => "Running",
            Self::CheckpointDurable => "CheckpointDurable",
            Self::CheckpointPassedOver => "CheckpointPassedOver",
            Self::Suspended => "Suspended",
            Self::Complete => "Complete",
            Self::Failed => "Failed",
            Self::AssignmentUnproved => "AssignmentUnproved",
            Self::Stuck => "Stuck",
            Self::ProgressUnknown => "ProgressUnknown",
        }
    }

    /// All kinds, in the order in which they are shown.
    pub const ALL: [Self; 10] = [
        Self::Assigned,
        Self::Running,
        Self::CheckpointDurable,
        Self::CheckpointPassedOver,
        Self::Suspended,
        Self::Complete,
        Self::Failed,
        Self::AssignmentUnproved,
        Self::Stuck,
        Self::ProgressUnknown,
    ];
}

/// One condition. `since` moves only when `holds` changes, as Kubernetes wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// True or False in the API; Unknown is not used (read it as False).
    pub holds: bool,
    /// CamelCase word for programs.
    pub reason: String,
    /// One sentence for people.
    pub message: String,
    /// When `holds` last changed.
    pub since: Timestamp,
}

/// The members of an attempt, as they were committed last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommittedMembers {
    /// The attempt.
    pub attempt: u32,
    /// Counts the memberships of the attempt.
    pub epoch: u64,
    /// How many nodes take part.
    pub participants: u32,
    /// Node ranks that were lost.
    pub lost: BTreeSet<u32>,
    /// The first of them by name, for people.
    pub lost_nodes: Vec<String>,
    /// Where it is written down what the members began with; means something to the rendezvous
    /// service alone.
    pub record: Option<Arc<str>>,
}

/// Ranks that ended well before others did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompletedRanks {
    /// The attempt.
    pub attempt: u32,
    /// Their node ranks.
    pub ranks: BTreeSet<u32>,
}

/// The time for which a job had nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptRecord {
    /// Number of the attempt.
    pub attempt: u32,
    /// How many nodes it had.
    pub nodes: u32,
    /// The first of them, in rank order.
    pub names: Vec<NodeName>,
    /// When it got them.
    pub since: Timestamp,
    /// When it ended, and why in one word; none while it has them.
    pub ended: Option<(Timestamp, String)>,
}

impl AttemptRecord {
    /// Names that are kept.
    pub const NAMES: usize = 16;

    /// Nodes times seconds, once it ended.
    pub fn node_seconds(&self) -> Option<u64> {
        let (end, _) = self.ended.as_ref()?;
        let millis = end.as_millis().saturating_sub(self.since.as_millis());
        Some(millis.saturating_mul(self.nodes.into()) / 1000)
    }
}

/// The failure that ended an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Attempt that failed.
    pub attempt: u32,
    /// Node on which it failed first.
    pub node: Option<NodeName>,
    /// Global rank that failed first, where one did.
    pub rank: Option<u32>,
    /// What happened, in one sentence.
    pub message: String,
    /// Last lines that the rank printed.
    pub log: Option<String>,
}

/// What is recorded about a job, in full. The default is that of a job nobody has looked at yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobStatus {
    /// Where the job is.
    pub phase: JobPhase,
    /// Conditions that were ever set.
    pub conditions: BTreeMap<ConditionKind, Condition>,
    /// Number of the newest attempt; 0 before the first. It voids all lower ones.
    pub attempt: u32,
    /// Failures that count against `max_restarts`: those within the window, when the last one
    /// happened.
    pub restarts: u32,
    /// When each of them happened, the oldest first.
    pub restart_times: Vec<Timestamp>,
    /// Attempts in a row that ended by no fault of the program (lost nodes, refusals). Lengthens
    /// the back-off, charges nothing, and is 0 again once the job runs.
    pub replans: u32,
    /// Attempts in a row that ended because checkpoints could not be read. They charge nothing.
    pub unreadable: u32,
    /// Class of the job's nodes and processes on each, as they were resolved when the job was first
    /// recorded.
    pub class: Option<(Class, u32)>,
    /// How many of them ended because something that the pods need is missing, such as their image.
    pub refusals: u32,
    /// The place that is kept for it while it has none.
    pub promise: Option<Promise>,
    /// Nodes on which attempts of it ended: taken again only if nothing else does. At most 64.
    pub avoided: BTreeMap<NodeName, Avoided>,
    /// Since when no zone has enough healthy nodes for it, although one has enough in total.
    pub no_zone_since: Option<Timestamp>,
    /// Nodes whose trainer runs: all or none, since it is written on transitions only.
    pub ready: u32,
    /// Who takes part in the newest attempt that goes on without lost nodes. The rendezvous service
    /// writes it, before anybody goes on; the planner drops it when the next attempt begins.
    pub membership: Option<CommittedMembers>,
    /// The ranks that have ended well in the attempt that holds nodes, while others go on: their
    /// pods may be gone, or rewritten, before the last one ends.
    pub completed: Option<CompletedRanks>,
    /// Zones of the attempt that holds nodes: two when it crosses, none where nodes have no zone.
    pub zones: Vec<Zone>,
    /// When the job first got nodes.
    pub started_at: Option<Timestamp>,
    /// The newest attempt that got nodes. What came before it is for people and not kept here.
    pub newest: Option<AttemptRecord>,
    /// Last checkpoint known to be durable.
    pub last_checkpoint: Option<CheckpointRef>,
    /// When `last_checkpoint` was learned.
    pub checkpoint_at: Option<Timestamp>,
    /// When the next attempt may start.
    pub retry_at: Option<Timestamp>,
    /// When the job reached Succeeded or Failed.
    pub finished_at: Option<Timestamp>,
    /// The last failure.
    pub failure: Option<Failure>,
}

impl JobStatus {
    /// Whether a condition is True.
    pub fn is(&self, kind: ConditionKind) -> bool {
        self.conditions
            .get(&kind)
            .is_some_and(|condition| condition.holds)
    }

    /// Sets a condition, moving its time only when it flips.
    pub fn set(
        &mut self,
        kind: ConditionKind,
        holds: bool,
        reason: &str,
        message: &str,
        now: Timestamp,
    ) {
        let since = match self.conditions.get(&kind) {
            Some(old) if old.holds == holds => old.since,
            Some(_) | None => now,
        };
        let condition = Condition {
            holds,
            reason: reason.to_owned(),
            message: message.to_owned(),
            since,
        };
        self.conditions.insert(kind, condition);
    }
}
