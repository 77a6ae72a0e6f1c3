//! Between the planner's status and that of a NodeValidation. The planner's words for a job that
//! trains become those of a run of checks. Leaves the verdict to `verdict`.

use std::collections::BTreeMap;

use crds::NodeValidation;
use crds::node_validation::{NodeValidationStatus, ValidationPhase, ValidationVerdict};
use scheduler::{AttemptRecord, Condition, ConditionKind, JobEvent, JobPhase, JobStatus};

use crate::condition::cut;
use crate::training_job::status::{conditions_from_api, conditions_to_api, time};
use crate::training_job::translate::timestamp;

/// The planner's word for a job that has its nodes and no pods yet.
const HELD: &str = "Held";
/// The planner's words for a job that trains (reason and message of a condition), and what they are
/// for a run of checks. Both ways, so that nothing is written anew for the words alone.
const WORDS: [[&str; 4]; 7] = [
    [
        HELD,
        "Waiting for what its pods need to know",
        "WaitingForPartner",
        "Waiting for the run on the partner node to start, two minutes at most",
    ],
    [
        "Joining",
        "Waiting for the gang to join",
        "PodStarting",
        "Waiting for the validator's pod to start",
    ],
    [
        "AllRanksRun",
        "Every rank trains",
        "ChecksRunning",
        "The checks run",
    ],
    [
        "Succeeded",
        "Every rank ended well",
        "Reported",
        "The validator has reported",
    ],
    [
        "Succeeded",
        "The job ended and released its nodes",
        "Reported",
        "The validation ended and released its node",
    ],
    // A failure's own reason stays.
    [
        "",
        "The job ended and released its nodes",
        "",
        "The validation ended and released its node",
    ],
    [
        "Placed",
        "1 node",
        "NodeGiven",
        "The validation has its node",
    ],
];

/// What the planner's Event says of a validation, and whether somebody should look. The one at its
/// end has the verdict, which is written by then.
pub fn event(event: &JobEvent, validation: &NodeValidation) -> (String, bool) {
    let status = validation.status.clone().unwrap_or_default();
    if let (Some(verdict), Some(message)) = (status.verdict, status.message) {
        let text = format!("{}: {message}", verdict.as_str());
        let look = match verdict {
            ValidationVerdict::Fail | ValidationVerdict::Error | ValidationVerdict::Warn => true,
            ValidationVerdict::Pass | ValidationVerdict::Skipped => false,
        };
        return (text, look);
    }
    let mut words = WORDS.iter();
    let found = words.find(|[_, planner, _, _]| *planner == event.message);
    let text = found.map_or(event.message.as_str(), |[_, _, _, shown]| shown);
    (text.to_owned(), event.warning)
}

/// Replaces the words of conditions that stand in one half of the table by those in the other.
fn reword(conditions: &mut BTreeMap<ConditionKind, Condition>, from: usize, to: usize) {
    for condition in conditions.values_mut() {
        let is_it = |words: &&[&str; 4]| {
            let reason = words[from].is_empty() || words[from] == condition.reason;
            reason && words[from + 1] == condition.message
        };
        if let Some(words) = WORDS.iter().find(is_it) {
            if !words[to].is_empty() {
                words[to].clone_into(&mut condition.reason);
            }
            words[to + 1].clone_into(&mut condition.message);
        }
    }
}

/// The planner's status as the API shows it, without a verdict.
pub fn to_api(status: &JobStatus, validation: &NodeValidation) -> NodeValidationStatus {
    let generation = validation.metadata.generation;
    let running = status.conditions.get(&ConditionKind::Running);
    let is_held = running.is_some_and(|running| running.reason == HELD);
    let shown = match status.phase {
        JobPhase::Assigned if is_held => ConditionKind::Running,
        JobPhase::Queued | JobPhase::Assigned | JobPhase::Restarting | JobPhase::Suspended => {
            ConditionKind::Assigned
        }
        JobPhase::Starting | JobPhase::Running | JobPhase::Interrupting => ConditionKind::Running,
        JobPhase::Succeeded => ConditionKind::Complete,
        JobPhase::Failed => ConditionKind::Failed,
    };
    let mut conditions = status.conditions.clone();
    reword(&mut conditions, 0, 2);
    let shown = conditions.get(&shown);
    let before = validation.status.as_ref();
    NodeValidationStatus {
        phase: phase(status.phase),
        verdict: None,
        reason: shown.map(|condition| condition.reason.clone()),
        message: shown.map(|condition| cut(&condition.message)),
        conditions: conditions_to_api(&conditions, generation),
        attempt: status.attempt,
        node_class: before.and_then(|before| before.node_class.clone()),
        start_time: status.started_at.map(time),
        completion_time: status.finished_at.map(time),
        results: Vec::new(),
        fingerprint: None,
        boot_id: None,
        quarantine_time: None,
        observed_generation: generation,
    }
}

