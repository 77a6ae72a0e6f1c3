//! What a node is good for. The one place where what its object says, its Lease, its sidecar and
//! the sidecar's peers become one state. Leaves what follows for jobs to those who ask.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use topology::{Class, NodeName, Zone};

use crate::avoid::suspects;
use crate::pin::NextRuns;
use crate::policy::Policy;
use crate::snapshot::{Absent, Node, Snapshot};
use crate::time::Timestamp;

/// The condition `Ready` of a Node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ready {
    /// The kubelet says that it works.
    #[default]
    True,
    /// The kubelet says that something does not work, its runtime for one; or it has not said
    /// anything yet.
    False,
    /// The node lifecycle controller says that the node's Lease ran out. This is the only sign of
    /// the Lease that is looked at: nothing watches Leases.
    Unknown,
}

/// Somebody's wish that a node be emptied. Of several the greatest is the one that people read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    /// `spec.unschedulable`.
    Cordoned,
    /// A taint by which somebody asks to leave: a foreign one with the effect NoExecute, or one
    /// that an autoscaler puts on a node that it is about to take away.
    Tainted(Arc<str>),
    /// This validation interrupts, and could run on the node as it is.
    Validated(Arc<str>),
    /// The Node has a deletionTimestamp.
    Deleted,
}

impl Wish {
    /// Returns true if a gang follows it even without a place elsewhere. A cordon or a taint can
    /// wait until there is room. A Node that goes takes its pods along, and one that is to be
    /// validated comes back in minutes.
    pub(crate) fn is_must(&self) -> bool {
        match self {
            Self::Deleted | Self::Validated(_) => true,
            Self::Cordoned | Self::Tainted(_) => false,
        }
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cordoned => write!(f, "cordoned"),
            Self::Tainted(key) => write!(f, "tainted with {key}"),
            Self::Deleted => write!(f, "being deleted"),
            Self::Validated(by) => write!(f, "awaited by validation {by}"),
        }
    }
}

/// Why a node gets no new work, or is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeReason {
    /// `Ready` is False.
    NotReady,
    /// `Ready` is Unknown: the node's Lease ran out.
    LeaseOut,
    /// There is no Node object.
    Gone,
    /// The peers of its sidecar gave it up.
    GivenUp,
    /// It has a taint that keeps new pods away and asks nobody to leave, such as
    /// `node.kubernetes.io/disk-pressure`, or one of an agent that restarts.
    Tainted(Arc<str>),
    /// It failed this validation, and has not passed one since; or a person put it in quarantine.
    Quarantined(Arc<str>),
    /// Nobody uses it, and this validation is to have it before everybody else.
    Awaited(Arc<str>),
}

impl fmt::Display for NodeReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotReady => write!(f, "it is not Ready"),
            Self::LeaseOut => write!(f, "its Lease ran out"),
            Self::Gone => write!(f, "it has no Node object"),
            Self::GivenUp => write!(f, "its peers gave it up"),
            Self::Tainted(key) => write!(f, "it has the taint {key}"),
            Self::Quarantined(by) => write!(f, "it is in quarantine: {by}"),
            Self::Awaited(by) => write!(f, "validation {by} is to have it first"),
        }
    }
}

/// What a node is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// New work may go there.
    Usable,
    /// No new work; what is there stays.
    NoNewWork {
        /// Why.
        why: NodeReason,
    },
    /// No new work; gangs on it save and go elsewhere.
    Leaving {
        /// The wishes for that, and when the planner first saw each; at least one.
        wishes: BTreeMap<Wish, Timestamp>,
    },
    /// Peers could not reach it: no new work until then.
    Suspect {
        /// Until when that counts.
        until: Timestamp,
    },
    /// It offers less than its class asks for: no new work.
    Short {
        /// Of what, such as `7 of 8 nvidia.com/gpu`.
        of: Arc<str>,
    },
    /// What ran on it is not there any more.
    Lost {
        /// How that is known.
        why: NodeReason,
    },
}

impl State {
    /// The state as the metric names it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Usable => "usable",
            Self::NoNewWork { .. } => "no-new-work",
            Self::Leaving { .. } => "leaving",
            Self::Suspect { .. } => "suspect",
            Self::Short { .. } => "short",
            Self::Lost { .. } => "lost",
        }
    }
}

/// What the rendezvous service knows of the nodes of a gang.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GangLiveness {
    /// Their sidecars sent a heartbeat a moment ago.
    pub alive: BTreeSet<NodeName>,
    /// Their sidecars had connected to this operator, and are silent now.
    pub quiet: BTreeSet<NodeName>,
    /// Peers gave them up, as dead or as silent for too long.
    pub given_up: BTreeSet<NodeName>,
}

