//! Bad nodes: what each job remembers of nodes that ended its attempts, and which nodes that makes
//! suspect for everybody. Leaves choosing nodes to `assign`.

use std::collections::{BTreeMap, BTreeSet};

use topology::{Class, NodeName};

pub(crate) use crate::limits::MOST_AVOIDED;
use crate::policy::Policy;
use crate::snapshot::{Job, Snapshot};
use crate::status::JobStatus;
use crate::time::Timestamp;

/// How many of a hundred nodes of a class may be suspect for everybody, and at least one.
const SUSPECT_PERCENT: usize = 5;
/// How many namespaces must have lost something on a node before it is suspect for everybody.
const NAMESPACES: usize = 2;

/// What ended an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndCause {
    /// The node died: its Lease ran out, or its object is gone.
    NodeLost,
    /// Its kubelet did not admit the pod, though the node was said to have room for it.
    NodeRefused,
    /// The cluster ended the pod for another reason: evicted, preempted, the node restarted.
    PodEnded,
    /// The pod could not be bound to the node.
    NotBound,
    /// Something that a container of the pod needs is missing, its image for one.
    Blocked,
    /// The pod made no progress towards the start of its trainer.
    NotStarted,
    /// Peers could not reach the node, or gave it up.
    Silent,
    /// The program failed there.
    ProgramFailed,
    /// Another attempt has the same nodes.
    Superseded,
    /// No single node: a pod vanished, the gang did not join in time.
    Other,
}

impl EndCause {
    /// All causes.
    pub const ALL: [Self; 10] = [
        Self::NodeLost,
        Self::NodeRefused,
        Self::PodEnded,
        Self::NotBound,
        Self::Blocked,
        Self::NotStarted,
        Self::Silent,
        Self::ProgramFailed,
        Self::Superseded,
        Self::Other,
    ];

    /// The word in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NodeLost => "NodeLost",
            Self::NodeRefused => "NodeRefused",
            Self::PodEnded => "PodEnded",
            Self::NotBound => "NotBound",
            Self::Blocked => "Blocked",
            Self::NotStarted => "NotStarted",
            Self::Silent => "Silent",
            Self::ProgramFailed => "ProgramFailed",
            Self::Superseded => "Superseded",
            Self::Other => "Other",
        }
    }

    /// The cause behind what a kubelet or the API server says of a pod that it ended. Words that a
    /// user's pod cannot bring about are the node's own: the kubelet's on admission, and those of
    /// controllers about pods whose Node is gone or does not answer.
    pub(crate) fn of_refusal(why: &str) -> Self {
        let begins_with = |words: [&str; 2]| words.iter().any(|word| why.starts_with(word));
        if begins_with(["UnexpectedAdmissionError", "OutOf"]) {
            Self::NodeRefused
        } else if begins_with(["DeletionByPodGC", "NodeLost"]) {
            Self::NodeLost
        } else {
            Self::PodEnded
        }
    }

    /// Whether the node itself is at fault. No user can bring it about, so it counts for others
    /// too.
    fn blames_the_node(self) -> bool {
        match self {
            Self::NodeLost | Self::NodeRefused => true,
            Self::PodEnded
            | Self::NotBound
            | Self::Blocked
            | Self::NotStarted
            | Self::Silent
            | Self::ProgramFailed
            | Self::Superseded
            | Self::Other => false,
        }
    }

    /// Whether an attempt that ended like this leaves its job the right to its place. A job whose
    /// image is missing would only keep nodes from others, and one that was superseded never had a
    /// right to them.
    pub(crate) fn keeps_place(self) -> bool {
        !matches!(self, Self::Blocked | Self::Superseded)
    }

    /// What somebody can do about it.
    pub(crate) fn advice(self) -> &'static str {
        match self {
            Self::Blocked => {
                "make what it names available, or delete the job and create it again with another template"
            }
            Self::NotBound => {
                "compare what the pod asks for with what the node offers, and see what else runs there"
            }
            Self::NodeLost | Self::NodeRefused | Self::Silent => {
                "status.avoidedNodes names the nodes: look at their kubelets and node agents"
            }
            Self::PodEnded
            | Self::NotStarted
            | Self::ProgramFailed
            | Self::Superseded
            | Self::Other => "the Events of the job and its pods say more",
        }
    }
}

