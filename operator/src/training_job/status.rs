//! Between the planner's status and the API's. Everything the planner remembers goes through here
//! and back, so a new leader continues where the old one stopped.

use std::collections::BTreeMap;

use crds::names;
use crds::training_job::{CheckpointStatus, FailureStatus, Phase as ApiPhase, TrainingJobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition as ApiCondition, Time};
use k8s_openapi::jiff;
use scheduler::{Checkpoint, Condition, ConditionKind, Failure, Phase, Status, Timestamp};

use crate::training_job::members;
use crate::training_job::translate::timestamp;

/// The planner's status as the API shows it.
pub fn to_api(status: &Status, job: &str, generation: Option<i64>) -> TrainingJobStatus {
    let conditions = status
        .conditions
        .iter()
        .map(|(kind, condition)| ApiCondition {
            type_: kind.as_str().to_owned(),
            status: if condition.holds { "True" } else { "False" }.to_owned(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            last_transition_time: time(condition.since),
            observed_generation: generation,
        });
    TrainingJobStatus {
        phase: phase_to_api(status.phase),
        conditions: conditions.collect(),
        attempt: status.attempt,
        restarts: status.restarts,
        replans: status.replans,
        ready: status.ready,
        membership: status.membership.as_ref().map(members::to_api),
        assignment: status
            .phase
            .holds_nodes()
            .then(|| names::attempt_name(job, status.attempt)),
        zone: status.zone.clone(),
        last_checkpoint: status
            .last_checkpoint
            .as_ref()
            .map(|checkpoint| CheckpointStatus {
                attempt: checkpoint.attempt,
                step: checkpoint.step,
                digest: checkpoint.digest.clone(),
                time: status.checkpoint_at.map(time),
            }),
        retry_at: status.retry_at.map(time),
        finished_at: status.finished_at.map(time),
        failure: status.failure.as_ref().map(|failure| FailureStatus {
            attempt: failure.attempt,
            node: failure.node.as_ref().map(ToString::to_string),
            rank: failure.rank,
            message: failure.message.clone(),
            log: failure.log.clone(),
        }),
        observed_generation: generation,
    }
}

/// The API's status as the planner recorded it.
pub fn from_api(status: &TrainingJobStatus) -> Status {
    Status {
        phase: phase_from_api(status.phase),
        conditions: conditions_from_api(&status.conditions),
        attempt: status.attempt,
        restarts: status.restarts,
        replans: status.replans,
        ready: status.ready,
        membership: status.membership.as_ref().and_then(members::from_api),
        zone: status.zone.clone(),
        last_checkpoint: status
            .last_checkpoint
            .as_ref()
            .map(|checkpoint| Checkpoint {
                attempt: checkpoint.attempt,
                step: checkpoint.step,
                digest: checkpoint.digest.clone(),
            }),
        checkpoint_at: status
            .last_checkpoint
            .as_ref()
            .and_then(|checkpoint| checkpoint.time.as_ref())
            .map(timestamp),
        retry_at: status.retry_at.as_ref().map(timestamp),
        finished_at: status.finished_at.as_ref().map(timestamp),
        failure: status.failure.as_ref().map(|failure| Failure {
            attempt: failure.attempt,
            node: failure.node.as_deref().map(Into::into),
            rank: failure.rank,
            message: failure.message.clone(),
            log: failure.log.clone(),
        }),
    }
}

/// Whether a condition is one that this release writes.
pub fn is_ours(condition: &ApiCondition) -> bool {
    let mut kinds = ConditionKind::ALL.into_iter();
    kinds.any(|kind| kind.as_str() == condition.type_)
}

/// Whether two conditions have the same type.
pub fn same_type(one: &ApiCondition, other: &ApiCondition) -> bool {
    one.type_ == other.type_
}

fn conditions_from_api(conditions: &[ApiCondition]) -> BTreeMap<ConditionKind, Condition> {
    let known = |name: &str| {
        ConditionKind::ALL
            .into_iter()
            .find(|kind| kind.as_str() == name)
    };
    conditions
        .iter()
        .filter_map(|condition| {
            let kind = known(&condition.type_)?;
            let condition = Condition {
                holds: condition.status == "True",
                reason: condition.reason.clone(),
                message: condition.message.clone(),
                since: timestamp(&condition.last_transition_time),
            };
            Some((kind, condition))
        })
        .collect()
}

/// The API's times have whole seconds. Rounding up keeps a back-off at least as long as planned,
/// and the planner's own recorded times are compared after the same rounding.
fn time(at: Timestamp) -> Time {
    let seconds = at.as_millis().div_ceil(1000);
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    Time(jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX))
}

