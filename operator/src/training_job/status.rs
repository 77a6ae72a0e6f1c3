//! Between the planner's status and the API's. Everything the planner remembers goes through here
//! and back, so a new leader continues where the old one stopped.

use std::collections::BTreeMap;

use crds::names;
use crds::training_job::{
    AttemptStatus, AvoidedNodeStatus, CheckpointStatus, FailureStatus, Phase as ApiPhase,
    PromiseStatus, PromisedZone, TrainingJobStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition as ApiCondition, Time};
use k8s_openapi::jiff;
use scheduler::{
    AttemptRecord, Avoided, Condition, ConditionKind, EndCause, Failure, JobPhase, JobStatus,
    Promise, Timestamp,
};
use topology::{CheckpointRef, Class, NodeName};

use crate::training_job::translate::timestamp;
use crate::training_job::{completed, members};

/// Attempts that the API shows.
const ATTEMPTS: usize = 16;

/// The planner's status as the API shows it. `seen` is what it replaces: the planner knows the
/// newest attempt only, and those before it stay as they are shown.
pub fn to_api(
    status: &JobStatus,
    job: &str,
    generation: Option<i64>,
    seen: Option<&TrainingJobStatus>,
) -> TrainingJobStatus {
    TrainingJobStatus {
        phase: phase_to_api(status.phase),
        reason: reason(status),
        conditions: conditions_to_api(&status.conditions, generation),
        attempt: status.attempt,
        restarts: status.restarts,
        restart_times: status.restart_times.iter().copied().map(time).collect(),
        replans: status.replans,
        unreadable: status.unreadable,
        refusals: status.refusals,
        promise: status.promise.as_ref().map(promise_to_api),
        avoided_nodes: avoided_to_api(status),
        no_zone_since: status.no_zone_since.map(time),
        node_class: status.class.as_ref().map(|(class, _)| class.to_string()),
        procs_per_node: status.class.as_ref().map(|(_, procs)| *procs),
        ready_nodes: status.ready,
        membership: status.membership.as_ref().map(members::to_api),
        completed_ranks: status.completed.as_ref().map(completed::to_api),
        assignment: status
            .phase
            .holds_nodes()
            .then(|| names::attempt_name(job, status.attempt)),
        zones: status.zones.iter().map(ToString::to_string).collect(),
        last_checkpoint: status
            .last_checkpoint
            .as_ref()
            .map(|checkpoint| CheckpointStatus {
                attempt: checkpoint.attempt,
                step: checkpoint.step,
                digest: checkpoint.digest.clone(),
                time: status.checkpoint_at.map(time),
            }),
        next_attempt_time: status.retry_at.map(time),
        start_time: status.started_at.map(time),
        completion_time: status.finished_at.map(time),
        failure: status.failure.as_ref().map(|failure| FailureStatus {
            attempt: failure.attempt,
            node: failure.node.as_ref().map(ToString::to_string),
            rank: failure.rank,
            message: failure.message.clone(),
            log: failure.log.clone(),
        }),
        attempts: attempts(status.newest.as_ref(), seen),
        observed_generation: generation,
    }
}

/// The reason of the condition that says most about the phase.
fn reason(status: &JobStatus) -> Option<String> {
    let kind = match status.phase {
        JobPhase::Queued | JobPhase::Assigned | JobPhase::Restarting => ConditionKind::Assigned,
        JobPhase::Starting | JobPhase::Running | JobPhase::Interrupting => ConditionKind::Running,
        JobPhase::Suspended => ConditionKind::Suspended,
        JobPhase::Succeeded => ConditionKind::Complete,
        JobPhase::Failed => ConditionKind::Failed,
    };
    let condition = status.conditions.get(&kind)?;
    Some(condition.reason.clone())
}

/// The attempts that were shown, with the newest as it is now.
fn attempts(
    newest: Option<&AttemptRecord>,
    seen: Option<&TrainingJobStatus>,
) -> Vec<AttemptStatus> {
    let number = newest.map_or(u32::MAX, |newest| newest.attempt);
    let shown = seen.map_or(&[][..], |seen| &seen.attempts);
    let earlier = shown.iter().filter(|attempt| attempt.number < number);
    let mut attempts: Vec<AttemptStatus> = earlier.cloned().collect();
    attempts.extend(newest.map(|newest| AttemptStatus {
        number: newest.attempt,
        nodes: newest.nodes,
        node_names: newest.names.iter().map(ToString::to_string).collect(),
        start_time: time(newest.since),
        end_time: newest.ended.as_ref().map(|(end, _)| time(*end)),
        reason: newest.ended.as_ref().map(|(_, reason)| reason.clone()),
        node_seconds: newest.node_seconds(),
    }));
    let surplus = attempts.len().saturating_sub(ATTEMPTS);
    attempts.drain(..surplus);
    attempts
}

