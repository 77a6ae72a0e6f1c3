//! Shows on the Fabric what the leader sees of the cluster: nodes, free and unusable ones by class
//! and zone, where many stopped being Ready at once, and whether the object differs from what the
//! operator was given. Never read back; decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::fabric::{CapacityStatus, Fabric, FabricSpec, FabricStatus, UnusableStatus};
use daemon::CancellationToken;
use health::NodeUse;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::Patch;
use scheduler::{Attempt, JobKind, Node, NodeReason, Snapshot, State, States, Storm};
use serde_json::json;
use tokio::sync::watch;
use tracing::debug;

use crate::cluster::SharedCluster;
use crate::condition::condition;
use crate::training_job::write::Writer;

/// At most one write in this time.
const PERIOD: Duration = Duration::from_secs(10);
/// Classes and zones that are shown.
const ROWS: usize = 128;

/// The nodes of one class in one zone, and how many are unusable for which reason.
type Row = (CapacityStatus, BTreeMap<&'static str, u32>);

/// What the leader's last look at the cluster found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FabricObservation {
    counts: FabricStatus,
    storms: Vec<Storm>,
    nodes: NodesSeen,
}

/// How nodes are used, by their names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodesSeen {
    /// Those that an attempt has, or that a pod of ours is on.
    pub held: BTreeSet<Arc<str>>,
    /// Those of them that a TrainingJob has.
    pub uses: BTreeMap<Arc<str>, NodeUse>,
    /// Those that peers could not reach a moment ago.
    pub suspects: BTreeSet<Arc<str>>,
}

impl FabricObservation {
    /// How nodes are used.
    pub fn nodes(&self) -> &NodesSeen {
        &self.nodes
    }
}

/// Writes the status whenever what it would say has changed. None is seen while another replica
/// leads.
pub async fn report(
    cluster: Arc<SharedCluster>,
    writer: Writer,
    given: FabricSpec,
    seen: watch::Receiver<Option<FabricObservation>>,
    shutdown: CancellationToken,
) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
        let seen = seen.borrow().clone();
        let Some(status) = seen.and_then(|seen| news(&cluster, &given, seen)) else {
            continue;
        };
        let patch = Patch::Merge(json!({"status": status}));
        let written = writer.patch::<Fabric>("", crds::names::FABRIC, Some("status"), &patch);
        if let Err(error) = written.await {
            debug!(%error, "failed to write the Fabric's status");
        }
    }
}

/// The status, if it is not what the Fabric shows.
fn news(
    cluster: &SharedCluster,
    given: &FabricSpec,
    seen: FabricObservation,
) -> Option<FabricStatus> {
    let fabric = cluster.mirrors().fabric()?.clone();
    let shown = fabric.status.unwrap_or_default();
    let status = FabricStatus {
        conditions: vec![
            drifted(&shown, *given != fabric.spec),
            many_not_ready(&shown, &seen.storms),
        ],
        ..seen.counts
    };
    (status != shown).then_some(status)
}

/// Whether the object differs from what the operator was given.
fn drifted(shown: &FabricStatus, holds: bool) -> Condition {
    let (reason, message) = match holds {
        true => (
            "Differs",
            "The Fabric is not what the chart's value `fabric` says, which counts when there is none: change one of them",
        ),
        false => ("Same", "The Fabric is what the chart's value `fabric` says"),
    };
    condition(
        &shown.conditions,
        "Drifted",
        holds,
        reason,
        message.to_owned(),
    )
}

/// Whether many nodes stopped being Ready at once: then their gangs are not the first to suspect.
fn many_not_ready(shown: &FabricStatus, storms: &[Storm]) -> Condition {
    let places: Vec<String> = storms
        .iter()
        .take(ROWS)
        .map(|storm| {
            let Storm {
                class,
                zone,
                not_ready,
                alive,
                of,
            } = storm;
            format!(
                "{not_ready} of {of} nodes of class {class} in zone {zone}, of which {alive} send heartbeats and keep their gangs"
            )
        })
        .collect();
    let kind = "ManyNodesNotReady";
    if places.is_empty() {
        let message = "No more nodes are not Ready than single faults explain".to_owned();
        return condition(&shown.conditions, kind, false, "FewOrNone", message);
    }
    let message = format!(
        "Not Ready since nearly the same time: {}. Look at what they have in common: network, control plane, DNS",
        places.join("; ")
    );
    condition(&shown.conditions, kind, true, "AtOnce", message)
}

