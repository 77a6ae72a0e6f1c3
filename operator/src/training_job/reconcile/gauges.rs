//! Shows what was seen as gauges: jobs by phase, nodes by state.

use scheduler::{Node, Phase, Snapshot, Timestamp};

use crate::metrics::Metrics;

const PHASES: [Phase; 9] = [
    Phase::Queued,
    Phase::Assigned,
    Phase::Starting,
    Phase::Running,
    Phase::Interrupting,
    Phase::Restarting,
    Phase::Suspended,
    Phase::Succeeded,
    Phase::Failed,
];

/// Replaces what the gauges showed.
pub(super) fn show(metrics: &Metrics, snapshot: &Snapshot, now: Timestamp) {
    metrics.jobs.reset();
    for phase in PHASES {
        metrics
            .jobs
            .with_label_values(&[&*format!("{phase:?}")])
            .set(0);
    }
    for job in &snapshot.jobs {
        metrics
            .jobs
            .with_label_values(&[&*format!("{:?}", job.status.phase)])
            .inc();
    }
    metrics.nodes.reset();
    let classed = |node: &&Node| !node.class.as_str().is_empty();
    for node in snapshot.nodes.iter().filter(classed) {
        metrics
            .nodes
            .with_label_values(&[node.class.as_str(), state(node, now)])
            .inc();
    }
}

fn state(node: &Node, now: Timestamp) -> &'static str {
    if !node.ready || !node.has_node_resource {
        "unready"
    } else if node.suspect_until.is_some_and(|until| now < until) {
        "suspect"
    } else if node.cordoned {
        "cordoned"
    } else {
        "usable"
    }
}
