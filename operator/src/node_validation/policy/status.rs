//! What a policy shows of its nodes and runs.

use crds::node_validation_policy::{NodeValidationPolicy, NodeValidationPolicyStatus};
use health::{PolicySummary, QuarantineSummary};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff;

use crate::condition::condition;

/// Nodes that a list or a condition names.
const NAMED: usize = 16;

/// The status, if it is not what the policy shows.
pub(super) fn news(
    policy: &NodeValidationPolicy,
    summary: &PolicySummary,
    quarantine: &QuarantineSummary,
) -> Option<NodeValidationPolicyStatus> {
    let shown = policy.status.clone().unwrap_or_default();
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let time = |at: Option<i64>| {
        at.and_then(|at| jiff::Timestamp::from_second(at).ok())
            .map(Time)
    };
    let status = NodeValidationPolicyStatus {
        conditions: vec![
            overlapped(&shown, summary.overlapped_by.as_deref()),
            held(&shown, &quarantine.held),
        ],
        nodes: count(summary.nodes),
        due: count(summary.due),
        running: count(summary.running),
        waiting: count(summary.waiting),
        failed: count(summary.failed.len()),
        failed_nodes: summary.failed.iter().take(NAMED).cloned().collect(),
        quarantined: count(quarantine.quarantined.len()),
        last_run_time: time(summary.last),
        next_run_time: time(summary.next),
        observed_generation: policy.metadata.generation,
    };
    (status != shown).then_some(status)
}

fn overlapped(shown: &NodeValidationPolicyStatus, by: Option<&str>) -> Condition {
    let (reason, message) = match by {
        Some(by) => (
            "OlderPolicy",
            format!(
                "The older policy {by} selects some of the same nodes, which are its: change a nodeSelector"
            ),
        ),
        None => (
            "Alone",
            "No older policy selects nodes of this one".to_owned(),
        ),
    };
    condition(
        &shown.conditions,
        "Overlapped",
        by.is_some(),
        reason,
        message,
    )
}

fn held(shown: &NodeValidationPolicyStatus, held: &[String]) -> Condition {
    let kind = "QuarantineHeld";
    if held.is_empty() {
        let message = "No node that failed is left out of quarantine".to_owned();
        return condition(&shown.conditions, kind, false, "WithinLimits", message);
    }
    let named = held[..held.len().min(NAMED)].join(", ");
    let count = held.len();
    let message = format!(
        "{count} nodes failed and stay open to jobs, as maxQuarantinedPercent or \
         maxQuarantinedPerLeaf leaves no room: {named}. Look for what they share, repair those \
         in quarantine, or raise a limit"
    );
    condition(&shown.conditions, kind, true, "LimitReached", message)
}