/// Many nodes of one class in one zone that stopped being Ready at nearly the same time: more
/// likely something that they depend on than the nodes themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storm {
    /// Their class.
    pub class: Class,
    /// Their zone.
    pub zone: Zone,
    /// How many nodes there are not Ready.
    pub not_ready: usize,
    /// How many of these have a sidecar that sends heartbeats.
    pub alive: usize,
    /// How many nodes the class has there.
    pub of: usize,
}

/// What is known of a node's sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heartbeats {
    Recent,
    Missed,
    /// No sidecar there has connected to this operator. Shortly after its start that means nothing.
    Unknown,
}

/// What is known of a node, for [`join`].
#[derive(Clone, Copy, Debug)]
struct Facts<'a> {
    node: Option<&'a Node>,
    heartbeats: Heartbeats,
    given_up: bool,
    /// Whether the operator has just started.
    is_starting: bool,
    /// Whether a Lease that ran out is to be believed.
    lease_counts: bool,
    now: Timestamp,
}

/// The state that follows from the facts. A node is lost if its sidecar sends no heartbeats **and**
/// something else says so too. A node that sends them stays, and what fits first counts.
fn join(facts: Facts<'_>) -> State {
    let Facts {
        heartbeats,
        given_up,
        now,
        ..
    } = facts;
    let Some(node) = facts.node else {
        let why = NodeReason::Gone;
        return match heartbeats {
            Heartbeats::Recent => State::NoNewWork { why },
            Heartbeats::Missed | Heartbeats::Unknown => State::Lost { why },
        };
    };
    let alive = match heartbeats {
        Heartbeats::Recent => true,
        Heartbeats::Missed => false,
        Heartbeats::Unknown => facts.is_starting,
    };
    let lease_out = node.ready == Ready::Unknown && facts.lease_counts;
    if !alive && (lease_out || given_up) {
        let why = match lease_out {
            true => NodeReason::LeaseOut,
            false => NodeReason::GivenUp,
        };
        return State::Lost { why };
    }
    if !node.wishes.is_empty() {
        let wishes = node.wishes.clone();
        return State::Leaving { wishes };
    }
    match node.ready {
        Ready::True => {}
        Ready::False => {
            return State::NoNewWork {
                why: NodeReason::NotReady,
            };
        }
        Ready::Unknown => {
            return State::NoNewWork {
                why: NodeReason::LeaseOut,
            };
        }
    }
    if let Some(taint) = node.taint.as_ref().or(node.foreign_taint.as_ref()) {
        let why = NodeReason::Tainted(Arc::clone(taint));
        return State::NoNewWork { why };
    }
    if let Some(by) = &node.quarantine {
        let why = NodeReason::Quarantined(Arc::clone(by));
        return State::NoNewWork { why };
    }
    match (node.suspect_until, &node.short) {
        (Some(until), _) if until > now => State::Suspect { until },
        (_, Some(of)) => State::Short { of: Arc::clone(of) },
        _ => State::Usable,
    }
}

static GONE: State = State::Lost {
    why: NodeReason::Gone,
};
/// Its sidecar sends heartbeats, or no read has confirmed yet that it is gone.
static GONE_AT_MOST: State = State::NoNewWork {
    why: NodeReason::Gone,
};

/// The states of all nodes.
#[derive(Debug)]
pub struct States<'a> {
    known: BTreeMap<&'a NodeName, State>,
    alive: BTreeSet<&'a NodeName>,
    /// Nodes that a read has not found.
    absent: BTreeSet<&'a NodeName>,
    /// Until when all jobs keep away from a node for what happened to some there.
    avoided: BTreeMap<&'a NodeName, Timestamp>,
    next: NextRuns<'a>,
    storms: Vec<Storm>,
    wake: Option<Timestamp>,
}