/// Counts the nodes that have a class.
pub fn seen(snapshot: &Snapshot, states: &States<'_>) -> FabricObservation {
    let holding = snapshot
        .jobs
        .iter()
        .filter(|job| job.status.phase.holds_nodes());
    let holding: BTreeSet<_> = holding.map(|job| (&job.key, job.status.attempt)).collect();
    let attempts = snapshot.attempts.iter();
    let held = attempts.filter(|attempt| holding.contains(&(&attempt.job, attempt.number)));
    let held: Vec<&Attempt> = held.collect();
    let mut taken: BTreeSet<_> = held.iter().flat_map(|attempt| &attempt.nodes).collect();
    taken.extend(
        snapshot
            .pods
            .iter()
            .filter(|pod| !pod.terminal)
            .map(|pod| &pod.node),
    );
    let mut rows: BTreeMap<(&str, &str), Row> = BTreeMap::new();
    let classed = |node: &&Node| !node.class.as_str().is_empty();
    for node in snapshot.nodes.iter().filter(classed) {
        let (row, reasons) = rows
            .entry((node.class.as_str(), node.zone.as_str()))
            .or_default();
        row.nodes += 1;
        if let Some(reason) = unusable(states.of(&node.name)) {
            row.unusable += 1;
            *reasons.entry(reason).or_default() += 1;
        } else if !taken.contains(&node.name) {
            row.free += 1;
        }
    }
    let rows = rows
        .into_iter()
        .map(|((class, zone), (row, reasons))| CapacityStatus {
            class: class.to_owned(),
            zone: zone.to_owned(),
            reasons: reasons
                .into_iter()
                .map(|(reason, nodes)| UnusableStatus {
                    reason: reason.to_owned(),
                    nodes,
                })
                .collect(),
            ..row
        });
    let mut status = FabricStatus::default();
    for row in rows {
        status.nodes += row.nodes;
        status.free += row.free;
        status.unusable += row.unusable;
        if status.capacity.len() < ROWS {
            status.capacity.push(row);
        }
    }
    FabricObservation {
        counts: status,
        storms: states.storms().to_vec(),
        nodes: NodesSeen {
            held: taken.iter().map(|name| name.as_str().into()).collect(),
            uses: uses(&held),
            suspects: suspects(snapshot, states),
        },
    }
}

/// Which TrainingJob has a node, and since when.
fn uses(held: &[&Attempt]) -> BTreeMap<Arc<str>, NodeUse> {
    let jobs = held
        .iter()
        .filter(|attempt| attempt.job.kind == JobKind::TrainingJob);
    let nodes = jobs.flat_map(|attempt| {
        let used = NodeUse {
            job: attempt.job.to_string(),
            since: i64::try_from(attempt.created.as_millis() / 1000).unwrap_or(i64::MAX),
        };
        let nodes = attempt.nodes.iter();
        nodes.map(move |node| (node.as_str().into(), used.clone()))
    });
    nodes.collect()
}

fn suspects(snapshot: &Snapshot, states: &States<'_>) -> BTreeSet<Arc<str>> {
    let nodes = snapshot.nodes.iter().map(|node| &node.name);
    let suspects = nodes.filter(|name| matches!(states.of(name), State::Suspect { .. }));
    suspects.map(|name| name.as_str().into()).collect()
}

/// Why no job could get a node, in one word.
fn unusable(state: &State) -> Option<&'static str> {
    match state {
        State::Usable => None,
        State::NoNewWork { why } => Some(word(why)),
        State::Leaving { .. } => Some("Leaving"),
        State::Suspect { .. } => Some("Suspect"),
        State::Short { .. } => Some("Short"),
        State::Lost { .. } => Some("Lost"),
    }
}