/// Why and for how long a job keeps away from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avoided {
    /// Until when.
    pub until: Timestamp,
    /// What happened there last.
    pub cause: EndCause,
    /// How often in a row something did.
    pub count: u32,
}

/// Remembers that an attempt ended on a node. The more often, the longer.
pub(crate) fn remember(
    status: &mut JobStatus,
    node: NodeName,
    cause: EndCause,
    policy: &Policy,
    now: Timestamp,
) {
    let avoided = &mut status.avoided;
    avoided.retain(|_, old| old.until > now);
    let count = avoided.get(&node).map_or(0, |old| old.count);
    let count = count.saturating_add(1);
    let until = policy.avoid.after(now, count);
    // The newest is kept in any case.
    while avoided.len() >= MOST_AVOIDED && !avoided.contains_key(&node) {
        let soonest = avoided.iter().min_by_key(|(name, old)| (old.until, *name));
        let Some(soonest) = soonest.map(|(name, _)| name.clone()) else {
            return;
        };
        avoided.remove(&soonest);
    }
    avoided.insert(
        node,
        Avoided {
            until,
            cause,
            count,
        },
    );
}

/// The nodes that a job keeps away from, the best first.
pub(crate) fn avoided(job: &Job, now: Timestamp) -> Vec<&NodeName> {
    let all = job.status.avoided.iter();
    let mut all: Vec<_> = all.filter(|(_, avoided)| avoided.until > now).collect();
    all.sort_by_key(|(name, avoided)| (avoided.count, avoided.until, *name));
    all.into_iter().map(|(name, _)| name).collect()
}

/// Nodes that are suspect for everybody, and until when: jobs of two namespaces failed there by
/// what no user can bring about. Never more than a few of a class, so that nobody can take the
/// cluster away.
pub(crate) fn suspects(snapshot: &Snapshot, now: Timestamp) -> BTreeMap<&NodeName, Timestamp> {
    let mut seen: BTreeMap<&NodeName, BTreeMap<&str, Timestamp>> = BTreeMap::new();
    for job in &snapshot.jobs {
        for (name, avoided) in &job.status.avoided {
            if avoided.cause.blames_the_node() && avoided.until > now {
                let by = seen.entry(name).or_default();
                let until = by.entry(&job.key.namespace).or_default();
                *until = avoided.until.max(*until);
            }
        }
    }
    seen.retain(|_, by| by.len() >= NAMESPACES);
    if seen.is_empty() {
        return BTreeMap::new();
    }
    let nodes = snapshot.nodes.iter();
    let nodes: BTreeMap<&NodeName, &Class> = nodes.map(|node| (&node.name, &node.class)).collect();
    let mut classes: BTreeMap<&Class, BTreeSet<_>> = BTreeMap::new();
    for (name, by) in seen {
        let mut untils: Vec<Timestamp> = by.into_values().collect();
        untils.sort_unstable_by(|a, b| b.cmp(a));
        if let (Some(class), Some(until)) = (nodes.get(name), untils.get(NAMESPACES - 1)) {
            let worst_first = (std::cmp::Reverse((untils.len(), *until)), name);
            classes.entry(class).or_default().insert(worst_first);
        }
    }
    let mut all = BTreeMap::new();
    for (class, suspects) in classes {
        let size = nodes.values().filter(|of| **of == class).count();
        let most = (size * SUSPECT_PERCENT / 100).max(1);
        let worst = suspects.into_iter().take(most);
        all.extend(worst.map(|(std::cmp::Reverse((_, until)), name)| (name, until)));
    }
    all
}