impl<'a> States<'a> {
    /// Joins what the snapshot holds.
    pub fn new(snapshot: &'a Snapshot, policy: &Policy, now: Timestamp) -> Self {
        let all = |set: fn(&GangLiveness) -> &BTreeSet<NodeName>| -> BTreeSet<&'a NodeName> {
            let sets = snapshot.liveness.values().map(|gang| set(gang));
            sets.flatten().collect()
        };
        let alive = all(|gang| &gang.alive);
        let quiet = all(|gang| &gang.quiet);
        let given_up = all(|gang| &gang.given_up);
        let storms = storms(snapshot, &alive, policy);
        let is_starting = snapshot.heartbeats_known_at > now;
        let mut wake = is_starting.then_some(snapshot.heartbeats_known_at);
        let mut wake_at = |when: Timestamp| {
            if when > now {
                wake = Some(wake.map_or(when, |old| old.min(when)));
            }
        };
        let next = NextRuns::new(snapshot, now);
        let mut known = BTreeMap::new();
        for node in &snapshot.nodes {
            let heartbeats = match &node.name {
                name if alive.contains(name) => Heartbeats::Recent,
                name if quiet.contains(name) => Heartbeats::Missed,
                _ => Heartbeats::Unknown,
            };
            let in_storm = storms
                .iter()
                .any(|storm| (&storm.class, &storm.zone) == (&node.class, &node.zone));
            let believed = match in_storm {
                true => node.unready_since + policy.storm_patience,
                false => now,
            };
            if node.ready == Ready::Unknown {
                wake_at(believed);
            }
            if let Some(until) = node.suspect_until {
                wake_at(until);
            }
            let mut state = join(Facts {
                node: Some(node),
                heartbeats,
                given_up: given_up.contains(&node.name),
                is_starting,
                lease_counts: believed <= now,
                now,
            });
            if let (State::Usable, Some(by)) = (&state, next.awaits(&node.name)) {
                let why = NodeReason::Awaited(Arc::clone(by));
                state = State::NoNewWork { why };
            }
            known.insert(&node.name, state);
        }
        let absent = snapshot.absent.iter().filter_map(|object| match object {
            Absent::Node(node) => Some(node),
            Absent::Job(_) | Absent::Attempt { .. } | Absent::Pod { .. } => None,
        });
        Self {
            known,
            alive,
            absent: absent.collect(),
            avoided: suspects(snapshot, now),
            next,
            storms,
            wake,
        }
    }

    /// The state of a node, also of one that has no object.
    pub fn of(&self, node: &NodeName) -> &State {
        let known = self.known.get(node);
        let is_gone = !self.alive.contains(node) && self.absent.contains(node);
        known.unwrap_or(match is_gone {
            true => &GONE,
            false => &GONE_AT_MOST,
        })
    }

    /// Whether a node has no object and sends no heartbeats: a read has to confirm that it is gone.
    pub(crate) fn is_in_doubt(&self, node: &NodeName) -> bool {
        !self.known.contains_key(node) && !self.alive.contains(node)
    }

    /// Whether what ran on the node is not there any more.
    pub fn is_lost(&self, node: &NodeName) -> bool {
        matches!(self.of(node), State::Lost { .. })
    }

    /// Whether new work may go to the node.
    pub fn is_usable(&self, node: &NodeName) -> bool {
        *self.of(node) == State::Usable
    }

    /// Nodes that all jobs keep away from, whatever their state, and until when.
    pub fn avoided_by_all(&self) -> &BTreeMap<&'a NodeName, Timestamp> {
        &self.avoided
    }

    /// The validations that are to have nodes before everybody else.
    pub(crate) fn next_runs(&self) -> &NextRuns<'a> {
        &self.next
    }

    /// Where many nodes stopped being Ready at once.
    pub fn storms(&self) -> &[Storm] {
        &self.storms
    }

    /// When time alone may change a state.
    pub(crate) fn wake(&self) -> Option<Timestamp> {
        self.wake
    }
}

/// Where more nodes than single faults explain stopped being Ready within one window, and are not
/// back yet.
fn storms(snapshot: &Snapshot, alive: &BTreeSet<&NodeName>, policy: &Policy) -> Vec<Storm> {
    #[derive(Default)]
    struct Count {
        of: usize,
        alive: usize,
        since: Vec<Timestamp>,
    }
    let mut places: BTreeMap<(&Class, &Zone), Count> = BTreeMap::new();
    for node in &snapshot.nodes {
        let count = places.entry((&node.class, &node.zone)).or_default();
        count.of += 1;
        if node.ready != Ready::True {
            count.since.push(node.unready_since);
            count.alive += usize::from(alive.contains(&node.name));
        }
    }
    let mut storms = Vec::new();
    for ((class, zone), mut count) in places {
        let explained = policy.storm_least.max(count.of / 20);
        count.since.sort_unstable();
        let mut windows = count.since.windows(explained + 1);
        let at_once = windows.any(|window| match window {
            [first, .., last] => *last <= *first + policy.storm_window,
            _ => false,
        });
        if at_once && !class.as_str().is_empty() {
            storms.push(Storm {
                class: class.clone(),
                zone: zone.clone(),
                not_ready: count.since.len(),
                alive: count.alive,
                of: count.of,
            });
        }
    }
    storms
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
