//! Between the planner's status and that of a NodeValidation. The planner's words for a job that
//! trains become those of a run of checks. Leaves the verdict to `verdict`.

use crds::NodeValidation;
use crds::node_validation::{NodeValidationStatus, ValidationPhase};
use scheduler::{AttemptRecord, ConditionKind, JobPhase, JobStatus};

use crate::training_job::status::{conditions_from_api, conditions_to_api, time};
use crate::training_job::translate::timestamp;

/// Longest message of a status, in bytes: the schema counts characters, which are no more.
const MESSAGE_BYTES: usize = 1024;

/// The planner's status as the API shows it, without a verdict.
pub fn to_api(status: &JobStatus, validation: &NodeValidation) -> NodeValidationStatus {
    let generation = validation.metadata.generation;
    let told = match status.phase {
        JobPhase::Queued | JobPhase::Assigned | JobPhase::Restarting | JobPhase::Suspended => {
            ConditionKind::Assigned
        }
        JobPhase::Starting | JobPhase::Running | JobPhase::Interrupting => ConditionKind::Running,
        JobPhase::Succeeded => ConditionKind::Complete,
        JobPhase::Failed => ConditionKind::Failed,
    };
    let told = status.conditions.get(&told);
    let before = validation.status.as_ref();
    NodeValidationStatus {
        phase: phase(status.phase),
        verdict: None,
        reason: told.map(|condition| condition.reason.clone()),
        message: told.map(|condition| cut(&condition.message)),
        conditions: conditions_to_api(&status.conditions, generation),
        attempt: status.attempt,
        node_class: before.and_then(|before| before.node_class.clone()),
        start_time: status.started_at.map(time),
        completion_time: status.finished_at.map(time),
        results: Vec::new(),
        fingerprint: None,
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
    }
}

/// The API's status as the planner recorded it.
pub fn from_api(validation: &NodeValidation, status: &NodeValidationStatus) -> JobStatus {
    let conditions = conditions_from_api(&status.conditions);
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

/// A text that the schema takes.
pub(super) fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(MESSAGE_BYTES)].to_owned()
}