/// A verdict that was written stays as it is.
pub fn keep_verdict(shown: &mut NodeValidationStatus, validation: &NodeValidation) {
    if let Some(before) = &validation.status {
        shown.verdict = before.verdict;
        shown.reason.clone_from(&before.reason);
        shown.message.clone_from(&before.message);
        shown.results.clone_from(&before.results);
        shown.fingerprint.clone_from(&before.fingerprint);
        shown.boot_id.clone_from(&before.boot_id);
        shown.quarantine_time.clone_from(&before.quarantine_time);
    }
}

/// The API's status as the planner recorded it.
pub fn from_api(validation: &NodeValidation, status: &NodeValidationStatus) -> JobStatus {
    let mut conditions = conditions_from_api(&status.conditions);
    reword(&mut conditions, 2, 0);
    let failed = conditions.get(&ConditionKind::Failed);
    let failed = failed.is_some_and(|condition| condition.holds);
    let phase = match status.phase {
        ValidationPhase::Pending if status.attempt == 0 => JobPhase::Queued,
        ValidationPhase::Pending => JobPhase::Restarting,
        ValidationPhase::Assigned => JobPhase::Assigned,
        ValidationPhase::Starting => JobPhase::Starting,
        ValidationPhase::Running => JobPhase::Running,
        ValidationPhase::Finished if failed => JobPhase::Failed,
        ValidationPhase::Finished => JobPhase::Succeeded,
    };
    let finished_at = status.completion_time.as_ref().map(timestamp);
    let started_at = status.start_time.as_ref().map(timestamp);
    let newest = started_at.filter(|_| status.attempt > 0);
    JobStatus {
        phase,
        conditions,
        attempt: status.attempt,
        started_at,
        finished_at,
        newest: newest.map(|since| AttemptRecord {
            attempt: status.attempt,
            nodes: 1,
            names: vec![validation.spec.node_name.as_str().into()],
            since,
            ended: finished_at.map(|end| (end, String::new())),
        }),
        ..JobStatus::default()
    }
}

fn phase(phase: JobPhase) -> ValidationPhase {
    match phase {
        JobPhase::Queued | JobPhase::Restarting | JobPhase::Suspended => ValidationPhase::Pending,
        JobPhase::Assigned => ValidationPhase::Assigned,
        JobPhase::Starting => ValidationPhase::Starting,
        JobPhase::Running | JobPhase::Interrupting => ValidationPhase::Running,
        JobPhase::Succeeded | JobPhase::Failed => ValidationPhase::Finished,
    }
}

#[cfg(test)]
mod tests {
    use scheduler::Timestamp;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_planners_words_become_those_of_a_run_of_checks_and_back() {
        let validation = json!({
            "apiVersion": "fireflyer.dev/v1alpha1", "kind": "NodeValidation",
            "metadata": {"name": "check", "generation": 1},
            "spec": {"nodeName": "n1"},
        });
        let validation: NodeValidation = serde_json::from_value(validation).unwrap();
        let now = Timestamp::from_millis(5000);
        for [reason, message, shown_reason, shown_message] in WORDS {
            let mut status = JobStatus {
                phase: JobPhase::Running,
                attempt: 1,
                started_at: Some(now),
                ..JobStatus::default()
            };
            let reason = if reason.is_empty() {
                "NodeLost"
            } else {
                reason
            };
            status.set(ConditionKind::Running, false, reason, message, now);
            let shown = to_api(&status, &validation);
            assert_eq!(shown.message.as_deref(), Some(shown_message));
            if !shown_reason.is_empty() {
                assert_eq!(shown.reason.as_deref(), Some(shown_reason));
            }
            let said = JobEvent {
                warning: false,
                reason: "Running",
                message: message.to_owned(),
            };
            let text = event(&said, &validation);
            assert_eq!(text, (shown_message.to_owned(), false));
            let read = from_api(&validation, &shown);
            assert_eq!(read.conditions, status.conditions);
        }
    }
}