/// The newest attempt, as it is shown.
fn newest(status: &TrainingJobStatus) -> Option<AttemptRecord> {
    let shown = status.attempts.last()?;
    let ended = shown.end_time.as_ref();
    Some(AttemptRecord {
        attempt: shown.number,
        nodes: shown.nodes,
        names: shown
            .node_names
            .iter()
            .map(|name| name.as_str().into())
            .collect(),
        since: timestamp(&shown.start_time),
        ended: ended.map(|end| (timestamp(end), shown.reason.clone().unwrap_or_default())),
    })
}

/// The API's status as the planner recorded it.
pub fn from_api(status: &TrainingJobStatus) -> JobStatus {
    JobStatus {
        phase: phase_from_api(status.phase),
        conditions: conditions_from_api(&status.conditions),
        attempt: status.attempt,
        restarts: status.restarts,
        restart_times: status.restart_times.iter().map(timestamp).collect(),
        replans: status.replans,
        unreadable: status.unreadable,
        refusals: status.refusals,
        promise: status.promise.as_ref().map(promise_from_api),
        avoided: status.avoided_nodes.iter().map(avoided_from_api).collect(),
        no_zone_since: status.no_zone_since.as_ref().map(timestamp),
        class: class(status),
        ready: status.ready_nodes,
        membership: status.membership.as_ref().and_then(members::from_api),
        completed: status
            .completed_ranks
            .as_ref()
            .and_then(completed::from_api),
        zones: status
            .zones
            .iter()
            .map(|zone| zone.as_str().into())
            .collect(),
        last_checkpoint: status
            .last_checkpoint
            .as_ref()
            .map(|checkpoint| CheckpointRef {
                attempt: checkpoint.attempt,
                step: checkpoint.step,
                digest: checkpoint.digest.clone(),
            }),
        checkpoint_at: status
            .last_checkpoint
            .as_ref()
            .and_then(|checkpoint| checkpoint.time.as_ref())
            .map(timestamp),
        retry_at: status.next_attempt_time.as_ref().map(timestamp),
        started_at: status.start_time.as_ref().map(timestamp),
        finished_at: finished_at(status),
        newest: newest(status),
        failure: status.failure.as_ref().map(|failure| Failure {
            attempt: failure.attempt,
            node: failure.node.as_deref().map(Into::into),
            rank: failure.rank,
            message: failure.message.clone(),
            log: failure.log.clone(),
        }),
    }
}

fn promise_to_api(promise: &Promise) -> PromiseStatus {
    let zones = promise.zones.iter().map(|(zone, nodes)| PromisedZone {
        zone: zone.to_string(),
        nodes: *nodes,
    });
    PromiseStatus {
        attempt: promise.attempt,
        zones: zones.collect(),
        until: time(promise.until),
        delayed_by: promise.delayed_by.as_deref().map(str::to_owned),
    }
}

fn promise_from_api(promise: &PromiseStatus) -> Promise {
    let zones = promise.zones.iter();
    Promise {
        attempt: promise.attempt,
        zones: zones
            .map(|promised| (promised.zone.as_str().into(), promised.nodes))
            .collect(),
        until: timestamp(&promise.until),
        delayed_by: promise.delayed_by.as_deref().map(Into::into),
    }
}

fn avoided_to_api(status: &JobStatus) -> Vec<AvoidedNodeStatus> {
    let avoided = status.avoided.iter();
    avoided
        .map(|(node, avoided)| AvoidedNodeStatus {
            node: node.to_string(),
            until: time(avoided.until),
            reason: avoided.cause.as_str().to_owned(),
            count: avoided.count,
        })
        .collect()
}