/// The same word on both sides.
fn phase_to_api(phase: Phase) -> ApiPhase {
    match phase {
        Phase::Queued => ApiPhase::Queued,
        Phase::Assigned => ApiPhase::Assigned,
        Phase::Starting => ApiPhase::Starting,
        Phase::Running => ApiPhase::Running,
        Phase::Interrupting => ApiPhase::Interrupting,
        Phase::Restarting => ApiPhase::Restarting,
        Phase::Suspended => ApiPhase::Suspended,
        Phase::Succeeded => ApiPhase::Succeeded,
        Phase::Failed => ApiPhase::Failed,
    }
}

fn phase_from_api(phase: ApiPhase) -> Phase {
    match phase {
        ApiPhase::Queued => Phase::Queued,
        ApiPhase::Assigned => Phase::Assigned,
        ApiPhase::Starting => Phase::Starting,
        ApiPhase::Running => Phase::Running,
        ApiPhase::Interrupting => Phase::Interrupting,
        ApiPhase::Restarting => Phase::Restarting,
        ApiPhase::Suspended => Phase::Suspended,
        ApiPhase::Succeeded => Phase::Succeeded,
        ApiPhase::Failed => Phase::Failed,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use scheduler::Membership;

    use super::*;

    #[test]
    fn what_is_recorded_reads_back_the_same_through_json() {
        let second = |n: u64| Timestamp::from_millis(n * 1000);
        let mut status = Status {
            phase: Phase::Restarting,
            attempt: 3,
            restarts: 1,
            replans: 2,
            ready: 4,
            membership: Some(Membership {
                attempt: 3,
                epoch: 5,
                participants: 2,
                lost: BTreeSet::from([1, 4, 5, 6]),
                lost_nodes: vec!["n1".to_owned()],
                resume: Some("[]".into()),
            }),
            zone: Some("a+b".to_owned()),
            last_checkpoint: Some(Checkpoint {
                attempt: 2,
                step: 120,
                digest: "ab".to_owned(),
            }),
            checkpoint_at: Some(second(10)),
            retry_at: Some(second(20)),
            finished_at: Some(second(30)),
            failure: Some(Failure {
                attempt: 2,
                node: Some("n1".into()),
                rank: Some(5),
                message: "rank 5 failed".to_owned(),
                log: Some("bye".to_owned()),
            }),
            ..Status::default()
        };
        for (index, kind) in ConditionKind::ALL.into_iter().enumerate() {
            status.set(kind, index % 2 == 0, "Because", "it is so", second(40));
        }
        let json = serde_json::to_string(&to_api(&status, "digits", Some(7))).unwrap();
        assert_eq!(from_api(&serde_json::from_str(&json).unwrap()), status);
    }

    #[test]
    fn a_retry_is_never_recorded_earlier_than_planned() {
        let status = Status {
            retry_at: Some(Timestamp::from_millis(1001)),
            ..Status::default()
        };
        let read = from_api(&to_api(&status, "digits", None));
        assert_eq!(read.retry_at, Some(Timestamp::from_millis(2000)));
    }

    #[test]
    fn the_assignment_is_shown_only_while_nodes_are_held() {
        let status = Status {
            phase: Phase::Running,
            attempt: 3,
            ..Status::default()
        };
        assert_eq!(
            to_api(&status, "digits", None).assignment.as_deref(),
            Some("digits-3")
        );
        let status = Status {
            phase: Phase::Suspended,
            ..status
        };
        assert_eq!(to_api(&status, "digits", None).assignment, None);
    }
}