fn word(why: &NodeReason) -> &'static str {
    match why {
        NodeReason::NotReady => "NotReady",
        NodeReason::LeaseOut => "LeaseOut",
        NodeReason::Gone => "Gone",
        NodeReason::GivenUp => "GivenUp",
        NodeReason::Tainted(_) => "Tainted",
        NodeReason::Quarantined(_) => "Quarantined",
        NodeReason::Awaited(_) => "Awaited",
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff;
    use scheduler::{Attempt, Policy, Ready, Timestamp};

    use super::*;

    fn node(name: &str, zone: &str) -> Node {
        Node {
            name: name.into(),
            class: "a100".into(),
            zone: zone.into(),
            leaf: "".into(),
            ready: Ready::True,
            unready_since: Timestamp::default(),
            taint: None,
            foreign_taint: None,
            quarantine: None,
            wishes: BTreeMap::new(),
            short: None,
            suspect_until: None,
        }
    }

    #[test]
    fn nodes_are_counted_by_class_and_zone_with_the_reason_why_not() {
        let over = crate::training_job::mirrored_job::Over {
            key: scheduler::JobKey {
                kind: scheduler::JobKind::TrainingJob,
                namespace: "team".into(),
                name: "digits".into(),
                uid: "u-1".into(),
            },
            version: "1".to_owned(),
            created: Timestamp::default(),
            succeeded: true,
            attempt: 2,
            finished_at: Timestamp::default(),
            ttl: None,
            run: None,
            seen: None,
        };
        let mut job = over.as_job();
        job.status.phase = scheduler::JobPhase::Running;
        let attempt = |number, node: &str| Attempt {
            job: job.key.clone(),
            number,
            nodes: vec![node.into()],
            crossing: false,
            created: Timestamp::default(),
            seen: Timestamp::default(),
        };
        let mut nodes = vec![
            node("n1", "a"),
            node("n2", "a"),
            node("n3", "a"),
            node("n4", "b"),
        ];
        nodes[2].short = Some("7 of 8 nvidia.com/gpu".into());
        nodes.push(Node {
            class: "".into(),
            ..node("other", "a")
        });
        let snapshot = Snapshot {
            attempts: vec![attempt(2, "n1"), attempt(1, "n4")],
            nodes,
            jobs: vec![job],
            ..Snapshot::default()
        };
        let policy = Policy::default();
        let states = States::new(&snapshot, &policy, Timestamp::default());
        let FabricStatus {
            nodes,
            free,
            unusable,
            capacity,
            ..
        } = seen(&snapshot, &states).counts;
        assert_eq!((nodes, free, unusable), (4, 2, 1));
        let [a, b] = &capacity[..] else {
            panic!("not two zones: {capacity:?}")
        };
        assert_eq!((&*a.zone, a.nodes, a.free, a.unusable), ("a", 3, 1, 1));
        assert_eq!((&*a.reasons[0].reason, a.reasons[0].nodes), ("Short", 1));
        assert_eq!((&*b.zone, b.nodes, b.free, b.unusable), ("b", 1, 1, 0));
    }

    #[test]
    fn the_time_of_a_condition_moves_only_when_it_flips() {
        let mut shown = FabricStatus {
            conditions: vec![drifted(&FabricStatus::default(), true)],
            ..FabricStatus::default()
        };
        shown.conditions[0].last_transition_time = Time(jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(drifted(&shown, true), shown.conditions[0]);
        let flipped = drifted(&shown, false);
        assert_ne!(
            flipped.last_transition_time,
            shown.conditions[0].last_transition_time
        );
        assert_eq!(flipped.status, "False");
    }

    #[test]
    fn nodes_that_are_not_ready_at_once_are_reported_with_those_alive() {
        let storm = Storm {
            class: "a100".into(),
            zone: "b".into(),
            not_ready: 9,
            alive: 8,
            of: 100,
        };
        let said = many_not_ready(&FabricStatus::default(), &[storm]);
        assert_eq!((&*said.type_, &*said.status), ("ManyNodesNotReady", "True"));
        let expected = "9 of 100 nodes of class a100 in zone b, of which 8 send heartbeats";
        assert!(said.message.contains(expected), "{}", said.message);
        let over = many_not_ready(&FabricStatus::default(), &[]);
        assert_eq!(over.status, "False");
    }
}