fn avoided_from_api(avoided: &AvoidedNodeStatus) -> (NodeName, Avoided) {
    let mut causes = EndCause::ALL.into_iter();
    let cause = causes.find(|cause| cause.as_str() == avoided.reason);
    let avoided_until = Avoided {
        until: timestamp(&avoided.until),
        // A word of another release counts for this job alone.
        cause: cause.unwrap_or(EndCause::Other),
        count: avoided.count,
    };
    (avoided.node.as_str().into(), avoided_until)
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

/// The class and the processes of each node, if both were resolved.
fn class(status: &TrainingJobStatus) -> Option<(Class, u32)> {
    let class = status.node_class.as_deref()?;
    Some((class.into(), status.procs_per_node?))
}

/// When the job ended. An older operator said it in another field; then the condition that it ended
/// by has the time.
pub fn finished_at(status: &TrainingJobStatus) -> Option<Timestamp> {
    let ends = [ConditionKind::Complete, ConditionKind::Failed].map(ConditionKind::as_str);
    let ended = |one: &&ApiCondition| ends.contains(&&*one.type_) && one.status == "True";
    let condition = || status.conditions.iter().find(ended);
    let since = || condition().map(|condition| &condition.last_transition_time);
    let end = status.completion_time.as_ref().or_else(since);
    end.map(timestamp)
}

/// Conditions as the API shows them.
pub fn conditions_to_api(
    conditions: &BTreeMap<ConditionKind, Condition>,
    generation: Option<i64>,
) -> Vec<ApiCondition> {
    let conditions = conditions.iter().map(|(kind, condition)| ApiCondition {
        type_: kind.as_str().to_owned(),
        status: if condition.holds { "True" } else { "False" }.to_owned(),
        reason: condition.reason.clone(),
        message: condition.message.clone(),
        last_transition_time: time(condition.since),
        observed_generation: generation,
    });
    conditions.collect()
}

/// Conditions as the planner recorded them, those that this release knows.
pub fn conditions_from_api(conditions: &[ApiCondition]) -> BTreeMap<ConditionKind, Condition> {
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
pub fn time(at: Timestamp) -> Time {
    let seconds = at.as_millis().div_ceil(1000);
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    Time(jiff::Timestamp::from_second(seconds).unwrap_or(jiff::Timestamp::MAX))
}

/// The same word on both sides.
fn phase_to_api(phase: JobPhase) -> ApiPhase {
    match phase {
        JobPhase::Queued => ApiPhase::Queued,
        JobPhase::Assigned => ApiPhase::Assigned,
        JobPhase::Starting => ApiPhase::Starting,
        JobPhase::Running => ApiPhase::Running,
        JobPhase::Interrupting => ApiPhase::Interrupting,
        JobPhase::Restarting => ApiPhase::Restarting,
        JobPhase::Suspended => ApiPhase::Suspended,
        JobPhase::Succeeded => ApiPhase::Succeeded,
        JobPhase::Failed => ApiPhase::Failed,
    }
}

/// The planner's word for a phase.
pub fn phase_from_api(phase: ApiPhase) -> JobPhase {
    match phase {
        ApiPhase::Queued => JobPhase::Queued,
        ApiPhase::Assigned => JobPhase::Assigned,
        ApiPhase::Starting => JobPhase::Starting,
        ApiPhase::Running => JobPhase::Running,
        ApiPhase::Interrupting => JobPhase::Interrupting,
        ApiPhase::Restarting => JobPhase::Restarting,
        ApiPhase::Suspended => JobPhase::Suspended,
        ApiPhase::Succeeded => JobPhase::Succeeded,
        ApiPhase::Failed => JobPhase::Failed,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use scheduler::{CommittedMembers, CompletedRanks};

    use super::*;

    #[test]
    fn what_is_recorded_reads_back_the_same_through_json() {
        let second = |n: u64| Timestamp::from_millis(n * 1000);
        let mut status = JobStatus {
            phase: JobPhase::Restarting,
            attempt: 3,
            restarts: 1,
            restart_times: vec![second(3)],
            replans: 2,
            unreadable: 4,
            refusals: 1,
            promise: Some(Promise {
                attempt: 3,
                zones: BTreeMap::from([("a".into(), 2), ("b".into(), 1)]),
                until: second(50),
                delayed_by: Some("weekly-1".into()),
            }),
            avoided: BTreeMap::from([(
                "n1".into(),
                Avoided {
                    until: second(60),
                    cause: EndCause::NodeRefused,
                    count: 2,
                },
            )]),
            no_zone_since: Some(second(70)),
            ready: 4,
            membership: Some(CommittedMembers {
                attempt: 3,
                epoch: 5,
                participants: 2,
                lost: BTreeSet::from([1, 4, 5, 6]),
                lost_nodes: vec!["n1".to_owned()],
                record: Some("digits-3-ab".into()),
            }),
            completed: Some(CompletedRanks {
                attempt: 3,
                ranks: BTreeSet::from([0, 2, 3]),
            }),
            class: Some(("a100".into(), 8)),
            zones: vec!["a".into(), "b".into()],
            started_at: Some(second(5)),
            newest: Some(AttemptRecord {
                attempt: 3,
                nodes: 40,
                names: vec!["n1".into(), "n2".into()],
                since: second(15),
                ended: Some((second(18), "Failed".to_owned())),
            }),
            last_checkpoint: Some(CheckpointRef {
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
            ..JobStatus::default()
        };
        for (index, kind) in ConditionKind::ALL.into_iter().enumerate() {
            status.set(kind, index % 2 == 0, "Because", "it is so", second(40));
        }
        let json = serde_json::to_string(&to_api(&status, "digits", Some(7), None)).unwrap();
        assert_eq!(from_api(&serde_json::from_str(&json).unwrap()), status);
    }

    #[test]
    fn a_retry_is_never_recorded_earlier_than_planned() {
        let status = JobStatus {
            retry_at: Some(Timestamp::from_millis(1001)),
            ..JobStatus::default()
        };
        let read = from_api(&to_api(&status, "digits", None, None));
        assert_eq!(read.retry_at, Some(Timestamp::from_millis(2000)));
    }

    #[test]
    fn the_assignment_is_shown_only_while_nodes_are_held() {
        let status = JobStatus {
            phase: JobPhase::Running,
            attempt: 3,
            ..JobStatus::default()
        };
        assert_eq!(
            to_api(&status, "digits", None, None).assignment.as_deref(),
            Some("digits-3")
        );
        let status = JobStatus {
            phase: JobPhase::Suspended,
            ..status
        };
        assert_eq!(to_api(&status, "digits", None, None).assignment, None);
    }

    fn attempt(number: u32, ended: Option<&str>) -> AttemptRecord {
        let at = |second: u32| Timestamp::from_millis(u64::from(second) * 1000);
        AttemptRecord {
            attempt: number,
            nodes: 8,
            names: vec!["n1".into()],
            since: at(100 * number),
            ended: ended.map(|reason| (at(100 * number + 30), reason.to_owned())),
        }
    }

    #[test]
    fn the_last_sixteen_attempts_stay_with_what_ended_them_and_what_they_used() {
        let mut shown = TrainingJobStatus::default();
        for number in 1..=20 {
            for ended in [None, Some("Failed")] {
                let status = JobStatus {
                    newest: Some(attempt(number, ended)),
                    ..JobStatus::default()
                };
                shown = to_api(&status, "digits", None, Some(&shown));
            }
        }
        let numbers: Vec<u32> = shown.attempts.iter().map(|one| one.number).collect();
        assert_eq!(numbers, (5..=20).collect::<Vec<_>>());
        for one in &shown.attempts {
            assert_eq!(one.reason.as_deref(), Some("Failed"));
            assert_eq!(one.node_seconds, Some(240));
        }
    }

    #[test]
    fn an_attempt_that_begins_anew_under_its_number_replaces_what_was_shown() {
        let of = |record| JobStatus {
            newest: Some(record),
            ..JobStatus::default()
        };
        let first = to_api(&of(attempt(1, None)), "digits", None, None);
        let other = AttemptRecord {
            names: vec!["n9".into()],
            ..attempt(1, None)
        };
        let shown = to_api(&of(other), "digits", None, Some(&first));
        let [one] = &shown.attempts[..] else {
            panic!("not one attempt: {:?}", shown.attempts)
        };
        assert_eq!(one.node_names, ["n9"]);
    }

    #[test]
    fn the_reason_is_that_of_the_condition_that_explains_the_phase() {
        let mut status = JobStatus::default();
        let now = Timestamp::default();
        status.set(ConditionKind::Assigned, false, "WaitingForNodes", "", now);
        status.set(ConditionKind::Running, false, "Joining", "", now);
        let reason_of = |status: &JobStatus| to_api(status, "digits", None, None).reason;
        assert_eq!(reason_of(&status).as_deref(), Some("WaitingForNodes"));
        status.phase = JobPhase::Starting;
        assert_eq!(reason_of(&status).as_deref(), Some("Joining"));
        status.phase = JobPhase::Failed;
        assert_eq!(reason_of(&status), None);
    }

    #[test]
    fn a_job_that_ended_under_an_older_operator_ended_when_its_condition_says() {
        let mut status = JobStatus {
            phase: JobPhase::Succeeded,
            ..JobStatus::default()
        };
        let end = Timestamp::from_millis(90_000);
        status.set(ConditionKind::Complete, true, "Succeeded", "", end);
        let shown = to_api(&status, "digits", None, None);
        assert_eq!(shown.completion_time, None);
        assert_eq!(from_api(&shown).finished_at, Some(end));
    }
}
