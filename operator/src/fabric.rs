//! Shows on the Fabric what the leader sees of the cluster: nodes, free and unusable ones by class and zone, and whether
//! the object differs from what the operator was given. Never read back; decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::fabric::{CapacityStatus, Fabric, FabricSpec, FabricStatus, UnusableStatus};
use daemon::CancellationToken;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff;
use kube::api::Patch;
use scheduler::{Node, Snapshot};
use serde_json::json;
use tokio::sync::watch;
use tracing::debug;

use crate::cluster::Cluster;
use crate::leader::Role;
use crate::training_job::observe::{self, Reports};
use crate::training_job::write::Writer;

/// At most one write in this time.
const PERIOD: Duration = Duration::from_secs(10);
/// Classes and zones that are shown.
const ROWS: usize = 128;

/// The nodes of one class in one zone, and how many are unusable for which reason.
type Row = (CapacityStatus, BTreeMap<&'static str, u32>);

/// Writes the status whenever this replica leads and what it would say has changed.
pub async fn report(
    cluster: Arc<Cluster>,
    writer: Writer,
    given: FabricSpec,
    role: watch::Receiver<Role>,
    shutdown: CancellationToken,
) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
        let leads = *role.borrow() == Role::Leading;
        let Some(status) = leads.then(|| news(&cluster, &given)).flatten() else {
            continue;
        };
        let patch = Patch::Merge(json!({"status": status}));
        let written = writer.patch::<Fabric>("", crds::names::FABRIC, Some("status"), &patch);
        if let Err(error) = written.await {
            debug!(%error, "the Fabric's status is not written");
        }
    }
}

/// The status, if it is not what the Fabric shows.
fn news(cluster: &Cluster, given: &FabricSpec) -> Option<FabricStatus> {
    let mirrors = cluster.mirrors();
    let fabric = mirrors.fabric()?.clone();
    let snapshot = observe::snapshot(&mirrors, &Reports::default(), &[])?;
    drop(mirrors);
    let shown = fabric.status.unwrap_or_default();
    let status = FabricStatus {
        conditions: vec![drifted(&shown, *given != fabric.spec)],
        ..seen(&snapshot)
    };
    (status != shown).then_some(status)
}

/// Whether the object differs from what the operator was given, and since when.
fn drifted(shown: &FabricStatus, holds: bool) -> Condition {
    let (status, reason, message) = match holds {
        true => (
            "True",
            "Differs",
            "The Fabric is not what the chart's value `fabric` says, which counts when there is none: change one of them",
        ),
        false => (
            "False",
            "Same",
            "The Fabric is what the chart's value `fabric` says",
        ),
    };
    let before = shown.conditions.iter().find(|one| one.type_ == "Drifted");
    let since = before.filter(|one| one.status == status);
    let now = || {
        Time(jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap_or_default())
    };
    Condition {
        type_: "Drifted".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: since.map_or_else(now, |one| one.last_transition_time.clone()),
        observed_generation: None,
    }
}

/// Counts the nodes that have a class.
fn seen(snapshot: &Snapshot) -> FabricStatus {
    let holding = snapshot
        .jobs
        .iter()
        .filter(|job| job.status.phase.holds_nodes());
    let holding: BTreeSet<_> = holding.map(|job| (&job.key, job.status.attempt)).collect();
    let attempts = snapshot.attempts.iter();
    let held = attempts.filter(|attempt| holding.contains(&(&attempt.job, attempt.number)));
    let mut taken: BTreeSet<_> = held.flat_map(|attempt| &attempt.nodes).collect();
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
        if let Some(reason) = unusable(node) {
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
    status
}

/// Why no job could get a node.
fn unusable(node: &Node) -> Option<&'static str> {
    if !node.ready {
        Some("NotReady")
    } else if !node.has_node_resource {
        Some("NoAgent")
    } else if node.cordoned {
        Some("Cordoned")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use scheduler::{Attempt, Timestamp};

    use super::*;

    fn node(name: &str, zone: &str) -> Node {
        Node {
            name: name.into(),
            class: "a100".into(),
            zone: zone.into(),
            leaf: "".into(),
            ready: true,
            cordoned: false,
            has_node_resource: true,
            suspect_until: None,
        }
    }

    #[test]
    fn nodes_are_counted_by_class_and_zone_with_the_reason_why_not() {
        let over = crate::training_job::kept::Over {
            key: scheduler::JobKey {
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
        };
        let mut job = over.as_job();
        job.status.phase = scheduler::Phase::Running;
        let attempt = |number, node: &str| Attempt {
            job: job.key.clone(),
            number,
            nodes: vec![node.into()],
            crossing: false,
            created: Timestamp::default(),
        };
        let mut nodes = vec![
            node("n1", "a"),
            node("n2", "a"),
            node("n3", "a"),
            node("n4", "b"),
        ];
        nodes[2].cordoned = true;
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
        let FabricStatus {
            nodes,
            free,
            unusable,
            capacity,
            ..
        } = seen(&snapshot);
        assert_eq!((nodes, free, unusable), (4, 2, 1));
        let [a, b] = &capacity[..] else {
            panic!("not two zones: {capacity:?}")
        };
        assert_eq!((&*a.zone, a.nodes, a.free, a.unusable), ("a", 3, 1, 1));
        assert_eq!((&*a.reasons[0].reason, a.reasons[0].nodes), ("Cordoned", 1));
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
}
